//! The CPU lane: as many jobs at once as there are cores, off the threads that serve connections. Short jobs have a lane of
//! their own and go before long ones: a plane of cached blocks took 0.5 s instead of a millisecond while eight clients had
//! blocks of xz decoded.
//!
//! Where a lane has as many threads as the process has cores, each stays on one. A slice begins as many jobs as cores in the
//! same moment, and left to itself the kernel often puts two of them on one core and leaves the other idle: it looks for
//! an idle core only where not much has run lately, and moves nothing that ran within half a millisecond. A plane that took
//! 2.5 ms took 2.1 so.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::runtime::{Builder, Runtime};

use crate::fair::{Client, Cost, Most, Share, Shares};
use crate::{allocator, metrics, trace};

/// Runs CPU-bound jobs. Cheap to clone; clones share the lanes.
#[derive(Debug, Clone)]
pub struct Cpu(Arc<Lanes>);

#[derive(Debug)]
struct Lanes {
    cores: usize,
    short: Lane,
    long: Lane,
}

/// How long a job may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// A few milliseconds, with what is in memory: cached blocks pasted, small documents made.
    Short,
    /// Longer: blocks decoded, images encoded. Whatever else the process does goes before it.
    Long,
}

impl Length {
    /// Of a job that makes something of so many bytes, as fast as a general compressor does.
    pub fn of(bytes: usize) -> Self {
        if bytes <= SHORT_BYTES { Self::Short } else { Self::Long }
    }
}

/// Ten milliseconds of compressing.
const SHORT_BYTES: usize = 256 << 10;

/// By how much long jobs are nicer than the rest of the process: a tenth of its share of a core where both want it, all
/// where nobody else does.
const NICENESS: i32 = 10;

#[derive(Debug)]
struct Lane {
    shares: Shares,
    /// `None` where the system had none to give; then the caller's runtime has.
    threads: Option<Threads>,
    /// For jobs that run while others, which keep their threads, let them go first.
    spare_threads: Option<Threads>,
    /// Jobs that let others go first.
    paused: Arc<AtomicUsize>,
}

/// How long a job has its core before it lets other clients' go first.
const TURN: Duration = Duration::from_millis(10);

/// Most jobs that let others go first, for each core: each keeps a thread. Where there are more, a job keeps its core.
const PAUSED_PER_CORE: usize = 4;

/// Spare threads stay, as later there may be none to be had. Not [`KEPT`], which also keeps threads on their cores.
const SPARE_KEPT: Duration = Duration::from_secs(1 << 30);

/// A job's hold on its core, which it can give up for a while.
#[derive(Debug)]
pub struct Turn {
    core: RefCell<Option<Share>>,
    since: Cell<Instant>,
    lane: Option<Paused>,
}

#[derive(Debug)]
struct Paused {
    shares: Shares,
    client: Client,
    count: Arc<AtomicUsize>,
    most: usize,
}

impl Turn {
    /// Of a job that shares its core with nobody.
    pub fn unshared() -> Self {
        Self { core: RefCell::default(), since: Cell::new(Instant::now()), lane: None }
    }

    /// Lets jobs of other clients that wait have the core, where this one has had it for some time; goes on when it is its
    /// turn again. To be called now and then by jobs that may take long.
    pub fn give_way(&self) {
        let Some(Paused { shares, client, count, most }) = &self.lane else { return };
        if self.since.get().elapsed() < TURN || !shares.is_wanted_beside(*client) {
            return;
        }
        // Before the core is free: whoever gets it must know that this thread is not.
        if count.fetch_add(1, Ordering::Relaxed) < *most {
            let core = self.core.take();
            self.core.replace(core.map(|core| shares.lend(core)));
        }
        count.fetch_sub(1, Ordering::Relaxed);
        self.since.set(Instant::now());
    }
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

/// Lets other threads go before the calling one.
fn be_nice() {
    // On Linux every thread has its own.
    let nicer = getpriority_process(None).and_then(|now| setpriority_process(None, now.saturating_add(NICENESS)));
    if let Err(error) = nicer {
        tracing::debug!(%error, "a thread cannot be made nicer");
    }
}

/// As many threads as cores, for jobs alone: were they shared with those who wait for a disk, one disk that hangs would
/// hold up all decoding.
#[derive(Debug)]
struct Threads(Option<Runtime>);

impl Threads {
    /// Up to `count`; those that stay are each kept on a core, where there are as many.
    fn start(count: usize, length: Length, kept: Duration) -> std::io::Result<Self> {
        let (started, cores) = (AtomicUsize::new(0), own_cores());
        let name = match length {
            Length::Short => "n5-cpu-short",
            Length::Long => "n5-cpu",
        };
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(count)
            .thread_name(name)
            .thread_keep_alive(kept)
            .on_thread_start(move || {
                let number = started.fetch_add(1, Ordering::Relaxed);
                if kept == KEPT
                    && cores.len() == count
                    && let Some(core) = cores.get(number)
                {
                    stay_on(*core);
                }
                if length == Length::Long {
                    be_nice();
                }
            })
            .build()?;
        // The first one now: the runtime panics when it has none and the system gives none.
        drop(runtime.spawn_blocking(|| ()));
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
    /// Lanes for `cores` jobs of each length at once, at least one.
    pub fn new(cores: usize) -> Self {
        let cores = cores.max(1);
        Self(Arc::new(Lanes { cores, short: Lane::new(cores, Length::Short), long: Lane::new(cores, Length::Long) }))
    }

    /// Jobs of one length that run at once.
    pub fn cores(&self) -> usize {
        self.0.cores
    }

    /// Jobs that run now, of either length.
    pub fn running(&self) -> usize {
        self.0.short.shares.taken() + self.0.long.shares.taken()
    }

    /// Whether somebody waits for a core for such a job.
    pub fn is_wanted(&self, length: Length) -> bool {
        self.lane(length).shares.is_wanted()
    }

    fn lane(&self, length: Length) -> &Lane {
        match length {
            Length::Short => &self.0.short,
            Length::Long => &self.0.long,
        }
    }

    /// Runs `job` when a core is free and it is the turn of `party`, the client that the calling task works for together
    /// with this number, which stands for a dataset: neither a client with much to ask nor a slow codec keeps the others waiting. Dropping the future before then cancels it; a job that has begun
    /// runs to its end and keeps its core till then.
    ///
    /// # Errors
    /// [`JobDied`] when the job panics.
    pub async fn run<T: Send + 'static>(
        &self,
        length: Length,
        party: u64,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JobDied> {
        self.run_in_turns(length, party, move |_| job()).await
    }

    /// As [`Self::run`], for a job that may take long and lets others go first meanwhile.
    ///
    /// # Errors
    /// [`JobDied`] when the job panics.
    pub async fn run_in_turns<T: Send + 'static>(
        &self,
        length: Length,
        party: u64,
        job: impl FnOnce(&Turn) -> T + Send + 'static,
    ) -> Result<T, JobDied> {
        let lane = self.lane(length);
        let party = (Client::current(), party);
        let permit = if let Some(permit) = lane.shares.try_take(party, 1) {
            permit
        } else {
            let _measured = metrics::Waiting::begin(metrics::Queue::Cpu);
            let since = Instant::now();
            let permit = lane.shares.take(party, 1).await;
            trace::record("wait", "cpu", since.elapsed());
            permit
        };
        let paused = Paused {
            shares: lane.shares.clone(),
            client: party.0,
            count: Arc::clone(&lane.paused),
            most: self.0.cores.saturating_mul(PAUSED_PER_CORE),
        };
        let job = move || {
            let turn = Turn { core: RefCell::new(Some(permit)), since: Cell::new(Instant::now()), lane: Some(paused) };
            let made = job(&turn);
            // The next job has the core.
            drop(turn);
            allocator::collect();
            made
        };
        let job = trace::carried_job(job);
        #[expect(clippy::disallowed_methods, reason = "CPU work belongs here")]
        let running = match lane.threads().and_then(|threads| threads.0.as_ref()) {
            Some(threads) => threads.spawn_blocking(job),
            None => tokio::task::spawn_blocking(job),
        };
        running.await.map_err(|join| JobDied(join.to_string()))
    }
}

impl Lane {
    fn new(cores: usize, length: Length) -> Self {
        let threads = Threads::start(cores, length, KEPT).ok();
        let spare_threads = Threads::start(cores.saturating_mul(1 + PAUSED_PER_CORE), length, SPARE_KEPT).ok();
        Self { shares: Shares::new(cores, Most::ANY, Cost::Time), threads, spare_threads, paused: Arc::default() }
    }

    /// Those for a job that has got a core.
    fn threads(&self) -> Option<&Threads> {
        let is_short_of_threads = self.paused.load(Ordering::Relaxed) > 0;
        if is_short_of_threads { self.spare_threads.as_ref() } else { self.threads.as_ref() }
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
            lane.run(Length::Long, 0, job).await
        });
        has_started.recv().unwrap();
        assert!(!cpu.is_wanted(Length::Long));
        let mut second = Box::pin(cpu.run(Length::Long, 0, || ()));
        assert!(futures_util::poll!(&mut second).is_pending());
        assert!(cpu.is_wanted(Length::Long));
        drop(second);
        assert!(!cpu.is_wanted(Length::Long));
        end.send(()).unwrap();
        first.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_long_job_lets_those_of_other_clients_go_first_and_goes_on_after() {
        let cpu = Cpu::new(1);
        let (begun, has_begun) = std::sync::mpsc::channel();
        let done = Arc::new(AtomicUsize::new(0));
        let (lanes, seen) = (cpu.clone(), Arc::clone(&done));
        let long = Client::new(1).works(async move {
            let job = move |turn: &Turn| {
                begun.send(()).unwrap();
                let until = Instant::now() + Duration::from_secs(20);
                while seen.load(Ordering::SeqCst) < 3 && Instant::now() < until {
                    turn.give_way();
                    std::thread::sleep(Duration::from_millis(1));
                }
                seen.load(Ordering::SeqCst)
            };
            lanes.run_in_turns(Length::Long, 0, job).await.unwrap()
        });
        let long = tokio::spawn(long);
        tokio::task::yield_now().await;
        has_begun.recv().unwrap();
        // One of its own client waits until it is done.
        let own = Client::new(1).works(cpu.run(Length::Long, 0, || ()));
        let mut own = Box::pin(own);
        assert!(futures_util::poll!(&mut own).is_pending());
        for _ in 0..3 {
            let done = Arc::clone(&done);
            let job = move || done.fetch_add(1, Ordering::SeqCst);
            Client::new(2).works(cpu.run(Length::Long, 0, job)).await.unwrap();
            assert!(futures_util::poll!(&mut own).is_pending());
        }
        assert_eq!(long.await.unwrap(), 3);
        own.await.unwrap();
        assert_eq!(cpu.running(), 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_more_jobs_run_than_there_are_cores() {
        let cpu = Cpu::new(2);
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let jobs = (0..20).map(|_| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            cpu.run(Length::Long, 0, move || {
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
            cpu.run(Length::Long, 0, move || {
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
            let job = tokio::time::timeout(Duration::from_secs(20), cpu.run(Length::Long, 0, || 7));
            assert_eq!(job.await.unwrap().unwrap(), 7);
            drop(end);
            assert!(disk.await.unwrap().is_err());
        });
    }

    #[tokio::test]
    async fn short_jobs_wait_for_no_long_one_and_long_ones_are_nicer() {
        let cpu = Cpu::new(1);
        let (end, is_to_end) = std::sync::mpsc::channel::<()>();
        let lanes = cpu.clone();
        let long = tokio::spawn(async move {
            let job = move || {
                let niceness = getpriority_process(None).unwrap();
                is_to_end.recv().unwrap();
                niceness
            };
            lanes.run(Length::Long, 0, job).await
        });
        let short = cpu.run(Length::Short, 0, || getpriority_process(None).unwrap());
        let short = tokio::time::timeout(Duration::from_secs(20), short).await.unwrap().unwrap();
        end.send(()).unwrap();
        assert_eq!(long.await.unwrap().unwrap(), (short + NICENESS).min(19));
    }

    #[tokio::test]
    async fn a_job_that_panics_is_an_error_and_frees_its_core() {
        let cpu = Cpu::new(1);
        assert!(cpu.run(Length::Long, 0, || panic!("broken")).await.is_err());
        assert_eq!(cpu.run(Length::Long, 0, || 7).await.unwrap(), 7);
    }
}
