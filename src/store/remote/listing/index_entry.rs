//! Entries of the index that an HTTP server makes of a directory.

/// An entry of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IndexEntry<'a> {
    /// A file of this name.
    File(&'a str),
    /// A directory of this name, without a slash at its end.
    Directory(&'a str),
    /// An entry that is neither, or whose name is not UTF-8. The name is for messages.
    Unusable(&'a str),
}
