//! The HTTP library behind a connection's lane: how it is told to serve, what each request costs, and when it is to end.

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
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::sync::watch;
use tokio::time::Instant;
use tower::ServiceExt;

use super::charge::{Charge, MOST_COOKIES, MOST_FIELDS};
use super::connections::{HEADER_BYTES, is_set};
use super::fields::keep_read;
use super::lane::Lane;
use super::peers::Activity;
use super::progress::{Fault, Limits, Piece, Progress, Stream};
use super::refusal::Refusal;
use super::serving::News;
use super::signals::{EndReason, Signals};
use super::socket::Socket;
use crate::config::Config;
use crate::seldom::Seldom;

/// HTTP/2 streams of one connection; viewers ask for 100 blocks at once.
pub(super) const STREAMS: u32 = 128;

/// Malformed requests of a connection of HTTP/2 until it is closed.
const MALFORMED: usize = 16;

/// Bytes of a body that are received before it is looked at. Requests have none, and what comes is dropped.
const BODY_BYTES: u32 = 8 << 10;

/// The window of a connection of HTTP/2 for all bodies together.
const CONNECTION_WINDOW: u32 = 65_535;

/// Time to send GOAWAY before the connection is closed.
const FAREWELL: Duration = Duration::from_secs(1);

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
pub(super) async fn answer<S: Socket + 'static>(
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
            paid.refuse_more(Refusal::Fields);
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
    let (mut is_closing, mut is_leaving, mut leaves_at) = (false, false, None);
    let reason = loop {
        tokio::select! {
            // First: a library that is asked to end before it has seen a request would never see it.
            biased;
            ended = with_charges(connection.as_mut(), &charge) => return ended,
            reason = charge.refusing(), if is_http2 => {
                if reason.is_for_memory() {
                    ended_for_memory(peer, reason);
                    told.end_because(EndReason::Memory);
                }
                break io::Error::other(reason.text());
            }
            () = is_set(&mut closing), if !is_closing => {
                is_closing = true;
                told.close();
                progress.hurry();
                connection.as_mut().graceful_shutdown();
            }
            () = charge.asked_when_idle(), if is_http2 && !is_leaving && !is_closing => {
                is_leaving = true;
                leaves_at = Some(Instant::now() + FAREWELL);
                told.end_because(EndReason::Evicted);
                connection.as_mut().graceful_shutdown();
            }
            // A client that takes no notice, and has not asked for anything just now.
            () = tokio::time::sleep_until(leaves_at.unwrap_or_else(Instant::now)), if leaves_at.is_some() => {
                if charge.is_idle() {
                    break io::Error::other("others need the memory of this idle connection");
                }
                leaves_at = Some(Instant::now() + FAREWELL);
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
        // Two GOAWAY, of which the last, after a PING, tells an honest client which requests it can repeat.
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(FAREWELL, with_charges(connection, &charge)).await;
    }
    Err(reason.into())
}

/// Tells of a connection that is ended because others need its memory.
fn ended_for_memory(peer: Option<IpAddr>, reason: Refusal) {
    static ENDED: Seldom = Seldom::new();
    if let Some(unsaid) = ENDED.may_say() {
        tracing::warn!(?peer, reason = reason.text(), unsaid, "connection ended: the memory for streams is used up");
    }
}

/// Has the library serve the connection, with the charges of each turn.
async fn with_charges<T>(mut connection: Pin<&mut impl Future<Output = T>>, charge: &Charge) -> T {
    poll_fn(|context| {
        charge.begin_turn();
        let ended = connection.as_mut().poll(context);
        charge.settle();
        ended
    })
    .await
}

/// A request of the library as the router takes it, and its stream over HTTP/2; the status of one that costs too much.
fn begin(
    request: Request<Incoming>,
    streams: &Progress,
    charge: &Charge,
) -> Result<(Request<Body>, Option<Stream>), StatusCode> {
    if request.version() != Version::HTTP_2 {
        let mut request = request.map(Body::new);
        if keep_read(request.headers_mut()) {
            // The rest of the head goes with the last part of it.
            if let Some(uri) = copied(request.uri()) {
                *request.uri_mut() = uri;
            }
        }
        return Ok((request, None));
    }
    // The body, if there is one, is dropped: the library would keep what has come of it.
    let (mut parts, _body) = request.into_parts();
    // The library's is a part of the buffer that it was received in, and would keep all of it.
    if let Some(uri) = copied(&parts.uri) {
        parts.uri = uri;
    }
    // Browsers send each cookie in a field of its own (RFC 9113, section 8.2.3).
    let cookies = parts.headers.get_all(COOKIE).iter().count();
    if parts.headers.len() - cookies.min(MOST_COOKIES) > MOST_FIELDS {
        return Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    let charge = charge.open_stream(&parts).ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
    let stream = streams.open(charge);
    keep_read(&mut parts.headers);
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
