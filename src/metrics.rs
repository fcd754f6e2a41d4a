//! Every metric: names, units, labels, and one small function for each. Only the facade; without a recorder these do
//! nothing. Units are base units (bytes, seconds), counters end in `_total`. No label holds a dataset's name.

mod connections;
mod faults;
mod handles;
mod labels;
mod names;

use std::time::{Duration, Instant};

use metrics::{Histogram, SharedString, counter, gauge, histogram};

pub use connections::{Connection, Connections, PoolBytes};
pub use faults::{accept_error, describe_store_errors, log_lines_dropped, store_calls, store_error};
pub use handles::{Answers, Lookups};
pub use labels::{Budget, Cache, Cancelled, Closed, ConnectionPool, Handshake, Lookup, Queue, Shed, StoreOperation};
use names::{
    ACCEPT_ERRORS, ACCESS_REFUSALS, ACCESS_RELOAD_FAILURES, BLOCKS_DECODED, BROKEN_ANSWERS, BUDGET_BYTES,
    BUDGET_CAPACITY, BUILD_INFO, CACHE_BYTES, CACHE_CAPACITY, CACHE_EVICTIONS, CACHE_REQUESTS, CANCELLED,
    CONFIG_SUCCESSFUL, CONFIG_TIMESTAMP, CONNECTIONS_CLOSED, CONTAINERS_UNREADY, CPU_RUNNING, DECODE_DURATION,
    DECODE_ERRORS, ENCODE_DURATION, HTTP_DURATION, HTTP_IN_FLIGHT, HTTP_RESPONSE_BYTES, LOG_DROPPED, MEMORY_BOUND,
    QUEUE_DURATION, QUEUE_WAITING, READY, REQUESTS_SHED, STORE_CALLS, STORE_DURATION, STORE_ERRORS, STORE_READ_BYTES,
    STORES_STALLED, TLS_HANDSHAKES, TLS_NOT_AFTER, TLS_RELOAD_FAILURES, TRACES_DROPPED, TRACES_EXPORTED,
};
pub use names::{Description, Kind, NAMES};

/// Tells the installed recorder what every metric means, and shows those with known labels from the start, so that a
/// rate over them is 0 and not missing.
pub fn describe() {
    for row in NAMES {
        match (row.kind, row.unit) {
            (Kind::Counter, None) => metrics::describe_counter!(row.name, row.help),
            (Kind::Counter, Some(unit)) => metrics::describe_counter!(row.name, unit, row.help),
            (Kind::Gauge, None) => metrics::describe_gauge!(row.name, row.help),
            (Kind::Gauge, Some(unit)) => metrics::describe_gauge!(row.name, unit, row.help),
            (Kind::Histogram, None) => metrics::describe_histogram!(row.name, row.help),
            (Kind::Histogram, Some(unit)) => metrics::describe_histogram!(row.name, unit, row.help),
        }
    }
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    requests_in_flight(0);
    counter!(BROKEN_ANSWERS).increment(0);
    counter!(ACCEPT_ERRORS).increment(0);
    traces_exported(0);
    traces_dropped("queue", 0);
    traces_dropped("collector", 0);
    for queue in Queue::ALL {
        gauge!(QUEUE_WAITING, "queue" => queue.name()).set(0.0);
    }
    for stage in Cancelled::ALL {
        counter!(CANCELLED, "stage" => stage.name()).increment(0);
    }
    for reason in Closed::ALL {
        counter!(CONNECTIONS_CLOSED, "reason" => reason.name()).increment(0);
    }
    for reason in Shed::ALL {
        counter!(REQUESTS_SHED, "reason" => reason.name()).increment(0);
    }
    for cache in Cache::ALL {
        for result in Lookup::ALL {
            counter!(CACHE_REQUESTS, "cache" => cache.name(), "result" => result.name()).increment(0);
        }
        counter!(CACHE_EVICTIONS, "cache" => cache.name()).increment(0);
    }
    for budget in Budget::ALL {
        gauge!(BUDGET_BYTES, "budget" => budget.name()).increment(0.0);
    }
}

/// Shows the counters of these codecs from the start, as [`describe`] does for labels that are known here.
pub fn describe_codecs(names: impl IntoIterator<Item = &'static str>) {
    for name in names {
        counter!(BLOCKS_DECODED, "codec" => name).increment(0);
        counter!(DECODE_ERRORS, "codec" => name).increment(0);
    }
}

/// A request was answered to the end. `method` and `route` come from small fixed sets: the route is the template,
/// `unmatched` without one; an unusual method is `other`.
pub fn http_request(method: &'static str, route: &'static str, status: u16, elapsed: Duration) {
    duration(method, route, status).record(elapsed);
}

fn duration(method: &'static str, route: &'static str, status: u16) -> Histogram {
    let status = SharedString::from_owned(status.to_string());
    histogram!(HTTP_DURATION, "method" => method, "route" => route, "status" => status)
}

/// Bytes of an answer's body were sent.
pub fn http_response_bytes(route: &'static str, bytes: u64) {
    counter!(HTTP_RESPONSE_BYTES, "route" => route).increment(bytes);
}

/// Requests that are being answered.
pub fn requests_in_flight(count: usize) {
    gauge!(HTTP_IN_FLIGHT).set(as_f64(count as u64));
}

/// A request was refused with 503.
pub fn request_shed(reason: Shed) {
    counter!(REQUESTS_SHED, "reason" => reason.name()).increment(1);
}

/// A streamed answer was broken off.
pub fn broken_answer() {
    counter!(BROKEN_ANSWERS).increment(1);
}

/// A client went away.
pub fn request_cancelled(stage: Cancelled) {
    counter!(CANCELLED, "stage" => stage.name()).increment(1);
}

/// A request was refused because of who asked; the reasons are a small fixed set.
pub fn access_refused(reason: &'static str) {
    counter!(ACCESS_REFUSALS, "reason" => reason).increment(1);
}

/// `tokens` or `keys` could not be read again.
pub fn access_reload_failed(what: &'static str) {
    counter!(ACCESS_RELOAD_FAILURES, "what" => what).increment(1);
}

/// A TLS handshake has ended.
pub fn tls_handshake(result: Handshake) {
    counter!(TLS_HANDSHAKES, "result" => result.name()).increment(1);
}

/// When the certificate in use expires, in seconds since 1970.
pub fn tls_certificate(not_after_seconds: u64) {
    gauge!(TLS_NOT_AFTER).set(as_f64(not_after_seconds));
}

/// A new certificate and key could not be used.
pub fn tls_reload_failed() {
    counter!(TLS_RELOAD_FAILURES).increment(1);
}

/// Shows the counters of TLS from the start, where it is used.
pub fn describe_tls() {
    for result in Handshake::ALL {
        counter!(TLS_HANDSHAKES, "result" => result.name()).increment(0);
    }
    counter!(TLS_RELOAD_FAILURES).increment(0);
}

/// So many entries were looked up in a cache with that result.
pub fn cache_requests(cache: Cache, result: Lookup, count: u64) {
    if count > 0 {
        counter!(CACHE_REQUESTS, "cache" => cache.name(), "result" => result.name()).increment(count);
    }
}

/// Memory of a cache's entries now and at most, in bytes.
pub fn cache_bytes(cache: Cache, bytes: u64, capacity_bytes: u64) {
    gauge!(CACHE_BYTES, "cache" => cache.name()).set(as_f64(bytes));
    gauge!(CACHE_CAPACITY, "cache" => cache.name()).set(as_f64(capacity_bytes));
}

/// A full cache dropped an entry.
pub fn cache_eviction(cache: Cache) {
    counter!(CACHE_EVICTIONS, "cache" => cache.name()).increment(1);
}

/// Storage answered, well or not.
pub fn store_request(operation: StoreOperation, backend: &'static str, elapsed: Duration) {
    histogram!(STORE_DURATION, "op" => operation.name(), "backend" => backend).record(elapsed);
}

/// Bytes came from storage.
pub fn store_read_bytes(backend: &'static str, bytes: u64) {
    counter!(STORE_READ_BYTES, "backend" => backend).increment(bytes);
}

/// A block was decoded. `codec` is a name of the table of codecs.
pub fn block_decoded(codec: &'static str, elapsed: Duration) {
    counter!(BLOCKS_DECODED, "codec" => codec).increment(1);
    histogram!(DECODE_DURATION, "codec" => codec).record(elapsed);
}

/// A block could not be decoded; an unknown codec is `unknown`, for names in attributes are anyone's.
pub fn decode_error(codec: &'static str) {
    counter!(DECODE_ERRORS, "codec" => codec).increment(1);
}

/// A slice, or a piece of one, was encoded.
pub fn encoded(format: &'static str, elapsed: Duration) {
    histogram!(ENCODE_DURATION, "format" => format).record(elapsed);
}

/// One that waits in a queue, from [`Self::begin`] until dropped.
#[derive(Debug)]
pub struct Waiting {
    queue: Queue,
    since: Instant,
}

impl Waiting {
    /// Begins to wait.
    pub fn begin(queue: Queue) -> Self {
        gauge!(QUEUE_WAITING, "queue" => queue.name()).increment(1.0);
        Self { queue, since: Instant::now() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        gauge!(QUEUE_WAITING, "queue" => self.queue.name()).decrement(1.0);
        histogram!(QUEUE_DURATION, "queue" => self.queue.name()).record(self.since.elapsed());
    }
}

/// Jobs that run on the CPU lane.
pub fn cpu_jobs(running: usize) {
    gauge!(CPU_RUNNING).set(as_f64(running as u64));
}

/// Size of a budget, in bytes.
pub fn budget_capacity(budget: Budget, bytes: u64) {
    gauge!(BUDGET_CAPACITY, "budget" => budget.name()).set(as_f64(bytes));
}

/// Memory that caches, budgets and threads take at most.
pub fn memory_bound(bytes: u64) {
    gauge!(MEMORY_BOUND).set(as_f64(bytes));
}

/// Memory was taken from a budget.
pub fn budget_taken(budget: Budget, bytes: u64) {
    gauge!(BUDGET_BYTES, "budget" => budget.name()).increment(as_f64(bytes));
}

/// Memory was given back to a budget.
pub fn budget_returned(budget: Budget, bytes: u64) {
    gauge!(BUDGET_BYTES, "budget" => budget.name()).decrement(as_f64(bytes));
}

/// A collector took traces.
pub fn traces_exported(count: u64) {
    counter!(TRACES_EXPORTED).increment(count);
}

/// Traces were given up.
pub fn traces_dropped(reason: &'static str, count: u64) {
    counter!(TRACES_DROPPED, "reason" => reason).increment(count);
}

/// `/readyz` says so, and so many containers cannot be read.
pub fn ready(is_ready: bool, unready: u32) {
    gauge!(READY).set(if is_ready { 1.0 } else { 0.0 });
    gauge!(CONTAINERS_UNREADY).set(f64::from(unready));
}

/// The configuration was read at a time since 1970, and taken over or not.
pub fn config_loaded(is_good: bool, now: Duration) {
    gauge!(CONFIG_SUCCESSFUL).set(if is_good { 1.0 } else { 0.0 });
    if is_good {
        gauge!(CONFIG_TIMESTAMP).set(now.as_secs_f64());
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float; exact below 2^53 bytes")]
fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use metrics::Unit;
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    fn rendered(calls: impl FnOnce()) -> String {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, calls);
        recorder.handle().render()
    }

    fn call_everything() {
        describe();
        describe_codecs(["gzip"]);
        http_request("GET", "/slice/{dataset}", 200, Duration::from_millis(1));
        http_response_bytes("/slice/{dataset}", 10);
        Answers::new("stored").record("GET", 200, Duration::from_millis(1), 10);
        requests_in_flight(0);
        Lookups::new(Cache::Stored).count(Lookup::Hit, 1);
        request_shed(Shed::Requests);
        broken_answer();
        access_refused("no_token");
        access_reload_failed("tokens");
        describe_tls();
        tls_handshake(Handshake::Done);
        tls_certificate(1_800_000_000);
        tls_reload_failed();
        cache_requests(Cache::Stored, Lookup::Hit, 1);
        cache_bytes(Cache::Stored, 1, 2);
        cache_eviction(Cache::Stored);
        store_request(StoreOperation::Get, "local", Duration::from_millis(1));
        encoded("png", Duration::from_millis(1));
        drop(Waiting::begin(Queue::Cpu));
        cpu_jobs(0);
        drop(Connections::new(1).open());
        PoolBytes::new(ConnectionPool::Memory, 1).add(1);
        request_cancelled(Cancelled::Waiting);
        store_read_bytes("local", 10);
        describe_store_errors(&["io"]);
        store_error(StoreOperation::Get, "io");
        store_calls(1, 0, 0);
        log_lines_dropped(0);
        accept_error();
        block_decoded("gzip", Duration::from_millis(1));
        decode_error("gzip");
        memory_bound(1 << 20);
        budget_capacity(Budget::Slice, 100);
        budget_taken(Budget::Slice, 30);
        budget_returned(Budget::Slice, 10);
        ready(true, 0);
        traces_exported(1);
        traces_dropped("queue", 1);
        config_loaded(true, Duration::from_secs(1));
    }

    #[test]
    fn the_table_is_what_is_recorded() {
        let text = rendered(call_everything);
        let types: BTreeSet<_> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        assert_eq!(types, NAMES.iter().map(|row| row.name).collect());
        for row in NAMES {
            let samples = |line: &&str| line.starts_with(row.name) && line.contains(['{', ' ']);
            for line in text.lines().filter(samples) {
                for label in row.labels {
                    assert!(line.contains(&format!("{label}=\"")), "{line} lacks {label}");
                }
            }
            assert!(text.contains(&format!("# HELP {} {}", row.name, row.help)), "{}", row.name);
        }
    }

    #[test]
    fn names_carry_their_units() {
        for Description { name, kind, unit, .. } in NAMES {
            let stem = name.strip_suffix("_total").unwrap_or(name);
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            assert_eq!(stem.ends_with("_bytes"), *unit == Some(Unit::Bytes), "{name}");
            assert_eq!(stem.ends_with("_seconds"), *unit == Some(Unit::Seconds), "{name}");
        }
    }

    #[test]
    fn known_labels_show_before_the_first_event() {
        let text = rendered(describe);
        assert!(text.contains("n5_cache_requests_total{cache=\"attributes\",result=\"stale\"} 0"), "{text}");
        assert!(text.contains("n5_requests_shed_total{reason=\"slice_budget\"} 0"));
        assert!(text.contains(&format!("n5_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"))));
    }

    #[test]
    fn a_budget_in_use_is_what_was_taken_and_not_returned() {
        let text = rendered(call_everything);
        assert!(text.contains("n5_budget_bytes{budget=\"slice\"} 20"), "{text}");
        assert!(text.contains("n5_http_requests_in_flight 0"), "{text}");
    }
}
