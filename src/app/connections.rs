//! Serving one connection: HTTP/1.1 or HTTP/2, with bounds on what it may cost.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header::COOKIE;
use axum::http::{Request, Response, StatusCode, Uri, Version, uri};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_io_timeout::TimeoutStream;
use tower::ServiceExt;

use super::charge::{Charge, MOST_COOKIES, MOST_FIELDS};
use super::lane::Lane;
use super::metered::{self, Metered, Rest};
use super::peers::{self, Activity, Admission, PeerLimits, Peers, Place};
use super::pool::SharedPool;
use super::progress::{Fault, Limits, Piece, Progress, Stream};
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

/// HTTP/2 streams of one connection; viewers ask for 100 blocks at once.
const STREAMS: u32 = 128;

/// Malformed requests of a connection of HTTP/2 until it is closed.
const MALFORMED: usize = 16;

/// Bytes of a body that are received before it is looked at. Requests have none, and what comes is dropped.
const BODY_BYTES: u32 = 8 << 10;

/// The window of a connection of HTTP/2 for all bodies together.
const CONNECTION_WINDOW: u32 = 65_535;

/// What a client that is hung up on is given to be told.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long a client is listened to that has asked for nothing yet when the server ends.
const HEARING: Duration = Duration::from_millis(100);

/// How long a handshake may take that has begun when the server ends.
const SHAKING: Duration = Duration::from_secs(1);

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
        let pool = |pool, bytes: u64, divisor| {
            Arc::new(SharedPool::new(pool, usize::try_from(bytes).unwrap_or(usize::MAX), divisor))
        };
        Self {
            memory: pool(ConnectionPool::Memory, config.shared_by_connections_bytes(), 1),
            sockets: pool(ConnectionPool::Sockets, config.send_queues_bytes(), metered::DIVISOR),
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
        let sockets = Arc::clone(&self.sockets);
        self.workers.spawn(async move {
            let Some(stream) = opened(open()) else { return };
            let rest = Rest::default();
            let mut stream = TimeoutStream::new(Metered::new(stream, &sockets, &rest));
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
        let sockets = Arc::clone(&self.sockets);
        self.workers.spawn(async move {
            let Some(stream) = opened(open()) else { return };
            let rest = Rest::default();
            let meter = |stream| Metered::new(stream, &sockets, &rest);
            // In memory of its own, which is given back when the handshake is done.
            let mut accept = Box::pin(tls.accept(stream, meter, terms.send_timeout, peer));
            let accepted = tokio::select! {
                accepted = accept.as_mut() => accepted,
                () = is_set(&mut closing) => tokio::time::timeout(SHAKING, accept.as_mut()).await.ok().flatten(),
            };
            drop(accept);
            if let Some(stream) = accepted {
                terms.converse(stream, rest, closing).await;
            }
        });
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
        let of_address = held.place.as_ref().map(|place| Arc::clone(place.memory_bytes()));
        Terms {
            http: serving.http.clone(),
            news: self.news.clone(),
            unsent: Unsent::new(&self.unsent),
            header_timeout: serving.header_timeout,
            send_timeout: serving.send_timeout,
            peer,
            counted: self.counted.open(),
            arriving: Arc::clone(&self.arriving),
            charge: Charge::new(&self.memory, of_address),
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
                drop(lane);
                ended
            }
            Err(error) => {
                drop(lane);
                Err(error.into())
            }
        };
        counted.close(match &ended {
            Err(error) if is_late(&**error) => Closed::SendTimeout,
            _ => match told.end_reason() {
                Some(EndReason::Idle) => Closed::Idle,
                Some(EndReason::Evicted) => Closed::Evicted,
                Some(EndReason::Memory) => Closed::Memory,
                None if ended.is_ok() => Closed::Ended,
                None => Closed::Error,
            },
        });
        rest.drained(ended.is_err(), send_timeout).await;
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

/// What bounds one connection besides its client's patience.
pub(super) struct Bounds {
    /// What it has taken of the memory that all connections share.
    pub(super) charge: Charge,
    /// Where its address's connections are counted.
    pub(super) activity: Option<Arc<Activity>>,
    /// Longest time for a request's head.
    pub(super) header_timeout: Duration,
}

/// Serves the rest of a connection, from the first request on that the library answers.
#[expect(clippy::too_many_arguments, reason = "all that one connection has")]
async fn answer<S: Socket + 'static>(
    http: &Builder<TokioExecutor>,
    lane: Lane<S>,
    news: News,
    peer: Option<IpAddr>,
    signals: Signals,
    mut closing: watch::Receiver<bool>,
    limits: Limits,
    charge: Charge,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let (told, progress, is_http2) = (signals.clone(), Progress::default(), lane.is_http2());
    let (streams, paid) = (progress.clone(), charge.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let answered = Answered::begin(&signals);
        let begun = begin(request, &streams, &paid).map(|(mut request, stream)| {
            request.extensions_mut().insert(ConnectInfo(peer));
            (news.current().router.clone().oneshot(request), stream)
        });
        if begun.as_ref().is_err_and(|status| *status == StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE) {
            // A field may cost a client one byte, and many take as much time as many requests.
            paid.refuse_more();
        }
        async move {
            let (response, stream) = match begun {
                Ok((answer, stream)) => (answer.await?, stream),
                Err(status) => (refusal(status), None),
            };
            Ok::<_, Infallible>(response.map(|body| Sent { body, stream, _answered: answered }))
        }
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(lane), service));
    let (mut is_closing, mut is_leaving) = (false, false);
    let reason = loop {
        let serving = poll_fn(|context| {
            charge.begin_turn();
            let ended = connection.as_mut().poll(context);
            charge.settle();
            ended
        });
        tokio::select! {
            // First: a library that is asked to end before it has seen a request would never see it.
            biased;
            ended = serving => return ended,
            () = charge.refusing(), if is_http2 => break io::Error::other("the client sends too many header fields"),
            () = is_set(&mut closing), if !is_closing => {
                is_closing = true;
                told.close();
                progress.hurry();
                connection.as_mut().graceful_shutdown();
            }
            fault = progress.fault(limits), if is_http2 => match fault {
                // It may have asked for something just now. If it takes no notice, it is idle once more.
                Fault::Idle if !is_leaving => {
                    is_leaving = true;
                    told.end_because(EndReason::Idle);
                    connection.as_mut().graceful_shutdown();
                }
                Fault::Idle => break io::Error::other("the client asks for nothing"),
                Fault::Stalled => {
                    let text = "the client takes nothing of what it asked for";
                    break io::Error::new(io::ErrorKind::TimedOut, text);
                }
            },
        }
    };
    if !is_closing {
        // GOAWAY: an honest client knows then which requests it may repeat.
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(FAREWELL, connection).await;
    }
    Err(reason.into())
}

/// A request of the library as the router takes it, and its stream over HTTP/2; the status of one that costs too much.
fn begin(
    request: Request<Incoming>,
    streams: &Progress,
    charge: &Charge,
) -> Result<(Request<Body>, Option<Stream>), StatusCode> {
    if request.version() != Version::HTTP_2 {
        return Ok((request.map(Body::new), None));
    }
    // The body, if there is one, is dropped: the library would keep what has come of it.
    let (mut parts, _body) = request.into_parts();
    // The library's is a part of the buffer that it was received in, and would keep all of it.
    parts.uri = copied(&parts.uri).unwrap_or_default();
    // Browsers send each cookie in a field of its own (RFC 9113, section 8.2.3).
    let cookies = parts.headers.get_all(COOKIE).iter().count();
    if parts.headers.len() - cookies.min(MOST_COOKIES) > MOST_FIELDS {
        return Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    let charge = charge.open_stream(&parts).ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
    let stream = streams.open(charge);
    Ok((Request::from_parts(parts, Body::empty()), Some(stream)))
}

/// The same target in memory of its own.
fn copied(uri: &Uri) -> Option<Uri> {
    let mut parts = uri::Parts::default();
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    parts.path_and_query =
        uri.path_and_query().map(|path| uri::PathAndQuery::from_maybe_shared(bytes(path.as_str()))).transpose().ok()?;
    parts.authority =
        uri.authority().map(|text| uri::Authority::from_maybe_shared(bytes(text.as_str()))).transpose().ok()?;
    parts.scheme = uri.scheme().cloned();
    Uri::from_parts(parts).ok()
}

/// An answer without a body, before the router.
fn refusal(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// Waits until the flag is set, or its sender is gone.
async fn is_set(flag: &mut watch::Receiver<bool>) {
    drop(flag.wait_for(|flag| *flag).await);
}

/// Tells the lane, when dropped, that the library has an answer whole or will never have it.
struct Answered(Signals);

impl Answered {
    fn begin(signals: &Signals) -> Self {
        signals.begin();
        Self(signals.clone())
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A body that lives until the library has taken all of it.
struct Sent {
    body: Body,
    /// Of HTTP/2; HTTP/1 has the socket's own limit.
    stream: Option<Stream>,
    _answered: Answered,
}

impl http_body::Body for Sent {
    type Data = Piece;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(
            frame.map(|frame| frame.map(|frame| frame.map_data(|bytes| Piece::new(bytes, self.stream.as_ref())))),
        )
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// How the library serves a connection.
pub(super) fn builder(config: &Config) -> Builder<TokioExecutor> {
    let mut http = Builder::new(TokioExecutor::new());
    // The lane sees to it that heads come in time.
    http.http1().header_read_timeout(None).max_buf_size(HEADER_BYTES);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        // Each keeps a stream in the library's memory.
        .max_local_error_reset_streams(Some(MALFORMED))
        .initial_stream_window_size(BODY_BYTES)
        // The least there is (RFC 9113, section 6.9.2).
        .initial_connection_window_size(CONNECTION_WINDOW)
        // A handshake of WebSockets is then a request that is answered. Without it, what follows the refused stream is a
        // connection error for all other clients of a proxy (RFC 8441, section 3).
        .enable_connect_protocol()
        .max_header_list_size(u32::try_from(HEADER_BYTES).unwrap_or(u32::MAX))
        .keep_alive_interval(Some(config.server.header_timeout))
        .keep_alive_timeout(config.server.header_timeout);
    http
}
