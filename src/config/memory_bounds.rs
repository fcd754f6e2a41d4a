//! Bounds of the memory, threads and file descriptors that a server with this configuration uses.

use super::sections::{Config, ContainerConfig, LimitsConfig, MemorySizes, TlsConfig};

/// Size of the cache of parsed attributes, which is not configurable.
const ATTRIBUTES_CACHE_BYTES: u64 = 8 << 20;

/// Memory of the process in addition to caches, budgets and connections: code, two threads, the threads that wait for
/// the disk of one container, and what the allocator retains.
pub(super) const BASELINE_BYTES: u64 = 64 << 20;

/// Size of the caches whose bookkeeping is part of the process's baseline.
const BASELINE_CACHE_BYTES: u64 = 320 << 20;

/// Bookkeeping of larger caches, as a divisor of their size: 1/64 for the entries, and at most 5 % for the kernel's page
/// tables and the allocator's lists of free pages (`docs/HOSTILE.md`).
const CACHE_OVERHEAD_DIVISOR: u64 = 14;

/// Maximum memory of the table of names that are known to be missing, which is not configurable. It is used for remote
/// containers, and for those with `remember_missing`.
pub const KNOWN_MISSING_BYTES: u64 = 32 << 20;

/// Maximum memory of one remote container for the pages of listings that are being read, which is not configurable.
pub const STORE_LISTING_BYTES: u64 = 32 << 20;

/// Maximum size of an object whose length its server does not announce. Such objects are read into memory of their
/// container, because the memory of the request cannot be taken in advance.
pub const MAX_UNANNOUNCED_BYTES: u64 = 1 << 20;

/// Maximum number of objects without an announced length that are in the memory of one container at once.
pub const UNANNOUNCED_OBJECTS: u64 = 16;

/// Memory of each of `store.concurrency` connections: 64 KiB for received bytes, TLS, and the kernel's receive buffer
/// before it grows (`net.ipv4.tcp_rmem`).
const STORE_CONNECTION_BYTES: u64 = 256 << 10;

/// Maximum memory of objects that wait to be written to the cache on disk, and of the bookkeeping for them.
const DISK_CACHE_QUEUE_BYTES: u64 = 40 << 20;

/// Quotient of the size of the cache on disk and the memory of its index: an object of 64 KiB takes 64 bytes.
const DISK_CACHE_INDEX_DIVISOR: u64 = 1024;

/// Maximum memory of the index of the cache on disk: 4 million objects.
const MAX_DISK_CACHE_INDEX_BYTES: u64 = 256 << 20;

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

impl MemorySizes {
    /// Returns the maximum memory of caches and budgets of these sizes, including the bookkeeping of large caches.
    pub(super) fn max_bytes(self) -> u64 {
        let Self { decoded_cache, stored_cache, slice_budget, decode_budget, transfer_budget } = self;
        let caches = decoded_cache.saturating_add(stored_cache);
        let overhead = caches.saturating_sub(BASELINE_CACHE_BYTES) / CACHE_OVERHEAD_DIVISOR;
        [overhead, slice_budget, decode_budget, transfer_budget].into_iter().fold(caches, u64::saturating_add)
    }
}

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
        self.own_bytes().saturating_add(self.memory_sizes().max_bytes())
    }

    /// Returns the maximum memory of the process, including the kernel's memory for its sockets, in bytes.
    pub fn max_process_bytes(&self) -> u64 {
        self.unshared_bytes().saturating_add(self.memory_sizes().max_bytes())
    }

    /// Returns the maximum memory of the process without the caches and budgets that share `memory.limit`.
    pub(super) fn unshared_bytes(&self) -> u64 {
        [self.max_connections_bytes(), self.sockets_bytes(), BASELINE_BYTES]
            .into_iter()
            .fold(self.own_bytes(), u64::saturating_add)
    }

    /// Returns the maximum memory of threads, and of caches and budgets whose sizes are not configurable.
    fn own_bytes(&self) -> u64 {
        let known_missing = if self.remembers_missing() { KNOWN_MISSING_BYTES } else { 0 };
        [known_missing, self.stores_bytes(), self.disk_cache_memory_bytes(), self.threads_bytes()]
            .into_iter()
            .fold(ATTRIBUTES_CACHE_BYTES, u64::saturating_add)
    }

    /// Returns true if a container remembers missing names in the table that all containers share.
    pub fn remembers_missing(&self) -> bool {
        self.containers.iter().any(|container| container.missing_policy().is_some())
    }

    /// Returns the maximum memory of the stores of remote containers in bytes.
    pub fn stores_bytes(&self) -> u64 {
        let store = |container: &ContainerConfig| {
            let connections = STORE_CONNECTION_BYTES.saturating_mul(container.store.concurrency as u64);
            connections.saturating_add(STORE_LISTING_BYTES + UNANNOUNCED_OBJECTS * MAX_UNANNOUNCED_BYTES)
        };
        self.remote_containers().map(store).fold(0, u64::saturating_add)
    }

    fn remote_containers(&self) -> impl Iterator<Item = &ContainerConfig> {
        self.containers.iter().filter(|container| container.is_remote())
    }

    /// Returns the maximum memory of the cache on disk in bytes.
    fn disk_cache_memory_bytes(&self) -> u64 {
        let queue = if self.cache.disk.is_enabled() { DISK_CACHE_QUEUE_BYTES } else { 0 };
        queue.saturating_add(self.disk_cache_index_bytes())
    }

    /// Returns the maximum memory of the index of the cache on disk in bytes; 0 if there is no such cache.
    pub fn disk_cache_index_bytes(&self) -> u64 {
        let disk = &self.cache.disk;
        let bytes = (disk.size / DISK_CACHE_INDEX_DIVISOR).min(MAX_DISK_CACHE_INDEX_BYTES);
        if disk.is_enabled() { bytes } else { 0 }
    }

    /// Returns the maximum memory of threads in bytes. Two of `server.threads` and the disk threads of one container
    /// are left out, because the process's baseline includes them.
    pub fn threads_bytes(&self) -> u64 {
        let serving = (self.threads() as u64).saturating_sub(BASELINE_THREADS).saturating_mul(THREAD_BYTES);
        let waiting = (self.disk_threads().saturating_sub(MAX_DISK_THREADS_PER_CONTAINER) as u64)
            .saturating_mul(DISK_THREAD_BYTES);
        serving.saturating_add(waiting)
    }

    /// Returns the minimum number of file descriptors: one for each connection, two for each read, one for each
    /// concurrent request to a store, and 100 more. With fewer, some clients' connections make those of other clients
    /// wait.
    pub fn min_file_descriptors(&self) -> usize {
        let store_connections = self.remote_containers().map(|container| container.store.concurrency);
        let reads = self.disk_threads().saturating_mul(2);
        store_connections.chain([self.server.max_connections, reads]).fold(100, usize::saturating_add)
    }

    /// Returns the maximum number of threads that wait for the disks of all local containers.
    pub fn disk_threads(&self) -> usize {
        let containers = self.containers.len().saturating_sub(self.remote_containers().count()).max(1);
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

#[cfg(test)]
mod tests {
    use super::super::root_address::RootAddress;
    use super::*;

    fn with_roots(roots: &[&str]) -> Config {
        let container = |root: &&str| ContainerConfig {
            root: RootAddress::parse(root.as_ref()).unwrap(),
            ..ContainerConfig::default()
        };
        Config { containers: roots.iter().map(container).collect(), ..Config::default() }
    }

    #[test]
    fn a_remote_container_takes_memory_and_descriptors_of_its_store_but_no_disk_threads() {
        const STORE_BYTES: u64 = (32 + 16 + 16) << 20;
        let local = with_roots(&["/data"]);
        let one = with_roots(&["/data", "s3://bucket/a.n5"]);
        let ten = with_roots(&["s3://bucket/a.n5"; 10]);
        assert_eq!(one.memory_bound_bytes() - local.memory_bound_bytes(), KNOWN_MISSING_BYTES + STORE_BYTES);
        assert_eq!(ten.memory_bound_bytes() - local.memory_bound_bytes(), KNOWN_MISSING_BYTES + 10 * STORE_BYTES);
        for (config, stores) in [(&one, 1), (&ten, 10)] {
            assert_eq!(config.disk_threads(), local.disk_threads());
            assert_eq!(config.min_file_descriptors() - local.min_file_descriptors(), stores * 64);
        }
    }
}
