//! The buckets and the counters of all remote containers of this process. Buckets are shared by containers, and counters
//! outlive the reload of a container.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::bucket::UpstreamBucket;
use super::counters::{OperationSnapshot, UpstreamCounters, UpstreamOperation};
use crate::telemetry::metrics;

/// Buckets that are in use, by address and maximum number of requests in flight.
static BUCKETS: Mutex<BTreeMap<(String, usize), Weak<UpstreamBucket>>> = Mutex::new(BTreeMap::new());

/// All remote containers since the start, by name.
static CONTAINERS: Mutex<BTreeMap<String, RegisteredContainer>> = Mutex::new(BTreeMap::new());

/// A remote container that is or was served.
#[derive(Debug)]
struct RegisteredContainer {
    counters: Arc<UpstreamCounters>,
    bucket: Weak<UpstreamBucket>,
}

/// Returns the state of the bucket at `address`, which containers with the same limit share.
pub(in crate::store::remote) fn shared_bucket(address: &str, max_concurrency: usize) -> Arc<UpstreamBucket> {
    let mut buckets = BUCKETS.lock().unwrap_or_else(PoisonError::into_inner);
    buckets.retain(|_, bucket| bucket.strong_count() > 0);
    let key = (address.to_owned(), max_concurrency);
    if let Some(bucket) = buckets.get(&key).and_then(Weak::upgrade) {
        return bucket;
    }
    let bucket = Arc::new(UpstreamBucket::new(max_concurrency));
    buckets.insert(key, Arc::downgrade(&bucket));
    bucket
}

/// Returns the counters of the container with this name, which sends its requests to `bucket` from now on.
pub(in crate::store::remote) fn register(container: &str, bucket: &Arc<UpstreamBucket>) -> Arc<UpstreamCounters> {
    let mut containers = CONTAINERS.lock().unwrap_or_else(PoisonError::into_inner);
    let registered = containers.entry(container.to_owned()).or_insert_with(|| RegisteredContainer {
        counters: Arc::new(UpstreamCounters::new(container)),
        bucket: Weak::new(),
    });
    registered.bucket = Arc::downgrade(bucket);
    Arc::clone(&registered.counters)
}

/// Sets the metrics of the requests to stores.
pub fn record_upstream_metrics() {
    for (name, container) in &*CONTAINERS.lock().unwrap_or_else(PoisonError::into_inner) {
        // Each operation has more than twenty series.
        for operation in container.counters.snapshot().into_iter().filter(|operation| operation.requests > 0) {
            let op = operation.operation.name();
            for (result, count) in operation.results {
                metrics::upstream_requests(name, op, result.name(), count);
            }
            for (kind, count) in operation.broken_bodies {
                metrics::upstream_broken_bodies(name, op, kind.name(), count);
            }
            metrics::upstream_bytes(name, op, operation.bytes);
            metrics::upstream_retries(name, op, operation.retries);
            let lost = operation.hedges.saturating_sub(operation.hedges_won);
            metrics::upstream_hedges(name, op, operation.hedges_won, lost);
        }
        metrics::upstream_held_back(name, container.counters.held_back());
        let Some(bucket) = container.bucket.upgrade() else { continue };
        let limit = bucket.limit.snapshot();
        metrics::upstream_bucket(name, limit.limit, limit.in_flight, limit.waiting, limit.pause);
    }
}

/// Writes a line to the log for each remote container: its requests to the store and the bytes of their responses, which
/// providers bill.
pub fn log_upstream_costs() {
    for (name, container) in &*CONTAINERS.lock().unwrap_or_else(PoisonError::into_inner) {
        let operations = container.counters.snapshot();
        let requests: u64 = operations.iter().map(OperationSnapshot::sent).sum();
        let bytes: u64 = operations.iter().map(|operation| operation.bytes).sum();
        let of = |operation: UpstreamOperation| operations.iter().find(|counts| counts.operation == operation);
        let requests_of = |operation| of(operation).map_or(0, OperationSnapshot::sent);
        tracing::info!(
            container = name,
            requests,
            bytes,
            get = requests_of(UpstreamOperation::Get),
            get_bytes = of(UpstreamOperation::Get).map_or(0, |counts| counts.bytes),
            get_range = requests_of(UpstreamOperation::GetRange),
            get_range_bytes = of(UpstreamOperation::GetRange).map_or(0, |counts| counts.bytes),
            head = requests_of(UpstreamOperation::Head),
            probe = requests_of(UpstreamOperation::Probe),
            list = requests_of(UpstreamOperation::List),
            list_bytes = of(UpstreamOperation::List).map_or(0, |counts| counts.bytes),
            "requests to the store since the start"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_in_a_bucket_share_its_state_while_one_of_them_is_served() {
        let address = "https://bucket.example/registry";
        let first = shared_bucket(address, 8);
        assert!(Arc::ptr_eq(&first, &shared_bucket(address, 8)));
        assert!(!Arc::ptr_eq(&first, &shared_bucket(address, 9)));
        assert!(!Arc::ptr_eq(&first, &shared_bucket("https://bucket.example/other", 8)));
        let weak = Arc::downgrade(&first);
        drop(first);
        shared_bucket(address, 8);
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn the_counters_of_a_container_outlive_its_reload() {
        let bucket = shared_bucket("https://bucket.example/counters", 8);
        let counters = register("counted by a test", &bucket);
        assert!(Arc::ptr_eq(&counters, &register("counted by a test", &bucket)));
    }
}
