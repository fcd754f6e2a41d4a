//! Defines all metrics: names, units, labels, and a small function for each metric.
//!
//! The functions use only the facade `metrics` and do nothing without a recorder. Units are base units (bytes,
//! seconds). Names of counters end in `_total`. No label contains the name of a dataset.

mod disk_cache;
mod labels;
mod names;

use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram, SharedString, Unit, counter, gauge, histogram};

pub use disk_cache::DiskCacheStats;
pub use labels::{
    BudgetLabel, CacheLabel, CancelStage, CloseReason, ConnectionPoolLabel, HandshakeResult, LookupResult, QueueLabel,
    ShedReason, StoreOperation,
};
pub use names::{METRICS, MetricDescription, MetricKind};

/// Registers the descriptions of all metrics with the installed recorder. Initializes metrics with known labels to 0,
/// so a rate over them is 0 and not missing.
pub fn describe() {
    for row in METRICS {
        let unit = row.unit.unwrap_or(Unit::Count);
        match row.kind {
            MetricKind::Counter => metrics::describe_counter!(row.name, unit, row.help),
            MetricKind::Gauge => metrics::describe_gauge!(row.name, unit, row.help),
            MetricKind::Histogram => metrics::describe_histogram!(row.name, unit, row.help),
        }
    }
    gauge!(names::BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    requests_in_flight(0);
    counter!(names::BROKEN_ANSWERS).increment(0);
    counter!(names::NEGATIVE_CACHE_HITS).increment(0);
    counter!(names::ACCEPT_ERRORS).increment(0);
    traces_exported(0);
    traces_dropped("queue", 0);
    traces_dropped("collector", 0);
    for queue in QueueLabel::ALL {
        gauge!(names::QUEUE_WAITING, "queue" => queue.name()).set(0.0);
    }
    for stage in CancelStage::ALL {
        counter!(names::CANCELLED, "stage" => stage.name()).increment(0);
    }
    for reason in CloseReason::ALL {
        counter!(names::CONNECTIONS_CLOSED, "reason" => reason.name()).increment(0);
    }
    for reason in ShedReason::ALL {
        counter!(names::REQUESTS_SHED, "reason" => reason.name()).increment(0);
    }
    for cache in CacheLabel::ALL {
        for result in LookupResult::ALL {
            counter!(names::CACHE_REQUESTS, "cache" => cache.name(), "result" => result.name()).increment(0);
        }
        counter!(names::CACHE_EVICTIONS, "cache" => cache.name()).increment(0);
    }
    for budget in BudgetLabel::ALL {
        gauge!(names::BUDGET_BYTES, "budget" => budget.name()).increment(0.0);
    }
}

/// Initializes the counters of these codecs to 0. This module does not know the codecs' names, so the caller passes
/// them.
pub fn describe_codecs(names: impl IntoIterator<Item = &'static str>) {
    for name in names {
        counter!(names::BLOCKS_DECODED, "codec" => name).increment(0);
        counter!(names::DECODE_ERRORS, "codec" => name).increment(0);
    }
}

/// Counts bytes of a response body that were sent.
pub fn http_response_bytes(route: &'static str, bytes: u64) {
    counter!(names::HTTP_RESPONSE_BYTES, "route" => route).increment(bytes);
}

/// Sets the number of requests in progress.
pub fn requests_in_flight(count: usize) {
    gauge!(names::HTTP_IN_FLIGHT).set(as_f64(count as u64));
}

/// Counts a request rejected with 503, or with 429 because of its client's own limit.
pub fn request_shed(reason: ShedReason) {
    counter!(names::REQUESTS_SHED, "reason" => reason.name()).increment(1);
}

/// Counts a streamed response that was aborted.
pub fn broken_response() {
    counter!(names::BROKEN_ANSWERS).increment(1);
}

/// Counts a request whose client disconnected.
pub fn request_cancelled(stage: CancelStage) {
    counter!(names::CANCELLED, "stage" => stage.name()).increment(1);
}

/// Counts a request refused by access control. The reasons are a small fixed set.
pub fn access_refused(reason: &'static str) {
    counter!(names::ACCESS_REFUSALS, "reason" => reason).increment(1);
}

/// Counts a failed reload; `what` is `tokens` or `keys`.
pub fn access_reload_failed(what: &'static str) {
    counter!(names::ACCESS_RELOAD_FAILURES, "what" => what).increment(1);
}

/// Counts a TLS handshake that ended with this result.
pub fn tls_handshake(result: HandshakeResult) {
    counter!(names::TLS_HANDSHAKES, "result" => result.name()).increment(1);
}

/// Sets the time at which the certificate in use expires, in seconds since 1970.
pub fn tls_certificate(not_after_seconds: u64) {
    gauge!(names::TLS_NOT_AFTER).set(as_f64(not_after_seconds));
}

/// Counts a new certificate and key that could not be used.
pub fn tls_reload_failed() {
    counter!(names::TLS_RELOAD_FAILURES).increment(1);
}

/// Initializes the counters of TLS to 0. Call it only if TLS is enabled.
pub fn describe_tls() {
    for result in HandshakeResult::ALL {
        counter!(names::TLS_HANDSHAKES, "result" => result.name()).increment(0);
    }
    counter!(names::TLS_RELOAD_FAILURES).increment(0);
}

/// Counts `count` look-ups in a cache with this result.
pub fn cache_requests(cache: CacheLabel, result: LookupResult, count: u64) {
    if count > 0 {
        counter!(names::CACHE_REQUESTS, "cache" => cache.name(), "result" => result.name()).increment(count);
    }
}

/// Sets the current and the maximum memory of a cache's entries, in bytes.
pub fn cache_bytes(cache: CacheLabel, bytes: u64, capacity_bytes: u64) {
    gauge!(names::CACHE_BYTES, "cache" => cache.name()).set(as_f64(bytes));
    gauge!(names::CACHE_CAPACITY, "cache" => cache.name()).set(as_f64(capacity_bytes));
}

/// Counts an entry that a full cache dropped.
pub fn cache_eviction(cache: CacheLabel) {
    counter!(names::CACHE_EVICTIONS, "cache" => cache.name()).increment(1);
}

/// Updates the metrics of the cache on disk.
pub fn disk_cache(stats: &DiskCacheStats) {
    gauge!(names::DISK_CACHE_ON).set(f64::from(u8::from(stats.is_on)));
    gauge!(names::DISK_CACHE_OBJECTS).set(as_f64(stats.objects));
    gauge!(names::DISK_CACHE_BYTES).set(as_f64(stats.used_bytes));
    gauge!(names::DISK_CACHE_CAPACITY).set(as_f64(stats.capacity_bytes));
    gauge!(names::DISK_CACHE_INDEX_BYTES).set(as_f64(stats.index_bytes));
    gauge!(names::DISK_CACHE_QUEUED_BYTES).set(as_f64(stats.queued_bytes));
    for (result, count) in [("hit", stats.hits), ("stale", stats.stale), ("miss", stats.misses)] {
        counter!(names::DISK_CACHE_REQUESTS, "result" => result).absolute(count);
    }
    for (reason, count) in [("queue", stats.dropped_by_queue), ("space", stats.dropped_for_space)] {
        counter!(names::DISK_CACHE_DROPPED, "reason" => reason).absolute(count);
    }
    counter!(names::DISK_CACHE_READ_BYTES).absolute(stats.read_bytes);
    counter!(names::DISK_CACHE_STORED).absolute(stats.stored);
    counter!(names::DISK_CACHE_EVICTIONS).absolute(stats.evicted);
    counter!(names::DISK_CACHE_DAMAGED).absolute(stats.damaged);
    counter!(names::DISK_CACHE_FAULTS).absolute(stats.faults);
}

/// Counts a look-up of a name that is known to be missing.
pub fn negative_cache_hit() {
    counter!(names::NEGATIVE_CACHE_HITS).increment(1);
}

/// Records the duration of a request to storage, successful or not.
pub fn store_request(operation: StoreOperation, backend: &'static str, elapsed: Duration) {
    histogram!(names::STORE_DURATION, "op" => operation.name(), "backend" => backend).record(elapsed);
}

/// Initializes the counters of storage errors of these kinds to 0, like [`describe`].
pub fn describe_store_errors(kinds: &[&'static str]) {
    for operation in StoreOperation::ALL {
        for kind in kinds {
            counter!(names::STORE_ERRORS, "op" => operation.name(), "kind" => *kind).increment(0);
        }
    }
}

/// Counts a failed request to storage. The kinds are a small fixed set.
pub fn store_error(operation: StoreOperation, kind: &'static str) {
    counter!(names::STORE_ERRORS, "op" => operation.name(), "kind" => kind).increment(1);
}

/// Sets the numbers of running and queued requests to storage, and the number of stores that do not respond.
pub fn store_calls(running: usize, queued: usize, stalled: usize) {
    gauge!(names::STORE_CALLS, "state" => "running").set(as_f64(running as u64));
    gauge!(names::STORE_CALLS, "state" => "queued").set(as_f64(queued as u64));
    gauge!(names::STORES_STALLED).set(as_f64(stalled as u64));
}

/// Handle to the histogram of the times to the first byte of a store's responses.
#[derive(Debug, Clone)]
pub struct UpstreamFirstByte(Histogram);

impl UpstreamFirstByte {
    /// Creates the handle of an operation of a container in the currently installed recorder.
    pub fn new(container: &str, operation: &'static str) -> Self {
        Self(histogram!(names::UPSTREAM_FIRST_BYTE, "container" => container.to_owned(), "op" => operation))
    }

    /// Records a time.
    pub fn record(&self, elapsed: Duration) {
        self.0.record(elapsed);
    }
}

/// Sets the number of requests to the store of a container that ended with this result since the start.
pub fn upstream_requests(container: &str, operation: &'static str, result: &'static str, count: u64) {
    let container = container.to_owned();
    counter!(names::UPSTREAM_REQUESTS, "container" => container, "op" => operation, "result" => result).absolute(count);
}

/// Sets the number of bytes of a store's responses that were used since the start.
pub fn upstream_bytes(container: &str, operation: &'static str, bytes: u64) {
    counter!(names::UPSTREAM_BYTES, "container" => container.to_owned(), "op" => operation).absolute(bytes);
}

/// Sets the number of a store's responses that failed after their first byte since the start.
pub fn upstream_broken_bodies(container: &str, operation: &'static str, kind: &'static str, count: u64) {
    let container = container.to_owned();
    counter!(names::UPSTREAM_BROKEN_BODIES, "container" => container, "op" => operation, "kind" => kind)
        .absolute(count);
}

/// Sets the number of requests to a store that retried a failed one since the start.
pub fn upstream_retries(container: &str, operation: &'static str, count: u64) {
    counter!(names::UPSTREAM_RETRIES, "container" => container.to_owned(), "op" => operation).absolute(count);
}

/// Sets the numbers of hedges since the start that answered first (`won`) and that did not.
pub fn upstream_hedges(container: &str, operation: &'static str, won: u64, lost: u64) {
    for (result, count) in [("won", won), ("lost", lost)] {
        let container = container.to_owned();
        counter!(names::UPSTREAM_HEDGES, "container" => container, "op" => operation, "result" => result)
            .absolute(count);
    }
}

/// Sets the number of requests that were not sent to the bucket of a container since the start.
pub fn upstream_held_back(container: &str, count: u64) {
    counter!(names::UPSTREAM_HELD_BACK, "container" => container.to_owned()).absolute(count);
}

/// Sets the numbers of requests to the bucket of a container that may be in flight, are in flight and wait, and the rest
/// of the pause of the bucket.
pub fn upstream_bucket(container: &str, limit: usize, in_flight: usize, waiting: usize, pause: Duration) {
    gauge!(names::UPSTREAM_LIMIT, "container" => container.to_owned()).set(as_f64(limit as u64));
    gauge!(names::UPSTREAM_IN_FLIGHT, "container" => container.to_owned()).set(as_f64(in_flight as u64));
    gauge!(names::UPSTREAM_WAITING, "container" => container.to_owned()).set(as_f64(waiting as u64));
    gauge!(names::UPSTREAM_PAUSE, "container" => container.to_owned()).set(pause.as_secs_f64());
}

/// Sets the number of log lines that were dropped or could not be written since the start.
pub fn log_lines_dropped(count: u64) {
    counter!(names::LOG_DROPPED).absolute(count);
}

/// Counts a connection that could not be accepted.
pub fn accept_error() {
    counter!(names::ACCEPT_ERRORS).increment(1);
}

/// Counts bytes read from storage.
pub fn store_read_bytes(backend: &'static str, bytes: u64) {
    counter!(names::STORE_READ_BYTES, "backend" => backend).increment(bytes);
}

/// Records a decoded block. `codec` is a name in the table of codecs.
pub fn block_decoded(codec: &'static str, elapsed: Duration) {
    counter!(names::BLOCKS_DECODED, "codec" => codec).increment(1);
    histogram!(names::DECODE_DURATION, "codec" => codec).record(elapsed);
}

/// Counts a block that could not be decoded. An unknown codec is `unknown`, because attributes can contain any name.
pub fn decode_error(codec: &'static str) {
    counter!(names::DECODE_ERRORS, "codec" => codec).increment(1);
}

/// Records the time to encode a slice or a piece of one.
pub fn slice_encoded(format: &'static str, elapsed: Duration) {
    histogram!(names::ENCODE_DURATION, "format" => format).record(elapsed);
}

/// Measures a wait in a queue, from [`Self::begin`] until the timer is dropped.
#[derive(Debug)]
pub struct QueueWaitTimer {
    pub(super) queue: QueueLabel,
    pub(super) started: Instant,
}

impl QueueWaitTimer {
    /// Starts the wait.
    pub fn begin(queue: QueueLabel) -> Self {
        gauge!(names::QUEUE_WAITING, "queue" => queue.name()).increment(1.0);
        Self { queue, started: Instant::now() }
    }
}

impl Drop for QueueWaitTimer {
    fn drop(&mut self) {
        gauge!(names::QUEUE_WAITING, "queue" => self.queue.name()).decrement(1.0);
        histogram!(names::QUEUE_DURATION, "queue" => self.queue.name()).record(self.started.elapsed());
    }
}

/// Sets the number of jobs that run in the CPU pool.
pub fn cpu_jobs(running: usize) {
    gauge!(names::CPU_RUNNING).set(as_f64(running as u64));
}

/// Sets the size of a budget, in bytes.
pub fn budget_capacity(budget: BudgetLabel, bytes: u64) {
    gauge!(names::BUDGET_CAPACITY, "budget" => budget.name()).set(as_f64(bytes));
}

/// Sets the maximum memory of caches, budgets and threads, in bytes.
pub fn memory_bound(bytes: u64) {
    gauge!(names::MEMORY_BOUND).set(as_f64(bytes));
}

/// Records bytes taken from a budget.
pub fn budget_taken(budget: BudgetLabel, bytes: u64) {
    gauge!(names::BUDGET_BYTES, "budget" => budget.name()).increment(as_f64(bytes));
}

/// Records bytes returned to a budget.
pub fn budget_returned(budget: BudgetLabel, bytes: u64) {
    gauge!(names::BUDGET_BYTES, "budget" => budget.name()).decrement(as_f64(bytes));
}

/// Counts traces that a collector accepted.
pub fn traces_exported(count: u64) {
    counter!(names::TRACES_EXPORTED).increment(count);
}

/// Counts dropped traces.
pub fn traces_dropped(reason: &'static str, count: u64) {
    counter!(names::TRACES_DROPPED, "reason" => reason).increment(count);
}

/// Sets the readiness that `/readyz` reports, and the number of unreadable containers.
pub fn set_readiness(is_ready: bool, unready: u32) {
    gauge!(names::READY).set(if is_ready { 1.0 } else { 0.0 });
    gauge!(names::CONTAINERS_UNREADY).set(f64::from(unready));
}

/// Records that the configuration was read at `now`, a time since 1970, and whether it was applied.
pub fn config_loaded(is_valid: bool, now: Duration) {
    gauge!(names::CONFIG_SUCCESSFUL).set(if is_valid { 1.0 } else { 0.0 });
    if is_valid {
        gauge!(names::CONFIG_TIMESTAMP).set(now.as_secs_f64());
    }
}

/// Methods and statuses of the responses for which [`RouteMetrics`] has handles.
const FREQUENT: [(&str, u16); 6] =
    [("GET", 200), ("GET", 304), ("GET", 404), ("HEAD", 200), ("HEAD", 304), ("HEAD", 404)];

/// Records a completed request. `method` and `route` come from small fixed sets. The route is a template, or
/// `unmatched` if there is none; an unusual method is `other`.
pub fn http_request(method: &'static str, route: &'static str, status: u16, elapsed: Duration) {
    request_duration(method, route, status).record(elapsed);
}

fn request_duration(method: &'static str, route: &'static str, status: u16) -> Histogram {
    let status = SharedString::from_owned(status.to_string());
    histogram!(names::HTTP_DURATION, "method" => method, "route" => route, "status" => status)
}

/// Handles to the metrics of one route's responses. Without handles, the recorder would look up each metric by its name
/// and labels. For the smallest responses, this takes as long as making the response.
pub struct RouteMetrics {
    route: &'static str,
    durations: [Histogram; FREQUENT.len()],
    bytes: Counter,
}

impl RouteMetrics {
    /// Creates the handles of `route` in the currently installed recorder.
    pub fn new(route: &'static str) -> Self {
        Self {
            route,
            durations: FREQUENT.map(|(method, status)| request_duration(method, route, status)),
            bytes: counter!(names::HTTP_RESPONSE_BYTES, "route" => route),
        }
    }

    /// Records a completed request with a response body of `bytes`, like [`http_request`] and
    /// [`http_response_bytes`].
    pub fn record(&self, method: &'static str, status: u16, elapsed: Duration, bytes: u64) {
        match FREQUENT.iter().position(|known| *known == (method, status)).and_then(|index| self.durations.get(index)) {
            Some(histogram) => histogram.record(elapsed),
            None => http_request(method, self.route, status, elapsed),
        }
        self.bytes.increment(bytes);
    }
}

/// Handles to the counters of [`cache_requests`] for one cache.
#[derive(Debug, Clone)]
pub struct LookupCounters([Counter; LookupResult::ALL.len()]);

impl LookupCounters {
    /// Creates the handles of `cache` in the currently installed recorder.
    pub fn new(cache: CacheLabel) -> Self {
        let counter =
            |result: LookupResult| counter!(names::CACHE_REQUESTS, "cache" => cache.name(), "result" => result.name());
        Self([LookupResult::Hit, LookupResult::Miss, LookupResult::Stale, LookupResult::Absent].map(counter))
    }

    /// Counts `count` look-ups with this result.
    pub fn count(&self, result: LookupResult, count: u64) {
        let [hit, miss, stale, absent] = &self.0;
        let counter = match result {
            LookupResult::Hit => hit,
            LookupResult::Miss => miss,
            LookupResult::Stale => stale,
            LookupResult::Absent => absent,
        };
        counter.increment(count);
    }
}

/// Handles to the metrics of connections.
#[derive(Clone)]
pub struct ConnectionMetrics {
    open: Gauge,
    accepted: Counter,
}

/// Guard that counts a connection as open until it is dropped.
pub struct OpenConnectionGuard {
    open: Gauge,
    close_reason: CloseReason,
}

impl ConnectionMetrics {
    /// Creates the handles and sets the maximum number of open connections to `max_connections`.
    pub fn new(max_connections: usize) -> Self {
        gauge!(names::CONNECTIONS_MAX).set(as_f64(max_connections as u64));
        Self { open: gauge!(names::CONNECTIONS_OPEN), accepted: counter!(names::CONNECTIONS_ACCEPTED) }
    }

    /// Counts an accepted connection, which stays open until the guard is dropped.
    pub fn record_accepted(&self) -> OpenConnectionGuard {
        self.accepted.increment(1);
        self.open.increment(1.0);
        OpenConnectionGuard { open: self.open.clone(), close_reason: CloseReason::Error }
    }
}

impl OpenConnectionGuard {
    /// Sets the reason for closing the connection. Without a call, the reason is an error.
    pub fn set_close_reason(&mut self, reason: CloseReason) {
        self.close_reason = reason;
    }
}

impl Drop for OpenConnectionGuard {
    fn drop(&mut self) {
        self.open.decrement(1.0);
        counter!(names::CONNECTIONS_CLOSED, "reason" => self.close_reason.name()).increment(1);
    }
}

/// Gauge of the bytes taken from a pool that all connections share.
#[derive(Debug)]
pub struct PoolGauge(Gauge);

impl PoolGauge {
    /// Creates the gauge of a pool of `capacity_bytes` whose bytes are all free.
    pub fn new(pool: ConnectionPoolLabel, capacity_bytes: usize) -> Self {
        gauge!(names::CONNECTION_POOL_CAPACITY, "pool" => pool.name()).set(as_f64(capacity_bytes as u64));
        let taken = gauge!(names::CONNECTION_POOL_BYTES, "pool" => pool.name());
        taken.set(0.0);
        Self(taken)
    }

    /// Records that `bytes` were taken.
    pub fn add(&self, bytes: usize) {
        if bytes > 0 {
            self.0.increment(as_f64(bytes as u64));
        }
    }

    /// Records that `bytes` were returned.
    pub fn subtract(&self, bytes: usize) {
        if bytes > 0 {
            self.0.decrement(as_f64(bytes as u64));
        }
    }
}

/// Converts a count or a number of bytes to the float that a gauge holds.
#[expect(clippy::cast_precision_loss, reason = "a gauge is a float; exact below 2^53 bytes")]
fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
        broken_response();
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
        UpstreamFirstByte::new("em", "get").record(Duration::from_millis(1));
        upstream_requests("em", "get", "success", 1);
        upstream_bytes("em", "get", 1);
        upstream_broken_bodies("em", "get", "truncated", 1);
        upstream_retries("em", "get", 1);
        upstream_hedges("em", "get", 1, 1);
        upstream_held_back("em", 1);
        upstream_bucket("em", 64, 1, 0, Duration::ZERO);
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
        disk_cache(&DiskCacheStats::default());
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
