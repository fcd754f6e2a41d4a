//! Cached handles to metrics of frequent events. A search of the recorder by name and labels takes as long as one of
//! the smallest responses.

use std::time::Duration;

use metrics::{Counter, Histogram, SharedString, counter, histogram};

use super::labels::{CacheLabel, LookupResult};
use super::names::{CACHE_REQUESTS, HTTP_DURATION, HTTP_RESPONSE_BYTES};

/// Methods and statuses of the responses that [`RouteMetrics`] records without a search.
const FREQUENT: [(&str, u16); 6] =
    [("GET", 200), ("GET", 304), ("GET", 404), ("HEAD", 200), ("HEAD", 304), ("HEAD", 404)];

/// Records a completed request. `method` and `route` come from small fixed sets. The route is a template, or
/// `unmatched` if there is none; an unusual method is `other`.
pub fn http_request(method: &'static str, route: &'static str, status: u16, elapsed: Duration) {
    request_duration(method, route, status).record(elapsed);
}

fn request_duration(method: &'static str, route: &'static str, status: u16) -> Histogram {
    let status = SharedString::from_owned(status.to_string());
    histogram!(HTTP_DURATION, "method" => method, "route" => route, "status" => status)
}

/// Handles to the metrics of the responses of one route. A search of the recorder by name and labels for each response
/// would take as long as one of the smallest responses.
pub struct RouteMetrics {
    route: &'static str,
    durations: [Histogram; FREQUENT.len()],
    bytes: Counter,
}

impl RouteMetrics {
    /// Creates the handles of `route` in the currently installed recorder.
    pub fn new(route: &'static str) -> Self {
        Self {
            route,
            durations: FREQUENT.map(|(method, status)| request_duration(method, route, status)),
            bytes: counter!(HTTP_RESPONSE_BYTES, "route" => route),
        }
    }

    /// Records a completed request with a response body of `bytes`, like [`http_request`] and
    /// [`http_response_bytes`](super::http_response_bytes).
    pub fn record(&self, method: &'static str, status: u16, elapsed: Duration, bytes: u64) {
        match FREQUENT.iter().position(|known| *known == (method, status)).and_then(|n| self.durations.get(n)) {
            Some(histogram) => histogram.record(elapsed),
            None => http_request(method, self.route, status, elapsed),
        }
        self.bytes.increment(bytes);
    }
}

/// Handles to the counters of [`cache_requests`](super::cache_requests) for one cache.
#[derive(Clone)]
pub struct LookupCounters([Counter; LookupResult::ALL.len()]);

impl LookupCounters {
    /// Creates the handles of `cache` in the currently installed recorder.
    pub fn new(cache: CacheLabel) -> Self {
        let counter =
            |result: LookupResult| counter!(CACHE_REQUESTS, "cache" => cache.name(), "result" => result.name());
        Self([LookupResult::Hit, LookupResult::Miss, LookupResult::Stale, LookupResult::Absent].map(counter))
    }

    /// Counts `count` look-ups with this result.
    pub fn count(&self, result: LookupResult, count: u64) {
        let [hit, miss, stale, absent] = &self.0;
        let counter = match result {
            LookupResult::Hit => hit,
            LookupResult::Miss => miss,
            LookupResult::Stale => stale,
            LookupResult::Absent => absent,
        };
        counter.increment(count);
    }
}

impl std::fmt::Debug for LookupCounters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LookupCounters")
    }
}
