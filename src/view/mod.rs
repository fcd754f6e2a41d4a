//! Views: the same container in the form that other programs expect, one file and one row of [`VIEWS`] each.
//!
//! A view turns a key of its own form into a document or a chunk. It knows containers and formats, but nothing of
//! requests, statuses and headers.

mod chunk;
mod node;
mod precomputed;

use std::fmt;

use async_trait::async_trait;

use crate::container::{Access, Container, Memory, ReadError};
use crate::store::Key;

pub use chunk::{Chunk, Form, Ready};
pub use node::{Known, read_node};

/// Every view, by the first segment of its paths.
pub static VIEWS: &[&dyn View] = &[&precomputed::Precomputed];

/// A form of containers.
#[async_trait]
pub trait View: fmt::Debug + Send + Sync {
    /// First segment of its paths.
    fn name(&self) -> &'static str;

    /// How many segments after the name are the view's own, before the path in the container.
    fn parameters(&self) -> usize {
        0
    }

    /// Whether there is a view with these parameters, [`Self::parameters`] of them.
    fn accepts(&self, _parameters: &[String]) -> bool {
        true
    }

    /// What the key stands for.
    ///
    /// # Errors
    /// [`ReadError`] when what it stands for cannot be read; a key that the view does not have is
    /// [`Found::Missing`].
    async fn resolve(&self, lookup: &Lookup<'_>) -> Result<Found, ReadError>;

    /// Names of the documents in the directory `lookup.key`, for listings, sorted.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    async fn documents(&self, lookup: &Lookup<'_>) -> Result<Vec<String>, ReadError>;
}

impl PartialEq for dyn View {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn View {}

/// What a view is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Lookup<'a> {
    /// Where to look.
    pub container: &'a Container,
    /// How old cached entries may be.
    pub access: Access,
    /// The view's own segments.
    pub parameters: &'a [String],
    /// The path after them, in the view's form.
    pub key: &'a Key,
    /// Names and values of the query, decoded.
    pub query: &'a [(String, String)],
}

impl Lookup<'_> {
    /// The last value of a query parameter.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// What a key of a view stands for.
#[derive(Debug)]
pub enum Found {
    /// Nothing.
    Missing,
    /// A document.
    Document(Document),
    /// A part of a dataset.
    Chunk(Chunk),
}

/// A JSON document.
#[derive(Debug)]
pub struct Document {
    /// The text.
    pub text: String,
    /// The share of memory that stands for what it was made of, and then for it.
    pub memory: Option<Memory>,
}

impl From<&serde_json::Value> for Document {
    fn from(value: &serde_json::Value) -> Self {
        Self { text: value.to_string(), memory: None }
    }
}
