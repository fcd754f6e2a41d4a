//! The threads that serve connections: one for each core, each with its own queue of events.
//!
//! A connection stays with its thread. Nothing is stolen, so no thread is woken to look for work: small answers gain
//! 8 %, and the slowest of a hundred waits less (docs/PERFORMANCE.md). What takes its time runs elsewhere: on the CPU lane, in
//! threads that may wait, and documents in a runtime of their own. What a thread cannot share is sending: two clients of one thread have one
//! core between them while they take large answers, as with nginx.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

use crate::allocator;

/// Threads that wait for the disk with the viewer's files; what comes beyond queues up.
const WAITING_THREADS: usize = 64;

/// Tasks that a thread polls before it looks again which sockets are ready: a task may take a millisecond.
const TASKS: u32 = 16;

/// The threads; they end when this is dropped, whatever they serve then.
#[derive(Debug)]
pub(super) struct Workers {
    workers: Vec<Worker>,
    /// Whose turn it is among equals.
    turn: AtomicUsize,
}

#[derive(Debug)]
struct Worker {
    handle: Handle,
    connections: Arc<AtomicUsize>,
    /// Dropped to end the thread.
    _stop: oneshot::Sender<()>,
}

impl Workers {
    /// Starts `count` threads, at least one.
    ///
    /// # Errors
    /// When the system has no more threads or descriptors.
    pub(super) fn start(count: usize) -> io::Result<Self> {
        let count = count.max(1);
        let workers = (0..count).map(|_| Worker::start()).collect::<io::Result<_>>()?;
        Ok(Self { workers, turn: AtomicUsize::new(0) })
    }

    /// Runs what serves one connection in the thread that has the fewest.
    pub(super) fn spawn(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let from = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = self.workers.len();
        let in_turn = (0..count).filter_map(|at| self.workers.get(from.wrapping_add(at) % count));
        let Some(worker) = in_turn.min_by_key(|worker| worker.connections.load(Ordering::Relaxed)) else { return };
        let open = Open::new(&worker.connections);
        // An async block would have room for the connection twice.
        worker.handle.spawn(connection.map(move |()| drop(open)));
    }
}

impl Worker {
    fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            // Nothing that waits belongs here.
            .max_blocking_threads(1)
            .event_interval(TASKS)
            // New connections and what other threads have done stand in a queue of their own.
            .global_queue_interval(2)
            .thread_name("n5-server")
            .on_thread_park(allocator::collect)
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        std::thread::Builder::new().name("n5-server".to_owned()).spawn(move || {
            let _ended = runtime.block_on(stopped);
            // A read that hangs in the storage must not keep the process.
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, connections: Arc::default(), _stop: stop })
    }
}

/// The threads that make documents and read the viewer's files. As many as serve connections: they share the cores, and
/// nobody waits for one who makes a large one.
#[derive(Debug)]
pub(super) struct Documents(Option<Runtime>);

impl Documents {
    /// Starts `count` threads, at least one.
    ///
    /// # Errors
    /// When the system has no more threads or descriptors.
    pub(super) fn start(count: usize) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(count.max(1))
            .max_blocking_threads(WAITING_THREADS)
            .thread_keep_alive(Duration::MAX)
            .thread_name("n5-documents")
            .on_thread_park(allocator::collect)
            .enable_all()
            .build()?;
        // The first that waits now, and it stays: later there may be none to be had.
        drop(runtime.spawn_blocking(|| ()));
        Ok(Self(Some(runtime)))
    }

    pub(super) fn handle(&self) -> Option<Handle> {
        self.0.as_ref().map(|runtime| runtime.handle().clone())
    }
}

impl Drop for Documents {
    fn drop(&mut self) {
        // A read that hangs in the storage must not keep the process.
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// A connection, counted as long as it is open.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_go_where_the_fewest_are() {
        let workers = Workers::start(3).unwrap();
        let open =
            || workers.workers.iter().map(|worker| worker.connections.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let mut ends = Vec::new();
        for _ in 0..6 {
            let (end, ended) = oneshot::channel::<()>();
            workers.spawn(async { drop(ended.await) });
            ends.push(end);
        }
        assert_eq!(open(), [2, 2, 2]);
        drop(ends.drain(..1));
        while open().iter().sum::<usize>() > 5 {
            tokio::task::yield_now().await;
        }
        let (end, ended) = oneshot::channel::<()>();
        workers.spawn(async { drop(ended.await) });
        assert_eq!(open(), [2, 2, 2]);
        drop(end);
    }

    #[tokio::test]
    async fn what_is_served_ends_with_the_threads() {
        let workers = Workers::start(2).unwrap();
        let (alive, dead) = oneshot::channel::<()>();
        workers.spawn(async move {
            let _alive = alive;
            std::future::pending::<()>().await;
        });
        drop(workers);
        assert!(dead.await.is_err());
    }
}
