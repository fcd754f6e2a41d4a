//! Bounds of the memory, threads and file descriptors that a server with this configuration uses.

use super::sections::{Config, LimitsConfig, TlsConfig};

/// Size of the cache of parsed attributes, which is not configurable.
const ATTRIBUTES_CACHE_BYTES: u64 = 8 << 20;

/// Maximum memory of the table of names that are known to be missing, which is not configurable. It is used for remote
/// containers, and for those with `remember_missing`.
pub const KNOWN_MISSING_BYTES: u64 = 32 << 20;

/// Memory of each thread of `server.threads` beyond [`BASELINE_THREADS`], including the threads beside it that decode
/// blocks and make documents: stacks, and the memory that the allocator retains for each thread. Measured 3 to 7 MiB
/// (`docs/HOSTILE.md`).
const THREAD_BYTES: u64 = 8 << 20;

/// Number of threads whose memory is part of the process's baseline.
const BASELINE_THREADS: u64 = 2;

/// Memory of a thread that waits for a container's disk. Measured 0.1 MiB (`docs/HOSTILE.md`).
const DISK_THREAD_BYTES: u64 = 128 << 10;

/// Maximum number of calls for one container that block on its disk at the same time. Further calls are queued.
pub const MAX_DISK_THREADS_PER_CONTAINER: usize = 64;

/// Number of disk threads that each container may have, however many the other containers have.
pub const RESERVED_DISK_THREADS_PER_CONTAINER: usize = 4;

/// Number of further disk threads, which all containers share. If the disks of two containers hang, the other
/// containers still have 60 of these threads.
pub const SHARED_DISK_THREADS: usize = 180;

/// Measured memory of a connection that has used the HTTP library. HTTP/2 streams and long request heads are not
/// included.
const CONNECTION_BYTES: u64 = 34 << 10;

/// Measured memory of a TLS connection that has used the HTTP library, without HTTP/2 streams and long request heads.
const TLS_CONNECTION_BYTES: u64 = 58 << 10;

/// Memory that each of `server.max_connections` adds to the pool for HTTP/2 streams and long request heads, which all
/// connections share.
const POOL_BYTES_PER_CONNECTION: u64 = 6 << 10;

/// Minimum size of the pool that all connections share.
const MIN_POOL_BYTES: u64 = 4 << 20;

/// Minimum memory that an HTTP/2 stream takes from the pool that all connections share.
const MIN_STREAM_BYTES: u64 = 8 << 10;

/// Memory of a request that waits for memory, in addition to its connection's memory. Measured 12 KiB.
const WAITING_REQUEST_BYTES: u64 = 16 << 10;

/// Kernel memory of a connection's socket: its structures (5 KiB), its receive buffer, and the part of its send
/// queue that is not counted in [`SEND_QUEUES_BYTES`].
const SOCKET_BYTES: u64 = 19 << 10;

/// Kernel memory that the send queues of all connections share, in bytes.
pub const SEND_QUEUES_BYTES: u64 = 40 << 20;

/// Kernel memory of 2,048 connections in the accept queue, including the data that they have sent.
const ACCEPT_QUEUE_BYTES: u64 = 26 << 20;

/// Measured memory of a TLS handshake in progress.
const HANDSHAKE_BYTES: u64 = 72 << 10;

impl Config {
    /// Returns the maximum memory of connections in bytes, without the responses sent on them. It includes
    /// [`Self::connection_pool_bytes`].
    pub fn max_connections_bytes(&self) -> u64 {
        let (connection_bytes, handshakes) = if self.tls.is_enabled() {
            (TLS_CONNECTION_BYTES, HANDSHAKE_BYTES.saturating_mul(TlsConfig::MAX_HANDSHAKES as u64))
        } else {
            (CONNECTION_BYTES, 0)
        };
        let fixed = connection_bytes.saturating_mul(self.server.max_connections as u64);
        [self.connection_pool_bytes(), handshakes, self.waiting_requests_bytes()]
            .into_iter()
            .fold(fixed, u64::saturating_add)
    }

    /// Returns the maximum memory of waiting requests in bytes. The number of requests is limited by connections and by
    /// the memory for their streams. As many requests as the default of `limits.concurrent_requests` are left out,
    /// because the process's baseline includes them.
    fn waiting_requests_bytes(&self) -> u64 {
        let with_spare = |requests: u64| requests.saturating_mul(2);
        let max_requests =
            (self.server.max_connections as u64).saturating_add(self.connection_pool_bytes() / MIN_STREAM_BYTES);
        let requests = with_spare(self.limits.concurrent_requests as u64).min(max_requests);
        let default_requests = with_spare(LimitsConfig::default().concurrent_requests as u64);
        requests.saturating_sub(default_requests).saturating_mul(WAITING_REQUEST_BYTES)
    }

    /// Returns the size in bytes of the pool that all connections share for HTTP/2 streams and long request heads.
    pub fn connection_pool_bytes(&self) -> u64 {
        POOL_BYTES_PER_CONNECTION.saturating_mul(self.server.max_connections as u64).max(MIN_POOL_BYTES)
    }

    /// Returns the maximum kernel memory of the connections' sockets in bytes. It includes [`SEND_QUEUES_BYTES`].
    pub fn sockets_bytes(&self) -> u64 {
        let sockets = SOCKET_BYTES.saturating_mul(self.server.max_connections as u64);
        sockets.saturating_add(SEND_QUEUES_BYTES).saturating_add(ACCEPT_QUEUE_BYTES)
    }

    /// Returns the maximum memory of caches, budgets and additional threads together, in bytes. Connections and the
    /// rest of the process are not included.
    pub fn memory_bound_bytes(&self) -> u64 {
        let Self { cache, limits, .. } = self;
        let remembers_missing = self.containers.iter().any(|container| container.missing_policy().is_some());
        let known_missing = if remembers_missing { KNOWN_MISSING_BYTES } else { 0 };
        [known_missing, cache.decoded, cache.stored, limits.slice_budget, limits.decode_budget, limits.transfer_budget]
            .into_iter()
            .fold(ATTRIBUTES_CACHE_BYTES.saturating_add(self.threads_bytes()), u64::saturating_add)
    }

    /// Returns the maximum memory of threads in bytes. Two of `server.threads` and the disk threads of one container
    /// are left out, because the process's baseline includes them.
    pub fn threads_bytes(&self) -> u64 {
        let serving = (self.threads() as u64).saturating_sub(BASELINE_THREADS).saturating_mul(THREAD_BYTES);
        let waiting = (self.disk_threads().saturating_sub(MAX_DISK_THREADS_PER_CONTAINER) as u64)
            .saturating_mul(DISK_THREAD_BYTES);
        serving.saturating_add(waiting)
    }

    /// Returns the minimum number of file descriptors: one for each connection, two for each read, and 100 more. With
    /// fewer, some clients' connections make those of other clients wait.
    pub fn min_file_descriptors(&self) -> usize {
        self.server.max_connections.saturating_add(self.disk_threads().saturating_mul(2)).saturating_add(100)
    }

    /// Returns the maximum number of threads that wait for the disks of all containers.
    pub fn disk_threads(&self) -> usize {
        let containers = self.containers.len().max(1);
        let shared = RESERVED_DISK_THREADS_PER_CONTAINER.saturating_mul(containers).saturating_add(SHARED_DISK_THREADS);
        MAX_DISK_THREADS_PER_CONTAINER.saturating_mul(containers).min(shared)
    }

    /// Returns the number of threads that serve connections: `server.threads`, or one for each core. Each lane of the
    /// CPU pool runs as many jobs at the same time.
    pub fn threads(&self) -> usize {
        match self.server.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }
}
