//! Summaries of all groups, pyramids and datasets below a directory, a page at a time.
//!
//! The walk is depth first, in the byte order of the names. A directory comes before those below it. A page ends after a
//! directory, and the next page begins after the same directory, whether it still exists or not.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use futures_util::future;
use serde_json::Value;

use super::node::read_document;
use crate::cache::{GroupState, ReadError, ReadOptions};
use crate::container::{Container, Subdirectories, ZarrFormat, grid_component};
use crate::store::Key;
use n5_format::{AttributesDocument, JsonObjectBuilder};
use n5_metadata::{Node, Summary};

/// Number of directories that are read at once, if there is enough memory. Listing a directory takes a switch to
/// another thread, which takes longer than the work there.
const READ_AHEAD: usize = 8;

/// Maximum number of subdirectories among which the levels of a pyramid are searched for, as in `/info`.
const MAX_LEVEL_CANDIDATES: usize = 1000;

/// Maximum number of directories on a page, whether they have an entry or not.
const MAX_DIRECTORIES: usize = 20_000;

/// Time after which a page ends, so that slow storage gives a short page and no timeout.
pub const MAX_PAGE_TIME: Duration = Duration::from_secs(2);

/// Approximate memory of a name in addition to its text, in bytes.
const NAME_BYTES: u64 = 56;

/// Maximum length of a name in bytes, with [`NAME_BYTES`].
const MAX_NAME_BYTES: u64 = 320;

/// Maximum length of attributes in which a title is searched for, in bytes.
const MAX_TITLED_BYTES: u64 = 64 << 10;

/// Maximum number of characters of a title.
const MAX_TITLE_CHARS: usize = 200;

/// A directory below the one whose subtree is summarized.
#[derive(Debug)]
pub struct SubtreeEntry {
    /// Key of the directory.
    pub key: Key,
    /// Description of the directory.
    pub summary: Summary,
    /// Title or name in the attributes of the directory.
    pub title: Option<String>,
    /// Format of the Zarr store that the directory is. Nothing below it is listed.
    pub zarr: Option<ZarrFormat>,
    /// True if the directory is the root of an N5 container.
    pub is_container: bool,
    /// True if there are directories below that have entries.
    pub has_children: bool,
}

/// The subtree whose entries are requested.
#[derive(Debug, Clone, Copy)]
pub struct SubtreeRequest<'a> {
    /// Container of the subtree.
    pub container: &'a Container,
    /// How fresh cached attributes must be.
    pub options: ReadOptions,
    /// Directory whose subtree is summarized. It has no entry itself.
    pub key: &'a Key,
    /// Names that lead from the directory to the last directory of the previous page.
    pub after: &'a [String],
    /// True if the levels of a pyramid have entries of their own.
    pub with_levels: bool,
    /// Maximum number of names in the path from the directory to an entry.
    pub max_depth: usize,
    /// Memory that the walk may use, in bytes. The caller holds a permit for it.
    pub memory_bytes: u64,
}

/// The end of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubtreeEnd {
    /// No directories follow.
    Complete,
    /// Directories follow after this one. `None` if the page ended before the first directory.
    After(Option<Key>),
}

/// Passes the entries of a subtree to `emit`, one after the other, until it returns false: the page is then full, and
/// the entry is not on it.
///
/// # Errors
/// Returns [`ReadError::NotFound`] if there is no such directory, and an error if the store fails.
pub async fn summarize_subtree(
    request: SubtreeRequest<'_>,
    mut emit: impl FnMut(SubtreeEntry) -> bool + Send,
) -> Result<SubtreeEnd, ReadError> {
    let SubtreeRequest { container, key, .. } = request;
    let walk = SubtreeWalk::new(request).await?;
    container.abort_if_contended(key, Box::pin(walk.run(&mut emit))).await
}

/// Returns the summary of a single directory, or `None` if it does not exist.
///
/// # Errors
/// Returns an error if the store fails.
pub async fn summarize_directory(request: SubtreeRequest<'_>) -> Result<Option<SubtreeEntry>, ReadError> {
    let walk = SubtreeWalk::new(request).await?;
    let directory = walk.read_directory(request.key, &walk.outer_ancestors, false).await?;
    Ok(directory.map(|directory| directory.entry))
}

/// Returns true if the directory `key` is the root of an N5 container: its name ends in `.n5`, or its attributes name a
/// version of N5. A directory inside a container is none, because some writers repeat the version in every group.
pub fn is_container_root(key: &Key, node: &Node) -> bool {
    let has_suffix = |name: &str| name.strip_suffix(".n5").is_some_and(|stem| !stem.is_empty());
    let has_version = |document: &AttributesDocument| document.members().contains_key("n5");
    let is_inside =
        node.ancestors.iter().any(has_version) || key.parent().is_some_and(|parent| parent.segments().any(has_suffix));
    !is_inside && (key.name().is_some_and(has_suffix) || node.attributes().contains_key("n5"))
}

/// A directory with its entry and the directories below it.
#[derive(Debug)]
struct ReadDirectory {
    entry: SubtreeEntry,
    document: AttributesDocument,
    /// Directories to visit. Empty for a dataset and for a Zarr store.
    children: Subdirectories,
    /// True if directories with numbers as names may be groups, and not parts of a grid.
    has_numbered_groups: bool,
}

/// A directory between the requested one and the current one, with the directories below it that are still to visit.
#[derive(Debug)]
struct OpenDirectory {
    key: Key,
    document: AttributesDocument,
    identity: Option<u64>,
    has_numbered_groups: bool,
    /// Paths of the levels, relative to the directory, if it is a pyramid.
    level_paths: Vec<String>,
    /// Names that were listed and are still to be read.
    names: VecDeque<String>,
    /// Last name that was listed, if more follow.
    listed_until: Option<String>,
    /// Directories that have been read ahead.
    read_ahead: VecDeque<ReadDirectory>,
    held_bytes: u64,
}

impl OpenDirectory {
    /// Opens a directory. Also returns its entry.
    fn new(mut directory: ReadDirectory) -> (Self, SubtreeEntry) {
        let level_paths = std::mem::take(&mut directory.entry.summary.level_paths);
        let Subdirectories { names, has_more, identity, .. } = directory.children;
        let open = Self {
            key: directory.entry.key.clone(),
            held_bytes: directory.document.tree_bytes() + names_bytes(&names),
            document: directory.document,
            identity,
            has_numbered_groups: directory.has_numbered_groups,
            level_paths,
            listed_until: names.last().filter(|_| has_more).cloned(),
            names: names.into(),
            read_ahead: VecDeque::new(),
        };
        (open, directory.entry)
    }
}

/// Returns the approximate memory of `names` in bytes.
fn names_bytes(names: &[String]) -> u64 {
    names.iter().map(|name| NAME_BYTES + name.len() as u64).sum()
}

/// The walk of one page.
struct SubtreeWalk<'a> {
    request: SubtreeRequest<'a>,
    /// Attributes of the directories above the requested one, root first.
    outer_ancestors: Vec<AttributesDocument>,
    /// Identities of these directories.
    outer_identities: Vec<u64>,
    started: Instant,
}

impl<'a> SubtreeWalk<'a> {
    async fn new(request: SubtreeRequest<'a>) -> Result<Self, ReadError> {
        let SubtreeRequest { container, options, key, .. } = request;
        let mut walk =
            Self { request, outer_ancestors: Vec::new(), outer_identities: Vec::new(), started: Instant::now() };
        for ancestor in std::iter::successors(key.parent(), Key::parent) {
            let document = read_document(container, options, &ancestor).await?;
            walk.outer_ancestors.push(document.and_then(Result::ok).unwrap_or_default());
            walk.outer_identities.extend(container.directory_identity(&ancestor).await?);
        }
        walk.outer_ancestors.reverse();
        Ok(walk)
    }

    /// Returns true if a symbolic link leads from the open directories back to one of them, or to one above.
    fn is_link_upwards(&self, open: &[OpenDirectory], directory: &ReadDirectory) -> bool {
        directory.children.identity.is_some_and(|identity| {
            self.outer_identities.contains(&identity) || open.iter().any(|above| above.identity == Some(identity))
        })
    }

    async fn run(&self, emit: &mut (impl FnMut(SubtreeEntry) -> bool + Send)) -> Result<SubtreeEnd, ReadError> {
        let key = self.request.key;
        let root = self.read_directory(key, &self.outer_ancestors, false).await?;
        let root = root.ok_or_else(|| ReadError::NotFound(key.clone()))?;
        let mut open = vec![OpenDirectory::new(root).0];
        self.resume(&mut open).await?;
        let mut last_visited: Option<Key> = None;
        let mut visited_count = 0;
        loop {
            let Some(current) = open.last_mut() else { return Ok(SubtreeEnd::Complete) };
            let Some(directory) = current.read_ahead.pop_front() else {
                if !self.read_ahead(&mut open).await? {
                    open.pop();
                }
                continue;
            };
            if visited_count >= MAX_DIRECTORIES || (visited_count > 0 && self.started.elapsed() >= MAX_PAGE_TIME) {
                return Ok(SubtreeEnd::After(last_visited));
            }
            visited_count += 1;
            if self.is_link_upwards(&open, &directory) {
                last_visited = Some(directory.entry.key);
                continue;
            }
            let (directory, entry) = OpenDirectory::new(directory);
            if !emit(entry) {
                return Ok(SubtreeEnd::After(last_visited));
            }
            last_visited = Some(directory.key.clone());
            // The requested directory is open, too, so that the number of open directories is the depth of the entry.
            if !directory.names.is_empty() && open.len() < self.request.max_depth {
                open.push(directory);
            }
        }
    }

    /// Opens the directories that lead to the last directory of the previous page, so that the walk goes on behind it.
    async fn resume(&self, open: &mut Vec<OpenDirectory>) -> Result<(), ReadError> {
        for name in self.request.after {
            let is_too_deep = open.len() >= self.request.max_depth;
            let Some(current) = open.last_mut() else { return Ok(()) };
            // The names up to this one are passed, and those that follow are listed anew.
            current.names.clear();
            current.listed_until = Some(name.clone());
            let Ok(key) = current.key.child(name) else { return Ok(()) };
            let is_numbered_block = !current.has_numbered_groups && grid_component(name).is_some();
            if is_too_deep || is_numbered_block || self.is_skipped_level(open, &key) {
                return Ok(());
            }
            let directory = self.read_directory(&key, &self.ancestors(open), false).await?;
            let Some(directory) = directory.filter(|directory| !self.is_link_upwards(open, directory)) else {
                return Ok(());
            };
            open.push(OpenDirectory::new(directory).0);
        }
        Ok(())
    }

    /// Returns the attributes of the directories above those that are read next, root first.
    fn ancestors(&self, open: &[OpenDirectory]) -> Vec<AttributesDocument> {
        let documents = open.iter().map(|directory| directory.document.clone());
        self.outer_ancestors.iter().cloned().chain(documents).collect()
    }

    /// Returns true if the directory `key` is a level of an open pyramid and levels have no entries.
    fn is_skipped_level(&self, open: &[OpenDirectory], key: &Key) -> bool {
        let is_level_of = |directory: &OpenDirectory| {
            let path = key.as_str().strip_prefix(directory.key.as_str()).unwrap_or_default().trim_start_matches('/');
            directory.level_paths.iter().any(|level| level == path)
        };
        !self.request.with_levels && open.iter().any(is_level_of)
    }

    /// Reads the next directories below the current one. Returns false if there are no more.
    async fn read_ahead(&self, open: &mut [OpenDirectory]) -> Result<bool, ReadError> {
        let held_bytes: u64 = open.iter().map(|directory| directory.held_bytes).sum();
        let free_bytes = (self.request.memory_bytes / 2).saturating_sub(held_bytes);
        let is_memory_short = free_bytes < self.request.memory_bytes / 4;
        let ancestors = self.ancestors(open);
        let Some(current) = open.last_mut() else { return Ok(false) };
        if current.names.is_empty() {
            let Some(last) = current.listed_until.take() else { return Ok(false) };
            let max_names = usize::try_from(free_bytes / 2 / MAX_NAME_BYTES).unwrap_or(usize::MAX);
            let max_names = max_names.clamp(1, MAX_DIRECTORIES);
            let with_numbers = current.has_numbered_groups;
            let listing = self.request.container.subdirectories(&current.key, Some(&last), max_names, with_numbers);
            let Some(listed) = ReadError::hidden_as_none(listing.await)? else { return Ok(false) };
            current.held_bytes = current.document.tree_bytes() + names_bytes(&listed.names);
            current.listed_until = listed.names.last().filter(|_| listed.has_more).cloned();
            current.names = listed.names.into();
        }
        let mut keys = Vec::new();
        while keys.len() < if is_memory_short { 1 } else { READ_AHEAD } {
            let Some(name) = open.last_mut().and_then(|current| current.names.pop_front()) else { break };
            let Some(Ok(key)) = open.last().map(|current| current.key.child(&name)) else { continue };
            if !self.is_skipped_level(open, &key) {
                keys.push(key);
            }
        }
        // All of them are awaited before any is visited, because a listing that is not polled would keep its permit.
        let reads = keys.iter().map(|key| self.read_directory(key, &ancestors, is_memory_short));
        let directories = future::try_join_all(reads).await?;
        let Some(current) = open.last_mut() else { return Ok(false) };
        current.read_ahead.extend(directories.into_iter().flatten());
        Ok(!current.read_ahead.is_empty() || !current.names.is_empty() || current.listed_until.is_some())
    }

    /// Reads the directory `key`, whose parent directories have the attributes `ancestors`. Returns `None` if it does
    /// not exist. If memory is short, only the first names below it are kept; the others are listed later.
    async fn read_directory(
        &self,
        key: &Key,
        ancestors: &[AttributesDocument],
        is_memory_short: bool,
    ) -> Result<Option<ReadDirectory>, ReadError> {
        let SubtreeRequest { container, options, memory_bytes, .. } = self.request;
        let max_document_bytes = memory_bytes / 4 / READ_AHEAD as u64;
        let mut error = None;
        let group = match container.group(options, key).await {
            Ok(group) => Some(group),
            Err(ReadError::AttributesTooLarge { bytes, limit_bytes, .. }) => {
                error = Some(format!("attributes.json has {bytes} bytes; at most {limit_bytes} are parsed"));
                None
            }
            Err(ReadError::Store(store_error)) if store_error.hides_object() => {
                error = Some("the server is not able or not allowed to read attributes.json".to_owned());
                None
            }
            Err(store_error) => return Err(store_error),
        };
        let document = group.as_ref().and_then(|group| group.document());
        let text_bytes = group.as_ref().map_or(0, |group| group.text_bytes());
        let state = group.as_ref().map(|group| &group.state);
        let has_own_attributes = document.is_some() || error.is_some();
        // Directories with numbers as names are parts of a grid, unless the attributes say that this is a group.
        let has_numbered_groups = group.as_ref().is_some_and(|group| !group.may_have_grid());
        let has_groups = !matches!(state, Some(GroupState::Dataset(_) | GroupState::Unusable(..)));
        let children = if has_groups {
            let memory_share = usize::try_from(memory_bytes / 8 / READ_AHEAD as u64 / MAX_NAME_BYTES);
            let max_names = memory_share.unwrap_or(usize::MAX).clamp(1, MAX_LEVEL_CANDIDATES);
            match container.subdirectories(key, None, max_names, has_numbered_groups).await {
                Err(ReadError::Store(store_error)) if store_error.hides_object() => {
                    error.get_or_insert("the server is not able or not allowed to list this directory".to_owned());
                    Some(Subdirectories::default())
                }
                children => children?,
            }
        } else {
            Some(Subdirectories::default())
        };
        let Some(mut children) = children else { return Ok(None) };
        let zarr = children.zarr.take().filter(|_| !has_own_attributes);
        let mut node = Node { ancestors: ancestors.to_vec(), document, ..Node::default() };
        if zarr.is_some() {
            children.names.clear();
            children.has_more = false;
        } else {
            node.children.clone_from(&children.names);
        }
        let own_bytes = group.as_ref().map_or(0, |group| group.tree_bytes());
        if let Err(text) = self.read_levels(key, &mut node, own_bytes, max_document_bytes).await? {
            error = Some(text);
        }
        let path = key.as_str();
        let mut summary = n5_metadata::summarize(&node, path);
        summary.error = error.or(summary.error);
        let title = if text_bytes > 0 && text_bytes <= MAX_TITLED_BYTES { self.title(key).await? } else { None };
        if is_memory_short && children.names.len() > 1 {
            children.names.truncate(1);
            children.has_more = true;
        }
        let is_container = is_container_root(key, &node);
        let is_listed = |name: &String| self.request.with_levels || !summary.level_paths.contains(name);
        let has_children = children.has_more || children.names.iter().any(is_listed);
        let document = node.document.and_then(Result::ok).unwrap_or_default();
        let document = if own_bytes > max_document_bytes { AttributesDocument::default() } else { document };
        let entry = SubtreeEntry { key: key.clone(), summary, title, zarr, is_container, has_children };
        Ok(Some(ReadDirectory { entry, document, children, has_numbered_groups }))
    }

    /// Reads the attributes of the levels that a pyramid may have. Returns a sentence if they take too much memory.
    async fn read_levels(
        &self,
        key: &Key,
        node: &mut Node,
        own_bytes: u64,
        max_bytes: u64,
    ) -> Result<Result<(), String>, ReadError> {
        let mut bytes = own_bytes;
        for path in n5_metadata::required_paths(node) {
            let Ok(level_key) = Key::from_segments(key.segments().chain(path.split('/'))) else { continue };
            let group = self.request.container.group_if_readable(self.request.options, &level_key).await?;
            let Some(Ok(document)) = group.and_then(|group| group.document()) else { continue };
            bytes += document.tree_bytes();
            if bytes > max_bytes {
                return Ok(Err("the attributes of its levels are too large for this list".to_owned()));
            }
            node.child_documents.insert(path, document);
        }
        Ok(Ok(()))
    }

    /// Returns the title, or else the name, in the attributes of `key`.
    async fn title(&self, key: &Key) -> Result<Option<String>, ReadError> {
        let SubtreeRequest { container, options, .. } = self.request;
        let text = container.attributes_bytes(options, key, MAX_TITLED_BYTES).await?;
        let len = text.len();
        let find = move || {
            let members = JsonObjectBuilder::from_matching(&text, |name| name == "title" || name == "name");
            let members: Value = serde_json::from_str(&members.into_text()).unwrap_or_default();
            let title = ["title", "name"].into_iter().find_map(|name| members.get(name)?.as_str());
            let title: Option<String> = title.map(|title| title.chars().take(MAX_TITLE_CHARS).collect());
            title.filter(|title| !title.trim().is_empty())
        };
        container.run_document_job(len, find).await
    }
}
