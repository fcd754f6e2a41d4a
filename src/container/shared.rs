//! Work that several requests may want at the same time.

use std::future::Future;
use std::hash::Hash;
use std::time::Instant;

use super::ReadError;
use crate::fair::{Client, Joints};
use crate::metrics::{Queue, Waiting};
use crate::trace;

/// Single flight: does `work` once for all requests that want `key`, in a task of its own, in the first turn that one of their
/// clients has. The task goes on when one of them hangs up, and ends when the last one does. Requests that find the task begun
/// count as waiting. The part of `work` that others wait for is [`leading`](crate::fair::leading).
///
/// # Errors
/// [`ReadError::Died`] when the task does.
pub(super) fn share<K, T, F>(
    joints: &Joints<K>,
    key: K,
    work: F,
) -> impl Future<Output = Result<T, ReadError>> + use<'_, K, T, F>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    // On the heap before anything holds it: the callers, and each of the futures around it, would have room for it twice.
    let work = Box::pin(work);
    async move {
        let mut joined = joints.join(key);
        let (since, waiting) = (Instant::now(), (!joined.is_first()).then(|| Waiting::begin(Queue::Load)));
        let task = joined.spawn(Client::current().works(trace::carried(work)));
        let done = joined.outcome(task).await;
        if waiting.is_some() {
            trace::record("wait", Queue::Load.name(), since.elapsed());
        }
        done.map_err(|join| ReadError::Died(join.to_string()))
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
        let (joints, (finish, finished)) = (Joints::default(), oneshot::channel::<u32>());
        let mut first = share(&joints, "block", finished).boxed();
        assert!((&mut first).now_or_never().is_none());
        waiting(0);
        let other = |key| share(&joints, key, std::future::pending::<()>()).boxed();
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
