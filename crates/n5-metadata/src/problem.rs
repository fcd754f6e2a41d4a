//! Problems and unusual properties of attributes: each has a human-readable sentence, and a kind for programs.

use std::borrow::Borrow;
use std::ops::Deref;

use serde::{Serialize, Serializer};

use crate::json_values::push_unique;

/// A problem with attributes. Only its sentence is serialized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataProblem {
    /// Kind of the problem.
    pub kind: MetadataProblemKind,
    text: String,
}

/// Kind of a [`MetadataProblem`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetadataProblemKind {
    /// The program with this name refuses the dataset, or refuses to open the group as one image.
    RefusedBy(&'static str),
    /// A level of a pyramid is missing, does not match the other levels, or has no usable position.
    InvalidLevel,
    /// A problem of a level's dataset, which is also reported in the description of that dataset.
    DatasetOfLevel,
    /// Attributes that are meant to describe a dataset do not describe one.
    InvalidDataset,
    /// This build does not decode the blocks.
    Undecoded,
    /// A change that the view `as` makes.
    Normalized,
    /// Any other unusual property.
    Other,
}

impl MetadataProblemKind {
    /// Appends a problem of this kind with the given sentence unless the list already contains it.
    pub(crate) fn report(self, problems: &mut Vec<MetadataProblem>, text: impl Into<String>) {
        push_unique(problems, MetadataProblem { kind: self, text: text.into() });
    }
}

impl From<String> for MetadataProblem {
    fn from(text: String) -> Self {
        Self { kind: MetadataProblemKind::Other, text }
    }
}

impl From<&str> for MetadataProblem {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl Deref for MetadataProblem {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl Borrow<str> for MetadataProblem {
    fn borrow(&self) -> &str {
        &self.text
    }
}

impl PartialEq<&str> for MetadataProblem {
    fn eq(&self, text: &&str) -> bool {
        self.text == *text
    }
}

impl Serialize for MetadataProblem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}
