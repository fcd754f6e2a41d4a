//! OME-NGFF inside N5: `multiscales: [{"version", "axes", "datasets"}]`, under `ome` since version 0.5.
//!
//! n5-universe writes and reads the lists in N5 axis order (x, y, z, …). Programs that write OME-NGFF through a Zarr
//! library's N5 store list them as in Zarr, slowest axis first (…, z, y, x). Both forms exist, so the axis names
//! decide. The lists are reversed here if `x` comes after `y` or, without these two, if the first axis is not spatial
//! and the last one is. Versions 0.1 and 0.2 name no axes and mean t, c, z, y, x. Version 0.3 has plain strings.
//! Versions before 0.4 have no scale.
//!
//! The attributes of the listed paths are loaded. Other conventions use the key `multiscales`, too: COSEM for a list
//! whose datasets have a `transform`, and n5-universe's canonical form for an object. OME-NGFF is recognised by a list
//! whose datasets have no `transform`.
//!
//! Source: <https://ngff.openmicroscopy.org>; n5-universe `OmeNgffMetadataParser.java`.

use serde_json::{Map, Value};

use super::pyramid::{
    Convention, LevelDataset, Pyramid, PyramidLevel, clear_units, factors_from_resolution, find_levels, repair_sizes,
};
use crate::json_values::{numbers, path_below, push_unique, truncated_json};
use crate::node::{MAX_LEVELS, Node};
use crate::problem::{MetadataProblem, MetadataProblemKind};
use crate::voxel_size::checked_sizes;

/// Returns the first multiscale image that the attributes describe.
fn first_multiscale(attributes: &Map<String, Value>) -> Option<&Map<String, Value>> {
    let root = attributes.get("ome").and_then(Value::as_object).unwrap_or(attributes);
    let image = root.get("multiscales")?.as_array()?.first()?.as_object()?;
    let datasets = image.get("datasets")?.as_array()?;
    let is_cosem = datasets.iter().any(|dataset| dataset.get("transform").is_some());
    let is_ngff = ["axes", "version"].iter().any(|key| image.contains_key(*key))
        || root.contains_key("version")
        || datasets.iter().any(|dataset| dataset.get("coordinateTransformations").is_some());
    (is_ngff && !is_cosem).then_some(image)
}

fn listed_levels(image: &Map<String, Value>) -> Vec<(String, Option<&Value>)> {
    let datasets = image.get("datasets").and_then(Value::as_array).into_iter().flatten().take(MAX_LEVELS);
    let level = |dataset: &'_ Value| path_below(dataset.get("path")?.as_str()?);
    datasets.filter_map(|dataset| Some((level(dataset)?, dataset.get("coordinateTransformations")))).collect()
}

pub(super) fn required_paths(node: &Node) -> Vec<String> {
    first_multiscale(node.attributes())
        .map(|image| listed_levels(image).into_iter().map(|(path, _)| path).collect())
        .unwrap_or_default()
}

pub(super) fn read(node: &Node, problems: &mut Vec<MetadataProblem>) -> Option<Pyramid> {
    let image = first_multiscale(node.attributes())?;
    let listed = listed_levels(image);
    let names = listed.iter().enumerate().map(|(number, (path, _))| (number, path.clone()));
    let datasets = find_levels(node, names, problems);
    let first = datasets.first()?;
    let rank = first.dataset.rank();
    let (axes, mut units, is_reversed) = read_axes(image, rank, problems);
    let mut levels = Vec::<(PyramidLevel, Vec<u64>)>::new();
    let mut has_scale = false;
    for level in &datasets {
        let own = listed.get(level.number).and_then(|(_, transformations)| *transformations);
        let transformation_lists = [own, image.get("coordinateTransformations")];
        let placement = compose_transformations(&transformation_lists, is_reversed, level, problems);
        has_scale |= placement.is_some();
        let (resolution, translation) =
            placement.unwrap_or_else(|| (resolution_from_sizes(level, first), vec![0.0; rank]));
        let base = levels.first().map_or(&resolution, |(finest, _)| &finest.resolution);
        let factors = factors_from_resolution(&resolution, base);
        let described = PyramidLevel { path: level.path.clone(), factors, resolution, translation };
        levels.push((described, level.dataset.dimensions().to_vec()));
    }
    let mut calibrated_axes = repair_sizes(&mut levels);
    if has_scale {
        clear_units(&mut units, &calibrated_axes);
    } else {
        calibrated_axes.fill(false);
    }
    let levels = levels.into_iter().map(|(level, _)| level).collect();
    Some(Pyramid { convention: Convention::OmeNgff, axes, units, calibrated_axes, levels })
}

/// Returns the voxel size and the origin that result from all `scale` and `translation` steps, in N5 axis order.
/// Returns `None` if there is no scale.
fn compose_transformations(
    lists: &[Option<&Value>],
    is_reversed: bool,
    level: &LevelDataset,
    problems: &mut Vec<MetadataProblem>,
) -> Option<(Vec<f64>, Vec<f64>)> {
    let rank = level.dataset.rank();
    let mut scale = vec![1.0; rank];
    let mut translation = vec![0.0; rank];
    let mut has_scale = false;
    for transformation in lists.iter().flatten().filter_map(|list| list.as_array()).flatten() {
        let kind = transformation.get("type").and_then(Value::as_str).unwrap_or_default();
        if kind == "identity" {
            continue;
        }
        let Some(mut list) = transformation.get(kind).and_then(numbers).filter(|list| list.len() == rank) else {
            let text = format!("level {}: transformation {} is not usable", level.path, truncated_json(transformation));
            MetadataProblemKind::InvalidLevel.report(problems, text);
            continue;
        };
        if let Some(sizes) = transformation.get("scale").filter(|_| kind == "scale") {
            checked_sizes(&format!("level {}: scale", level.path), sizes, rank, problems);
        }
        if is_reversed {
            list.reverse();
        }
        for (axis, number) in list.into_iter().enumerate() {
            let (Some(scale), Some(translation)) = (scale.get_mut(axis), translation.get_mut(axis)) else { continue };
            if kind == "scale" {
                *scale *= number;
                *translation *= number;
                has_scale = true;
            } else if kind == "translation" {
                *translation += number;
            }
        }
    }
    has_scale.then_some((scale, translation))
}

/// Estimates the voxel size of a level without a scale from its dimensions. The unit is one voxel of the finest level.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn resolution_from_sizes(level: &LevelDataset, first: &LevelDataset) -> Vec<f64> {
    let sizes = level.dataset.dimensions().iter().zip(first.dataset.dimensions());
    sizes.map(|(size, full)| if *size == 0 { 1.0 } else { (*full as f64 / *size as f64).round().max(1.0) }).collect()
}

/// Returns the names and the units of the axes, in N5 axis order, and a flag that is true if the metadata lists the
/// slowest axis first.
fn read_axes(
    image: &Map<String, Value>,
    rank: usize,
    problems: &mut Vec<MetadataProblem>,
) -> (Option<Vec<String>>, Option<Vec<String>>, bool) {
    let Some(value) = image.get("axes") else {
        let axes = (rank == 5).then(|| ["x", "y", "z", "c", "t"].map(str::to_owned).to_vec());
        return (axes, None, true);
    };
    let parsed: Option<Vec<NgffAxis>> = value.as_array().and_then(|list| list.iter().map(NgffAxis::read).collect());
    let Some(mut axes) = parsed.filter(|axes| axes.len() == rank) else {
        push_unique(problems, format!("axes {} do not name the {rank} axes", truncated_json(value)));
        return (None, None, false);
    };
    let is_reversed = is_slowest_first(&axes);
    if is_reversed {
        axes.reverse();
        push_unique(problems, "axes are listed slowest first, as in Zarr; n5-universe reads them fastest first");
    }
    let has_units = axes.iter().any(|axis| !axis.unit.is_empty());
    let units = has_units.then(|| axes.iter().map(|axis| axis.unit.clone()).collect());
    let names = axes.into_iter().map(|axis| axis.name).collect();
    (Some(names), units, is_reversed)
}

struct NgffAxis {
    name: String,
    is_spatial: bool,
    unit: String,
}

impl NgffAxis {
    fn read(value: &Value) -> Option<Self> {
        let member = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let name = value.as_str().or_else(|| value.get("name")?.as_str())?.to_owned();
        let kind = member("type");
        let is_spatial = kind == "space" || (kind.is_empty() && ["x", "y", "z"].contains(&name.as_str()));
        Some(Self { name, is_spatial, unit: member("unit") })
    }
}

fn is_slowest_first(axes: &[NgffAxis]) -> bool {
    let position = |name: &str| axes.iter().position(|axis| axis.name.eq_ignore_ascii_case(name));
    if let (Some(x), Some(y)) = (position("x"), position("y")) {
        return x > y;
    }
    match (axes.first(), axes.last()) {
        (Some(first), Some(last)) => !first.is_spatial && last.is_spatial,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::*;

    fn levels_of(own: &Value, dimensions: [&[u64]; 2]) -> (Pyramid, Value, Vec<MetadataProblem>) {
        let children = [("0", array(dimensions[0], &json!({}))), ("1", array(dimensions[1], &json!({})))];
        read_levels(&group(&[], own, &children))
    }

    #[test]
    fn zarr_order_is_recognised_by_the_axis_names_and_reversed() {
        // ome-zarr 0.9 wrote these attributes through zarr-python's N5FSStore.
        let own = json!({"multiscales": [{"version": "0.4", "axes": [{"name": "t", "type": "time", "unit": "second"},
            {"name": "c", "type": "channel"}, {"name": "z", "type": "space", "unit": "micrometer"},
            {"name": "y", "type": "space", "unit": "micrometer"}, {"name": "x", "type": "space", "unit": "micrometer"}],
            "datasets": [
            {"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1, 1, 3, 0.5, 0.5]}]},
            {"path": "1", "coordinateTransformations": [{"type": "scale", "scale": [1, 1, 3, 1, 1]},
                {"type": "translation", "translation": [0, 0, 0, 0.25, 0.25]}]}]}]});
        let (pyramid, levels, problems) = levels_of(&own, [&[40, 36, 30, 2, 1], &[20, 18, 30, 2, 1]]);
        assert_eq!(pyramid.axes.unwrap(), ["x", "y", "z", "c", "t"]);
        assert_eq!(pyramid.units.unwrap(), ["micrometer", "micrometer", "micrometer", "", "second"]);
        assert_eq!(levels[1], json!(["1", [2, 2, 1, 1, 1], [1.0, 1.0, 3.0, 1.0, 1.0], [0.25, 0.25, 0.0, 0.0, 0.0]]));
        assert_eq!(problems.len(), 1);
    }

    #[test]
    fn n5_order_is_kept_and_group_transformations_come_last() {
        let own = json!({"ome": {"version": "0.5", "multiscales": [{"axes": [{"name": "x", "type": "space"},
            {"name": "y", "type": "space"}, {"name": "c", "type": "channel"}],
            "coordinateTransformations": [{"type": "scale", "scale": [10, 10, 1]}],
            "datasets": [
            {"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1, 2, 1]}]},
            {"path": "1", "coordinateTransformations": [{"type": "scale", "scale": [2, 4, 1]},
                {"type": "translation", "translation": [0.5, 1, 0]}]}]}]}});
        let (pyramid, levels, problems) = levels_of(&own, [&[8, 6, 3], &[4, 3, 3]]);
        assert_eq!(pyramid.axes.unwrap(), ["x", "y", "c"]);
        assert_eq!(levels[1], json!(["1", [2, 2, 1], [20.0, 40.0, 1.0], [5.0, 10.0, 0.0]]));
        assert!(problems.is_empty(), "{problems:?}");
    }

    #[test]
    fn old_versions_have_string_axes_or_none_and_no_scale() {
        let datasets = json!([{"path": "0"}, {"path": "1"}]);
        let own = json!({"multiscales": [{"version": "0.3", "axes": ["y", "x"], "datasets": datasets}]});
        let (pyramid, levels, _) = levels_of(&own, [&[8, 6], &[4, 6]]);
        assert_eq!(pyramid.axes.unwrap(), ["x", "y"]);
        assert_eq!(levels[1], json!(["1", [2, 1], [2.0, 1.0], [0.0, 0.0]]));
        let own = json!({"multiscales": [{"version": "0.1", "datasets": datasets}]});
        let (pyramid, ..) = levels_of(&own, [&[8, 6, 1, 1, 1], &[4, 3, 1, 1, 1]]);
        assert_eq!(pyramid.axes.unwrap(), ["x", "y", "z", "c", "t"]);
    }

    #[test]
    fn levels_with_an_unusable_scale_keep_the_proportions_of_their_sizes() {
        let level = |path: &str, scale: [f64; 2]| json!({"path": path, "coordinateTransformations": [{"type": "scale", "scale": scale}]});
        let axes = json!([{"name": "y", "type": "space", "unit": "micrometer"}, {"name": "x", "type": "space", "unit": "micrometer"}]);
        let own = json!({"multiscales": [{"version": "0.4", "axes": axes, "datasets": [level("0", [0.0, 0.5]), level("1", [0.0, 1.0])]}]});
        let (pyramid, levels, problems) = levels_of(&own, [&[8, 6], &[4, 3]]);
        assert_eq!(levels[1], json!(["1", [2, 2], [1.0, 2.0], [0.0, 0.5]]));
        assert_eq!(
            (pyramid.resolution(), pyramid.units.unwrap()),
            (Some(vec![Some(0.5), None]), vec!["micrometer".to_owned(), String::new()])
        );
        let about_size = problems.iter().filter(|problem| problem.contains("scale")).collect::<Vec<_>>();
        assert_eq!(about_size.len(), 2, "one for each level: {problems:?}");
        assert!(
            about_size[0].starts_with("level 0: scale [0.0,0.5] is wrong: 0.0 is not greater than 0"),
            "{problems:?}"
        );
    }

    #[test]
    fn missing_levels_and_odd_transformations_are_reported() {
        let own = json!({"multiscales": [{"version": "0.4", "axes": 7, "datasets": [
            {"path": "0", "coordinateTransformations": [{"type": "scale", "path": "file"}, 3]}, {"path": "9"}]}]});
        let (_, levels, problems) = levels_of(&own, [&[8, 6], &[4, 3]]);
        assert_eq!(levels, json!([["0", [1, 1], [1.0, 1.0], [0.0, 0.0]]]));
        assert_eq!(problems.len(), 4, "{problems:?}");
    }
}
