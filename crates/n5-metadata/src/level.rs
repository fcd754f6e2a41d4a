//! Calibration that a dataset takes from the pyramid that has it as a level.

use n5_format::DescribedDataset;

use crate::calibration::Calibration;
use crate::json_values::level_number;
use crate::multiscale::pyramid;
use crate::node::Node;

/// Maximum number of directories above a dataset in which a pyramid with the dataset is looked for.
pub const MAX_PYRAMID_DISTANCE: usize = 2;

/// Returns true for a dataset whose own attributes lack the names of its axes or its voxel size. A pyramid that has it
/// as a level may give them.
pub fn lacks_calibration(node: &Node) -> bool {
    let Some(Ok(document)) = node.document.as_ref().filter(|_| node.is_dataset()) else { return false };
    let Ok(dataset) = DescribedDataset::parse(document.clone()) else { return false };
    let own = Calibration::from_dataset(&dataset, &mut Vec::new());
    dataset.rank() > 0 && (own.axes.is_none() || own.resolution.is_none())
}

/// Returns true if a directory of this name may be a level that no attribute lists: `s` and a number.
pub fn is_level_name(name: &str) -> bool {
    level_number(name).is_some()
}

/// Returns the group that is `distance` directories above `node`, without its listing and without the attributes below
/// it. Returns `None` if there is no such group.
pub fn group_above(node: &Node, distance: usize) -> Option<Node> {
    let index = node.ancestors.len().checked_sub(distance)?;
    let document = node.ancestors.get(index)?.clone();
    Some(Node { ancestors: node.ancestors.get(..index)?.to_vec(), document: Some(Ok(document)), ..Node::default() })
}

/// Returns the calibration that the pyramid of `group` gives to its level at `path`. Returns `None` if `group` is no
/// pyramid with such a level.
pub fn level_calibration(group: &Node, path: &str) -> Option<Calibration> {
    let pyramid = pyramid(group, &mut Vec::new())?;
    let level = pyramid.levels.iter().find(|level| level.path == path)?;
    // A voxel size that is not known is 0, which is unusable.
    let known = |list: &[f64]| -> Vec<f64> {
        list.iter()
            .zip(&pyramid.calibrated_axes)
            .map(|(number, is_known)| if *is_known { *number } else { 0.0 })
            .collect()
    };
    let is_calibrated = pyramid.calibrated_axes.contains(&true);
    Some(Calibration {
        resolution: is_calibrated.then(|| known(&level.resolution)),
        translation: is_calibrated.then(|| known(&level.translation)),
        axes: pyramid.axes,
        units: pyramid.units,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::*;
    use crate::{CoordinateSpace, describe};

    /// Returns the level at `path` of the group `own`, with what the pyramid of the group gives to it.
    fn level(ancestors: &[Value], own: &Value, levels: &[(&str, Value)], path: &str) -> Node {
        let above = group(ancestors, own, levels);
        let (_, attributes) = levels.iter().find(|(name, _)| *name == path).unwrap();
        let mut node = group(&[ancestors, std::slice::from_ref(own)].concat(), attributes, &[]);
        assert!(lacks_calibration(&node));
        let listed = level_calibration(&above, path).unwrap();
        assert_eq!(group_above(&node, 1).unwrap().attributes(), above.attributes());
        node.level_calibration = Some(listed);
        node
    }

    #[test]
    fn every_convention_gives_its_levels_axes_and_voxel_sizes() {
        let sizes = [("s0", array(&[8, 8, 8], &json!({}))), ("s1", array(&[4, 4, 8], &json!({})))];
        let ngff = json!({"multiscales": [{"version": "0.4", "axes": [{"name": "c", "type": "channel"},
            {"name": "y", "type": "space", "unit": "micrometer"}, {"name": "x", "type": "space", "unit": "micrometer"}],
            "datasets": [{"path": "s0", "coordinateTransformations": [{"type": "scale", "scale": [1, 2, 3]}]},
            {"path": "s1", "coordinateTransformations": [{"type": "scale", "scale": [1, 4, 6]},
                {"type": "translation", "translation": [0, 1, 1.5]}]}]}]});
        let cosem = json!({"multiscales": [{"datasets": [
            {"path": "s0", "transform": {"axes": ["z", "y", "x"], "units": ["nm", "nm", "nm"], "scale": [3, 2, 2]}},
            {"path": "s1", "transform": {"axes": ["z", "y", "x"], "units": ["nm", "nm", "nm"], "scale": [3, 4, 4],
                "translate": [0, 1, 1]}}]}]});
        let viewer =
            json!({"scales": [[1, 1, 1], [2, 2, 1]], "pixelResolution": {"unit": "nm", "dimensions": [2, 2, 3]}});
        let setup = json!({"downsamplingFactors": [[1, 1, 1], [2, 2, 1]]});
        let paintera = json!({"resolution": [2, 2, 3], "offset": [0, 0, 7], "unit": "nm",
            "downsamplingFactors": [[1, 1, 1], [2, 2, 1]]});
        for (ancestors, own, axes, sizes_at_1, positions, unit) in [
            (vec![], ngff, ["x", "y", "c"], [6.0, 4.0, 1.0], [1.5, 1.0, 0.0], "micrometer"),
            (vec![], cosem, ["x", "y", "z"], [4.0, 4.0, 3.0], [1.0, 1.0, 0.0], "nm"),
            (vec![], viewer, ["x", "y", "z"], [4.0, 4.0, 3.0], [1.0, 1.0, 0.0], "nm"),
            (vec![setup], json!({"resolution": [2, 2, 3]}), ["x", "y", "z"], [4.0, 4.0, 3.0], [1.0, 1.0, 0.0], ""),
        ] {
            let node = level(&ancestors, &own, &sizes, "s1");
            let description = describe(&node);
            assert_eq!(description.axes.unwrap(), axes, "{own}");
            assert_eq!(description.resolution.unwrap(), sizes_at_1.map(Some), "{own}");
            assert_eq!(description.units.map_or(String::new(), |units| units[0].clone()), unit, "{own}");
            let space = CoordinateSpace::of_node(&dataset(&sizes[1].1), &node);
            assert_eq!((space.scale.as_slice(), space.translation.as_slice()), (&sizes_at_1[..], &positions[..]));
        }
        let levels =
            [("s0", sizes[0].1.clone()), ("s1", array(&[4, 4, 8], &json!({"downsamplingFactors": [2, 2, 1]})))];
        let node = level(&[json!({"painteraData": {}})], &paintera, &levels, "s1");
        let space = CoordinateSpace::of_node(&dataset(&levels[1].1), &node);
        assert_eq!((space.scale, space.translation), (vec![4.0, 4.0, 3.0], vec![1.0, 1.0, 7.0]));
    }

    #[test]
    fn own_attributes_come_before_those_of_the_pyramid() {
        let given = Calibration {
            axes: Some(["x", "c"].map(str::to_owned).to_vec()),
            units: Some(["nm", ""].map(str::to_owned).to_vec()),
            resolution: Some(vec![4.0, 0.0]),
            translation: Some(vec![2.0, 0.0]),
        };
        let complete = |own: Value| {
            let own = dataset(&array(&[8, 8], &own));
            Calibration::from_dataset(&own, &mut Vec::new()).completed(Some(&given))
        };
        assert_eq!(complete(json!({})), given);
        // The voxel size of the dataset is kept without the unit of another.
        let own = complete(json!({"resolution": [9, 1]}));
        assert_eq!((own.axes, own.units, own.resolution), (given.axes.clone(), None, Some(vec![9.0, 1.0])));
        // Sizes along other axes do not apply.
        let own = complete(json!({"axes": ["t", "x"]}));
        assert_eq!((own.axes.unwrap(), own.resolution), (vec!["t".to_owned(), "x".to_owned()], None));
    }

    #[test]
    fn a_dataset_is_no_level_of_a_group_that_does_not_list_it() {
        let own = json!({"multiscales": [{"axes": ["y", "x"], "datasets": [{"path": "a"}]}]});
        let image = group(&[], &own, &[("a", array(&[8, 8], &json!({})))]);
        assert!(level_calibration(&image, "a").is_some() && level_calibration(&image, "b").is_none());
        assert_eq!(level_calibration(&image, "a").unwrap().resolution, None);
        assert!(!lacks_calibration(&image));
        assert!(group_above(&image, 1).is_none());
    }
}
