//! What is wrong or unusual about attributes: a sentence for people, and what it is about for programs.

use std::borrow::Borrow;
use std::ops::Deref;

use serde::{Serialize, Serializer};

/// A sentence, and what it is about. As JSON, the sentence alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What it is about.
    pub about: About,
    text: String,
}

/// What a problem is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The program of that name refuses the dataset, or the group as one image.
    RefusedBy(&'static str),
    /// A level of a pyramid is missing, does not fit the others or has no usable place.
    Level,
    /// A level as its own dataset: what is said of that is the same.
    DatasetOfLevel,
    /// Attributes that are meant to describe a dataset do not.
    NoDataset,
    /// This build does not decode the blocks.
    Undecoded,
    /// What the view `as` has in its place.
    Mended,
    /// Anything else that is unusual.
    Other,
}

impl About {
    /// The problem that this sentence tells.
    pub(super) fn says(self, text: impl Into<String>) -> Problem {
        Problem { about: self, text: text.into() }
    }
}

impl From<String> for Problem {
    fn from(text: String) -> Self {
        About::Other.says(text)
    }
}

impl Deref for Problem {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl Borrow<str> for Problem {
    fn borrow(&self) -> &str {
        &self.text
    }
}

impl PartialEq<&str> for Problem {
    fn eq(&self, text: &&str) -> bool {
        self.text == *text
    }
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}
