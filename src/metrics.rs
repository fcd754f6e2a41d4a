//! All metrics: names, units, labels, and a small function for each metric.
//!
//! The functions use only the facade `metrics` and do nothing without a recorder. Units are base units (bytes,
//! seconds). Names of counters end in `_total`. No label contains the name of a dataset.

mod connections;
mod float;
mod handles;
mod labels;
mod names;

use std::time::{Duration, Instant};

use metrics::{counter, gauge, histogram};

pub use connections::{ConnectionMetrics, OpenConnectionGuard, PoolGauge};
use float::as_f64;
pub use handles::{LookupCounters, RouteMetrics, http_request};
pub use labels::{
    BudgetLabel, CacheLabel, CancelStage, CloseReason, ConnectionPoolLabel, HandshakeResult, LookupResult, QueueLabel,
    ShedReason, StoreOperation,
};
use names::{
    ACCEPT_ERRORS, ACCESS_REFUSALS, ACCESS_RELOAD_FAILURES, BLOCKS_DECODED, BROKEN_ANSWERS, BUDGET_BYTES,
    BUDGET_CAPACITY, BUILD_INFO, CACHE_BYTES, CACHE_CAPACITY, CACHE_EVICTIONS, CACHE_REQUESTS, CANCELLED,
    CONFIG_SUCCESSFUL, CONFIG_TIMESTAMP, CONNECTIONS_CLOSED, CONTAINERS_UNREADY, CPU_RUNNING, DECODE_DURATION,
    DECODE_ERRORS, ENCODE_DURATION, HTTP_IN_FLIGHT, HTTP_RESPONSE_BYTES, LOG_DROPPED, MEMORY_BOUND, QUEUE_DURATION,
    QUEUE_WAITING, READY, REQUESTS_SHED, STORE_CALLS, STORE_DURATION, STORE_ERRORS, STORE_READ_BYTES, STORES_STALLED,
    TLS_HANDSHAKES, TLS_NOT_AFTER, TLS_RELOAD_FAILURES, TRACES_DROPPED, TRACES_EXPORTED,
};
pub use names::{METRICS, MetricDescription, MetricKind};

/// Registers the descriptions of all metrics with the installed recorder. Initializes metrics with known labels to 0,
/// so a rate over them is 0 and not missing.
pub fn describe() {
    for row in METRICS {
        match (row.kind, row.unit) {
            (MetricKind::Counter, None) => metrics::describe_counter!(row.name, row.help),
            (MetricKind::Counter, Some(unit)) => metrics::describe_counter!(row.name, unit, row.help),
            (MetricKind::Gauge, None) => metrics::describe_gauge!(row.name, row.help),
            (MetricKind::Gauge, Some(unit)) => metrics::describe_gauge!(row.name, unit, row.help),
            (MetricKind::Histogram, None) => metrics::describe_histogram!(row.name, row.help),
            (MetricKind::Histogram, Some(unit)) => metrics::describe_histogram!(row.name, unit, row.help),
        }
    }
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    requests_in_flight(0);
    counter!(BROKEN_ANSWERS).increment(0);
    counter!(ACCEPT_ERRORS).increment(0);
    traces_exported(0);
    traces_dropped("queue", 0);
    traces_dropped("collector", 0);
    for queue in QueueLabel::ALL {
        gauge!(QUEUE_WAITING, "queue" => queue.name()).set(0.0);
    }
    for stage in CancelStage::ALL {
        counter!(CANCELLED, "stage" => stage.name()).increment(0);
    }
    for reason in CloseReason::ALL {
        counter!(CONNECTIONS_CLOSED, "reason" => reason.name()).increment(0);
    }
    for reason in ShedReason::ALL {
        counter!(REQUESTS_SHED, "reason" => reason.name()).increment(0);
    }
    for cache in CacheLabel::ALL {
        for result in LookupResult::ALL {
            counter!(CACHE_REQUESTS, "cache" => cache.name(), "result" => result.name()).increment(0);
        }
        counter!(CACHE_EVICTIONS, "cache" => cache.name()).increment(0);
    }
    for budget in BudgetLabel::ALL {
        gauge!(BUDGET_BYTES, "budget" => budget.name()).increment(0.0);
    }
}

/// Initializes the counters of these codecs to 0, like [`describe`] for labels that this module knows.
pub fn describe_codecs(names: impl IntoIterator<Item = &'static str>) {
    for name in names {
        counter!(BLOCKS_DECODED, "codec" => name).increment(0);
        counter!(DECODE_ERRORS, "codec" => name).increment(0);
    }
}

/// Counts bytes of a response body that were sent.
pub fn http_response_bytes(route: &'static str, bytes: u64) {
    counter!(HTTP_RESPONSE_BYTES, "route" => route).increment(bytes);
}

/// Sets the number of requests in progress.
pub fn requests_in_flight(count: usize) {
    gauge!(HTTP_IN_FLIGHT).set(as_f64(count as u64));
}

/// Counts a request rejected with 503, or with 429 because of its client's own limit.
pub fn request_shed(reason: ShedReason) {
    counter!(REQUESTS_SHED, "reason" => reason.name()).increment(1);
}

/// Counts a streamed response that was aborted.
pub fn broken_answer() {
    counter!(BROKEN_ANSWERS).increment(1);
}

/// Counts a request whose client disconnected.
pub fn request_cancelled(stage: CancelStage) {
    counter!(CANCELLED, "stage" => stage.name()).increment(1);
}

/// Counts a request refused by access control. The reasons are a small fixed set.
pub fn access_refused(reason: &'static str) {
    counter!(ACCESS_REFUSALS, "reason" => reason).increment(1);
}

/// Counts a failed reload; `what` is `tokens` or `keys`.
pub fn access_reload_failed(what: &'static str) {
    counter!(ACCESS_RELOAD_FAILURES, "what" => what).increment(1);
}

/// Counts a TLS handshake that ended with this result.
pub fn tls_handshake(result: HandshakeResult) {
    counter!(TLS_HANDSHAKES, "result" => result.name()).increment(1);
}

/// Sets the time at which the certificate in use expires, in seconds since 1970.
pub fn tls_certificate(not_after_seconds: u64) {
    gauge!(TLS_NOT_AFTER).set(as_f64(not_after_seconds));
}

/// Counts a new certificate and key that could not be used.
pub fn tls_reload_failed() {
    counter!(TLS_RELOAD_FAILURES).increment(1);
}

/// Initializes the counters of TLS to 0. Call it only if TLS is enabled.
pub fn describe_tls() {
    for result in HandshakeResult::ALL {
        counter!(TLS_HANDSHAKES, "result" => result.name()).increment(0);
    }
    counter!(TLS_RELOAD_FAILURES).increment(0);
}

/// Counts `count` look-ups in a cache with this result.
pub fn cache_requests(cache: CacheLabel, result: LookupResult, count: u64) {
    if count > 0 {
        counter!(CACHE_REQUESTS, "cache" => cache.name(), "result" => result.name()).increment(count);
    }
}

/// Sets the current and the maximum memory of a cache's entries, in bytes.
pub fn cache_bytes(cache: CacheLabel, bytes: u64, capacity_bytes: u64) {
    gauge!(CACHE_BYTES, "cache" => cache.name()).set(as_f64(bytes));
    gauge!(CACHE_CAPACITY, "cache" => cache.name()).set(as_f64(capacity_bytes));
}

/// Counts an entry that a full cache dropped.
pub fn cache_eviction(cache: CacheLabel) {
    counter!(CACHE_EVICTIONS, "cache" => cache.name()).increment(1);
}

/// Records the duration of a request to storage, successful or not.
pub fn store_request(operation: StoreOperation, backend: &'static str, elapsed: Duration) {
    histogram!(STORE_DURATION, "op" => operation.name(), "backend" => backend).record(elapsed);
}

/// Initializes the counters of storage errors of these kinds to 0, like [`describe`].
pub fn describe_store_errors(kinds: &[&'static str]) {
    for operation in StoreOperation::ALL {
        for kind in kinds {
            counter!(STORE_ERRORS, "op" => operation.name(), "kind" => *kind).increment(0);
        }
    }
}

/// Counts a failed request to storage. The kinds are a small fixed set.
pub fn store_error(operation: StoreOperation, kind: &'static str) {
    counter!(STORE_ERRORS, "op" => operation.name(), "kind" => kind).increment(1);
}

/// Sets the numbers of running and queued requests to storage, and the number of stores that do not respond.
pub fn store_calls(running: usize, queued: usize, stalled: usize) {
    gauge!(STORE_CALLS, "state" => "running").set(as_f64(running as u64));
    gauge!(STORE_CALLS, "state" => "queued").set(as_f64(queued as u64));
    gauge!(STORES_STALLED).set(as_f64(stalled as u64));
}

/// Sets the number of log lines that were dropped or could not be written since the start.
pub fn log_lines_dropped(count: u64) {
    counter!(LOG_DROPPED).absolute(count);
}

/// Counts a connection that could not be accepted.
pub fn accept_error() {
    counter!(ACCEPT_ERRORS).increment(1);
}

/// Counts bytes read from storage.
pub fn store_read_bytes(backend: &'static str, bytes: u64) {
    counter!(STORE_READ_BYTES, "backend" => backend).increment(bytes);
}

/// Records a decoded block. `codec` is a name in the table of codecs.
pub fn block_decoded(codec: &'static str, elapsed: Duration) {
    counter!(BLOCKS_DECODED, "codec" => codec).increment(1);
    histogram!(DECODE_DURATION, "codec" => codec).record(elapsed);
}

/// Counts a block that could not be decoded. An unknown codec is `unknown`, because attributes can contain any name.
pub fn decode_error(codec: &'static str) {
    counter!(DECODE_ERRORS, "codec" => codec).increment(1);
}

/// Records the time to encode a slice or a piece of one.
pub fn slice_encoded(format: &'static str, elapsed: Duration) {
    histogram!(ENCODE_DURATION, "format" => format).record(elapsed);
}

/// Timer of a wait in a queue, from [`Self::begin`] until it is dropped.
#[derive(Debug)]
pub struct QueueWaitTimer {
    queue: QueueLabel,
    started: Instant,
}

impl QueueWaitTimer {
    /// Starts the wait.
    pub fn begin(queue: QueueLabel) -> Self {
        gauge!(QUEUE_WAITING, "queue" => queue.name()).increment(1.0);
        Self { queue, started: Instant::now() }
    }
}

impl Drop for QueueWaitTimer {
    fn drop(&mut self) {
        gauge!(QUEUE_WAITING, "queue" => self.queue.name()).decrement(1.0);
        histogram!(QUEUE_DURATION, "queue" => self.queue.name()).record(self.started.elapsed());
    }
}

/// Sets the number of jobs that run in the CPU pool.
pub fn cpu_jobs(running: usize) {
    gauge!(CPU_RUNNING).set(as_f64(running as u64));
}

/// Sets the size of a budget, in bytes.
pub fn budget_capacity(budget: BudgetLabel, bytes: u64) {
    gauge!(BUDGET_CAPACITY, "budget" => budget.name()).set(as_f64(bytes));
}

/// Sets the maximum memory of caches, budgets and threads, in bytes.
pub fn memory_bound(bytes: u64) {
    gauge!(MEMORY_BOUND).set(as_f64(bytes));
}

/// Records bytes taken from a budget.
pub fn budget_taken(budget: BudgetLabel, bytes: u64) {
    gauge!(BUDGET_BYTES, "budget" => budget.name()).increment(as_f64(bytes));
}

/// Records bytes returned to a budget.
pub fn budget_returned(budget: BudgetLabel, bytes: u64) {
    gauge!(BUDGET_BYTES, "budget" => budget.name()).decrement(as_f64(bytes));
}

/// Counts traces that a collector accepted.
pub fn traces_exported(count: u64) {
    counter!(TRACES_EXPORTED).increment(count);
}

/// Counts dropped traces.
pub fn traces_dropped(reason: &'static str, count: u64) {
    counter!(TRACES_DROPPED, "reason" => reason).increment(count);
}

/// Sets the readiness that `/readyz` reports, and the number of unreadable containers.
pub fn set_readiness(is_ready: bool, unready: u32) {
    gauge!(READY).set(if is_ready { 1.0 } else { 0.0 });
    gauge!(CONTAINERS_UNREADY).set(f64::from(unready));
}

/// Records that the configuration was read at `now`, a time since 1970, and whether it was applied.
pub fn config_loaded(is_valid: bool, now: Duration) {
    gauge!(CONFIG_SUCCESSFUL).set(if is_valid { 1.0 } else { 0.0 });
    if is_valid {
        gauge!(CONFIG_TIMESTAMP).set(now.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use metrics::Unit;
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    fn render(calls: impl FnOnce()) -> String {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, calls);
        recorder.handle().render()
    }

    fn record_all_metrics() {
        describe();
        describe_codecs(["gzip"]);
        http_request("GET", "/slice/{dataset}", 200, Duration::from_millis(1));
        http_response_bytes("/slice/{dataset}", 10);
        RouteMetrics::new("stored").record("GET", 200, Duration::from_millis(1), 10);
        requests_in_flight(0);
        LookupCounters::new(CacheLabel::Stored).count(LookupResult::Hit, 1);
        request_shed(ShedReason::Requests);
        broken_answer();
        access_refused("no_token");
        access_reload_failed("tokens");
        describe_tls();
        tls_handshake(HandshakeResult::Done);
        tls_certificate(1_800_000_000);
        tls_reload_failed();
        cache_requests(CacheLabel::Stored, LookupResult::Hit, 1);
        cache_bytes(CacheLabel::Stored, 1, 2);
        cache_eviction(CacheLabel::Stored);
        store_request(StoreOperation::Get, "local", Duration::from_millis(1));
        slice_encoded("png", Duration::from_millis(1));
        drop(QueueWaitTimer::begin(QueueLabel::Cpu));
        cpu_jobs(0);
        drop(ConnectionMetrics::new(1).record_accepted());
        PoolGauge::new(ConnectionPoolLabel::Memory, 1).add(1);
        request_cancelled(CancelStage::Waiting);
        store_read_bytes("local", 10);
        describe_store_errors(&["io"]);
        store_error(StoreOperation::Get, "io");
        store_calls(1, 0, 0);
        log_lines_dropped(0);
        accept_error();
        block_decoded("gzip", Duration::from_millis(1));
        decode_error("gzip");
        memory_bound(1 << 20);
        budget_capacity(BudgetLabel::Slice, 100);
        budget_taken(BudgetLabel::Slice, 30);
        budget_returned(BudgetLabel::Slice, 10);
        set_readiness(true, 0);
        traces_exported(1);
        traces_dropped("queue", 1);
        config_loaded(true, Duration::from_secs(1));
    }

    #[test]
    fn the_table_lists_exactly_the_recorded_metrics() {
        let text = render(record_all_metrics);
        let types: BTreeSet<_> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        assert_eq!(types, METRICS.iter().map(|row| row.name).collect());
        for row in METRICS {
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
        for MetricDescription { name, kind, unit, .. } in METRICS {
            let stem = name.strip_suffix("_total").unwrap_or(name);
            assert_eq!(name.ends_with("_total"), *kind == MetricKind::Counter, "{name}");
            assert_eq!(stem.ends_with("_bytes"), *unit == Some(Unit::Bytes), "{name}");
            assert_eq!(stem.ends_with("_seconds"), *unit == Some(Unit::Seconds), "{name}");
        }
    }

    #[test]
    fn known_labels_show_before_the_first_event() {
        let text = render(describe);
        assert!(text.contains("n5_cache_requests_total{cache=\"attributes\",result=\"stale\"} 0"), "{text}");
        assert!(text.contains("n5_requests_shed_total{reason=\"slice_budget\"} 0"));
        assert!(text.contains(&format!("n5_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"))));
    }

    #[test]
    fn a_budget_reports_bytes_taken_and_not_yet_returned() {
        let text = render(record_all_metrics);
        assert!(text.contains("n5_budget_bytes{budget=\"slice\"} 20"), "{text}");
        assert!(text.contains("n5_http_requests_in_flight 0"), "{text}");
    }
}
