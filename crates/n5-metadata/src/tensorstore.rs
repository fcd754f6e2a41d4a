//! Spec and schema of a dataset, as TensorStore's `n5` driver reports them.
//!
//! TensorStore parses `attributes.json` strictly: a dataset that it refuses has no spec and no schema.
//!
//! Source: TensorStore `driver/n5/metadata.cc`, `driver/n5/driver.cc`; output of version 0.1.86.

use n5_format::{DescribedDataset, JsonObjectBuilder};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::codec::block_bytes;
use crate::json_values::{bounded_integer, truncated_json};

/// Maximum size in bytes of a block that TensorStore opens.
pub const MAX_BLOCK_BYTES: u128 = 1 << 31;

/// Upper bound of an index that TensorStore treats as infinite. Larger bounds are invalid.
const INFINITE_BOUND: i128 = 1 << 62;

/// Members of `attributes.json` that TensorStore interprets. Its spec repeats all other members unchanged.
const INTERPRETED_MEMBERS: [&str; 7] =
    ["dimensions", "blockSize", "dataType", "compression", "axes", "units", "resolution"];

/// Spec and schema that TensorStore reports for an open dataset. The spec has no `kvstore` until one is given, and
/// holds only the attributes that TensorStore interprets.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorStoreInfo {
    spec: Map<String, Value>,
    schema: Value,
}

impl Serialize for TensorStoreInfo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        json!({"spec": self.spec(None), "schema": self.schema}).serialize(serializer)
    }
}

impl TensorStoreInfo {
    /// Returns the result of `ts.open(…).spec().to_json()`, with `kvstore` as its member of the same name.
    pub fn spec(&self, kvstore: Option<Value>) -> Value {
        let mut spec = self.spec.clone();
        if let Some(kvstore) = kvstore {
            spec.insert("kvstore".to_owned(), kvstore);
        }
        Value::Object(spec)
    }

    /// Returns true if the spec repeats this member of `attributes.json` unchanged.
    pub fn is_passed_through(name: &str) -> bool {
        !INTERPRETED_MEMBERS.contains(&name)
    }

    /// Returns the spec and the schema as one JSON object. The spec includes `kvstore` and `copied_members`, the
    /// attributes that are [passed through](Self::is_passed_through).
    pub fn to_object_text(&self, kvstore: &Value, copied_members: &JsonObjectBuilder) -> JsonObjectBuilder {
        let mut spec = JsonObjectBuilder::default();
        let mut metadata = JsonObjectBuilder::default();
        for (name, value) in &self.spec {
            if name == "metadata" {
                value.as_object().into_iter().flatten().for_each(|(name, value)| metadata.insert(name, value));
            } else {
                spec.insert(name, value);
            }
        }
        metadata.extend(copied_members);
        spec.insert_object("metadata", &metadata);
        spec.insert("kvstore", kvstore);
        let mut info = JsonObjectBuilder::default();
        info.insert("schema", &self.schema);
        info.insert_object("spec", &spec);
        info
    }

    /// Returns the result of `ts.open(…).schema.to_json()`.
    pub fn schema(&self) -> &Value {
        &self.schema
    }
}

/// Returns the member `kvstore` for a dataset that is served over HTTP, in the form that TensorStore writes.
///
/// - `origin` is `https://host:port`, without a slash at the end.
/// - `path` is the path of the dataset from the host's root. Its segments are not percent-encoded.
pub fn http_kvstore(origin: &str, path: &str) -> Value {
    let path = path.trim_matches('/');
    let path = if path.is_empty() { "/".to_owned() } else { format!("/{path}/") };
    json!({"driver": "http", "base_url": origin, "path": path})
}

/// Returns the spec and schema that TensorStore reports for a dataset.
///
/// # Errors
/// Returns the reason why TensorStore cannot open it.
pub fn tensorstore_info(dataset: &DescribedDataset) -> Result<TensorStoreInfo, String> {
    let members = dataset.members();
    let dimensions = extents(members, "dimensions", 0)?;
    let blocks = extents(members, "blockSize", 1)?;
    let compression = compression(members.get("compression"))?;
    if dataset.data_type().size_bytes().is_none() {
        return Err(format!("unsupported data type {}", dataset.data_type()));
    }
    let rank = dataset.rank();
    let axes = per_axis(members, "axes", rank, "a string", |value| value.as_str().map(str::to_owned))?;
    let units = per_axis(members, "units", rank, "a string", |value| value.as_str().map(str::to_owned))?;
    let resolution = per_axis(members, "resolution", rank, "a number", Value::as_f64)?;
    let labels = axes.filter(|axes| axes.iter().any(|label| !label.is_empty()));
    check_unique(labels.as_deref().unwrap_or_default())?;
    if block_bytes(dataset).is_none_or(|bytes| bytes > MAX_BLOCK_BYTES) {
        return Err("a block of blockSize is larger than 2 GiB".to_owned());
    }
    if let Some(size) = dimensions.iter().find(|size| **size > INFINITE_BOUND) {
        return Err(format!("the dimension {size} exceeds 2^62"));
    }

    let interpreted =
        INTERPRETED_MEMBERS.iter().filter_map(|key| Some(((*key).to_owned(), members.get(*key)?.clone())));
    let mut metadata: Map<String, Value> = interpreted.collect();
    metadata.insert("dimensions".to_owned(), integers(&dimensions));
    metadata.insert("blockSize".to_owned(), integers(&blocks));
    metadata.insert("compression".to_owned(), compression.clone());
    match &labels {
        Some(labels) => metadata.insert("axes".to_owned(), json!(labels)),
        None => metadata.remove("axes"),
    };
    if let Some(resolution) = &resolution {
        metadata.insert("resolution".to_owned(), json!(resolution));
    }
    let data_type = dataset.data_type().name();
    let transform = domain(&dimensions, labels.as_deref(), "input_");
    let spec = json!({"driver": "n5", "dtype": data_type, "metadata": metadata, "transform": transform});

    let mut schema = Map::new();
    schema.insert("codec".to_owned(), json!({"compression": compression, "driver": "n5"}));
    schema.insert("domain".to_owned(), domain(&dimensions, labels.as_deref(), ""));
    schema.insert("dtype".to_owned(), Value::from(data_type));
    schema.insert("rank".to_owned(), Value::from(rank));
    if rank > 0 {
        schema.insert("chunk_layout".to_owned(), chunk_layout(&blocks));
        if let Some(units) = units {
            let multipliers = resolution.unwrap_or_else(|| vec![1.0; rank]);
            let units = multipliers.iter().zip(units).map(|(multiplier, unit)| json!([multiplier, unit])).collect();
            schema.insert("dimension_units".to_owned(), units);
        }
    }
    let Value::Object(spec) = spec else { return Err("the spec is not an object".to_owned()) };
    Ok(TensorStoreInfo { spec, schema: Value::Object(schema) })
}

/// Returns the chunk layout of a dataset whose chunks are its blocks.
fn chunk_layout(blocks: &[i128]) -> Value {
    let shape = integers(blocks);
    let order: Vec<usize> = (0..blocks.len()).rev().collect();
    json!({"grid_origin": vec![0; blocks.len()], "inner_order": order,
        "read_chunk": {"shape": shape}, "write_chunk": {"shape": shape}})
}

/// Returns an index domain. Each upper bound is a list of one element, which marks it as resizable.
fn domain(dimensions: &[i128], labels: Option<&[String]>, prefix: &str) -> Value {
    let mut members = Map::new();
    if dimensions.is_empty() {
        members.insert(format!("{prefix}rank"), Value::from(0));
        return Value::Object(members);
    }
    let bound =
        |size: &i128| if *size == INFINITE_BOUND { json!(["+inf"]) } else { Value::Array(vec![integer(*size)]) };
    if dimensions.iter().any(|size| *size != INFINITE_BOUND) {
        members.insert(format!("{prefix}exclusive_max"), dimensions.iter().map(bound).collect());
    }
    members.insert(format!("{prefix}inclusive_min"), json!(vec![0; dimensions.len()]));
    if let Some(labels) = labels {
        members.insert(format!("{prefix}labels"), json!(labels));
    }
    Value::Object(members)
}

fn integer(number: i128) -> Value {
    u64::try_from(number).map(Value::from).or_else(|_| i64::try_from(number).map(Value::from)).unwrap_or(Value::Null)
}

fn integers(numbers: &[i128]) -> Value {
    numbers.iter().map(|number| integer(*number)).collect()
}

/// Checks that no two axes have the same label. Any number of labels may be empty.
fn check_unique(labels: &[String]) -> Result<(), String> {
    let is_duplicate = |label: &&String| !label.is_empty() && labels.iter().filter(|other| other == label).count() > 1;
    match labels.iter().find(is_duplicate) {
        Some(label) => Err(format!("the axis label {label:?} is not unique")),
        None => Ok(()),
    }
}

fn extents(members: &Map<String, Value>, key: &str, min: i128) -> Result<Vec<i128>, String> {
    let list = members.get(key).and_then(Value::as_array).ok_or_else(|| format!("{key} is not an array"))?;
    list.iter()
        .map(|value| {
            bounded_integer(value, min, i128::from(i64::MAX) - 1).ok_or_else(|| {
                format!("{key} holds {}, expected an integer from {min} to 2^63 - 2", truncated_json(value))
            })
        })
        .collect()
}

fn per_axis<T>(
    members: &Map<String, Value>,
    key: &str,
    rank: usize,
    expected: &str,
    parse: impl Fn(&Value) -> Option<T>,
) -> Result<Option<Vec<T>>, String> {
    let Some(value) = members.get(key) else { return Ok(None) };
    let list = value.as_array().ok_or_else(|| format!("{key} is {}, expected an array", truncated_json(value)))?;
    if list.len() != rank {
        return Err(format!("{key} has {} entries for {rank} axes", list.len()));
    }
    let parse_item =
        |item: &Value| parse(item).ok_or_else(|| format!("{key} holds {}, expected {expected}", truncated_json(item)));
    list.iter().map(parse_item).collect::<Result<_, _>>().map(Some)
}

/// Constraint on a member of `compression`.
enum ParameterRule {
    /// An integer between two inclusive bounds, with a default if it may be missing.
    Integer(i128, i128, Option<i128>),
    /// A boolean that is false if missing.
    Flag,
    /// A string, which must be one of these.
    Name(&'static [&'static str]),
}

static COMPRESSIONS: &[(&str, &[(&str, ParameterRule)])] = &[
    ("raw", &[]),
    ("gzip", &[("level", ParameterRule::Integer(-1, 9, Some(-1))), ("useZlib", ParameterRule::Flag)]),
    ("bzip2", &[("blockSize", ParameterRule::Integer(1, 9, Some(9)))]),
    ("xz", &[("preset", ParameterRule::Integer(0, 9, Some(6)))]),
    ("zstd", &[("level", ParameterRule::Integer(-131_072, 22, Some(0)))]),
    (
        "blosc",
        &[
            ("cname", ParameterRule::Name(&["blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"])),
            ("clevel", ParameterRule::Integer(0, 9, None)),
            ("shuffle", ParameterRule::Integer(0, 2, None)),
            ("blocksize", ParameterRule::Integer(0, u64::MAX as i128, Some(0))),
        ],
    ),
];

fn compression(value: Option<&Value>) -> Result<Value, String> {
    let value = value.ok_or("the attribute compression is missing")?;
    let members =
        value.as_object().ok_or_else(|| format!("compression is {}, expected an object", truncated_json(value)))?;
    let name = members.get("type").and_then(Value::as_str).ok_or("compression has no type")?;
    let Some((_, rules)) = COMPRESSIONS.iter().find(|row| row.0 == name) else {
        return Err(format!("it does not support the compression {name:?}"));
    };
    if let Some(extra) = members.keys().find(|key| *key != "type" && !rules.iter().any(|rule| rule.0 == *key)) {
        return Err(format!("compression has the unknown member {extra:?}"));
    }
    let mut parsed = Map::new();
    parsed.insert("type".to_owned(), Value::from(name));
    for (key, rule) in *rules {
        let value = members.get(*key);
        let invalid_parameter =
            || format!("compression.{key} is {}", value.map_or_else(|| "missing".to_owned(), truncated_json));
        let member = match (rule, value) {
            (ParameterRule::Integer(_, _, Some(default)), None) => integer(*default),
            (ParameterRule::Integer(low, high, _), Some(value)) => {
                integer(bounded_integer(value, *low, *high).ok_or_else(invalid_parameter)?)
            }
            (ParameterRule::Flag, None) => Value::Bool(false),
            (ParameterRule::Flag, Some(value)) => Value::Bool(value.as_bool().ok_or_else(invalid_parameter)?),
            (ParameterRule::Name(names), Some(value)) if value.as_str().is_some_and(|name| names.contains(&name)) => {
                value.clone()
            }
            (ParameterRule::Integer(..) | ParameterRule::Name(_), _) => return Err(invalid_parameter()),
        };
        parsed.insert((*key).to_owned(), member);
    }
    Ok(Value::Object(parsed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    fn open(further: &Value) -> Result<TensorStoreInfo, String> {
        let mut value = json!({"dimensions": [7, 5], "blockSize": [5, 4], "dataType": "uint8",
            "compression": {"type": "raw"}});
        value.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        tensorstore_info(&dataset(&value))
    }

    #[test]
    fn spec_and_schema_are_those_of_tensorstore_0_1_86() {
        let opened =
            open(&json!({"dimensions": [7.0, 5], "axes": ["x", "y"], "units": ["nm", "um"], "resolution": [4, 0.5],
            "compression": {"type": "gzip"}, "foo": {"b": 1, "a": 2.0}}))
            .unwrap();
        // The comparison is of text, because 4.0 must stay a float.
        assert_eq!(
            opened.schema().to_string(),
            r#"{"chunk_layout":{"grid_origin":[0,0],"inner_order":[1,0],"read_chunk":{"shape":[5,4]},"write_chunk":{"shape":[5,4]}},"#
                .to_owned()
                + r#""codec":{"compression":{"level":-1,"type":"gzip","useZlib":false},"driver":"n5"},"#
                + r#""dimension_units":[[4.0,"nm"],[0.5,"um"]],"#
                + r#""domain":{"exclusive_max":[[7],[5]],"inclusive_min":[0,0],"labels":["x","y"]},"dtype":"uint8","rank":2}"#
        );
        assert_eq!(
            opened.spec(Some(http_kvstore("http://h:80", "a/b"))).to_string(),
            r#"{"driver":"n5","dtype":"uint8","kvstore":{"base_url":"http://h:80","driver":"http","path":"/a/b/"},"#
                .to_owned()
                + r#""metadata":{"axes":["x","y"],"blockSize":[5,4],"compression":{"level":-1,"type":"gzip","useZlib":false},"#
                + r#""dataType":"uint8","dimensions":[7,5],"resolution":[4.0,0.5],"units":["nm","um"]},"#
                + r#""transform":{"input_exclusive_max":[[7],[5]],"input_inclusive_min":[0,0],"input_labels":["x","y"]}}"#
        );
        assert!(opened.spec(None).get("kvstore").is_none());
        // The spec repeats other attributes as stored.
        let stored = br#"{"dimensions": [7.0, 5], "foo" : {"b": 1, "a": 2.0}}"#;
        let repeated = JsonObjectBuilder::from_matching(stored, TensorStoreInfo::is_passed_through);
        let written = opened.to_object_text(&http_kvstore("http://h", "/"), &repeated).into_text();
        assert!(written.contains(r#""units":["nm","um"],"foo":{"b":1,"a":2.0}},"kvstore""#), "{written}");
        let written: Value = serde_json::from_str(&written).unwrap();
        assert_eq!(written["spec"]["kvstore"]["path"], "/");
        assert_eq!(written["schema"], *opened.schema());
    }

    #[test]
    fn rank_0_has_no_chunk_layout() {
        let opened =
            open(&json!({"dimensions": [], "blockSize": [], "axes": [], "units": [], "resolution": []})).unwrap();
        assert_eq!(
            *opened.schema(),
            json!({"codec": {"compression": {"type": "raw"}, "driver": "n5"}, "domain": {"rank": 0}, "dtype": "uint8", "rank": 0})
        );
        assert_eq!(opened.spec(None)["transform"], json!({"input_rank": 0}));
        assert!(opened.spec(None)["metadata"].get("axes").is_none());
    }

    #[test]
    fn the_bound_2_to_the_62_is_infinite() {
        let domain = |sizes: Value| open(&json!({"dimensions": sizes})).map(|opened| opened.schema()["domain"].clone());
        let limit = 1_u64 << 62;
        assert_eq!(
            domain(json!([limit, 5])).unwrap(),
            json!({"exclusive_max": [["+inf"], [5]], "inclusive_min": [0, 0]})
        );
        assert_eq!(domain(json!([limit, limit])).unwrap(), json!({"inclusive_min": [0, 0]}));
        assert!(domain(json!([limit + 1, 5])).is_err());
    }

    #[test]
    fn units_without_a_resolution_count_once_and_empty_labels_are_ignored() {
        let opened = open(&json!({"units": ["4nm", ""], "axes": ["", ""]})).unwrap();
        assert_eq!(opened.schema()["dimension_units"].to_string(), r#"[[1.0,"4nm"],[1.0,""]]"#);
        assert!(opened.schema()["domain"].get("labels").is_none());
        assert!(open(&json!({"resolution": [-4, 0]})).unwrap().schema().get("dimension_units").is_none());
    }

    #[test]
    fn refused_attributes_have_a_reason() {
        for (further, reason) in [
            (json!({"dimensions": ["7", 5]}), "dimensions holds \"7\", expected an integer from 0 to 2^63 - 2"),
            (json!({"axes": ["x", "x"]}), "the axis label \"x\" is not unique"),
            (json!({"axes": null}), "axes is null, expected an array"),
            (json!({"units": "nm"}), "units is \"nm\", expected an array"),
            (json!({"resolution": [1, 2, 3]}), "resolution has 3 entries for 2 axes"),
            (json!({"resolution": ["1", 2]}), "resolution holds \"1\", expected a number"),
            (json!({"dataType": "bool"}), "unsupported data type bool"),
            (json!({"blockSize": [65536, 65536]}), "a block of blockSize is larger than 2 GiB"),
            (json!({"compression": {}}), "compression has no type"),
            (json!({"compression": {"type": "lz4"}}), "it does not support the compression \"lz4\""),
            (json!({"compression": null, "compressionType": "gzip"}), "compression is null, expected an object"),
            (json!({"compression": {"type": "gzip", "level": 10}}), "compression.level is 10"),
            (json!({"compression": {"type": "gzip", "useZlib": null}}), "compression.useZlib is null"),
            (json!({"compression": {"type": "zstd", "id": "zstd"}}), "compression has the unknown member \"id\""),
            (json!({"compression": {"type": "blosc", "cname": "lz4", "clevel": 5}}), "compression.shuffle is missing"),
            (
                json!({"compression": {"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1}}),
                "compression.shuffle is -1",
            ),
        ] {
            assert_eq!(open(&further).unwrap_err(), reason, "{further}");
        }
        assert!(open(&json!({"blockSize": [1_u64 << 31, 1]})).is_ok(), "2 GiB itself is allowed");
    }
}
