//! Walk of a container: directories in the byte order of their names, each entry once, without decoding.
//!
//! Directories that follow the current one are prefetched, that is, walked before their turn, because a file server
//! takes time to answer each request. Their items are buffered until their turn, so items are always in the order of
//! the names.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use super::checks;
use super::entries::{self, EntryRole, IntervalSet, is_temporary, missing_range};
use super::finding::{Finding, FindingKind};
use super::retry::StorageRetry;
use crate::cache::{ATTRIBUTES, Dataset, Group, GroupState, ReadError};
use crate::container::{Container, grid_component};
use crate::store::{DirEntry, FilterDecision, Key, Listing, Store};
use n5_format::{Coords, GridPosition};

/// An item of the walk.
#[derive(Debug)]
pub(super) enum WalkItem {
    /// The walk below the root of this index begins.
    RootStart(usize),
    /// A directory that is not a dataset.
    Group,
    /// A dataset begins. All items up to its [`WalkItem::DatasetEnd`] are below it. `resumed` is true if an earlier run
    /// began it.
    DatasetStart { dataset: Arc<Dataset>, resumed: bool },
    /// The innermost dataset ends.
    DatasetEnd,
    /// A finding.
    Finding(Finding),
    /// Blocks that the innermost dataset lacks: the first and the last position, inclusive.
    MissingRange([Coords; 2]),
    /// The innermost dataset lacks blocks in too many ranges to report each. The value is the length of the grid along
    /// the axis of the directory.
    ScatteredMissing(u64),
    /// A stored block in the grid of a dataset.
    Block(Arc<Dataset>, GridPosition),
    /// A block after its verification. `lengths` holds its stored and its decoded length in bytes if it decodes. If it
    /// does not, and there is no finding, the reason lies in its dataset, which has its own finding.
    VerifiedBlock {
        dataset: Arc<Dataset>,
        position: GridPosition,
        lengths: Option<(u64, u64)>,
        finding: Option<Box<Finding>>,
    },
    /// A file that is not a block has been passed.
    FileVisited(Key),
}

/// Maximum number of entries of a directory that are held at once.
const PAGE_ENTRIES: usize = 1 << 14;

/// Maximum number of levels of directories that one task walks. Another task walks those below, because each level
/// takes some KiB of the stack: 150 levels overflowed the 2 MiB of a thread in the release build.
const LEVELS_PER_TASK: usize = 16;

/// A walk in progress.
#[derive(Debug, Clone)]
pub(super) struct ContainerWalker {
    pub(super) container: Container,
    pub(super) store: Arc<dyn Store>,
    pub(super) retry: Arc<StorageRetry>,
    pub(super) items: Sender<WalkItem>,
    /// True if each range of missing blocks is reported.
    pub(super) report_missing: bool,
    /// True while it is the turn of this walk, which prefetches directories only then. This limits the number of
    /// concurrent walks by the depth of the current directory, whatever the shape of the tree.
    pub(super) head_of_line: Arc<AtomicBool>,
}

/// A directory whose entries are walked.
#[derive(Debug)]
struct WalkedDirectory {
    key: Key,
    /// The dataset whose grid the directory is a part of, with the grid components that lead to the directory. `None`
    /// if the directory is a part of the hierarchy of groups.
    grid: Option<(Arc<Dataset>, Coords)>,
    /// Identities of the directories above, as [`Store::identity`] returns them.
    ancestors: Vec<u64>,
    /// False if no attributes were found. An `attributes.json` among the entries is then unreadable.
    has_readable_attributes: bool,
}

impl ContainerWalker {
    /// Walks everything below `roots`, from the root with the index `start` on. In that root, continues after the entry
    /// to which the names `resume` lead.
    pub(super) async fn run(
        self,
        roots: Vec<Key>,
        start: usize,
        mut resume: Option<Vec<String>>,
    ) -> Result<(), SendError<()>> {
        for (index, root) in roots.into_iter().enumerate().skip(start) {
            self.send(WalkItem::RootStart(index)).await?;
            self.walk_directory(root, None, Vec::new(), resume.take()).await?;
        }
        Ok(())
    }

    async fn send(&self, item: WalkItem) -> Result<(), SendError<()>> {
        self.items.reserve().await?.send(item);
        Ok(())
    }

    async fn send_finding(
        &self,
        kind: FindingKind,
        key: &Key,
        message: impl Into<String>,
    ) -> Result<(), SendError<()>> {
        self.send(WalkItem::Finding(Finding::new(kind, key.as_str(), message))).await
    }

    /// Walks a directory. Returns true if it is a part of the grid that it lies in. `resume` holds the names that lead
    /// from the directory to the position where an earlier run stopped.
    fn walk_directory(
        &self,
        key: Key,
        grid: Option<(Arc<Dataset>, Coords)>,
        ancestors: Vec<u64>,
        resume: Option<Vec<String>>,
    ) -> BoxFuture<'_, Result<bool, SendError<()>>> {
        async move {
            let group = self.group(&key).await;
            let state = group.as_ref().map(|group| &group.state);
            // A directory of a grid remains a part of the grid whatever its attributes are, unless they describe a
            // nested dataset.
            if grid.is_some() && !matches!(state, Ok(GroupState::Dataset(_))) {
                if resume.is_none() {
                    self.report_misplaced_attributes(&key, state).await?;
                }
                self.walk_entries(WalkedDirectory { key, grid, ancestors, has_readable_attributes: true }, resume)
                    .await?;
                return Ok(true);
            }
            let Some(ancestors) = self.push_ancestor(&key, ancestors).await? else { return Ok(false) };
            let has_attributes = !matches!(state, Ok(GroupState::NoAttributes));
            if resume.is_none() {
                let findings = checks::attribute_findings(&self.container, &self.retry, &key, state).await;
                if let Ok(GroupState::Dataset(dataset)) = state {
                    self.send(WalkItem::DatasetStart { dataset: Arc::clone(dataset), resumed: false }).await?;
                } else {
                    self.send(WalkItem::Group).await?;
                }
                for finding in findings {
                    self.send(WalkItem::Finding(finding)).await?;
                }
            } else if let Ok(GroupState::Dataset(dataset)) = state {
                self.send(WalkItem::DatasetStart { dataset: Arc::clone(dataset), resumed: true }).await?;
            }
            let grid = match state {
                Ok(GroupState::Dataset(dataset)) => Some((Arc::clone(dataset), Coords::new())),
                _ => None,
            };
            let is_dataset = grid.is_some();
            let directory = WalkedDirectory { key, grid, ancestors, has_readable_attributes: has_attributes };
            self.walk_entries(directory, resume).await?;
            if is_dataset {
                self.send(WalkItem::DatasetEnd).await?;
            }
            Ok(false)
        }
        .boxed()
    }

    /// Reports the attributes of a directory of a grid, which should have none.
    async fn report_misplaced_attributes(
        &self,
        key: &Key,
        state: Result<&GroupState, &ReadError>,
    ) -> Result<(), SendError<()>> {
        if let Some(finding) = checks::unusable_finding(key, state) {
            return self.send(WalkItem::Finding(finding)).await;
        }
        match (state, key.child(ATTRIBUTES)) {
            (Ok(GroupState::Attributes(_)), Ok(file)) => {
                self.send_finding(
                    FindingKind::StrayFile,
                    &file,
                    "attributes among the blocks of a dataset: no program reads them",
                )
                .await
            }
            _ => Ok(()),
        }
    }

    /// Returns the ancestors of the entries of `key`, or `None` if `key` is one of its own ancestors.
    async fn push_ancestor(&self, key: &Key, mut ancestors: Vec<u64>) -> Result<Option<Vec<u64>>, SendError<()>> {
        let read_identity = || async { self.store.identity(key).await.map_err(ReadError::Store) };
        match self.retry.run(read_identity).await {
            Ok(Some(identity)) if ancestors.contains(&identity) => {
                self.send_finding(FindingKind::LinkLoop, key, "a symbolic link leads back to a parent directory")
                    .await?;
                return Ok(None);
            }
            Ok(Some(identity)) => ancestors.push(identity),
            // If the store fails, the error is reported when the directory is listed.
            Ok(None) | Err(_) => {}
        }
        Ok(Some(ancestors))
    }

    /// Walks the entries of a directory.
    async fn walk_entries(
        &self,
        directory: WalkedDirectory,
        mut resume: Option<Vec<String>>,
    ) -> Result<(), SendError<()>> {
        let directory = Arc::new(directory);
        let (key, grid) = (&directory.key, directory.grid.as_ref());
        let mut present = self.report_missing.then(IntervalSet::default);
        let mut after: Option<String> = None;
        let (mut omitted_names, mut max_omitted) = (HashSet::new(), 0);
        loop {
            let page = match self.list(key, after.as_deref(), PAGE_ENTRIES).await {
                Ok(Some(page)) => page,
                Ok(None) => {
                    Listing { entries: Vec::new(), has_more: false, omitted_names: Vec::new(), omitted_count: 0 }
                }
                Err(error) => {
                    return self.send_finding(FindingKind::UnreadableDirectory, key, error.to_string()).await;
                }
            };
            if after.is_none() && page.entries.is_empty() && !page.has_more && self.is_unreadable(key).await {
                let message =
                    "the directory cannot be listed: permission is denied, or it was removed before it could be read";
                return self.send_finding(FindingKind::UnreadableDirectory, key, message).await;
            }
            max_omitted = max_omitted.max(page.omitted_count);
            for name in page.omitted_names {
                if omitted_names.insert(name.clone()) {
                    if resume.is_none() {
                        self.send(WalkItem::Finding(entries::unlisted_name_finding(key, grid, &name))).await?;
                    }
                    mark_present(grid, &name, &mut present);
                }
            }
            let mut prefetcher = WalkPrefetcher::default();
            for (index, entry) in page.entries.iter().enumerate() {
                // Entries before the position at which an earlier run stopped are skipped.
                let target = resume.as_ref().and_then(|names| names.first()).map(String::as_str);
                let child_resume = match target.map(|target| entry.name.as_str().cmp(target)) {
                    None => None,
                    Some(std::cmp::Ordering::Less) => {
                        self.mark_walked_before(key, grid, entry, &mut present).await;
                        continue;
                    }
                    Some(std::cmp::Ordering::Greater) => {
                        resume = None;
                        None
                    }
                    Some(std::cmp::Ordering::Equal) => {
                        let remaining =
                            resume.take().map(|mut names| names.split_off(1)).filter(|names| !names.is_empty());
                        if remaining.is_none() || !entry.is_directory {
                            self.mark_walked_before(key, grid, entry, &mut present).await;
                            continue;
                        }
                        remaining
                    }
                };
                // Entries after the position at which an earlier run stopped are walked completely, so they can be
                // prefetched.
                if resume.is_none() {
                    prefetcher.prefetch(&self.head_of_line, &page.entries, index, |entry, items, head_of_line| {
                        let walk = Self { items, head_of_line, ..self.clone() };
                        let (directory, entry) = (Arc::clone(&directory), entry.clone());
                        tokio::spawn(async move { walk.walk_entry(&directory, &entry, None).await })
                    });
                }
                let is_present = match prefetcher.drain(&self.items, index).await {
                    Some(walked) => walked?,
                    None => self.walk_entry(&directory, entry, child_resume).await?,
                };
                if is_present {
                    mark_present(grid, &entry.name, &mut present);
                }
            }
            after = page.entries.last().map(|entry| entry.name.clone());
            if !page.has_more || after.is_none() {
                break;
            }
        }
        // A page names only a few of the entries that it omits, and counts the others.
        let unnamed_count = max_omitted.saturating_sub(omitted_names.len() as u64);
        if unnamed_count > 0 {
            let kind = if grid.is_some() { FindingKind::UnreadableFile } else { FindingKind::UnlistedName };
            let message = format!("{unnamed_count} or more other names are not listed either, for the same reasons");
            self.send(WalkItem::Finding(entries::unlisted_finding(kind, key, message))).await?;
        }
        self.send_missing_ranges(grid, present).await
    }

    async fn group(&self, key: &Key) -> Result<Arc<Group>, ReadError> {
        self.retry.run(|| self.container.group(self.container.resources().request_freshness(), key)).await
    }

    async fn list(&self, key: &Key, after: Option<&str>, limit: usize) -> Result<Option<Listing>, ReadError> {
        let list =
            || async { self.store.list(key, after, limit, FilterDecision::keep_all()).await.map_err(ReadError::Store) };
        self.retry.run(list).await
    }

    /// Returns true if a directory that seems empty cannot be read.
    async fn is_unreadable(&self, key: &Key) -> bool {
        !matches!(self.list(key, None, 1).await, Ok(Some(_)))
    }

    /// Walks an entry of a directory. Returns true if it is a part of the grid that it lies in.
    async fn walk_entry(
        &self,
        directory: &WalkedDirectory,
        entry: &DirEntry,
        resume: Option<Vec<String>>,
    ) -> Result<bool, SendError<()>> {
        let WalkedDirectory { key: parent, grid, ancestors, has_readable_attributes } = directory;
        let Ok(key) = parent.child(&entry.name) else {
            self.send_finding(FindingKind::UnreadableDirectory, parent, "directories are nested too deeply").await?;
            return Ok(false);
        };
        let entry_role = EntryRole::of(grid.as_ref(), &entry.name);
        let new_finding = |kind, message: &str| Finding::new(kind, key.as_str(), message);
        if entry.is_directory {
            let (child_grid, finding) = match entry_role {
                EntryRole::GridDirectory(dataset, prefix) => (Some((dataset, prefix)), None),
                EntryRole::Block(dataset, position) => {
                    let finding =
                        new_finding(FindingKind::DirectoryAtBlock, "there is a directory in place of a block");
                    (None, Some(finding.in_dataset(dataset.key.as_str()).at_position(&position)))
                }
                EntryRole::Attributes => {
                    (None, Some(new_finding(FindingKind::BrokenAttributes, "attributes.json is a directory")))
                }
                EntryRole::OutsideGrid(_) | EntryRole::Other => (None, None),
            };
            if let Some(finding) = finding.filter(|_| resume.is_none()) {
                self.send(WalkItem::Finding(finding)).await?;
            }
            if key.segments().count() % LEVELS_PER_TASK != 0 {
                return self.walk_directory(key, child_grid, ancestors.clone(), resume).await;
            }
            let (walk, ancestors) = (self.clone(), ancestors.clone());
            let task = tokio::spawn(async move { walk.walk_directory(key, child_grid, ancestors, resume).await });
            return join_walk(AbortOnDropHandle::new(task)).await;
        }
        let finding = match entry_role {
            EntryRole::Block(dataset, position) => {
                self.send(WalkItem::Block(dataset, position)).await?;
                return Ok(true);
            }
            EntryRole::Attributes if *has_readable_attributes => None,
            EntryRole::Attributes => Some(new_finding(
                FindingKind::UnreadableFile,
                "permission to read the file is denied, or it has just changed",
            )),
            EntryRole::OutsideGrid(dataset) => {
                let shape = dataset.attributes.grid().shape();
                let message = format!("the block is outside the grid of {:?} blocks", shape.as_slice());
                Some(new_finding(FindingKind::OutsideGrid, &message).in_dataset(dataset.key.as_str()))
            }
            EntryRole::GridDirectory(dataset, _) => {
                let message = "there is a file in place of a directory of blocks";
                Some(new_finding(FindingKind::MisplacedFile, message).in_dataset(dataset.key.as_str()))
            }
            EntryRole::Other if is_temporary(&entry.name) => {
                let message = "the name is that of a file that is still being written";
                Some(new_finding(FindingKind::TemporaryFile, message))
            }
            EntryRole::Other => Some(new_finding(FindingKind::StrayFile, "it is neither attributes nor a block")),
        };
        if let Some(finding) = finding {
            self.send(WalkItem::Finding(finding)).await?;
        }
        self.send(WalkItem::FileVisited(key)).await?;
        Ok(false)
    }

    /// Marks an entry as present if it is a part of the grid. An earlier run has already walked it.
    async fn mark_walked_before(
        &self,
        parent: &Key,
        grid: Option<&(Arc<Dataset>, Coords)>,
        entry: &DirEntry,
        present: &mut Option<IntervalSet>,
    ) {
        if present.is_none() {
            return;
        }
        let is_part_of_grid = match (EntryRole::of(grid, &entry.name), parent.child(&entry.name)) {
            (EntryRole::GridDirectory(..), Ok(key)) if entry.is_directory => {
                !self.group(&key).await.is_ok_and(|group| matches!(group.state, GroupState::Dataset(_)))
            }
            (EntryRole::Block(..), _) => !entry.is_directory,
            _ => false,
        };
        if is_part_of_grid {
            mark_present(grid, &entry.name, present);
        }
    }

    /// Reports the numbers that a directory of a grid lacks.
    async fn send_missing_ranges(
        &self,
        grid: Option<&(Arc<Dataset>, Coords)>,
        present: Option<IntervalSet>,
    ) -> Result<(), SendError<()>> {
        let (Some((dataset, prefix)), Some(present)) = (grid, present) else { return Ok(()) };
        let mut shape = dataset.attributes.grid().shape();
        if shape.is_empty() {
            shape.push(1);
        }
        let is_inside = prefix.iter().zip(&shape).all(|(number, count)| number < count);
        let count = shape.get(prefix.len()).copied().unwrap_or(0);
        if !is_inside || shape.contains(&0) {
            return Ok(());
        }
        let Some(gaps) = present.gaps(count) else { return self.send(WalkItem::ScatteredMissing(count)).await };
        for gap in gaps {
            self.send(WalkItem::MissingRange(missing_range(prefix, gap, &shape))).await?;
        }
        Ok(())
    }
}

fn mark_present(grid: Option<&(Arc<Dataset>, Coords)>, name: &str, present: &mut Option<IntervalSet>) {
    if let (Some(_), Some(present), Some(number)) = (grid, present, grid_component(name)) {
        present.add(number);
    }
}

/// Maximum number of directories that are walked concurrently with the current one, on each level of the path to it.
const MAX_PREFETCHED: usize = 8;

/// Maximum number of buffered items of a prefetched directory. Its walk pauses when the buffer is full.
const MAX_BUFFERED_ITEMS: usize = 256;

/// A directory that is walked before its turn.
struct PrefetchedDirectory {
    /// Index of the directory's entry on the page.
    entry_index: usize,
    items: Receiver<WalkItem>,
    head_of_line: Arc<AtomicBool>,
    walk: AbortOnDropHandle<Result<bool, SendError<()>>>,
}

/// The prefetched directories of one page, in page order.
#[derive(Default)]
struct WalkPrefetcher {
    prefetched: VecDeque<PrefetchedDirectory>,
    /// Index of the next entry to consider. The entries before it are prefetched already, or need not be.
    next_index: usize,
}

impl WalkPrefetcher {
    /// Starts walks of directories that follow the entry `index` on `page`, as many as `head_of_line` allows. `start`
    /// starts one walk, which sends its items to the given channel.
    fn prefetch(
        &mut self,
        head_of_line: &AtomicBool,
        page: &[DirEntry],
        index: usize,
        start: impl Fn(&DirEntry, Sender<WalkItem>, Arc<AtomicBool>) -> JoinHandle<Result<bool, SendError<()>>>,
    ) {
        self.next_index = self.next_index.max(index.saturating_add(1));
        while self.prefetched.len() < MAX_PREFETCHED
            && head_of_line.load(Ordering::Relaxed)
            && let Some(entry) = page.get(self.next_index)
        {
            let entry_index = self.next_index;
            self.next_index = entry_index.saturating_add(1);
            if !entry.is_directory {
                continue;
            }
            let (sender, items) = mpsc::channel(MAX_BUFFERED_ITEMS);
            let head_of_line = Arc::new(AtomicBool::new(false));
            let walk = AbortOnDropHandle::new(start(entry, sender, Arc::clone(&head_of_line)));
            self.prefetched.push_back(PrefetchedDirectory { entry_index, items, head_of_line, walk });
        }
    }

    /// Sends the items of the directory at the index `index` to `items`. Returns the result of its walk, or `None` if
    /// the directory was not prefetched.
    async fn drain(&mut self, items: &Sender<WalkItem>, index: usize) -> Option<Result<bool, SendError<()>>> {
        if self.prefetched.front()?.entry_index != index {
            return None;
        }
        let mut directory = self.prefetched.pop_front()?;
        directory.head_of_line.store(true, Ordering::Relaxed);
        while let Some(item) = directory.items.recv().await {
            match items.reserve().await {
                Ok(place) => place.send(item),
                Err(closed) => return Some(Err(closed)),
            }
        }
        Some(join_walk(directory.walk).await)
    }
}

/// Waits for a walk that runs in a task, and propagates its panic. If this future is dropped, the walk is aborted.
async fn join_walk(task: AbortOnDropHandle<Result<bool, SendError<()>>>) -> Result<bool, SendError<()>> {
    task.await.unwrap_or_else(|end| match end.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_aborted) => Err(SendError(())),
    })
}
