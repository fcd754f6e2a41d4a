//! Coordinate space of an image, in one form for all views and all metadata conventions.
//!
//! All values are valid: names are unique, sizes are positive, and lists are as long as the rank.

use n5_format::{AttributesDocument, DescribedDataset};

use crate::calibration::{Calibration, downsampled, pixel_resolution};
use crate::json_values::{one_per_axis, strings};
use crate::multiscale::pyramid::Pyramid;
use crate::node::Node;
use crate::units::{BaseUnit, Unit};
use crate::voxel_size::is_usable_size;

/// Kind of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AxisKind {
    /// A direction in space.
    Space,
    /// Time.
    Time,
    /// Channels.
    Channel,
    /// Anything else.
    Other,
}

/// An axis of a [`CoordinateSpace`].
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Name, unique among the axes and not empty.
    pub name: String,
    /// True if the metadata, or the convention that it follows, gives exactly this name.
    pub has_given_name: bool,
    /// Kind of the axis, derived from its unit and name.
    pub kind: AxisKind,
    /// Unit, or `None` if there is none or it cannot be parsed.
    pub unit: Option<Unit>,
    /// Unit as written, or `""` if there is none.
    pub unit_text: String,
    /// True if the metadata gives a usable voxel size along this axis.
    pub is_calibrated: bool,
}

/// Axes, voxel size and position of a dataset. Lists have one entry per axis, in N5 axis order.
#[derive(Debug, Clone, PartialEq)]
pub struct CoordinateSpace {
    /// The axes.
    pub axes: Vec<Axis>,
    /// Voxel size in the axes' units. Always finite and positive; 1 where the size is unknown or unusable.
    pub scale: Vec<f64>,
    /// Position of the centre of the first voxel in the axes' units. Always finite.
    pub translation: Vec<f64>,
    /// True if a voxel size is given for at least one axis.
    pub is_calibrated: bool,
}

impl CoordinateSpace {
    /// Returns the coordinate space of a dataset.
    ///
    /// The dataset's own attributes take precedence; see [`Calibration::from_dataset`]. Each missing value comes from
    /// the nearest directory above that has it for the same number of axes. The attributes considered are `axes`,
    /// `resolution` with `units` (or Paintera's `unit` and `offset`), and `pixelResolution`. A voxel size from above
    /// applies to full resolution, so it is multiplied by the dataset's own `downsamplingFactors`. `inherited` holds
    /// the attributes of the directories above, root first.
    pub fn of_dataset(dataset: &DescribedDataset, inherited: &[AttributesDocument]) -> Self {
        Self::of_calibrated(dataset, Calibration::from_dataset(dataset, &mut Vec::new()), inherited)
    }

    /// Returns the coordinate space of `dataset`, which is that of `node`. What its own attributes lack comes from the
    /// pyramid that has it as a level, and otherwise from the directories above, as [`Self::of_dataset`] describes.
    pub fn of_node(dataset: &DescribedDataset, node: &Node) -> Self {
        let own = Calibration::from_dataset(dataset, &mut Vec::new());
        Self::of_calibrated(dataset, own.completed(node.level_calibration.as_ref()), &node.ancestors)
    }

    /// Returns the coordinate space of a dataset with this calibration. What it lacks comes from the directories above.
    fn of_calibrated(
        dataset: &DescribedDataset,
        mut calibration: Calibration,
        inherited: &[AttributesDocument],
    ) -> Self {
        let rank = dataset.rank();
        let ancestors = || inherited.iter().rev().map(AttributesDocument::members);
        if calibration.axes.is_none() {
            calibration.axes =
                ancestors().find_map(|members| members.get("axes").and_then(strings).filter(|list| list.len() == rank));
        }
        if calibration.resolution.is_none() {
            let are_all_positive = |list: &Vec<f64>| list.iter().all(|size| is_usable_size(*size));
            let size = ancestors().find_map(|members| {
                let list = |key: &str| members.get(key).and_then(|value| one_per_axis(value, rank));
                if let Some(base) = list("resolution").filter(are_all_positive) {
                    let unit = members.get("unit").and_then(serde_json::Value::as_str);
                    let units = members.get("units").and_then(strings).filter(|list| list.len() == rank);
                    let units = units.or_else(|| unit.map(|unit| vec![unit.to_owned(); rank]));
                    return Some((base, units, list("offset")));
                }
                let value = members.get("pixelResolution")?;
                let (base, unit) = pixel_resolution("pixelResolution", value, rank, &mut Vec::new())?;
                are_all_positive(&base).then(|| (base, unit.map(|unit| vec![unit; rank]), None))
            });
            if let Some((base, units, offset)) = size {
                let factors = dataset.members().get("downsamplingFactors").and_then(|value| one_per_axis(value, rank));
                let factors = factors.filter(are_all_positive).unwrap_or_else(|| vec![1.0; rank]);
                let offset = offset.unwrap_or_else(|| vec![0.0; rank]);
                let (resolution, translation) = downsampled(&base, &factors, &offset);
                (calibration.resolution, calibration.translation) = (Some(resolution), Some(translation));
                calibration.units = calibration.units.take().or(units);
            }
        }
        Self::from_calibration(rank, &calibration)
    }

    /// Returns the coordinate space of a pyramid's level, or one without axes if the pyramid has no such level.
    pub fn of_level(pyramid: &Pyramid, level: usize) -> Self {
        let Some(level) = pyramid.levels.get(level) else { return Self::from_calibration(0, &Calibration::default()) };
        let calibration = Calibration {
            axes: pyramid.axes.clone(),
            units: pyramid.units.clone(),
            resolution: Some(level.resolution.clone()),
            translation: Some(level.translation.clone()),
        };
        let mut space = Self::from_calibration(level.resolution.len(), &calibration);
        for (axis, is_calibrated) in space.axes.iter_mut().zip(&pyramid.calibrated_axes) {
            axis.is_calibrated &= is_calibrated;
        }
        space.is_calibrated = space.axes.iter().any(|axis| axis.is_calibrated);
        space
    }

    /// Creates a coordinate space from `given`, with missing and unusable values replaced and with unique names.
    fn from_calibration(rank: usize, given: &Calibration) -> Self {
        let mut space = Self { axes: Vec::new(), scale: Vec::new(), translation: Vec::new(), is_calibrated: false };
        let given_name =
            |axis: usize| given.axes.as_ref().and_then(|names| names.get(axis)).map_or("", String::as_str).trim();
        for axis in 0..rank {
            let unit_text = given.units.as_ref().and_then(|units| units.get(axis)).cloned().unwrap_or_default();
            let unit = Unit::parse(&unit_text);
            let size = given.resolution.as_ref().and_then(|sizes| sizes.get(axis)).copied();
            let usable_size = size.filter(|size| is_usable_size(*size));
            let position = given.translation.as_ref().and_then(|list| list.get(axis)).copied();
            space.scale.push(usable_size.unwrap_or(1.0));
            space.translation.push(position.filter(|position| position.is_finite()).unwrap_or(0.0));
            space.is_calibrated |= usable_size.is_some();
            let has_given_name =
                !given_name(axis).is_empty() && !(0..axis).any(|other| given_name(other) == given_name(axis));
            let name = if has_given_name { given_name(axis).to_owned() } else { String::new() };
            space.axes.push(Axis {
                name,
                has_given_name,
                kind: AxisKind::Other,
                unit,
                unit_text,
                is_calibrated: usable_size.is_some(),
            });
        }
        for number in 0..rank {
            let is_taken = |name: &str| space.axes.iter().any(|axis| axis.name == name);
            let base = match given_name(number) {
                "" => default_name(number),
                repeated => repeated.to_owned(),
            };
            let mut candidates = std::iter::once(base.clone()).chain((2..).map(|n| format!("{base}{n}")));
            let name = candidates.find(|name| !is_taken(name)).unwrap_or_default();
            if let Some(axis) = space.axes.get_mut(number) {
                if !axis.has_given_name {
                    axis.name = name;
                }
                axis.kind = axis_kind(&axis.name, axis.unit);
            }
        }
        space
    }
}

/// Returns the name that Neuroglancer gives to an axis without a name.
fn default_name(axis: usize) -> String {
    ["x", "y", "z", "t", "c"].get(axis).map_or_else(|| format!("d{}", axis + 1), ToString::to_string)
}

fn axis_kind(name: &str, unit: Option<Unit>) -> AxisKind {
    match unit.map(|unit| unit.base) {
        Some(BaseUnit::Metre) => AxisKind::Space,
        Some(BaseUnit::Second) => AxisKind::Time,
        Some(BaseUnit::Hertz | BaseUnit::RadianPerSecond) => AxisKind::Other,
        None => match name.to_lowercase().as_str() {
            "x" | "y" | "z" => AxisKind::Space,
            "t" | "time" | "timepoint" | "timepoints" | "frame" => AxisKind::Time,
            // Neuroglancer marks channel axes with `^`.
            "c" | "c^" | "ch" | "channel" | "channels" => AxisKind::Channel,
            _ => AxisKind::Other,
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pyramid;
    use crate::testing::*;

    fn space_of(further: &Value, ancestors: &[Value]) -> CoordinateSpace {
        let documents: Vec<AttributesDocument> = ancestors.iter().map(document).collect();
        CoordinateSpace::of_dataset(&dataset(&array(&[12, 10, 6], further)), &documents)
    }

    fn names(space: &CoordinateSpace) -> Vec<&str> {
        space.axes.iter().map(|axis| axis.name.as_str()).collect()
    }

    fn si(space: &CoordinateSpace) -> Vec<String> {
        space.axes.iter().map(|axis| axis.unit.map_or_else(String::new, |unit| unit.si_symbol())).collect()
    }

    #[test]
    fn a_dataset_without_metadata_has_default_names_and_unit_scale() {
        use AxisKind::{Channel, Other, Space as S, Time};

        let space = CoordinateSpace::of_dataset(&dataset(&array(&[1; 7], &json!({}))), &[]);
        assert_eq!(names(&space), ["x", "y", "z", "t", "c", "d6", "d7"]);
        assert!(!space.is_calibrated && space.axes.iter().all(|axis| !axis.has_given_name && !axis.is_calibrated));
        assert_eq!((space.scale, space.translation), (vec![1.0; 7], vec![0.0; 7]));
        let kinds: Vec<AxisKind> = space.axes.iter().map(|axis| axis.kind).collect();
        assert_eq!(kinds, [S, S, S, Time, Channel, Other, Other]);
        assert_eq!(CoordinateSpace::of_dataset(&dataset(&array(&[], &json!({}))), &[]).axes, []);
    }

    #[test]
    fn each_convention_of_a_dataset_is_read() {
        let own =
            space_of(&json!({"axes": ["a", "b", "t"], "units": ["nm", "µm", "s"], "resolution": [4, 0.5, 2]}), &[]);
        assert_eq!((names(&own), si(&own)), (vec!["a", "b", "t"], vec!["nm".into(), "um".into(), "s".into()]));
        assert_eq!(
            (own.scale.as_slice(), own.axes[2].kind, own.is_calibrated),
            ([4.0, 0.5, 2.0].as_slice(), AxisKind::Time, true)
        );
        let cosem = space_of(
            &json!({"transform": {"axes": ["z", "y", "x"], "scale": [3, 4, 5], "translate": [1, 2, 3],
            "units": ["micrometer", "nm", "nm"]}}),
            &[],
        );
        assert_eq!((names(&cosem), si(&cosem)), (vec!["x", "y", "z"], vec!["nm".into(), "nm".into(), "um".into()]));
        assert_eq!((cosem.scale.as_slice(), cosem.translation), ([5.0, 4.0, 3.0].as_slice(), vec![3.0, 2.0, 1.0]));
        let viewer = space_of(
            &json!({"pixelResolution": {"unit": "pixel", "dimensions": [1.5, 1.5, 3]}, "downsamplingFactors": [2, 2, 1]}),
            &[],
        );
        assert_eq!(
            (viewer.axes[0].unit, viewer.axes[0].unit_text.as_str(), viewer.axes[0].has_given_name),
            (None, "pixel", false)
        );
        assert_eq!((viewer.scale, viewer.translation), (vec![3.0, 3.0, 3.0], vec![0.75, 0.75, 0.0]));
    }

    #[test]
    fn the_translation_of_a_transform_applies_with_an_equal_resolution() {
        let transform = json!({"scale": [3, 4, 5], "translate": [1, 2, 3], "units": ["nm", "nm", "nm"]});
        let space =
            space_of(&json!({"resolution": [5, 4, 3], "units": ["nm", "nm", "nm"], "transform": transform}), &[]);
        assert_eq!(space.translation, [3.0, 2.0, 1.0]);
        let space = space_of(&json!({"resolution": [1, 1, 1], "transform": transform}), &[]);
        assert_eq!((space.scale, space.translation), (vec![1.0; 3], vec![0.0; 3]));
    }

    #[test]
    fn groups_above_supply_missing_metadata() {
        let root = json!({"resolution": [9, 9, 9], "axes": ["p", "q"]});
        let group = json!({"resolution": [4, 4, 40], "units": ["nm", "nm", "nm"], "axes": ["a", "b", "c"]});
        let space = space_of(&json!({"downsamplingFactors": [2, 2, 1]}), &[root.clone(), group.clone()]);
        assert_eq!((names(&space), space.scale.as_slice()), (vec!["a", "b", "c"], [8.0, 8.0, 40.0].as_slice()));
        assert_eq!((space.translation.as_slice(), si(&space)[0].as_str()), ([2.0, 2.0, 0.0].as_slice(), "nm"));
        assert_eq!(space_of(&json!({"resolution": [1, 1, 1]}), &[root.clone(), group]).scale, [1.0; 3]);
        assert_eq!(space_of(&json!({}), &[root, json!({"resolution": 7})]).scale, [9.0; 3]);
        let paintera = json!({"resolution": [4, 4, 40], "offset": [10, 0, 0], "unit": "nm"});
        assert_eq!(space_of(&json!({"downsamplingFactors": [2, 2, 1]}), &[paintera]).translation, [12.0, 2.0, 0.0]);
        let viewer = json!({"pixelResolution": {"unit": "um", "dimensions": [1, 2, 3]}});
        assert_eq!(space_of(&json!({}), &[viewer]).scale, [1.0, 2.0, 3.0]);
    }

    #[test]
    fn each_unusable_size_becomes_1() {
        let space = space_of(&json!({"resolution": [0, -4, 5e-1]}), &[]);
        assert_eq!((space.scale.as_slice(), space.is_calibrated), ([1.0, 1.0, 0.5].as_slice(), true));
        assert_eq!(space.axes.iter().map(|axis| axis.is_calibrated).collect::<Vec<_>>(), [false, false, true]);
        assert!(!space_of(&json!({"resolution": [0, -4, 0]}), &[]).is_calibrated);
    }

    #[test]
    fn names_are_made_unique_and_not_empty() {
        for (given, expected) in [
            (json!(["x", "x", "y"]), ["x", "x2", "y"]),
            (json!(["", "", ""]), ["x", "y", "z"]),
            (json!(["y", "", "x"]), ["y", "y2", "x"]),
            (json!(["z", "z", "z2"]), ["z", "z3", "z2"]),
            (json!([" ", "b ", "b"]), ["x", "b", "b2"]),
        ] {
            let space = space_of(&json!({"axes": given}), &[]);
            assert_eq!(names(&space), expected, "{given}");
        }
        let space = space_of(&json!({"axes": ["x", "x", "y"]}), &[]);
        assert_eq!(space.axes.iter().map(|axis| axis.has_given_name).collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn a_level_has_the_axes_of_its_pyramid() {
        let own = json!({"multiscales": [{"version": "0.4", "axes": [{"name": "c", "type": "channel"},
            {"name": "y", "type": "space", "unit": "micrometer"}, {"name": "x", "type": "space", "unit": "angstrom"}],
            "datasets": [
            {"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1, 0.5, 0.25]}]},
            {"path": "1", "coordinateTransformations": [{"type": "scale", "scale": [1, 1, 0.5]},
                {"type": "translation", "translation": [0, 0.25, 0.125]}]}]}]});
        let children = [("0", array(&[8, 6, 2], &json!({}))), ("1", array(&[4, 3, 2], &json!({})))];
        let pyramid = pyramid(&group(&[], &own, &children), &mut Vec::new()).unwrap();
        let space = CoordinateSpace::of_level(&pyramid, 1);
        assert_eq!((names(&space), space.axes[2].kind), (vec!["x", "y", "c"], AxisKind::Channel));
        assert_eq!((space.scale.as_slice(), space.is_calibrated), ([0.5, 1.0, 1.0].as_slice(), true));
        assert_eq!(space.translation, [0.125, 0.25, 0.0]);
        assert_eq!(space.axes[0].unit.unwrap().ngff_name().as_deref(), Some("angstrom"));
        assert!(CoordinateSpace::of_level(&pyramid, 2).axes.is_empty());
    }

    #[test]
    fn a_pyramid_without_calibration_is_unknown() {
        let setup = json!({"dataType": "uint8", "downsamplingFactors": [[1, 1, 1], [2, 2, 1]]});
        let children = [("s0", array(&[8, 8, 8], &json!({}))), ("s1", array(&[4, 4, 8], &json!({})))];
        let bdv = |own: &Value| pyramid(&group(&[json!({}), setup.clone()], own, &children), &mut Vec::new()).unwrap();
        let space = CoordinateSpace::of_level(&bdv(&json!({})), 1);
        assert_eq!((space.scale.as_slice(), space.is_calibrated), ([2.0, 2.0, 1.0].as_slice(), false));
        assert!(CoordinateSpace::of_level(&bdv(&json!({"resolution": [1, 1, 3]})), 0).is_calibrated);
        let viewer = json!({"scales": [[1, 1, 1], [2, 2, 1]]});
        let viewer = pyramid(&group(&[], &viewer, &children), &mut Vec::new()).unwrap();
        assert!(
            !CoordinateSpace::of_level(&viewer, 0).is_calibrated
                && names(&CoordinateSpace::of_level(&viewer, 0)) == ["x", "y", "z"]
        );
    }
}
