//! Choice of the data source with which Neuroglancer should open a directory.

use n5_format::{DataType, DescribedDataset};

use crate::description::{Description, NodeKind};
use crate::multiscale::pyramid::Pyramid;
use crate::node::Node;

/// A data source with which Neuroglancer can open a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NeuroglancerSource {
    /// N5 as stored: the server does not decode anything.
    N5,
    /// N5 in a compression that Neuroglancer reads, with another data type if it does not support the stored one.
    Reencoded(Option<DataType>),
    /// Zarr 3 with OME-NGFF metadata, which allows levels of any name and translations.
    Zarr3,
}

/// Returns the source that shows the directory correctly at the lowest cost; `None` for a plain group, and if no source
/// works: blocks that are not decoded, no axes, or an axis of length 0.
pub fn recommended_source(node: &Node, description: &Description) -> Option<NeuroglancerSource> {
    let readable = description.readable?;
    match (description.kind, &description.multiscale) {
        (NodeKind::Dataset, _) => {
            let dataset = DescribedDataset::parse(node.own_document().clone()).ok()?;
            if !is_displayable(&dataset) {
                return None;
            }
            Some(if readable.neuroglancer {
                NeuroglancerSource::N5
            } else {
                NeuroglancerSource::Reencoded(substitute_type(&dataset))
            })
        }
        (NodeKind::Multiscale, Some(pyramid)) => {
            let levels = pyramid.levels.iter().map(|level| node.dataset_below(&level.path));
            let levels: Option<Vec<DescribedDataset>> = levels.collect();
            let levels = levels.filter(|levels| levels.iter().all(is_displayable))?;
            let converted = levels.iter().find_map(substitute_type);
            Some(if converted.is_some() {
                NeuroglancerSource::Reencoded(converted)
            } else if readable.neuroglancer && is_aligned(pyramid) {
                NeuroglancerSource::N5
            } else {
                NeuroglancerSource::Zarr3
            })
        }
        (NodeKind::Group | NodeKind::Multiscale, _) => None,
    }
}

fn is_displayable(dataset: &DescribedDataset) -> bool {
    let is_decoded = dataset.compression().codec().is_some() && dataset.data_type().size_bytes().is_some();
    is_decoded && dataset.rank() > 0 && !dataset.dimensions().contains(&0)
}

/// Returns the type that Neuroglancer shows in place of one that it does not support.
fn substitute_type(dataset: &DescribedDataset) -> Option<DataType> {
    // float32 shows the values of both types, although not exactly. A user who knows them may choose a better type.
    matches!(dataset.data_type(), DataType::Int64 | DataType::Float64).then_some(DataType::Float32)
}

/// Returns true if the corners of all levels coincide at the origin, where Neuroglancer's `n5` source places them.
fn is_aligned(pyramid: &Pyramid) -> bool {
    let Some(first) = pyramid.levels.first() else { return false };
    pyramid.levels.iter().all(|level| {
        let axes = level.translation.iter().zip(&level.resolution).zip(&first.resolution);
        axes.into_iter().all(|((translation, size), base)| {
            let expected = (size - base) / 2.0;
            (translation - expected).abs() <= 1e-6 * base.abs().max(size.abs())
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::describe;
    use crate::testing::{array, group};

    fn source_of(node: &Node) -> Option<NeuroglancerSource> {
        recommended_source(node, &describe(node))
    }

    fn source_of_dataset(further: &Value) -> Option<NeuroglancerSource> {
        source_of(&group(&[], &array(&[7, 5], further), &[]))
    }

    #[test]
    fn a_dataset_is_opened_as_stored_where_that_works() {
        assert_eq!(source_of_dataset(&json!({})), Some(NeuroglancerSource::N5));
        assert_eq!(
            source_of_dataset(&json!({"compression": {"type": "xz"}})),
            Some(NeuroglancerSource::Reencoded(None))
        );
        assert_eq!(source_of_dataset(&json!({"units": ["px", "px"]})), Some(NeuroglancerSource::Reencoded(None)));
        let float = Some(NeuroglancerSource::Reencoded(Some(DataType::Float32)));
        assert_eq!(source_of_dataset(&json!({"dataType": "float64"})), float);
        assert_eq!(source_of_dataset(&json!({"dataType": "int64"})), float);
        for hopeless in
            [json!({"compression": {"type": "jpeg"}}), json!({"dataType": "string"}), json!({"dimensions": [0, 5]})]
        {
            assert_eq!(source_of_dataset(&hopeless), None, "{hopeless}");
        }
        assert_eq!(source_of(&group(&[], &json!({}), &[])), None);
    }

    #[test]
    fn a_pyramid_is_opened_as_n5_if_its_levels_are_found_and_aligned() {
        let level = |factor: u64| array(&[8 / factor, 8 / factor], &json!({"downsamplingFactors": [factor, factor]}));
        let own = json!({"downsamplingFactors": [[1, 1], [2, 2]]});
        let named = |a: &str, b: &str| [(a.to_owned(), level(1)), (b.to_owned(), level(2))];
        let node = |own: &Value, levels: &[(String, Value)]| {
            let levels: Vec<(&str, Value)> =
                levels.iter().map(|(path, value)| (path.as_str(), value.clone())).collect();
            group(&[], own, &levels)
        };
        assert_eq!(source_of(&node(&own, &named("s0", "s1"))), Some(NeuroglancerSource::N5));
        let shifted = |translation: f64| {
            let dataset = |path: &str, scale: f64, translation: f64| {
                json!({"path": path, "coordinateTransformations":
                [{"type": "scale", "scale": [scale, scale]}, {"type": "translation", "translation": [translation, translation]}]})
            };
            json!({"multiscales": [{"version": "0.4", "axes": [{"name": "x", "type": "space"}, {"name": "y", "type": "space"}],
                "datasets": [dataset("s0", 1.0, translation), dataset("s1", 2.0, translation + 0.5)]}],
                "downsamplingFactors": [[1, 1], [2, 2]]})
        };
        assert_eq!(source_of(&node(&shifted(0.0), &named("s0", "s1"))), Some(NeuroglancerSource::N5));
        assert_eq!(source_of(&node(&shifted(3.0), &named("s0", "s1"))), Some(NeuroglancerSource::Zarr3));
    }
}
