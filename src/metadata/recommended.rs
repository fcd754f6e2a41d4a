//! In which form Neuroglancer should open a directory.

use crate::n5::{DataType, DescribedDataset};

use super::pyramid::Pyramid;
use super::{Description, Kind, Node};

/// A form of a container that Neuroglancer opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recommended {
    /// As stored: nothing has to be decoded on the way.
    N5,
    /// N5 in an encoding that it reads, and in another type where it lacks the stored one.
    Reencoded(Option<DataType>),
    /// Zarr 3 with OME-NGFF metadata: levels of any name, and translations.
    Zarr3,
}

/// The form that shows the directory rightly and costs least; `None` for a plain group, and where no form helps: blocks
/// that are not decoded, no axes, or an axis of length 0.
pub fn recommended(node: &Node, description: &Description) -> Option<Recommended> {
    let readable = description.readable?;
    match (description.kind, &description.multiscale) {
        (Kind::Dataset, _) => {
            let dataset = DescribedDataset::parse(node.own().clone()).ok()?;
            if !is_shown(&dataset) {
                return None;
            }
            Some(if readable.neuroglancer { Recommended::N5 } else { Recommended::Reencoded(stand_in(&dataset)) })
        }
        (Kind::Multiscale, Some(pyramid)) => {
            let levels = pyramid.levels.iter().map(|level| node.dataset_below(&level.path));
            let levels: Option<Vec<DescribedDataset>> = levels.collect();
            let levels = levels.filter(|levels| levels.iter().all(is_shown))?;
            let converted = levels.iter().find_map(stand_in);
            Some(if converted.is_some() {
                Recommended::Reencoded(converted)
            } else if readable.neuroglancer && is_aligned(pyramid) {
                Recommended::N5
            } else {
                Recommended::Zarr3
            })
        }
        (Kind::Group | Kind::Multiscale, _) => None,
    }
}

fn is_shown(dataset: &DescribedDataset) -> bool {
    let decoded = dataset.compression().codec().is_some() && dataset.data_type().size_bytes().is_some();
    decoded && dataset.rank() > 0 && !dataset.dimensions().contains(&0)
}

/// The type that Neuroglancer shows in place of one that it lacks.
fn stand_in(dataset: &DescribedDataset) -> Option<DataType> {
    // Every value of both is shown, if not exactly; whoever knows the values may choose better.
    matches!(dataset.data_type(), DataType::Int64 | DataType::Float64).then_some(DataType::Float32)
}

/// Whether the corners of all levels are where Neuroglancer's `n5` source puts them: in one place, the origin.
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

    use super::super::describe;
    use super::super::testing::{array, group};
    use super::*;

    fn of(node: &Node) -> Option<Recommended> {
        recommended(node, &describe(node))
    }

    fn of_dataset(further: &Value) -> Option<Recommended> {
        of(&group(&[], &array(&[7, 5], further), &[]))
    }

    #[test]
    fn a_dataset_is_opened_as_stored_where_that_works() {
        assert_eq!(of_dataset(&json!({})), Some(Recommended::N5));
        assert_eq!(of_dataset(&json!({"compression": {"type": "xz"}})), Some(Recommended::Reencoded(None)));
        assert_eq!(of_dataset(&json!({"units": ["px", "px"]})), Some(Recommended::Reencoded(None)));
        let float = Some(Recommended::Reencoded(Some(DataType::Float32)));
        assert_eq!(of_dataset(&json!({"dataType": "float64"})), float);
        assert_eq!(of_dataset(&json!({"dataType": "int64"})), float);
        for hopeless in
            [json!({"compression": {"type": "jpeg"}}), json!({"dataType": "string"}), json!({"dimensions": [0, 5]})]
        {
            assert_eq!(of_dataset(&hopeless), None, "{hopeless}");
        }
        assert_eq!(of(&group(&[], &json!({}), &[])), None);
    }

    #[test]
    fn a_pyramid_is_opened_where_its_levels_are_found_and_lie_right() {
        let level = |factor: u64| array(&[8 / factor, 8 / factor], &json!({"downsamplingFactors": [factor, factor]}));
        let own = json!({"downsamplingFactors": [[1, 1], [2, 2]]});
        let named = |a: &str, b: &str| [(a.to_owned(), level(1)), (b.to_owned(), level(2))];
        let node = |own: &Value, levels: &[(String, Value)]| {
            let levels: Vec<(&str, Value)> =
                levels.iter().map(|(path, value)| (path.as_str(), value.clone())).collect();
            group(&[], own, &levels)
        };
        assert_eq!(of(&node(&own, &named("s0", "s1"))), Some(Recommended::N5));
        let shifted = |translation: f64| {
            let dataset = |path: &str, scale: f64, translation: f64| {
                json!({"path": path, "coordinateTransformations":
                [{"type": "scale", "scale": [scale, scale]}, {"type": "translation", "translation": [translation, translation]}]})
            };
            json!({"multiscales": [{"version": "0.4", "axes": [{"name": "x", "type": "space"}, {"name": "y", "type": "space"}],
                "datasets": [dataset("s0", 1.0, translation), dataset("s1", 2.0, translation + 0.5)]}],
                "downsamplingFactors": [[1, 1], [2, 2]]})
        };
        assert_eq!(of(&node(&shifted(0.0), &named("s0", "s1"))), Some(Recommended::N5));
        assert_eq!(of(&node(&shifted(3.0), &named("s0", "s1"))), Some(Recommended::Zarr3));
    }
}
