//! A pool of threads for CPU-bound jobs, apart from the threads that serve connections. At most one job per core runs
//! at once. High-priority jobs have their own lane and take precedence over low-priority jobs. Without this lane, a
//! plane of cached blocks took 0.5 s instead of 1 ms while eight clients requested blocks with xz compression.
//!
//! If the number of threads of a lane is equal to the number of cores, each thread is pinned to one core. The reason is
//! that a slice starts one job for each core at the same moment. Without pinning, the kernel often puts two of these
//! jobs on one core and leaves another core idle. The kernel looks for an idle core only under low load, and does not
//! move a thread that ran within the last half millisecond. With pinning, a plane took 2.1 ms instead of 2.5 ms.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::runtime::{Builder, Runtime};

use crate::runtime::allocator;
use crate::runtime::fair_queue::{ClientId, ClientQuota, CostBasis, FairPermit, FairSemaphore};
use crate::telemetry::metrics::{QueueLabel, QueueWaitTimer};
use crate::telemetry::trace;

/// Maximum input of a high-priority job in bytes. A general-purpose compressor takes ten milliseconds for this input.
const HIGH_PRIORITY_MAX_BYTES: usize = 256 << 10;

/// Additional niceness of the threads for low-priority jobs. On a contended core, such a thread gets a tenth of the
/// time of another thread. On an idle core, it gets all of the time.
const NICENESS: i32 = 10;

/// Time for which a job has its core before it yields to jobs of other clients.
const TIME_SLICE: Duration = Duration::from_millis(10);

/// Maximum number of paused jobs for each core. Each paused job keeps a thread, so further jobs do not yield their
/// cores.
const MAX_PAUSED_PER_CORE: usize = 4;

/// Time for which idle threads are kept. They never end, because a new thread would not know which core is free.
const KEEP_ALIVE_FOREVER: Duration = Duration::MAX;

/// Time for which idle spare threads are kept: 34 years, because the system may be unable to start threads later. Not
/// [`KEEP_ALIVE_FOREVER`], because threads with that value are pinned to cores.
const SPARE_KEEP_ALIVE: Duration = Duration::from_secs(1 << 30);

/// Runs CPU-bound jobs. Cheap to clone; clones share the lanes.
#[derive(Debug, Clone)]
pub struct CpuPool {
    cores: usize,
    high: Arc<PriorityLane>,
    low: Arc<PriorityLane>,
}

/// Priority of a job, according to how long it may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// For a few milliseconds of work on data in memory, such as pasting cached blocks or making small documents.
    High,
    /// For longer work, such as decoding blocks or encoding images. All other work of the process takes precedence.
    Low,
}

impl Priority {
    /// Returns the priority of a job that processes this many bytes at the speed of a general-purpose compressor.
    pub fn for_input_bytes(bytes: usize) -> Self {
        if bytes <= HIGH_PRIORITY_MAX_BYTES { Self::High } else { Self::Low }
    }
}

/// Threads for jobs of one priority. Calls that block on a disk do not run on them. Otherwise a single disk that hangs
/// would stop all decoding.
#[derive(Debug)]
struct PriorityLane {
    core_permits: FairSemaphore,
    /// One thread for each core. `None` if the system could not start a thread; the caller's runtime then runs the
    /// jobs.
    threads: Option<Runtime>,
    /// Threads for jobs that run while paused jobs keep their threads.
    spare_threads: Option<Runtime>,
    /// Number of jobs that have yielded their core and wait to continue.
    ///
    /// Relaxed ordering is enough, because the counter guards no other data. A job increments it before it releases its
    /// core. The mutex of `core_permits` makes the increment visible to the job that gets the core.
    paused_jobs: Arc<AtomicUsize>,
}

/// A job's permit for its core, which it can yield for a while.
#[derive(Debug)]
pub struct CoreLease {
    /// `None` if the job does not share its core.
    permit: RefCell<Option<FairPermit>>,
    running_since: Cell<Instant>,
    paused_jobs: Arc<AtomicUsize>,
    max_paused: usize,
}

impl CoreLease {
    /// Creates a lease for a job that does not share its core.
    pub fn unshared() -> Self {
        Self::new(None, Arc::default(), 0)
    }

    fn new(permit: Option<FairPermit>, paused_jobs: Arc<AtomicUsize>, max_paused: usize) -> Self {
        Self { permit: RefCell::new(permit), running_since: Cell::new(Instant::now()), paused_jobs, max_paused }
    }

    /// Yields the core to waiting jobs of other clients if this job has had the core for some time. Returns when it is
    /// this job's turn again. Jobs that may take long should call this regularly.
    pub fn yield_if_contended(&self) {
        let mut permit = self.permit.borrow_mut();
        if self.running_since.get().elapsed() < TIME_SLICE || !permit.as_ref().is_some_and(FairPermit::is_contended) {
            return;
        }
        // Counted before the core is released: the job that gets the core must know that this thread is still occupied.
        if self.paused_jobs.fetch_add(1, Ordering::Relaxed) < self.max_paused {
            *permit = permit.take().map(FairPermit::blocking_yield);
        }
        self.paused_jobs.fetch_sub(1, Ordering::Relaxed);
        self.running_since.set(Instant::now());
    }
}

/// Returns the numbers of the cores that this process may use.
fn allowed_cores() -> Vec<usize> {
    sched_getaffinity(None)
        .map_or_else(|_| Vec::new(), |set| (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

/// Pins the calling thread to a core. If the system refuses, the thread stays unpinned.
fn pin_to_core(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::debug!(%error, core, "cannot pin a thread to its core");
    }
}

/// Raises the niceness of the calling thread, so that other threads take precedence.
fn raise_niceness() {
    // On Linux, every thread has its own niceness.
    let result = getpriority_process(None).and_then(|now| setpriority_process(None, now.saturating_add(NICENESS)));
    if let Err(error) = result {
        tracing::debug!(%error, "cannot raise the niceness of a thread");
    }
}

/// Starts a pool of up to `count` threads. Threads that never end are each pinned to a core, if there are `count`
/// cores.
fn start_threads(count: usize, priority: Priority, keep_alive: Duration) -> std::io::Result<Runtime> {
    let started = AtomicUsize::new(0);
    let cores = allowed_cores();
    let name = match priority {
        Priority::High => "n5-cpu-short",
        Priority::Low => "n5-cpu",
    };
    let runtime = Builder::new_current_thread()
        .max_blocking_threads(count)
        .thread_name(name)
        .thread_keep_alive(keep_alive)
        .on_thread_start(move || {
            // Relaxed ordering is enough, because each thread only needs a different number.
            let number = started.fetch_add(1, Ordering::Relaxed);
            if keep_alive == KEEP_ALIVE_FOREVER
                && cores.len() == count
                && let Some(core) = cores.get(number)
            {
                pin_to_core(*core);
            }
            if priority == Priority::Low {
                raise_niceness();
            }
        })
        .build()?;
    // Starts the first thread now. The runtime panics if it has no thread and the system cannot start one.
    drop(runtime.spawn_blocking(|| ()));
    Ok(runtime)
}

/// The error for a job that panicked, or that the runtime dropped during shutdown.
#[derive(Debug, Clone, thiserror::Error)]
#[error("a CPU job did not complete: {0}")]
pub struct JobDied(String);

impl CpuPool {
    /// Creates a pool that runs up to `cores` jobs of each priority at once, and at least one.
    pub fn new(cores: usize) -> Self {
        let cores = cores.max(1);
        let lane = |priority| Arc::new(PriorityLane::new(cores, priority));
        Self { cores, high: lane(Priority::High), low: lane(Priority::Low) }
    }

    /// Returns the maximum number of concurrent jobs of one priority.
    pub fn cores(&self) -> usize {
        self.cores
    }

    /// Returns the number of running jobs of both priorities.
    pub fn running(&self) -> usize {
        self.high.core_permits.taken() + self.low.core_permits.taken()
    }

    /// Returns true if a job of this priority is waiting for a core.
    pub fn has_waiters(&self, priority: Priority) -> bool {
        self.lane(priority).core_permits.has_waiters()
    }

    fn lane(&self, priority: Priority) -> &PriorityLane {
        match priority {
            Priority::High => &self.high,
            Priority::Low => &self.low,
        }
    }

    /// Runs `job` when a core is free and its flow is next. A flow is identified by the client for which the calling
    /// task works and by `flow_number`, which stands for a dataset. Thus neither a client with many jobs nor a dataset
    /// with a slow codec delays the jobs of other flows for long. Dropping the future before the job starts cancels the
    /// job. A job that has started runs to completion and keeps its core until then.
    ///
    /// # Errors
    /// Returns [`JobDied`] if the job panics.
    pub async fn run<T: Send + 'static>(
        &self,
        priority: Priority,
        flow_number: u64,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JobDied> {
        self.run_cooperative(priority, flow_number, move |_| job()).await
    }

    /// Like [`Self::run`], but for a job that may take long and yields its core to other jobs while it runs.
    ///
    /// # Errors
    /// Returns [`JobDied`] if the job panics.
    pub async fn run_cooperative<T: Send + 'static>(
        &self,
        priority: Priority,
        flow_number: u64,
        job: impl FnOnce(&CoreLease) -> T + Send + 'static,
    ) -> Result<T, JobDied> {
        let lane = self.lane(priority);
        let flow = ClientId::current().flow(flow_number);
        let permit = if let Some(permit) = lane.core_permits.try_acquire(flow, 1) {
            permit
        } else {
            let wait_timer = QueueWaitTimer::begin(QueueLabel::Cpu);
            let permit = lane.core_permits.acquire(flow, 1).await;
            trace::finish_wait(wait_timer);
            permit
        };
        let paused_jobs = Arc::clone(&lane.paused_jobs);
        let max_paused = self.cores.saturating_mul(MAX_PAUSED_PER_CORE);
        let job = move || {
            let lease = CoreLease::new(Some(permit), paused_jobs, max_paused);
            let output = job(&lease);
            // Another job may use the core while this thread's heap is collected.
            drop(lease);
            allocator::collect_thread_heap();
            output
        };
        let job = trace::job_in_current_scope(job);
        #[expect(clippy::disallowed_methods, reason = "CPU work belongs here")]
        let running = match lane.threads() {
            Some(threads) => threads.spawn_blocking(job),
            None => tokio::task::spawn_blocking(job),
        };
        running.await.map_err(|join| JobDied(join.to_string()))
    }
}

impl PriorityLane {
    fn new(cores: usize, priority: Priority) -> Self {
        let threads = start_threads(cores, priority, KEEP_ALIVE_FOREVER).ok();
        let spare_threads =
            start_threads(cores.saturating_mul(1 + MAX_PAUSED_PER_CORE), priority, SPARE_KEEP_ALIVE).ok();
        Self {
            core_permits: FairSemaphore::new(cores, ClientQuota::UNLIMITED, CostBasis::Time),
            threads,
            spare_threads,
            paused_jobs: Arc::default(),
        }
    }

    /// Returns the threads that run a job with a permit for a core.
    fn threads(&self) -> Option<&Runtime> {
        let is_short_of_threads = self.paused_jobs.load(Ordering::Relaxed) > 0;
        if is_short_of_threads { self.spare_threads.as_ref() } else { self.threads.as_ref() }
    }
}

impl Drop for PriorityLane {
    fn drop(&mut self) {
        // The drop must not wait for the threads, because it may happen where blocking is not allowed.
        for threads in [self.threads.take(), self.spare_threads.take()].into_iter().flatten() {
            threads.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn has_waiters_is_true_while_a_job_waits() {
        let cpu = CpuPool::new(1);
        let (start_sender, start_receiver) = std::sync::mpsc::channel();
        let (end_sender, end_receiver) = std::sync::mpsc::channel::<()>();
        let pool = cpu.clone();
        let first = tokio::spawn(async move {
            let job = move || {
                start_sender.send(()).unwrap();
                end_receiver.recv().unwrap();
            };
            pool.run(Priority::Low, 0, job).await
        });
        start_receiver.recv().unwrap();
        assert!(!cpu.has_waiters(Priority::Low));
        let mut second = Box::pin(cpu.run(Priority::Low, 0, || ()));
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(cpu.has_waiters(Priority::Low));
        drop(second);
        assert!(!cpu.has_waiters(Priority::Low));
        end_sender.send(()).unwrap();
        first.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_long_job_yields_to_other_clients_and_then_continues() {
        let cpu = CpuPool::new(1);
        let (begin_sender, begin_receiver) = std::sync::mpsc::channel();
        let done = Arc::new(AtomicUsize::new(0));
        let (pool, done_count) = (cpu.clone(), Arc::clone(&done));
        let long = ClientId::new(1).scope(async move {
            let job = move |lease: &CoreLease| {
                begin_sender.send(()).unwrap();
                let deadline = Instant::now() + Duration::from_secs(20);
                while done_count.load(Ordering::SeqCst) < 3 && Instant::now() < deadline {
                    lease.yield_if_contended();
                    std::thread::sleep(Duration::from_millis(1));
                }
                done_count.load(Ordering::SeqCst)
            };
            pool.run_cooperative(Priority::Low, 0, job).await.unwrap()
        });
        let long = tokio::spawn(long);
        tokio::task::yield_now().await;
        begin_receiver.recv().unwrap();
        // A job of the same client waits until the long job is done.
        let same_client = ClientId::new(1).scope(cpu.run(Priority::Low, 0, || ()));
        let mut own = Box::pin(same_client);
        assert!(futures_util::poll!(&mut own).is_pending());
        for _ in 0..3 {
            let done = Arc::clone(&done);
            let job = move || done.fetch_add(1, Ordering::SeqCst);
            ClientId::new(2).scope(cpu.run(Priority::Low, 0, job)).await.unwrap();
            assert!(futures_util::poll!(&mut own).is_pending());
        }
        assert_eq!(long.await.unwrap(), 3);
        own.await.unwrap();
        assert_eq!(cpu.running(), 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_more_jobs_run_than_there_are_cores() {
        let cpu = CpuPool::new(2);
        let (running, max_running) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let jobs = (0..20).map(|_| {
            let (running, max_running) = (Arc::clone(&running), Arc::clone(&max_running));
            cpu.run(Priority::Low, 0, move || {
                max_running.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
            })
        });
        futures_util::future::try_join_all(jobs).await.unwrap();
        assert!(max_running.load(Ordering::SeqCst) <= 2);
    }

    /// Returns the cores on which each of `count` threads of a lane may run.
    async fn cores_of_threads(count: usize) -> Vec<Vec<usize>> {
        let (cpu, barrier) = (CpuPool::new(count), Arc::new(std::sync::Barrier::new(count)));
        let jobs = (0..count).map(|_| {
            let barrier = Arc::clone(&barrier);
            cpu.run(Priority::Low, 0, move || {
                barrier.wait();
                allowed_cores()
            })
        });
        futures_util::future::try_join_all(jobs).await.unwrap()
    }

    #[tokio::test]
    async fn each_thread_is_pinned_to_a_core_if_there_are_as_many() {
        let allowed = allowed_cores();
        let mut cores = cores_of_threads(allowed.len()).await.concat();
        cores.sort_unstable();
        assert_eq!(cores, allowed);
        assert_eq!(cores_of_threads(allowed.len() + 1).await, vec![allowed.clone(); allowed.len() + 1]);
    }

    #[test]
    fn a_hanging_disk_delays_no_job() {
        let runtime = Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap();
        let (end_sender, end_receiver) = std::sync::mpsc::channel::<()>();
        runtime.block_on(async {
            let cpu = CpuPool::new(1);
            #[expect(clippy::disallowed_methods, reason = "stands for a blocking call of a store")]
            let disk = tokio::task::spawn_blocking(move || end_receiver.recv());
            let job = tokio::time::timeout(Duration::from_secs(20), cpu.run(Priority::Low, 0, || 7));
            assert_eq!(job.await.unwrap().unwrap(), 7);
            drop(end_sender);
            assert!(disk.await.unwrap().is_err());
        });
    }

    #[tokio::test]
    async fn short_jobs_do_not_wait_for_long_jobs_which_have_a_higher_niceness() {
        let cpu = CpuPool::new(1);
        let (end_sender, end_receiver) = std::sync::mpsc::channel::<()>();
        let pool = cpu.clone();
        let long = tokio::spawn(async move {
            let job = move || {
                let niceness = getpriority_process(None).unwrap();
                end_receiver.recv().unwrap();
                niceness
            };
            pool.run(Priority::Low, 0, job).await
        });
        let short = cpu.run(Priority::High, 0, || getpriority_process(None).unwrap());
        let short = tokio::time::timeout(Duration::from_secs(20), short).await.unwrap().unwrap();
        end_sender.send(()).unwrap();
        assert_eq!(long.await.unwrap().unwrap(), (short + NICENESS).min(19));
    }

    #[tokio::test]
    async fn a_panicking_job_returns_an_error_and_frees_its_core() {
        let cpu = CpuPool::new(1);
        assert!(cpu.run(Priority::Low, 0, || panic!("broken")).await.is_err());
        assert_eq!(cpu.run(Priority::Low, 0, || 7).await.unwrap(), 7);
    }
}
