//! Loading of a directory of a container, with the attributes around it that its description needs.

use bytes::Bytes;

use crate::cache::{ATTRIBUTES, MemoryPermit, ReadError, ReadOptions};
use crate::container::Container;
use crate::store::Key;
use n5_format::{AttributesDocument, DocumentError, JsonObjectBuilder};
use n5_metadata::Node;

/// Maximum number of subdirectories in which a group's levels are searched for.
const MAX_CHILDREN: usize = 1000;

/// Approximate upper bound of the memory for interpreted attributes, everything derived from them and their
/// description, as a multiple of the memory for the interpreted attributes alone.
const DESCRIPTION_MEMORY_FACTOR: u64 = 4;

/// Approximate lower bound of the memory for the description of a directory, in bytes.
const MIN_DESCRIPTION_BYTES: u64 = 64 << 10;

/// Approximate memory of a document in addition to its interpreted members, in bytes.
const DOCUMENT_OVERHEAD_BYTES: u64 = 512;

/// Maximum memory of all interpreted attributes around one directory, in bytes. It suffices for 32 directories with the
/// largest attributes, or for thousands of ordinary ones.
const MAX_CONTEXT_BYTES: u64 = 8 << 20;

/// Upper bound of the memory for copying attributes into a response, as a multiple of the length of their text.
pub(super) const COPY_MEMORY_FACTOR: u64 = 5;

/// A directory and its surroundings, loaded for a description.
#[derive(Debug, Default)]
pub struct LoadedNode {
    /// The loaded directory.
    pub node: Node,
    /// Messages about attributes that were not read, with the reasons.
    pub problems: Vec<String>,
    /// Memory permit for the node, and later for the response that is made from the node.
    pub memory: Option<MemoryPermit>,
    /// Text of the directory's own attributes as stored, if it was requested and is a valid document.
    text: Bytes,
}

impl LoadedNode {
    /// Returns the length of the loaded text of the directory's own attributes, in bytes.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// Runs `copy` on the text of the directory's own attributes, as stored, in a document job. Returns the result of
    /// `copy`.
    ///
    /// # Errors
    /// Returns [`ReadError::Internal`] if the job fails.
    pub(super) async fn map_text<T: Send + 'static>(
        &self,
        container: &Container,
        copy: impl FnOnce(&[u8]) -> T + Send + 'static,
    ) -> Result<T, ReadError> {
        let text = self.text.clone();
        container.run_document_job(text.len(), move || copy(&text)).await
    }

    /// Returns those of the directory's own attributes for whose names `predicate` returns true, as stored.
    ///
    /// # Errors
    /// Returns [`ReadError::Internal`] if the job fails.
    pub async fn attributes(
        &self,
        container: &Container,
        predicate: impl FnMut(&str) -> bool + Send + 'static,
    ) -> Result<JsonObjectBuilder, ReadError> {
        self.map_text(container, |text| JsonObjectBuilder::from_matching(text, predicate)).await
    }
}

/// Loads the attributes of the directory `key`, and all other attributes that its description needs.
///
/// # Errors
/// Returns [`ReadError::NotFound`] if there is no such directory, and other errors if the store fails or there is not
/// enough memory.
pub async fn read_node(container: &Container, options: ReadOptions, key: &Key) -> Result<LoadedNode, ReadError> {
    container.abort_if_contended(key, Box::pin(read(container, options, key, false))).await
}

/// Like [`read_node`], but also loads the text of the directory's own attributes, for a response that repeats them.
///
/// # Errors
/// Returns the same errors as [`read_node`].
pub async fn read_node_with_text(
    container: &Container,
    options: ReadOptions,
    key: &Key,
) -> Result<LoadedNode, ReadError> {
    container.abort_if_contended(key, Box::pin(read(container, options, key, true))).await
}

async fn read(
    container: &Container,
    options: ReadOptions,
    key: &Key,
    with_text: bool,
) -> Result<LoadedNode, ReadError> {
    let mut loader = NodeLoader::measure(container, options, key, with_text).await?;
    let mut loaded = loader.load().await?;
    let required = loader.measure_required_paths(key, &loaded.node).await?;
    let groups = loader.measure_enclosing_groups(&loaded.node).await?;
    if !required.is_empty() || !groups.is_empty() {
        // Starts again, with memory for all attributes, because a request that holds memory must not wait for more.
        drop(loaded);
        loaded = loader.load().await?;
        insert_documents(container, options, required, &mut loaded.node).await?;
        for group in groups {
            let Some(mut node) = n5_metadata::group_above(&loaded.node, group.distance) else { continue };
            node.children = group.children;
            insert_documents(container, options, group.required, &mut node).await?;
            loaded.node.level_calibration = n5_metadata::level_calibration(&node, &group.level_path);
            if loaded.node.level_calibration.is_some() {
                break;
            }
        }
    }
    if loader.text_bytes > 0 && matches!(loaded.node.document, Some(Ok(_))) {
        loaded.text = container.attributes_bytes(options, key, loader.text_bytes).await?;
    }
    loaded.problems = loader.problems;
    Ok(loaded)
}

/// Reads the attributes at these paths and keys into `node`.
async fn insert_documents(
    container: &Container,
    options: ReadOptions,
    paths: Vec<(String, Key)>,
    node: &mut Node,
) -> Result<(), ReadError> {
    for (path, key) in paths {
        if let Some(Ok(document)) = read_document(container, options, &key).await? {
            node.child_documents.insert(path, document);
        }
    }
    Ok(())
}

/// Returns the last `count` names of a key as a path.
fn last_names(key: &Key, count: usize) -> String {
    let mut names: Vec<&str> = key.segments().collect();
    names.drain(..names.len().saturating_sub(count));
    names.join("/")
}

/// A directory above a dataset that may be a pyramid with the dataset as a level.
struct EnclosingGroup {
    /// Number of directories from the dataset up to the group.
    distance: usize,
    /// Path of the dataset relative to the group.
    level_path: String,
    /// Names of the directories below the group that may be levels without being listed.
    children: Vec<String>,
    /// Paths of the attributes that the description of the pyramid needs, with their keys.
    required: Vec<(String, Key)>,
}

/// Loads a directory and its surroundings in two steps: measures the attributes without keeping them, then takes one
/// memory permit for all of them and loads them.
struct NodeLoader<'a> {
    container: &'a Container,
    options: ReadOptions,
    key: &'a Key,
    has_attributes: bool,
    /// Length of the directory's own attributes in bytes, if their text is loaded; otherwise 0.
    text_bytes: u64,
    /// Keys of the directories above, the container's root first. `None` for a directory without readable attributes:
    /// the keys of all ancestors of a path with 250 long segments would take megabytes.
    ancestors: Vec<Option<Key>>,
    /// Names of the directories below, once they have been listed.
    children: Option<Vec<String>>,
    /// Maximum memory of all interpreted attributes, in bytes.
    max_bytes: u64,
    /// Bytes of `max_bytes` that the attributes measured so far do not use.
    remaining_bytes: u64,
    problems: Vec<String>,
}

impl<'a> NodeLoader<'a> {
    /// Measures the attributes of the directory `key` and of those above.
    async fn measure(
        container: &'a Container,
        options: ReadOptions,
        key: &'a Key,
        with_text: bool,
    ) -> Result<Self, ReadError> {
        let budget_bytes = container.resources().settings().slice_budget;
        let max_bytes =
            MAX_CONTEXT_BYTES.min(budget_bytes.saturating_sub(MIN_DESCRIPTION_BYTES) / DESCRIPTION_MEMORY_FACTOR);
        let mut loader = Self {
            container,
            options,
            key,
            has_attributes: false,
            text_bytes: 0,
            ancestors: Vec::new(),
            children: None,
            max_bytes,
            remaining_bytes: max_bytes,
            problems: Vec::new(),
        };
        let text_bytes = loader.measure_attributes(key).await?;
        if text_bytes.is_none() && !container.is_directory(options, key).await? {
            return Err(ReadError::NotFound(key.clone()));
        }
        loader.has_attributes = text_bytes.is_some();
        loader.text_bytes = text_bytes.filter(|_| with_text).unwrap_or(0);
        let mut parent = key.parent();
        while let Some(ancestor) = parent {
            let has_attributes = loader.measure_attributes(&ancestor).await?.is_some();
            parent = ancestor.parent();
            loader.ancestors.push(has_attributes.then_some(ancestor));
        }
        loader.ancestors.reverse();
        Ok(loader)
    }

    /// Takes a memory permit for all attributes measured so far and loads the directory, except for the attributes
    /// below it.
    async fn load(&mut self) -> Result<LoadedNode, ReadError> {
        // This request holds no attributes while it is waiting for memory.
        let tree_bytes = self.max_bytes - self.remaining_bytes;
        let description_bytes = tree_bytes.saturating_mul(DESCRIPTION_MEMORY_FACTOR) + MIN_DESCRIPTION_BYTES;
        let copy_bytes = self.text_bytes.saturating_mul(COPY_MEMORY_FACTOR);
        let memory = self.container.reserve_memory(description_bytes.saturating_add(copy_bytes)).await?;
        let mut node = Node::default();
        if self.has_attributes {
            node.document = read_document(self.container, self.options, self.key).await?;
        }
        for ancestor in &self.ancestors {
            let document = match ancestor {
                Some(ancestor) => read_document(self.container, self.options, ancestor).await?,
                None => None,
            };
            node.ancestors.push(document.and_then(Result::ok).unwrap_or_default());
        }
        if !node.is_dataset() {
            node.children = self.list_children().await?;
        }
        Ok(LoadedNode { node, memory: Some(memory), ..LoadedNode::default() })
    }

    /// Returns the names of the directories below. Only the first call lists them.
    async fn list_children(&mut self) -> Result<Vec<String>, ReadError> {
        if self.children.is_none() {
            let children = self.container.subdirectories(self.key, None, MAX_CHILDREN, true).await?;
            self.children = children.map(|children| children.names);
            if self.children.as_ref().is_some_and(|names| names.len() >= MAX_CHILDREN) {
                let text = format!("only the first {MAX_CHILDREN} subdirectories were searched for levels");
                self.problems.push(text);
            }
        }
        self.children.clone().ok_or_else(|| ReadError::NotFound(self.key.clone()))
    }

    /// Accounts for the memory of the attributes of pyramids that may have the dataset `node` as a level. Returns their
    /// groups, the nearest first. Returns none if the dataset's own attributes suffice.
    async fn measure_enclosing_groups(&mut self, node: &Node) -> Result<Vec<EnclosingGroup>, ReadError> {
        let mut groups = Vec::new();
        if !n5_metadata::lacks_calibration(node) {
            return Ok(groups);
        }
        let ancestors = std::iter::successors(self.key.parent(), Key::parent);
        for (distance, key) in (1..=n5_metadata::MAX_PYRAMID_DISTANCE).zip(ancestors) {
            let Some(mut group) = n5_metadata::group_above(node, distance) else { break };
            let level_path = last_names(self.key, distance);
            if distance == 1 && n5_metadata::is_level_name(&level_path) {
                let listing = self.container.subdirectories(&key, None, MAX_CHILDREN, true).await;
                group.children = ReadError::hidden_as_none(listing)?.map(|listed| listed.names).unwrap_or_default();
                group.children.retain(|name| n5_metadata::is_level_name(name));
            }
            if n5_metadata::required_paths(&group).contains(&level_path) {
                let required = self.measure_required_paths(&key, &group).await?;
                groups.push(EnclosingGroup { distance, level_path, children: group.children, required });
            }
        }
        Ok(groups)
    }

    /// Accounts for the memory of the attributes at all paths that conventions require of `node`, the directory `key`.
    /// Returns the path and key of each directory that has readable attributes.
    async fn measure_required_paths(&mut self, key: &Key, node: &Node) -> Result<Vec<(String, Key)>, ReadError> {
        let mut required = Vec::new();
        for path in n5_metadata::required_paths(node) {
            let Ok(key) = Key::from_segments(key.segments().chain(path.split('/'))) else { continue };
            if self.measure_attributes(&key).await?.is_some() {
                required.push((path, key));
            }
        }
        Ok(required)
    }

    /// Subtracts the memory for the attributes of `key` from the remaining bytes. Returns the length of their text in
    /// bytes. Returns `None` if there are none, and adds a problem if they cannot be read or take too much memory.
    async fn measure_attributes(&mut self, key: &Key) -> Result<Option<u64>, ReadError> {
        let name = || format!("{}{}{ATTRIBUTES}", key.as_str(), if key.is_root() { "" } else { "/" });
        let group = match self.container.group(self.options, key).await {
            Err(ReadError::Store(error)) if error.hides_object() => {
                self.problems
                    .push(format!("{} counts as missing: the server is not able or not allowed to read it", name()));
                return Ok(None);
            }
            Err(ReadError::AttributesTooLarge { bytes, limit_bytes, .. }) => {
                self.problems.push(format!(
                    "{} has {bytes} bytes and counts as missing: at most {limit_bytes} are parsed; the setting \
                     limits.attributes can be raised, to 16MiB and limits.transfer_budget",
                    name()
                ));
                return Ok(None);
            }
            group => group?,
        };
        if group.document().is_none() {
            return Ok(None);
        }
        let bytes = group.tree_bytes() + DOCUMENT_OVERHEAD_BYTES;
        if bytes > self.remaining_bytes {
            self.problems.push(format!(
                "{} counts as missing: all attributes around this directory take more than {} bytes",
                name(),
                self.max_bytes
            ));
            return Ok(None);
        }
        self.remaining_bytes -= bytes;
        Ok(Some(group.text_bytes()))
    }
}

/// Returns the attributes of `key`, or `None` if there are none or they cannot be read.
pub(super) async fn read_document(
    container: &Container,
    options: ReadOptions,
    key: &Key,
) -> Result<Option<Result<AttributesDocument, DocumentError>>, ReadError> {
    let group = container.group_if_readable(options, key).await?;
    Ok(group.and_then(|group| group.document()))
}
