//! The table of all metrics.

use metrics::Unit;

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observations in buckets.
    Histogram,
}

/// What `/metrics` says about a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Description {
    /// Name, with the unit.
    pub name: &'static str,
    /// Behaviour.
    pub kind: Kind,
    /// Unit; `None` for plain counts.
    pub unit: Option<Unit>,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// One sentence.
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
pub(super) const CONNECTIONS_MOST: &str = "n5_connections_most";
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
    kind: Kind,
    unit: Option<Unit>,
    labels: &'static [&'static str],
    help: &'static str,
) -> Description {
    Description { name, kind, unit, labels, help }
}

/// Every metric of this server.
#[rustfmt::skip] // a table
pub const NAMES: &[Description] = {
    use Kind::{Counter, Gauge, Histogram};
    const BYTES: Option<Unit> = Some(Unit::Bytes);
    const SECONDS: Option<Unit> = Some(Unit::Seconds);
    &[
        row(HTTP_DURATION, Histogram, SECONDS, &["method", "route", "status"], "Time from a request's headers to the end of its answer; its count is the number of requests."),
        row(HTTP_RESPONSE_BYTES, Counter, BYTES, &["route"], "Bytes of answers' bodies that were sent."),
        row(HTTP_IN_FLIGHT, Gauge, None, &[], "Requests whose answers have not been sent to the end, those that wait included."),
        row(REQUESTS_SHED, Counter, None, &["reason"], "Requests refused with 503, or 429 for one client's own bound, because a bound was reached."),
        row(CANCELLED, Counter, None, &["stage"], "Requests whose client went away: while the answer was made (waiting) or sent (sending)."),
        row(BROKEN_ANSWERS, Counter, None, &[], "Streamed answers broken off by a fault after the first byte."),
        row(ACCESS_REFUSALS, Counter, None, &["reason"], "Requests refused because of who asked, or because a token told nobody."),
        row(ACCESS_RELOAD_FAILURES, Counter, None, &["what"], "Times that tokens or an issuer's keys could not be read; those before stay in force."),
        row(TLS_HANDSHAKES, Counter, None, &["result"], "TLS handshakes: done, failed, timed_out, or plaintext where TLS was expected."),
        row(TLS_NOT_AFTER, Gauge, SECONDS, &[], "When the certificate in use expires, in seconds since 1970."),
        row(TLS_RELOAD_FAILURES, Counter, None, &[], "Times that a new certificate and key could not be used; those before stay in force."),
        row(CACHE_REQUESTS, Counter, None, &["cache", "result"], "Look-ups: hit, miss (not cached), stale (cached, but the file changed), absent (the file does not exist)."),
        row(CACHE_BYTES, Gauge, BYTES, &["cache"], "Memory of cached entries."),
        row(CACHE_CAPACITY, Gauge, BYTES, &["cache"], "Most memory of cached entries."),
        row(CACHE_EVICTIONS, Counter, None, &["cache"], "Entries dropped because the cache was full."),
        row(STORE_DURATION, Histogram, SECONDS, &["op", "backend"], "Time of one request to storage."),
        row(STORE_READ_BYTES, Counter, BYTES, &["backend"], "Bytes read from storage."),
        row(STORE_ERRORS, Counter, None, &["op", "kind"], "Requests to storage that failed; kinds are described in docs/FAULTS.md."),
        row(STORE_CALLS, Gauge, None, &["state"], "Requests to storage that wait: running or queued."),
        row(STORES_STALLED, Gauge, None, &[], "Containers whose storage has answered nobody for a while."),
        row(LOG_DROPPED, Counter, None, &[], "Lines of the log that nobody took in time, or that could not be written."),
        row(BLOCKS_DECODED, Counter, None, &["codec"], "Blocks decoded."),
        row(DECODE_DURATION, Histogram, SECONDS, &["codec"], "Time to decode one block, without waiting for a thread."),
        row(DECODE_ERRORS, Counter, None, &["codec"], "Blocks that could not be decoded."),
        row(ENCODE_DURATION, Histogram, SECONDS, &["format"], "Time to encode one slice or a piece of one, without waiting for a thread."),
        row(QUEUE_WAITING, Gauge, None, &["queue"], "How many wait: for a share of a budget (slice, decode, transfer), a core (cpu), what another request loads (load), another request of the same client (client), bytes that a client may have (rate), an issuer's keys (keys), a TLS handshake (handshake), to be told that there are too many requests (refused), one of limits.concurrent_requests (request), another connection of the same address to end (connection), or memory that all connections share (connection_memory)."),
        row(QUEUE_DURATION, Histogram, SECONDS, &["queue"], "How long those waited that had to wait at all."),
        row(CPU_RUNNING, Gauge, None, &[], "Jobs that run on the CPU lane; at most twice server.threads, half of them short ones."),
        row(CONNECTIONS_OPEN, Gauge, None, &[], "Open connections."),
        row(CONNECTIONS_MOST, Gauge, None, &[], "Most open connections: server.max_connections. Further ones wait to be accepted."),
        row(CONNECTIONS_ACCEPTED, Counter, None, &[], "Connections accepted."),
        row(CONNECTIONS_CLOSED, Counter, None, &["reason"], "Connections closed: ended (by either side, between answers), idle (server.header_timeout), send_timeout (server.send_timeout), refused (clients.connections), evicted (idle, for another of its address), memory (no memory for a long head), error."),
        row(CONNECTION_POOL_BYTES, Gauge, BYTES, &["pool"], "Memory taken of what all connections share: for streams of HTTP/2 and long heads (memory), and in the kernel for what clients have not taken yet (sockets)."),
        row(CONNECTION_POOL_CAPACITY, Gauge, BYTES, &["pool"], "Memory that all connections share."),
        row(ACCEPT_ERRORS, Counter, None, &[], "Connections that could not be accepted, such as for want of descriptors."),
        row(BUDGET_BYTES, Gauge, BYTES, &["budget"], "Memory taken from a budget."),
        row(BUDGET_CAPACITY, Gauge, BYTES, &["budget"], "Memory of a budget."),
        row(MEMORY_BOUND, Gauge, BYTES, &[], "Memory that caches, budgets and threads take at most, as the start-up line says."),
        row(TRACES_EXPORTED, Counter, None, &[], "Traces of requests that a collector took."),
        row(TRACES_DROPPED, Counter, None, &["reason"], "Traces given up: too many at once (queue), or the collector took none (collector)."),
        row(READY, Gauge, None, &[], "What /readyz says: 1 for ready, 0 for not."),
        row(CONTAINERS_UNREADY, Gauge, None, &[], "Containers that cannot be read."),
        row(CONFIG_SUCCESSFUL, Gauge, None, &[], "1 where the configuration was taken over when it was last read, 0 where it was at fault and the one before stays in force."),
        row(CONFIG_TIMESTAMP, Gauge, SECONDS, &[], "When a configuration was last taken over, in seconds since 1970."),
        row(BUILD_INFO, Gauge, None, &["version"], "Always 1; the label is the version."),
    ]
};
