//! Tests of the requests to a bucket, with stores in memory and tokio's paused time.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use axum::http;
use axum::http::StatusCode;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use object_store::client::{HttpError, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody, HttpService};
use tokio::time::{Instant, sleep, timeout};

use super::counters::{AttemptResult, OperationSnapshot};
use super::service::UpstreamResponse;
use super::*;

/// What the store does with an attempt.
#[derive(Debug, Clone)]
enum Behaviour {
    /// Answers after a time with a body of this length.
    Answer(Duration, usize),
    /// Answers after a time with a status, a `Retry-After` and a document.
    Status(Duration, u16, Option<u64>, &'static str),
    /// Never answers.
    Hang,
    /// Answers, and sends these parts of the body, each after a time. The announced length comes first.
    Parts(u64, Vec<(Duration, usize)>),
    /// Resets the connection after a time.
    Reset(Duration),
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

type Behave = dyn Fn(u64, u64) -> Behaviour + Send + Sync;

/// A store whose behaviour depends on the number of the attempt and on the requests in flight.
#[derive(Clone)]
struct FakeStore {
    behave: Arc<Behave>,
    sent: Arc<AtomicU64>,
    in_flight: Arc<AtomicU64>,
}

impl std::fmt::Debug for FakeStore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("FakeStore")
    }
}

impl FakeStore {
    fn new(behave: impl Fn(u64, u64) -> Behaviour + Send + Sync + 'static) -> Self {
        Self { behave: Arc::new(behave), sent: Arc::default(), in_flight: Arc::default() }
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// Counts a request while it is in flight.
struct InFlight(Arc<AtomicU64>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl HttpService for FakeStore {
    async fn call(&self, _request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        let others = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let _in_flight = InFlight(Arc::clone(&self.in_flight));
        let response = http::Response::builder();
        Ok(match (self.behave)(number, others) {
            Behaviour::Answer(time, length) => {
                sleep(time).await;
                response.header("content-length", length).body(Bytes::from(vec![7; length]).into()).unwrap()
            }
            Behaviour::Status(time, status, retry_after, document) => {
                sleep(time).await;
                let mut response = response.status(status);
                if let Some(seconds) = retry_after {
                    response = response.header("retry-after", seconds);
                }
                response.body(Bytes::from_static(document.as_bytes()).into()).unwrap()
            }
            Behaviour::Hang => std::future::pending().await,
            Behaviour::Parts(length, parts) => {
                let parts = stream::iter(parts).then(|(time, length)| async move {
                    sleep(time).await;
                    Ok::<_, HttpError>(Frame::data(Bytes::from(vec![7; length])))
                });
                let body = HttpResponseBody::new(StreamBody::new(SyncStream(Mutex::new(Box::pin(parts)))));
                response.header("content-length", length).body(body).unwrap()
            }
            Behaviour::Reset(time) => {
                sleep(time).await;
                let error = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
                return Err(HttpError::new(object_store::client::HttpErrorKind::Unknown, error));
            }
        })
    }
}

/// Makes a stream `Sync`, as bodies must be.
struct SyncStream<S>(Mutex<S>);

impl<S: futures_util::Stream + Unpin> futures_util::Stream for SyncStream<S> {
    type Item = S::Item;

    fn poll_next(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        self.0.lock().unwrap().poll_next_unpin(context)
    }
}

const TIMEOUT: Duration = Duration::from_secs(10);

struct Fixture {
    store: FakeStore,
    upstream: Arc<UpstreamBucket>,
    counters: Arc<UpstreamCounters>,
    service: UpstreamService<FakeStore>,
}

fn fixture_with(
    max_concurrency: usize,
    settings: UpstreamSettings,
    behave: impl Fn(u64, u64) -> Behaviour + Send + Sync + 'static,
) -> Fixture {
    let (store, upstream) = (FakeStore::new(behave), Arc::new(UpstreamBucket::new(max_concurrency)));
    let counters = Arc::new(UpstreamCounters::new("test"));
    let service = UpstreamService::new(store.clone(), settings, Arc::clone(&upstream), Arc::clone(&counters));
    Fixture { store, upstream, counters, service }
}

fn fixture(behave: impl Fn(u64, u64) -> Behaviour + Send + Sync + 'static) -> Fixture {
    fixture_with(64, UpstreamSettings { timeout: TIMEOUT, hedge: true }, behave)
}

fn get() -> HttpRequest {
    http::Request::get("http://store/key").body(HttpRequestBody::empty()).unwrap()
}

fn context(operation: UpstreamOperation) -> UpstreamContext {
    let (deadline, retries) = (Instant::now() + TIMEOUT, RetryCount::default());
    UpstreamContext { operation, deadline, retries }
}

impl Fixture {
    async fn execute(&self) -> Result<UpstreamResponse, UpstreamFailure> {
        self.service.execute(get(), &context(UpstreamOperation::Get)).await
    }

    /// Gets a usable answer.
    async fn call(&self) -> Result<UpstreamResponse, UpstreamFailure> {
        let mut response = self.execute().await?;
        response.failure.take().map_or(Ok(response), Err)
    }

    /// Gets an object with its body.
    async fn read(&self) -> Result<Bytes, UpstreamFailure> {
        let response = self.call().await?;
        let body = response.body.collect().await.map_err(|error| UpstreamFailure::of_transport(&error))?;
        Ok(body.to_bytes())
    }

    fn counters(&self) -> OperationSnapshot {
        self.counters.snapshot().into_iter().find(|it| it.operation == UpstreamOperation::Get).unwrap()
    }

    fn hedge_delay(&self) -> Duration {
        self.upstream.hedge_delay(UpstreamOperation::Get).unwrap()
    }

    #[track_caller]
    fn assert_nothing_is_held(&self) {
        let concurrency = self.upstream.limit.snapshot();
        assert_eq!((concurrency.in_flight, concurrency.waiting), (0, 0), "{concurrency:?}");
    }
}

/// Lets `users` users read one object after the other for a time. Returns the numbers of successful and failed reads.
async fn load(fixture: &Arc<Fixture>, users: usize, time: Duration) -> (u64, u64) {
    let end = Instant::now() + time;
    let tasks: Vec<_> = (0..users)
        .map(|_| {
            let fixture = Arc::clone(fixture);
            tokio::spawn(async move {
                let (mut good, mut bad) = (0, 0);
                while Instant::now() < end {
                    match fixture.read().await {
                        Ok(_) => good += 1,
                        Err(_) => bad += 1,
                    }
                }
                (good, bad)
            })
        })
        .collect();
    let mut sum = (0, 0);
    for task in tasks {
        let (good, bad) = task.await.unwrap();
        sum = (sum.0 + good, sum.1 + bad);
    }
    fixture.assert_nothing_is_held();
    sum
}

/// A reproducible number below 1,000 for the number of an attempt.
fn random(number: u64) -> u64 {
    let mixed = (number ^ 0x5DEE_CE66).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40
}

fn permille(number: u64) -> u64 {
    random(number) % 1_000
}

#[tokio::test(start_paused = true)]
async fn the_concurrency_converges_to_what_the_store_serves() {
    // The store serves 24 requests at once, 1,200 a second.
    let fixture = Arc::new(fixture(|_, others| {
        if others < 24 { Behaviour::Answer(millis(20), 100) } else { Behaviour::Status(millis(5), 503, None, "") }
    }));
    load(&fixture, 200, Duration::from_secs(5)).await;
    let before = fixture.counters();
    let (good, _) = load(&fixture, 200, Duration::from_secs(60)).await;
    let after = fixture.counters();
    let throttled = AttemptResult::Failure(FailureKind::Throttled);
    let throttled = after.result(throttled) - before.result(throttled);
    assert!(good > 60 * 1_200 * 7 / 10, "{good} of {}", 60 * 1_200);
    assert!(throttled * 20 < good, "{throttled} throttled, {good} good");
    let limit = fixture.upstream.limit.snapshot().limit;
    assert!((11..=26).contains(&limit), "{limit}");
}

#[tokio::test(start_paused = true)]
async fn the_concurrency_converges_to_the_rate_of_a_store() {
    // The store serves 750 requests a second, in windows of 100 ms.
    let window = Mutex::new((Instant::now(), 0));
    let fixture = Arc::new(fixture(move |_, _| {
        let mut window = window.lock().unwrap();
        if window.0.elapsed() >= millis(100) {
            *window = (Instant::now(), 0);
        }
        window.1 += 1;
        if window.1 <= 75 { Behaviour::Answer(millis(20), 100) } else { Behaviour::Status(millis(5), 503, None, "") }
    }));
    let (good, _) = load(&fixture, 100, Duration::from_secs(60)).await;
    let throttled = fixture.counters().result(AttemptResult::Failure(FailureKind::Throttled));
    assert!(good > 60 * 750 * 7 / 10, "{good}");
    assert!(throttled * 10 < good, "{throttled} throttled, {good} good");
}

#[tokio::test(start_paused = true)]
async fn twenty_percent_of_faults_cost_at_most_a_tenth_more_requests_and_are_over_within_a_second() {
    let end = Instant::now() + Duration::from_secs(60);
    let fixture =
        Arc::new(fixture_with(64, UpstreamSettings { timeout: millis(500), hedge: true }, move |number, _| {
            let answer = Behaviour::Answer(millis(20), 5_000);
            if Instant::now() >= end {
                return answer;
            }
            match permille(number) {
                0..40 => Behaviour::Status(millis(20), 503, None, "<Code>SlowDown</Code>"),
                40..80 => Behaviour::Reset(millis(20)),
                80..120 => Behaviour::Hang,
                120..160 => Behaviour::Parts(5_000, vec![(millis(20), 2_000)]),
                160..200 => Behaviour::Parts(5_000, vec![(millis(20), 6_000)]),
                _ => answer,
            }
        }));
    let (good, bad) = load(&fixture, 32, Duration::from_secs(59)).await;
    let (requests, counters) = (good + bad, fixture.counters());
    assert!(counters.requests <= requests + requests / 10 + 20, "{} for {requests}", counters.requests);
    assert_eq!(counters.requests, fixture.store.sent());
    assert!(good * 100 > requests * 75, "{good} of {requests}");
    tokio::time::sleep_until(end).await;
    // Attempts that were sent before the end may still fail.
    sleep(Duration::from_secs(1)).await;
    let (good, bad) = load(&fixture, 32, Duration::from_secs(1)).await;
    assert_eq!(bad, 0);
    assert!(good >= 32 * 40 * 3 / 4, "{good} in a second, {} without faults", 32 * 50);
}

/// Returns the 99th percentile of the times of reads, and the counters.
async fn tail(hedge: bool) -> (Duration, Duration, OperationSnapshot) {
    let fixture = fixture_with(64, UpstreamSettings { timeout: TIMEOUT, hedge }, |number, _| {
        let slow = if permille(number) < 30 { 1_000 } else { 20 + permille(number) % 20 };
        Behaviour::Answer(millis(slow), 5_000)
    });
    let mut times = Vec::new();
    for _ in 0..10_000 {
        let started = Instant::now();
        assert_eq!(fixture.read().await.unwrap().len(), 5_000);
        times.push(started.elapsed());
    }
    fixture.assert_nothing_is_held();
    times.sort();
    (times[times.len() / 2], times[times.len() * 99 / 100], fixture.counters())
}

#[tokio::test(start_paused = true)]
async fn hedges_cut_the_tail_within_their_budget_and_count_no_byte_twice() {
    let (median, slow, counters) = tail(false).await;
    assert_eq!((counters.hedges, slow), (0, millis(1_000)));
    let (hedged_median, hedged, counters) = tail(true).await;
    assert_eq!(median, hedged_median);
    assert!(hedged < millis(150), "{hedged:?}");
    assert!(counters.hedges > 100 && counters.hedges <= 500, "{}", counters.hedges);
    assert!(counters.hedges_won <= counters.hedges && counters.hedges_won > 100);
    assert_eq!(counters.bytes, 10_000 * 5_000);
    assert_eq!(counters.requests, 10_000 + counters.hedges);
    assert_eq!(counters.result(AttemptResult::Success), 10_000);
    assert_eq!(counters.result(AttemptResult::Cancelled), counters.hedges);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_becomes_slow_gets_no_storm_of_hedges() {
    let fixture = Arc::new(fixture(|number, _| Behaviour::Answer(millis(if number < 2_000 { 20 } else { 400 }), 100)));
    while fixture.store.sent() < 2_000 {
        fixture.read().await.unwrap();
    }
    let before = fixture.counters();
    assert_eq!(before.hedges, 0);
    // The next 100 answers are all slower than 95 of 100 were until now.
    futures_util::future::join_all((0..20).map(|_| async {
        for _ in 0..5 {
            fixture.read().await.unwrap();
        }
    }))
    .await;
    let hedges = fixture.counters().hedges;
    assert!((10..=15).contains(&hedges), "{hedges}");
    load(&fixture, 60, Duration::from_secs(60)).await;
    assert!(fixture.hedge_delay() >= millis(400), "the quantile follows the store");
}

#[tokio::test(start_paused = true)]
async fn hedges_that_win_do_not_lower_the_time_after_which_requests_are_hedged() {
    // Exponential times with a mean of 50 ms: 95 of 100 are below 150 ms.
    let fixture = fixture(|number, _| {
        let uniform = Duration::from_millis(permille(number)).as_secs_f64() + 0.000_5;
        Behaviour::Answer(Duration::from_secs_f64(-0.05 * (1.0 - uniform).ln()), 1)
    });
    for _ in 0..20_000 {
        fixture.read().await.unwrap();
    }
    let delay = fixture.hedge_delay();
    assert!(delay >= millis(140) && delay <= millis(180), "{delay:?}");
    assert!(fixture.counters().hedges_won > 100);
}

#[tokio::test(start_paused = true)]
async fn retries_are_a_tenth_of_the_requests_however_many_fail() {
    for (failing, least_good) in [(200, 85), (1_000, 0)] {
        let fixture = Arc::new(fixture(move |number, _| {
            if permille(number) < failing { Behaviour::Reset(millis(20)) } else { Behaviour::Answer(millis(20), 100) }
        }));
        let (good, bad) = load(&fixture, 32, Duration::from_secs(20)).await;
        let (requests, sent) = (good + bad, fixture.store.sent());
        assert!(sent >= requests + requests / 11 && sent <= requests + requests / 10 + 20, "{sent} for {requests}");
        assert!(good * 100 >= requests * least_good, "{good} of {requests}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_throttled_bucket_gets_no_hedges() {
    let fixture = fixture(|number, _| match number {
        0..200 => Behaviour::Answer(millis(20), 100),
        200 => Behaviour::Status(millis(20), 429, None, ""),
        _ => Behaviour::Answer(millis(300), 100),
    });
    for _ in 0..202 {
        fixture.read().await.unwrap();
    }
    assert_eq!(fixture.counters().hedges, 0);
    sleep(Duration::from_secs(3)).await;
    fixture.read().await.unwrap();
    assert_eq!(fixture.counters().hedges, 1);
}

#[tokio::test(start_paused = true)]
async fn a_hedge_rescues_a_request_whose_first_attempt_fails_late() {
    // The hedge is sent after about 22 ms and answers after 42 ms.
    let at_30 = [Behaviour::Reset(millis(30)), Behaviour::Status(millis(30), 500, None, "")];
    let at_200 = [Behaviour::Reset(millis(200)), Behaviour::Hang, Behaviour::Status(millis(200), 500, None, "")];
    for late in at_30.into_iter().chain(at_200) {
        let fixture =
            fixture(move |number, _| if number == 200 { late.clone() } else { Behaviour::Answer(millis(20), 1) });
        for _ in 0..200 {
            fixture.read().await.unwrap();
        }
        let started = Instant::now();
        fixture.read().await.unwrap();
        assert!(started.elapsed() < millis(60), "{:?}", started.elapsed());
        let counters = fixture.counters();
        assert_eq!((counters.requests, counters.hedges, counters.hedges_won, counters.retries), (202, 1, 1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_final_answer_that_comes_late_does_not_wait_for_the_hedge() {
    for status in [403, 404] {
        let fixture = fixture(move |number, _| match number {
            200 => Behaviour::Status(millis(100), status, None, ""),
            201 => Behaviour::Hang,
            _ => Behaviour::Answer(millis(20), 1),
        });
        for _ in 0..200 {
            fixture.read().await.unwrap();
        }
        let started = Instant::now();
        assert_eq!(fixture.execute().await.unwrap().parts.status, status);
        assert!(started.elapsed() < millis(110), "{:?}", started.elapsed());
        assert_eq!(fixture.counters().hedges, 1);
        fixture.assert_nothing_is_held();
    }
}

#[tokio::test(start_paused = true)]
async fn ranges_and_listings_are_not_hedged() {
    let fixture = fixture(|number, _| Behaviour::Answer(millis(if number < 500 { 20 } else { 1_000 }), 1));
    for _ in 0..200 {
        for operation in UpstreamOperation::ALL {
            fixture.service.execute(get(), &context(operation)).await.unwrap();
        }
    }
    let hedged = fixture.counters.snapshot().into_iter().filter(|it| it.hedges > 0).map(|it| it.operation);
    let expected = [UpstreamOperation::Get, UpstreamOperation::Head, UpstreamOperation::Probe];
    assert_eq!(hedged.collect::<Vec<_>>(), expected);
}

#[tokio::test(start_paused = true)]
async fn failures_before_the_first_byte_are_retried() {
    let failures = [
        Behaviour::Reset(millis(1)),
        Behaviour::Status(millis(1), 500, None, ""),
        Behaviour::Status(millis(1), 503, Some(1), ""),
        Behaviour::Parts(100, vec![]),
    ];
    for failure in failures {
        let case = format!("{failure:?}");
        let fixture =
            fixture(move |number, _| if number < 2 { failure.clone() } else { Behaviour::Answer(millis(1), 9) });
        assert_eq!(fixture.read().await.unwrap().len(), 9, "{case}");
        assert_eq!((fixture.store.sent(), fixture.counters().retries), (3, 2), "{case}");
        fixture.assert_nothing_is_held();
    }
}

#[tokio::test(start_paused = true)]
async fn final_answers_are_not_retried() {
    for status in [304, 400, 401, 403, 404, 405, 410, 412, 416] {
        let fixture = fixture(move |_, _| Behaviour::Status(millis(1), status, None, ""));
        assert_eq!(fixture.execute().await.unwrap().parts.status, status);
        assert_eq!(fixture.store.sent(), 1, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_bucket_is_not_a_missing_object() {
    for (code, kind) in [("NoSuchKey", FailureKind::Missing), ("NoSuchBucket", FailureKind::Unavailable)] {
        let document = if code == "NoSuchKey" {
            "<Error><Code>NoSuchKey</Code></Error>"
        } else {
            "<Error><Code>NoSuchBucket</Code></Error>"
        };
        let fixture = fixture(move |_, _| Behaviour::Status(millis(1), 404, None, document));
        let response = fixture.execute().await.unwrap();
        assert_eq!((response.parts.status, response.failure.unwrap().kind), (StatusCode::NOT_FOUND, kind));
        assert_eq!((response.document, fixture.store.sent()), (Bytes::from_static(document.as_bytes()), 1));
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_document_is_bounded() {
    #[derive(Debug)]
    struct Endless;
    #[async_trait]
    impl HttpService for Endless {
        async fn call(&self, _request: HttpRequest) -> Result<HttpResponse, HttpError> {
            let parts = stream::repeat_with(|| Ok(Frame::data(Bytes::from_static(&[b'a', 0xFF]))));
            Ok(http::Response::builder().status(404).body(HttpResponseBody::new(StreamBody::new(parts))).unwrap())
        }
    }
    let settings = UpstreamSettings { timeout: TIMEOUT, hedge: true };
    let (bucket, counters) = (Arc::new(UpstreamBucket::new(64)), Arc::new(UpstreamCounters::new("test")));
    let service = UpstreamService::new(Endless, settings, bucket, counters);
    let response = service.execute(get(), &context(UpstreamOperation::Get)).await.unwrap();
    assert_eq!((response.failure.unwrap().kind, response.document.len()), (FailureKind::Missing, 16 << 10));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stalls_ends_with_a_timeout_and_a_slow_reader_does_not() {
    let stalls = |number| match number {
        0 => Behaviour::Parts(300, vec![(millis(1), 100), (Duration::from_secs(11), 200)]),
        1 => {
            Behaviour::Parts(300, vec![(millis(1), 100), (Duration::from_secs(9), 100), (Duration::from_secs(9), 100)])
        }
        _ => Behaviour::Parts(200, vec![(millis(1), 100), (millis(1), 100)]),
    };
    let fixture = fixture(move |number, _| stalls(number));
    let started = Instant::now();
    let failure = fixture.read().await.unwrap_err();
    assert_eq!((failure.kind, started.elapsed()), (FailureKind::Timeout, millis(10_001)));
    assert_eq!(fixture.read().await.unwrap().len(), 300, "every part arrives in time");
    let mut body = fixture.call().await.unwrap().body;
    for _ in 0..2 {
        sleep(Duration::from_secs(60)).await;
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), 100);
    }
    assert!(body.frame().await.is_none());
    fixture.assert_nothing_is_held();
}

#[tokio::test(start_paused = true)]
async fn a_body_of_the_wrong_length_ends_with_an_error() {
    let fixture = fixture(|number, _| match number {
        0 => Behaviour::Parts(300, vec![(millis(1), 100), (millis(1), 100)]),
        _ => Behaviour::Parts(150, vec![(millis(1), 100), (millis(1), 100)]),
    });
    for kind in [FailureKind::Truncated, FailureKind::BadAnswer] {
        let mut body = fixture.call().await.unwrap().body;
        let error = loop {
            match body.frame().await.unwrap() {
                Ok(frame) => assert_eq!(frame.into_data().unwrap().len(), 100),
                Err(error) => break error,
            }
        };
        assert_eq!(UpstreamFailure::of_transport(&error).kind, kind);
        // The body still exists.
        fixture.assert_nothing_is_held();
        assert!(body.frame().await.is_none());
    }
    let counters = fixture.counters();
    assert_eq!(counters.broken_bodies.iter().map(|(_, count)| count).sum::<u64>(), 2);
    assert_eq!(counters.retries, 0, "bytes were passed on");
    fixture.assert_nothing_is_held();
}

#[tokio::test(start_paused = true)]
async fn no_answer_in_time_is_a_timeout_and_the_deadline_of_the_caller_counts() {
    let fixture = fixture(|_, _| Behaviour::Hang);
    let started = Instant::now();
    assert_eq!(fixture.read().await.unwrap_err().kind, FailureKind::Timeout);
    assert_eq!((started.elapsed(), fixture.store.sent()), (TIMEOUT, 1));
    let impatient = UpstreamContext { deadline: Instant::now() + millis(3_000), ..context(UpstreamOperation::Get) };
    let started = Instant::now();
    assert_eq!(fixture.service.execute(get(), &impatient).await.unwrap_err().kind, FailureKind::Timeout);
    assert_eq!(started.elapsed(), millis(3_000));
}

#[tokio::test(start_paused = true)]
async fn extreme_times_cause_no_panic() {
    let settings = UpstreamSettings { timeout: Duration::MAX, hedge: true };
    let fixture = fixture_with(64, settings, |_, _| Behaviour::Status(millis(1), 503, Some(u64::MAX), ""));
    assert_eq!(fixture.read().await.unwrap_err().kind, FailureKind::Throttled);
    let deadline = Instant::now().checked_sub(Duration::from_secs(1)).unwrap_or_else(Instant::now);
    let late = UpstreamContext { deadline, ..context(UpstreamOperation::Get) };
    assert_eq!(fixture.service.execute(get(), &late).await.unwrap_err().kind, FailureKind::Throttled);
    fixture.assert_nothing_is_held();
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_retries_shares_the_count_of_retries() {
    let fixture = fixture(|_, _| Behaviour::Parts(300, vec![(millis(1), 100)]));
    let context = context(UpstreamOperation::Get);
    let mut attempts = 0;
    loop {
        attempts += 1;
        let response = fixture.service.execute(get(), &context).await.unwrap();
        let error = response.body.collect().await.unwrap_err();
        if !fixture.service.wait_to_retry(&UpstreamFailure::of_transport(&error), &context).await {
            break;
        }
    }
    assert_eq!((attempts, fixture.store.sent(), fixture.counters().retries), (3, 3, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn threads_that_cancel_at_random_lose_no_permit() {
    let fixture = Arc::new(fixture_with(16, UpstreamSettings { timeout: TIMEOUT, hedge: true }, |number, others| {
        assert!(others <= 16, "{others}");
        let time = Duration::from_micros(100 + permille(number));
        match permille(number) {
            0..50 => Behaviour::Status(time, 503, None, ""),
            50..100 => Behaviour::Reset(time),
            100..150 => Behaviour::Parts(100, vec![(time, 50), (time, 50)]),
            _ => Behaviour::Answer(time, 100),
        }
    }));
    let tasks: Vec<_> = (0..64)
        .map(|user| {
            let fixture = Arc::clone(&fixture);
            tokio::spawn(async move {
                for round in 0..100 {
                    let patience = Duration::from_micros(random(user * 1_000 + round) % 8_000);
                    let _ = timeout(patience, fixture.read()).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    fixture.assert_nothing_is_held();
    let counters = fixture.counters();
    assert_eq!(counters.results.iter().map(|(_, count)| count).sum::<u64>(), fixture.store.sent());
    assert_eq!(counters.requests, fixture.store.sent());
    // As many permits as the limit are free, and no more.
    let limit = fixture.upstream.limit.snapshot().limit;
    sleep(Duration::from_secs(2)).await;
    let permits: Vec<_> = std::iter::from_fn(|| fixture.upstream.limit.try_acquire()).collect();
    assert_eq!(permits.len(), limit);
}

#[tokio::test(start_paused = true)]
async fn a_long_body_or_a_reader_that_pauses_gives_its_permit_back_before_it_is_read() {
    let fixture = fixture(|number, _| {
        if number == 0 { Behaviour::Parts(9 << 20, vec![(millis(1), 100)]) } else { Behaviour::Answer(millis(1), 100) }
    });
    let long = fixture.call().await.unwrap();
    fixture.assert_nothing_is_held();
    let (short, other) = (fixture.call().await.unwrap(), fixture.call().await.unwrap());
    assert_eq!(fixture.upstream.limit.snapshot().in_flight, 2);
    other.permit.release();
    assert_eq!(fixture.upstream.limit.snapshot().in_flight, 1);
    assert_eq!(other.body.collect().await.unwrap().to_bytes().len(), 100);
    // The permit of a response may outlive its body.
    let UpstreamResponse { body, permit, .. } = short;
    drop((long, body));
    fixture.assert_nothing_is_held();
    drop(permit);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_held_after_a_drop_at_any_point() {
    // Waiting, sending, hedging, reading a document, waiting to retry, reading a body: each has its await points.
    let behaviours: Vec<Behaviour> = vec![
        Behaviour::Answer(millis(15), 5_000),
        Behaviour::Answer(millis(500), 5_000),
        Behaviour::Status(millis(15), 503, Some(1), "<Code>SlowDown</Code>"),
        Behaviour::Reset(millis(15)),
        Behaviour::Parts(300, vec![(millis(15), 100), (millis(15), 100), (millis(15), 100)]),
        Behaviour::Parts(300, vec![(millis(15), 100), (millis(15), 100)]),
        Behaviour::Hang,
    ];
    for behaviour in behaviours {
        let case = format!("{behaviour:?}");
        let is_probed = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let probed = Arc::clone(&is_probed);
        let fixture = fixture_with(4, UpstreamSettings { timeout: TIMEOUT, hedge: true }, move |_, _| {
            if probed.load(Ordering::Relaxed) { behaviour.clone() } else { Behaviour::Answer(millis(10), 100) }
        });
        for _ in 0..100 {
            fixture.read().await.unwrap();
        }
        is_probed.store(true, Ordering::Relaxed);
        // Drops the read at every step of 3 ms, first while others hold all permits, then alone.
        for crowd in [4, 0] {
            for steps in 0..60 {
                let others: Vec<_> = (0..crowd).map(|_| fixture.execute()).collect();
                let mut others = Box::pin(futures_util::future::join_all(others));
                let _ = timeout(Duration::ZERO, &mut others).await;
                let _ = timeout(millis(3 * steps), fixture.read()).await;
                drop(others);
                fixture.assert_nothing_is_held();
                assert_eq!(fixture.store.in_flight.load(Ordering::Relaxed), 0, "{case}");
                // Ends a pause.
                sleep(Duration::from_secs(2)).await;
            }
        }
        let counters = fixture.counters();
        let ended: u64 = counters.results.iter().map(|(_, count)| count).sum();
        assert_eq!((ended, counters.requests), (fixture.store.sent(), fixture.store.sent()), "{case}");
    }
}

/// Polls a future at most `polls` times without letting time pass.
fn poll_times<F: Future>(future: F, polls: usize) -> bool {
    let mut future = pin!(future);
    let mut context = Context::from_waker(std::task::Waker::noop());
    (0..polls).any(|_| future.as_mut().poll(&mut context).is_ready())
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_polled_and_dropped_leaves_nothing() {
    let fixture = fixture(|_, _| Behaviour::Answer(millis(10), 100));
    for polls in 0..5 {
        assert!(!poll_times(fixture.read(), polls));
        fixture.assert_nothing_is_held();
    }
    assert_eq!(fixture.store.sent(), 4);
}

#[tokio::test(start_paused = true)]
async fn containers_in_a_bucket_count_their_own_waiting_requests_and_those_that_were_held_back() {
    let busy = Arc::new(fixture_with(2, UpstreamSettings { timeout: TIMEOUT, hedge: false }, |_, _| {
        Behaviour::Answer(Duration::from_secs(1), 100)
    }));
    let counters = Arc::new(UpstreamCounters::new("another test"));
    let service = UpstreamService::new(
        busy.store.clone(),
        UpstreamSettings { timeout: TIMEOUT, hedge: false },
        Arc::clone(&busy.upstream),
        Arc::clone(&counters),
    );
    let other = Arc::new(Fixture {
        store: busy.store.clone(),
        upstream: Arc::clone(&busy.upstream),
        counters: Arc::clone(&counters),
        service,
    });
    let read = |fixture: &Arc<Fixture>| {
        let fixture = Arc::clone(fixture);
        tokio::spawn(async move { fixture.read().await.map(drop) })
    };
    let mut reads: Vec<_> = (0..2).map(|_| read(&busy)).collect();
    tokio::task::yield_now().await;
    reads.extend((0..5).map(|_| read(&other)));
    sleep(millis(500)).await;
    assert_eq!((busy.service.waiting(), other.service.waiting()), (0, 5));
    let soon = UpstreamContext { deadline: Instant::now() + millis(100), ..context(UpstreamOperation::Get) };
    other.service.execute(get(), &soon).await.unwrap_err();
    assert_eq!((busy.counters.held_back(), other.counters.held_back()), (0, 1));
    for read in reads {
        read.await.unwrap().unwrap();
    }
    assert_eq!((busy.service.waiting(), other.service.waiting()), (0, 0));
    busy.assert_nothing_is_held();
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_read_on_needs_a_permit_but_does_not_wait_for_the_end_of_a_pause() {
    let fixture = fixture_with(1, UpstreamSettings { timeout: TIMEOUT, hedge: false }, |_, _| {
        Behaviour::Parts(200, vec![(millis(10), 100), (millis(10), 100)])
    });
    let first = fixture.call().await.unwrap();
    first.permit.release();
    let second = fixture.call().await.unwrap();
    let failure = first.permit.hold(Instant::now() + millis(100)).await.unwrap_err();
    assert_eq!((failure.kind, fixture.service.waiting()), (FailureKind::Throttled, 0));
    second.permit.release();
    fixture.upstream.limit.try_acquire().unwrap().throttled(Some(Duration::from_secs(5)));
    let started = Instant::now();
    first.permit.hold(started + TIMEOUT).await.unwrap();
    assert_eq!((started.elapsed(), fixture.upstream.limit.snapshot().in_flight), (Duration::ZERO, 1));
    assert_eq!(first.body.collect().await.unwrap().to_bytes().len(), 200);
    drop(second);
    fixture.assert_nothing_is_held();
}
