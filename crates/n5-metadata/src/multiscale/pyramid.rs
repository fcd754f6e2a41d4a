//! Common form of all multiscale conventions.

use n5_format::DescribedDataset;
use serde::{Serialize, Serializer};

use crate::json_values::{integer_if_whole, push_unique, snap_to_integer};
use crate::node::Node;
use crate::problem::{MetadataProblem, MetadataProblemKind};

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
    /// Names of the axes; `None` if neither the metadata nor the convention names them.
    #[serde(skip)]
    pub axes: Option<Vec<String>>,
    /// Units of the axes as written, `""` for an axis without a unit; `None` if the metadata names no unit.
    #[serde(skip)]
    pub units: Option<Vec<String>>,
    /// True if the metadata gives a voxel size; otherwise that of the finest level is 1 by convention.
    #[serde(skip)]
    pub is_calibrated: bool,
    /// Levels of the pyramid, finest first.
    pub levels: Vec<PyramidLevel>,
}

/// One level of a pyramid. Every list has one number per axis, in N5 axis order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PyramidLevel {
    /// Path of the dataset, relative to the group.
    pub path: String,
    /// Voxels of the finest level per voxel of this level.
    #[serde(serialize_with = "whole_as_integers")]
    pub factors: Vec<f64>,
    /// Voxel size in the pyramid's units.
    pub resolution: Vec<f64>,
    /// Position of the centre of the first voxel in the pyramid's units.
    pub translation: Vec<f64>,
}

impl Pyramid {
    /// Returns the voxel size of the finest level, in the pyramid's units.
    pub fn resolution(&self) -> Option<&[f64]> {
        self.levels.first().map(|level| level.resolution.as_slice())
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

/// Returns the levels that exist, in the given order. A level that is missing or differs in rank from the first is left
/// out with a problem. A level of another data type is kept, also with a problem.
pub(super) fn find_levels(
    node: &Node,
    listed: impl IntoIterator<Item = (usize, String)>,
    problems: &mut Vec<MetadataProblem>,
) -> Vec<LevelDataset> {
    let mut datasets: Vec<LevelDataset> = Vec::new();
    for (number, path) in listed {
        let Some(dataset) = node.dataset_below(&path) else {
            push_unique(
                problems,
                MetadataProblemKind::InvalidLevel.with_text(format!("level {path} is not a readable dataset")),
            );
            continue;
        };
        if let Some(first) = datasets.first() {
            if first.dataset.rank() != dataset.rank() {
                let (a, b) = (dataset.rank(), first.dataset.rank());
                let text = format!("level {path} has {a} axes, level {} has {b}", first.path);
                push_unique(problems, MetadataProblemKind::InvalidLevel.with_text(text));
                continue;
            }
            if first.dataset.data_type() != dataset.data_type() {
                let (a, b) = (dataset.data_type(), first.dataset.data_type());
                let text = format!("level {path} is {a}, level {} is {b}", first.path);
                push_unique(problems, MetadataProblemKind::InvalidLevel.with_text(text));
            }
        }
        datasets.push(LevelDataset { path, number, dataset });
    }
    datasets
}

/// Returns the factors of a level: its voxel size relative to that of the first level.
pub(super) fn factors_from_resolution(level: &[f64], first: &[f64]) -> Vec<f64> {
    level.iter().zip(first).map(|(r, base)| if *base == 0.0 { 1.0 } else { snap_to_integer(r / base) }).collect()
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
}
