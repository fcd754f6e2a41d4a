//! Middleware around every request: its id, its log line, its metrics, and the headers that all responses carry.

use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, TRANSFER_ENCODING};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Version};
use axum::middleware::Next;
use bytes::Bytes;
use futures_util::stream;
use http_body::{Frame, SizeHint};

use crate::http::app::App;
use crate::http::common_headers::add_common_headers;
use crate::http::redact::{redact_query, redacted_excerpt};
use crate::http::route::Endpoint;
use crate::http::{credentials, forwarded};
use crate::telemetry::log_throttle::LogThrottle;
use crate::telemetry::metrics::{self, CancelStage};
use crate::telemetry::trace::{self, Trace, TracedResponse};

/// Header that carries the caller's trace context (W3C Trace Context).
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Header with the id of a request, given by the client or generated here. Handlers read it from the request.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Status that metrics and logs record if the client disconnects before it gets a response, as in nginx.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Gives a request its id. Logs and counts the request once, when its response has been sent completely or abandoned.
pub(crate) async fn observe(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response<Body> {
    let id = request_id(&app, request.headers());
    request.headers_mut().insert(REQUEST_ID, id.clone());
    if app.options.access_control.is_some() {
        let presented = credentials::extract_tokens(&mut request, &app.options.base_path);
        request.extensions_mut().insert(presented);
    }
    let peer = request.extensions().get::<ConnectInfo<Option<IpAddr>>>().and_then(|ConnectInfo(ip)| *ip);
    let uri = request.uri();
    let (method, id_text) = (request.method().clone(), id.to_str().unwrap_or_default());
    let mut record = RequestRecord::start(&app, Instant::now(), method, uri.path(), uri.query(), peer, id_text);
    let parent = request.headers().get(TRACEPARENT).and_then(|parent| parent.to_str().ok());
    let is_trusted = || forwarded::is_trusted_proxy(peer, &app.options.trusted_proxies);
    record.trace = trace::begin(parent, is_trusted, || redacted_excerpt(uri.path()));
    if let Some(trace) = &record.trace {
        let trace = Arc::clone(trace);
        request.extensions_mut().insert(trace);
    }
    let (must_close, version) = (must_close_connection(&request), request.version());
    let mut response = next.run(request).await;
    if must_close {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        // Without this, hyper tells HTTP/1.0 clients that the connection stays open.
        *response.version_mut() = version;
    }
    record.route = response.extensions().get::<Endpoint>().map_or("unmatched", |endpoint| endpoint.label());
    let is_preflight = record.method == Method::OPTIONS && response.status() == StatusCode::OK;
    if is_preflight {
        // A preflight response has no body.
        record.route = "preflight";
        *response.status_mut() = StatusCode::NO_CONTENT;
        response.headers_mut().remove(CONTENT_LENGTH);
        response.headers_mut().insert("allow", HeaderValue::from_static("GET, HEAD, OPTIONS"));
    }
    record.status = response.status();
    let length = response.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let has_length = response.headers().contains_key(CONTENT_LENGTH);
    add_common_headers(response.headers_mut(), record.status, &app.options);
    response.headers_mut().insert(REQUEST_ID, id);
    let (parts, body) = response.into_parts();
    let body = match (record.method == Method::HEAD, has_length) {
        (false, _) => body,
        (true, true) => Body::empty(),
        // An empty body of known size would be announced as `Content-Length: 0`, which is not the length of GET's body.
        (true, false) => Body::from_stream(stream::empty::<Result<Bytes, std::io::Error>>()),
    };
    let is_empty = http_body::Body::is_end_stream(&body) || record.method == Method::HEAD;
    record.stage = if is_empty { SendStage::Done } else { SendStage::Sending(length) };
    Response::from_parts(parts, Body::new(RecordedBody { body, record }))
}

/// Returns the id of a request: the client's if it gives a safe one, otherwise a new one.
fn request_id(app: &App, headers: &HeaderMap) -> HeaderValue {
    let client_id = headers.get(REQUEST_ID).filter(|id| id.to_str().is_ok_and(is_request_id)).cloned();
    client_id.unwrap_or_else(|| {
        let id = format!("{:016x}", app.process.new_request_id());
        HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("-"))
    })
}

/// Returns true if an id given by a client is safe to repeat in headers and logs.
pub(crate) fn is_request_id(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
}

/// Returns true if the connection must be closed after the response: an HTTP/1 request has a body, which is not read.
/// The client may still be sending that body or waiting for `100 Continue`, and the body must not be taken for the next
/// request.
fn must_close_connection(request: &Request) -> bool {
    let headers = request.headers();
    let is_empty = headers.get_all(CONTENT_LENGTH).iter().all(|length| length.as_bytes().iter().all(|b| *b == b'0'));
    let has_body = !is_empty || headers.contains_key(TRANSFER_ENCODING);
    request.version() <= Version::HTTP_11 && (has_body || !http_body::Body::is_end_stream(request.body()))
}

/// Logs and counts a response body that failed midway.
pub(crate) fn report_body_failure(id: &str, error: &impl fmt::Display) {
    static LOG_THROTTLE: LogThrottle = LogThrottle::new();
    metrics::broken_answer();
    if let Some(suppressed) = LOG_THROTTLE.allow() {
        tracing::error!(id, %error, suppressed, "answer broken off");
    }
}

/// Record of a request whose response has not been sent completely. Logs and counts the response when dropped.
pub(crate) struct RequestRecord {
    app: Arc<App>,
    /// Time at which the request arrived.
    pub(crate) started: Instant,
    method: Method,
    /// `None` if no log line will be written.
    log_fields: Option<Box<AccessLogFields>>,
    pub(crate) route: &'static str,
    pub(crate) status: StatusCode,
    /// Bytes of the body that have been sent.
    pub(crate) sent_bytes: u64,
    /// Progress of the response.
    pub(crate) stage: SendStage,
    /// The trace of this request, if it is recorded.
    pub(crate) trace: Option<Arc<Trace>>,
}

/// Progress of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendStage {
    /// The response is being prepared.
    Preparing,
    /// Part of the body has not been sent yet; holds the body's length if it is known.
    Sending(Option<u64>),
    /// The response has been sent completely, as far as this process can tell.
    Done,
}

/// Fields that only the log line needs.
struct AccessLogFields {
    path: String,
    query: Option<String>,
    peer: Option<IpAddr>,
    id: String,
}

impl RequestRecord {
    pub(crate) fn start(
        app: &Arc<App>,
        started: Instant,
        method: Method,
        path: &str,
        query: Option<&str>,
        peer: Option<IpAddr>,
        id: &str,
    ) -> Self {
        app.process.requests_in_flight.fetch_add(1, Ordering::Relaxed);
        let log_fields = tracing::enabled!(tracing::Level::INFO).then(|| {
            let query = query.map(|query| redacted_excerpt(&redact_query(query)));
            Box::new(AccessLogFields { path: redacted_excerpt(path), query, peer, id: id.to_owned() })
        });
        let app = Arc::clone(app);
        Self {
            app,
            started,
            method,
            log_fields,
            route: "unmatched",
            status: StatusCode::OK,
            sent_bytes: 0,
            stage: SendStage::Preparing,
            trace: None,
        }
    }

    /// Returns the request's id; empty if log lines are not written.
    pub(crate) fn id(&self) -> &str {
        self.log_fields.as_ref().map_or("", |fields| &fields.id)
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        self.app.process.requests_in_flight.fetch_sub(1, Ordering::Relaxed);
        let elapsed = self.started.elapsed();
        let cancelled = match self.stage {
            SendStage::Preparing => Some(CancelStage::Waiting),
            SendStage::Sending(length) if length.is_none_or(|length| self.sent_bytes < length) => {
                Some(CancelStage::Sending)
            }
            SendStage::Sending(_) | SendStage::Done => None,
        };
        cancelled.into_iter().for_each(metrics::request_cancelled);
        let status = if cancelled == Some(CancelStage::Waiting) { CLIENT_CLOSED_REQUEST } else { self.status.as_u16() };
        let method = method_name(&self.method);
        if let Some(trace) = self.trace.take() {
            trace.finish(TracedResponse { method, route: self.route, status, bytes: self.sent_bytes });
        }
        if let Some(handles) = self.app.route_metrics(self.route) {
            handles.record(method, status, elapsed, self.sent_bytes);
        } else {
            metrics::http_request(method, self.route, status, elapsed);
            metrics::http_response_bytes(self.route, self.sent_bytes);
        }
        let Some(fields) = &self.log_fields else { return };
        tracing::info!(
            id = fields.id,
            peer = fields.peer.map(tracing::field::display),
            method = %self.method,
            path = fields.path,
            query = fields.query,
            status,
            bytes = self.sent_bytes,
            microseconds = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            "request"
        );
    }
}

/// Returns the method's name in metrics.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// A body that records in its [`RequestRecord`] how much of it has been sent.
struct RecordedBody {
    body: Body,
    record: RequestRecord,
}

impl http_body::Body for RecordedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(None) = &polled {
            self.record.stage = SendStage::Done;
        }
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.record.sent_bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
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
