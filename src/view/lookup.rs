//! Lookups in a view, and their results.

use super::chunk::Chunk;
use crate::cache::{MemoryPermit, ReadOptions};
use crate::container::Container;
use crate::store::Key;

/// A lookup in a view.
#[derive(Debug, Clone, Copy)]
pub struct ViewLookup<'a> {
    /// Container to look in.
    pub container: &'a Container,
    /// How fresh cached entries must be, and whether the lookup may wait.
    pub options: ReadOptions,
    /// Path segments between the name of the view and the path in the container.
    pub path_parameters: &'a [String],
    /// Path in the view's format, which follows the path parameters.
    pub key: &'a Key,
    /// Decoded names and values of the query.
    pub query: &'a [(String, String)],
}

impl ViewLookup<'_> {
    /// Returns the last value of a query parameter.
    pub fn query_value(&self, name: &str) -> Option<&str> {
        self.query.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Object that a key of a view stands for.
#[derive(Debug)]
pub enum ResolvedKey {
    /// The key stands for no object.
    Missing,
    /// A JSON document.
    Document {
        /// Text of the document.
        text: String,
        /// Memory permit for the data from which the document is made, and then for the document.
        memory: Option<MemoryPermit>,
    },
    /// A part of a dataset.
    Chunk(Chunk),
}

impl From<&serde_json::Value> for ResolvedKey {
    fn from(value: &serde_json::Value) -> Self {
        Self::Document { text: value.to_string(), memory: None }
    }
}
