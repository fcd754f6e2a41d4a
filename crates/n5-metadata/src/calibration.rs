//! Axes, units and voxel size of a single dataset.

use n5_format::DescribedDataset;
use serde_json::Value;

use crate::json_values::{one_per_axis, push_unique, strings, truncated_json};
use crate::problem::MetadataProblem;
use crate::transform::{note_axis_order, transform};

/// Axes, units, voxel size and position according to a dataset's own attributes.
///
/// Every list has one entry per axis, in N5 axis order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calibration {
    /// Names of the axes.
    pub axes: Option<Vec<String>>,
    /// Units as written, `""` for an axis without a unit.
    pub units: Option<Vec<String>>,
    /// Voxel size of this dataset in these units.
    pub resolution: Option<Vec<f64>>,
    /// Position of the centre of the first voxel in these units.
    pub translation: Option<Vec<f64>>,
}

impl Calibration {
    /// Reads the attributes; skips malformed ones and adds a problem for each.
    ///
    /// The sources, in order of precedence, are `axes`, `units` and `resolution` as TensorStore and Neuroglancer define
    /// them; a COSEM `transform`; and n5-viewer's `pixelResolution`, which is the voxel size at full resolution and is
    /// therefore multiplied by the dataset's `downsamplingFactors`. Voxel size and units come from the same source.
    /// Attributes of groups above, which Neuroglancer merges, are not considered.
    pub fn from_dataset(dataset: &DescribedDataset, problems: &mut Vec<MetadataProblem>) -> Self {
        let (members, rank) = (dataset.members(), dataset.rank());
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
            calibration.resolution = one_per_axis(value, rank);
            if calibration.resolution.is_none() {
                push_unique(problems, format!("resolution {} is not one number per axis", truncated_json(value)));
            }
        }
        if let Some(value) = members.get("transform") {
            match transform(value, rank) {
                Ok(transform) => {
                    note_axis_order(transform.axes.as_deref(), problems);
                    calibration.fill_missing(transform.axes, transform.units, transform.scale, transform.translate);
                }
                Err(problem) => push_unique(problems, problem),
            }
        }
        if let Some(value) = members.get("pixelResolution") {
            match pixel_resolution(value, rank) {
                Some((base, unit)) => {
                    let factors = members.get("downsamplingFactors").and_then(|value| one_per_axis(value, rank));
                    let factors = factors.unwrap_or_else(|| vec![1.0; rank]);
                    let scale = base.iter().zip(&factors).map(|(base, f)| base * f).collect();
                    let shift = base.iter().zip(&factors).map(|(base, f)| base * (f - 1.0) / 2.0).collect();
                    calibration.fill_missing(None, unit.map(|unit| vec![unit; rank]), scale, shift);
                }
                None => push_unique(problems, format!("pixelResolution {} is not usable", truncated_json(value))),
            }
        }
        calibration
    }

    /// Fills values that are still missing from another source.
    fn fill_missing(
        &mut self,
        axes: Option<Vec<String>>,
        units: Option<Vec<String>>,
        resolution: Vec<f64>,
        translation: Vec<f64>,
    ) {
        self.axes = self.axes.take().or(axes);
        if self.resolution.is_none() {
            self.resolution = Some(resolution);
            self.translation = Some(translation);
            self.units = units.or(self.units.take());
        } else if self.translation.is_none()
            && self.resolution.as_ref().is_some_and(|own| approximately_equal(own, &resolution))
        {
            // The source repeats `resolution`, which cannot express a position.
            self.translation = Some(translation);
        }
    }
}

fn approximately_equal(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6 * a.abs())
}

/// Returns voxel size and unit of n5-viewer's `pixelResolution`: `{"unit": …, "dimensions": […]}` or a plain list.
pub(crate) fn pixel_resolution(value: &Value, rank: usize) -> Option<(Vec<f64>, Option<String>)> {
    match value.as_object() {
        Some(members) => {
            let unit = members.get("unit").and_then(Value::as_str).map(str::to_owned);
            Some((one_per_axis(members.get("dimensions")?, rank)?, unit))
        }
        None => Some((one_per_axis(value, rank)?, None)),
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
