//! Input of a description: a directory of a container and the attributes around it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use n5_format::{AttributesDocument, DescribedDataset, DocumentError};
use serde_json::{Map, Value};

use crate::calibration::Calibration;

/// Maximum number of paths that [`required_paths`](crate::required_paths) returns.
pub const MAX_LEVELS: usize = 64;

/// A directory of a container, with the data that its description needs.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Attributes of the directories above, root first. A directory without attributes has an empty document. The list
    /// is empty for the root itself.
    pub ancestors: Vec<AttributesDocument>,
    /// The directory's own attributes, or `None` if it has no `attributes.json`.
    pub document: Option<Result<AttributesDocument, DocumentError>>,
    /// Names of the directories directly below. The grid directories of a dataset need not be listed.
    pub children: Vec<String>,
    /// Loaded attributes of the [`required_paths`](crate::required_paths), by path. Paths without attributes are left
    /// out.
    pub child_documents: BTreeMap<String, AttributesDocument>,
    /// Calibration of the dataset according to the pyramid that has it as a level
    /// ([`level_calibration`](crate::level_calibration)). It applies where the dataset's own attributes give none.
    pub level_calibration: Option<Calibration>,
}

static NO_ATTRIBUTES: LazyLock<AttributesDocument> = LazyLock::new(AttributesDocument::default);

impl Node {
    /// Returns the interpreted members of the directory's own attributes; empty if there are none.
    pub fn attributes(&self) -> &Map<String, Value> {
        self.own_document().members()
    }

    /// Returns true if the directory's own attributes are valid JSON and describe a dataset.
    pub fn is_dataset(&self) -> bool {
        self.own_document().describes_dataset()
    }

    pub(crate) fn own_document(&self) -> &AttributesDocument {
        match &self.document {
            Some(Ok(document)) => document,
            Some(Err(_)) | None => &NO_ATTRIBUTES,
        }
    }

    /// Returns the attributes of the directory directly above; empty if there are none.
    pub(crate) fn parent_attributes(&self) -> &Map<String, Value> {
        self.ancestors.last().unwrap_or(&NO_ATTRIBUTES).members()
    }

    /// Returns the dataset at `path`, relative to this directory, if `child_documents` has valid attributes for it.
    pub fn dataset_below(&self, path: &str) -> Option<DescribedDataset> {
        let document = self.child_documents.get(path)?;
        document.describes_dataset().then(|| DescribedDataset::parse(document.clone()).ok()).flatten()
    }
}
