//! What the attributes of groups and datasets mean: everything that `/info` says, and the typed parts
//! (axes, pyramids, TensorStore's schema, forms of a compression) that views read.
//!
//! Imports `n5` only; pure. The caller does the I/O, in two phases: it reads a directory's own
//! attributes, its ancestors' and its listing into a [`Node`], asks [`wanted`] which documents below
//! the directory matter, adds them, and then calls [`describe`]. Nothing malformed makes this fail;
//! what cannot be used is said in [`Description::problems`].
//!
//! Axis order is N5's everywhere, the first axis fastest.

mod bdv;
mod codec;
mod cosem;
mod description;
mod fields;
mod lint;
mod n5_viewer;
mod neuroglancer;
mod ome_ngff;
mod paintera;
mod physical;
mod pyramid;
mod readers;
mod scales;
mod tensorstore;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::n5::{DatasetAttributes, Document, DocumentError};

pub use codec::{CodecForms, Hdf5Filter, codec_forms, compression_with_defaults};
pub use description::{Description, Kind};
pub use physical::Physical;
pub use pyramid::{Convention, Level, Pyramid};
pub use readers::Readable;
pub use tensorstore::{TensorStore, http_kvstore, tensorstore};

/// Most documents that [`wanted`] asks for.
pub const MAX_LEVELS: usize = 64;

/// A directory of a container, as far as its description needs it.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Attributes of the directories above, the container's root first; an empty document where one
    /// has none. Empty for the root itself.
    pub ancestors: Vec<Document>,
    /// The directory's own attributes; `None` without an `attributes.json`.
    pub document: Option<Result<Document, DocumentError>>,
    /// Names of the directories directly below. The grid directories of a dataset may be left out.
    pub children: Vec<String>,
    /// Of the paths named by [`wanted`] those that have attributes, by that path.
    pub child_documents: BTreeMap<String, Document>,
}

static NO_ATTRIBUTES: LazyLock<Document> = LazyLock::new(Document::default);

impl Node {
    /// The directory's own attributes, empty where there are none.
    pub fn attributes(&self) -> &Map<String, Value> {
        self.own().members()
    }

    fn own(&self) -> &Document {
        match &self.document {
            Some(Ok(document)) => document,
            Some(Err(_)) | None => &NO_ATTRIBUTES,
        }
    }

    /// Attributes of the directory directly above, empty where there are none.
    fn parent(&self) -> &Map<String, Value> {
        self.ancestors.last().unwrap_or(&NO_ATTRIBUTES).members()
    }

    /// The dataset at a path below, when its attributes were fetched and make sense.
    fn dataset_below(&self, path: &str) -> Option<DatasetAttributes> {
        let document = self.child_documents.get(path)?;
        document.describes_dataset().then(|| DatasetAttributes::parse(document.clone()).ok()).flatten()
    }
}

/// A multiscale convention.
struct Reader {
    /// Paths below the directory whose attributes decide and describe; empty when the directory's own
    /// attributes and listing already speak against this convention.
    wanted: fn(&Node) -> Vec<String>,
    /// The pyramid; `None` when the directory does not follow this convention.
    read: fn(&Node, &mut Vec<String>) -> Option<Pyramid>,
}

/// Every convention; the first that fits a group describes it.
///
/// The order is n5-universe's (`N5DatasetDiscoverer.java`), with the two that it does not know before
/// n5-viewer's, whose keys they share.
static CONVENTIONS: &[Reader] = &[
    Reader { wanted: ome_ngff::wanted, read: ome_ngff::read },
    Reader { wanted: cosem::wanted, read: cosem::read },
    Reader { wanted: paintera::wanted, read: paintera::read },
    Reader { wanted: bdv::wanted, read: bdv::read },
    Reader { wanted: n5_viewer::wanted, read: n5_viewer::read },
];

/// Paths below a directory whose `attributes.json` [`describe`] needs, at most [`MAX_LEVELS`].
///
/// They are relative, made of sound segments only, and need not exist. A dataset needs none. Which
/// ones each convention asks for is said in its file.
pub fn wanted(node: &Node) -> Vec<String> {
    if node.own().describes_dataset() {
        return Vec::new();
    }
    let mut paths = Vec::new();
    for path in CONVENTIONS.iter().flat_map(|convention| (convention.wanted)(node)) {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths.truncate(MAX_LEVELS);
    paths
}

/// The pyramid that a group is; `None` for a plain group and for a dataset. What is wrong with it is
/// appended to `problems`.
pub fn pyramid(node: &Node, problems: &mut Vec<String>) -> Option<Pyramid> {
    if node.own().describes_dataset() {
        return None;
    }
    CONVENTIONS.iter().find_map(|convention| (convention.read)(node, problems))
}

/// Everything that is known about a directory.
pub fn describe(node: &Node) -> Description {
    Description::new(node)
}
