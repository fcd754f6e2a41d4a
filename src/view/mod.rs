//! Views: the same container in the form that other programs expect, one file and one row of [`VIEWS`] each.
//!
//! A view turns a key of its own form into a document or a chunk. It knows containers and formats, but nothing of
//! requests, statuses and headers.

mod chunk;
mod node;
mod pieces;
mod precomputed;
mod reencoded;
mod zarr;
mod zarr2;
mod zarr3;

use std::fmt;

use async_trait::async_trait;

use crate::container::{Access, Container, Memory, ReadError};
use crate::metadata::{Description, Kind, Node};
use crate::store::Key;

pub use chunk::{Chunk, Form, Plain, Ready, Sent};
pub use node::{Known, read_node, read_node_with_text};
pub use pieces::{Pieces, PiecesFrom};

/// Every view, by the first segment of its paths.
pub static VIEWS: &[&dyn View] = &[&reencoded::Reencoded, &zarr2::Zarr2, &zarr3::Zarr3, &precomputed::Precomputed];

/// A form of containers.
///
/// # Example
///
/// A whole view: `/plain/{dataset}/shape.json`, and each block's elements as they are in memory at
/// `/plain/{dataset}/{i}/{j}`. With its row in [`VIEWS`] it has listings, conditional requests and a cache.
///
/// ```
/// # use std::sync::Arc;
/// use n5_server::container::ReadError;
/// use n5_server::n5::{Array, Coords};
/// use n5_server::view::{Chunk, Document, Form, Found, Lookup, View};
///
/// #[derive(Debug)]
/// struct Plain;
///
/// #[async_trait::async_trait]
/// impl View for Plain {
///     fn name(&self) -> &'static str {
///         "plain"
///     }
///
///     async fn resolve(&self, lookup: &Lookup<'_>) -> Result<Found, ReadError> {
///         if let (Some("shape.json"), Some(path)) = (lookup.key.name(), lookup.key.parent()) {
///             let dataset = lookup.container.dataset(lookup.access, &path).await?;
///             let shape = serde_json::json!(dataset.attributes.dimensions().to_vec());
///             return Ok(Found::Document(Document::from(&shape)));
///         }
///         let Some((dataset, position)) = lookup.container.block_at(lookup.access, lookup.key).await? else {
///             return Ok(Found::Missing);
///         };
///         let shape = dataset.attributes.grid().clipped_size(&position);
///         Chunk::of_block(dataset, position, &shape, Arc::new(Elements)).map(Found::Chunk)
///     }
///
///     async fn documents(&self, lookup: &Lookup<'_>) -> Result<Vec<String>, ReadError> {
///         let is_dataset = lookup.container.dataset(lookup.access, lookup.key).await.is_ok();
///         Ok(if is_dataset { vec!["shape.json".to_owned()] } else { Vec::new() })
///     }
/// }
///
/// #[derive(Debug)]
/// struct Elements;
///
/// impl Form for Elements {
///     fn id(&self) -> String {
///         "plain".to_owned()
///     }
///
///     fn extra_bytes(&self, _shape: &Coords, _width: usize) -> u64 {
///         0
///     }
///
///     fn encode(&self, array: Array) -> Result<bytes::Bytes, ReadError> {
///         Ok(array.data)
///     }
/// }
/// # use n5_server::container::{Container, Recheck, Resources, Settings};
/// # let settings = Settings { decoded_cache: 1 << 20, stored_cache: 1 << 20, weigh_frequency: false,
/// #     recheck_metadata: Recheck::Always, recheck_data: Recheck::Always, slice: 1 << 20, slice_budget: 1 << 20,
/// #     decode_budget: 1 << 20, transfer_budget: 1 << 20, decode_factor: 16, attributes: 1 << 20,
/// #     budget_wait: std::time::Duration::from_secs(1), cores: 1 };
/// # let resources = Resources::new(settings);
/// # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
/// # runtime.block_on(async {
/// #     let store = Arc::new(n5_server::demo::store());
/// #     let container = Container::new(store, Arc::clone(&resources));
/// #     let segments = ["volume", "em", "s2", "shape.json"];
/// #     let key = n5_server::store::Key::from_segments(segments).unwrap();
/// #     let lookup = Lookup { container: &container, access: resources.begin(), parameters: &[], key: &key, query: &[] };
/// #     let Found::Document(document) = Plain.resolve(&lookup).await.unwrap() else { panic!() };
/// #     assert!(document.text.starts_with("[48,"));
/// #     let key = n5_server::store::Key::from_segments(["volume", "em", "s2", "0", "0", "0"]).unwrap();
/// #     let Found::Chunk(chunk) = Plain.resolve(&Lookup { key: &key, ..lookup }).await.unwrap() else { panic!() };
/// #     assert!(chunk.sent(&container, lookup.access).await.unwrap().is_some());
/// # });
/// ```
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

    /// Refuses values that do not exist of the query's parameters that the view knows; other parameters are ignored, as
    /// clients add their own.
    ///
    /// # Errors
    /// [`ReadError::Parameter`].
    fn check(&self, _query: &[(String, String)]) -> Result<(), ReadError> {
        Ok(())
    }

    /// Whether a chunk depends on nothing but its dataset and its blocks: not on groups around them, for one.
    fn is_local(&self) -> bool {
        false
    }

    /// What the key stands for.
    ///
    /// # Errors
    /// [`ReadError`] when what it stands for cannot be read; a key that the view does not have is
    /// [`Found::Missing`].
    async fn resolve(&self, lookup: &Lookup<'_>) -> Result<Found, ReadError>;

    /// First segments of the path under which a directory is linked to; `None` where the view does not show it.
    fn link(&self, _node: &Node, description: &Description) -> Option<&'static str> {
        (description.kind != Kind::Dataset || description.is_decoded()).then(|| self.name())
    }

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
