//! The threads that serve connections: one for each core, each with its own event loop.
//!
//! A connection stays on its thread. There is no work stealing, so no thread wakes up to look for work. Compared with a
//! runtime that steals work, small responses take 8 % less time, and the 99th percentile of the latency is lower
//! (docs/PERFORMANCE.md). Slow work runs elsewhere: on the CPU pool, on threads that may block, or, for documents, on a
//! runtime of their own. If two clients on one thread receive large responses, they share one core, as with nginx.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Context;
use std::time::Duration;

use futures_util::FutureExt as _;
use scopeguard::ScopeGuard;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

use crate::runtime::allocator;

/// Maximum number of threads that wait for the disk to read the viewer's files; further reads queue up.
const MAX_BLOCKING_THREADS: usize = 64;

/// Number of tasks that a thread polls before it checks its sockets again. One poll may take a millisecond.
const EVENT_INTERVAL: u32 = 16;

/// A pool of threads that serve connections. They end when this is dropped, even if they still serve some.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    workers: Vec<Worker>,
    /// Index of the worker that gets the next connection if several have the fewest connections.
    next_worker: AtomicUsize,
}

#[derive(Debug)]
struct Worker {
    handle: Handle,
    /// Each connection of this worker holds a clone, so the strong count is the number of connections plus one.
    load: Arc<()>,
    /// Dropped to end the thread.
    _stop: oneshot::Sender<()>,
}

impl WorkerPool {
    /// Starts `count` threads, at least one.
    ///
    /// # Errors
    /// Returns an error if the system has no more threads or descriptors.
    pub(crate) fn start(count: usize) -> io::Result<Self> {
        let count = count.max(1);
        let workers = (0..count).map(|_| Worker::start()).collect::<io::Result<_>>()?;
        Ok(Self { workers, next_worker: AtomicUsize::new(0) })
    }

    /// Runs the future that serves one connection on the thread with the fewest connections.
    pub(super) fn spawn(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let start = self.next_worker.fetch_add(1, Ordering::Relaxed);
        let count = self.workers.len();
        let candidates = (0..count).filter_map(|offset| self.workers.get(start.wrapping_add(offset) % count));
        let Some(worker) = candidates.min_by_key(|worker| Arc::strong_count(&worker.load)) else { return };
        let load = Arc::clone(&worker.load);
        // An async block would store the future of the connection twice.
        worker.handle.spawn(connection.map(move |()| drop(load)));
    }
}

impl Worker {
    fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            // Blocking jobs do not belong on these runtimes.
            .max_blocking_threads(1)
            .event_interval(EVENT_INTERVAL)
            // New connections and wake-ups from other threads are in the global queue, which is polled often.
            .global_queue_interval(2)
            .thread_name("n5-server")
            .on_thread_park(allocator::collect_thread_heap)
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        let (stop_sender, stop_receiver) = oneshot::channel();
        std::thread::Builder::new().name("n5-server".to_owned()).spawn(move || {
            let _ended = runtime.block_on(stop_receiver);
            // A read that hangs in storage must not keep the process alive.
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, load: Arc::default(), _stop: stop_sender })
    }
}

/// Starts the runtime that makes documents and reads the viewer's files, with `count` threads, at least one. It is
/// separate from the threads that serve connections, so that no client waits for another client's large document.
/// Dropping the guard does not wait for the threads: a read that hangs in storage must not keep the process alive.
///
/// # Errors
/// Returns an error if the system has no more threads or descriptors.
pub(crate) fn start_document_runtime(count: usize) -> io::Result<ScopeGuard<Runtime, fn(Runtime)>> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(count.max(1))
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .thread_keep_alive(Duration::MAX)
        .thread_name("n5-documents")
        .on_thread_park(allocator::collect_thread_heap)
        .enable_all()
        .build()?;
    // Starts the first blocking thread, which never ends. Later, the system may be unable to start a thread.
    drop(runtime.spawn_blocking(|| ()));
    Ok(scopeguard::guard(runtime, Runtime::shutdown_background))
}

/// Schedules this task to run again after all other tasks that are ready.
pub(super) fn schedule_yield(context: &mut Context<'_>) {
    // The first poll is pending and registers the waker with the runtime.
    let _ = pin!(tokio::task::yield_now()).poll(context);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_goes_to_the_worker_with_the_fewest_connections() {
        let workers = WorkerPool::start(3).unwrap();
        let loads = || workers.workers.iter().map(|worker| Arc::strong_count(&worker.load) - 1).collect::<Vec<_>>();
        let mut ends = Vec::new();
        for _ in 0..6 {
            let (end_sender, end_receiver) = oneshot::channel::<()>();
            workers.spawn(async { drop(end_receiver.await) });
            ends.push(end_sender);
        }
        assert_eq!(loads(), [2, 2, 2]);
        drop(ends.drain(..1));
        while loads().iter().sum::<usize>() > 5 {
            tokio::task::yield_now().await;
        }
        let (end_sender, end_receiver) = oneshot::channel::<()>();
        workers.spawn(async { drop(end_receiver.await) });
        assert_eq!(loads(), [2, 2, 2]);
        drop(end_sender);
    }

    #[tokio::test]
    async fn connections_end_with_the_worker_threads() {
        let workers = WorkerPool::start(2).unwrap();
        let (alive_sender, closed) = oneshot::channel::<()>();
        workers.spawn(async move {
            let _alive = alive_sender;
            std::future::pending::<()>().await;
        });
        drop(workers);
        assert!(closed.await.is_err());
    }
}
