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
    flights: &SingleFlight<K>,
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
        let mut waiter = flights.join(key);
        let (started, wait_timer) =
            (Instant::now(), (!waiter.is_first()).then(|| QueueWaitTimer::begin(QueueLabel::Load)));
        let task = waiter.spawn(ClientId::current().scope(trace::in_current_scope(work)));
        let result = waiter.wait_for(task).await;
        if wait_timer.is_some() {
            trace::record("wait", QueueLabel::Load.name(), started.elapsed());
        }
        result.map_err(|error| ReadError::Internal(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn only_later_requests_count_as_waiting_and_only_while_they_wait() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _local = ::metrics::set_default_local_recorder(&recorder);
        let assert_waiting = |count: u32| {
            let text = recorder.handle().render();
            let line = format!("n5_queue_waiting{{queue=\"load\"}} {count}");
            assert!(text.lines().any(|actual| actual == line) || count == 0 && !text.contains("load"), "{text}");
        };
        let (flights, (finish, finished)) = (SingleFlight::default(), oneshot::channel::<u32>());
        let mut first = run_single_flight(&flights, "block", finished).boxed();
        assert!((&mut first).now_or_never().is_none());
        assert_waiting(0);
        let start_pending = |key| run_single_flight(&flights, key, std::future::pending::<()>()).boxed();
        let (mut second, mut unrelated) = (start_pending("block"), start_pending("another block"));
        assert!((&mut second).now_or_never().is_none() && (&mut unrelated).now_or_never().is_none());
        assert_waiting(1);
        drop(second);
        assert_waiting(0);
        assert!(recorder.handle().render().contains("n5_queue_wait_duration_seconds_count{queue=\"load\"} 1"));
        finish.send(5).unwrap();
        assert_eq!(first.await.unwrap(), Ok(5));
    }
}
