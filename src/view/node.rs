//! A directory of a container with everything around it that its meaning depends on.

use bytes::Bytes;

use crate::container::{ATTRIBUTES, Access, Container, Memory, ReadError};
use crate::metadata::{self, Node};
use crate::n5::{Document, DocumentError, ObjectText};
use crate::store::Key;

/// Children of a group that may be levels of a pyramid; more are not looked at.
const CHILDREN: usize = 1000;

/// Interpreted attributes, what is made of them and what is said about them take at most about this many times the memory of
/// the attributes alone.
const DESCRIBED_FACTOR: u64 = 4;

/// What is said about a directory takes about this much at least.
const DESCRIPTION_BYTES: u64 = 64 << 10;

/// A document takes about this much besides its interpreted members.
const DOCUMENT_BYTES: u64 = 512;

/// Most bytes that the interpreted attributes around one directory take together: those of 32 directories of the worst kind, or
/// of thousands of ordinary ones.
const AROUND_BYTES: u64 = 8 << 20;

/// Copies of attributes, and an answer that repeats them, take at most this many times the memory of their text.
pub(super) const COPIED_FACTOR: u64 = 5;

/// What a description is made of.
#[derive(Debug, Default)]
pub struct Known {
    /// The directory.
    pub node: Node,
    /// Attributes that were not looked at, and why.
    pub problems: Vec<String>,
    /// Stands for the node and then for the answer.
    pub memory: Option<Memory>,
    /// The directory's own attributes as they are stored, where they are a document and were asked for.
    text: Bytes,
}

impl Known {
    /// Length of the directory's own attributes.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }

    /// What `copy` makes of the directory's own attributes as they are stored.
    ///
    /// # Errors
    /// [`ReadError::Died`].
    pub(super) async fn copied<T: Send + 'static>(
        &self,
        container: &Container,
        copy: impl FnOnce(&[u8]) -> T + Send + 'static,
    ) -> Result<T, ReadError> {
        let text = self.text.clone();
        container.work_on(text.len(), move || copy(&text)).await
    }

    /// Those of the directory's own attributes whose names are `wanted`, as they are stored.
    ///
    /// # Errors
    /// [`ReadError::Died`].
    pub async fn attributes(
        &self,
        container: &Container,
        wanted: impl FnMut(&str) -> bool + Send + 'static,
    ) -> Result<ObjectText, ReadError> {
        self.copied(container, |text| ObjectText::of(text, wanted)).await
    }
}

/// Reads what the description of `key` needs: its attributes and those around it.
///
/// # Errors
/// [`ReadError::NotFound`] where there is no such directory; others when the store fails or memory is short.
pub async fn read_node(container: &Container, access: Access, key: &Key) -> Result<Known, ReadError> {
    container.unless_needed(key, Box::pin(read(container, access, key, false))).await
}

/// As [`read_node`], for an answer that repeats the directory's own attributes.
///
/// # Errors
/// As [`read_node`].
pub async fn read_node_with_text(container: &Container, access: Access, key: &Key) -> Result<Known, ReadError> {
    container.unless_needed(key, Box::pin(read(container, access, key, true))).await
}

async fn read(container: &Container, access: Access, key: &Key, with_text: bool) -> Result<Known, ReadError> {
    let budget_bytes = container.resources().settings().slice_budget;
    let most_bytes = AROUND_BYTES.min(budget_bytes.saturating_sub(DESCRIPTION_BYTES) / DESCRIBED_FACTOR);
    let mut around = Around { container, access, most_bytes, left_bytes: most_bytes, problems: vec![] };
    let own = around.admit(key).await?;
    if !own.is_there && !container.is_directory(access, key).await? {
        return Err(ReadError::NotFound(key.clone()));
    }
    let text_bytes = if with_text { own.text_bytes } else { 0 };
    // Keys only of those that are there: all keys above a path of 250 long segments take megabytes.
    let mut ancestors = Vec::new();
    let mut above = key.parent();
    while let Some(ancestor) = above {
        let is_there = around.admit(&ancestor).await?.is_there;
        above = ancestor.parent();
        ancestors.push(is_there.then_some(ancestor));
    }
    ancestors.reverse();
    let mut children = None;
    let mut wanted: Option<Vec<(String, Key)>> = None;
    loop {
        // Nothing of what was looked at is held while this waits.
        let described = (most_bytes - around.left_bytes).saturating_mul(DESCRIBED_FACTOR) + DESCRIPTION_BYTES;
        let memory = container.reserve(described.saturating_add(text_bytes.saturating_mul(COPIED_FACTOR))).await?;
        let mut node = Node { document: around.read(key, own.is_there).await?, ..Node::default() };
        for ancestor in &ancestors {
            let document = match ancestor {
                Some(ancestor) => around.read(ancestor, true).await?,
                None => None,
            };
            node.ancestors.push(document.and_then(Result::ok).unwrap_or_default());
        }
        let is_document = matches!(&node.document, Some(Ok(_)));
        if !matches!(&node.document, Some(Ok(document)) if document.describes_dataset()) {
            if children.is_none() {
                children = container.directories(key, CHILDREN).await?;
                if children.as_ref().is_some_and(|names| names.len() >= CHILDREN) {
                    let text = format!("only the first {CHILDREN} directories below were looked at for levels");
                    around.problems.push(text);
                }
            }
            node.children = children.clone().ok_or_else(|| ReadError::NotFound(key.clone()))?;
        }
        let mut found = Vec::new();
        match &wanted {
            Some(wanted) => {
                for (path, below) in wanted {
                    if let Some(Ok(document)) = around.read(below, true).await? {
                        node.child_documents.insert(path.clone(), document);
                    }
                }
            }
            None => {
                for path in metadata::wanted(&node) {
                    let Ok(below) = Key::from_segments(key.segments().chain(path.split('/'))) else { continue };
                    if around.admit(&below).await?.is_there {
                        found.push((path, below));
                    }
                }
            }
        }
        if found.is_empty() {
            let text = match text_bytes {
                0 => Bytes::new(),
                _ if is_document => container.attributes_bytes(access, key, text_bytes).await?,
                _ => Bytes::new(),
            };
            return Ok(Known { node, problems: around.problems, memory: Some(memory), text });
        }
        // Once more from the start, with memory for all: nobody waits for memory who holds some.
        wanted = Some(found);
    }
}

/// The attributes that one request may interpret.
struct Around<'a> {
    container: &'a Container,
    access: Access,
    most_bytes: u64,
    left_bytes: u64,
    problems: Vec<String>,
}

/// Attributes that may be read.
#[derive(Debug, Default)]
struct Admitted {
    is_there: bool,
    text_bytes: u64,
}

impl Around<'_> {
    /// Looks at the attributes of `key`, and keeps nothing; where they cannot be read or are too much, that becomes a problem.
    async fn admit(&mut self, key: &Key) -> Result<Admitted, ReadError> {
        let name = || format!("{}{}{ATTRIBUTES}", key.as_str(), if key.is_root() { "" } else { "/" });
        let group = match self.container.group(self.access, key).await {
            Err(ReadError::Store(error)) if error.hides() => {
                self.problems.push(format!("{} counts as missing: the server may not or cannot read it", name()));
                return Ok(Admitted::default());
            }
            Err(ReadError::AttributesTooLarge { bytes, limit_bytes, .. }) => {
                self.problems.push(format!(
                    "{} has {bytes} bytes and counts as missing: at most {limit_bytes} are parsed; the setting \
                     limits.attributes can be raised, to 16MiB and limits.transfer_budget",
                    name()
                ));
                return Ok(Admitted::default());
            }
            group => group?,
        };
        if group.document().is_none() {
            return Ok(Admitted::default());
        }
        let bytes = group.tree_bytes() + DOCUMENT_BYTES;
        if bytes > self.left_bytes {
            self.problems.push(format!(
                "{} counts as missing: all attributes around this directory take more than {} bytes",
                name(),
                self.most_bytes
            ));
            return Ok(Admitted::default());
        }
        self.left_bytes -= bytes;
        Ok(Admitted { is_there: true, text_bytes: group.text_bytes() })
    }

    /// The attributes of `key`, if they were admitted.
    async fn read(&self, key: &Key, is_there: bool) -> Result<Option<Result<Document, DocumentError>>, ReadError> {
        if !is_there {
            return Ok(None);
        }
        let group = self.container.group_if_readable(self.access, key).await?;
        Ok(group.and_then(|group| group.document()))
    }
}
