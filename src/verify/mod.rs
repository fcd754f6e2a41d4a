//! A container verified: everything in it walked, every block decoded, what is wrong or unusual told one by one.
//!
//! Reads what the server would read, as it would read it, and writes nothing into the container. Memory is that of the
//! budgets, of nine pages of a listing for each level of directories, and of what waits to be told.

mod ahead;
mod attributes;
mod blocks;
mod counting;
mod earlier;
mod finding;
mod gaps;
mod patience;
mod place;
mod tally;
mod walk;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::unfold;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

pub use earlier::{Earlier, Recount};
pub use finding::{Finding, KINDS, Kind, Row, Severity};
pub use tally::{DatasetTally, Totals};

use crate::container::{Container, EntryKind, GroupState, ReadError};
use crate::store::{Key, Store};
use ahead::Turn;
use counting::{Counting, Resolved, Verdict};
use patience::Patience;
use walk::{Item, Walk};

/// Datasets that are looked at to learn how many blocks there may be.
const MAX_SURVEYED: usize = 10_000;

/// What is to be verified.
#[derive(Debug)]
pub struct Job {
    /// The container.
    pub container: Container,
    /// Where it is.
    pub store: Arc<dyn Store>,
    /// Groups and datasets; everything below each is verified.
    pub roots: Vec<Key>,
    /// Whether missing blocks are errors.
    pub missing: bool,
    /// How long storage that does not answer is waited for before the run ends.
    pub patience: Duration,
}

/// Where a run stands: everything before has been told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Number of the root that is being walked.
    pub root: usize,
    /// Key of the last file that was passed.
    pub after: String,
    /// What has been counted.
    pub totals: Totals,
    /// The datasets that it is in, the outermost first.
    pub open: Vec<DatasetTally>,
}

/// What is told while a run goes on.
#[derive(Debug)]
pub enum Event<'a> {
    /// Something was found.
    Found(&'a Finding),
    /// All of a dataset has been walked.
    Done(&'a DatasetTally),
    /// A file has been passed.
    Passed(&'a Totals),
    /// Whoever begins here later finds what follows, and nothing else.
    Checkpoint(&'a Checkpoint),
}

/// Whoever listens to a run.
pub trait Listener {
    /// Takes what is told.
    ///
    /// # Errors
    /// When it cannot be kept; the run ends then.
    fn take(&mut self, event: Event<'_>) -> io::Result<()>;

    /// Whether it is time for a checkpoint.
    fn wants_checkpoint(&self) -> bool;
}

/// How a run ended.
#[derive(Debug)]
pub enum Ended {
    /// All has been walked.
    Complete(Totals),
    /// It was told to stop.
    Stopped(Totals),
    /// The storage has not answered for so long that it stopped; the text says what was tried.
    GivenUp(Totals, String),
}

impl Job {
    /// Verifies, from where an earlier run has stopped or else from the beginning, until all is done or `stop` is ready.
    ///
    /// # Errors
    /// When the listener cannot keep what it is told.
    pub async fn run(
        self,
        earlier: Option<Earlier>,
        listener: &mut dyn Listener,
        stop: impl Future<Output = ()>,
    ) -> io::Result<Ended> {
        let resume = earlier.as_ref().map(|earlier| earlier.checkpoint.clone());
        let mut counting = Counting::new(resume.clone().unwrap_or_default(), self.missing, listener);
        let patience = Arc::new(Patience::new(Arc::clone(&self.store), self.patience));
        let mut stop = pin!(stop);
        let mut given_up = pin!(patience.given_up());
        if let Some(earlier) = &earlier {
            tokio::select! {
                biased;
                // Nothing was passed: what has been told here is told again by whoever goes on.
                () = &mut stop => return Ok(Ended::Stopped(earlier.checkpoint.totals.clone())),
                why = &mut given_up => return Ok(Ended::GivenUp(earlier.checkpoint.totals.clone(), why)),
                result = self.find_changes(&patience, &mut counting, earlier) => result?,
            }
        }
        let (items, received) = mpsc::channel(256);
        let walk = Walk {
            container: self.container.clone(),
            store: Arc::clone(&self.store),
            patience: Arc::clone(&patience),
            items,
            missing: self.missing,
            turn: Turn::is_now(true),
        };
        let (start, after) = resume.map_or((0, None), |checkpoint| (checkpoint.root, Some(checkpoint.after)));
        let after = after.and_then(|after| below(self.roots.get(start)?, &after));
        let walking = tokio::spawn(walk.run(self.roots.clone(), start, after));
        // In the order of the walk, so that two runs tell the same, and one can go on where another has stopped.
        let at_once = self.container.resources().settings().cores.saturating_mul(4).max(16);
        let items = unfold(received, |mut received| async { received.recv().await.map(|item| (item, received)) });
        let mut results = pin!(items.map(|item| self.resolve(&patience, item)).buffered(at_once));
        loop {
            tokio::select! {
                biased;
                () = &mut stop => {
                    walking.abort();
                    counting.checkpoint()?;
                    return Ok(Ended::Stopped(counting.totals()));
                }
                why = &mut given_up => {
                    walking.abort();
                    counting.checkpoint()?;
                    return Ok(Ended::GivenUp(counting.totals(), why));
                }
                result = results.next() => match result {
                    Some(result) => counting.take(result)?,
                    None => break,
                },
            }
        }
        match walking.await {
            Ok(_) => Ok(Ended::Complete(counting.totals())),
            Err(died) => Err(io::Error::other(died)),
        }
    }

    /// How many blocks the grids of all datasets have, as far as can be learnt quickly: for showing progress.
    pub async fn survey(&self) -> u64 {
        let access = self.container.resources().begin();
        let (mut left, mut blocks) = (self.roots.clone(), 0_u64);
        for _ in 0..MAX_SURVEYED {
            let Some(key) = left.pop() else { break };
            if let Ok(group) = self.container.group(access, &key).await
                && let GroupState::Dataset(dataset) = &group.state
            {
                blocks = blocks.saturating_add(DatasetTally::of(dataset).grid_blocks);
            }
            let Ok(Some(page)) = self.container.list(access, &key, None, MAX_SURVEYED, false).await else { continue };
            let directories = page.entries.into_iter().filter(|entry| entry.kind != EntryKind::File);
            left.extend(directories.filter_map(|entry| key.child(&entry.name).ok()));
        }
        blocks
    }

    /// What becomes of an item: blocks are decoded, several at once.
    async fn resolve(&self, patience: &Patience, item: Item) -> Resolved {
        let Item::Block(dataset, position) = item else { return Resolved::Item(item) };
        let attributes = &dataset.attributes;
        if attributes.compression().codec().is_none() || attributes.data_type().size_bytes().is_none() {
            return Resolved::Block(dataset, position, Verdict::Unverified(None));
        }
        let check = || {
            let access = self.container.resources().begin();
            self.container.check_block(access, &dataset, &position)
        };
        let verdict = match patience.with(check).await {
            Ok(Some(block)) => Verdict::Sound {
                stored_bytes: block.stored_bytes,
                decoded_bytes: block.decoded_bytes,
                finding: blocks::sound(&dataset, &position, &block),
            },
            Ok(None) => {
                let key = dataset.block_key(&position);
                let head = patience.with(|| async { self.store.head(&key).await.map_err(ReadError::Store) }).await;
                let is_there = matches!(head, Ok(Some(_)));
                Verdict::Unverified(Some(blocks::vanished(&dataset, &position, is_there)))
            }
            Err(error) => Verdict::Unverified(Some(blocks::failed(&dataset, &position, &error))),
        };
        Resolved::Block(dataset, position, verdict)
    }

    /// Tells which datasets have other attributes than an earlier run had read.
    async fn find_changes(
        &self,
        patience: &Patience,
        counting: &mut Counting<'_>,
        earlier: &Earlier,
    ) -> io::Result<()> {
        let Earlier { checkpoint, finished, changed } = earlier;
        for DatasetTally { dataset, attributes, .. } in finished.iter().chain(&checkpoint.open) {
            if changed.contains(dataset) {
                continue;
            }
            let key = if dataset.is_empty() { Ok(Key::root()) } else { Key::parse(dataset) };
            let Ok(key) = key else { continue };
            let look = || self.container.dataset(self.container.resources().begin(), &key);
            let (kind, now) = match patience.with(look).await {
                Ok(now) if *now.etag == **attributes => continue,
                Ok(_) => (Kind::ChangedSince, "its attributes have changed since its blocks were verified".to_owned()),
                Err(error @ (ReadError::NotFound(_) | ReadError::NotADataset { .. })) => {
                    (Kind::ChangedSince, format!("it was verified, and is no dataset now: {error}"))
                }
                Err(error) => {
                    (Kind::UnreadableFile, format!("whether it has changed since it was verified is unknown: {error}"))
                }
            };
            counting.found(&Finding::new(kind, dataset, now))?;
        }
        Ok(())
    }
}

/// Why something cannot be verified at all.
///
/// # Errors
/// In words: there is no such group or dataset, or it is a part of a dataset's grid.
pub async fn control_root(container: &Container, key: &Key) -> Result<(), String> {
    let access = container.resources().begin();
    let failed = |error: ReadError| error.to_string();
    if !container.is_directory(access, key).await.map_err(failed)? {
        return Err(format!("there is no group or dataset {:?}", key.as_str()));
    }
    match container.enclosing_dataset(access, key, 0).await.map_err(failed)? {
        Some((dataset, position)) if !position.is_empty() => {
            Err(format!("{:?} is a part of the dataset {:?}", key.as_str(), dataset.key.as_str()))
        }
        Some(_) | None => Ok(()),
    }
}

/// The names that lead from `root` to `key`.
fn below(root: &Key, key: &str) -> Option<Vec<String>> {
    let key = Key::parse(key).ok()?;
    let mut names = key.segments();
    for name in root.segments() {
        if names.next() != Some(name) {
            return None;
        }
    }
    Some(names.map(str::to_owned).collect())
}
