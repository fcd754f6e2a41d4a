//! Around every request: its id, its log line, its metrics, and the headers that all answers carry.

use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, HeaderName, STRICT_TRANSPORT_SECURITY, TRANSFER_ENCODING,
};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Version};
use axum::middleware::Next;
use bytes::Bytes;
use futures_util::stream;
use http_body::{Frame, SizeHint};

use super::{App, Options, credentials, forwarded, query};
use crate::metrics::{self, Cancelled};
use crate::seldom::Seldom;
use crate::trace::{self, Answer, Trace};

/// What a caller's trace is named by (W3C Trace Context).
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Most characters of a path that answers and log lines repeat.
const SHOWN: usize = 200;

/// What metrics and logs have for the status of an answer that nobody waited for, as nginx has it.
const CLIENT_GONE: u16 = 499;

/// The route that most requests take.
pub(super) const STORED: &str = "stored";

/// The id of a request, given by the client or made here.
#[derive(Debug, Clone)]
pub(super) struct RequestId(pub(super) String);

/// The route of an answer, as metrics and logs name it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route(pub(super) &'static str);

/// Gives a request its id, and says once in log and metrics what came of it when its answer has been sent
/// to the end or given up.
pub(super) async fn observe(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response<Body> {
    let id = app.request_id(request.headers());
    request.extensions_mut().insert(RequestId(id.clone()));
    if app.options.control.is_some() {
        let presented = credentials::take(&mut request, &app.options.base_path);
        request.extensions_mut().insert(presented);
    }
    let peer = request.extensions().get::<ConnectInfo<Option<IpAddr>>>().and_then(|ConnectInfo(ip)| *ip);
    let uri = request.uri();
    let mut line = Line::start(&app, Instant::now(), request.method().clone(), uri.path(), uri.query(), peer, &id);
    let parent = request.headers().get(TRACEPARENT).and_then(|parent| parent.to_str().ok());
    let is_trusted = || forwarded::is_trusted(peer, &app.options.trusted_proxies);
    line.trace = trace::begin(parent, is_trusted, || shown(uri.path()));
    if let Some(trace) = &line.trace {
        let trace = Arc::clone(trace);
        request.extensions_mut().insert(trace);
    }
    let (closes, version) = (closes(&request), request.version());
    let mut response = next.run(request).await;
    if closes {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        // To a client of HTTP/1.0 hyper else says that it is kept, too.
        *response.version_mut() = version;
    }
    line.route = response.extensions().get::<Route>().map_or("unmatched", |route| route.0);
    let is_preflight = line.method == Method::OPTIONS && response.status() == StatusCode::OK;
    if is_preflight {
        // There is no body.
        line.route = "preflight";
        *response.status_mut() = StatusCode::NO_CONTENT;
        response.headers_mut().remove(CONTENT_LENGTH);
        response.headers_mut().insert("allow", HeaderValue::from_static("GET, HEAD, OPTIONS"));
    }
    line.status = response.status();
    let length = response.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let has_length = response.headers().contains_key(CONTENT_LENGTH);
    finish(response.headers_mut(), line.status, &app.options);
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    let (parts, body) = response.into_parts();
    let body = match (line.method == Method::HEAD, has_length) {
        (false, _) => body,
        (true, true) => Body::empty(),
        // A body known to be empty would be announced as one of 0 bytes, which GET's is not.
        (true, false) => Body::from_stream(stream::empty::<Result<Bytes, std::io::Error>>()),
    };
    let is_empty = http_body::Body::is_end_stream(&body) || line.method == Method::HEAD;
    line.stage = if is_empty { Stage::Done } else { Stage::Sent(length) };
    Response::from_parts(parts, Body::new(Watched { body, line }))
}

/// Whether the connection ends with the answer to this request: one of HTTP/1 with a body, which is not read. The client
/// may still be sending it, or wait for `100 Continue`, and what it sends must not be taken for the next request.
fn closes(request: &Request) -> bool {
    let headers = request.headers();
    let is_empty = headers.get_all(CONTENT_LENGTH).iter().all(|length| length.as_bytes().iter().all(|b| *b == b'0'));
    let has_body = !is_empty || headers.contains_key(TRANSFER_ENCODING);
    request.version() <= Version::HTTP_11 && (has_body || !http_body::Body::is_end_stream(request.body()))
}

/// What is the same on every answer.
pub(super) fn finish(headers: &mut HeaderMap, status: StatusCode, options: &Options) {
    if let Some(age) = options.hsts {
        let text = format!("max-age={}", age.as_secs());
        headers.insert(STRICT_TRANSPORT_SECURITY, HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("")));
    }
    headers.insert("timing-allow-origin", HeaderValue::from_static("*"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("cross-origin"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    if (status.is_client_error() || status.is_server_error()) && !headers.contains_key(CACHE_CONTROL) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}

/// Tells that the rest of a body cannot be had.
pub(super) fn broken_off(id: &str, error: &impl fmt::Display) {
    static BROKEN: Seldom = Seldom::new();
    metrics::broken_answer();
    if let Some(unsaid) = BROKEN.may_say() {
        tracing::error!(id, %error, unsaid, "answer broken off");
    }
}

/// The beginning of a text that a client sent, without what looks like a token: where access is not restricted, too, for
/// another server may have given it, or this one before it was set up anew.
pub(super) fn shown(text: &str) -> String {
    let hidden = credentials::may_be_in(text).then(|| credentials::hidden(text));
    let text = hidden.as_deref().unwrap_or(text);
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// A request whose answer has not been sent to the end. Dropped, it says in log and metrics what came of it.
pub(super) struct Line {
    app: Arc<App>,
    started: Instant,
    method: Method,
    /// `None` where no log line will be written.
    text: Option<Box<Text>>,
    pub(super) route: &'static str,
    pub(super) status: StatusCode,
    /// Bytes of the body that were sent.
    pub(super) sent: u64,
    /// How far it has come.
    pub(super) stage: Stage,
    /// Where it is kept.
    pub(super) trace: Option<Arc<Trace>>,
}

/// How far an answer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It is being made.
    Made,
    /// Its length, where that is known, and not all of it has been sent.
    Sent(Option<u64>),
    /// All of it has been sent, as far as this process can tell.
    Done,
}

/// What only the log line says.
struct Text {
    path: String,
    query: Option<String>,
    peer: Option<IpAddr>,
    id: String,
}

impl Line {
    pub(super) fn start(
        app: &Arc<App>,
        started: Instant,
        method: Method,
        path: &str,
        query: Option<&str>,
        peer: Option<IpAddr>,
        id: &str,
    ) -> Self {
        app.shared.running.fetch_add(1, Ordering::Relaxed);
        let text = tracing::enabled!(tracing::Level::INFO).then(|| {
            let query = query.map(|query| shown(&query::without_token(query)));
            Box::new(Text { path: shown(path), query, peer, id: id.to_owned() })
        });
        let app = Arc::clone(app);
        Self {
            app,
            started,
            method,
            text,
            route: "unmatched",
            status: StatusCode::OK,
            sent: 0,
            stage: Stage::Made,
            trace: None,
        }
    }

    /// The request's id, where log lines are written.
    pub(super) fn id(&self) -> &str {
        self.text.as_ref().map_or("", |text| &text.id)
    }

    /// When the request came.
    pub(super) fn started(&self) -> Instant {
        self.started
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.app.shared.running.fetch_sub(1, Ordering::Relaxed);
        let elapsed = self.started.elapsed();
        let cancelled = match self.stage {
            Stage::Made => Some(Cancelled::Waiting),
            Stage::Sent(length) if length.is_none_or(|length| self.sent < length) => Some(Cancelled::Sending),
            Stage::Sent(_) | Stage::Done => None,
        };
        cancelled.into_iter().for_each(metrics::request_cancelled);
        let status = if cancelled == Some(Cancelled::Waiting) { CLIENT_GONE } else { self.status.as_u16() };
        let method = method_name(&self.method);
        if let Some(trace) = self.trace.take() {
            trace.finish(Answer { method, route: self.route, status, bytes: self.sent });
        }
        if let Some(answers) = self.app.answers(self.route) {
            answers.record(method, status, elapsed, self.sent);
        } else {
            metrics::http_request(method, self.route, status, elapsed);
            metrics::http_response_bytes(self.route, self.sent);
        }
        let Some(text) = &self.text else { return };
        tracing::info!(
            id = text.id,
            peer = text.peer.map(tracing::field::display),
            method = %self.method,
            path = text.path,
            query = text.query,
            status,
            bytes = self.sent,
            microseconds = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            "request"
        );
    }
}

/// The method as metrics name it.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// A body that counts what has been sent of it.
struct Watched {
    body: Body,
    line: Line,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(None) = &polled {
            self.line.stage = Stage::Done;
        }
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.line.sent += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
