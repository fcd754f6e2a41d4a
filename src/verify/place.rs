//! What a name means where it stands: a block, a directory of blocks, attributes, or nothing of N5's.

use std::sync::Arc;

use super::finding::{Finding, Kind};
use crate::container::{ATTRIBUTES, Dataset, grid_component};
use crate::n5::{Coords, GridPosition};
use crate::store::Key;

/// What a directory is a part of.
#[derive(Debug, Clone)]
pub(super) enum Part {
    /// The hierarchy of groups.
    Hierarchy,
    /// The grid of a dataset, these numbers deep.
    Grid(Arc<Dataset>, Coords),
}

/// What a name means in a directory.
pub(super) enum Place {
    /// `attributes.json`.
    Attributes,
    /// A directory that leads to blocks.
    Between(Arc<Dataset>, Coords),
    /// A block.
    Block(Arc<Dataset>, GridPosition),
    /// A block that the grid does not have.
    Outside(Arc<Dataset>),
    /// Nothing of N5's but, perhaps, a group.
    Elsewhere,
}

impl Place {
    pub(super) fn of(part: &Part, name: &str) -> Self {
        if name == ATTRIBUTES {
            return Self::Attributes;
        }
        let (Part::Grid(dataset, prefix), Some(number)) = (part, grid_component(name)) else { return Self::Elsewhere };
        let mut numbers = prefix.clone();
        numbers.push(number);
        if numbers.len() < dataset.attributes.rank() {
            return Self::Between(Arc::clone(dataset), numbers);
        }
        match dataset.holds(numbers) {
            Some(position) => Self::Block(Arc::clone(dataset), position),
            None => Self::Outside(Arc::clone(dataset)),
        }
    }
}

/// What is to be said of a name that the store does not list: what matters is what would be there.
pub(super) fn left_out(parent: &Key, part: &Part, name: &str) -> Finding {
    let place = parent.child(name).map(|key| (key, Place::of(part, name)));
    let why = "a link that leads nowhere or is not followed, or neither a file nor a directory";
    match place {
        Ok((key, Place::Block(dataset, position))) => {
            let message = format!("where a block would be is {why}");
            not_listed(Kind::UnreadableFile, &key, message).of(dataset.key.as_str()).at(&position)
        }
        Ok((key, Place::Between(dataset, _))) => {
            let message = format!("where a directory of blocks would be is {why}");
            not_listed(Kind::UnreadableFile, &key, message).of(dataset.key.as_str())
        }
        Ok((key, Place::Attributes)) => {
            not_listed(Kind::UnreadableFile, &key, format!("where attributes would be is {why}"))
        }
        Ok((_, Place::Outside(_) | Place::Elsewhere)) | Err(_) => {
            let message = format!(
                "{name:?} is not listed: no key can name it, or it is a link that is not followed, or neither a file \
                     nor a directory"
            );
            Finding::new(Kind::UnlistedName, parent.as_str(), message)
        }
    }
}

/// A finding about what is not listed at `key`.
pub(super) fn not_listed(kind: Kind, key: &Key, message: String) -> Finding {
    let advice = "see where the link leads (container_defaults.symlinks says which are followed), or restore what it was: \
                  it is neither listed, served nor verified";
    Finding { advice: advice.to_owned(), ..Finding::new(kind, key.as_str(), message) }
}

/// Names that writers, file systems and tools give to what is not complete yet.
pub(super) fn is_temporary(name: &str) -> bool {
    const ENDS: [&str; 8] = [".partial", ".tmp", ".temp", ".part", ".lock", ".__lock", ".swp", "~"];
    const BEGINNINGS: [&str; 4] = [".nfs", ".fuse_hidden", ".tmp", ".#"];
    ENDS.iter().any(|end| name.ends_with(end))
        || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
        || name.contains(".partial.")
        || name.contains(".tmp.")
}
