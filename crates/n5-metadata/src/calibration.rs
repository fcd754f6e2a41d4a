//! Axes, units and voxel size of a single dataset.

use n5_format::DescribedDataset;
use serde_json::Value;

use crate::json_values::{numbers, one_per_axis, push_unique, strings, truncated_json};
use crate::problem::MetadataProblem;
use crate::voxel_size::{checked_sizes, is_usable_size};

/// Attributes of a dataset that give its voxel size.
const SIZE_ATTRIBUTES: [&str; 3] = ["resolution", "transform", "pixelResolution"];

/// Axes, units, voxel size and position according to a dataset's own attributes.
///
/// Every list has one entry per axis, in N5 axis order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calibration {
    /// Names of the axes.
    pub axes: Option<Vec<String>>,
    /// Units as written, `""` for an axis without a unit or with an unusable voxel size.
    pub units: Option<Vec<String>>,
    /// Voxel size of this dataset, in `units`. Sizes that are not positive are unusable.
    pub resolution: Option<Vec<f64>>,
    /// Position of the centre of the first voxel, in `units`.
    pub translation: Option<Vec<f64>>,
}

impl Calibration {
    /// Reads the attributes of a dataset. Malformed ones are skipped, and a problem is added for each.
    ///
    /// The sources, in order of precedence, are:
    ///
    /// 1. `axes`, `units` and `resolution` as TensorStore and Neuroglancer define them;
    /// 2. COSEM's `transform`;
    /// 3. n5-viewer's `pixelResolution`. It is the voxel size at full resolution, so it is multiplied by the dataset's
    ///    `downsamplingFactors`.
    ///
    /// Voxel size and units come from the same source. The attributes of groups above, which Neuroglancer merges with
    /// those of the dataset, are not considered.
    pub fn from_dataset(dataset: &DescribedDataset, problems: &mut Vec<MetadataProblem>) -> Self {
        let members = dataset.members();
        let rank = dataset.rank();
        let mut names = |key: &str| {
            let value = members.get(key)?;
            let list = strings(value).filter(|list| list.len() == rank);
            if list.is_none() {
                push_unique(problems, format!("{key} {} is not one string per axis", truncated_json(value)));
            }
            list
        };
        let mut calibration = Self { axes: names("axes"), units: names("units"), ..Self::default() };
        if let Some(value) = members.get("resolution") {
            calibration.resolution = checked_sizes("resolution", value, rank, problems);
        }
        if let Some(value) = members.get("transform") {
            match transform(value, rank) {
                Ok(transform) => {
                    if let Some(scale) = value.get("scale") {
                        checked_sizes("transform.scale", scale, rank, problems);
                    }
                    note_axis_order(transform.axes.as_deref(), problems);
                    calibration.fill_missing(transform);
                }
                Err(problem) => push_unique(problems, problem),
            }
        }
        if let Some(value) = members.get("pixelResolution")
            && let Some((base, unit)) = pixel_resolution("pixelResolution", value, rank, problems)
        {
            let factors = members.get("downsamplingFactors").and_then(|value| one_per_axis(value, rank));
            let factors = factors.unwrap_or_else(|| vec![1.0; rank]);
            let (resolution, translation) = downsampled(&base, &factors, &vec![0.0; rank]);
            calibration.fill_missing(Self {
                axes: None,
                units: unit.map(|unit| vec![unit; rank]),
                resolution: Some(resolution),
                translation: Some(translation),
            });
        }
        if calibration.resolution.is_none() && SIZE_ATTRIBUTES.iter().any(|key| members.contains_key(*key)) {
            // With a unit, readers would assume the size 1.
            calibration.units = None;
        }
        if let (Some(sizes), Some(units)) = (&calibration.resolution, &mut calibration.units) {
            let unusable = sizes.iter().zip(units).filter(|(size, _)| !is_usable_size(**size));
            unusable.for_each(|(_, unit)| unit.clear());
        }
        calibration
    }

    /// Returns the calibration with the values that it lacks taken from `level`, which is that of the same dataset as a
    /// level of a pyramid. Values for axes of other names do not apply.
    pub(crate) fn completed(mut self, level: Option<&Self>) -> Self {
        if let Some(level) = level
            && (self.axes.is_none() || level.axes.is_none() || self.axes == level.axes)
        {
            self.fill_missing(level.clone());
        }
        self
    }

    /// Fills in the values that are still missing with those of `source`.
    fn fill_missing(&mut self, source: Self) {
        self.axes = self.axes.take().or(source.axes);
        if self.resolution.is_none() {
            self.resolution = source.resolution;
            self.translation = source.translation;
            self.units = source.units.or(self.units.take());
        } else if self.translation.is_none()
            && self.resolution.iter().zip(&source.resolution).all(|(own, size)| approximately_equal(own, size))
        {
            // The attribute `resolution` gives no position. `source` has the same voxel size, so its position applies.
            self.translation = source.translation;
        }
    }
}

/// Returns the voxel size after downsampling by `factors`, and the position of the centre of the first voxel. `base`
/// and `offset` are the same two values at full resolution. Averaging voxels moves the centre of the first one by
/// `(factors - 1) / 2` voxels.
pub(crate) fn downsampled(base: &[f64], factors: &[f64], offset: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let axes = || factors.iter().zip(base);
    let shift = axes().map(|(f, base)| base * (f - 1.0) / 2.0);
    (axes().map(|(f, base)| f * base).collect(), shift.zip(offset).map(|(shift, offset)| offset + shift).collect())
}

fn approximately_equal(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6 * a.abs())
}

/// Returns the voxel size and the unit in n5-viewer's `pixelResolution`, which is `{"unit": …, "dimensions": […]}` or a
/// plain list. Adds a problem unless all sizes are usable, in which `name` stands for the attribute.
pub(crate) fn pixel_resolution(
    name: &str,
    value: &Value,
    rank: usize,
    problems: &mut Vec<MetadataProblem>,
) -> Option<(Vec<f64>, Option<String>)> {
    let Some(members) = value.as_object() else { return Some((checked_sizes(name, value, rank, problems)?, None)) };
    let unit = members.get("unit").and_then(Value::as_str).map(str::to_owned);
    let Some(dimensions) = members.get("dimensions") else {
        push_unique(problems, format!("{name} {} has no voxel size: dimensions is missing", truncated_json(value)));
        return None;
    };
    Some((checked_sizes(&format!("{name}.dimensions"), dimensions, rank, problems)?, unit))
}

/// Parses the attribute `transform` of COSEM / CellMap, which holds the axes, units, voxel size and position of a
/// dataset with `rank` axes.
///
/// Lists are in C order, slowest axis first, unless `ordering` (or `order`) is `"F"`. Lists in C order are reversed
/// here. The result always has a voxel size and a position.
///
/// # Errors
/// A message that describes the fault.
pub(crate) fn transform(value: &Value, rank: usize) -> Result<Calibration, String> {
    let unusable = || format!("transform {} is not usable for {rank} axes", truncated_json(value));
    let members = value.as_object().ok_or_else(unusable)?;
    let is_fortran_order =
        ["ordering", "order"].iter().any(|key| members.get(*key).and_then(Value::as_str) == Some("F"));
    let list = |key: &str| -> Result<Option<Vec<f64>>, String> {
        match members.get(key).map(numbers) {
            None => Ok(None),
            Some(Some(mut list)) if list.len() == rank => {
                if !is_fortran_order {
                    list.reverse();
                }
                Ok(Some(list))
            }
            Some(_) => Err(unusable()),
        }
    };
    let names = |key: &str| {
        let mut list = members.get(key).and_then(strings).filter(|list| list.len() == rank)?;
        if !is_fortran_order {
            list.reverse();
        }
        Some(list)
    };
    let resolution = Some(list("scale")?.ok_or_else(unusable)?);
    let translation = Some(list("translate")?.unwrap_or_else(|| vec![0.0; rank]));
    Ok(Calibration { axes: names("axes"), units: names("units"), resolution, translation })
}

/// Adds a problem if the names of the axes suggest that the fastest axis comes first, although the metadata does not
/// say so.
pub(crate) fn note_axis_order(axes: Option<&[String]>, problems: &mut Vec<MetadataProblem>) {
    let position = |name: &str| axes.into_iter().flatten().position(|axis| axis == name);
    if position("x").zip(position("y")).is_some_and(|(x, y)| x > y) {
        let text = "transform lists x before y without ordering F; it is read slowest axis first, as in n5-universe";
        push_unique(problems, text.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::*;

    fn calibration_of(further: &Value) -> (Calibration, Vec<MetadataProblem>) {
        let mut problems = Vec::new();
        let calibration = Calibration::from_dataset(&dataset(&array(&[12, 10, 6], further)), &mut problems);
        (calibration, problems)
    }

    #[test]
    fn the_keys_of_tensorstore_and_neuroglancer_come_first() {
        let (calibration, problems) =
            calibration_of(&json!({"axes": ["x", "y", "z"], "units": ["nm", "nm", "um"], "resolution": [4, 4, 40.5],
            "pixelResolution": [1, 1, 1]}));
        assert_eq!(calibration.axes.unwrap(), ["x", "y", "z"]);
        assert_eq!(calibration.units.unwrap(), ["nm", "nm", "um"]);
        assert_eq!((calibration.resolution.unwrap(), calibration.translation), (vec![4.0, 4.0, 40.5], None));
        assert!(problems.is_empty());
    }

    #[test]
    fn a_cosem_transform_is_reversed() {
        let (calibration, _) =
            calibration_of(&json!({"transform": {"axes": ["z", "y", "x"], "scale": [3.24, 4.0, 5.0],
            "translate": [1, 2, 3], "units": ["um", "nm", "nm"]}, "pixelResolution": [9, 9, 9]}));
        assert_eq!(calibration.axes.unwrap(), ["x", "y", "z"]);
        assert_eq!(calibration.units.unwrap(), ["nm", "nm", "um"]);
        assert_eq!(
            (calibration.resolution.unwrap(), calibration.translation.unwrap()),
            (vec![5.0, 4.0, 3.24], vec![3.0, 2.0, 1.0])
        );
    }

    #[test]
    fn pixel_resolution_is_multiplied_by_the_factors() {
        let (calibration, _) =
            calibration_of(&json!({"pixelResolution": {"unit": "mm", "dimensions": [1.5, 1.5, 1.5]},
            "downsamplingFactors": [2, 2, 1]}));
        assert_eq!(calibration.units.unwrap(), ["mm", "mm", "mm"]);
        assert_eq!(
            (calibration.resolution.unwrap(), calibration.translation.unwrap()),
            (vec![3.0, 3.0, 1.5], vec![0.75, 0.75, 0.0])
        );
        assert_eq!(calibration_of(&json!({"pixelResolution": [1, 2, 3]})).0.resolution.unwrap(), [1.0, 2.0, 3.0]);
    }

    #[test]
    fn malformed_keys_are_passed_over_with_a_problem() {
        let (calibration, problems) =
            calibration_of(&json!({"axes": "xyz", "units": ["nm"], "resolution": ["4", 4, 4], "transform": null,
            "pixelResolution": {"unit": "nm"}}));
        assert_eq!((calibration, problems.len()), (Calibration::default(), 5));
    }
}
