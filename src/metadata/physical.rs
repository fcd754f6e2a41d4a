//! Axes, units and voxel size of a single dataset.

use serde_json::Value;

use crate::n5::DescribedDataset;

use super::cosem;
use super::fields::{note, one_per_axis, shown, strings};
use super::problem::Problem;

/// What a dataset's own attributes say about its place in space.
///
/// Every list has one entry per axis, N5 order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Physical {
    /// Names of the axes.
    pub axes: Option<Vec<String>>,
    /// Units as written, `""` for none.
    pub units: Option<Vec<String>>,
    /// Size of a voxel of this dataset in these units.
    pub resolution: Option<Vec<f64>>,
    /// Position of the first voxel's centre in these units.
    pub translation: Option<Vec<f64>>,
}

impl Physical {
    /// Reads the attributes; what is malformed is passed over with a problem.
    ///
    /// In this order: `axes`, `units`, `resolution` as TensorStore and Neuroglancer define them; a COSEM
    /// `transform`; n5-viewer's `pixelResolution`, which is the voxel size at full resolution and
    /// therefore multiplied by the dataset's `downsamplingFactors`. Voxel size and units come from the
    /// same source. What a group above may add (Neuroglancer merges all of them) is not counted.
    pub fn of(dataset: &DescribedDataset, problems: &mut Vec<Problem>) -> Self {
        let (members, rank) = (dataset.members(), dataset.rank());
        let mut names = |key: &str| {
            let given = members.get(key)?;
            let list = strings(given).filter(|list| list.len() == rank);
            if list.is_none() {
                note(problems, format!("{key} {} is not one string per axis", shown(given)));
            }
            list
        };
        let mut physical = Self { axes: names("axes"), units: names("units"), ..Self::default() };
        if let Some(given) = members.get("resolution") {
            physical.resolution = one_per_axis(given, rank);
            if physical.resolution.is_none() {
                note(problems, format!("resolution {} is not one number per axis", shown(given)));
            }
        }
        if let Some(given) = members.get("transform") {
            match cosem::transform(given, rank) {
                Ok(transform) => {
                    cosem::note_order(transform.axes.as_deref(), problems);
                    physical.fill(transform.axes, transform.units, transform.scale, transform.translate);
                }
                Err(problem) => note(problems, problem),
            }
        }
        if let Some(given) = members.get("pixelResolution") {
            match pixel_resolution(given, rank) {
                Some((base, unit)) => {
                    let factors = members.get("downsamplingFactors").and_then(|value| one_per_axis(value, rank));
                    let factors = factors.unwrap_or_else(|| vec![1.0; rank]);
                    let scale = base.iter().zip(&factors).map(|(base, f)| base * f).collect();
                    let shift = base.iter().zip(&factors).map(|(base, f)| base * (f - 1.0) / 2.0).collect();
                    physical.fill(None, unit.map(|unit| vec![unit; rank]), scale, shift);
                }
                None => note(problems, format!("pixelResolution {} is not usable", shown(given))),
            }
        }
        physical
    }

    /// Takes what is not known yet from another source.
    fn fill(
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
        } else if self.translation.is_none() && self.resolution.as_ref().is_some_and(|own| close(own, &resolution)) {
            // Redundant keys beside `resolution`, which has no room for the position.
            self.translation = Some(translation);
        }
    }
}

fn close(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6 * a.abs())
}

/// n5-viewer's `pixelResolution`: `{"unit": …, "dimensions": […]}` or a plain list; voxel size and unit.
pub(super) fn pixel_resolution(value: &Value, rank: usize) -> Option<(Vec<f64>, Option<String>)> {
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

    use super::super::testing::*;
    use super::*;

    fn of(further: &Value) -> (Physical, Vec<Problem>) {
        let mut problems = Vec::new();
        let physical = Physical::of(&dataset(&array(&[12, 10, 6], further)), &mut problems);
        (physical, problems)
    }

    #[test]
    fn the_keys_of_tensorstore_and_neuroglancer_come_first() {
        let (physical, problems) =
            of(&json!({"axes": ["x", "y", "z"], "units": ["nm", "nm", "um"], "resolution": [4, 4, 40.5],
            "pixelResolution": [1, 1, 1]}));
        assert_eq!(physical.axes.unwrap(), ["x", "y", "z"]);
        assert_eq!(physical.units.unwrap(), ["nm", "nm", "um"]);
        assert_eq!((physical.resolution.unwrap(), physical.translation), (vec![4.0, 4.0, 40.5], None));
        assert!(problems.is_empty());
    }

    #[test]
    fn a_cosem_transform_is_reversed() {
        let (physical, _) = of(&json!({"transform": {"axes": ["z", "y", "x"], "scale": [3.24, 4.0, 5.0],
            "translate": [1, 2, 3], "units": ["um", "nm", "nm"]}, "pixelResolution": [9, 9, 9]}));
        assert_eq!(physical.axes.unwrap(), ["x", "y", "z"]);
        assert_eq!(physical.units.unwrap(), ["nm", "nm", "um"]);
        assert_eq!(
            (physical.resolution.unwrap(), physical.translation.unwrap()),
            (vec![5.0, 4.0, 3.24], vec![3.0, 2.0, 1.0])
        );
    }

    #[test]
    fn pixel_resolution_is_multiplied_by_the_factors() {
        let (physical, _) = of(&json!({"pixelResolution": {"unit": "mm", "dimensions": [1.5, 1.5, 1.5]},
            "downsamplingFactors": [2, 2, 1]}));
        assert_eq!(physical.units.unwrap(), ["mm", "mm", "mm"]);
        assert_eq!(
            (physical.resolution.unwrap(), physical.translation.unwrap()),
            (vec![3.0, 3.0, 1.5], vec![0.75, 0.75, 0.0])
        );
        assert_eq!(of(&json!({"pixelResolution": [1, 2, 3]})).0.resolution.unwrap(), [1.0, 2.0, 3.0]);
    }

    #[test]
    fn malformed_keys_are_passed_over_with_a_problem() {
        let (physical, problems) =
            of(&json!({"axes": "xyz", "units": ["nm"], "resolution": ["4", 4, 4], "transform": null,
            "pixelResolution": {"unit": "nm"}}));
        assert_eq!((physical, problems.len()), (Physical::default(), 5));
    }
}
