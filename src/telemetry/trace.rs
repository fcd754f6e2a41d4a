//! Traces of requests for an OpenTelemetry collector: the times that a request waited, read, decoded and encoded.
//!
//! Tracing is off unless [`start`] was called. While it is off, it costs only the check for that. A sampled request
//! carries its trace through tasks and threads as a task-local value. Code that works for the request records child
//! spans, and no function needs a parameter for the trace. Traces contain neither tokens nor queries.

mod export;
mod settings;

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt as _;

use crate::telemetry::metrics::QueueWaitTimer;
use export::{ChildSpan, Exporter, FinishedTrace, MAX_CHILD_SPANS};
pub use export::{Trace, TracedResponse};
pub use settings::TraceSettings;

/// Maximum number of requests per second that are sampled because a trusted caller samples them. In addition, one
/// request in [`TraceSettings::one_in`] is sampled.
const MAX_CALLER_SAMPLED_PER_SECOND: u32 = 100;

/// Maximum number of characters of a path in a trace.
const MAX_PATH_CHARS: usize = 200;

struct Tracer {
    exporter: Exporter,
    one_in: u64,
    follows_caller: bool,
    /// Number of requests so far. One in `one_in` of them is traced.
    requests: AtomicU64,
    /// The current second, and the number of requests in it that were sampled because their `traceparent` asked
    /// for it.
    caller_sampled: Mutex<(u64, u32)>,
}

/// Returns a new id, which is unique in this process and very probably among all processes.
fn new_id() -> u64 {
    static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    SECRET.hash_one(COUNT.fetch_add(1, Ordering::Relaxed)).max(1)
}

static TRACER: OnceLock<Tracer> = OnceLock::new();

tokio::task_local! {
    static CURRENT: Arc<Trace>;
}

/// Starts tracing requests and sending the traces to a collector (OTLP over HTTP, as JSON). Call it once per process.
///
/// # Errors
/// Returns an error if no thread can be started.
pub fn start(settings: &TraceSettings) -> std::io::Result<()> {
    drop(TRACER.set(Tracer::new(settings)?));
    Ok(())
}

/// Sends the traces that have not been sent yet. Gives up after `timeout`.
pub fn flush(timeout: Duration) {
    if let Some(tracer) = TRACER.get() {
        tracer.exporter.flush(timeout);
    }
}

/// Begins the trace of a request if the request is sampled. `parent` is its `traceparent` header.
///
/// The sampled flag of the header is respected only if the caller `is_trusted`. Otherwise any client could have all of
/// its requests traced. The flag is respected for at most `MAX_CALLER_SAMPLED_PER_SECOND` requests per second, because
/// proxies pass on the flags of their clients.
pub fn begin(
    parent: Option<&str>,
    is_trusted: impl FnOnce() -> bool,
    path: impl FnOnce() -> String,
) -> Option<Arc<Trace>> {
    TRACER.get()?.begin(parent, is_trusted, path)
}

impl Tracer {
    fn new(settings: &TraceSettings) -> std::io::Result<Self> {
        Ok(Self {
            exporter: Exporter::start(settings, new_id())?,
            one_in: settings.one_in,
            follows_caller: settings.follows_caller,
            requests: AtomicU64::new(0),
            caller_sampled: Mutex::default(),
        })
    }

    /// Returns true if one more request may be sampled in this second because its caller samples it.
    fn allow_caller_sampled(&self, second: u64) -> bool {
        let mut caller_sampled = self.caller_sampled.lock().unwrap_or_else(PoisonError::into_inner);
        if caller_sampled.0 != second {
            *caller_sampled = (second, 0);
        }
        caller_sampled.1 += 1;
        caller_sampled.1 <= MAX_CALLER_SAMPLED_PER_SECOND
    }

    fn begin(
        &self,
        parent: Option<&str>,
        is_trusted: impl FnOnce() -> bool,
        path: impl FnOnce() -> String,
    ) -> Option<Arc<Trace>> {
        let is_next = self.requests.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.one_in) && self.one_in > 0;
        #[expect(
            clippy::disallowed_methods,
            reason = "collectors order the traces of several programs by wall-clock time"
        )]
        let clock = SystemTime::now;
        let second = || clock().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let parent = parent.and_then(TraceParent::parse);
        let is_sampled = match &parent {
            Some(parent) if self.follows_caller && is_trusted() => {
                parent.is_sampled && (is_next || self.allow_caller_sampled(second()))
            }
            Some(_) | None => is_next,
        };
        if !is_sampled {
            return None;
        }
        let new_trace_id = || u128::from(new_id()) << 64 | u128::from(new_id());
        Some(Arc::new(Trace {
            trace_id: parent.as_ref().map_or_else(new_trace_id, |parent| parent.trace_id),
            span_id: new_id(),
            parent_span_id: parent.map(|parent| parent.span_id),
            path: path().chars().take(MAX_PATH_CHARS).collect(),
            started: (Instant::now(), clock()),
            child_spans: Mutex::default(),
        }))
    }
}

/// A parsed `traceparent` header (W3C Trace Context, section 3.2).
#[derive(Debug, PartialEq, Eq)]
struct TraceParent {
    trace_id: u128,
    span_id: u64,
    is_sampled: bool,
}

impl TraceParent {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let mut next_field = |digits| parse_hex(parts.next()?, digits);
        let version = next_field(2)?;
        let trace_id = next_field(32)?;
        let span_id = u64::try_from(next_field(16)?).ok()?;
        let flags = next_field(2)?;
        // Later versions of the header may have further fields; version ff is invalid.
        let is_valid = version != 0xff && (version > 0 || parts.next().is_none()) && trace_id != 0 && span_id != 0;
        is_valid.then_some(Self { trace_id, span_id, is_sampled: flags & 1 == 1 })
    }
}

/// Parses a number of exactly `digits` lower-case hexadecimal digits.
fn parse_hex(text: &str, digits: usize) -> Option<u128> {
    let is_lower = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    (text.len() == digits && text.bytes().all(is_lower)).then(|| u128::from_str_radix(text, 16).ok())?
}

impl Trace {
    /// Ends the trace, when the response was sent completely or the request was aborted, and queues it for export.
    pub fn finish(self: Arc<Self>, response: TracedResponse) {
        let Some(tracer) = TRACER.get() else { return };
        let mut child_spans = std::mem::take(&mut *self.child_spans.lock().unwrap_or_else(PoisonError::into_inner));
        child_spans.shrink_to_fit();
        for span in &mut child_spans {
            span.span_id = new_id();
        }
        let elapsed = self.started.0.elapsed();
        tracer.exporter.send(FinishedTrace { trace: self, elapsed, response, child_spans });
    }
}

/// Records a step of the current request that took `elapsed` and ends now. `name` comes from a fixed set. `detail` is
/// the queue, storage operation, codec or format.
pub fn record(name: &'static str, detail: &'static str, elapsed: Duration) {
    let _ = CURRENT.try_with(|trace| {
        let now = Instant::now();
        let started = now.checked_sub(elapsed).unwrap_or(now);
        let mut child_spans = trace.child_spans.lock().unwrap_or_else(PoisonError::into_inner);
        if child_spans.len() < MAX_CHILD_SPANS {
            child_spans.push(ChildSpan { span_id: 0, name, detail, started, elapsed });
        }
    });
}

/// Ends a wait in a queue and records it as a step of the current request. If a wait is cancelled, `timer` is dropped
/// instead, and only the metrics count the wait.
pub fn finish_wait(timer: QueueWaitTimer) {
    record("wait", timer.queue.name(), timer.started.elapsed());
    drop(timer);
}

/// Returns the trace of the request that the calling code works for.
pub fn current() -> Option<Arc<Trace>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Runs `work` in the scope of `trace`.
pub fn in_scope<T, F: Future<Output = T>>(trace: Option<Arc<Trace>>, work: F) -> impl Future<Output = T> + use<T, F> {
    // The future of an async function would store `work` twice.
    match trace {
        Some(trace) => CURRENT.scope(trace, work).left_future(),
        None => work.right_future(),
    }
}

/// Runs `work` in the scope of the current trace, on any task or thread.
pub fn in_current_scope<T, F: Future<Output = T>>(work: F) -> impl Future<Output = T> + use<T, F> {
    in_scope(current(), work)
}

/// Like [`in_current_scope`], for a job on another thread.
pub fn job_in_current_scope<T>(job: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let trace = current();
    move || match trace {
        Some(trace) => CURRENT.sync_scope(trace, job),
        None => job(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: &str = "00f067aa0ba902b7";
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    /// A tracer whose collector does not exist.
    fn new_tracer(one_in: u64) -> Tracer {
        Tracer::new(&TraceSettings::new("http://127.0.0.1:9", one_in, |_| None).unwrap()).unwrap()
    }

    #[test]
    fn a_traceparent_is_parsed_according_to_the_standard() {
        let parse = |text: &str| TraceParent::parse(text).map(|parent| parent.is_sampled);
        assert_eq!(parse(&format!("00-{TRACE}-{SPAN}-01")), Some(true));
        assert_eq!(parse(&format!("00-{TRACE}-{SPAN}-00")), Some(false));
        assert_eq!(parse(&format!("cc-{TRACE}-{SPAN}-03-later")), Some(true));
        for text in [
            "",
            "00",
            &format!("00-{TRACE}-{SPAN}-01-more"),
            &format!("ff-{TRACE}-{SPAN}-01"),
            &format!("00-{}-{SPAN}-01", "0".repeat(32)),
            &format!("00-{TRACE}-{}-01", "0".repeat(16)),
            &format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            &format!("00-{TRACE}é-{SPAN}-01"),
            &format!("0é-{TRACE}-{SPAN}-01"),
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[tokio::test]
    async fn steps_of_a_request_are_recorded_on_any_task_or_thread() {
        let tracer = new_tracer(2);
        let trace = tracer.begin(None, || true, || "/a".to_owned()).unwrap();
        assert!(tracer.begin(None, || true, String::new).is_none(), "one in two");
        record("read", "outside", Duration::ZERO);
        in_scope(Some(Arc::clone(&trace)), async {
            record("read", "here", Duration::ZERO);
            tokio::spawn(in_current_scope(async { record("read", "there", Duration::ZERO) })).await.unwrap();
            let job = job_in_current_scope(|| record("decode", "in a thread", Duration::ZERO));
            std::thread::spawn(job).join().unwrap();
            (0..2 * MAX_CHILD_SPANS).for_each(|_| record("read", "many", Duration::ZERO));
        })
        .await;
        assert!(current().is_none());
        let child_spans = trace.child_spans.lock().unwrap();
        let details: Vec<_> = child_spans.iter().take(3).map(|span| span.detail).collect();
        assert_eq!(details, ["here", "there", "in a thread"]);
        assert_eq!(child_spans.len(), MAX_CHILD_SPANS);
    }

    #[test]
    fn only_trusted_callers_can_request_sampling() {
        let tracer = new_tracer(1000);
        assert!(tracer.begin(None, || true, String::new).is_some(), "the first of a thousand");
        let parent = format!("00-{TRACE}-{SPAN}-01");
        assert!(tracer.begin(Some(&parent), || false, String::new).is_none());
        let trace = tracer.begin(Some(&parent), || true, String::new).unwrap();
        assert_eq!(
            (trace.trace_id, trace.parent_span_id.map(u128::from)),
            (parse_hex(TRACE, 32).unwrap(), parse_hex(SPAN, 16))
        );
        let tracer = Tracer { one_in: 1, follows_caller: true, ..tracer };
        let unwanted = format!("00-{TRACE}-{SPAN}-00");
        assert!(tracer.begin(Some(&unwanted), || true, String::new).is_none());
        let tracer = Tracer { one_in: 1, follows_caller: false, ..tracer };
        assert!(tracer.begin(Some(&unwanted), || true, String::new).is_some(), "the sampler ignores callers");
        let tracer = Tracer { one_in: 0, follows_caller: true, ..tracer };
        assert!(
            tracer.begin(None, || true, String::new).is_none()
                && tracer.begin(Some(&parent), || true, String::new).is_some()
        );
    }

    #[test]
    fn one_request_in_n_is_sampled_and_callers_have_a_limit() {
        let tracer = new_tracer(3);
        let sampled = (0..300).filter(|_| {
            let trace = tracer.begin(None, || true, String::new);
            // Ids drawn between the requests, as by finishing a trace with child spans, must not affect the sampling.
            trace.is_some() && (0..5).all(|_| new_id() != 0)
        });
        assert_eq!(sampled.count(), 100);
        let tracer = new_tracer(u64::MAX);
        assert_eq!((0..1000).filter(|_| tracer.allow_caller_sampled(7)).count(), 100);
        assert!(tracer.allow_caller_sampled(8));
    }

    #[test]
    fn a_stalled_collector_costs_bounded_memory() {
        // The system accepts connections, but no process answers them.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let tracer = Tracer::new(&TraceSettings::new(&endpoint, 1, |_| None).unwrap()).unwrap();
        let new_span =
            || ChildSpan { span_id: 1, name: "decode", detail: "xz", started: Instant::now(), elapsed: Duration::ZERO };
        for _ in 0..4096 {
            let trace = tracer.begin(None, || true, || "/a".to_owned()).unwrap();
            let child_spans = (0..MAX_CHILD_SPANS).map(|_| new_span()).collect();
            let response = TracedResponse { method: "GET", route: "slice", status: 200, bytes: 1 };
            tracer.exporter.send(FinishedTrace { trace, elapsed: Duration::ZERO, response, child_spans });
            assert!(tracer.exporter.queued_bytes() <= export::MAX_QUEUED_BYTES);
        }
        assert!(tracer.exporter.queued_bytes() > export::MAX_QUEUED_BYTES / 2, "the queue is actually used");
    }
}
