//! Metrics of what happens very often, found once: a search of the recorder by name and labels takes as long as the
//! smallest answers themselves.

use std::time::Duration;

use metrics::{Counter, Histogram, counter};

use super::{CACHE_REQUESTS, Cache, HTTP_RESPONSE_BYTES, Lookup, duration, http_request};

/// Methods and statuses of the answers that [`Answers`] records without a search.
const FREQUENT: [(&str, u16); 6] =
    [("GET", 200), ("GET", 304), ("GET", 404), ("HEAD", 200), ("HEAD", 304), ("HEAD", 404)];

/// What is recorded of every answer of one route, found once: a search of the recorder by name and labels for each
/// takes as long as the smallest answers themselves.
pub struct Answers {
    route: &'static str,
    durations: [Histogram; FREQUENT.len()],
    bytes: Counter,
}

impl Answers {
    /// The answers of `route`, in the recorder installed now.
    pub fn new(route: &'static str) -> Self {
        Self {
            route,
            durations: FREQUENT.map(|(method, status)| duration(method, route, status)),
            bytes: counter!(HTTP_RESPONSE_BYTES, "route" => route),
        }
    }

    /// A request was answered to the end, with so many bytes of body: [`http_request`] and
    /// [`http_response_bytes`](super::http_response_bytes).
    pub fn record(&self, method: &'static str, status: u16, elapsed: Duration, bytes: u64) {
        match FREQUENT.iter().position(|known| *known == (method, status)).and_then(|n| self.durations.get(n)) {
            Some(histogram) => histogram.record(elapsed),
            None => http_request(method, self.route, status, elapsed),
        }
        self.bytes.increment(bytes);
    }
}

/// [`cache_requests`](super::cache_requests) of one cache, found once.
#[derive(Clone)]
pub struct Lookups([Counter; Lookup::ALL.len()]);

impl Lookups {
    /// Those of `cache`, in the recorder installed now.
    pub fn new(cache: Cache) -> Self {
        let counter = |result: Lookup| counter!(CACHE_REQUESTS, "cache" => cache.name(), "result" => result.name());
        Self([Lookup::Hit, Lookup::Miss, Lookup::Stale, Lookup::Absent].map(counter))
    }

    /// So many entries were looked up with that result.
    pub fn count(&self, result: Lookup, count: u64) {
        let [hit, miss, stale, absent] = &self.0;
        let counter = match result {
            Lookup::Hit => hit,
            Lookup::Miss => miss,
            Lookup::Stale => stale,
            Lookup::Absent => absent,
        };
        counter.increment(count);
    }
}

impl std::fmt::Debug for Lookups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lookups")
    }
}
