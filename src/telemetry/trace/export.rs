//! Traces with their spans, and their export to a collector by OTLP 1.x over HTTP, as JSON. A dedicated thread sends
//! the traces. If the thread cannot keep up or the collector is unreachable, traces are dropped and counted.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue, Request};
use http_body_util::Full;
use serde_json::{Value, json};

use super::settings::TraceSettings;
use crate::http_client::{BlockingHttpClient, HttpClientOptions};
use crate::telemetry::metrics;

/// Maximum memory of the traces that wait to be sent. Further traces are dropped.
pub(super) const MAX_QUEUED_BYTES: usize = 4 << 20;

/// Size in bytes at which a batch of traces is sent.
const BATCH_BYTES: usize = 1 << 20;

/// Maximum time for which a trace waits for further traces in its batch.
const BATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum size of a collector's response. It is short, and not used.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// OTLP's `SpanKind` of a step within a request.
const SPAN_KIND_INTERNAL: u8 = 1;

/// OTLP's `SpanKind` of a request.
const SPAN_KIND_SERVER: u8 = 2;

/// OTLP's `StatusCode` of a failed request.
const STATUS_CODE_ERROR: u8 = 2;

/// Maximum number of child spans of a trace. For a request with thousands of blocks, the first child spans are enough.
pub(super) const MAX_CHILD_SPANS: usize = 256;

/// Properties of a response that its trace reports.
#[derive(Debug, Clone, Copy)]
pub struct TracedResponse {
    /// Request method, as the metrics name it.
    pub method: &'static str,
    /// Route, as the metrics name it.
    pub route: &'static str,
    /// Status code.
    pub status: u16,
    /// Number of bytes of the body that were sent.
    pub bytes: u64,
}

/// The trace of one request.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "trace_id is the term of the trace context")]
pub struct Trace {
    pub(super) trace_id: u128,
    pub(super) span_id: u64,
    pub(super) parent_span_id: Option<u64>,
    pub(super) path: String,
    pub(super) started: (Instant, SystemTime),
    pub(super) child_spans: Mutex<Vec<ChildSpan>>,
}

/// A step that was done for a request.
#[derive(Debug)]
pub(super) struct ChildSpan {
    pub(super) span_id: u64,
    pub(super) name: &'static str,
    pub(super) detail: &'static str,
    pub(super) started: Instant,
    pub(super) elapsed: Duration,
}

/// The trace of a completed or aborted request, with its child spans.
pub(super) struct FinishedTrace {
    pub(super) trace: Arc<Trace>,
    pub(super) elapsed: Duration,
    pub(super) response: TracedResponse,
    pub(super) child_spans: Vec<ChildSpan>,
}

impl FinishedTrace {
    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + size_of::<Trace>()
            + self.trace.path.len()
            + self.child_spans.capacity() * size_of::<ChildSpan>()
    }
}

enum ExportCommand {
    Trace(FinishedTrace),
    /// Asks for a notification when all earlier traces have been sent.
    Flush(SyncSender<()>),
}

/// Handle to the export thread.
pub(super) struct Exporter {
    // The channel is unbounded, but `queued_bytes` limits the traces in it.
    sender: Sender<ExportCommand>,
    queued_bytes: Arc<AtomicUsize>,
}

/// State of the export thread.
struct ExportWorker {
    client: BlockingHttpClient,
    url: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Attributes that describe this process, as JSON.
    resource_attributes: Value,
    queued_bytes: Arc<AtomicUsize>,
    is_unreachable: bool,
}

impl Exporter {
    /// Starts the export thread. `instance` identifies this process among those of the same program.
    ///
    /// # Errors
    /// Returns an error if no thread can be started.
    pub(super) fn start(settings: &TraceSettings, instance: u64) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        // The collector's address is part of the configuration, and no redirect is followed.
        let options =
            HttpClientOptions { allows_link_local: true, max_idle_connections: 1, ..HttpClientOptions::default() };
        let client = BlockingHttpClient::new(&options, settings.timeout).map_err(std::io::Error::other)?;
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let worker = ExportWorker {
            client,
            url: settings.url.clone(),
            headers: settings.headers.clone(),
            resource_attributes: resource_attributes(&settings.resource_attributes, &format!("{instance:016x}")),
            queued_bytes: Arc::clone(&queued_bytes),
            is_unreachable: false,
        };
        std::thread::Builder::new().name("export-traces".to_owned()).spawn(move || worker.run(&receiver))?;
        Ok(Self { sender, queued_bytes })
    }

    /// Queues a trace, or drops it if the queue is full. Never waits.
    pub(super) fn send(&self, finished: FinishedTrace) {
        let bytes = finished.memory_bytes();
        if self.queued_bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= MAX_QUEUED_BYTES
            && self.sender.send(ExportCommand::Trace(finished)).is_ok()
        {
            return;
        }
        self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        metrics::traces_dropped("queue", 1);
    }

    #[cfg(test)]
    pub(super) fn queued_bytes(&self) -> usize {
        self.queued_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn flush(&self, timeout: Duration) {
        let (done_sender, done_receiver) = sync_channel(1);
        if self.sender.send(ExportCommand::Flush(done_sender)).is_ok() {
            let _ = done_receiver.recv_timeout(timeout);
        }
    }
}

impl ExportWorker {
    fn run(mut self, messages: &Receiver<ExportCommand>) {
        // Spans of the current batch as text, and the number of their traces.
        let mut spans = String::new();
        let mut count = 0;
        let mut next_send = Instant::now() + BATCH_INTERVAL;
        loop {
            let mut flush_sender = None;
            let mut is_disconnected = false;
            match messages.recv_timeout(next_send.saturating_duration_since(Instant::now())) {
                Ok(ExportCommand::Trace(finished)) => {
                    write_spans(&finished, &mut spans);
                    count += 1;
                    self.queued_bytes.fetch_sub(finished.memory_bytes(), Ordering::Relaxed);
                }
                Ok(ExportCommand::Flush(sender)) => flush_sender = Some(sender),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => is_disconnected = true,
            }
            if spans.len() >= BATCH_BYTES || flush_sender.is_some() || is_disconnected || Instant::now() >= next_send {
                self.send(&std::mem::take(&mut spans), std::mem::take(&mut count));
                next_send = Instant::now() + BATCH_INTERVAL;
            }
            if let Some(sender) = flush_sender {
                let _ = sender.send(());
            }
            if is_disconnected {
                return;
            }
        }
    }

    /// Sends a batch, and drops it if sending fails. A late trace is of little use, and requests need the memory in
    /// which traces for an unreachable collector would be kept.
    fn send(&mut self, spans: &str, count: u64) {
        if count == 0 {
            return;
        }
        match self.post(self.message(spans)) {
            Ok(()) => {
                metrics::traces_exported(count);
                if std::mem::take(&mut self.is_unreachable) {
                    tracing::info!(url = self.url, "the collector takes traces again");
                }
            }
            Err(error) => {
                metrics::traces_dropped("collector", count);
                if !std::mem::replace(&mut self.is_unreachable, true) {
                    tracing::warn!(url = self.url, %error, "the collector takes no traces; they are dropped");
                }
            }
        }
    }

    fn post(&self, message: String) -> Result<(), String> {
        let mut request = Request::post(&self.url).header(CONTENT_TYPE, "application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::from(message)).map_err(|error| error.to_string())?;
        let (status, _) = self.client.send(request, MAX_RESPONSE_BYTES)?;
        if status.is_success() { Ok(()) } else { Err(format!("http status: {status}")) }
    }

    fn message(&self, spans: &str) -> String {
        let scope = json!({ "name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION") });
        let resource = format!(r#"{{"resource":{{"attributes":{}}}"#, self.resource_attributes);
        format!(r#"{{"resourceSpans":[{resource},"scopeSpans":[{{"scope":{scope},"spans":[{spans}]}}]}}]}}"#)
    }
}

/// Returns the attributes of this process. Those that are `configured` replace the defaults with the same key.
fn resource_attributes(configured: &[(String, String)], instance: &str) -> Value {
    let own = [
        ("service.name", env!("CARGO_PKG_NAME")),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", instance),
    ];
    let mut attributes: Vec<(&str, &str)> = own.to_vec();
    for (key, value) in configured {
        match attributes.iter_mut().find(|(known, _)| known == key) {
            Some((_, known)) => *known = value,
            None => attributes.push((key, value)),
        }
    }
    attributes.into_iter().map(|(key, value)| string_attribute(key, value)).collect()
}

/// Appends the span of a request and its child spans, as JSON separated by commas.
fn write_spans(finished: &FinishedTrace, out: &mut String) {
    let FinishedTrace { trace, elapsed, response, child_spans } = finished;
    let TracedResponse { method, route, status, bytes } = response;
    let (started, clock) = trace.started;
    let nanoseconds = |offset: Duration| {
        let unix_time = clock.checked_add(offset).and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        unix_time.unwrap_or_default().as_nanos().to_string()
    };
    let mut append_span = |mut span: Value, parent: Option<u64>, start: Duration, duration: Duration| {
        span["traceId"] = format!("{:032x}", trace.trace_id).into();
        span["startTimeUnixNano"] = nanoseconds(start).into();
        span["endTimeUnixNano"] = nanoseconds(start.saturating_add(duration)).into();
        if let Some(parent) = parent {
            span["parentSpanId"] = format!("{parent:016x}").into();
        }
        let comma = if out.is_empty() { "" } else { "," };
        let _ = write!(out, "{comma}{span}");
    };
    let mut request = json!({
        "spanId": format!("{:016x}", trace.span_id),
        "name": format!("{method} {route}"),
        "kind": SPAN_KIND_SERVER,
        "attributes": [
            string_attribute("http.request.method", method),
            string_attribute("http.route", route),
            string_attribute("url.path", &trace.path),
            int_attribute("http.response.status_code", u64::from(*status)),
            int_attribute("http.response.body.size", *bytes),
        ],
    });
    if *status >= 500 {
        request["status"] = json!({ "code": STATUS_CODE_ERROR });
    }
    append_span(request, trace.parent_span_id, Duration::ZERO, *elapsed);
    for child in child_spans {
        let span = json!({
            "spanId": format!("{:016x}", child.span_id),
            "name": child.name,
            "kind": SPAN_KIND_INTERNAL,
            "attributes": [string_attribute("n5.of", child.detail)],
        });
        append_span(span, Some(trace.span_id), child.started.saturating_duration_since(started), child.elapsed);
    }
}

fn string_attribute(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Returns an OTLP attribute. Protobuf's JSON represents 64-bit integers as strings.
fn int_attribute(key: &str, value: u64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}
