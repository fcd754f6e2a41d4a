//! Short description of a directory, for lists of many directories.

use n5_format::{AttributesDocument, DescribedDataset};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::calibration::Calibration;
use crate::codec::compression_with_defaults;
use crate::description::{NodeKind, fault, level_fault, size_bytes, usable_sizes};
use crate::multiscale::pyramid;
use crate::node::Node;
use crate::problem::MetadataProblem;
use crate::volume::{VolumeKind, classify_volume};

/// Short description of a directory. Members that do not apply are `None` and are not serialized. Lists have one entry
/// per axis, in N5 axis order. For a pyramid, the members that describe an array are those of its finest level.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Kind of the directory.
    pub kind: NodeKind,
    /// Meaning of the elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeKind>,
    /// Size in elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<Vec<u64>>,
    /// Name of the element type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_type: Option<String>,
    /// `type` and parameters of the compression, with defaults filled in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<Value>,
    /// Names of the axes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub axes: Option<Vec<String>>,
    /// Voxel size in `units`, `None` for an axis along which no usable size is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolution: Option<Vec<Option<f64>>>,
    /// Units of the axes as written, `""` for an axis without a unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub units: Option<Vec<String>>,
    /// Number of levels of a pyramid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub levels: Option<usize>,
    /// Size of all elements in bytes, as a decimal string because it may exceed 2^64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<String>,
    /// Fault of the metadata, as a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Paths of a pyramid's levels, relative to the directory.
    #[serde(skip)]
    pub level_paths: Vec<String>,
}

/// Returns the summary of the directory at `path`. Its last names tell an image from a segmentation if the attributes
/// do not.
pub fn summarize(node: &Node, path: &str) -> Summary {
    let mut summary = Summary { error: fault(node), ..Summary::default() };
    let mut problems: Vec<MetadataProblem> = Vec::new();
    let finest_level = if node.is_dataset() {
        let Ok(dataset) = DescribedDataset::parse(node.own_document().clone()) else { return summary };
        let calibration = Calibration::from_dataset(&dataset, &mut problems).completed(node.level_calibration.as_ref());
        summary.kind = NodeKind::Dataset;
        (summary.axes, summary.units) = (calibration.axes, calibration.units);
        summary.resolution = calibration.resolution.and_then(|sizes| usable_sizes(&sizes));
        dataset
    } else {
        let pyramid = pyramid(node, &mut problems);
        summary.error = summary.error.or_else(|| level_fault(&problems));
        let Some(pyramid) = pyramid else { return summary };
        summary.kind = NodeKind::Multiscale;
        summary.levels = Some(pyramid.levels.len());
        summary.resolution = pyramid.resolution();
        summary.level_paths = pyramid.levels.into_iter().map(|level| level.path).collect();
        (summary.axes, summary.units) = (pyramid.axes, pyramid.units);
        let finest_level = summary.level_paths.first().and_then(|path| node.dataset_below(path));
        let Some(dataset) = finest_level else { return summary };
        dataset
    };
    let ancestors = node.ancestors.iter().rev().map(AttributesDocument::members);
    let attributes: Vec<&Map<String, Value>> = std::iter::once(node.attributes()).chain(ancestors).collect();
    summary.volume = classify_volume(path, finest_level.data_type(), &attributes);
    summary.dimensions = Some(finest_level.dimensions().to_vec());
    summary.data_type = Some(finest_level.data_type().name().to_owned());
    summary.compression = Some(compression_with_defaults(finest_level.compression()));
    summary.size_bytes = size_bytes(&finest_level);
    summary
}

#[cfg(test)]
mod tests {
    use n5_format::AttributesDocument;
    use serde_json::json;

    use super::*;
    use crate::testing::*;

    #[test]
    fn a_dataset_is_summarized_with_its_calibration() {
        let own = array(
            &[40, 36],
            &json!({"dataType": "uint64", "axes": ["x", "y"], "units": ["nm", "nm"],
            "resolution": [4, 4.5]}),
        );
        let summary = summarize(&group(&[json!({})], &own, &[]), "a/labels");
        let expected = json!({"kind": "dataset", "volume": "segmentation", "dimensions": [40, 36], "data_type": "uint64",
            "compression": {"type": "raw"}, "axes": ["x", "y"], "resolution": [4.0, 4.5], "units": ["nm", "nm"],
            "size_bytes": "11520"});
        assert_eq!(serde_json::to_value(&summary).unwrap(), expected);
    }

    #[test]
    fn a_pyramid_is_summarized_with_its_finest_level() {
        let own = json!({"scales": [[1, 1], [2, 2]], "pixelResolution": {"unit": "nm", "dimensions": [4, 8]}});
        let node = group(&[], &own, &[("s0", array(&[9, 8], &json!({}))), ("s1", array(&[5, 4], &json!({})))]);
        let summary = summarize(&node, "em");
        assert_eq!((summary.kind, summary.levels), (NodeKind::Multiscale, Some(2)));
        assert_eq!(
            (summary.dimensions.unwrap(), summary.resolution.unwrap()),
            (vec![9, 8], vec![Some(4.0), Some(8.0)])
        );
        assert_eq!((summary.level_paths, summary.error), (vec!["s0".to_owned(), "s1".to_owned()], None));
    }

    #[test]
    fn an_unknown_voxel_size_is_left_out() {
        let node = group(&[], &json!({"scales": [[1], [2]]}), &[("s0", array(&[9], &json!({})))]);
        assert_eq!(summarize(&node, "em").resolution, None);
    }

    #[test]
    fn broken_metadata_gives_the_reason() {
        let error = |node: &Node| summarize(node, "a").error.unwrap_or_default();
        let broken = Node { document: Some(AttributesDocument::parse(b"{'a':1}")), ..Node::default() };
        assert!(error(&broken).starts_with("attributes.json is not JSON"));
        assert!(error(&group(&[], &array(&[1], &json!({"blockSize": [0]})), &[])).contains("blockSize[0] is 0"));
        let partial = group(&[], &json!({"dimensions": [1], "dataType": "uint8"}), &[]);
        assert!(error(&partial).contains("blockSize is missing"));
        let missing_level = json!({"multiscales": [{"version": "0.4", "axes": [{"name": "x"}],
            "datasets": [{"path": "s0"}, {"path": "s1"}]}]});
        let node = group(&[], &missing_level, &[("s0", array(&[4], &json!({})))]);
        assert_eq!(error(&node), "level s1 is not a readable dataset");
        assert_eq!(error(&group(&[], &json!({"n5": "2.0.0"}), &[])), "");
    }
}
