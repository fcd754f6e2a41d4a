//! Walk of a container, which visits each entry once, in the byte order of the names, without decoding blocks.
//!
//! Directories that follow the current one are prefetched, that is, walked before their turn, because a file server
//! takes time to answer each request. The items of a prefetched directory are buffered until its turn, so items are
//! always in the order of the names.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::SendError;
use tokio_util::task::AbortOnDropHandle;

use super::checks;
use super::entries::{self, EntryRole, GridDirectory, IntervalSet, missing_range};
use super::finding::{Finding, FindingKind};
use super::prefetch::{WalkPrefetcher, join_walk};
use super::retry::StorageRetry;
use super::walk_item::WalkItem;
use crate::cache::{ATTRIBUTES, Group, GroupState, ReadError, ReadOptions};
use crate::container::{Container, grid_component};
use crate::store::{DirEntry, FilterDecision, Key, Listing, Store};
use n5_format::Coords;

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
    /// True while it is the turn of this walk. Only then does it prefetch directories. This limits the number of
    /// concurrent walks by the depth of the current directory, regardless of the shape of the tree.
    pub(super) head_of_line: Arc<AtomicBool>,
}

/// A directory whose entries are walked.
#[derive(Debug)]
struct WalkedDirectory {
    key: Key,
    /// Position of the directory in the grid of a dataset. `None` for a directory in the hierarchy of groups.
    grid: Option<GridDirectory>,
    /// Identities of the directories above, as [`Store::identity`] returns them.
    ancestors: Vec<u64>,
    /// False if no attributes were found. An `attributes.json` among the entries is then unreadable.
    has_readable_attributes: bool,
}

/// State of the walk of one directory, from page to page of its listing.
#[derive(Debug, Default)]
struct DirectoryProgress {
    /// Names that lead from the directory to the position where an earlier run stopped. `None` once this position is
    /// passed.
    resume: Option<Vec<String>>,
    /// Grid components of the entries that are present, if missing ranges are reported and the directory is a part of
    /// a grid.
    present: Option<IntervalSet>,
    omitted_names: HashSet<String>,
    /// Largest number of omitted entries that a page counted.
    max_omitted: u64,
}

impl DirectoryProgress {
    fn mark_present(&mut self, name: &str) {
        if let (Some(present), Some(number)) = (&mut self.present, grid_component(name)) {
            present.add(number);
        }
    }

    /// Passes the position where an earlier run stopped. If the position is `entry` or below, returns the names that
    /// lead from `entry` to the position.
    fn pass_resume_position(&mut self, entry: &DirEntry) -> Option<Vec<String>> {
        let mut names = self.resume.take()?;
        (names.first() == Some(&entry.name)).then(|| names.split_off(1))
    }
}

impl ContainerWalker {
    /// Walks everything below `roots`, beginning with the root at the index `start`. In this root, begins after the
    /// entry to which the names in `resume` lead.
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

    /// Walks a directory. Returns true if the directory belongs to the block grid of an ancestor dataset. `resume`
    /// holds the names that lead from the directory to the position where an earlier run stopped.
    fn walk_directory(
        &self,
        key: Key,
        grid: Option<GridDirectory>,
        ancestors: Vec<u64>,
        resume: Option<Vec<String>>,
    ) -> BoxFuture<'_, Result<bool, SendError<()>>> {
        async move {
            let group = self.group(&key).await;
            let state = group.as_ref().map(|group| &group.state);
            let dataset = match state {
                Ok(GroupState::Dataset(dataset)) => Some(dataset),
                _ => None,
            };
            // A directory of a grid remains a part of the grid regardless of its attributes, unless they describe a
            // nested dataset.
            if grid.is_some() && dataset.is_none() {
                if resume.is_none() {
                    self.report_misplaced_attributes(&key, state).await?;
                }
                let directory = WalkedDirectory { key, grid, ancestors, has_readable_attributes: true };
                self.walk_entries(directory, resume).await?;
                return Ok(true);
            }
            let Some(ancestors) = self.push_ancestor(&key, ancestors).await? else { return Ok(false) };
            self.send_directory_start(&key, state, resume.is_some()).await?;
            let has_readable_attributes = !matches!(state, Ok(GroupState::NoAttributes));
            let grid = dataset.map(|dataset| GridDirectory { dataset: Arc::clone(dataset), prefix: Coords::new() });
            self.walk_entries(WalkedDirectory { key, grid, ancestors, has_readable_attributes }, resume).await?;
            if dataset.is_some() {
                self.send(WalkItem::DatasetEnd).await?;
            }
            Ok(false)
        }
        .boxed()
    }

    /// Sends the beginning of a group or dataset, with the findings about its attributes. If an earlier run has sent
    /// them already, sends only the beginning of a dataset.
    async fn send_directory_start(
        &self,
        key: &Key,
        state: Result<&GroupState, &ReadError>,
        resumed: bool,
    ) -> Result<(), SendError<()>> {
        let findings = if resumed {
            Vec::new()
        } else {
            checks::attribute_findings(&self.container, &self.retry, key, state).await
        };
        match state {
            Ok(GroupState::Dataset(dataset)) => {
                self.send(WalkItem::DatasetStart { dataset: Arc::clone(dataset), resumed }).await?;
            }
            _ if resumed => {}
            _ => self.send(WalkItem::Group).await?,
        }
        for finding in findings {
            self.send(WalkItem::Finding(finding)).await?;
        }
        Ok(())
    }

    /// Reports attributes in a directory of a grid, where there should be none.
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

    /// Appends the identity of the directory `key` to `ancestors`, which holds those of its ancestors. If it is there
    /// already, a link leads back: reports a link loop and returns `None`.
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
    async fn walk_entries(&self, directory: WalkedDirectory, resume: Option<Vec<String>>) -> Result<(), SendError<()>> {
        let directory = Arc::new(directory);
        let key = &directory.key;
        let present = (self.report_missing && directory.grid.is_some()).then(IntervalSet::default);
        let mut progress = DirectoryProgress { resume, present, ..DirectoryProgress::default() };
        let mut after: Option<String> = None;
        loop {
            let mut page = match self.list(key, after.as_deref(), PAGE_ENTRIES).await {
                Ok(page) => page.unwrap_or_default(),
                Err(error) => {
                    return self.send_finding(FindingKind::UnreadableDirectory, key, error.to_string()).await;
                }
            };
            if after.is_none() && page.entries.is_empty() && !page.has_more && self.is_unreadable(key).await {
                let message =
                    "the directory cannot be listed: permission is denied, or it was removed before it could be read";
                return self.send_finding(FindingKind::UnreadableDirectory, key, message).await;
            }
            self.report_omitted(&directory, &page, &mut progress).await?;
            self.walk_page(&directory, &page.entries, &mut progress).await?;
            after = page.entries.pop().map(|entry| entry.name);
            if !page.has_more || after.is_none() {
                break;
            }
        }
        // A page names only a few of the entries that it omits. For the rest, it gives only their number.
        let unnamed_count = progress.max_omitted.saturating_sub(progress.omitted_names.len() as u64);
        if unnamed_count > 0 {
            let kind = if directory.grid.is_some() { FindingKind::UnreadableFile } else { FindingKind::UnlistedName };
            let message = format!("{unnamed_count} or more other names are not listed either, for the same reasons");
            self.send(WalkItem::Finding(entries::unlisted_finding(kind, key, message))).await?;
        }
        match (&directory.grid, progress.present) {
            (Some(grid), Some(present)) => self.send_missing_ranges(grid, &present).await,
            _ => Ok(()),
        }
    }

    /// Reports the omitted entries that `page` names, each only once.
    async fn report_omitted(
        &self,
        directory: &WalkedDirectory,
        page: &Listing,
        progress: &mut DirectoryProgress,
    ) -> Result<(), SendError<()>> {
        progress.max_omitted = progress.max_omitted.max(page.omitted_count);
        for name in &page.omitted_names {
            if progress.omitted_names.insert(name.clone()) {
                if progress.resume.is_none() {
                    let finding = entries::unlisted_name_finding(&directory.key, directory.grid.as_ref(), name);
                    self.send(WalkItem::Finding(finding)).await?;
                }
                progress.mark_present(name);
            }
        }
        Ok(())
    }

    /// Walks the entries of one page, except for those that an earlier run has walked.
    async fn walk_page(
        &self,
        directory: &Arc<WalkedDirectory>,
        entries: &[DirEntry],
        progress: &mut DirectoryProgress,
    ) -> Result<(), SendError<()>> {
        let resume_name = progress.resume.as_ref().and_then(|names| names.first());
        let first = resume_name.map_or(0, |name| entries.partition_point(|entry| entry.name < *name));
        for entry in entries.iter().take(first) {
            self.mark_walked_before(directory, entry, progress).await;
        }
        let mut resume = entries.get(first).and_then(|entry| progress.pass_resume_position(entry));
        let mut prefetcher = WalkPrefetcher::default();
        for (index, entry) in entries.iter().enumerate().skip(first) {
            let resume = resume.take();
            if resume.as_ref().is_some_and(|names| names.is_empty() || !entry.is_directory) {
                self.mark_walked_before(directory, entry, progress).await;
                continue;
            }
            prefetcher.prefetch(&self.head_of_line, entries, index, |entry, items, head_of_line| {
                let walk = Self { items, head_of_line, ..self.clone() };
                let directory = Arc::clone(directory);
                let entry = entry.clone();
                tokio::spawn(async move { walk.walk_entry(&directory, &entry, None).await })
            });
            let is_present = match prefetcher.drain(&self.items, index).await {
                Some(walked) => walked?,
                None => self.walk_entry(directory, entry, resume).await?,
            };
            if is_present {
                progress.mark_present(&entry.name);
            }
        }
        Ok(())
    }

    async fn group(&self, key: &Key) -> Result<Arc<Group>, ReadError> {
        self.retry.run(|| self.container.group(ReadOptions::begin(), key)).await
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

    /// Walks an entry of a directory. Returns true if the entry is a part of the directory's grid.
    async fn walk_entry(
        &self,
        directory: &WalkedDirectory,
        entry: &DirEntry,
        resume: Option<Vec<String>>,
    ) -> Result<bool, SendError<()>> {
        let Ok(key) = directory.key.child(&entry.name) else {
            let message = "directories are nested too deeply";
            self.send_finding(FindingKind::UnreadableDirectory, &directory.key, message).await?;
            return Ok(false);
        };
        let role = EntryRole::of(directory.grid.as_ref(), &entry.name);
        if entry.is_directory {
            return self.walk_subdirectory(key, role, directory.ancestors.clone(), resume).await;
        }
        if let EntryRole::Block(dataset, position) = role {
            self.send(WalkItem::Block(dataset, position)).await?;
            return Ok(true);
        }
        if let Some(finding) = entries::file_finding(&key, &role, directory.has_readable_attributes) {
            self.send(WalkItem::Finding(finding)).await?;
        }
        self.send(WalkItem::FileVisited(key)).await?;
        Ok(false)
    }

    /// Walks the directory `key`, which has the role `role` in the directory above.
    async fn walk_subdirectory(
        &self,
        key: Key,
        role: EntryRole,
        ancestors: Vec<u64>,
        resume: Option<Vec<String>>,
    ) -> Result<bool, SendError<()>> {
        if let Some(finding) = entries::directory_finding(&key, &role).filter(|_| resume.is_none()) {
            self.send(WalkItem::Finding(finding)).await?;
        }
        let grid = match role {
            EntryRole::GridDirectory(grid) => Some(grid),
            EntryRole::Attributes | EntryRole::Block(..) | EntryRole::OutsideGrid(_) | EntryRole::Other => None,
        };
        if !key.segments().count().is_multiple_of(LEVELS_PER_TASK) {
            return self.walk_directory(key, grid, ancestors, resume).await;
        }
        let walk = self.clone();
        let task = tokio::spawn(async move { walk.walk_directory(key, grid, ancestors, resume).await });
        join_walk(AbortOnDropHandle::new(task)).await
    }

    /// Marks an entry as present if it is a part of the grid. An earlier run has already walked the entry.
    async fn mark_walked_before(
        &self,
        directory: &WalkedDirectory,
        entry: &DirEntry,
        progress: &mut DirectoryProgress,
    ) {
        if progress.present.is_none() {
            return;
        }
        let role = EntryRole::of(directory.grid.as_ref(), &entry.name);
        let is_part_of_grid = match (role, directory.key.child(&entry.name)) {
            (EntryRole::GridDirectory(_), Ok(key)) if entry.is_directory => {
                !self.group(&key).await.is_ok_and(|group| matches!(group.state, GroupState::Dataset(_)))
            }
            (EntryRole::Block(..), _) => !entry.is_directory,
            _ => false,
        };
        if is_part_of_grid {
            progress.mark_present(&entry.name);
        }
    }

    /// Reports the ranges of blocks that are missing in a directory of a grid.
    async fn send_missing_ranges(&self, grid: &GridDirectory, present: &IntervalSet) -> Result<(), SendError<()>> {
        let prefix = &grid.prefix;
        let mut shape = grid.dataset.attributes.grid().shape();
        if shape.is_empty() {
            shape.push(1);
        }
        let is_inside = prefix.iter().zip(&shape).all(|(component, count)| component < count);
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
