//! Views: the same container in the formats that other programs expect. Each view has one file and one entry of
//! [`VIEWS`].
//!
//! [`View::resolve`] determines what a key of the view's own format stands for: a document, a [`Chunk`] or nothing.
//! [`Chunk::read`] decides how a chunk gets its bytes. A view knows containers and formats, but no requests, statuses
//! or headers.
//!
//! For example, `/zarr3/a/s0/c/0/0/1` becomes the key `a/s0/c/0/0/1` of the view `zarr3`. Its `resolve` splits the key
//! into the array `a/s0` and the coordinates `0, 0, 1` in Zarr's order, and reads the attributes of `a/s0`. It returns
//! [`Chunk::of_block`] with the dataset, the block's position in N5's order, and the encoder of the array's chunks.
//!
//! To add a view, start from the example of [`View`], and follow the row "view" of the table in `CONTRIBUTING.md`.

mod axis_order;
mod chunk;
mod chunk_encoder;
mod lookup;
mod node;
mod omero;
mod precomputed;
mod reencoded;
mod subtree;
mod volume;
mod zarr2;
mod zarr3;
mod zarr_array;
mod zarr_node;
mod zarr_subtree;

use std::fmt;

use async_trait::async_trait;

use crate::cache::ReadError;
use crate::container::DirectoryEntry;
use n5_metadata::{Description, Node, NodeKind};

pub use chunk::{Chunk, ChunkSource, EncodedChunk};
pub use chunk_encoder::{ChunkEncoder, StreamLayout};
pub use lookup::{ResolvedKey, ViewLookup};
pub use node::{LoadedNode, read_node, read_node_with_text};
pub use subtree::{
    MAX_PAGE_TIME, SubtreeEnd, SubtreeEntry, SubtreeRequest, is_container_root, summarize_directory, summarize_subtree,
};
pub use volume::{MAX_SEARCHED, Volume, VolumeLevel, find_volume, read_volume};

/// All views. The first segment of a path selects the view.
pub static VIEWS: &[&dyn View] = &[&reencoded::Reencoded, &zarr2::Zarr2, &zarr3::Zarr3, &precomputed::Precomputed];

/// A format in which containers are served.
///
/// # Example
///
/// A complete view: `/plain/{dataset}/shape.json`, and the elements of each block, as they are in memory, at
/// `/plain/{dataset}/{i}/{j}`. Its entry in [`VIEWS`] gives it listings, conditional requests and a cache.
///
/// ```
/// # use std::sync::Arc;
/// use n5_server::cache::ReadError;
/// use n5_format::{Array, Coords};
/// use n5_server::view::{Chunk, ChunkEncoder, ResolvedKey, View, ViewLookup};
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
///     async fn resolve(&self, lookup: &ViewLookup<'_>) -> Result<ResolvedKey, ReadError> {
///         if let (Some("shape.json"), Some(path)) = (lookup.key.name(), lookup.key.parent()) {
///             let dataset = lookup.container.dataset(lookup.options, &path).await?;
///             let shape = serde_json::json!(dataset.attributes.dimensions().to_vec());
///             return Ok(ResolvedKey::from(&shape));
///         }
///         let Some((dataset, position)) = lookup.container.block_at(lookup.options, lookup.key).await? else {
///             return Ok(ResolvedKey::Missing);
///         };
///         let shape = dataset.attributes.grid().clipped_size(&position);
///         Chunk::of_block(dataset, position, &shape, Arc::new(Elements)).map(ResolvedKey::Chunk)
///     }
///
///     async fn list_documents(&self, lookup: &ViewLookup<'_>) -> Result<Vec<String>, ReadError> {
///         let is_dataset = lookup.container.dataset(lookup.options, lookup.key).await.is_ok();
///         Ok(if is_dataset { vec!["shape.json".to_owned()] } else { Vec::new() })
///     }
/// }
///
/// #[derive(Debug)]
/// struct Elements;
///
/// impl ChunkEncoder for Elements {
///     fn id(&self) -> String {
///         "plain".to_owned()
///     }
///
///     fn encoder_bytes(&self, _shape: &Coords, _width: usize) -> u64 {
///         0
///     }
///
///     fn encode(&self, array: Array) -> Result<bytes::Bytes, ReadError> {
///         Ok(array.data)
///     }
/// }
/// # use n5_server::cache::ReadOptions;
/// # use n5_server::container::{Container, Resources, Settings};
/// # let resources = Resources::new(Settings::new(&n5_server::config::Config::default()));
/// # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
/// # runtime.block_on(async {
/// #     let store = Arc::new(n5_server::demo::store());
/// #     let container = Container::new(store, Arc::clone(&resources));
/// #     let segments = ["volume", "em", "s2", "shape.json"];
/// #     let key = n5_server::store::Key::from_segments(segments).unwrap();
/// #     let lookup = ViewLookup { container: &container, options: ReadOptions::begin(),
/// #         path_parameters: &[], key: &key, query: &[] };
/// #     let ResolvedKey::Document { text, .. } = Plain.resolve(&lookup).await.unwrap() else { panic!() };
/// #     assert!(text.starts_with("[48,"));
/// #     let key = n5_server::store::Key::from_segments(["volume", "em", "s2", "0", "0", "0"]).unwrap();
/// #     let lookup = ViewLookup { key: &key, ..lookup };
/// #     let ResolvedKey::Chunk(chunk) = Plain.resolve(&lookup).await.unwrap() else { panic!() };
/// #     assert!(chunk.read(&container, lookup.options).await.unwrap().is_some());
/// # });
/// ```
#[async_trait]
pub trait View: fmt::Debug + Send + Sync {
    /// Returns the first segment of the view's paths.
    fn name(&self) -> &'static str;

    /// Returns the number of path parameters: segments between the name of the view and the path in the container.
    fn path_parameter_count(&self) -> usize {
        0
    }

    /// Returns true if the view exists with these path parameters. There are [`Self::path_parameter_count`] of them.
    fn accepts_path_parameters(&self, _parameters: &[String]) -> bool {
        true
    }

    /// Returns true if a name in a path that no group or dataset has may have the suffix `.zarr` or `.ome.zarr`, and then
    /// stands for the name without it. Some programs open only paths with such a suffix.
    fn has_suffix_aliases(&self) -> bool {
        false
    }

    /// Checks the values of the query parameters that the view knows. Unknown parameters are ignored, because clients
    /// add their own.
    ///
    /// # Errors
    /// Returns [`ReadError::InvalidParameter`] for a value that the view does not accept.
    fn check_query(&self, _query: &[(String, String)]) -> Result<(), ReadError> {
        Ok(())
    }

    /// Returns true if a chunk depends only on its dataset and its blocks. If it also depends on, for example, a group
    /// above the dataset, returns false.
    fn has_self_contained_chunks(&self) -> bool {
        false
    }

    /// Returns the object that the key of a lookup stands for. A key that stands for no object gives
    /// [`ResolvedKey::Missing`].
    ///
    /// # Errors
    /// Returns an error if the object cannot be read.
    async fn resolve(&self, lookup: &ViewLookup<'_>) -> Result<ResolvedKey, ReadError>;

    /// Returns the path prefix for a link that shows a directory in this view, or `None` if the view does not show the
    /// directory.
    fn link_prefix(&self, _node: &Node, description: &Description) -> Option<&'static str> {
        (description.kind != NodeKind::Dataset || description.is_decoded()).then(|| self.name())
    }

    /// Returns the sorted names of the documents in the directory `lookup.key`, for listings.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::resolve`].
    async fn list_documents(&self, lookup: &ViewLookup<'_>) -> Result<Vec<String>, ReadError>;

    /// Returns the names of the directories that the view has in the directory `lookup.key` in addition to those of the
    /// container, for listings.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::resolve`].
    async fn list_further_directories(&self, _lookup: &ViewLookup<'_>) -> Result<Vec<String>, ReadError> {
        Ok(Vec::new())
    }

    /// Returns the chunks and the directories of chunks that exist directly below `lookup.key`, for listings. Returns
    /// `None` if `lookup.key` is neither an array nor a directory of chunks, or if the view does not list chunks. There
    /// are at most `max_entries`. The caller has taken memory for them.
    ///
    /// # Errors
    /// Returns [`ReadError::TooLarge`] if there are more entries, or if finding them takes too long. Returns other
    /// errors if the store fails, so that a listing is never incomplete.
    async fn list_chunks(
        &self,
        _lookup: &ViewLookup<'_>,
        _max_entries: usize,
    ) -> Result<Option<Vec<DirectoryEntry>>, ReadError> {
        Ok(None)
    }
}

impl PartialEq for dyn View {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn View {}

#[cfg(test)]
mod tests;
