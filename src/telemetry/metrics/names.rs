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
    /// Help text, which is one sentence.
    pub help: &'static str,
}

/// Declares a constant for the name of each metric, and the table of all metrics.
macro_rules! metrics {
    ($($constant:ident = $name:literal $kind:ident, $unit:expr, $labels:expr, $help:literal;)*) => {
        $(pub(super) const $constant: &str = $name;)*

        /// All metrics of this server.
        pub const METRICS: &[MetricDescription] = &[
            $(MetricDescription { name: $name, kind: MetricKind::$kind, unit: $unit, labels: $labels, help: $help },)*
        ];
    };
}

const BYTES: Option<Unit> = Some(Unit::Bytes);
const SECONDS: Option<Unit> = Some(Unit::Seconds);

metrics! {
    HTTP_DURATION = "n5_http_request_duration_seconds" Histogram, SECONDS, &["method", "route", "status"], "Time from the headers of a request to the end of its response; the count is the number of requests.";
    HTTP_RESPONSE_BYTES = "n5_http_response_bytes_total" Counter, BYTES, &["route"], "Bytes of response bodies that were sent.";
    HTTP_IN_FLIGHT = "n5_http_requests_in_flight" Gauge, None, &[], "Requests whose responses have not been sent completely, including waiting requests.";
    REQUESTS_SHED = "n5_requests_shed_total" Counter, None, &["reason"], "Requests rejected because a limit was reached: with 503, or with 429 for the client's own limit.";
    CANCELLED = "n5_requests_cancelled_total" Counter, None, &["stage"], "Requests whose client disconnected while the response was prepared (waiting) or sent (sending).";
    BROKEN_ANSWERS = "n5_broken_answers_total" Counter, None, &[], "Streamed responses aborted by an error after the first byte.";
    ACCESS_REFUSALS = "n5_access_refusals_total" Counter, None, &["reason"], "Requests refused by access control, including those with an invalid token.";
    ACCESS_RELOAD_FAILURES = "n5_access_reload_failures_total" Counter, None, &["what"], "Failed reloads of tokens or of an issuer's keys; the previous ones stay in use.";
    TLS_HANDSHAKES = "n5_tls_handshakes_total" Counter, None, &["result"], "TLS handshakes: done, failed, timed_out, or plaintext where TLS was expected.";
    TLS_NOT_AFTER = "n5_tls_certificate_not_after_timestamp_seconds" Gauge, SECONDS, &[], "Time at which the certificate in use expires, in seconds since 1970.";
    TLS_RELOAD_FAILURES = "n5_tls_reload_failures_total" Counter, None, &[], "Failed reloads of the certificate and key; the previous ones stay in use.";
    CACHE_REQUESTS = "n5_cache_requests_total" Counter, None, &["cache", "result"], "Cache look-ups: hit, miss (not cached), stale (cached, but the file changed), absent (the file does not exist).";
    CACHE_BYTES = "n5_cache_bytes" Gauge, BYTES, &["cache"], "Memory of cached entries.";
    CACHE_CAPACITY = "n5_cache_capacity_bytes" Gauge, BYTES, &["cache"], "Maximum memory of cached entries.";
    CACHE_EVICTIONS = "n5_cache_evictions_total" Counter, None, &["cache"], "Entries dropped because the cache was full.";
    DISK_CACHE_ON = "n5_disk_cache_on" Gauge, None, &[], "1 if the cache on disk is in use, 0 if it is off because of a fault.";
    DISK_CACHE_REQUESTS = "n5_disk_cache_requests_total" Counter, None, &["result"], "Look-ups in the cache on disk: hit (used without a request to the store), stale (compared with the store first), miss.";
    DISK_CACHE_READ_BYTES = "n5_disk_cache_read_bytes_total" Counter, BYTES, &[], "Bytes of objects that were read or sent from the cache on disk.";
    DISK_CACHE_OBJECTS = "n5_disk_cache_objects" Gauge, None, &[], "Objects in the cache on disk.";
    DISK_CACHE_BYTES = "n5_disk_cache_bytes" Gauge, BYTES, &[], "Space that the cache takes on the disk.";
    DISK_CACHE_CAPACITY = "n5_disk_cache_capacity_bytes" Gauge, BYTES, &[], "Maximum space that the cache takes on the disk: cache.disk.size.";
    DISK_CACHE_INDEX_BYTES = "n5_disk_cache_index_bytes" Gauge, BYTES, &[], "Memory of the index of the cache on disk.";
    DISK_CACHE_QUEUED_BYTES = "n5_disk_cache_queued_bytes" Gauge, BYTES, &[], "Bytes of objects that wait to be written to the cache on disk.";
    DISK_CACHE_STORED = "n5_disk_cache_stored_total" Counter, None, &[], "Objects written to the cache on disk.";
    DISK_CACHE_DROPPED = "n5_disk_cache_dropped_total" Counter, None, &["reason"], "Objects not written to the cache on disk: too many were waiting or the directory was still being scanned (queue), or the disk was full (space).";
    DISK_CACHE_EVICTIONS = "n5_disk_cache_evictions_total" Counter, None, &[], "Objects deleted from the cache on disk to make space.";
    DISK_CACHE_DAMAGED = "n5_disk_cache_damaged_total" Counter, None, &[], "Damaged files that were deleted from the cache on disk.";
    DISK_CACHE_FAULTS = "n5_disk_cache_faults_total" Counter, None, &[], "Reads and writes of the cache on disk that failed or took too long.";
    NEGATIVE_CACHE_HITS = "n5_negative_cache_hits_total" Counter, None, &[], "Look-ups of objects and directories that were not requested, because they are known to be missing.";
    STORE_DURATION = "n5_store_request_duration_seconds" Histogram, SECONDS, &["op", "backend"], "Duration of a request to storage.";
    STORE_READ_BYTES = "n5_store_read_bytes_total" Counter, BYTES, &["backend"], "Bytes read from storage.";
    STORE_ERRORS = "n5_store_errors_total" Counter, None, &["op", "kind"], "Failed requests to storage; docs/FAULTS.md describes the kinds.";
    STORE_CALLS = "n5_store_calls" Gauge, None, &["state"], "Requests to storage that are running or queued.";
    STORES_STALLED = "n5_stores_stalled" Gauge, None, &[], "Containers whose storage has not responded to any request for a while.";
    UPSTREAM_REQUESTS = "n5_upstream_requests_total" Counter, None, &["container", "op", "result"], "Requests to the store of a remote container that have ended, retries and hedges included.";
    UPSTREAM_BYTES = "n5_upstream_bytes_total" Counter, BYTES, &["container", "op"], "Bytes of responses of the store that were used.";
    UPSTREAM_FIRST_BYTE = "n5_upstream_first_byte_duration_seconds" Histogram, SECONDS, &["container", "op"], "Time from the beginning of a request to the store, including its signature, to the first byte of the body of its response.";
    UPSTREAM_BROKEN_BODIES = "n5_upstream_broken_bodies_total" Counter, None, &["container", "op", "kind"], "Responses of the store that failed after their first byte.";
    UPSTREAM_RETRIES = "n5_upstream_retries_total" Counter, None, &["container", "op"], "Requests to the store that retried a failed one.";
    UPSTREAM_HEDGES = "n5_upstream_hedges_total" Counter, None, &["container", "op", "result"], "Second requests that were sent because the first one was slow: won or lost.";
    UPSTREAM_HELD_BACK = "n5_upstream_held_back_total" Counter, None, &["container"], "Requests of the container that were not sent because too many waited or the store had asked for a pause.";
    UPSTREAM_LIMIT = "n5_upstream_concurrency_limit" Gauge, None, &["container"], "Maximum number of requests to the bucket that are in flight now; at most store.concurrency.";
    UPSTREAM_IN_FLIGHT = "n5_upstream_in_flight" Gauge, None, &["container"], "Requests to the bucket that are in flight.";
    UPSTREAM_WAITING = "n5_upstream_waiting" Gauge, None, &["container"], "Requests to the bucket that wait to be sent, and bodies of responses that wait to be read.";
    UPSTREAM_PAUSE = "n5_upstream_pause_seconds" Gauge, SECONDS, &["container"], "Time until the end of the pause of a bucket that throttles.";
    LOG_DROPPED = "n5_log_lines_dropped_total" Counter, None, &[], "Log lines that were dropped because writing was too slow, or that could not be written.";
    BLOCKS_DECODED = "n5_blocks_decoded_total" Counter, None, &["codec"], "Blocks decoded.";
    DECODE_DURATION = "n5_decode_duration_seconds" Histogram, SECONDS, &["codec"], "Time to decode a block, without the wait for a thread.";
    DECODE_ERRORS = "n5_decode_errors_total" Counter, None, &["codec"], "Blocks that could not be decoded.";
    ENCODE_DURATION = "n5_encode_duration_seconds" Histogram, SECONDS, &["format"], "Time to encode a slice or a piece of one, without the wait for a thread.";
    QUEUE_WAITING = "n5_queue_waiting" Gauge, None, &["queue"], "Number of waits: for memory of a budget (slice, decode, transfer, attributes), a core (cpu), a result that another request loads (load), another request of the same client (client), the client's byte rate (rate), an issuer's keys (keys), a TLS handshake (handshake), a delayed rejection (refused), one of limits.concurrent_requests (request), the end of another connection of the same address (connection), or memory that all connections share (connection_memory).";
    QUEUE_DURATION = "n5_queue_wait_duration_seconds" Histogram, SECONDS, &["queue"], "Duration of waits; requests that did not wait are not counted.";
    CPU_RUNNING = "n5_cpu_jobs_running" Gauge, None, &[], "Jobs that run in the CPU pool; at most twice server.threads, half of them short ones.";
    CONNECTIONS_OPEN = "n5_connections_open" Gauge, None, &[], "Open connections.";
    CONNECTIONS_MAX = "n5_connections_max" Gauge, None, &[], "Maximum number of open connections: server.max_connections. Further ones wait to be accepted.";
    CONNECTIONS_ACCEPTED = "n5_connections_accepted_total" Counter, None, &[], "Connections accepted.";
    CONNECTIONS_CLOSED = "n5_connections_closed_total" Counter, None, &["reason"], "Connections closed: ended (by either side, between answers), idle (server.header_timeout), send_timeout (server.send_timeout), refused (clients.connections), evicted (idle, for another of its address), memory (no memory for a long head), error.";
    CONNECTION_POOL_BYTES = "n5_connection_pool_bytes" Gauge, BYTES, &["pool"], "Memory taken from the pools that all connections share: for HTTP/2 streams and long request heads (memory), and in the kernel for data that clients have not yet accepted (sockets).";
    CONNECTION_POOL_CAPACITY = "n5_connection_pool_capacity_bytes" Gauge, BYTES, &["pool"], "Size of the pools that all connections share.";
    ACCEPT_ERRORS = "n5_accept_errors_total" Counter, None, &[], "Connections that could not be accepted, for example because no file descriptor was free.";
    BUDGET_BYTES = "n5_budget_bytes" Gauge, BYTES, &["budget"], "Memory taken from a budget.";
    BUDGET_CAPACITY = "n5_budget_capacity_bytes" Gauge, BYTES, &["budget"], "Size of a budget.";
    MEMORY_BOUND = "n5_memory_bound_bytes" Gauge, BYTES, &[], "Maximum memory of caches, budgets and threads, as logged at start-up.";
    TRACES_EXPORTED = "n5_traces_exported_total" Counter, None, &[], "Traces of requests that a collector accepted.";
    TRACES_DROPPED = "n5_traces_dropped_total" Counter, None, &["reason"], "Dropped traces: the queue was full (queue), or the collector did not accept them (collector).";
    READY = "n5_ready" Gauge, None, &[], "Readiness reported by /readyz: 1 if ready, 0 if not.";
    CONTAINERS_UNREADY = "n5_containers_unready" Gauge, None, &[], "Containers that cannot be read.";
    CONFIG_SUCCESSFUL = "n5_config_last_reload_successful" Gauge, None, &[], "1 if the configuration was applied when it was last read, 0 if it was invalid and the previous one stays in use.";
    CONFIG_TIMESTAMP = "n5_config_last_reload_success_timestamp_seconds" Gauge, SECONDS, &[], "Time at which a configuration was last applied, in seconds since 1970.";
    BUILD_INFO = "n5_build_info" Gauge, None, &["version"], "Always 1; the label contains the version.";
}
