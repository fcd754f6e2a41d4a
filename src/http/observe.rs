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
use axum::http::{Extensions, HeaderMap, HeaderValue, Method, Response, StatusCode, Version};
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

/// Header with the id of a request. [`observe`] sets it in the request, for handlers, and in the response.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Status that metrics and logs record if the client disconnects before it gets a response, as in nginx.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// Gives a request its id. Logs and counts the request once, when its response has been sent completely or abandoned.
pub(crate) async fn observe(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response<Body> {
    let id = choose_id(&app, request.headers());
    request.headers_mut().insert(REQUEST_ID, id.clone());
    if app.options.access_control.is_some() {
        let presented = credentials::extract_tokens(&mut request, &app.options.base_path);
        request.extensions_mut().insert(presented);
    }
    let mut record = start_record(&app, &request);
    if let Some(trace) = &record.trace {
        request.extensions_mut().insert(Arc::clone(trace));
    }
    let must_close = must_close_connection(&request);
    let version = request.version();
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
    add_common_headers(response.headers_mut(), record.status, &app.options);
    response.headers_mut().insert(REQUEST_ID, id);
    record_body(record, response)
}

/// Starts the record of a request, and its trace if the request is traced.
fn start_record(app: &Arc<App>, request: &Request) -> RequestRecord {
    let mut record = RequestRecord::start(app, Instant::now(), request.method().clone());
    let uri = request.uri();
    let peer = peer_address(request.extensions());
    record.log_fields = AccessLogFields::new(request_id(request.headers()), peer, uri.path(), uri.query());
    let parent = request.headers().get(TRACEPARENT).and_then(|parent| parent.to_str().ok());
    let is_trusted = || forwarded::is_trusted_proxy(peer, &app.options.trusted_proxies);
    record.trace = trace::begin(parent, is_trusted, || redacted_excerpt(uri.path()));
    record
}

/// Wraps the body of a response to record how much of it has been sent. Removes the body of a response to HEAD.
fn record_body(mut record: RequestRecord, response: Response<Body>) -> Response<Body> {
    let (parts, body) = response.into_parts();
    let is_head = record.method == Method::HEAD;
    let body = match (is_head, parts.headers.contains_key(CONTENT_LENGTH)) {
        (false, _) => body,
        (true, true) => Body::empty(),
        // An empty body of known size would get `Content-Length: 0`, which is not the length of the body for GET.
        (true, false) => Body::from_stream(stream::empty::<Result<Bytes, std::io::Error>>()),
    };
    record.stage = if is_head || http_body::Body::is_end_stream(&body) {
        SendStage::Done
    } else {
        let length = parts.headers.get(CONTENT_LENGTH);
        SendStage::Sending(length.and_then(|length| length.to_str().ok()?.parse().ok()))
    };
    Response::from_parts(parts, Body::new(RecordedBody { body, record }))
}

/// Returns the IP address of the peer of the connection on which a request arrived.
pub(crate) fn peer_address(extensions: &Extensions) -> Option<IpAddr> {
    extensions.get::<ConnectInfo<Option<IpAddr>>>().and_then(|ConnectInfo(ip)| *ip)
}

/// Returns true if a request arrived over a connection. `inspect` and tests call the router without a connection.
pub(crate) fn has_connection(extensions: &Extensions) -> bool {
    extensions.get::<ConnectInfo<Option<IpAddr>>>().is_some()
}

/// Returns the id that [`observe`] gave a request.
pub(crate) fn request_id(headers: &HeaderMap) -> &str {
    headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or_default()
}

/// Chooses the id of a request: the id that the client sent if it is safe, otherwise a new one.
fn choose_id(app: &App, headers: &HeaderMap) -> HeaderValue {
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

/// Returns true if the connection must be closed after the response, because an HTTP/1 request has a body. The server
/// does not read the body, and must not take it for the next request. The client may still be sending it, or waiting
/// for `100 Continue`.
fn must_close_connection(request: &Request) -> bool {
    let headers = request.headers();
    let is_empty = headers.get_all(CONTENT_LENGTH).iter().all(|length| length.as_bytes().iter().all(|b| *b == b'0'));
    let has_body = !is_empty || headers.contains_key(TRANSFER_ENCODING);
    request.version() <= Version::HTTP_11 && (has_body || !http_body::Body::is_end_stream(request.body()))
}

/// Logs and counts a response body that failed midway.
pub(crate) fn report_body_failure(id: &str, error: &impl fmt::Display) {
    static LOG_THROTTLE: LogThrottle = LogThrottle::new();
    metrics::broken_response();
    if let Some(suppressed) = LOG_THROTTLE.allow() {
        tracing::error!(id, %error, suppressed, "response broken off");
    }
}

/// Record of a request whose response has not been sent completely. Logs and counts the response when dropped.
pub(crate) struct RequestRecord {
    app: Arc<App>,
    /// Time at which the request arrived.
    pub(crate) started: Instant,
    method: Method,
    /// `None` if no log line will be written.
    pub(crate) log_fields: Option<Box<AccessLogFields>>,
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
    /// Part of the body has not been sent yet. The value is the body's length, if it is known.
    Sending(Option<u64>),
    /// The response has been sent completely, as far as this process can tell.
    Done,
}

/// Fields of a request that only its log line needs.
pub(crate) struct AccessLogFields {
    path: String,
    query: Option<String>,
    peer: Option<IpAddr>,
    id: String,
}

impl AccessLogFields {
    /// Copies the fields of a request, with tokens redacted; `None` if no log line will be written.
    pub(crate) fn new(id: &str, peer: Option<IpAddr>, path: &str, query: Option<&str>) -> Option<Box<Self>> {
        tracing::enabled!(tracing::Level::INFO).then(|| {
            let query = query.map(|query| redacted_excerpt(&redact_query(query)));
            Box::new(Self { path: redacted_excerpt(path), query, peer, id: id.to_owned() })
        })
    }
}

impl RequestRecord {
    /// Starts the record of a request that arrived at `started`. No log line is written until `log_fields` is set.
    pub(crate) fn start(app: &Arc<App>, started: Instant, method: Method) -> Self {
        app.process.requests_in_flight.fetch_add(1, Ordering::Relaxed);
        Self {
            app: Arc::clone(app),
            started,
            method,
            log_fields: None,
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
