//! Verification of a container: walks everything in it, decodes every block and reports each finding.
//!
//! A verification reads what the server would read, in the same way, and writes nothing into the container. Its memory
//! is limited to the budgets, nine pages of a listing for each level of directories, and the buffered items.

mod aggregator;
mod checks;
mod entries;
mod event;
mod finding;
mod prefetch;
mod previous_run;
mod retry;
mod walk;
mod walk_item;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::unfold;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{self, Sender};
use tokio::task::JoinHandle;

pub use event::{Checkpoint, DatasetTally, EventSink, Totals, VerifyEvent};
pub use finding::{FINDING_KINDS, Finding, FindingDescriptor, FindingKind, Severity};
pub use previous_run::PreviousRun;

use crate::cache::{GroupState, ReadError, ReadOptions};
use crate::container::{Container, EntryKind};
use crate::read;
use crate::store::{Key, Store};
use aggregator::ResultAggregator;
use previous_run::names_below;
use retry::StorageRetry;
use walk::ContainerWalker;
use walk_item::WalkItem;

/// Maximum number of directories that are read to estimate the number of blocks.
const MAX_SURVEYED_DIRECTORIES: usize = 10_000;

/// A verification of a container.
#[derive(Debug)]
pub struct Verifier {
    /// Container to verify.
    pub container: Container,
    /// Store of the container.
    pub store: Arc<dyn Store>,
    /// Groups and datasets to verify, each with everything below it.
    pub roots: Vec<Key>,
    /// True if missing blocks are errors.
    pub report_missing: bool,
    /// Time without a response from the storage after which the run ends.
    pub stall_timeout: Duration,
}

/// Outcome of a run.
#[derive(Debug)]
pub enum VerifyOutcome {
    /// Everything has been walked.
    Complete(Totals),
    /// The run was told to stop.
    Stopped(Totals),
    /// The storage gave no response for [`Verifier::stall_timeout`]. The text is the last error.
    StorageStalled(Totals, String),
}

impl VerifyOutcome {
    /// Creates the outcome of a run that ended early. `stalled` is the last error if the storage stalled, and `None` if
    /// the run was told to stop.
    fn interrupted(totals: Totals, stalled: Option<String>) -> Self {
        match stalled {
            Some(error) => Self::StorageStalled(totals, error),
            None => Self::Stopped(totals),
        }
    }
}

impl Verifier {
    /// Verifies until everything has been visited or `stop` completes. Begins where `previous_run` stopped, or at the
    /// beginning.
    ///
    /// # Errors
    /// Returns an error if the sink cannot record an event.
    pub async fn run(
        self,
        previous_run: Option<PreviousRun>,
        sink: &mut dyn EventSink,
        stop: impl Future<Output = ()>,
    ) -> io::Result<VerifyOutcome> {
        let checkpoint = previous_run.as_ref().map(|run| run.checkpoint.clone());
        let mut aggregator = ResultAggregator::new(checkpoint.clone().unwrap_or_default(), self.report_missing, sink);
        let retry = Arc::new(StorageRetry::new(Arc::clone(&self.store), self.stall_timeout));
        let mut interruption = pin!(async {
            tokio::select! {
                biased;
                () = stop => None,
                reason = retry.wait_until_given_up() => Some(reason),
            }
        });
        if let Some(previous_run) = &previous_run {
            tokio::select! {
                biased;
                // The walk has not begun, so there is no checkpoint. A run that resumes later reports the changes
                // again.
                stalled = &mut interruption => {
                    return Ok(VerifyOutcome::interrupted(previous_run.checkpoint.totals.clone(), stalled));
                }
                result = self.report_changed_datasets(&retry, &mut aggregator, previous_run) => result?,
            }
        }
        let (sender, receiver) = mpsc::channel(256);
        let walk_task = self.start_walk(&retry, checkpoint, sender);
        // Results keep the order of the walk, so that all runs give the same report, and a run can resume where another
        // stopped.
        let max_concurrent = self.container.resources().settings().cores.saturating_mul(4).max(16);
        let items = unfold(receiver, |mut receiver| async { receiver.recv().await.map(|item| (item, receiver)) });
        let mut results = pin!(items.map(|item| self.verify_item(&retry, item)).buffered(max_concurrent));
        loop {
            tokio::select! {
                biased;
                stalled = &mut interruption => {
                    walk_task.abort();
                    aggregator.emit_checkpoint()?;
                    return Ok(VerifyOutcome::interrupted(aggregator.totals(), stalled));
                }
                result = results.next() => match result {
                    Some(result) => aggregator.record(result)?,
                    None => break,
                },
            }
        }
        match walk_task.await {
            Ok(_) => Ok(VerifyOutcome::Complete(aggregator.totals())),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Starts the task that walks the container and sends its items to `items`. Begins after `checkpoint`, if there is
    /// one.
    fn start_walk(
        &self,
        retry: &Arc<StorageRetry>,
        checkpoint: Option<Checkpoint>,
        items: Sender<WalkItem>,
    ) -> JoinHandle<Result<(), SendError<()>>> {
        let walker = ContainerWalker {
            container: self.container.clone(),
            store: Arc::clone(&self.store),
            retry: Arc::clone(retry),
            items,
            report_missing: self.report_missing,
            head_of_line: Arc::new(AtomicBool::new(true)),
        };
        let start = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.root);
        let resume = checkpoint.and_then(|checkpoint| names_below(self.roots.get(start)?, &checkpoint.after));
        tokio::spawn(walker.run(self.roots.clone(), start, resume))
    }

    /// Returns a quick estimate of the number of blocks in the grids of all datasets, for the progress bar.
    pub async fn estimate_blocks(&self) -> u64 {
        let options = ReadOptions::begin();
        let mut pending = self.roots.clone();
        let mut blocks = 0_u64;
        for _ in 0..MAX_SURVEYED_DIRECTORIES {
            let Some(key) = pending.pop() else { break };
            if let Ok(group) = self.container.group(options, &key).await
                && let GroupState::Dataset(dataset) = &group.state
            {
                blocks = blocks.saturating_add(DatasetTally::of(dataset).grid_blocks);
            }
            let Ok(Some(page)) = self.container.list(options, &key, None, MAX_SURVEYED_DIRECTORIES, false).await else {
                continue;
            };
            let directories = page.entries.into_iter().filter(|entry| entry.kind != EntryKind::File);
            pending.extend(directories.filter_map(|entry| key.child(&entry.name).ok()));
        }
        blocks
    }

    /// Verifies the block of an item and returns the result. Returns every other item unchanged.
    async fn verify_item(&self, retry: &StorageRetry, item: WalkItem) -> WalkItem {
        let WalkItem::Block(dataset, position) = item else { return item };
        let attributes = &dataset.attributes;
        if !attributes.is_decodable() {
            return WalkItem::VerifiedBlock { dataset, position, lengths: None, finding: None };
        }
        let check = || {
            let options = ReadOptions::begin();
            read::check_block(&self.container, options, &dataset, &position)
        };
        let (lengths, finding) = match retry.run(check).await {
            Ok(Some(block)) => (
                Some((block.stored_bytes, block.decoded_bytes)),
                checks::decoded_block_finding(&dataset, &position, &block),
            ),
            Ok(None) => {
                let key = dataset.block_key(&position);
                let head = retry.run(|| async { self.store.head(&key).await.map_err(ReadError::Store) }).await;
                let is_there = matches!(head, Ok(Some(_)));
                (None, Some(checks::vanished_block_finding(&dataset, &position, is_there)))
            }
            Err(error) => (None, Some(checks::failed_block_finding(&dataset, &position, &error))),
        };
        WalkItem::VerifiedBlock { dataset, position, lengths, finding: finding.map(Box::new) }
    }

    /// Reports the datasets whose attributes differ from those that an earlier run read.
    async fn report_changed_datasets(
        &self,
        retry: &StorageRetry,
        aggregator: &mut ResultAggregator<'_>,
        previous_run: &PreviousRun,
    ) -> io::Result<()> {
        let PreviousRun { checkpoint, finished_datasets, reported_changed } = previous_run;
        for DatasetTally { dataset, attributes, .. } in finished_datasets.iter().chain(&checkpoint.open) {
            if reported_changed.contains(dataset) {
                continue;
            }
            let key = if dataset.is_empty() { Ok(Key::root()) } else { Key::parse(dataset) };
            let Ok(key) = key else { continue };
            let read_dataset = || self.container.dataset(ReadOptions::begin(), &key);
            let (kind, message) = match retry.run(read_dataset).await {
                Ok(current) if *current.etag == **attributes => continue,
                Ok(_) => {
                    (FindingKind::ChangedSince, "its attributes have changed since its blocks were verified".to_owned())
                }
                Err(error @ (ReadError::NotFound(_) | ReadError::NotADataset { .. })) => {
                    (FindingKind::ChangedSince, format!("it was verified, but is no longer a dataset: {error}"))
                }
                Err(error) => (
                    FindingKind::UnreadableFile,
                    format!("it is unknown whether it has changed since it was verified: {error}"),
                ),
            };
            aggregator.record_finding(&Finding::new(kind, dataset, message))?;
        }
        Ok(())
    }
}

/// Checks that `key` can be a root of a verification.
///
/// # Errors
/// Returns a message if there is no such group or dataset, if it is a part of a dataset's grid, or if it cannot be
/// read.
pub async fn check_root(container: &Container, key: &Key) -> Result<(), String> {
    let options = ReadOptions::begin();
    let to_message = |error: ReadError| error.to_string();
    if !container.is_directory(options, key).await.map_err(to_message)? {
        return Err(format!("there is no group or dataset {:?}", key.as_str()));
    }
    match container.enclosing_dataset(options, key, 0).await.map_err(to_message)? {
        Some((dataset, position)) if !position.is_empty() => {
            Err(format!("{:?} is a part of the dataset {:?}", key.as_str(), dataset.key.as_str()))
        }
        Some(_) | None => Ok(()),
    }
}
