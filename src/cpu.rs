//! The CPU lane: as many jobs at once as there are cores, off the threads that serve connections.
//!
//! Where it has as many threads as the process has cores, each stays on one. A slice begins as many jobs as cores in the
//! same moment, and left to itself the kernel often puts two of them on one core and leaves the other idle: it looks for
//! an idle core only where not much has run lately, and moves nothing that ran within half a millisecond. A plane that took
//! 2.5 ms took 2.1 so.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

/// Runs CPU-bound jobs. Cheap to clone; clones share the lane.
#[derive(Debug, Clone)]
pub struct Cpu {
    permits: Arc<Semaphore>,
    cores: usize,
    waiting: Arc<AtomicUsize>,
    /// `None` where the system had none to give; then the caller's runtime has.
    threads: Option<Arc<Threads>>,
}

/// Threads are not ended when they have nothing to do: another one would not know which core is free.
const KEPT: Duration = Duration::MAX;

/// The numbers of the cores that this process may use.
fn own_cores() -> Vec<usize> {
    sched_getaffinity(None).map_or_else(|_| Vec::new(), |set| (0..CpuSet::MAX_CPU).filter(|n| set.is_set(*n)).collect())
}

/// Keeps the calling thread on a core. Where the system refuses, it decides as ever.
fn stay_on(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::debug!(%error, core, "a thread cannot be kept on a core");
    }
}

/// As many threads as cores, for jobs alone: were they shared with those who wait for a disk, one disk that hangs would
/// hold up all decoding.
#[derive(Debug)]
struct Threads(Option<Runtime>);

impl Threads {
    fn start(count: usize) -> std::io::Result<Self> {
        let (started, cores) = (AtomicUsize::new(0), own_cores());
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(count)
            .thread_name("n5-cpu")
            .thread_keep_alive(KEPT)
            .on_thread_start(move || {
                let number = started.fetch_add(1, Ordering::Relaxed);
                if cores.len() == count
                    && let Some(core) = cores.get(number)
                {
                    stay_on(*core);
                }
            })
            .build()?;
        Ok(Self(Some(runtime)))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Where this is dropped nothing may wait.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A job that panicked, or that the runtime dropped while shutting down.
#[derive(Debug, Clone, thiserror::Error)]
#[error("a job on the CPU lane died: {0}")]
pub struct JobDied(String);

impl Cpu {
    /// A lane for `cores` jobs at once, at least one.
    pub fn new(cores: usize) -> Self {
        let cores = cores.max(1);
        let threads = Threads::start(cores).map(Arc::new).ok();
        Self { permits: Arc::new(Semaphore::new(cores)), cores, waiting: Arc::default(), threads }
    }

    /// Jobs that run at once.
    pub fn cores(&self) -> usize {
        self.cores
    }

    /// Whether somebody waits for a core.
    pub fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Runs `job` when a core is free. Dropping the future before then cancels it; a job that has
    /// begun runs to its end and keeps its core till then.
    ///
    /// # Errors
    /// [`JobDied`] when the job panics.
    pub async fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> Result<T, JobDied> {
        let waiting = Waiting::new(&self.waiting);
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|closed| JobDied(closed.to_string()))?;
        drop(waiting);
        let job = move || {
            let _permit = permit;
            job()
        };
        #[expect(clippy::disallowed_methods, reason = "CPU work belongs here")]
        let running = match self.threads.as_ref().and_then(|threads| threads.0.as_ref()) {
            Some(threads) => threads.spawn_blocking(job),
            None => tokio::task::spawn_blocking(job),
        };
        running.await.map_err(|join| JobDied(join.to_string()))
    }
}

/// One that waits for a core, or gives up.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_core_is_wanted_while_somebody_waits_for_it() {
        let cpu = Cpu::new(1);
        let (started, has_started) = std::sync::mpsc::channel();
        let (end, is_to_end) = std::sync::mpsc::channel::<()>();
        let lane = cpu.clone();
        let first = tokio::spawn(async move {
            let job = move || {
                started.send(()).unwrap();
                is_to_end.recv().unwrap();
            };
            lane.run(job).await
        });
        has_started.recv().unwrap();
        assert!(!cpu.is_wanted());
        let mut second = Box::pin(cpu.run(|| ()));
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(cpu.is_wanted());
        drop(second);
        assert!(!cpu.is_wanted());
        end.send(()).unwrap();
        first.await.unwrap().unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_more_jobs_run_than_there_are_cores() {
        let cpu = Cpu::new(2);
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let jobs = (0..20).map(|_| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            cpu.run(move || {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
            })
        });
        futures_util::future::try_join_all(jobs).await.unwrap();
        assert!(most.load(Ordering::SeqCst) <= 2);
    }

    /// The cores on which `count` threads of a lane may run.
    async fn cores_of_threads(count: usize) -> Vec<Vec<usize>> {
        let (cpu, all_there) = (Cpu::new(count), Arc::new(std::sync::Barrier::new(count)));
        let jobs = (0..count).map(|_| {
            let all_there = Arc::clone(&all_there);
            cpu.run(move || {
                all_there.wait();
                own_cores()
            })
        });
        futures_util::future::try_join_all(jobs).await.unwrap()
    }

    #[tokio::test]
    async fn each_thread_has_a_core_where_there_are_as_many() {
        let own = own_cores();
        let mut cores = cores_of_threads(own.len()).await.concat();
        cores.sort_unstable();
        assert_eq!(cores, own);
        assert_eq!(cores_of_threads(own.len() + 1).await, vec![own.clone(); own.len() + 1]);
    }

    #[test]
    fn a_disk_that_hangs_holds_up_no_job() {
        let runtime = Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap();
        let (end, is_to_end) = std::sync::mpsc::channel::<()>();
        runtime.block_on(async {
            let cpu = Cpu::new(1);
            #[expect(clippy::disallowed_methods, reason = "as the store has it")]
            let disk = tokio::task::spawn_blocking(move || is_to_end.recv());
            let job = tokio::time::timeout(Duration::from_secs(20), cpu.run(|| 7));
            assert_eq!(job.await.unwrap().unwrap(), 7);
            drop(end);
            assert!(disk.await.unwrap().is_err());
        });
    }

    #[tokio::test]
    async fn a_job_that_panics_is_an_error_and_frees_its_core() {
        let cpu = Cpu::new(1);
        assert!(cpu.run(|| panic!("broken")).await.is_err());
        assert_eq!(cpu.run(|| 7).await.unwrap(), 7);
    }
}
