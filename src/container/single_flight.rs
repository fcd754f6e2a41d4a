//! Single flights of work that several requests may need at the same time.

use std::future::Future;
use std::hash::Hash;
use std::time::Instant;

use super::ReadError;
use crate::fair_queue::{ClientId, SingleFlight};
use crate::metrics::{QueueLabel, QueueWaitTimer};
use crate::trace;

/// Single flight: runs `work` once for all requests that want `key`, in a task of its own. The task gets its resources
/// as soon as it is the turn of any of the requests' clients. It keeps running when one of the requests is cancelled,
/// and is aborted with the last one. Requests that join a running flight count as waiting. The part of `work` that
/// other requests wait for must be wrapped in [`lead`](crate::fair_queue::lead).
///
/// # Errors
/// [`ReadError::Internal`] when the task panics.
pub(super) fn run_single_flight<K, T, F>(
    joints: &SingleFlight<K>,
    key: K,
    work: F,
) -> impl Future<Output = Result<T, ReadError>> + use<'_, K, T, F>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    // Boxed before any future captures it. Otherwise the callers and each of the outer futures would reserve space for
    // it twice.
    let work = Box::pin(work);
    async move {
        let mut joined = joints.join(key);
        let (since, waiting) = (Instant::now(), (!joined.is_first()).then(|| QueueWaitTimer::begin(QueueLabel::Load)));
        let task = joined.spawn(ClientId::current().scope(trace::in_current_scope(work)));
        let done = joined.wait_for(task).await;
        if waiting.is_some() {
            trace::record("wait", QueueLabel::Load.name(), since.elapsed());
        }
        done.map_err(|join| ReadError::Internal(join.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn only_who_finds_it_begun_counts_as_waiting_and_no_longer_than_that() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _local = ::metrics::set_default_local_recorder(&recorder);
        let waiting = |count: u32| {
            let text = recorder.handle().render();
            let line = format!("n5_queue_waiting{{queue=\"load\"}} {count}");
            assert!(text.lines().any(|told| told == line) || count == 0 && !text.contains("load"), "{text}");
        };
        let (joints, (finish, finished)) = (SingleFlight::default(), oneshot::channel::<u32>());
        let mut first = run_single_flight(&joints, "block", finished).boxed();
        assert!((&mut first).now_or_never().is_none());
        waiting(0);
        let other = |key| run_single_flight(&joints, key, std::future::pending::<()>()).boxed();
        let (mut second, mut apart) = (other("block"), other("another block"));
        assert!((&mut second).now_or_never().is_none() && (&mut apart).now_or_never().is_none());
        waiting(1);
        drop(second);
        waiting(0);
        assert!(recorder.handle().render().contains("n5_queue_wait_duration_seconds_count{queue=\"load\"} 1"));
        finish.send(5).unwrap();
        assert_eq!(first.await.unwrap(), Ok(5));
    }
}
