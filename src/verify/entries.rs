//! Entries of a directory: the role of each (a block, a directory of blocks, attributes, or none in N5), and the blocks
//! that are missing between them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::finding::{Finding, FindingKind};
use crate::cache::{ATTRIBUTES, Dataset};
use crate::container::grid_component;
use crate::store::Key;
use n5_format::{Coords, GridPosition};

/// A directory that is a part of a dataset's grid.
#[derive(Debug)]
pub(super) struct GridDirectory {
    pub(super) dataset: Arc<Dataset>,
    /// Grid components that lead from the dataset to the directory.
    pub(super) prefix: Coords,
}

/// Role of an entry in its directory.
pub(super) enum EntryRole {
    /// `attributes.json`.
    Attributes,
    /// A directory that leads to blocks.
    GridDirectory(GridDirectory),
    /// A block.
    Block(Arc<Dataset>, GridPosition),
    /// A block outside the grid.
    OutsideGrid(Arc<Dataset>),
    /// An entry without a meaning in N5, unless it is the directory of a group.
    Other,
}

impl EntryRole {
    /// Returns the role of the entry `name` of a directory. `grid` is given if the directory is a part of a grid.
    pub(super) fn of(grid: Option<&GridDirectory>, name: &str) -> Self {
        if name == ATTRIBUTES {
            return Self::Attributes;
        }
        let (Some(grid), Some(component)) = (grid, grid_component(name)) else { return Self::Other };
        let dataset = Arc::clone(&grid.dataset);
        let mut prefix = grid.prefix.clone();
        prefix.push(component);
        if prefix.len() < dataset.attributes.rank() {
            return Self::GridDirectory(GridDirectory { dataset, prefix });
        }
        match dataset.position_in_grid(prefix) {
            Some(position) => Self::Block(dataset, position),
            None => Self::OutsideGrid(dataset),
        }
    }
}

/// Returns the finding about the directory `key`, unless a directory may have this role.
pub(super) fn directory_finding(key: &Key, role: &EntryRole) -> Option<Finding> {
    match role {
        EntryRole::Block(dataset, position) => {
            let message = "there is a directory in place of a block";
            let finding = Finding::new(FindingKind::DirectoryAtBlock, key.as_str(), message);
            Some(finding.in_dataset(dataset.key.as_str()).at_position(position))
        }
        EntryRole::Attributes => {
            Some(Finding::new(FindingKind::BrokenAttributes, key.as_str(), "attributes.json is a directory"))
        }
        EntryRole::GridDirectory(_) | EntryRole::OutsideGrid(_) | EntryRole::Other => None,
    }
}

/// Returns the finding about the file `key`, unless a file may have this role and its attributes, if any, are readable.
pub(super) fn file_finding(key: &Key, role: &EntryRole, has_readable_attributes: bool) -> Option<Finding> {
    let finding = |kind, message: &str| Finding::new(kind, key.as_str(), message);
    match role {
        EntryRole::Block(..) => None,
        EntryRole::Attributes if has_readable_attributes => None,
        EntryRole::Attributes => {
            let message = "permission to read the file is denied, or it has just changed";
            Some(finding(FindingKind::UnreadableFile, message))
        }
        EntryRole::OutsideGrid(dataset) => {
            let shape = dataset.attributes.grid().shape();
            let message = format!("the block is outside the grid of {:?} blocks", shape.as_slice());
            Some(finding(FindingKind::OutsideGrid, &message).in_dataset(dataset.key.as_str()))
        }
        EntryRole::GridDirectory(grid) => {
            let message = "there is a file in place of a directory of blocks";
            Some(finding(FindingKind::MisplacedFile, message).in_dataset(grid.dataset.key.as_str()))
        }
        EntryRole::Other if key.name().is_some_and(is_temporary) => {
            Some(finding(FindingKind::TemporaryFile, "the name is that of a file that is still being written"))
        }
        EntryRole::Other => Some(finding(FindingKind::StrayFile, "it is neither attributes nor a block")),
    }
}

/// Returns the finding for a name that the store does not list. Its kind depends on the role of the entry.
pub(super) fn unlisted_name_finding(parent: &Key, grid: Option<&GridDirectory>, name: &str) -> Finding {
    let entry = parent.child(name).map(|key| (key, EntryRole::of(grid, name)));
    let causes = "a dangling link, a link that is not followed, or something that is neither a file nor a directory";
    match entry {
        Ok((key, EntryRole::Block(dataset, position))) => {
            let message = format!("in place of a block, there is {causes}");
            unlisted_finding(FindingKind::UnreadableFile, &key, message)
                .in_dataset(dataset.key.as_str())
                .at_position(&position)
        }
        Ok((key, EntryRole::GridDirectory(grid))) => {
            let message = format!("in place of a directory of blocks, there is {causes}");
            unlisted_finding(FindingKind::UnreadableFile, &key, message).in_dataset(grid.dataset.key.as_str())
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

/// Creates a finding about `key`, with the advice for entries that the store does not list.
pub(super) fn unlisted_finding(kind: FindingKind, key: &Key, message: String) -> Finding {
    let advice = "check the target of the link (container_defaults.symlinks says which links are followed), or restore the entry: \
                  it is neither listed, served nor verified";
    Finding { advice: advice.to_owned(), ..Finding::new(kind, key.as_str(), message) }
}

/// Returns true if writers, file systems or tools give such names to incomplete files.
fn is_temporary(name: &str) -> bool {
    const SUFFIXES: [&str; 8] = [".partial", ".tmp", ".temp", ".part", ".lock", ".__lock", ".swp", "~"];
    const PREFIXES: [&str; 4] = [".nfs", ".fuse_hidden", ".tmp", ".#"];
    SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
        || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || name.contains(".partial.")
        || name.contains(".tmp.")
}

/// Maximum number of runs that are kept. If there are more, only the number of missing blocks is reported.
const MAX_RUNS: usize = 1 << 16;

/// The numbers that are present in one directory of a grid, as runs of consecutive numbers.
#[derive(Debug, Default)]
pub(super) struct IntervalSet {
    /// First number of each run, mapped to the number after its last one.
    runs: BTreeMap<u64, u64>,
    has_overflowed: bool,
}

impl IntervalSet {
    /// Adds `number`. Numbers may come in any order, but each of them only once.
    pub(super) fn add(&mut self, number: u64) {
        if self.has_overflowed {
            return;
        }
        let mut end = number.saturating_add(1);
        if let Some(next_end) = self.runs.remove(&end) {
            end = next_end;
        }
        let previous = self.runs.range(..=number).next_back().map(|(from, to)| (*from, *to));
        match previous {
            Some((_, to)) if to > number => {}
            Some((from, to)) if to == number => {
                self.runs.insert(from, end);
            }
            Some(_) | None => {
                self.runs.insert(number, end);
            }
        }
        if self.runs.len() > MAX_RUNS {
            self.has_overflowed = true;
            self.runs = BTreeMap::new();
        }
    }

    /// Returns the first and last number of each gap below `count`, or `None` if there were too many runs to keep.
    pub(super) fn gaps(&self, count: u64) -> Option<Vec<(u64, u64)>> {
        if self.has_overflowed {
            return None;
        }
        let mut gaps = Vec::new();
        let mut next = 0;
        for (from, to) in &self.runs {
            let from = (*from).min(count);
            if from > next {
                gaps.push((next, from.saturating_sub(1)));
            }
            next = (*to).max(next);
        }
        if next < count {
            gaps.push((next, count.saturating_sub(1)));
        }
        Some(gaps)
    }
}

/// Returns the first and the last position, inclusive, of the blocks whose coordinates begin with `prefix` and continue
/// with a number from `from` to `to`, in a grid of `shape` blocks.
pub(super) fn missing_range(prefix: &[u64], (from, to): (u64, u64), shape: &[u64]) -> [Coords; 2] {
    let further_sizes = shape.get(prefix.len().saturating_add(1)..).unwrap_or_default();
    let first = prefix.iter().copied().chain([from]).chain(further_sizes.iter().map(|_| 0)).collect();
    let last =
        prefix.iter().copied().chain([to]).chain(further_sizes.iter().map(|size| size.saturating_sub(1))).collect();
    [first, last]
}

/// Returns the number of blocks from the first to the last position, saturating.
pub(super) fn block_count([first, last]: &[Coords; 2]) -> u64 {
    let axis_length = |(first, last): (&u64, &u64)| last.saturating_sub(*first).saturating_add(1);
    first.iter().zip(last).map(axis_length).fold(1, u64::saturating_mul)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_the_numbers_that_were_not_added() {
        let gaps = |numbers: &[u64], count| {
            let mut set = IntervalSet::default();
            for number in numbers {
                set.add(*number);
            }
            set.gaps(count).unwrap()
        };
        assert_eq!(gaps(&[], 3), [(0, 2)]);
        assert_eq!(gaps(&[0, 1, 10, 11, 2, 3], 12), [(4, 9)]);
        assert_eq!(gaps(&[2, 0, 1], 3), []);
        assert_eq!(gaps(&[5, 3, 4], 9), [(0, 2), (6, 8)]);
        assert_eq!(gaps(&[1, 20, u64::MAX], 4), [(0, 0), (2, 3)]);
        assert_eq!(gaps(&[], 0), []);
    }

    #[test]
    fn too_many_runs_are_discarded() {
        let mut set = IntervalSet::default();
        for run in 0..=MAX_RUNS as u64 {
            set.add(2 * run);
        }
        assert_eq!((set.gaps(9), set.runs.len()), (None, 0));
    }

    #[test]
    fn a_missing_range_spans_all_further_axes() {
        let range = missing_range(&[4], (2, 3), &[5, 6, 7]);
        assert_eq!((range[0].as_slice(), range[1].as_slice()), (&[4, 2, 0][..], &[4, 3, 6][..]));
        assert_eq!(block_count(&range), 14);
    }
}
