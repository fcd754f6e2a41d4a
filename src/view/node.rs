//! A directory of a container with everything around it that its meaning depends on.

use crate::container::{ATTRIBUTES, Access, Container, Memory, ReadError};
use crate::metadata::{self, Node};
use crate::n5::{Document, DocumentError};
use crate::store::Key;

/// Children of a group that may be levels of a pyramid; more are not looked at.
const CHILDREN: usize = 1000;

/// A parsed document, what is made of it and the answer take at most about this many times the memory of
/// its text.
const DESCRIBED_FACTOR: u64 = 64;

/// What a description is made of.
#[derive(Debug, Default)]
pub struct Known {
    /// The directory.
    pub node: Node,
    /// Attributes that were not looked at, and why.
    pub problems: Vec<String>,
    /// Stands for the node and then for the answer.
    pub memory: Option<Memory>,
}

/// Reads what the description of `key` needs: its attributes and those around it.
///
/// # Errors
/// [`ReadError::NotFound`] where there is no such directory; others when the store fails or memory is short.
pub async fn read_node(container: &Container, access: Access, key: &Key) -> Result<Known, ReadError> {
    container.unless_needed(key, Box::pin(read(container, access, key))).await
}

async fn read(container: &Container, access: Access, key: &Key) -> Result<Known, ReadError> {
    let mut texts =
        Texts { container, access, left_bytes: container.resources().settings().attributes, problems: vec![] };
    let own_bytes = texts.admit(key).await?;
    let mut ancestors = Vec::new();
    let mut above = key.parent();
    while let Some(ancestor) = above {
        let bytes = texts.admit(&ancestor).await?;
        above = ancestor.parent();
        ancestors.push((ancestor, bytes));
    }
    ancestors.reverse();
    let mut bytes = own_bytes + ancestors.iter().map(|(_, bytes)| bytes).sum::<u64>();
    let mut children = None;
    let mut wanted: Option<Vec<(String, Key, u64)>> = None;
    loop {
        let memory = container.reserve(bytes.saturating_mul(DESCRIBED_FACTOR)).await?;
        let mut node = Node { document: texts.read(key, own_bytes).await?, ..Node::default() };
        for (ancestor, bytes) in &ancestors {
            let document = texts.read(ancestor, *bytes).await?;
            node.ancestors.push(document.and_then(Result::ok).unwrap_or_default());
        }
        if !matches!(&node.document, Some(Ok(document)) if document.describes_dataset()) {
            if children.is_none() {
                children = container.directories(key, CHILDREN).await?;
                if children.as_ref().is_some_and(|names| names.len() >= CHILDREN) {
                    let text = format!("only the first {CHILDREN} directories below were looked at for levels");
                    texts.problems.push(text);
                }
            }
            node.children = children.clone().ok_or_else(|| ReadError::NotFound(key.clone()))?;
        }
        if let Some(wanted) = &wanted {
            for (path, below, bytes) in wanted {
                if let Some(Ok(document)) = texts.read(below, *bytes).await? {
                    node.child_documents.insert(path.clone(), document);
                }
            }
            return Ok(Known { node, problems: texts.problems, memory: Some(memory) });
        }
        let mut found = Vec::new();
        for path in metadata::wanted(&node) {
            let Ok(below) = Key::from_segments(key.segments().chain(path.split('/'))) else { continue };
            match texts.admit(&below).await? {
                0 => {}
                bytes => found.push((path, below, bytes)),
            }
        }
        if found.is_empty() {
            return Ok(Known { node, problems: texts.problems, memory: Some(memory) });
        }
        // Once more from the start, with memory for all: nobody waits for memory who holds some.
        bytes += found.iter().map(|(_, _, bytes)| bytes).sum::<u64>();
        wanted = Some(found);
    }
}

/// The attributes that one request may parse: together no more text than `limits.attributes`.
struct Texts<'a> {
    container: &'a Container,
    access: Access,
    left_bytes: u64,
    problems: Vec<String>,
}

impl Texts<'_> {
    /// Length of the attributes of `key`; 0 where there are none or they are too much, which becomes a
    /// problem.
    async fn admit(&mut self, key: &Key) -> Result<u64, ReadError> {
        let Ok(file) = key.child(ATTRIBUTES) else { return Ok(0) };
        let meta = match self.container.meta(self.access, &file).await {
            Err(ReadError::Store(error)) if error.hides() => {
                self.problems.push(format!("{file} counts as missing: the server may not or cannot read it"));
                return Ok(0);
            }
            meta => meta?,
        };
        let Some(meta) = meta else { return Ok(0) };
        if meta.len > self.left_bytes {
            let limit = self.container.resources().settings().attributes;
            self.problems.push(if meta.len > limit {
                format!(
                    "{file} has {} bytes and counts as missing: at most {limit} are parsed; the setting \
                     limits.attributes can be raised",
                    meta.len
                )
            } else {
                format!(
                    "{file} counts as missing: all attributes around this directory have more than {limit} bytes; \
                     the setting limits.attributes can be raised"
                )
            });
            return Ok(0);
        }
        self.left_bytes -= meta.len;
        // An empty file is no absent one.
        Ok(meta.len.max(1))
    }

    /// The attributes of `key`, which were admitted with `bytes`.
    async fn read(&self, key: &Key, bytes: u64) -> Result<Option<Result<Document, DocumentError>>, ReadError> {
        if bytes == 0 {
            return Ok(None);
        }
        // It may have grown meanwhile.
        let group = self.container.group_if_readable(self.access, key).await?;
        Ok(group.and_then(|group| group.document()))
    }
}
