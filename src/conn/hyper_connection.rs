//! Runs hyper behind the fast path: hyper's settings, the memory account of each request, and the end of the
//! connection.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header::COOKIE;
use axum::http::{Request, Response, StatusCode, Uri, Version, uri};
use axum::response::IntoResponse;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use scopeguard::ScopeGuard;
use tokio::sync::watch;
use tokio::time::Instant;
use tower::ServiceExt;

use super::connection_memory::{
    ConnectionMemory, GoawayReason, MAX_FIELDS, MAX_HEAD_BYTES, MAX_STREAMS, MAX_UNCOUNTED_COOKIES,
};
use super::fast_connection::FastConnection;
use super::header_filter::strip_unread_headers;
use super::http2::watchdog::{Http2Watchdog, StreamTracker, TrackedBytes};
use super::serving_snapshot::ServingSnapshot;
use super::signals::{ConnectionSignals, wait_until_set};
use super::socket::Socket;
use crate::telemetry::log_throttle::LogThrottle;
use crate::telemetry::metrics::CloseReason;

/// Maximum number of malformed requests on an HTTP/2 connection before it is closed.
const MAX_MALFORMED_REQUESTS: usize = 16;

/// Initial flow control window of a stream: the number of bytes of a request body that the client may send. The server
/// reads no request bodies and discards these bytes.
const STREAM_WINDOW_BYTES: u32 = 8 << 10;

/// Flow control window of an HTTP/2 connection for all request bodies together.
const CONNECTION_WINDOW_BYTES: u32 = 65_535;

/// Time to send GOAWAY before the connection is closed.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(1);

/// State shared by the service that hyper calls and the loop that drives hyper.
#[derive(Clone)]
struct HyperSession {
    peer: Option<IpAddr>,
    signals: Arc<ConnectionSignals>,
    memory: Arc<ConnectionMemory>,
    watchdog: Arc<Http2Watchdog>,
}

/// Serves the rest of a connection with hyper, from the first request that the fast path does not answer. Over HTTP/2,
/// `watchdog` decides when the connection must end because of its client.
pub(super) async fn serve_with_hyper<S: Socket + 'static>(
    fast_connection: FastConnection<S>,
    snapshots: watch::Receiver<Arc<ServingSnapshot>>,
    mut closing: watch::Receiver<bool>,
    watchdog: Arc<Http2Watchdog>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let is_http2 = fast_connection.is_http2();
    // Declared before `connection`, and therefore dropped after it. The account of the memory must outlive hyper's
    // buffers.
    let session = HyperSession {
        peer: fast_connection.account.peer,
        signals: Arc::clone(&fast_connection.signals),
        memory: Arc::clone(&fast_connection.account.memory),
        watchdog,
    };
    let hyper_builder = hyper_builder(fast_connection.header_timeout());
    let service = router_service(snapshots, session.clone());
    let mut connection = pin!(hyper_builder.serve_connection(TokioIo::new(fast_connection), service));
    let mut is_closing = false;
    let mut is_going_away = false;
    let mut goaway_deadline = None;
    let error = loop {
        tokio::select! {
            // hyper must come first: if it is shut down before it has seen a request, it never sees it.
            biased;
            result = with_accounting(connection.as_mut(), &session.memory) => return result,
            reason = session.memory.wait_for_refusal(), if is_http2 => break session.end_for_refusal(reason),
            () = wait_until_set(&mut closing), if !is_closing => {
                is_closing = true;
                session.signals.request_close();
                session.watchdog.begin_shutdown();
                connection.as_mut().graceful_shutdown();
            }
            () = session.memory.wait_for_reclaim(), if is_http2 && !is_going_away && !is_closing => {
                is_going_away = true;
                goaway_deadline = Some(Instant::now() + GOAWAY_TIMEOUT);
                session.signals.set_close_reason(CloseReason::Evicted);
                connection.as_mut().graceful_shutdown();
            }
            // The client ignores GOAWAY. The connection ends unless a request has just arrived.
            () = tokio::time::sleep_until(goaway_deadline.unwrap_or_else(Instant::now)), if goaway_deadline.is_some() => {
                if session.memory.is_idle() {
                    break io::Error::other("others need the memory of this idle connection");
                }
                goaway_deadline = Some(Instant::now() + GOAWAY_TIMEOUT);
            }
            reason = session.watchdog.wait_for_timeout(), if is_http2 => {
                if reason == CloseReason::SendTimeout {
                    break io::Error::new(io::ErrorKind::TimedOut, "the client does not read the answers it requested");
                }
                // The client may just have sent a request. If it ignores GOAWAY, the connection becomes idle again.
                if is_going_away {
                    break io::Error::other("the client makes no requests");
                }
                is_going_away = true;
                session.signals.set_close_reason(CloseReason::Idle);
                connection.as_mut().graceful_shutdown();
            }
        }
    };
    if !is_closing {
        // This sends two GOAWAY frames. The second, after a PING, tells an honest client which requests it can repeat.
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(GOAWAY_TIMEOUT, with_accounting(connection, &session.memory)).await;
    }
    Err(error.into())
}

/// Returns the service that hyper calls for each request: the router of the current snapshot.
fn router_service(
    snapshots: watch::Receiver<Arc<ServingSnapshot>>,
    session: HyperSession,
) -> impl Service<Request<Incoming>, Response = Response<TrackedBody>, Error = Infallible, Future: Send + 'static> {
    service_fn(move |request: Request<Incoming>| {
        session.signals.set_busy(true);
        // When dropped, tells the fast path that hyper has taken the whole response or that there will be no response.
        let busy_guard = scopeguard::guard::<_, fn(_)>(Arc::clone(&session.signals), |signals| signals.set_busy(false));
        let prepared = session.prepare_request(request).map(|(mut request, stream)| {
            request.extensions_mut().insert(ConnectInfo(session.peer));
            (snapshots.borrow().router.clone().oneshot(request), stream)
        });
        async move {
            let (response, stream) = match prepared {
                Ok((response_future, stream)) => (response_future.await?, stream),
                Err(status) => (status.into_response(), None),
            };
            Ok::<_, Infallible>(response.map(|body| TrackedBody { body, stream, _busy: busy_guard }))
        }
    })
}

/// Drives hyper's connection and updates the memory account at each poll.
async fn with_accounting<T>(mut connection: Pin<&mut impl Future<Output = T>>, memory: &ConnectionMemory) -> T {
    poll_fn(|context| {
        memory.begin_poll();
        let result = connection.as_mut().poll(context);
        memory.release_pending();
        result
    })
    .await
}

impl HyperSession {
    /// Returns the error that ends the connection because its memory account refuses more frames. A shortage of memory
    /// is logged.
    fn end_for_refusal(&self, reason: GoawayReason) -> io::Error {
        static ENDED: LogThrottle = LogThrottle::new();
        let text = reason.text();
        if reason.is_memory_shortage() {
            self.signals.set_close_reason(CloseReason::Memory);
            if let Some(suppressed) = ENDED.allow() {
                let peer = self.peer;
                tracing::warn!(?peer, reason = text, suppressed, "connection ended: the memory for streams is used up");
            }
        }
        io::Error::other(text)
    }

    /// Prepares a request for the router and, for HTTP/2, opens its stream. Returns an error status if the request has
    /// too many fields or there is no memory for its stream.
    fn prepare_request(
        &self,
        request: Request<Incoming>,
    ) -> Result<(Request<Body>, Option<Arc<StreamTracker>>), StatusCode> {
        if request.version() != Version::HTTP_2 {
            let mut request = request.map(Body::new);
            if strip_unread_headers(request.headers_mut()) {
                // After the copy, nothing refers to the buffer of the head, and it is freed.
                if let Some(uri) = copy_uri(request.uri()) {
                    *request.uri_mut() = uri;
                }
            }
            return Ok((request, None));
        }
        // Without its receiver, hyper discards the body. Otherwise it would keep the received part of the body in
        // memory.
        let (mut parts, _body) = request.into_parts();
        // hyper's URI is a slice of the receive buffer and would keep the whole buffer in memory.
        if let Some(uri) = copy_uri(&parts.uri) {
            parts.uri = uri;
        }
        // Browsers send each cookie in a field of its own (RFC 9113, section 8.2.3).
        let cookies = parts.headers.get_all(COOKIE).iter().count();
        if parts.headers.len() - cookies.min(MAX_UNCOUNTED_COOKIES) > MAX_FIELDS {
            // The client may send a field with a single byte, and a request with many fields takes as much time as many
            // requests.
            self.memory.refuse(GoawayReason::TooManyFields);
            return Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        }
        let stream_memory = self.memory.open_stream(&parts).ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
        let stream = self.watchdog.track(Some(stream_memory));
        strip_unread_headers(&mut parts.headers);
        Ok((Request::from_parts(parts, Body::empty()), Some(stream)))
    }
}

/// Returns a copy of a URI that does not refer to the receive buffer.
fn copy_uri(uri: &Uri) -> Option<Uri> {
    let mut parts = uri::Parts::default();
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    parts.path_and_query =
        uri.path_and_query().map(|path| uri::PathAndQuery::from_maybe_shared(bytes(path.as_str()))).transpose().ok()?;
    parts.authority =
        uri.authority().map(|text| uri::Authority::from_maybe_shared(bytes(text.as_str()))).transpose().ok()?;
    parts.scheme = uri.scheme().cloned();
    Uri::from_parts(parts).ok()
}

/// A response body that hyper drops when it has taken all of it.
struct TrackedBody {
    body: Body,
    /// `Some` for HTTP/2. HTTP/1 needs no tracker, because the write timeout of the socket is enough.
    stream: Option<Arc<StreamTracker>>,
    _busy: ScopeGuard<Arc<ConnectionSignals>, fn(Arc<ConnectionSignals>)>,
}

impl http_body::Body for TrackedBody {
    type Data = TrackedBytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<TrackedBytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let track = |frame: Frame<Bytes>| frame.map_data(|bytes| TrackedBytes::new(bytes, self.stream.as_ref()));
        Poll::Ready(frame.map(|result| result.map(track)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns a builder with hyper's settings. hyper sends an HTTP/2 ping after each `ping_timeout`, and ends the
/// connection if the client does not answer it within the same time.
fn hyper_builder(ping_timeout: Duration) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    // The fast path enforces the time limit of request heads.
    builder.http1().header_read_timeout(None).max_buf_size(MAX_HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        // hyper keeps a stream in memory for each malformed request.
        .max_local_error_reset_streams(Some(MAX_MALFORMED_REQUESTS))
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        // The smallest initial window that HTTP/2 permits for a connection (RFC 9113, section 6.9.2).
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        // With this, a WebSocket handshake is a request that gets a response. Without it, hyper refuses the stream.
        // Frames that follow on the stream are then a connection error, which also ends the requests of all other
        // clients of a proxy (RFC 8441, section 3).
        .enable_connect_protocol()
        .max_header_list_size(u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX))
        .keep_alive_interval(Some(ping_timeout))
        .keep_alive_timeout(ping_timeout);
    builder
}
