//! The way through a container: directories in the order of the bytes of their names, each thing once, nothing decoded.
//! Others are walked beside the one whose turn it is ([`super::ahead`]): a file server takes its time for each.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc::Sender;

use super::ahead::{Ahead, Turn};
use super::attributes;
use super::finding::{Finding, Kind};
use super::gaps::{Hole, Seen};
use super::patience::Patience;
use super::place::{self, Part, Place, is_temporary};
use crate::container::{ATTRIBUTES, Container, Dataset, Group, GroupState, ReadError, grid_component};
use crate::n5::{Coords, GridPosition};
use crate::store::{Entry, Keep, Key, Listing, Store};

/// Entries of a directory that are held at once.
const PAGE: usize = 1 << 14;

/// What the walk comes by, in its order.
#[derive(Debug)]
pub(super) enum Item {
    /// The walk below the root of that number begins.
    Start(usize),
    /// A directory that is no dataset.
    Group,
    /// A dataset begins; everything up to its [`Item::Close`] is below it. `resumed` where it had begun before.
    Open { dataset: Arc<Dataset>, resumed: bool },
    /// A dataset ends.
    Close,
    /// Something is wrong.
    Found(Finding),
    /// Blocks that the innermost dataset lacks.
    Missing(Hole),
    /// Blocks that the innermost dataset lacks, too scattered to be told one by one.
    Scattered(u64),
    /// A stored block in the grid of a dataset.
    Block(Arc<Dataset>, GridPosition),
    /// A file that is no block has been passed.
    Passed(Key),
}

/// Whoever took the items has gone.
#[derive(Debug)]
pub(super) struct Gone;

/// A walk on its way.
#[derive(Debug, Clone)]
pub(super) struct Walk {
    pub(super) container: Container,
    pub(super) store: Arc<dyn Store>,
    pub(super) patience: Arc<Patience>,
    pub(super) items: Sender<Item>,
    /// Whether missing blocks are wanted one by one.
    pub(super) missing: bool,
    pub(super) turn: Turn,
}

/// Directories above, by what the store knows them by.
#[derive(Debug, Clone, Default)]
struct Above(Vec<u64>);

/// A directory whose entries are walked.
#[derive(Debug)]
pub(super) struct Within {
    key: Key,
    part: Part,
    above: Above,
    /// Unless its attributes, should there be any, could not be read.
    knows_attributes: bool,
}

/// The names that lead to where an earlier run stopped, beginning below the directory in question.
type Resume = Option<Vec<String>>;

impl Walk {
    /// Walks everything below each of `roots`, from the one of number `start` on, and there after `resume`.
    pub(super) async fn run(self, roots: Vec<Key>, start: usize, mut resume: Resume) -> Result<(), Gone> {
        for (number, root) in roots.into_iter().enumerate().skip(start) {
            self.send(Item::Start(number)).await?;
            self.directory(root, Part::Hierarchy, Above::default(), resume.take()).await?;
        }
        Ok(())
    }

    /// A walk whose items go to `items`.
    pub(super) fn beside(&self, items: Sender<Item>, turn: Turn) -> Self {
        Self { items, turn, ..self.clone() }
    }

    pub(super) async fn send(&self, item: Item) -> Result<(), Gone> {
        self.items.send(item).await.or(Err(Gone))
    }

    async fn found(&self, kind: Kind, key: &Key, message: impl Into<String>) -> Result<(), Gone> {
        self.send(Item::Found(Finding::new(kind, key.as_str(), message))).await
    }

    /// Walks a directory; whether it was the part of the grid that it may be.
    fn directory(&self, key: Key, part: Part, above: Above, resume: Resume) -> BoxFuture<'_, Result<bool, Gone>> {
        async move {
            let group = self.group(&key).await;
            let state = group.as_ref().map(|group| &group.state);
            // Blocks are read whatever lies beside them: only a dataset ends the grid that it lies in.
            if matches!(part, Part::Grid(..)) && !matches!(state, Ok(GroupState::Dataset(_))) {
                if resume.is_none() {
                    self.misplaced_attributes(&key, state).await?;
                }
                self.entries(Within { key, part, above, knows_attributes: true }, resume).await?;
                return Ok(true);
            }
            let Some(above) = self.deeper(&key, above).await? else { return Ok(false) };
            let has_attributes = !matches!(state, Ok(GroupState::NoAttributes));
            if resume.is_none() {
                let findings = attributes::findings(&self.container, &self.patience, &key, state).await;
                if let Ok(GroupState::Dataset(dataset)) = state {
                    self.send(Item::Open { dataset: Arc::clone(dataset), resumed: false }).await?;
                } else {
                    self.send(Item::Group).await?;
                }
                for finding in findings {
                    self.send(Item::Found(finding)).await?;
                }
            } else if let Ok(GroupState::Dataset(dataset)) = state {
                self.send(Item::Open { dataset: Arc::clone(dataset), resumed: true }).await?;
            }
            let within = |part| Within { key, part, above, knows_attributes: has_attributes };
            if let Ok(GroupState::Dataset(dataset)) = state {
                self.entries(within(Part::Grid(Arc::clone(dataset), Coords::new())), resume).await?;
                self.send(Item::Close).await?;
            } else {
                self.entries(within(Part::Hierarchy), resume).await?;
            }
            Ok(false)
        }
        .boxed()
    }

    /// Says what is wrong with the attributes of a directory of a grid, which should have none.
    async fn misplaced_attributes(&self, key: &Key, state: Result<&GroupState, &ReadError>) -> Result<(), Gone> {
        if let Some(fault) = attributes::fault(key, state) {
            return self.send(Item::Found(fault)).await;
        }
        match (state, key.child(ATTRIBUTES)) {
            (Ok(GroupState::Attributes(_)), Ok(file)) => {
                self.found(Kind::StrayFile, &file, "attributes among the blocks of a dataset: nobody reads them").await
            }
            _ => Ok(()),
        }
    }

    /// The directories above what is in `key`; `None` where it is one of them itself.
    async fn deeper(&self, key: &Key, mut above: Above) -> Result<Option<Above>, Gone> {
        let identity = || async { self.store.identity(key).await.map_err(ReadError::Store) };
        match self.patience.with(identity).await {
            Ok(Some(identity)) if above.0.contains(&identity) => {
                self.found(Kind::LinkLoop, key, "a symbolic link leads back to a directory above").await?;
                return Ok(None);
            }
            Ok(Some(identity)) => above.0.push(identity),
            // Where the store fails, listing the directory tells.
            Ok(None) | Err(_) => {}
        }
        Ok(Some(above))
    }

    /// Walks what is in a directory.
    async fn entries(&self, within: Within, mut resume: Resume) -> Result<(), Gone> {
        let within = Arc::new(within);
        let Within { key, part, .. } = &*within;
        let mut seen = self.missing.then(Seen::default);
        let mut after: Option<String> = None;
        let (mut left_out, mut most_left_out) = (HashSet::new(), 0);
        loop {
            let page = match self.list(key, after.as_deref(), PAGE).await {
                Ok(Some(page)) => page,
                Ok(None) => Listing { entries: Vec::new(), more: false, left_out: Vec::new(), left_out_count: 0 },
                Err(error) => {
                    return self.found(Kind::UnreadableDirectory, key, error.to_string()).await;
                }
            };
            if after.is_none() && page.entries.is_empty() && !page.more && self.is_closed(key).await {
                let message = "it cannot be listed: permission is denied, or it was gone when it was to be read";
                return self.found(Kind::UnreadableDirectory, key, message).await;
            }
            most_left_out = most_left_out.max(page.left_out_count);
            for name in page.left_out {
                if left_out.insert(name.clone()) {
                    if resume.is_none() {
                        self.send(Item::Found(place::left_out(key, part, &name))).await?;
                    }
                    mark(part, &name, &mut seen);
                }
            }
            let mut ahead = Ahead::default();
            for (number, entry) in page.entries.iter().enumerate() {
                // What an earlier run has done.
                let target = resume.as_ref().and_then(|names| names.first()).map(String::as_str);
                let below = match target.map(|target| entry.name.as_str().cmp(target)) {
                    None => None,
                    Some(std::cmp::Ordering::Less) => {
                        self.mark(key, part, entry, &mut seen).await;
                        continue;
                    }
                    Some(std::cmp::Ordering::Greater) => {
                        resume = None;
                        None
                    }
                    Some(std::cmp::Ordering::Equal) => {
                        let rest = resume.take().map(|mut names| names.split_off(1)).filter(|names| !names.is_empty());
                        if rest.is_none() || !entry.is_directory {
                            self.mark(key, part, entry, &mut seen).await;
                            continue;
                        }
                        rest
                    }
                };
                // What follows an earlier run's end is walked from its beginning.
                if resume.is_none() {
                    ahead.begin(self, &within, &page.entries, number);
                }
                let is_seen = match ahead.finish(self, number).await {
                    Some(walked) => walked?,
                    None => self.entry(&within, entry, below).await?,
                };
                if is_seen {
                    mark(part, &entry.name, &mut seen);
                }
            }
            after = page.entries.last().map(|entry| entry.name.clone());
            if !page.more || after.is_none() {
                break;
            }
        }
        // A page names a few of them only.
        let unnamed = most_left_out.saturating_sub(left_out.len() as u64);
        if unnamed > 0 {
            let kind = if matches!(part, Part::Grid(..)) { Kind::UnreadableFile } else { Kind::UnlistedName };
            let message = format!("{unnamed} or more further names are not listed either, for the same reasons");
            self.send(Item::Found(place::not_listed(kind, key, message))).await?;
        }
        self.tell_gaps(part, seen).await
    }

    async fn group(&self, key: &Key) -> Result<Arc<Group>, ReadError> {
        self.patience.with(|| self.container.group(self.container.resources().begin(), key)).await
    }

    async fn list(&self, key: &Key, after: Option<&str>, limit: usize) -> Result<Option<Listing>, ReadError> {
        let list = || async { self.store.list(key, after, limit, Keep::all()).await.map_err(ReadError::Store) };
        self.patience.with(list).await
    }

    /// Whether a directory that seems empty is rather one that cannot be read.
    async fn is_closed(&self, key: &Key) -> bool {
        !matches!(self.list(key, None, 1).await, Ok(Some(_)))
    }

    /// Walks an entry of a directory; whether it is the part of the grid that it may be.
    pub(super) async fn entry(&self, within: &Within, entry: &Entry, resume: Resume) -> Result<bool, Gone> {
        let Within { key: parent, part, above, knows_attributes } = within;
        let Ok(key) = parent.child(&entry.name) else {
            self.found(Kind::UnreadableDirectory, parent, "directories are nested too deeply").await?;
            return Ok(false);
        };
        let place = Place::of(part, &entry.name);
        if entry.is_directory {
            let below = match place {
                Place::Between(dataset, prefix) => Part::Grid(dataset, prefix),
                Place::Block(dataset, position) => {
                    if resume.is_none() {
                        let message = "a directory stands where a block would be";
                        let finding = Finding::new(Kind::DirectoryAtBlock, key.as_str(), message);
                        self.send(Item::Found(finding.of(dataset.key.as_str()).at(&position))).await?;
                    }
                    Part::Hierarchy
                }
                Place::Attributes => {
                    if resume.is_none() {
                        self.found(Kind::BrokenAttributes, &key, "attributes.json is a directory").await?;
                    }
                    Part::Hierarchy
                }
                Place::Outside(_) | Place::Elsewhere => Part::Hierarchy,
            };
            return self.directory(key, below, above.clone(), resume).await;
        }
        match place {
            Place::Block(dataset, position) => {
                self.send(Item::Block(dataset, position)).await?;
                return Ok(true);
            }
            Place::Attributes if *knows_attributes => {}
            Place::Attributes => {
                self.found(Kind::UnreadableFile, &key, "permission to read it is denied, or it has just changed")
                    .await?;
            }
            Place::Outside(dataset) => {
                let shape = dataset.attributes.grid().shape();
                let message = format!("the block is outside the grid of {:?} blocks", shape.as_slice());
                let finding = Finding::new(Kind::OutsideGrid, key.as_str(), message).of(dataset.key.as_str());
                self.send(Item::Found(finding)).await?;
            }
            Place::Between(dataset, _) => {
                let message = "a file stands where a directory of blocks would be";
                let finding = Finding::new(Kind::MisplacedFile, key.as_str(), message).of(dataset.key.as_str());
                self.send(Item::Found(finding)).await?;
            }
            Place::Elsewhere if is_temporary(&entry.name) => {
                self.found(Kind::TemporaryFile, &key, "the name is that of a file that is being written").await?;
            }
            Place::Elsewhere => {
                self.found(Kind::StrayFile, &key, "it is neither attributes nor a block").await?;
            }
        }
        self.send(Item::Passed(key)).await?;
        Ok(false)
    }

    /// Marks an entry that an earlier run has walked.
    async fn mark(&self, parent: &Key, part: &Part, entry: &Entry, seen: &mut Option<Seen>) {
        if seen.is_none() {
            return;
        }
        let is_grid = match (Place::of(part, &entry.name), parent.child(&entry.name)) {
            (Place::Between(..), Ok(key)) if entry.is_directory => {
                !self.group(&key).await.is_ok_and(|group| matches!(group.state, GroupState::Dataset(_)))
            }
            (Place::Block(..), _) => !entry.is_directory,
            _ => false,
        };
        if is_grid {
            mark(part, &entry.name, seen);
        }
    }

    /// Says which numbers a directory of a grid lacks.
    async fn tell_gaps(&self, part: &Part, seen: Option<Seen>) -> Result<(), Gone> {
        let (Part::Grid(dataset, prefix), Some(seen)) = (part, seen) else { return Ok(()) };
        let mut shape = dataset.attributes.grid().shape();
        if shape.is_empty() {
            shape.push(1);
        }
        let inside = prefix.iter().zip(&shape).all(|(number, count)| number < count);
        let count = shape.get(prefix.len()).copied().unwrap_or(0);
        if !inside || shape.contains(&0) {
            return Ok(());
        }
        let Some(gaps) = seen.gaps(count) else { return self.send(Item::Scattered(count)).await };
        for gap in gaps {
            self.send(Item::Missing(Hole::new(prefix, gap, &shape))).await?;
        }
        Ok(())
    }
}

fn mark(part: &Part, name: &str, seen: &mut Option<Seen>) {
    if let (Part::Grid(..), Some(seen), Some(number)) = (part, seen, grid_component(name)) {
        seen.add(number);
    }
}
