//! Finished traces on their way to a collector: OTLP 1.x over HTTP, as JSON. A thread of its own sends them; what comes
//! while it cannot keep up, or the collector is away, is dropped and counted.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};
use ureq::Agent;

use super::{Step, Trace};
use crate::metrics;

/// Most bytes that wait to be sent; further traces are dropped.
pub(super) const HELD_BYTES: usize = 4 << 20;

/// Bytes of text after which a message is sent.
const MESSAGE_BYTES: usize = 1 << 20;

/// How long a trace waits for others at most.
const PAUSE: Duration = Duration::from_secs(1);

/// Longest time of one message.
const SEND_TIME: Duration = Duration::from_secs(5);

/// `SPAN_KIND_INTERNAL`, `SPAN_KIND_SERVER`.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;

/// `STATUS_CODE_ERROR`.
const ERROR: u8 = 2;

/// A request that was answered, or given up, with the steps that were recorded for it.
pub(super) struct Finished {
    pub(super) trace: Arc<Trace>,
    pub(super) elapsed: Duration,
    pub(super) method: &'static str,
    pub(super) route: &'static str,
    pub(super) status: u16,
    pub(super) sent_bytes: u64,
    pub(super) steps: Vec<Step>,
}

impl Finished {
    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of::<Trace>() + self.trace.path.len() + self.steps.capacity() * size_of::<Step>()
    }
}

enum Message {
    Trace(Finished),
    /// To be told when all that came before has been sent.
    Flush(SyncSender<()>),
}

/// The way to the collector.
pub(super) struct Exporter {
    // Bounded by what is held.
    sender: Sender<Message>,
    held: Arc<AtomicUsize>,
}

/// The thread behind it.
struct Sending {
    agent: Agent,
    url: String,
    /// What names this process.
    instance: String,
    held: Arc<AtomicUsize>,
    is_away: bool,
}

impl Exporter {
    /// `instance` tells this process from others of the same program.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start(endpoint: &str, instance: [u8; 8]) -> std::io::Result<Self> {
        let url = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
        let (sender, receiver) = channel();
        let config = Agent::config_builder().timeout_global(Some(SEND_TIME)).max_redirects(0).proxy(None);
        let agent: Agent = config.user_agent(concat!("n5-server/", env!("CARGO_PKG_VERSION"))).build().into();
        let held = Arc::new(AtomicUsize::new(0));
        let instance = hexadecimal(&instance);
        let sending = Sending { agent, url, instance, held: Arc::clone(&held), is_away: false };
        std::thread::Builder::new().name("export-traces".to_owned()).spawn(move || sending.run(&receiver))?;
        Ok(Self { sender, held })
    }

    /// Never waits.
    pub(super) fn send(&self, finished: Finished) {
        let bytes = finished.bytes();
        if self.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= HELD_BYTES
            && self.sender.send(Message::Trace(finished)).is_ok()
        {
            return;
        }
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        metrics::traces_dropped("queue", 1);
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    pub(super) fn flush(&self, limit: Duration) {
        let (tell, told) = sync_channel(1);
        if self.sender.send(Message::Flush(tell)).is_ok() {
            let _ = told.recv_timeout(limit);
        }
    }
}

impl Sending {
    fn run(mut self, messages: &Receiver<Message>) {
        // Of one message: its spans as text, and of how many requests they are.
        let (mut spans, mut count) = (String::new(), 0);
        let mut due = Instant::now() + PAUSE;
        loop {
            let (mut flushed, mut is_over) = (None, false);
            match messages.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Message::Trace(finished)) => {
                    write_spans(&finished, &mut spans);
                    count += 1;
                    self.held.fetch_sub(finished.bytes(), Ordering::Relaxed);
                }
                Ok(Message::Flush(tell)) => flushed = Some(tell),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => is_over = true,
            }
            if spans.len() >= MESSAGE_BYTES || flushed.is_some() || is_over || Instant::now() >= due {
                self.send(&std::mem::take(&mut spans), std::mem::take(&mut count));
                due = Instant::now() + PAUSE;
            }
            if let Some(tell) = flushed {
                let _ = tell.send(());
            }
            if is_over {
                return;
            }
        }
    }

    /// Sends what is there, or drops it: a trace that is late is worth little, and what is kept for a collector that is away
    /// is memory that requests need.
    fn send(&mut self, spans: &str, count: u64) {
        if count == 0 {
            return;
        }
        let sent = self.agent.post(&self.url).content_type("application/json").send(self.message(spans));
        match sent {
            Ok(_) => {
                metrics::traces_exported(count);
                if std::mem::take(&mut self.is_away) {
                    tracing::info!(url = self.url, "the collector takes traces again");
                }
            }
            Err(error) => {
                metrics::traces_dropped("collector", count);
                if !std::mem::replace(&mut self.is_away, true) {
                    tracing::warn!(url = self.url, %error, "the collector takes no traces; they are dropped");
                }
            }
        }
    }

    fn message(&self, spans: &str) -> String {
        let (name, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        let attributes = json!([
            text("service.name", name),
            text("service.version", version),
            text("service.instance.id", &self.instance)
        ]);
        let scope = json!({ "name": name, "version": version });
        let resource = format!(r#"{{"resource":{{"attributes":{attributes}}}"#);
        format!(r#"{{"resourceSpans":[{resource},"scopeSpans":[{{"scope":{scope},"spans":[{spans}]}}]}}]}}"#)
    }
}

/// Adds the spans of a request, as JSON with commas between them: its own, and one for each step.
fn write_spans(finished: &Finished, to: &mut String) {
    let Finished { trace, elapsed, method, route, status, sent_bytes, steps } = finished;
    let (began, clock) = trace.began;
    let nanoseconds = |moment: Duration| {
        let since = clock.checked_add(moment).and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        since.unwrap_or_default().as_nanos().to_string()
    };
    let of = |span: [u8; 8], parent: Option<[u8; 8]>, name: String, kind: u8, from: Duration, took: Duration| {
        let mut value = json!({
            "traceId": hexadecimal(&trace.id),
            "spanId": hexadecimal(&span),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": nanoseconds(from),
            "endTimeUnixNano": nanoseconds(from.saturating_add(took)),
        });
        if let (Some(parent), Some(members)) = (parent, value.as_object_mut()) {
            members.insert("parentSpanId".to_owned(), json!(hexadecimal(&parent)));
        }
        value
    };
    let mut add = |span: &Value| {
        let comma = if to.is_empty() { "" } else { "," };
        let _ = write!(to, "{comma}{span}");
    };
    let mut request = of(trace.span, trace.parent, format!("{method} {route}"), SERVER, Duration::ZERO, *elapsed);
    if let Some(members) = request.as_object_mut() {
        let attributes = [
            text("http.request.method", method),
            text("http.route", route),
            text("url.path", &trace.path),
            number("http.response.status_code", u64::from(*status)),
            number("http.response.body.size", *sent_bytes),
        ];
        members.insert("attributes".to_owned(), json!(attributes));
        if *status >= 500 {
            members.insert("status".to_owned(), json!({ "code": ERROR }));
        }
    }
    add(&request);
    for step in steps {
        let from = step.from.saturating_duration_since(began);
        let mut span = of(step.span, Some(trace.span), step.name.to_owned(), INTERNAL, from, step.took);
        if let Some(members) = span.as_object_mut() {
            members.insert("attributes".to_owned(), json!([text("n5.of", step.detail)]));
        }
        add(&span);
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// 64-bit numbers are text in protobuf's JSON.
fn number(key: &str, value: u64) -> Value {
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
