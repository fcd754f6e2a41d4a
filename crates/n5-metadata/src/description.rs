//! Description of a group or dataset, and the data source that Neuroglancer should open for it. The server adds the
//! members that depend on the request (`path`, `urls`).

use n5_format::{DataType, DescribedDataset, DocumentError};
use serde::Serialize;
use serde_json::Value;

use crate::calibration::Calibration;
use crate::canonical::{canonical_attributes, group_normalization_notes};
use crate::codec::{CodecEquivalents, codec_equivalents, compression_with_defaults};
use crate::compatibility::{self, Compatibility};
use crate::coordinate_space::CoordinateSpace;
use crate::json_values::push_unique;
use crate::multiscale::pyramid;
use crate::multiscale::pyramid::Pyramid;
use crate::node::Node;
use crate::problem::{MetadataProblem, MetadataProblemKind};
use crate::tensorstore::{TensorStoreInfo, tensorstore_info};
use crate::voxel_size::is_usable_size;

/// Kind of a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeKind {
    /// A directory that is neither a dataset nor a pyramid. Its attributes may be missing or broken.
    #[default]
    Group,
    /// An array.
    Dataset,
    /// A group whose datasets are the levels of one image.
    Multiscale,
}

/// Description of a directory, derived from its own attributes and from those around it. Members that apply only to
/// datasets are `None` for groups. Lists have one entry per axis, in N5 axis order.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Description {
    /// Kind of the directory.
    pub kind: NodeKind,
    /// Size in elements.
    pub dimensions: Option<Vec<u64>>,
    /// Size of a full block in elements.
    pub block_size: Option<Vec<u64>>,
    /// Name of the element type.
    pub data_type: Option<String>,
    /// `type` and parameters of the compression, with defaults filled in.
    pub compression: Option<Value>,
    /// Number of blocks along each axis.
    pub grid: Option<Vec<u64>>,
    /// Size of all elements in bytes, as a decimal string because it may exceed 2^64. `None` if the size of an element
    /// is unknown.
    pub size_bytes: Option<String>,
    /// Names of the axes. These and the following members of a level of a pyramid come from the pyramid where its own
    /// attributes do not give them.
    pub axes: Option<Vec<String>>,
    /// Units of the axes as written, `""` for an axis without a unit.
    pub units: Option<Vec<String>>,
    /// Voxel size in `units`; for a pyramid, that of its finest level. `None` for an axis along which no usable size is
    /// known, and as a whole if none is known.
    pub resolution: Option<Vec<Option<f64>>>,
    /// Levels of the image, for [`NodeKind::Multiscale`].
    pub multiscale: Option<Pyramid>,
    /// Spec and schema that TensorStore reports for the dataset, or `None` if TensorStore cannot open it.
    pub tensorstore: Option<TensorStoreInfo>,
    /// Equivalents of the dataset's compression in other libraries.
    pub codec: Option<CodecEquivalents>,
    /// Programs that can read the dataset; for a pyramid, all of its levels.
    pub readable: Option<Compatibility>,
    /// Fault of the metadata, as a sentence: attributes that are broken or describe no valid dataset, or levels of a
    /// pyramid that do not match.
    pub error: Option<String>,
    /// Problems and unusual properties, as sentences.
    pub problems: Vec<MetadataProblem>,
    /// True for a dataset whose blocks can be decoded.
    #[serde(skip)]
    is_decoded: bool,
}

/// Returns the description of a directory.
pub fn describe(node: &Node) -> Description {
    Description::new(node)
}

impl Description {
    /// Returns true for a dataset whose blocks can be decoded.
    pub fn is_decoded(&self) -> bool {
        self.is_decoded
    }

    fn new(node: &Node) -> Self {
        let mut description = Self { error: fault(node), ..Self::default() };
        if let Some(Err(error)) = &node.document {
            description.problems.push(truncated_error(error).into());
            return description;
        }
        for (name, reason) in node.own_document().unreadable() {
            push_unique(&mut description.problems, format!("the attribute {name} counts as missing: {reason}"));
        }
        let dataset = node.is_dataset().then(|| DescribedDataset::parse(node.own_document().clone()));
        if let Some(Ok(dataset)) = dataset {
            return description.describe_dataset(node, &dataset);
        }
        if let Some(text) = dataset_fault(node) {
            MetadataProblemKind::InvalidDataset.report(&mut description.problems, text);
        }
        if node.is_dataset() { description } else { description.describe_group(node) }
    }

    fn describe_dataset(mut self, node: &Node, dataset: &DescribedDataset) -> Self {
        let mut problems = std::mem::take(&mut self.problems);
        let calibration = Calibration::from_dataset(dataset, &mut problems).completed(node.level_calibration.as_ref());
        compatibility::lint(dataset, &node.ancestors, &mut problems);
        let space = CoordinateSpace::of_node(dataset, node);
        let (_, notes) = canonical_attributes(dataset, &space, dataset.data_type(), Value::Null, None);
        push_normalization_notes(notes, &mut problems);
        let readable = compatibility::dataset_compatibility(dataset, &node.ancestors, &mut problems);
        Self {
            kind: NodeKind::Dataset,
            dimensions: Some(dataset.dimensions().to_vec()),
            block_size: Some(dataset.block_size().to_vec()),
            data_type: Some(dataset.data_type().name().to_owned()),
            compression: Some(compression_with_defaults(dataset.compression())),
            grid: Some(dataset.grid().shape().to_vec()),
            size_bytes: size_bytes(dataset),
            axes: calibration.axes,
            units: calibration.units,
            resolution: calibration.resolution.and_then(|sizes| usable_sizes(&sizes)),
            tensorstore: tensorstore_info(dataset).ok(),
            codec: Some(codec_equivalents(dataset)),
            readable: Some(readable),
            problems,
            is_decoded: dataset.is_decodable(),
            ..self
        }
    }

    fn describe_group(mut self, node: &Node) -> Self {
        let pyramid = pyramid(node, &mut self.problems);
        self.error = self.error.or_else(|| level_fault(&self.problems));
        if let Some(pyramid) = pyramid {
            self.kind = NodeKind::Multiscale;
            self.axes.clone_from(&pyramid.axes);
            self.units.clone_from(&pyramid.units);
            self.resolution = pyramid.resolution();
            self.readable = Some(compatibility::pyramid_compatibility(node, &pyramid, &mut self.problems));
            push_normalization_notes(group_normalization_notes(node.attributes(), &pyramid), &mut self.problems);
            self.multiscale = Some(pyramid);
        }
        self
    }
}

/// Returns the usable ones of `sizes`, or `None` if there is none.
pub(crate) fn usable_sizes(sizes: &[f64]) -> Option<Vec<Option<f64>>> {
    let usable: Vec<Option<f64>> = sizes.iter().map(|size| Some(*size).filter(|size| is_usable_size(*size))).collect();
    (sizes.is_empty() || usable.iter().any(Option::is_some)).then_some(usable)
}

/// Returns the reason why the directory's own attributes are not what they are meant to be.
pub(crate) fn fault(node: &Node) -> Option<String> {
    if let Some(Err(error)) = &node.document {
        return Some(truncated_error(error));
    }
    let unreadable = || {
        let (name, reason) = node.own_document().unreadable().first()?;
        Some(format!("the attribute {name} counts as missing: {reason}"))
    };
    dataset_fault(node).or_else(unreadable)
}

/// Returns the first of `problems` that is about a level of a pyramid.
pub(crate) fn level_fault(problems: &[MetadataProblem]) -> Option<String> {
    let fault = problems.iter().find(|problem| problem.kind == MetadataProblemKind::InvalidLevel);
    fault.map(|problem| problem.to_string())
}

/// Returns the reason why attributes that are meant to describe a dataset do not describe one. Returns `None` for a
/// dataset, and for attributes of a group.
fn dataset_fault(node: &Node) -> Option<String> {
    let reason = if node.is_dataset() {
        DescribedDataset::parse(node.own_document().clone()).err()?.to_string()
    } else {
        let has_own = |key: &str| node.attributes().get(key).is_some_and(|value| !value.is_null());
        if !has_own("dimensions") && !has_own("blockSize") {
            return None;
        }
        let missing = ["dimensions", "blockSize", "dataType"].into_iter().find(|key| !has_own(key));
        format!("{} is missing", missing.unwrap_or_default())
    };
    Some(format!("the attributes do not describe a dataset: {reason}"))
}

/// Adds a problem for each of `notes`, which describe the changes that the view `as` makes for strict readers.
fn push_normalization_notes(notes: Vec<String>, problems: &mut Vec<MetadataProblem>) {
    for sentence in notes {
        MetadataProblemKind::Normalized.report(problems, format!("as/: {sentence}"));
    }
}

fn truncated_error(error: &DocumentError) -> String {
    let mut text = error.to_string();
    text.truncate(text.char_indices().nth(300).map_or(text.len(), |(at, _)| at));
    text
}

/// Returns the size of all elements in bytes, as decimal digits, because 32 axes of up to 2^63 elements exceed every
/// integer type.
pub(crate) fn size_bytes(dataset: &DescribedDataset) -> Option<String> {
    const BASE: u128 = 1_000_000_000;
    let item_size = u64::try_from(dataset.data_type().size_bytes()?).ok()?;
    // Digits in base 10^9, least significant first.
    let mut digits: Vec<u128> = vec![1];
    for factor in dataset.dimensions().iter().copied().chain([item_size]) {
        let mut carry: u128 = 0;
        for digit in &mut digits {
            let value = *digit * u128::from(factor) + carry;
            *digit = value % BASE;
            carry = value / BASE;
        }
        while carry > 0 {
            digits.push(carry % BASE);
            carry /= BASE;
        }
    }
    while digits.len() > 1 && digits.last() == Some(&0) {
        digits.pop();
    }
    let mut text = digits.pop().map_or_else(String::new, |first| first.to_string());
    text.extend(digits.iter().rev().map(|digit| format!("{digit:09}")));
    Some(text)
}

/// A data source that Neuroglancer can open for a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NeuroglancerSource {
    /// N5 as stored, which the server sends without decoding.
    N5,
    /// N5 in a compression that Neuroglancer reads, with another data type if it does not support the stored one.
    Reencoded(Option<DataType>),
    /// Zarr 3 with OME-NGFF metadata, which allows levels of any name and translations.
    Zarr3,
}

/// Returns the source that shows the directory correctly at the lowest cost. Returns `None` for a plain group, and for
/// a dataset or pyramid that cannot be shown: one that is not decoded, has no axes, or has an axis of length 0.
pub fn recommended_source(node: &Node, description: &Description) -> Option<NeuroglancerSource> {
    let readable = description.readable?;
    match (description.kind, &description.multiscale) {
        (NodeKind::Dataset, _) => {
            let dataset = DescribedDataset::parse(node.own_document().clone()).ok()?;
            if !is_displayable(&dataset) {
                return None;
            }
            Some(if readable.neuroglancer && !is_calibrated_by_pyramid(&dataset, node) {
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

/// Returns true if the pyramid that has the dataset as a level gives it other axes or voxel sizes than its own attributes
/// and those above. Neuroglancer does not look for a pyramid when it opens a level.
fn is_calibrated_by_pyramid(dataset: &DescribedDataset, node: &Node) -> bool {
    let seen = |space: CoordinateSpace| {
        let axes: Vec<(String, String)> = space.axes.into_iter().map(|axis| (axis.name, axis.unit_text)).collect();
        (axes, space.scale)
    };
    seen(CoordinateSpace::of_node(dataset, node)) != seen(CoordinateSpace::of_dataset(dataset, &node.ancestors))
}

fn is_displayable(dataset: &DescribedDataset) -> bool {
    dataset.is_decodable() && dataset.rank() > 0 && !dataset.dimensions().contains(&0)
}

/// Returns the type to convert the elements to if Neuroglancer does not support their own type.
fn substitute_type(dataset: &DescribedDataset) -> Option<DataType> {
    // float32 covers the range of both types, but rounds the values. A user who knows the values may choose a better
    // type.
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
    use serde_json::json;

    use super::*;
    use crate::testing::{array, dataset, group};

    #[test]
    fn a_dataset_description_has_all_members_in_the_order_of_the_contract() {
        let own = array(&[40, 36], &json!({"dataType": "uint16", "compression": {"type": "xz"}}));
        let description = describe(&group(&[json!({"n5": "2.0.0"})], &own, &[]));
        let text = serde_json::to_string(&description).unwrap();
        let start = r#"{"kind":"dataset","#;
        let middle = r#""dimensions":[40,36],"block_size":[16,16],"data_type":"uint16","compression":{"preset":6,"type":"xz"},"grid":[3,3],"size_bytes":"2880","axes":null,"units":null,"resolution":null,"multiscale":null,"tensorstore":{"schema":{"#;
        let end = r#""codec":{"numcodecs":{"check":-1,"filters":null,"format":1,"id":"lzma","preset":6},"hdf5":null},"readable":{"neuroglancer":false,"tensorstore":true,"java":true,"zarr":false,"z5":false},"error":null,"problems":["Neuroglancer cannot read it: it does not support the compression \"xz\"","zarr-python 2 cannot read it: it requires compression.preset","z5 cannot read it: it requires compression.preset"]}"#;
        assert!(text.starts_with(&(start.to_owned() + middle)), "{text}");
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn a_pyramid_carries_the_finest_voxel_size() {
        let own = json!({"scales": [[1, 1], [2, 2]], "pixelResolution": {"unit": "nm", "dimensions": [4, 8]}});
        let children = [("s0", array(&[8, 8], &json!({}))), ("s1", array(&[4, 4], &json!({"dataType": "float64"})))];
        let description = describe(&group(&[json!({})], &own, &children));
        assert_eq!(description.kind, NodeKind::Multiscale);
        assert_eq!(description.resolution.unwrap(), [Some(4.0), Some(8.0)]);
        assert_eq!((description.dimensions, description.tensorstore), (None, None));
        assert!(!description.readable.unwrap().neuroglancer);
        assert!(description.problems.iter().any(|problem| &**problem == "level s1 is float64, level s0 is uint8"));
    }

    #[test]
    fn a_pyramid_without_a_voxel_size_has_none() {
        let children = [("s0", array(&[8, 8], &json!({}))), ("s1", array(&[4, 4], &json!({})))];
        let resolution_of = |own: &Value| describe(&group(&[json!({})], own, &children)).resolution;
        let scales = json!([[1, 1], [2, 2]]);
        assert_eq!(resolution_of(&json!({"scales": scales})), None);
        assert_eq!(resolution_of(&json!({"scales": scales, "pixelResolution": [4, 8, 8]})), None);
        assert_eq!(resolution_of(&json!({"scales": scales, "resolution": [4, 8]})), Some(vec![Some(4.0), Some(8.0)]));
        let paintera = |data: &Value| {
            let node = group(&[json!({}), json!({"painteraData": {"type": "raw"}})], data, &children);
            let description = describe(&node);
            (description.kind, description.resolution)
        };
        assert_eq!(paintera(&json!({"multiScale": true})), (NodeKind::Multiscale, None));
        assert_eq!(paintera(&json!({"multiScale": true, "resolution": [4, 4, 40]})), (NodeKind::Multiscale, None));
        assert_eq!(paintera(&json!({"multiScale": true, "resolution": [4, 40]})).1, Some(vec![Some(4.0), Some(40.0)]));
    }

    #[test]
    fn a_broken_document_is_described_as_a_group_with_the_reason() {
        let broken = |node: &Node| {
            let description = describe(node);
            assert_eq!((description.kind, description.readable), (NodeKind::Group, None));
            assert_eq!(description.error.as_deref(), description.problems.first().map(|problem| &**problem));
            description.problems.join("|")
        };
        let mut node = Node { document: Some(n5_format::AttributesDocument::parse(b"{'a':1}")), ..Node::default() };
        assert!(broken(&node).starts_with("attributes.json is not JSON"));
        node.document = None;
        assert_eq!(broken(&node), "");
        let own = array(&[1], &json!({"blockSize": [0]}));
        assert!(broken(&group(&[], &own, &[])).contains("blockSize[0] is 0"));
        assert!(
            broken(&group(&[], &json!({"dimensions": [1], "dataType": "uint8"}), &[])).contains("blockSize is missing")
        );
    }

    #[test]
    fn sizes_have_no_upper_limit() {
        let size = |dimensions: &[u64], data_type: &str| {
            size_bytes(&dataset(&array(dimensions, &json!({"dataType": data_type}))))
        };
        assert_eq!(size(&[1000, 1_000_000, 1_000_000], "uint8").unwrap(), "1000000000000000");
        assert_eq!(size(&[5, 0], "uint64").unwrap(), "0");
        assert_eq!(size(&[], "float32").unwrap(), "4");
        assert_eq!(size(&[1 << 62, 1 << 62], "uint64").unwrap(), (8 * (1_u128 << 124)).to_string());
        let huge = size(&[i64::MAX.unsigned_abs(); 32], "uint64").unwrap();
        assert_eq!((huge.len(), &huge[huge.len() - 3..]), (608, "008"));
        assert_eq!(size(&[1], "string"), None);
    }

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
