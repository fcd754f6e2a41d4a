//! Serves each connection, HTTP/1.1 or HTTP/2, and limits what it may cost.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::Instant;

use super::connection_memory::{ConnectionMemory, GUARANTEED_BYTES};
use super::fast_connection::{FastConnection, FastPathEnd, PeerAccount};
use super::http2::watchdog::Http2Watchdog;
use super::hyper_connection::serve_with_hyper;
use super::metered_socket::{LingeringSocket, MeteredSocket, drain_lingering};
use super::peers::{PeerAdmission, PeerSlot, Peers};
use super::send_queue::{self, SendQueue};
use super::serving_snapshot::{ServingSnapshot, SnapshotCache};
use super::signals::wait_until_set;
use super::socket::{Socket, TokioSocket};
use super::threshold_pool::{AddressMemory, DynamicThresholdPool};
use super::tls::TlsTerminator;
use super::workers::WorkerPool;
use crate::config::{Config, SEND_QUEUES_BYTES};
use crate::telemetry::log_throttle::LogThrottle;
use crate::telemetry::metrics::{self, CloseReason, ConnectionPoolLabel, QueueLabel, QueueWaitTimer};

/// Time to wait at shutdown for the first request of a client that has sent none.
const FIRST_REQUEST_GRACE: Duration = Duration::from_millis(100);

/// Time at shutdown to finish a handshake that has begun.
const HANDSHAKE_GRACE: Duration = Duration::from_secs(1);

/// Time for a client to receive the last message of a failed handshake.
const TLS_ALERT_TIMEOUT: Duration = Duration::from_secs(1);

/// Serves accepted connections and holds what they share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ConnectionServer {
    snapshots: watch::Receiver<Arc<ServingSnapshot>>,
    closing: watch::Sender<bool>,
    slots: Arc<Semaphore>,
    peers: Arc<Peers>,
    /// Each connection on which output of hyper is not flushed holds a clone, so the strong count counts these
    /// connections.
    unflushed: Arc<()>,
    /// Each connection whose first request may still arrive holds a clone, so the strong count counts these
    /// connections.
    arriving: Arc<()>,
    workers: Arc<WorkerPool>,
    tls: Option<Arc<TlsTerminator>>,
    metrics: metrics::ConnectionMetrics,
    /// Memory for HTTP/2 streams and long heads.
    memory_pool: Arc<DynamicThresholdPool>,
    /// Kernel memory for send queues.
    send_queue_pool: Arc<DynamicThresholdPool>,
}

impl ConnectionServer {
    /// Creates a server that runs connections on `workers` and always uses the latest snapshot. `config` limits the
    /// number of connections. TCP connections use TLS if `tls` is `Some`.
    pub(crate) fn new(
        config: &Config,
        snapshots: watch::Receiver<Arc<ServingSnapshot>>,
        workers: WorkerPool,
        tls: Option<TlsTerminator>,
    ) -> Self {
        let new_pool = |pool, bytes: u64, divisor| {
            DynamicThresholdPool::new(pool, usize::try_from(bytes).unwrap_or(usize::MAX), divisor)
        };
        let memory_pool = new_pool(ConnectionPoolLabel::Memory, config.connection_pool_bytes(), 0);
        let send_queue_pool = new_pool(ConnectionPoolLabel::Sockets, SEND_QUEUES_BYTES, send_queue::CONNECTION_DIVISOR);
        Self {
            memory_pool: Arc::new(memory_pool.with_guarantee(GUARANTEED_BYTES)),
            send_queue_pool: Arc::new(send_queue_pool),
            workers: Arc::new(workers),
            tls: tls.map(Arc::new),
            metrics: metrics::ConnectionMetrics::new(config.server.max_connections),
            snapshots,
            closing: watch::Sender::new(false),
            unflushed: Arc::default(),
            arriving: Arc::default(),
            peers: Peers::new(Instant::now()),
            slots: Arc::new(Semaphore::new(config.server.max_connections.clamp(1, Semaphore::MAX_PERMITS))),
        }
    }

    /// Returns a handle that counts the connections on which a response of hyper has not been sent completely. Their
    /// number is the strong count, less one for each clone of this server.
    pub(crate) fn unflushed_connections(&self) -> Weak<()> {
        Arc::downgrade(&self.unflushed)
    }

    /// Returns a handle that counts the connections whose first request may still arrive. Their number is the strong
    /// count, less one for each clone of this server.
    pub(crate) fn awaiting_first_request(&self) -> Weak<()> {
        Arc::downgrade(&self.arriving)
    }

    /// Stops answering new requests. A connection that has sent no request yet may still send its first one.
    pub(crate) fn begin_shutdown(&self) {
        self.closing.send_replace(true);
    }

    /// Waits until all connections have ended. Must be called after [`Self::begin_shutdown`].
    pub(crate) async fn wait_drained(self) {
        self.closing.closed().await;
    }

    /// Wakes all connections, so that idle ones release the replaced snapshot.
    pub(crate) fn wake_all(&self) {
        self.closing.send_modify(|_closing| ());
    }

    pub(super) async fn acquire_slot(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.slots).acquire_owned().await.ok()
    }

    /// Serves a connection over a Unix socket. The thread that serves it calls `open` to create it.
    pub(super) fn serve_unix(
        &self,
        open: impl FnOnce() -> io::Result<UnixStream> + Send + 'static,
        slot: Option<OwnedSemaphorePermit>,
    ) {
        self.serve_plain(open, self.new_context(None, None, slot));
    }

    fn serve_plain<S: TokioSocket>(
        &self,
        open: impl FnOnce() -> io::Result<S> + Send + 'static,
        context: ConnectionContext,
    ) {
        let closing = self.closing.subscribe();
        let queue = self.new_send_queue(&context);
        self.workers.spawn(async move {
            let Some(stream) = log_open_error(open()) else { return };
            let (linger_tx, linger) = oneshot::channel();
            let stream = MeteredSocket::new(stream, queue, linger_tx).with_timeout(context.send_timeout);
            context.run(stream, linger, closing).await;
        });
    }

    /// Serves a TCP connection like [`Self::serve_unix`], with TLS if TLS is configured. If `peer` has too many
    /// connections, the new one waits for a slot. If too many of them wait already, it is closed at once.
    pub(super) fn serve_tcp(
        &self,
        open: impl FnOnce() -> io::Result<TcpStream> + Send + 'static,
        peer: IpAddr,
        slot: Option<OwnedSemaphorePermit>,
    ) {
        let snapshot = self.snapshots.borrow().clone();
        let config = &snapshot.config;
        if config.server.trusted_proxies.iter().any(|network| network.contains(&peer)) {
            // The connections of a trusted proxy belong to many clients.
            return self.serve_admitted(open, peer, None, slot);
        }
        // The available permits do not include the permit of this connection.
        match self.peers.admit(peer, config.clients.connections, self.slots.available_permits()) {
            PeerAdmission::Admitted(peer_slot) => self.serve_admitted(open, peer, Some(peer_slot), slot),
            PeerAdmission::Refused => self.refuse(open, peer, "clients.connections"),
            PeerAdmission::Queued(waiter, search) => {
                if let Some(address) = search {
                    tokio::spawn(Arc::clone(&self.peers).evict_for_waiters(address));
                }
                let this = self.clone();
                let timeout = config.server.header_timeout;
                let mut closing = self.closing.subscribe();
                tokio::spawn(async move {
                    // Meanwhile, the first request stays in the kernel's receive buffer.
                    let waiting = QueueWaitTimer::begin(QueueLabel::Connection);
                    let peer_slot = tokio::select! {
                        peer_slot = tokio::time::timeout(timeout, waiter) => peer_slot.ok().and_then(Result::ok),
                        () = wait_until_set(&mut closing) => None,
                    };
                    drop(waiting);
                    match peer_slot {
                        Some(peer_slot) => this.serve_admitted(open, peer, Some(peer_slot), slot),
                        None => this.refuse(open, peer, "clients.connections: no connection ended in time"),
                    }
                });
            }
        }
    }

    fn serve_admitted(
        &self,
        open: impl FnOnce() -> io::Result<TcpStream> + Send + 'static,
        peer: IpAddr,
        peer_slot: Option<PeerSlot>,
        slot: Option<OwnedSemaphorePermit>,
    ) {
        let context = self.new_context(Some(peer), peer_slot, slot);
        let Some(tls) = self.tls.clone() else { return self.serve_plain(open, context) };
        let mut closing = self.closing.subscribe();
        let queue = self.new_send_queue(&context);
        self.workers.spawn(async move {
            let Some(stream) = log_open_error(open()) else { return };
            let (linger_tx, linger) = oneshot::channel();
            let meter = |stream| MeteredSocket::new(stream, queue, linger_tx);
            // Boxed, so that the memory of the handshake is freed when it is done.
            let mut accept = Box::pin(tls.accept(stream, meter, context.send_timeout, peer));
            let accepted = tokio::select! {
                accepted = accept.as_mut() => accepted,
                () = wait_until_set(&mut closing) => tokio::time::timeout(HANDSHAKE_GRACE, accept.as_mut()).await.ok().flatten(),
            };
            drop(accept);
            let Some(stream) = accepted else {
                let ConnectionContext { arriving, peer_slot, slot, .. } = context;
                let places = (peer_slot, slot);
                // Shutdown does not wait for this connection.
                drop((arriving, closing));
                drain_lingering(linger, false, TLS_ALERT_TIMEOUT).await;
                drop(places);
                return;
            };
            context.run(stream, linger, closing).await;
        });
    }

    /// Returns an empty send queue for a connection.
    fn new_send_queue(&self, context: &ConnectionContext) -> SendQueue {
        SendQueue::new(&self.send_queue_pool, address_memory(context.peer_slot.as_ref()))
    }

    /// Resets a connection because its address has too many, and counts and logs it.
    fn refuse(&self, open: impl FnOnce() -> io::Result<TcpStream>, peer: IpAddr, reason: &'static str) {
        static REFUSED: LogThrottle = LogThrottle::new();
        if let Ok(stream) = open() {
            // After an orderly close, the kernel would keep the connection for minutes, or until its client
            // acknowledges the end. If the call fails, the connection has already ended.
            let _ = sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
        }
        self.metrics.record_accepted().set_close_reason(CloseReason::Refused);
        if let Some(suppressed) = REFUSED.allow() {
            let limit = self.snapshots.borrow().config.clients.connections;
            tracing::warn!(%peer, reason, limit, suppressed, "connection refused");
        }
    }

    fn new_context(
        &self,
        peer: Option<IpAddr>,
        peer_slot: Option<PeerSlot>,
        slot: Option<OwnedSemaphorePermit>,
    ) -> ConnectionContext {
        let snapshot = self.snapshots.borrow().clone();
        ConnectionContext {
            snapshots: self.snapshots.clone(),
            unflushed_counter: Arc::downgrade(&self.unflushed),
            header_timeout: snapshot.config.server.header_timeout,
            send_timeout: snapshot.config.server.send_timeout,
            peer,
            metrics: self.metrics.record_accepted(),
            arriving: Arc::clone(&self.arriving),
            memory: ConnectionMemory::new(&self.memory_pool, address_memory(peer_slot.as_ref())),
            peer_slot,
            slot,
        }
    }
}

/// Returns the counters of the memory that all connections from the same address have taken together. Returns `None` if
/// many clients share the address.
fn address_memory(peer_slot: Option<&PeerSlot>) -> Option<Arc<AddressMemory>> {
    peer_slot.map(|slot| Arc::clone(&slot.memory))
}

fn log_open_error<S>(stream: io::Result<S>) -> Option<S> {
    stream.inspect_err(|error| tracing::warn!(%error, "connection not served")).ok()
}

/// Parts of the server that a connection uses while it is served.
struct ConnectionContext {
    snapshots: watch::Receiver<Arc<ServingSnapshot>>,
    unflushed_counter: Weak<()>,
    header_timeout: Duration,
    send_timeout: Duration,
    peer: Option<IpAddr>,
    metrics: metrics::OpenConnectionGuard,
    arriving: Arc<()>,
    memory: Arc<ConnectionMemory>,
    /// Released before `slot`. Otherwise the next connection that gets the slot could still find this one counted.
    peer_slot: Option<PeerSlot>,
    slot: Option<OwnedSemaphorePermit>,
}

impl ConnectionContext {
    /// Answers requests until the connection ends.
    async fn run<S: Socket + 'static>(
        self,
        stream: S,
        linger: oneshot::Receiver<LingeringSocket>,
        mut closing: watch::Receiver<bool>,
    ) {
        let Self { snapshots, header_timeout, send_timeout, metrics: mut open_guard, arriving, .. } = self;
        let activity = self.peer_slot.as_ref().map(|slot| Arc::clone(&slot.activity));
        // A tuple drops its fields in order, even during a panic: the slot of the address first, for the reason given
        // at `peer_slot`.
        let places = (self.peer_slot, self.slot);
        let mut connection = FastConnection::new(
            stream,
            SnapshotCache::new(snapshots.clone()),
            PeerAccount { peer: self.peer, memory: self.memory, activity },
            self.unflushed_counter,
            header_timeout,
        );
        let signals = Arc::clone(&connection.signals);
        // hyper is used only from the first request that it has to answer. Its state is larger than the fast
        // connection's, and polling through it takes longer than the fast path needs to answer.
        let result = match run_fast_path(&mut connection, &mut closing, arriving).await {
            Ok(FastPathEnd::HandOver) => {
                let watchdog = Http2Watchdog::new(send_timeout, header_timeout);
                // Boxed, because most connections never need this memory.
                Box::pin(serve_with_hyper(connection, snapshots, closing, watchdog)).await
            }
            Ok(FastPathEnd::Closed) => {
                let result = connection.shutdown().await.map_err(Into::into);
                drop(connection);
                result
            }
            Err(error) => {
                drop(connection);
                Err(error.into())
            }
        };
        let reason = signals.close_reason.get().copied();
        let has_timed_out = result.as_ref().is_err_and(|error| is_timeout(&**error));
        open_guard.set_close_reason(match reason {
            _ if has_timed_out => CloseReason::SendTimeout,
            Some(reason) => reason,
            None if result.is_ok() => CloseReason::Ended,
            None => CloseReason::Error,
        });
        // A connection that is closed to make room for another one still sends its last response.
        let sends_last_response = !has_timed_out && matches!(reason, Some(CloseReason::Evicted | CloseReason::Memory));
        drain_lingering(linger, result.is_err() && !sends_last_response, send_timeout).await;
        drop(places);
        if let Err(error) = result {
            tracing::debug!(error, "connection ended");
        }
    }
}

/// Answers requests on the fast path until it can answer no more, or until the server shuts down. Drops `arriving` when
/// the first request can no longer arrive, so that shutdown does not wait for it.
async fn run_fast_path<S: Socket>(
    connection: &mut FastConnection<S>,
    closing: &mut watch::Receiver<bool>,
    arriving: Arc<()>,
) -> io::Result<FastPathEnd> {
    tokio::select! {
        biased;
        end = poll_fn(|context| connection.poll_fast_path(context)) => return end,
        () = wait_until_set(closing) => {}
    }
    // A client that was accepted just now may have sent a request that has not been read yet.
    let grace = if connection.is_new { FIRST_REQUEST_GRACE } else { Duration::ZERO };
    if let Ok(end) = tokio::time::timeout(grace, poll_fn(|context| connection.poll_fast_path(context))).await {
        return end;
    }
    drop(arriving);
    connection.signals.request_close();
    poll_fn(|context| connection.poll_fast_path(context)).await
}

/// Returns true if `error` means that the client accepted no bytes for too long.
fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::TimedOut)
}
