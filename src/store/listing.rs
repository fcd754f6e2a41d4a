//! Listings of a store's directories.

use std::sync::Arc;

/// One page of a directory listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Entries, sorted by the bytes of their names.
    pub entries: Vec<DirEntry>,
    /// True if more entries follow.
    pub has_more: bool,
    /// Names of omitted entries as text, at most [`MAX_OMITTED_NAMES`]. An entry is omitted if no key can have its
    /// name, if it is a link that is dangling or not followed, or if it is neither a file nor a directory. Names that
    /// no key can have are reported on every page.
    pub omitted_names: Vec<String>,
    /// Number of omitted entries, including those in [`Self::omitted_names`]. If [`Self::has_more`] is true, the next
    /// page may count some of them again.
    pub omitted_count: u64,
}

/// Maximum number of names in [`Listing::omitted_names`].
pub const MAX_OMITTED_NAMES: usize = 16;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// Name of the entry, which is a valid key segment.
    pub name: String,
    /// True if the entry is a directory.
    pub is_directory: bool,
}

/// Filter of the entries that [`Store::list`](super::Store::list) returns. It is called while the directory is scanned, so rejected entries
/// cost neither memory nor another scan.
pub type EntryFilter = Arc<dyn Fn(&DirEntry) -> FilterDecision + Send + Sync>;

/// Decision of an [`EntryFilter`] about an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterDecision {
    /// List the entry.
    Keep,
    /// Do not list the entry.
    Skip,
    /// List the entry if it is a directory that directly contains an object of this name.
    KeepIfContains(&'static str),
}

impl FilterDecision {
    /// Returns a filter that keeps every entry.
    pub fn keep_all() -> EntryFilter {
        Arc::new(|_| Self::Keep)
    }
}
