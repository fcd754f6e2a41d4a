//! Role of an entry, from its name and its directory: a block, a directory of blocks, attributes, or none in N5.

use std::sync::Arc;

use super::finding::{Finding, FindingKind};
use crate::cache::{ATTRIBUTES, Dataset};
use crate::container::grid_component;
use crate::store::Key;
use n5_format::{Coords, GridPosition};

/// Role of a directory.
#[derive(Debug, Clone)]
pub(super) enum DirectoryRole {
    /// A part of the hierarchy of groups.
    Hierarchy,
    /// A part of a dataset's grid, with the grid components that lead to it.
    Grid(Arc<Dataset>, Coords),
}

/// Role of an entry in its directory.
pub(super) enum EntryRole {
    /// `attributes.json`.
    Attributes,
    /// A directory that leads to blocks.
    GridDirectory(Arc<Dataset>, Coords),
    /// A block.
    Block(Arc<Dataset>, GridPosition),
    /// A block outside the grid.
    OutsideGrid(Arc<Dataset>),
    /// An entry without a meaning in N5, unless it is the directory of a group.
    Other,
}

impl EntryRole {
    pub(super) fn of(role: &DirectoryRole, name: &str) -> Self {
        if name == ATTRIBUTES {
            return Self::Attributes;
        }
        let (DirectoryRole::Grid(dataset, prefix), Some(number)) = (role, grid_component(name)) else {
            return Self::Other;
        };
        let mut components = prefix.clone();
        components.push(number);
        if components.len() < dataset.attributes.rank() {
            return Self::GridDirectory(Arc::clone(dataset), components);
        }
        match dataset.position_in_grid(components) {
            Some(position) => Self::Block(Arc::clone(dataset), position),
            None => Self::OutsideGrid(Arc::clone(dataset)),
        }
    }
}

/// Returns the finding for a name that the store does not list. Its kind depends on the role of the entry.
pub(super) fn unlisted_name_finding(parent: &Key, role: &DirectoryRole, name: &str) -> Finding {
    let entry = parent.child(name).map(|key| (key, EntryRole::of(role, name)));
    let causes = "a dangling link, a link that is not followed, or something that is neither a file nor a directory";
    match entry {
        Ok((key, EntryRole::Block(dataset, position))) => {
            let message = format!("in place of a block, there is {causes}");
            unlisted_finding(FindingKind::UnreadableFile, &key, message)
                .in_dataset(dataset.key.as_str())
                .at_position(&position)
        }
        Ok((key, EntryRole::GridDirectory(dataset, _))) => {
            let message = format!("in place of a directory of blocks, there is {causes}");
            unlisted_finding(FindingKind::UnreadableFile, &key, message).in_dataset(dataset.key.as_str())
        }
        Ok((key, EntryRole::Attributes)) => unlisted_finding(
            FindingKind::UnreadableFile,
            &key,
            format!("in place of attributes.json, there is {causes}"),
        ),
        Ok((_, EntryRole::OutsideGrid(_) | EntryRole::Other)) | Err(_) => {
            let message = format!(
                "{name:?} is not listed: no key can name it, or it is a link that is not followed, or neither a file \
                     nor a directory"
            );
            Finding::new(FindingKind::UnlistedName, parent.as_str(), message)
        }
    }
}

/// Creates a finding about `key`, with the advice for entries that are not listed.
pub(super) fn unlisted_finding(kind: FindingKind, key: &Key, message: String) -> Finding {
    let advice = "check the target of the link (container_defaults.symlinks says which links are followed), or restore the entry: \
                  it is neither listed, served nor verified";
    Finding { advice: advice.to_owned(), ..Finding::new(kind, key.as_str(), message) }
}

/// Returns true if writers, file systems or tools give such a name to files that are not complete yet.
pub(super) fn is_temporary(name: &str) -> bool {
    const SUFFIXES: [&str; 8] = [".partial", ".tmp", ".temp", ".part", ".lock", ".__lock", ".swp", "~"];
    const PREFIXES: [&str; 4] = [".nfs", ".fuse_hidden", ".tmp", ".#"];
    SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || name.contains(".partial.")
        || name.contains(".tmp.")
}
