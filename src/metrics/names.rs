//! Table of all metrics.

use metrics::Unit;

/// Type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Value that only increases.
    Counter,
    /// Value that increases and decreases.
    Gauge,
    /// Counts of observations in buckets.
    Histogram,
}

/// Description of a metric in `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricDescription {
    /// Name, including the unit.
    pub name: &'static str,
    /// Type of the metric.
    pub kind: MetricKind,
    /// Unit; `None` for plain counts.
    pub unit: Option<Unit>,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// Help text, one sentence.
    pub help: &'static str,
}

pub(super) const HTTP_DURATION: &str = "n5_http_request_duration_seconds";
pub(super) const HTTP_RESPONSE_BYTES: &str = "n5_http_response_bytes_total";
pub(super) const HTTP_IN_FLIGHT: &str = "n5_http_requests_in_flight";
pub(super) const REQUESTS_SHED: &str = "n5_requests_shed_total";
pub(super) const BROKEN_ANSWERS: &str = "n5_broken_answers_total";
pub(super) const CACHE_REQUESTS: &str = "n5_cache_requests_total";
pub(super) const CACHE_BYTES: &str = "n5_cache_bytes";
pub(super) const CACHE_CAPACITY: &str = "n5_cache_capacity_bytes";
pub(super) const CACHE_EVICTIONS: &str = "n5_cache_evictions_total";
pub(super) const STORE_DURATION: &str = "n5_store_request_duration_seconds";
pub(super) const STORE_READ_BYTES: &str = "n5_store_read_bytes_total";
pub(super) const BLOCKS_DECODED: &str = "n5_blocks_decoded_total";
pub(super) const DECODE_DURATION: &str = "n5_decode_duration_seconds";
pub(super) const DECODE_ERRORS: &str = "n5_decode_errors_total";
pub(super) const STORE_ERRORS: &str = "n5_store_errors_total";
pub(super) const STORE_CALLS: &str = "n5_store_calls";
pub(super) const STORES_STALLED: &str = "n5_stores_stalled";
pub(super) const LOG_DROPPED: &str = "n5_log_lines_dropped_total";
pub(super) const ENCODE_DURATION: &str = "n5_encode_duration_seconds";
pub(super) const QUEUE_WAITING: &str = "n5_queue_waiting";
pub(super) const QUEUE_DURATION: &str = "n5_queue_wait_duration_seconds";
pub(super) const CPU_RUNNING: &str = "n5_cpu_jobs_running";
pub(super) const CONNECTIONS_OPEN: &str = "n5_connections_open";
pub(super) const CONNECTIONS_MAX: &str = "n5_connections_most";
pub(super) const CONNECTIONS_ACCEPTED: &str = "n5_connections_accepted_total";
pub(super) const CONNECTIONS_CLOSED: &str = "n5_connections_closed_total";
pub(super) const CONNECTION_POOL_BYTES: &str = "n5_connection_pool_bytes";
pub(super) const CONNECTION_POOL_CAPACITY: &str = "n5_connection_pool_capacity_bytes";
pub(super) const ACCEPT_ERRORS: &str = "n5_accept_errors_total";
pub(super) const CANCELLED: &str = "n5_requests_cancelled_total";
pub(super) const BUDGET_BYTES: &str = "n5_budget_bytes";
pub(super) const BUDGET_CAPACITY: &str = "n5_budget_capacity_bytes";
pub(super) const MEMORY_BOUND: &str = "n5_memory_bound_bytes";
pub(super) const ACCESS_REFUSALS: &str = "n5_access_refusals_total";
pub(super) const ACCESS_RELOAD_FAILURES: &str = "n5_access_reload_failures_total";
pub(super) const TLS_HANDSHAKES: &str = "n5_tls_handshakes_total";
pub(super) const TLS_NOT_AFTER: &str = "n5_tls_certificate_not_after_timestamp_seconds";
pub(super) const TLS_RELOAD_FAILURES: &str = "n5_tls_reload_failures_total";
pub(super) const TRACES_EXPORTED: &str = "n5_traces_exported_total";
pub(super) const TRACES_DROPPED: &str = "n5_traces_dropped_total";
pub(super) const READY: &str = "n5_ready";
pub(super) const CONTAINERS_UNREADY: &str = "n5_containers_unready";
pub(super) const CONFIG_SUCCESSFUL: &str = "n5_config_last_reload_successful";
pub(super) const CONFIG_TIMESTAMP: &str = "n5_config_last_reload_success_timestamp_seconds";
pub(super) const BUILD_INFO: &str = "n5_build_info";

const fn row(
    name: &'static str,
    kind: MetricKind,
    unit: Option<Unit>,
    labels: &'static [&'static str],
    help: &'static str,
) -> MetricDescription {
    MetricDescription { name, kind, unit, labels, help }
}

/// All metrics of this server.
#[rustfmt::skip] // a table
pub const METRICS: &[MetricDescription] = {
    use MetricKind::{Counter, Gauge, Histogram};
    const BYTES: Option<Unit> = Some(Unit::Bytes);
    const SECONDS: Option<Unit> = Some(Unit::Seconds);
    &[
        row(HTTP_DURATION, Histogram, SECONDS, &["method", "route", "status"], "Time from the headers of a request to the end of its response; the count is the number of requests."),
        row(HTTP_RESPONSE_BYTES, Counter, BYTES, &["route"], "Bytes of response bodies that were sent."),
        row(HTTP_IN_FLIGHT, Gauge, None, &[], "Requests whose responses have not been sent completely, including waiting requests."),
        row(REQUESTS_SHED, Counter, None, &["reason"], "Requests rejected because a limit was reached: with 503, or with 429 for the client's own limit."),
        row(CANCELLED, Counter, None, &["stage"], "Requests whose client disconnected while the response was prepared (waiting) or sent (sending)."),
        row(BROKEN_ANSWERS, Counter, None, &[], "Streamed responses aborted by an error after the first byte."),
        row(ACCESS_REFUSALS, Counter, None, &["reason"], "Requests refused by access control, including those with an invalid token."),
        row(ACCESS_RELOAD_FAILURES, Counter, None, &["what"], "Failed reloads of tokens or of an issuer's keys; the previous ones stay in use."),
        row(TLS_HANDSHAKES, Counter, None, &["result"], "TLS handshakes: done, failed, timed_out, or plaintext where TLS was expected."),
        row(TLS_NOT_AFTER, Gauge, SECONDS, &[], "Time at which the certificate in use expires, in seconds since 1970."),
        row(TLS_RELOAD_FAILURES, Counter, None, &[], "Failed reloads of the certificate and key; the previous ones stay in use."),
        row(CACHE_REQUESTS, Counter, None, &["cache", "result"], "Cache look-ups: hit, miss (not cached), stale (cached, but the file changed), absent (the file does not exist)."),
        row(CACHE_BYTES, Gauge, BYTES, &["cache"], "Memory of cached entries."),
        row(CACHE_CAPACITY, Gauge, BYTES, &["cache"], "Maximum memory of cached entries."),
        row(CACHE_EVICTIONS, Counter, None, &["cache"], "Entries dropped because the cache was full."),
        row(STORE_DURATION, Histogram, SECONDS, &["op", "backend"], "Duration of a request to storage."),
        row(STORE_READ_BYTES, Counter, BYTES, &["backend"], "Bytes read from storage."),
        row(STORE_ERRORS, Counter, None, &["op", "kind"], "Failed requests to storage; docs/FAULTS.md describes the kinds."),
        row(STORE_CALLS, Gauge, None, &["state"], "Requests to storage that are running or queued."),
        row(STORES_STALLED, Gauge, None, &[], "Containers whose storage has not responded to any request for a while."),
        row(LOG_DROPPED, Counter, None, &[], "Log lines that were dropped because writing was too slow, or that could not be written."),
        row(BLOCKS_DECODED, Counter, None, &["codec"], "Blocks decoded."),
        row(DECODE_DURATION, Histogram, SECONDS, &["codec"], "Time to decode a block, without the wait for a thread."),
        row(DECODE_ERRORS, Counter, None, &["codec"], "Blocks that could not be decoded."),
        row(ENCODE_DURATION, Histogram, SECONDS, &["format"], "Time to encode a slice or a piece of one, without the wait for a thread."),
        row(QUEUE_WAITING, Gauge, None, &["queue"], "Number of waits: for memory of a budget (slice, decode, transfer, attributes), a core (cpu), a result that another request loads (load), another request of the same client (client), the client's byte rate (rate), an issuer's keys (keys), a TLS handshake (handshake), a delayed rejection (refused), one of limits.concurrent_requests (request), the end of another connection of the same address (connection), or memory that all connections share (connection_memory)."),
        row(QUEUE_DURATION, Histogram, SECONDS, &["queue"], "Duration of waits; requests that did not wait are not counted."),
        row(CPU_RUNNING, Gauge, None, &[], "Jobs that run in the CPU pool; at most twice server.threads, half of them short ones."),
        row(CONNECTIONS_OPEN, Gauge, None, &[], "Open connections."),
        row(CONNECTIONS_MAX, Gauge, None, &[], "Maximum number of open connections: server.max_connections. Further ones wait to be accepted."),
        row(CONNECTIONS_ACCEPTED, Counter, None, &[], "Connections accepted."),
        row(CONNECTIONS_CLOSED, Counter, None, &["reason"], "Connections closed: ended (by either side, between answers), idle (server.header_timeout), send_timeout (server.send_timeout), refused (clients.connections), evicted (idle, for another of its address), memory (no memory for a long head), error."),
        row(CONNECTION_POOL_BYTES, Gauge, BYTES, &["pool"], "Memory taken from the pools that all connections share: for HTTP/2 streams and long request heads (memory), and in the kernel for data that clients have not yet accepted (sockets)."),
        row(CONNECTION_POOL_CAPACITY, Gauge, BYTES, &["pool"], "Size of the pools that all connections share."),
        row(ACCEPT_ERRORS, Counter, None, &[], "Connections that could not be accepted, for example because no file descriptor was free."),
        row(BUDGET_BYTES, Gauge, BYTES, &["budget"], "Memory taken from a budget."),
        row(BUDGET_CAPACITY, Gauge, BYTES, &["budget"], "Size of a budget."),
        row(MEMORY_BOUND, Gauge, BYTES, &[], "Maximum memory of caches, budgets and threads, as logged at start-up."),
        row(TRACES_EXPORTED, Counter, None, &[], "Traces of requests that a collector accepted."),
        row(TRACES_DROPPED, Counter, None, &["reason"], "Dropped traces: the queue was full (queue), or the collector did not accept them (collector)."),
        row(READY, Gauge, None, &[], "Readiness reported by /readyz: 1 if ready, 0 if not."),
        row(CONTAINERS_UNREADY, Gauge, None, &[], "Containers that cannot be read."),
        row(CONFIG_SUCCESSFUL, Gauge, None, &[], "1 if the configuration was applied when it was last read, 0 if it was invalid and the previous one stays in use."),
        row(CONFIG_TIMESTAMP, Gauge, SECONDS, &[], "Time at which a configuration was last applied, in seconds since 1970."),
        row(BUILD_INFO, Gauge, None, &["version"], "Always 1; the label contains the version."),
    ]
};
