//! The CPU lane: as many jobs at once as there are cores, off the threads that serve connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// As many threads as cores, for jobs alone: were they shared with those who wait for a disk, one disk that hangs would
/// hold up all decoding.
#[derive(Debug)]
struct Threads(Option<Runtime>);

impl Threads {
    fn start(count: usize) -> std::io::Result<Self> {
        Ok(Self(Some(Builder::new_current_thread().max_blocking_threads(count).thread_name("n5-cpu").build()?)))
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

    #[test]
    fn a_disk_that_hangs_holds_up_no_job() {
        let runtime = Builder::new_current_thread().max_blocking_threads(1).enable_all().build().unwrap();
        let (end, is_to_end) = std::sync::mpsc::channel::<()>();
        runtime.block_on(async {
            let cpu = Cpu::new(1);
            #[expect(clippy::disallowed_methods, reason = "as the store has it")]
            let disk = tokio::task::spawn_blocking(move || is_to_end.recv());
            let job = tokio::time::timeout(std::time::Duration::from_secs(20), cpu.run(|| 7));
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
