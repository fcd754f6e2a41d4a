//! Serving one connection: HTTP/1.1 or HTTP/2, with bounds on what it may cost.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::Duration;

use hyper_util::rt::TokioExecutor;
use hyper_util::server::conn::auto::Builder;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_io_timeout::TimeoutStream;

use super::charge::{ASSURED_BYTES, AddressMemory, Charge};
use super::lane::Lane;
use super::library::{Bounds, answer};
use super::metered::{Metered, Rest};
use super::peers::{self, Admission, PeerLimits, Peers, Place};
use super::pool::SharedPool;
use super::progress::Limits;
use super::send_queue::{self, SendQueue};
use super::serving::{Follower, News};
use super::signals::{EndReason, Signals, Unsent};
use super::socket::{RuntimeSocket, Socket};
use super::tls::Tls;
use super::workers::Workers;
use crate::config::Config;
use crate::metrics::{self, Closed, ConnectionPool};
use crate::seldom::Seldom;

/// Longest request head, in bytes: the longest path there can be (64 KiB) and its headers fit, and connections that
/// send no more than a head stay cheap.
pub(super) const HEADER_BYTES: usize = 96 << 10;

/// How long a client is listened to that has asked for nothing yet when the server ends.
const HEARING: Duration = Duration::from_millis(100);

/// How long a handshake may take that has begun when the server ends.
const SHAKING: Duration = Duration::from_secs(1);

/// Time for a client to take the last message of a handshake that failed.
const FAILING: Duration = Duration::from_secs(1);

/// What every connection is served with. Cheap to clone; clones share it.
#[derive(Clone)]
pub(super) struct Connections {
    news: News,
    closing: watch::Sender<bool>,
    slots: Arc<Semaphore>,
    peers: Peers,
    unsent: Arc<AtomicUsize>,
    /// Shared by those whose first request may still come.
    arriving: Arc<()>,
    workers: Arc<Workers>,
    tls: Option<Arc<Tls>>,
    counted: metrics::Connections,
    /// For streams and long heads.
    memory: Arc<SharedPool>,
    /// For send queues.
    sockets: Arc<SharedPool>,
}

impl Connections {
    /// Serves as the latest news say, by `workers`; as many connections at once as `config` says, those by TCP with `tls`
    /// where there is some.
    pub(super) fn new(config: &Config, news: News, workers: Workers, tls: Option<Tls>) -> Self {
        let pool =
            |pool, bytes: u64, divisor| SharedPool::new(pool, usize::try_from(bytes).unwrap_or(usize::MAX), divisor);
        let memory = pool(ConnectionPool::Memory, config.shared_by_connections_bytes(), 0);
        let sockets = pool(ConnectionPool::Sockets, config.send_queues_bytes(), send_queue::DIVISOR);
        Self {
            memory: Arc::new(memory.assuring(ASSURED_BYTES)),
            sockets: Arc::new(sockets),
            workers: Arc::new(workers),
            tls: tls.map(Arc::new),
            counted: metrics::Connections::new(config.server.max_connections),
            news,
            closing: watch::Sender::new(false),
            unsent: Arc::default(),
            arriving: Arc::default(),
            peers: Peers::default(),
            slots: Arc::new(Semaphore::new(config.server.max_connections.clamp(1, Semaphore::MAX_PERMITS))),
        }
    }

    /// How many connections have an answer of the library that has not been sent to the end.
    pub(super) fn unsent(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.unsent)
    }

    /// As many as share this, but for one, have not been heard yet although they have been let in.
    pub(super) fn arriving(&self) -> Weak<()> {
        Arc::downgrade(&self.arriving)
    }

    /// Begins no further request, but for the first of those who are let in from now on.
    pub(super) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Ready when all that have begun are answered, after [`Self::close`].
    pub(super) async fn finished(self) {
        self.closing.closed().await;
    }

    /// Wakes all connections, so that those on which nobody asks let go of what they were served with.
    pub(super) fn wake(&self) {
        self.closing.send_modify(|_closing| ());
    }

    pub(super) async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.slots).acquire_owned().await.ok()
    }

    /// Serves one connection, which `open` makes in the thread that will serve it.
    pub(super) fn serve<S: RuntimeSocket>(
        &self,
        open: impl FnOnce() -> io::Result<S> + Send + 'static,
        peer: Option<IpAddr>,
        slot: Option<OwnedSemaphorePermit>,
    ) {
        self.serve_plain(open, self.terms(peer, Held { place: None, _slot: slot }));
    }

    fn serve_plain<S: RuntimeSocket>(&self, open: impl FnOnce() -> io::Result<S> + Send + 'static, terms: Terms) {
        let closing = self.closing.subscribe();
        let queue = self.queue(&terms);
        self.workers.spawn(async move {
            let Some(stream) = opened(open()) else { return };
            let rest = Rest::default();
            let mut stream = TimeoutStream::new(Metered::new(stream, queue, &rest));
            stream.set_write_timeout(Some(terms.send_timeout));
            terms.converse(Box::pin(stream), rest, closing).await;
        });
    }

    /// As [`Self::serve`]; encrypted, where that is configured. Where `peer` has too many already, the connection waits, or
    /// is closed at once where too many wait.
    pub(super) fn serve_tcp(
        &self,
        open: impl FnOnce() -> io::Result<TcpStream> + Send + 'static,
        peer: IpAddr,
        slot: Option<OwnedSemaphorePermit>,
    ) {
        let serving = self.news.current();
        if serving.is_proxy(peer) {
            return self.serve_placed(open, self.terms(Some(peer), Held { place: None, _slot: slot }));
        }
        // This one has its slot already.
        let limits = PeerLimits::new(serving.connections_of_one, self.slots.available_permits());
        match self.peers.admit(peer, limits) {
            Admission::Served(place) => {
                self.serve_placed(open, self.terms(Some(peer), Held { place: Some(place), _slot: slot }));
            }
            Admission::Refused => self.refused(peer, "clients.connections"),
            Admission::Waits(place, search) => {
                if let Some(address) = search {
                    tokio::spawn(self.peers.clone().search(address));
                }
                let (this, patience) = (self.clone(), serving.header_timeout);
                let mut closing = self.closing.subscribe();
                tokio::spawn(async move {
                    // The first request waits in the kernel meanwhile.
                    let place = tokio::select! {
                        place = peers::waited(place, patience) => place,
                        () = is_set(&mut closing) => None,
                    };
                    match place {
                        Some(place) => {
                            let held = Held { place: Some(place), _slot: slot };
                            this.serve_placed(open, this.terms(Some(peer), held));
                        }
                        None => this.refused(peer, "clients.connections: no connection ended in time"),
                    }
                });
            }
        }
    }

    fn serve_placed(&self, open: impl FnOnce() -> io::Result<TcpStream> + Send + 'static, terms: Terms) {
        let (Some(tls), Some(peer)) = (self.tls.clone(), terms.peer) else { return self.serve_plain(open, terms) };
        let mut closing = self.closing.subscribe();
        let queue = self.queue(&terms);
        self.workers.spawn(async move {
            let Some(stream) = opened(open()) else { return };
            let rest = Rest::default();
            let meter = |stream| Metered::new(stream, queue, &rest);
            // In memory of its own, which is given back when the handshake is done.
            let mut accept = Box::pin(tls.accept(stream, meter, terms.send_timeout, peer));
            let accepted = tokio::select! {
                accepted = accept.as_mut() => accepted,
                () = is_set(&mut closing) => tokio::time::timeout(SHAKING, accept.as_mut()).await.ok().flatten(),
            };
            drop(accept);
            let Some(stream) = accepted else {
                let Terms { arriving, held, .. } = terms;
                // The server's end does not wait for it.
                drop((arriving, closing));
                rest.drained(false, FAILING).await;
                drop(held);
                return;
            };
            terms.converse(stream, rest, closing).await;
        });
    }

    /// An empty send queue of a connection on these terms.
    fn queue(&self, terms: &Terms) -> SendQueue {
        SendQueue::new(&self.sockets, terms.held.of_address())
    }

    /// Tells of a connection that is closed because its address has too many.
    fn refused(&self, peer: IpAddr, reason: &'static str) {
        static REFUSED: Seldom = Seldom::new();
        self.counted.open().close(Closed::Refused);
        if let Some(unsaid) = REFUSED.may_say() {
            let most = self.news.current().connections_of_one;
            tracing::warn!(%peer, reason, most, unsaid, "connection refused");
        }
    }

    fn terms(&self, peer: Option<IpAddr>, held: Held) -> Terms {
        let serving = self.news.current();
        Terms {
            http: serving.http.clone(),
            news: self.news.clone(),
            unsent: Unsent::new(&self.unsent),
            header_timeout: serving.header_timeout,
            send_timeout: serving.send_timeout,
            peer,
            counted: self.counted.open(),
            arriving: Arc::clone(&self.arriving),
            charge: Charge::new(&self.memory, held.of_address()),
            held,
        }
    }
}

/// A connection's places, until it ends.
struct Held {
    /// Given back first: the next connection that gets the slot must not find this one counted.
    place: Option<Place>,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Held {
    /// The bytes that all connections of the address have taken; `None` where it stands for many clients.
    fn of_address(&self) -> Option<Arc<AddressMemory>> {
        self.place.as_ref().map(|place| Arc::clone(place.memory()))
    }
}

fn opened<S>(stream: io::Result<S>) -> Option<S> {
    stream.inspect_err(|error| tracing::warn!(%error, "connection not served")).ok()
}

/// What one connection is served with, to its end.
struct Terms {
    http: Builder<TokioExecutor>,
    news: News,
    unsent: Unsent,
    header_timeout: Duration,
    send_timeout: Duration,
    peer: Option<IpAddr>,
    counted: metrics::Connection,
    arriving: Arc<()>,
    charge: Charge,
    held: Held,
}

impl Terms {
    /// Answers what comes, to the connection's end.
    async fn converse<S: Socket + 'static>(self, stream: S, rest: Rest, mut closing: watch::Receiver<bool>) {
        let Self { http, news, unsent, header_timeout, send_timeout, peer, mut counted, arriving, charge, held } = self;
        let signals = Signals::default();
        let told = signals.clone();
        let activity = held.place.as_ref().map(|place| Arc::clone(place.activity()));
        let follower = Follower::new(news.clone());
        let bounds = Bounds { charge: charge.clone(), activity, header_timeout };
        let mut lane = Lane::new(stream, follower, peer, signals.clone(), unsent, bounds);
        // The library comes with the first request that it has to answer: its state is larger than the lane's, and
        // being polled through it takes longer than the lane needs to answer.
        let mut arriving = Some(arriving);
        let handing = tokio::select! {
            biased;
            handing = poll_fn(|context| lane.poll_between(context)) => handing,
            () = is_set(&mut closing) => {
                // Somebody let in just now may have asked already, and not been heard.
                let hearing = if lane.is_new() { HEARING } else { Duration::ZERO };
                match tokio::time::timeout(hearing, poll_fn(|context| lane.poll_between(context))).await {
                    Ok(handing) => handing,
                    Err(_elapsed) => {
                        arriving = None;
                        signals.close();
                        poll_fn(|context| lane.poll_between(context)).await
                    }
                }
            }
        };
        drop(arriving);
        let ended = match handing {
            // In memory of its own, which most connections never need.
            Ok(true) => {
                let limits = Limits { stall: send_timeout, idle: header_timeout };
                Box::pin(answer(&http, lane, news, peer, signals, closing, limits, charge)).await
            }
            Ok(false) => {
                let ended = lane.shutdown().await.map_err(Into::into);
                drop((lane, charge));
                ended
            }
            Err(error) => {
                drop((lane, charge));
                Err(error.into())
            }
        };
        let reason = told.end_reason();
        let was_late = ended.as_ref().is_err_and(|error| is_late(&**error));
        counted.close(match reason {
            _ if was_late => Closed::SendTimeout,
            Some(EndReason::Idle) => Closed::Idle,
            Some(EndReason::Evicted) => Closed::Evicted,
            Some(EndReason::Memory) => Closed::Memory,
            None if ended.is_ok() => Closed::Ended,
            None => Closed::Error,
        });
        // A connection that is ended to make room for others still sends its last answer.
        let sends_last = !was_late && matches!(reason, Some(EndReason::Evicted | EndReason::Memory));
        rest.drained(ended.is_err() && !sends_last, send_timeout).await;
        drop(held);
        if let Err(error) = ended {
            tracing::debug!(error, "connection ended");
        }
    }
}

/// Whether a client took nothing for too long.
fn is_late(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Waits until the flag is set, or its sender is gone.
pub(super) async fn is_set(flag: &mut watch::Receiver<bool>) {
    drop(flag.wait_for(|flag| *flag).await);
}
