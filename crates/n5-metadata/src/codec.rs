//! Descriptions of an N5 compression for other libraries: with all defaults, as a numcodecs configuration, and as an
//! HDF5 filter.

use n5_format::{Compression, DataType, DatasetAttributes};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::json_values::bounded_integer;

/// Decoders of other libraries for the payloads of a dataset's blocks. A payload is a block without its header.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CodecEquivalents {
    /// numcodecs configuration. `None` for raw data, and if numcodecs has no such decoder. The decoded elements are
    /// big-endian.
    pub numcodecs: Option<Value>,
    /// HDF5 filter. `None` for raw data, and if HDF5 has no such filter.
    pub hdf5: Option<Hdf5Filter>,
}

/// An entry of an HDF5 filter pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hdf5Filter {
    /// Registered filter number.
    pub id: u32,
    /// Parameters of the filter.
    pub cd_values: Vec<u32>,
}

/// Returns the attribute `compression` as an object: `type`, the stored members, and the defaults that every reader
/// assumes for missing members.
pub fn compression_with_defaults(compression: &Compression) -> Value {
    let mut members = compression.parameters().clone();
    members.insert("type".to_owned(), Value::from(compression.name()));
    let defaults: &[(&str, Value)] = match compression.name() {
        "gzip" => &[("level", json!(-1)), ("useZlib", json!(false))],
        "bzip2" => &[("blockSize", json!(9))],
        "xz" => &[("preset", json!(6))],
        "zstd" => &[("level", json!(0))],
        "blosc" => &[("blocksize", json!(0))],
        _ => &[],
    };
    for (key, value) in defaults {
        members.entry(*key).or_insert_with(|| value.clone());
    }
    Value::Object(members)
}

/// Returns the equivalents of a dataset's compression.
///
/// HDF5's deflate filter decodes zlib streams, but not gzip members. Of the four encodings that are named `lz4`, only
/// that of numcodecs has an equivalent. Missing or invalid encoder parameters are replaced by common values, because
/// decoders ignore them.
pub fn codec_equivalents(dataset: &DatasetAttributes) -> CodecEquivalents {
    let parameters = dataset.compression().parameters();
    let number = |key: &str, low: i64, high: i64, default: i64| {
        let value = parameters.get(key).and_then(|value| bounded_integer(value, low.into(), high.into()));
        value.and_then(|number| i64::try_from(number).ok()).unwrap_or(default)
    };
    let filter = |id: u32, level: i64| Some(Hdf5Filter { id, cd_values: vec![u32::try_from(level).unwrap_or(1)] });
    let (numcodecs, hdf5) = match dataset.compression().name() {
        "gzip" if parameters.get("useZlib") != Some(&Value::Bool(true)) => {
            (Some(json!({"id": "gzip", "level": number("level", 0, 9, 6)})), None)
        }
        "gzip" | "zlib" => {
            let level = number("level", 0, 9, 6);
            (Some(json!({"id": "zlib", "level": level})), filter(1, level))
        }
        "bzip2" => {
            let level = number("blockSize", 1, 9, 9);
            (Some(json!({"id": "bz2", "level": level})), filter(307, level))
        }
        "xz" => {
            let preset = number("preset", 0, 9, 6);
            (Some(json!({"id": "lzma", "format": 1, "check": -1, "preset": preset, "filters": null})), None)
        }
        "zstd" => {
            let level = number("level", -131_072, 22, 3);
            let checksum = parameters.get("checksum") == Some(&Value::Bool(true));
            // The filter takes no negative level. Decoders ignore the level, so 1 replaces any lower one.
            (Some(json!({"id": "zstd", "level": level, "checksum": checksum})), filter(32015, level.max(1)))
        }
        "blosc" => blosc(dataset, &number),
        name => (numcodecs_passed_through(name, parameters), None),
    };
    CodecEquivalents { numcodecs, hdf5 }
}

const BLOSC_NAMES: [&str; 6] = ["blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"];

fn blosc(
    dataset: &DatasetAttributes,
    number: &dyn Fn(&str, i64, i64, i64) -> i64,
) -> (Option<Value>, Option<Hdf5Filter>) {
    let compressor = dataset.compression().parameters().get("cname").and_then(Value::as_str);
    let (code, cname) =
        BLOSC_NAMES.iter().enumerate().find(|(_, name)| Some(**name) == compressor).unwrap_or((1, &"lz4"));
    let clevel = number("clevel", 0, 9, 5);
    let shuffle = number("shuffle", -1, 2, 1);
    let blocksize = number("blocksize", 0, i64::from(i32::MAX), 0);
    let form = json!({"id": "blosc", "cname": cname, "clevel": clevel, "shuffle": shuffle, "blocksize": blocksize});
    let item_size = dataset.data_type().size_bytes().unwrap_or(1);
    // Automatic shuffle (-1) means bit shuffle for elements of 1 byte and byte shuffle for wider ones.
    let shuffle = if shuffle < 0 { if item_size == 1 { 2 } else { 1 } } else { shuffle };
    let to_u32 = |number: u64| u32::try_from(number).ok();
    let bytes = block_bytes(dataset).and_then(|bytes| u32::try_from(bytes).ok());
    let item_size = u32::try_from(item_size).ok();
    let values = [Some(2), Some(2), item_size, bytes, to_u32(clevel.unsigned_abs()), to_u32(shuffle.unsigned_abs())];
    let code = u32::try_from(code).ok();
    let cd_values: Option<Vec<u32>> = values.into_iter().chain([code]).collect();
    (Some(form), cd_values.map(|cd_values| Hdf5Filter { id: 32001, cd_values }))
}

/// Returns the size of a full block in bytes. Returns `None` if the type has no size, or if the size exceeds a `u128`.
pub(crate) fn block_bytes(dataset: &DatasetAttributes) -> Option<u128> {
    block_bytes_as(dataset, dataset.data_type())
}

/// Like [`block_bytes`], but for elements of the type `data_type`.
pub(crate) fn block_bytes_as(dataset: &DatasetAttributes, data_type: &DataType) -> Option<u128> {
    let item_size = u128::try_from(data_type.size_bytes()?).ok()?;
    dataset.block_size().iter().try_fold(item_size, |bytes, size| bytes.checked_mul(u128::from(*size)))
}

/// Returns the numcodecs configuration of a dataset that zarr-python 2 wrote. zarr-python 2 stores the configuration
/// unchanged and repeats its `id` as `type`. Returns `None` if another program wrote the attributes.
fn numcodecs_passed_through(name: &str, parameters: &Map<String, Value>) -> Option<Value> {
    let is_numcodecs = parameters.get("id").and_then(Value::as_str) == Some(name);
    (is_numcodecs || (name == "lz4" && parameters.contains_key("acceleration"))).then(|| {
        let mut form = parameters.clone();
        form.insert("id".to_owned(), Value::from(name));
        Value::Object(form)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    fn forms(compression: &Value, data_type: &str) -> (Value, Value) {
        let value = array(&[4, 4], &json!({"compression": compression, "dataType": data_type}));
        let forms = serde_json::to_value(codec_equivalents(&dataset(&value))).unwrap();
        (forms["numcodecs"].clone(), forms["hdf5"].clone())
    }

    #[test]
    fn every_scheme_has_the_forms_that_decode_its_payload() {
        for (compression, numcodecs, hdf5) in [
            (json!({"type": "raw"}), json!(null), json!(null)),
            (json!({"type": "gzip"}), json!({"id": "gzip", "level": 6}), json!(null)),
            (
                json!({"type": "gzip", "useZlib": true, "level": 4}),
                json!({"id": "zlib", "level": 4}),
                json!({"id": 1, "cd_values": [4]}),
            ),
            (
                json!({"type": "bzip2", "blockSize": 7}),
                json!({"id": "bz2", "level": 7}),
                json!({"id": 307, "cd_values": [7]}),
            ),
            (
                json!({"type": "xz", "preset": 3}),
                json!({"id": "lzma", "format": 1, "check": -1, "preset": 3, "filters": null}),
                json!(null),
            ),
            (
                json!({"type": "zstd", "level": -5}),
                json!({"id": "zstd", "level": -5, "checksum": false}),
                json!({"id": 32015, "cd_values": [1]}),
            ),
            (json!({"type": "lz4", "blockSize": 65536}), json!(null), json!(null)),
            (
                json!({"type": "lz4", "id": "lz4", "acceleration": 1}),
                json!({"id": "lz4", "acceleration": 1}),
                json!(null),
            ),
            (json!({"type": "jpeg", "quality": 90}), json!(null), json!(null)),
        ] {
            assert_eq!(forms(&compression, "uint16"), (numcodecs, hdf5), "{compression}");
        }
    }

    #[test]
    fn blosc_carries_item_and_block_size() {
        let compression =
            json!({"type": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 2, "blocksize": 0, "nthreads": 1});
        let (numcodecs, hdf5) = forms(&compression, "float64");
        assert_eq!(numcodecs, json!({"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 2, "blocksize": 0}));
        assert_eq!(hdf5, json!({"id": 32001, "cd_values": [2, 2, 8, 2048, 5, 2, 5]}));
        let (_, automatic) = forms(&json!({"type": "blosc", "cname": "lz4", "clevel": 9, "shuffle": -1}), "uint8");
        assert_eq!(automatic["cd_values"][5], 2);
    }

    #[test]
    fn defaults_are_filled_in_and_other_members_are_kept() {
        let value = array(&[4], &json!({"compression": {"type": "gzip", "level": "6", "x": null}}));
        let filled = compression_with_defaults(dataset(&value).compression());
        assert_eq!(filled, json!({"type": "gzip", "level": "6", "useZlib": false, "x": null}));
    }
}
