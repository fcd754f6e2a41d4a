//! Every metric: names, units, labels, and one small function for each. Only the facade; without a recorder these do
//! nothing. Units are base units (bytes, seconds), counters end in `_total`. No label holds a dataset's name.

use std::time::Duration;

use metrics::{Counter, Histogram, SharedString, Unit, counter, gauge, histogram};

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observations in buckets.
    Histogram,
}

/// What `/metrics` says about a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Description {
    /// Name, with the unit.
    pub name: &'static str,
    /// Behaviour.
    pub kind: Kind,
    /// Unit; `None` for plain counts.
    pub unit: Option<Unit>,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// One sentence.
    pub help: &'static str,
}

const HTTP_DURATION: &str = "n5_http_request_duration_seconds";
const HTTP_RESPONSE_BYTES: &str = "n5_http_response_bytes_total";
const HTTP_IN_FLIGHT: &str = "n5_http_requests_in_flight";
const REQUESTS_SHED: &str = "n5_requests_shed_total";
const BROKEN_ANSWERS: &str = "n5_broken_answers_total";
const CACHE_REQUESTS: &str = "n5_cache_requests_total";
const CACHE_BYTES: &str = "n5_cache_bytes";
const CACHE_CAPACITY: &str = "n5_cache_capacity_bytes";
const CACHE_EVICTIONS: &str = "n5_cache_evictions_total";
const STORE_DURATION: &str = "n5_store_request_duration_seconds";
const STORE_READ_BYTES: &str = "n5_store_read_bytes_total";
const BLOCKS_DECODED: &str = "n5_blocks_decoded_total";
const DECODE_DURATION: &str = "n5_decode_duration_seconds";
const DECODE_ERRORS: &str = "n5_decode_errors_total";
const BUDGET_BYTES: &str = "n5_budget_bytes";
const BUDGET_CAPACITY: &str = "n5_budget_capacity_bytes";
const ACCESS_REFUSALS: &str = "n5_access_refusals_total";
const ACCESS_RELOAD_FAILURES: &str = "n5_access_reload_failures_total";
const BUILD_INFO: &str = "n5_build_info";

const fn row(
    name: &'static str,
    kind: Kind,
    unit: Option<Unit>,
    labels: &'static [&'static str],
    help: &'static str,
) -> Description {
    Description { name, kind, unit, labels, help }
}

/// Every metric of this server.
#[rustfmt::skip] // a table
pub const NAMES: &[Description] = {
    use Kind::{Counter, Gauge, Histogram};
    const BYTES: Option<Unit> = Some(Unit::Bytes);
    const SECONDS: Option<Unit> = Some(Unit::Seconds);
    &[
        row(HTTP_DURATION, Histogram, SECONDS, &["method", "route", "status"], "Time from a request's headers to the end of its answer; its count is the number of requests."),
        row(HTTP_RESPONSE_BYTES, Counter, BYTES, &["route"], "Bytes of answers' bodies that were sent."),
        row(HTTP_IN_FLIGHT, Gauge, None, &[], "Requests being answered."),
        row(REQUESTS_SHED, Counter, None, &["reason"], "Requests refused with 503 because a bound was reached."),
        row(BROKEN_ANSWERS, Counter, None, &[], "Streamed answers broken off by a fault after the first byte."),
        row(ACCESS_REFUSALS, Counter, None, &["reason"], "Requests refused because of who asked, or because a token told nobody."),
        row(ACCESS_RELOAD_FAILURES, Counter, None, &["what"], "Times that tokens or an issuer's keys could not be read; those before stay in force."),
        row(CACHE_REQUESTS, Counter, None, &["cache", "result"], "Look-ups: hit, miss (not cached), stale (cached, but the file changed), absent (the file does not exist)."),
        row(CACHE_BYTES, Gauge, BYTES, &["cache"], "Memory of cached entries."),
        row(CACHE_CAPACITY, Gauge, BYTES, &["cache"], "Most memory of cached entries."),
        row(CACHE_EVICTIONS, Counter, None, &["cache"], "Entries dropped because the cache was full."),
        row(STORE_DURATION, Histogram, SECONDS, &["op", "backend"], "Time of one request to storage."),
        row(STORE_READ_BYTES, Counter, BYTES, &["backend"], "Bytes read from storage."),
        row(BLOCKS_DECODED, Counter, None, &["codec"], "Blocks decoded."),
        row(DECODE_DURATION, Histogram, SECONDS, &["codec"], "Time to decode one block, without waiting for a thread."),
        row(DECODE_ERRORS, Counter, None, &["codec"], "Blocks that could not be decoded."),
        row(BUDGET_BYTES, Gauge, BYTES, &["budget"], "Memory taken from a budget."),
        row(BUDGET_CAPACITY, Gauge, BYTES, &["budget"], "Memory of a budget."),
        row(BUILD_INFO, Gauge, None, &["version"], "Always 1; the label is the version."),
    ]
};

/// Declares an enum whose variants are the values of a label.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The label's text.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}

label!(
    /// Label `cache`.
    Cache {
        /// Decoded blocks.
        Decoded = "decoded",
        /// Files as stored.
        Stored = "stored",
        /// Parsed attributes.
        Attributes = "attributes",
    }
);

label!(
    /// Label `result` of a look-up in a cache.
    Lookup {
        /// Cached and current.
        Hit = "hit",
        /// Not cached.
        Miss = "miss",
        /// Cached, but the file changed.
        Stale = "stale",
        /// The file does not exist.
        Absent = "absent",
    }
);

label!(
    /// Label `budget`.
    Budget {
        /// `limits.slice_budget`
        Slice = "slice",
        /// `limits.decode_budget`
        Decode = "decode",
        /// `limits.transfer_budget`
        Transfer = "transfer",
    }
);

label!(
    /// Label `reason` of a refused request.
    Shed {
        /// `limits.concurrent_requests` were being answered.
        Requests = "requests",
        /// Waited `limits.budget_wait` for memory for a slice.
        SliceBudget = "slice_budget",
        /// Waited `limits.budget_wait` for memory for decoding.
        DecodeBudget = "decode_budget",
        /// Waited `limits.budget_wait` for memory for stored blocks.
        TransferBudget = "transfer_budget",
    }
);

label!(
    /// Label `op` of a request to storage.
    StoreOperation {
        /// Size and time of a file.
        Head = "head",
        /// A whole file.
        Get = "get",
        /// A part of a file.
        GetRange = "get_range",
        /// The entries of a directory.
        List = "list",
    }
);

/// Tells the installed recorder what every metric means, and shows those with known labels from the start, so that a
/// rate over them is 0 and not missing.
pub fn describe() {
    for row in NAMES {
        match (row.kind, row.unit) {
            (Kind::Counter, None) => metrics::describe_counter!(row.name, row.help),
            (Kind::Counter, Some(unit)) => metrics::describe_counter!(row.name, unit, row.help),
            (Kind::Gauge, None) => metrics::describe_gauge!(row.name, row.help),
            (Kind::Gauge, Some(unit)) => metrics::describe_gauge!(row.name, unit, row.help),
            (Kind::Histogram, None) => metrics::describe_histogram!(row.name, row.help),
            (Kind::Histogram, Some(unit)) => metrics::describe_histogram!(row.name, unit, row.help),
        }
    }
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    requests_in_flight(0);
    counter!(BROKEN_ANSWERS).increment(0);
    for reason in Shed::ALL {
        counter!(REQUESTS_SHED, "reason" => reason.name()).increment(0);
    }
    for cache in Cache::ALL {
        for result in Lookup::ALL {
            counter!(CACHE_REQUESTS, "cache" => cache.name(), "result" => result.name()).increment(0);
        }
        counter!(CACHE_EVICTIONS, "cache" => cache.name()).increment(0);
    }
    for budget in Budget::ALL {
        gauge!(BUDGET_BYTES, "budget" => budget.name()).increment(0.0);
    }
}

/// Shows the counters of these codecs from the start, as [`describe`] does for labels that are known here.
pub fn describe_codecs(names: impl IntoIterator<Item = &'static str>) {
    for name in names {
        counter!(BLOCKS_DECODED, "codec" => name).increment(0);
        counter!(DECODE_ERRORS, "codec" => name).increment(0);
    }
}

/// A request was answered to the end. `method` and `route` come from small fixed sets: the route is the template,
/// `unmatched` without one; an unusual method is `other`.
pub fn http_request(method: &'static str, route: &'static str, status: u16, elapsed: Duration) {
    duration(method, route, status).record(elapsed);
}

fn duration(method: &'static str, route: &'static str, status: u16) -> Histogram {
    let status = SharedString::from_owned(status.to_string());
    histogram!(HTTP_DURATION, "method" => method, "route" => route, "status" => status)
}

/// Bytes of an answer's body were sent.
pub fn http_response_bytes(route: &'static str, bytes: u64) {
    counter!(HTTP_RESPONSE_BYTES, "route" => route).increment(bytes);
}

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

    /// A request was answered to the end, with so many bytes of body: [`http_request`] and [`http_response_bytes`].
    pub fn record(&self, method: &'static str, status: u16, elapsed: Duration, bytes: u64) {
        match FREQUENT.iter().position(|known| *known == (method, status)).and_then(|n| self.durations.get(n)) {
            Some(histogram) => histogram.record(elapsed),
            None => http_request(method, self.route, status, elapsed),
        }
        self.bytes.increment(bytes);
    }
}

/// Requests that are being answered.
pub fn requests_in_flight(count: usize) {
    gauge!(HTTP_IN_FLIGHT).set(as_f64(count as u64));
}

/// A request was refused with 503.
pub fn request_shed(reason: Shed) {
    counter!(REQUESTS_SHED, "reason" => reason.name()).increment(1);
}

/// A streamed answer was broken off.
pub fn broken_answer() {
    counter!(BROKEN_ANSWERS).increment(1);
}

/// A request was refused because of who asked; the reasons are a small fixed set.
pub fn access_refused(reason: &'static str) {
    counter!(ACCESS_REFUSALS, "reason" => reason).increment(1);
}

/// `tokens` or `keys` could not be read again.
pub fn access_reload_failed(what: &'static str) {
    counter!(ACCESS_RELOAD_FAILURES, "what" => what).increment(1);
}

/// So many entries were looked up in a cache with that result.
pub fn cache_requests(cache: Cache, result: Lookup, count: u64) {
    if count > 0 {
        counter!(CACHE_REQUESTS, "cache" => cache.name(), "result" => result.name()).increment(count);
    }
}

/// [`cache_requests`] of one cache, found once.
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

/// Memory of a cache's entries now and at most, in bytes.
pub fn cache_bytes(cache: Cache, bytes: u64, capacity_bytes: u64) {
    gauge!(CACHE_BYTES, "cache" => cache.name()).set(as_f64(bytes));
    gauge!(CACHE_CAPACITY, "cache" => cache.name()).set(as_f64(capacity_bytes));
}

/// A full cache dropped an entry.
pub fn cache_eviction(cache: Cache) {
    counter!(CACHE_EVICTIONS, "cache" => cache.name()).increment(1);
}

/// Storage answered, well or not.
pub fn store_request(operation: StoreOperation, backend: &'static str, elapsed: Duration) {
    histogram!(STORE_DURATION, "op" => operation.name(), "backend" => backend).record(elapsed);
}

/// Bytes came from storage.
pub fn store_read_bytes(backend: &'static str, bytes: u64) {
    counter!(STORE_READ_BYTES, "backend" => backend).increment(bytes);
}

/// A block was decoded. `codec` is a name of the table of codecs.
pub fn block_decoded(codec: &'static str, elapsed: Duration) {
    counter!(BLOCKS_DECODED, "codec" => codec).increment(1);
    histogram!(DECODE_DURATION, "codec" => codec).record(elapsed);
}

/// A block could not be decoded; an unknown codec is `unknown`, for names in attributes are anyone's.
pub fn decode_error(codec: &'static str) {
    counter!(DECODE_ERRORS, "codec" => codec).increment(1);
}

/// Size of a budget, in bytes.
pub fn budget_capacity(budget: Budget, bytes: u64) {
    gauge!(BUDGET_CAPACITY, "budget" => budget.name()).set(as_f64(bytes));
}

/// Memory was taken from a budget.
pub fn budget_taken(budget: Budget, bytes: u64) {
    gauge!(BUDGET_BYTES, "budget" => budget.name()).increment(as_f64(bytes));
}

/// Memory was given back to a budget.
pub fn budget_returned(budget: Budget, bytes: u64) {
    gauge!(BUDGET_BYTES, "budget" => budget.name()).decrement(as_f64(bytes));
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float; exact below 2^53 bytes")]
fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    fn rendered(calls: impl FnOnce()) -> String {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, calls);
        recorder.handle().render()
    }

    fn call_everything() {
        describe();
        describe_codecs(["gzip"]);
        http_request("GET", "/slice/{dataset}", 200, Duration::from_millis(1));
        http_response_bytes("/slice/{dataset}", 10);
        Answers::new("stored").record("GET", 200, Duration::from_millis(1), 10);
        requests_in_flight(0);
        Lookups::new(Cache::Stored).count(Lookup::Hit, 1);
        request_shed(Shed::Requests);
        broken_answer();
        access_refused("no_token");
        access_reload_failed("tokens");
        cache_requests(Cache::Stored, Lookup::Hit, 1);
        cache_bytes(Cache::Stored, 1, 2);
        cache_eviction(Cache::Stored);
        store_request(StoreOperation::Get, "local", Duration::from_millis(1));
        store_read_bytes("local", 10);
        block_decoded("gzip", Duration::from_millis(1));
        decode_error("gzip");
        budget_capacity(Budget::Slice, 100);
        budget_taken(Budget::Slice, 30);
        budget_returned(Budget::Slice, 10);
    }

    #[test]
    fn the_table_is_what_is_recorded() {
        let text = rendered(call_everything);
        let types: BTreeSet<_> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        assert_eq!(types, NAMES.iter().map(|row| row.name).collect());
        for row in NAMES {
            let samples = |line: &&str| line.starts_with(row.name) && line.contains(['{', ' ']);
            for line in text.lines().filter(samples) {
                for label in row.labels {
                    assert!(line.contains(&format!("{label}=\"")), "{line} lacks {label}");
                }
            }
            assert!(text.contains(&format!("# HELP {} {}", row.name, row.help)), "{}", row.name);
        }
    }

    #[test]
    fn names_carry_their_units() {
        for Description { name, kind, unit, .. } in NAMES {
            let stem = name.strip_suffix("_total").unwrap_or(name);
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            assert_eq!(stem.ends_with("_bytes"), *unit == Some(Unit::Bytes), "{name}");
            assert_eq!(stem.ends_with("_seconds"), *unit == Some(Unit::Seconds), "{name}");
        }
    }

    #[test]
    fn known_labels_show_before_the_first_event() {
        let text = rendered(describe);
        assert!(text.contains("n5_cache_requests_total{cache=\"attributes\",result=\"stale\"} 0"), "{text}");
        assert!(text.contains("n5_requests_shed_total{reason=\"slice_budget\"} 0"));
        assert!(text.contains(&format!("n5_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"))));
    }

    #[test]
    fn a_budget_in_use_is_what_was_taken_and_not_returned() {
        let text = rendered(call_everything);
        assert!(text.contains("n5_budget_bytes{budget=\"slice\"} 20"), "{text}");
        assert!(text.contains("n5_http_requests_in_flight 0"), "{text}");
    }
}
