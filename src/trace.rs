//! Traces of requests, for a collector of OpenTelemetry: what a request waited for, read, decoded and encoded, and when.
//!
//! Off unless [`start`] was called; then a look at that is all it costs. A request whose trace is kept carries it through
//! tasks and threads as a task-local value: code that works for it records what it did, and no function passes it on.
//! Neither tokens nor queries are in any trace.

mod export;

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use export::{Exporter, Finished};
use futures_util::FutureExt as _;

/// Most steps of one trace; of a request with thousands of blocks the first are enough.
const STEPS: usize = 256;

/// Most traces a second that are kept because a trusted caller keeps them, besides one request in so many.
const ASKED_FOR: u32 = 100;

/// Most characters of a path.
const PATH: usize = 200;

/// What a collector is told of a request's answer.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    /// As metrics name it.
    pub method: &'static str,
    /// As metrics name it.
    pub route: &'static str,
    /// The status.
    pub status: u16,
    /// Bytes of the body that were sent.
    pub bytes: u64,
}

/// The trace of one request.
#[derive(Debug)]
pub struct Trace {
    id: [u8; 16],
    span: [u8; 8],
    parent: Option<[u8; 8]>,
    path: String,
    began: (Instant, SystemTime),
    steps: Mutex<Vec<Step>>,
}

/// Something that was done for a request.
#[derive(Debug)]
struct Step {
    span: [u8; 8],
    name: &'static str,
    detail: &'static str,
    from: Instant,
    took: Duration,
}

struct Tracer {
    exporter: Exporter,
    one_in: u64,
    ids: Ids,
    /// Requests so far; one in `one_in` of them is kept.
    requests: AtomicU64,
    /// Those that callers had kept in the current second.
    asked_for: Mutex<(u64, u32)>,
}

/// Numbers that nobody else has.
struct Ids {
    secret: RandomState,
    count: AtomicU64,
}

impl Ids {
    fn new() -> Self {
        Self { secret: RandomState::new(), count: AtomicU64::new(0) }
    }

    fn next(&self) -> [u8; 8] {
        self.secret.hash_one(self.count.fetch_add(1, Ordering::Relaxed)).max(1).to_be_bytes()
    }
}

static TRACER: OnceLock<Tracer> = OnceLock::new();

tokio::task_local! {
    static CURRENT: Arc<Trace>;
}

/// From now on one request in `one_in` is traced, for the collector at `endpoint` (OTLP over HTTP, as JSON: the URL without
/// `/v1/traces`). Once per process.
///
/// # Errors
/// When no thread can be started.
pub fn start(endpoint: &str, one_in: u64) -> std::io::Result<()> {
    drop(TRACER.set(Tracer::new(endpoint, one_in)?));
    Ok(())
}

/// Sends what has not been sent, within `limit`.
pub fn flush(limit: Duration) {
    if let Some(tracer) = TRACER.get() {
        tracer.exporter.flush(limit);
    }
}

/// The trace of a request that begins, if it is one of those that are kept. `parent` is its header `traceparent`; whether the
/// caller keeps its own trace counts where it `is_trusted`, for else anybody could make all requests be traced; and for
/// `ASKED_FOR` of them a second, for proxies pass on what they are sent.
pub fn begin(
    parent: Option<&str>,
    is_trusted: impl FnOnce() -> bool,
    path: impl FnOnce() -> String,
) -> Option<Arc<Trace>> {
    TRACER.get()?.begin(parent, is_trusted, path)
}

impl Tracer {
    fn new(endpoint: &str, one_in: u64) -> std::io::Result<Self> {
        let ids = Ids::new();
        let exporter = Exporter::start(endpoint, ids.next())?;
        Ok(Self { exporter, one_in: one_in.max(1), ids, requests: AtomicU64::new(0), asked_for: Mutex::default() })
    }

    /// Whether one more trace of this second may be kept because a caller keeps it.
    fn may_be_asked_for(&self, second: u64) -> bool {
        let mut asked_for = self.asked_for.lock().unwrap_or_else(PoisonError::into_inner);
        if asked_for.0 != second {
            *asked_for = (second, 0);
        }
        asked_for.1 += 1;
        asked_for.1 <= ASKED_FOR
    }

    fn begin(
        &self,
        parent: Option<&str>,
        is_trusted: impl FnOnce() -> bool,
        path: impl FnOnce() -> String,
    ) -> Option<Arc<Trace>> {
        let is_next = self.requests.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.one_in);
        #[expect(clippy::disallowed_methods, reason = "collectors order traces of several programs by the clock")]
        let clock = SystemTime::now;
        let second = || clock().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let parent = parent.and_then(Parent::parse);
        let is_kept = match &parent {
            Some(parent) if is_trusted() => parent.is_kept && (is_next || self.may_be_asked_for(second())),
            Some(_) | None => is_next,
        };
        if !is_kept {
            return None;
        }
        let made = || {
            let mut made = [0; 16];
            made.iter_mut().zip(self.ids.next().into_iter().chain(self.ids.next())).for_each(|(to, from)| *to = from);
            made
        };
        Some(Arc::new(Trace {
            id: parent.as_ref().map_or_else(made, |parent| parent.trace),
            span: self.ids.next(),
            parent: parent.map(|parent| parent.span),
            path: path().chars().take(PATH).collect(),
            began: (Instant::now(), clock()),
            steps: Mutex::default(),
        }))
    }
}

/// What a header `traceparent` says (W3C Trace Context, section 3.2).
#[derive(Debug, PartialEq, Eq)]
struct Parent {
    trace: [u8; 16],
    span: [u8; 8],
    is_kept: bool,
}

impl Parent {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let [version, trace, span, flags] = [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
        let [version] = bytes::<1>(version)?;
        let ([flags], trace, span) = (bytes::<1>(flags)?, bytes::<16>(trace)?, bytes::<8>(span)?);
        // Later versions may say more; the one that cannot be is ff.
        let is_sound = version != 0xff && (version > 0 || parts.next().is_none()) && trace != [0; 16] && span != [0; 8];
        is_sound.then_some(Self { trace, span, is_kept: flags & 1 == 1 })
    }
}

/// Lower-case hexadecimal digits of just that many bytes.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_lower = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    if text.len() != 2 * N || !text.bytes().all(is_lower) {
        return None;
    }
    let mut bytes = [0; N];
    for (n, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * n..2 * n + 2)?, 16).ok()?;
    }
    Some(bytes)
}

impl Trace {
    /// The request has been answered to the end, or given up.
    pub fn finish(self: Arc<Self>, answer: Answer) {
        let Some(tracer) = TRACER.get() else { return };
        let mut steps = std::mem::take(&mut *self.steps.lock().unwrap_or_else(PoisonError::into_inner));
        steps.shrink_to_fit();
        for step in &mut steps {
            step.span = tracer.ids.next();
        }
        let Answer { method, route, status, bytes } = answer;
        let elapsed = self.began.0.elapsed();
        tracer.exporter.send(Finished { trace: self, elapsed, method, route, status, sent_bytes: bytes, steps });
    }

    fn record(&self, step: Step) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if steps.len() < STEPS {
            steps.push(step);
        }
    }
}

/// Something was done for the current request, which took so long and ends now: of a fixed set of names, with what it was
/// done to or by.
pub fn record(name: &'static str, detail: &'static str, took: Duration) {
    let now = Instant::now;
    let step = || Step { span: [0; 8], name, detail, from: now().checked_sub(took).unwrap_or_else(now), took };
    let _ = CURRENT.try_with(|trace| trace.record(step()));
}

/// The trace of the request that the caller works for.
pub fn current() -> Option<Arc<Trace>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// `work`, done for the request of that trace.
pub fn within<T, F: Future<Output = T>>(trace: Option<Arc<Trace>>, work: F) -> impl Future<Output = T> + use<T, F> {
    // An async function would have room for `work` twice.
    match trace {
        Some(trace) => CURRENT.scope(trace, work).left_future(),
        None => work.right_future(),
    }
}

/// `work` for the request that the caller works for now, wherever it will be done.
pub fn carried<T, F: Future<Output = T>>(work: F) -> impl Future<Output = T> + use<T, F> {
    within(current(), work)
}

/// As [`carried`], for a job on another thread.
pub fn carried_job<T>(job: impl FnOnce() -> T) -> impl FnOnce() -> T {
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

    #[test]
    fn a_parent_is_read_as_the_standard_says() {
        let parse = |text: &str| Parent::parse(text).map(|parent| parent.is_kept);
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
    async fn what_is_done_for_a_request_is_recorded_wherever_it_is_done() {
        let tracer = Tracer::new("http://127.0.0.1:9", 2).unwrap();
        let trace = tracer.begin(None, || true, || "/a".to_owned()).unwrap();
        assert!(tracer.begin(None, || true, String::new).is_none(), "one in two");
        record("read", "outside", Duration::ZERO);
        within(Some(Arc::clone(&trace)), async {
            record("read", "here", Duration::ZERO);
            tokio::spawn(carried(async { record("read", "there", Duration::ZERO) })).await.unwrap();
            let job = carried_job(|| record("decode", "in a thread", Duration::ZERO));
            std::thread::spawn(job).join().unwrap();
            (0..2 * STEPS).for_each(|_| record("read", "many", Duration::ZERO));
        })
        .await;
        assert!(current().is_none());
        let steps = trace.steps.lock().unwrap();
        let details: Vec<_> = steps.iter().take(3).map(|step| step.detail).collect();
        assert_eq!(details, ["here", "there", "in a thread"]);
        assert_eq!(steps.len(), STEPS);
    }

    #[test]
    fn only_who_is_trusted_says_what_is_kept() {
        let tracer = Tracer::new("http://127.0.0.1:9", 1000).unwrap();
        assert!(tracer.begin(None, || true, String::new).is_some(), "the first of a thousand");
        let kept = format!("00-{TRACE}-{SPAN}-01");
        assert!(tracer.begin(Some(&kept), || false, String::new).is_none());
        let trace = tracer.begin(Some(&kept), || true, String::new).unwrap();
        assert_eq!((trace.id, trace.parent), (bytes(TRACE).unwrap(), bytes(SPAN)));
        let tracer = Tracer { one_in: 1, ..tracer };
        assert!(tracer.begin(Some(&format!("00-{TRACE}-{SPAN}-00")), || true, String::new).is_none());
    }
    #[test]
    fn one_in_so_many_is_kept_whatever_they_do_and_callers_have_a_bound() {
        let tracer = Tracer::new("http://127.0.0.1:9", 3).unwrap();
        let kept = (0..300).filter(|_| {
            let trace = tracer.begin(None, || true, String::new);
            // What finishing one with that many steps takes.
            trace.is_some() && (0..5).all(|_| tracer.ids.next() != [0; 8])
        });
        assert_eq!(kept.count(), 100);
        let tracer = Tracer::new("http://127.0.0.1:9", u64::MAX).unwrap();
        assert_eq!((0..1000).filter(|_| tracer.may_be_asked_for(7)).count(), 100);
        assert!(tracer.may_be_asked_for(8));
    }

    #[test]
    fn a_collector_that_takes_nothing_costs_bounded_memory() {
        // Accepted by the system, and answered by nobody.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let tracer = Tracer::new(&endpoint, 1).unwrap();
        let step = || Step { span: [1; 8], name: "decode", detail: "xz", from: Instant::now(), took: Duration::ZERO };
        for _ in 0..4096 {
            let trace = tracer.begin(None, || true, || "/a".to_owned()).unwrap();
            let steps = (0..STEPS).map(|_| step()).collect();
            let (method, route) = ("GET", "slice");
            tracer.exporter.send(Finished {
                trace,
                elapsed: Duration::ZERO,
                method,
                route,
                status: 200,
                sent_bytes: 1,
                steps,
            });
            assert!(tracer.exporter.held() <= export::HELD_BYTES);
        }
        assert!(tracer.exporter.held() > export::HELD_BYTES / 2, "and it is used");
    }
}
