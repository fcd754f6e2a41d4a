//! Loads a directory of a container, and the attributes around it that it takes to describe the directory.

use bytes::Bytes;

use crate::cache::{ATTRIBUTES, Freshness, MemoryPermit, ReadError};
use crate::container::Container;
use crate::store::Key;
use n5_format::{AttributesDocument, DocumentError, JsonObjectBuilder};
use n5_metadata::Node;

/// Maximum number of children of a group that are read as possible levels of a pyramid.
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

/// Upper bound of the memory for copies of attributes and a response that repeats them, as a multiple of the memory for
/// their text.
pub(super) const COPY_MEMORY_FACTOR: u64 = 5;

/// A directory and its surroundings, loaded for a description.
#[derive(Debug, Default)]
pub struct LoadedNode {
    /// The loaded directory.
    pub node: Node,
    /// Messages about attributes that were not read, with the reasons.
    pub problems: Vec<String>,
    /// Memory permit for the node, and then for the response.
    pub memory: Option<MemoryPermit>,
    /// Text of the directory's own attributes as stored, if it was requested and is a valid document.
    text: Bytes,
}

impl LoadedNode {
    /// Returns the length of the loaded text of the directory's own attributes, in bytes.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// Applies `copy` to the directory's own attributes as stored, and returns its result.
    ///
    /// # Errors
    /// [`ReadError::Internal`].
    pub(super) async fn map_text<T: Send + 'static>(
        &self,
        container: &Container,
        copy: impl FnOnce(&[u8]) -> T + Send + 'static,
    ) -> Result<T, ReadError> {
        let text = self.text.clone();
        container.run_document_job(text.len(), move || copy(&text)).await
    }

    /// Returns those of the directory's own attributes for whose names `predicate` returns true, as they are stored.
    ///
    /// # Errors
    /// [`ReadError::Internal`].
    pub async fn attributes(
        &self,
        container: &Container,
        predicate: impl FnMut(&str) -> bool + Send + 'static,
    ) -> Result<JsonObjectBuilder, ReadError> {
        self.map_text(container, |text| JsonObjectBuilder::from_matching(text, predicate)).await
    }
}

/// Reads what the description of `key` needs: its attributes and those around it.
///
/// # Errors
/// [`ReadError::NotFound`] if there is no such directory; other errors if the store fails or memory is short.
pub async fn read_node(container: &Container, freshness: Freshness, key: &Key) -> Result<LoadedNode, ReadError> {
    container.abort_if_contended(key, Box::pin(read(container, freshness, key, false))).await
}

/// As [`read_node`], for a response that repeats the directory's own attributes.
///
/// # Errors
/// As [`read_node`].
pub async fn read_node_with_text(
    container: &Container,
    freshness: Freshness,
    key: &Key,
) -> Result<LoadedNode, ReadError> {
    container.abort_if_contended(key, Box::pin(read(container, freshness, key, true))).await
}

async fn read(
    container: &Container,
    freshness: Freshness,
    key: &Key,
    with_text: bool,
) -> Result<LoadedNode, ReadError> {
    let budget_bytes = container.resources().settings().slice_budget;
    let max_bytes =
        MAX_CONTEXT_BYTES.min(budget_bytes.saturating_sub(MIN_DESCRIPTION_BYTES) / DESCRIPTION_MEMORY_FACTOR);
    let mut reader = AttributesReader { container, freshness, max_bytes, remaining_bytes: max_bytes, problems: vec![] };
    let admitted = reader.admit(key).await?;
    if admitted.is_none() && !container.is_directory(freshness, key).await? {
        return Err(ReadError::NotFound(key.clone()));
    }
    let text_bytes = admitted.filter(|_| with_text).unwrap_or(0);
    // Only the keys of ancestors with attributes are kept, because the keys of all ancestors of a path of 250 long
    // segments take megabytes.
    let mut ancestors = Vec::new();
    let mut parent = key.parent();
    while let Some(ancestor) = parent {
        let is_readable = reader.admit(&ancestor).await?.is_some();
        parent = ancestor.parent();
        ancestors.push(is_readable.then_some(ancestor));
    }
    ancestors.reverse();
    let mut children = None;
    let mut required: Option<Vec<(String, Key)>> = None;
    loop {
        // This request holds no attributes while it waits for memory.
        let description_bytes =
            (max_bytes - reader.remaining_bytes).saturating_mul(DESCRIPTION_MEMORY_FACTOR) + MIN_DESCRIPTION_BYTES;
        let memory = container
            .reserve_memory(description_bytes.saturating_add(text_bytes.saturating_mul(COPY_MEMORY_FACTOR)))
            .await?;
        let mut node = Node {
            document: match admitted {
                Some(_) => read_document(container, freshness, key).await?,
                None => None,
            },
            ..Node::default()
        };
        for ancestor in &ancestors {
            let document = match ancestor {
                Some(ancestor) => read_document(container, freshness, ancestor).await?,
                None => None,
            };
            node.ancestors.push(document.and_then(Result::ok).unwrap_or_default());
        }
        let is_document = matches!(&node.document, Some(Ok(_)));
        if !matches!(&node.document, Some(Ok(document)) if document.describes_dataset()) {
            if children.is_none() {
                children = container.directories(key, MAX_CHILDREN).await?;
                if children.as_ref().is_some_and(|names| names.len() >= MAX_CHILDREN) {
                    let text = format!("only the first {MAX_CHILDREN} subdirectories were searched for levels");
                    reader.problems.push(text);
                }
            }
            node.children = children.clone().ok_or_else(|| ReadError::NotFound(key.clone()))?;
        }
        let mut newly_required = Vec::new();
        match &required {
            Some(required) => {
                for (path, child) in required {
                    if let Some(Ok(document)) = read_document(container, freshness, child).await? {
                        node.child_documents.insert(path.clone(), document);
                    }
                }
            }
            None => {
                for path in n5_metadata::required_paths(&node) {
                    let Ok(child) = Key::from_segments(key.segments().chain(path.split('/'))) else { continue };
                    if reader.admit(&child).await?.is_some() {
                        newly_required.push((path, child));
                    }
                }
            }
        }
        if newly_required.is_empty() {
            let text = match text_bytes {
                0 => Bytes::new(),
                _ if is_document => container.attributes_bytes(freshness, key, text_bytes).await?,
                _ => Bytes::new(),
            };
            return Ok(LoadedNode { node, problems: reader.problems, memory: Some(memory), text });
        }
        // Starts again with memory for everything, because a request that holds memory must not wait for more.
        required = Some(newly_required);
    }
}

/// Reads the attributes that one request may interpret, up to a limit of memory.
struct AttributesReader<'a> {
    container: &'a Container,
    freshness: Freshness,
    max_bytes: u64,
    remaining_bytes: u64,
    problems: Vec<String>,
}

impl AttributesReader<'_> {
    /// Checks whether the attributes of `key` may be read, without keeping them. Returns the length of their text in
    /// bytes. Returns `None` if there are none, and adds a problem if they cannot be read or take too much memory.
    async fn admit(&mut self, key: &Key) -> Result<Option<u64>, ReadError> {
        let name = || format!("{}{}{ATTRIBUTES}", key.as_str(), if key.is_root() { "" } else { "/" });
        let group = match self.container.group(self.freshness, key).await {
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

/// Returns the attributes of `key`; `None` if there are none or they cannot be read.
pub(super) async fn read_document(
    container: &Container,
    freshness: Freshness,
    key: &Key,
) -> Result<Option<Result<AttributesDocument, DocumentError>>, ReadError> {
    let group = container.group_if_readable(freshness, key).await?;
    Ok(group.and_then(|group| group.document()))
}
