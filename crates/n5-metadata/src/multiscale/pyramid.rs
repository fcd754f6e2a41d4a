//! The common form of all multiscale conventions, and the handling of levels named `s0`, `s1`, … with
//! `downsamplingFactors`, which n5-viewer, BDV and Paintera share.

use n5_format::DescribedDataset;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::calibration::downsampled;
use crate::json_values::{
    integer_if_whole, level_number, number_lists, one_per_axis, push_unique, snap_to_integer, truncated_json,
};
use crate::node::{MAX_LEVELS, Node};
use crate::problem::{MetadataProblem, MetadataProblemKind};
use crate::voxel_size::is_usable_size;

/// The convention that a pyramid's metadata follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Convention {
    /// n5-viewer, and Neuroglancer's extension of it: `downsamplingFactors` or `scales`, `pixelResolution`.
    #[serde(rename = "n5-viewer")]
    N5Viewer,
    /// BigDataViewer: `setup<i>/timepoint<t>/s<k>`.
    #[serde(rename = "bdv")]
    Bdv,
    /// COSEM / CellMap: `transform` per level.
    #[serde(rename = "cosem")]
    Cosem,
    /// OME-NGFF's `multiscales`.
    #[serde(rename = "ome-ngff")]
    OmeNgff,
    /// Paintera: `painteraData`.
    #[serde(rename = "paintera")]
    Paintera,
}

/// A multiscale image: datasets of decreasing resolution that show the same volume.
///
/// - `levels` is not empty. The finest level comes first, and all levels have the same rank.
/// - `axes` and `units`, if known, have one entry per axis, in N5 axis order (first axis fastest).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pyramid {
    /// Convention that the metadata follows.
    pub convention: Convention,
    /// Names of the axes, or `None` if neither the metadata nor the convention names them.
    #[serde(skip)]
    pub axes: Option<Vec<String>>,
    /// Units of the axes as written, or `None` if the metadata names no unit. `""` stands for an axis without a unit or
    /// with an unusable voxel size.
    #[serde(skip)]
    pub units: Option<Vec<String>>,
    /// True for each axis along which the metadata gives a usable voxel size. Elsewhere, the voxel size of the finest level
    /// is 1, and the size is not known.
    #[serde(skip)]
    pub calibrated_axes: Vec<bool>,
    /// Levels of the pyramid, finest first.
    pub levels: Vec<PyramidLevel>,
}

/// One level of a pyramid. Every list has one number per axis, in N5 axis order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PyramidLevel {
    /// Path of the dataset, relative to the group.
    pub path: String,
    /// Number of voxels of the finest level along one voxel of this level.
    #[serde(serialize_with = "whole_as_integers")]
    pub factors: Vec<f64>,
    /// Voxel size in the pyramid's units, or in voxels of the finest level along an axis whose voxel size is not known.
    pub resolution: Vec<f64>,
    /// Position of the centre of the first voxel in the pyramid's units.
    pub translation: Vec<f64>,
}

impl Pyramid {
    /// Returns the voxel size of the finest level, in the pyramid's units; `None` for an axis along which it is not known.
    /// Returns `None` if it is not known along any axis.
    pub fn resolution(&self) -> Option<Vec<Option<f64>>> {
        let finest = self.levels.first()?;
        let sizes = finest.resolution.iter().zip(&self.calibrated_axes);
        let known = sizes.map(|(size, is_calibrated)| Some(*size).filter(|_| *is_calibrated)).collect();
        self.calibrated_axes.contains(&true).then_some(known)
    }
}

fn whole_as_integers<S: Serializer>(numbers: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(numbers.iter().map(|number| integer_if_whole(*number)))
}

/// A level that the metadata lists, with its dataset.
pub(super) struct LevelDataset {
    /// Path relative to the group.
    pub(super) path: String,
    /// Index in the metadata's list, or the number in the name `s<number>`.
    pub(super) number: usize,
    pub(super) dataset: DescribedDataset,
}

/// Returns the levels that exist, in the given order. A level that is missing, or that differs in rank from the first,
/// is left out. A level that differs in data type is kept. A problem is added in each of these cases.
pub(super) fn find_levels(
    node: &Node,
    listed: impl IntoIterator<Item = (usize, String)>,
    problems: &mut Vec<MetadataProblem>,
) -> Vec<LevelDataset> {
    let mut datasets: Vec<LevelDataset> = Vec::new();
    for (number, path) in listed {
        let Some(dataset) = node.dataset_below(&path) else {
            MetadataProblemKind::InvalidLevel.report(problems, format!("level {path} is not a readable dataset"));
            continue;
        };
        if let Some(first) = datasets.first() {
            if first.dataset.rank() != dataset.rank() {
                let rank = dataset.rank();
                let text = format!("level {path} has {rank} axes, level {} has {}", first.path, first.dataset.rank());
                MetadataProblemKind::InvalidLevel.report(problems, text);
                continue;
            }
            if first.dataset.data_type() != dataset.data_type() {
                let data_type = dataset.data_type();
                let text =
                    format!("level {path} is {data_type}, level {} is {}", first.path, first.dataset.data_type());
                MetadataProblemKind::InvalidLevel.report(problems, text);
            }
        }
        datasets.push(LevelDataset { path, number, dataset });
    }
    datasets
}

/// Returns the voxel size of the finest level with 1 in place of each unusable size, and true for each axis with a usable
/// size. `given` is the size that the metadata gives, if it gives any.
pub(super) fn usable_base(given: Option<&[f64]>, rank: usize) -> (Vec<f64>, Vec<bool>) {
    let size = |axis: usize| given.and_then(|sizes| sizes.get(axis)).copied().filter(|size| is_usable_size(*size));
    (0..rank).map(|axis| (size(axis).unwrap_or(1.0), size(axis).is_some())).unzip()
}

/// Removes the units of the axes along which the voxel size is not usable: readers would assume the size 1.
pub(super) fn clear_units(units: &mut Option<Vec<String>>, calibrated_axes: &[bool]) {
    let units = units.iter_mut().flatten().zip(calibrated_axes);
    units.filter(|(_, is_calibrated)| !**is_calibrated).for_each(|(unit, _)| unit.clear());
}

/// Places the levels by their sizes in voxels along each axis on which the voxel size of a level is not usable. Returns
/// true for each axis with usable sizes. `levels` has each level with its dimensions, the finest first.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub(super) fn repair_sizes(levels: &mut [(PyramidLevel, Vec<u64>)]) -> Vec<bool> {
    let Some((_, finest)) = levels.first().cloned() else { return Vec::new() };
    let is_usable =
        |level: &PyramidLevel, axis: usize| level.resolution.get(axis).is_some_and(|size| is_usable_size(*size));
    let are_usable = |axis: usize| levels.iter().all(|(level, _)| is_usable(level, axis));
    let calibrated: Vec<bool> = (0..finest.len()).map(are_usable).collect();
    for (axis, (full, _)) in finest.iter().zip(&calibrated).enumerate().filter(|(_, (_, is_usable))| !**is_usable) {
        for (level, dimensions) in levels.iter_mut() {
            let size = dimensions.get(axis).copied().unwrap_or(0);
            let factor = if size == 0 { 1.0 } else { (*full as f64 / size as f64).round().max(1.0) };
            let lists = [&mut level.resolution, &mut level.factors, &mut level.translation];
            for (list, value) in lists.into_iter().zip([factor, factor, (factor - 1.0) / 2.0]) {
                if let Some(entry) = list.get_mut(axis) {
                    *entry = value;
                }
            }
        }
    }
    calibrated
}

/// Returns the factors of a level: its voxel size relative to that of the first level.
pub(super) fn factors_from_resolution(level: &[f64], first: &[f64]) -> Vec<f64> {
    level.iter().zip(first).map(|(size, base)| if *base == 0.0 { 1.0 } else { snap_to_integer(size / base) }).collect()
}

/// Returns the number and the name of each child named `s<number>`, sorted by number.
pub(super) fn level_names(node: &Node) -> Vec<(usize, String)> {
    let mut names: Vec<(usize, String)> =
        node.children.iter().filter_map(|name| level_number(name).map(|number| (number, name.clone()))).collect();
    names.sort();
    names.truncate(MAX_LEVELS);
    names
}

/// Returns the names of the children named `s<number>`, sorted by number.
pub(super) fn level_paths(node: &Node) -> Vec<String> {
    level_names(node).into_iter().map(|(_, name)| name).collect()
}

/// Returns the factors of all levels, from `scales` or from a `downsamplingFactors` that is a list of lists.
pub(crate) fn listed_factors(attributes: &Map<String, Value>) -> Option<Vec<Vec<f64>>> {
    ["scales", "downsamplingFactors"].iter().find_map(|key| attributes.get(*key).and_then(number_lists))
}

/// Builds the levels in `names` that exist. The voxel size of a level is the base voxel size times the level's factors.
/// Its position is shifted by `(factors - 1) / 2` base voxels, because averaging voxels moves the centre of the first
/// one.
///
/// The factors of a level come from the first of these sources that is usable:
///
/// 1. the level's own `downsamplingFactors`;
/// 2. the entry of `listed` at the level's number;
/// 3. for `s0`, the factor 1;
/// 4. a guess from the sizes, which adds a problem.
///
/// `base_placement` is called with the first level. It returns the voxel size and the position of the centre of the
/// first voxel at full resolution.
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
            let (resolution, translation) = downsampled(&base_resolution, &factors, &offset);
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

/// Guesses the downsampling factor of an axis from its `size` and its `full` size at full resolution. Returns 1 if the
/// axis is not smaller, `power` (a power of two) if this factor explains the size, and otherwise the rounded ratio of
/// the two sizes.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn guess_factor(size: u64, full: u64, power: f64) -> f64 {
    let size = size as f64;
    let full = full as f64;
    if size >= full || size == 0.0 {
        1.0
    } else if (full / power - size).abs() < 1.0 {
        power
    } else {
        (full / size).round().max(1.0)
    }
}

/// Returns the three axis names that n5-viewer, BDV and Paintera imply, or `None` for another rank.
pub(super) fn default_xyz_axes(rank: usize) -> Option<Vec<String>> {
    (rank == 3).then(|| ["x", "y", "z"].map(str::to_owned).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_factors_are_written_as_integers() {
        let level = PyramidLevel {
            path: "s1".into(),
            factors: vec![2.0, 1.5],
            resolution: vec![8.0, 6.0],
            translation: vec![2.0, 1.0],
        };
        let text = serde_json::to_string(&level).unwrap();
        assert_eq!(text, r#"{"path":"s1","factors":[2,1.5],"resolution":[8.0,6.0],"translation":[2.0,1.0]}"#);
    }

    #[test]
    fn factors_are_ratios_of_voxel_sizes() {
        assert_eq!(factors_from_resolution(&[6.48, 8.0, 3.0], &[3.24, 4.0, 0.0]), [2.0, 2.0, 1.0]);
    }

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
