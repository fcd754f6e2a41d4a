//! The array attributes of a dataset. They are parsed leniently, because programs write them in several forms.

use std::borrow::Borrow;
use std::ops::Deref;

use serde_json::{Map, Value};
use smallvec::SmallVec;

use crate::{AttributesDocument, BlockGrid, Compression, Coords, DataType};

/// Maximum number of axes of a dataset, as in TensorStore.
pub const MAX_RANK: usize = 32;

/// Largest extent of an axis: the maximum of a Java `long`.
const MAX_EXTENT: u64 = i64::MAX.unsigned_abs();

/// The array attributes of a dataset.
///
/// - `dimensions` and `block_size` have the same length, the rank, 0 to [`MAX_RANK`].
/// - Every dimension is at most 2^63 - 1; every block size is 1 to 2^63 - 1.
///
/// The attributes take a few kilobytes of memory at most, however large the document that they were parsed from.
#[derive(Debug, Clone)]
pub struct DatasetAttributes {
    grid: BlockGrid,
    data_type: DataType,
    compression: Compression,
    has_legacy_compression: bool,
}

/// Error in a document that is meant to describe a dataset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttributesError {
    /// A mandatory member is missing or null.
    #[error("the attribute {0} is missing")]
    Missing(&'static str),
    /// An array attribute is present but cannot be read.
    #[error("the attribute {0} cannot be read: {1}")]
    Unreadable(&'static str, String),
    /// A member has an unexpected JSON type.
    #[error("the attribute {0} is {1}, expected {2}")]
    Type(&'static str, &'static str, &'static str),
    /// An element of `dimensions` or `blockSize` is not a whole number in the allowed range.
    #[error("{0}[{1}] is {2}: expected a whole number from {3} to 2^63 - 1")]
    Number(&'static str, usize, String, u64),
    /// `dimensions` and `blockSize` differ in length.
    #[error("dimensions has {0} numbers, blockSize has {1}")]
    RankMismatch(usize, usize),
    /// The dataset has more than [`MAX_RANK`] axes.
    #[error("dimensions has {0} numbers, at most {MAX_RANK} are supported")]
    Rank(usize),
}

impl DatasetAttributes {
    /// Parses the array attributes of `document`.
    ///
    /// Whole numbers may be written `7`, `7.0`, `1e3` or `"7"`. `compression` takes precedence over the
    /// `compressionType` of releases before 2.0.0. A `compression` without a `type` means `raw`, as in Java N5. Unknown
    /// compressions and data types are kept by name.
    ///
    /// Source: N5 specification 4.0.0 §4 and the input that Java N5's `DatasetAttributes.java` accepts.
    ///
    /// # Errors
    /// Returns an [`AttributesError`] that names the member that is missing or unusable.
    pub fn parse(document: impl Borrow<AttributesDocument>) -> Result<Self, AttributesError> {
        const READ: [&str; 5] = ["dimensions", "blockSize", "dataType", "compression", "compressionType"];
        let document = document.borrow();
        if let Some((name, reason)) = document.unreadable().iter().find(|(name, _)| READ.contains(name)) {
            return Err(AttributesError::Unreadable(name, reason.clone()));
        }
        let dimensions = parse_extents(document, "dimensions", 0)?;
        let block_size = parse_extents(document, "blockSize", 1)?;
        let data_type = match document.get("dataType") {
            None => return Err(AttributesError::Missing("dataType")),
            Some(Value::String(name)) => DataType::from_name(name),
            Some(other) => return Err(AttributesError::Type("dataType", json_type_name(other), "a string")),
        };
        let (compression, has_legacy_compression) = compression(document)?;
        if dimensions.len() != block_size.len() {
            return Err(AttributesError::RankMismatch(dimensions.len(), block_size.len()));
        }
        if dimensions.len() > MAX_RANK {
            return Err(AttributesError::Rank(dimensions.len()));
        }
        let ranks = (dimensions.len(), block_size.len());
        let grid = BlockGrid::new(dimensions, block_size).ok_or(AttributesError::RankMismatch(ranks.0, ranks.1))?;
        Ok(Self { grid, data_type, compression, has_legacy_compression })
    }

    /// Returns the size of the dataset in elements, N5 axis order.
    pub fn dimensions(&self) -> &Coords {
        self.grid.dimensions()
    }

    /// Returns the size of a full block in elements, N5 axis order.
    pub fn block_size(&self) -> &Coords {
        self.grid.block_size()
    }

    /// Returns the grid of blocks.
    pub fn grid(&self) -> &BlockGrid {
        &self.grid
    }

    /// Returns the number of axes.
    pub fn rank(&self) -> usize {
        self.dimensions().len()
    }

    /// Returns the type of the elements.
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// Returns the compression of the blocks.
    pub fn compression(&self) -> &Compression {
        &self.compression
    }

    /// Returns true if the compression and the data type of the blocks are supported, so that they can be decoded.
    pub fn is_decodable(&self) -> bool {
        self.compression.codec().is_some() && self.data_type.size_bytes().is_some()
    }

    /// Returns true if the compression comes from the `compressionType` of releases before 2.0.0.
    pub fn has_legacy_compression(&self) -> bool {
        self.has_legacy_compression
    }
}

/// The array attributes of a dataset, together with the document that contains them.
#[derive(Debug, Clone)]
pub struct DescribedDataset {
    attributes: DatasetAttributes,
    document: AttributesDocument,
}

impl DescribedDataset {
    /// Parses the array attributes of `document`; see [`DatasetAttributes::parse`].
    ///
    /// # Errors
    /// Returns an [`AttributesError`] that names the member that is missing or unusable.
    pub fn parse(document: AttributesDocument) -> Result<Self, AttributesError> {
        Ok(Self { attributes: DatasetAttributes::parse(&document)?, document })
    }

    /// See [`AttributesDocument::members`].
    pub fn members(&self) -> &Map<String, Value> {
        self.document.members()
    }
}

impl Deref for DescribedDataset {
    type Target = DatasetAttributes;

    fn deref(&self) -> &DatasetAttributes {
        &self.attributes
    }
}

fn compression(document: &AttributesDocument) -> Result<(Compression, bool), AttributesError> {
    match (document.get("compression"), document.get("compressionType")) {
        (Some(Value::Object(members)), _) => {
            let mut parameters = members.clone();
            let name = match parameters.remove("type") {
                None | Some(Value::Null) => "raw".to_owned(),
                Some(Value::String(name)) => name,
                Some(other) => {
                    return Err(AttributesError::Type("compression.type", json_type_name(&other), "a string"));
                }
            };
            Ok((Compression::new(&name, parameters, document.codecs()), false))
        }
        (Some(other), _) => Err(AttributesError::Type("compression", json_type_name(other), "an object with a type")),
        (None, Some(Value::String(name))) => Ok((Compression::new(name, Map::new(), document.codecs()), true)),
        (None, Some(other)) => Err(AttributesError::Type("compressionType", json_type_name(other), "a string")),
        (None, None) => Err(AttributesError::Missing("compression")),
    }
}

fn parse_extents(document: &AttributesDocument, key: &'static str, min: u64) -> Result<Coords, AttributesError> {
    let list = match document.get(key) {
        None => return Err(AttributesError::Missing(key)),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(AttributesError::Type(key, json_type_name(other), "an array of whole numbers")),
    };
    let mut numbers = SmallVec::with_capacity(list.len().min(MAX_RANK));
    for (axis, value) in list.iter().enumerate() {
        let Some(number) = whole_number(value).filter(|n| (min..=MAX_EXTENT).contains(n)) else {
            let shown = value.to_string().chars().take(40).collect();
            return Err(AttributesError::Number(key, axis, shown, min));
        };
        numbers.push(number);
    }
    Ok(numbers)
}

/// Accepts `7`, `7.0`, `1e3` and `"7"`; rejects negative and fractional numbers.
fn whole_number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| number.as_f64().and_then(exact_u64)),
        Value::String(text) if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn exact_u64(number: f64) -> Option<u64> {
    // Every whole `f64` below 2^63 converts exactly.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be whole and in range")]
    (number.fract() == 0.0 && (0.0..9_223_372_036_854_775_808.0).contains(&number)).then_some(number as u64)
}

fn json_type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<DatasetAttributes, AttributesError> {
        DatasetAttributes::parse(AttributesDocument::parse(text.as_bytes()).unwrap())
    }

    fn parse_with(member: &str) -> Result<DatasetAttributes, AttributesError> {
        // The last of duplicate members counts, so `member` replaces the valid member of the same name.
        parse(&format!(
            r#"{{"dimensions":[7,5],"blockSize":[5,4],"dataType":"uint16","compression":{{"type":"raw"}},{member}}}"#
        ))
    }

    #[test]
    fn numbers_are_accepted_in_all_common_notations() {
        let parsed = parse_with(r#""dimensions":["7",1e3]"#).unwrap();
        assert_eq!(parsed.dimensions().as_slice(), [7, 1000]);
        assert_eq!(parse_with(r#""blockSize":[7.0,4]"#).unwrap().block_size().as_slice(), [7, 4]);
        assert_eq!(parse_with(r#""dimensions":[9223372036854775807,0]"#).unwrap().dimensions()[0], MAX_EXTENT);
    }

    #[test]
    fn numbers_that_would_change_meaning_are_refused() {
        for bad in [
            r#""dimensions":[-7,5]"#,
            r#""dimensions":[7.9,5]"#,
            r#""dimensions":[9223372036854775808,5]"#,
            r#""dimensions":[1e300,5]"#,
            r#""dimensions":["-7",5]"#,
            r#""dimensions":["",5]"#,
            r#""dimensions":[null,5]"#,
            r#""dimensions":[[7],5]"#,
            r#""blockSize":[0,4]"#,
            r#""blockSize":["7x",4]"#,
        ] {
            assert!(matches!(parse_with(bad), Err(AttributesError::Number(..))), "{bad}");
        }
    }

    #[test]
    fn wrong_shapes_are_reported_precisely() {
        assert_eq!(parse_with(r#""blockSize":[5,4,3]"#).unwrap_err(), AttributesError::RankMismatch(2, 3));
        assert_eq!(parse_with(r#""dataType":null"#).unwrap_err(), AttributesError::Missing("dataType"));
        assert_eq!(
            parse_with(r#""compression":"raw""#).unwrap_err().to_string(),
            "the attribute compression is a string, expected an object with a type"
        );
        let many = vec!["1"; 33].join(",");
        let text = format!(r#""dimensions":[{many}],"blockSize":[{many}]"#);
        assert_eq!(parse_with(&text).unwrap_err(), AttributesError::Rank(33));
    }

    #[test]
    fn compression_is_parsed_in_all_its_forms() {
        assert_eq!(parse_with(r#""compression":{}"#).unwrap().compression().name(), "raw");
        assert_eq!(parse_with(r#""compression":null,"compressionType":"xz""#).unwrap().compression().name(), "xz");
        let with_both = parse_with(r#""compressionType":"xz""#).unwrap();
        assert_eq!((with_both.compression().name(), with_both.has_legacy_compression()), ("raw", false));
        let unknown = parse_with(r#""compression":{"type":"RAW","x":1}"#).unwrap();
        assert!(unknown.compression().codec().is_none());
        assert_eq!(unknown.compression().parameters().len(), 1);
        assert_eq!(parse_with(r#""compression":null"#).unwrap_err(), AttributesError::Missing("compression"));
    }

    #[test]
    fn unreadable_attributes_are_not_reported_as_missing() {
        let many = vec!["1"; 1000].join(",");
        for (member, name) in [
            (format!(r#""dimensions":[{many}]"#), "dimensions"),
            (r#""blockSize":[1e999,1]"#.to_owned(), "blockSize"),
            (format!(r#""compression":{{"type":"raw","x":[{many}]}}"#), "compression"),
            (format!(r#""dataType":"{}""#, "x".repeat(10_000)), "dataType"),
        ] {
            let Err(AttributesError::Unreadable(unread, _)) = parse_with(&member) else { panic!("{name}") };
            assert_eq!(unread, name);
        }
    }

    #[test]
    fn rank_0_is_a_dataset_of_one_element() {
        let parsed = parse_with(r#""dimensions":[],"blockSize":[]"#).unwrap();
        assert_eq!(parsed.rank(), 0);
        assert!(parsed.grid().contains(&[]));
    }
}
