//! Levels named `s0`, `s1`, … with `downsamplingFactors`, which n5-viewer, BDV and Paintera share.

use n5_format::DescribedDataset;
use serde_json::{Map, Value};

use super::pyramid::{LevelDataset, PyramidLevel, find_levels};
use crate::json_values::{level_number, number_lists, one_per_axis, push_unique, truncated_json};
use crate::node::{MAX_LEVELS, Node};
use crate::problem::MetadataProblem;

/// Returns the children named `s<number>`, by number.
pub(super) fn level_names(node: &Node) -> Vec<(usize, String)> {
    let mut names: Vec<(usize, String)> =
        node.children.iter().filter_map(|name| level_number(name).map(|number| (number, name.clone()))).collect();
    names.sort();
    names.truncate(MAX_LEVELS);
    names
}

/// Returns the paths of the children named `s<number>`, by number.
pub(super) fn level_paths(node: &Node) -> Vec<String> {
    level_names(node).into_iter().map(|(_, name)| name).collect()
}

/// Returns the factors of all levels, from `scales` or from a `downsamplingFactors` that is a list of lists.
pub(crate) fn listed_factors(attributes: &Map<String, Value>) -> Option<Vec<Vec<f64>>> {
    ["scales", "downsamplingFactors"].iter().find_map(|key| attributes.get(*key).and_then(number_lists))
}

/// Builds those of the levels `names` that exist. The voxel size of each is the base voxel size times its factors. Its
/// position is shifted by `(factors - 1) / 2` base voxels, because averaging voxels moves the centre of the first one.
///
/// The factors are the level's own `downsamplingFactors`, else the entry of `listed` at its number, else 1 for `s0`,
/// else a guess from the sizes, with a problem. `base_placement` gets the first level and returns the voxel size and the
/// position of the centre of the first voxel at full resolution.
///
/// Source: n5-universe `N5SingleScaleMetadataParser.java`.
pub(super) fn build_levels(
    node: &Node,
    names: Vec<(usize, String)>,
    listed: Option<&[Vec<f64>]>,
    base_placement: impl FnOnce(&LevelDataset, &mut Vec<MetadataProblem>) -> (Vec<f64>, Vec<f64>),
    problems: &mut Vec<MetadataProblem>,
) -> Vec<PyramidLevel> {
    let levels = find_levels(node, names, problems);
    let Some(first) = levels.first() else { return Vec::new() };
    let (base_resolution, offset) = base_placement(first, problems);
    levels
        .iter()
        .map(|level| {
            let factors = level_factors(level, &first.dataset, listed, problems);
            let resolution = factors.iter().zip(&base_resolution).map(|(f, base)| f * base).collect();
            let shift = factors.iter().zip(&base_resolution).map(|(f, base)| base * (f - 1.0) / 2.0);
            let translation = shift.zip(&offset).map(|(shift, offset)| offset + shift).collect();
            PyramidLevel { path: level.path.clone(), factors, resolution, translation }
        })
        .collect()
}

fn level_factors(
    level: &LevelDataset,
    first: &DescribedDataset,
    listed: Option<&[Vec<f64>]>,
    problems: &mut Vec<MetadataProblem>,
) -> Vec<f64> {
    let rank = level.dataset.rank();
    let is_usable = |list: &Vec<f64>| list.len() == rank && list.iter().all(|f| f.is_finite() && *f > 0.0);
    if let Some(own) = level.dataset.members().get("downsamplingFactors") {
        match one_per_axis(own, rank).filter(is_usable) {
            Some(factors) => return factors,
            None => push_unique(
                problems,
                format!(
                    "{}: downsamplingFactors {} is not a list of {rank} positive numbers",
                    level.path,
                    truncated_json(own)
                ),
            ),
        }
    }
    if let Some(factors) = listed.and_then(|lists| lists.get(level.number)).filter(|list| is_usable(list)) {
        return factors.clone();
    }
    if level.number == 0 {
        return vec![1.0; rank];
    }
    push_unique(problems, format!("{}: no downsamplingFactors; guessed from the sizes", level.path));
    let power = f64::from(2_u32.saturating_pow(u32::try_from(level.number).unwrap_or(u32::MAX)));
    level
        .dataset
        .dimensions()
        .iter()
        .zip(first.dimensions())
        .map(|(size, full)| guess_factor(*size, *full, power))
        .collect()
}

/// Returns 1 if the size did not change, `power` (a power of two) if that explains the size, else the ratio.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn guess_factor(size: u64, full: u64, power: f64) -> f64 {
    let (size, full) = (size as f64, full as f64);
    if size >= full || size == 0.0 {
        1.0
    } else if (full / power - size).abs() < 1.0 {
        power
    } else {
        (full / size).round().max(1.0)
    }
}

/// Returns the three axis names that n5-viewer, BDV and Paintera imply; `None` for another rank.
pub(super) fn default_xyz_axes(rank: usize) -> Option<Vec<String>> {
    (rank == 3).then(|| ["x", "y", "z"].map(str::to_owned).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_factors_are_guessed_from_the_sizes() {
        for (size, full, power, expected) in [
            (48, 96, 2.0, 2.0),
            (48, 48, 2.0, 1.0),
            (13, 25, 2.0, 2.0),
            (3, 9, 4.0, 4.0),
            (10, 90, 4.0, 9.0),
            (0, 9, 2.0, 1.0),
        ] {
            assert!((guess_factor(size, full, power) - expected).abs() < f64::EPSILON, "{size} of {full}");
        }
    }

    #[test]
    fn levels_are_sorted_by_number_not_by_name() {
        let children = ["s10", "s2", "x", "s0"].map(str::to_owned).to_vec();
        let node = Node { children, ..Node::default() };
        assert_eq!(level_paths(&node), ["s0", "s2", "s10"]);
    }
}
