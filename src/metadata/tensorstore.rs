//! A dataset as TensorStore's `n5` driver sees it, member for member.
//!
//! TensorStore reads `attributes.json` strictly: what it refuses has no spec and no schema.
//!
//! Source: TensorStore `driver/n5/metadata.cc`, `driver/n5/driver.cc`; what version 0.1.86 reports.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::n5::DatasetAttributes;

use super::codec::block_bytes;
use super::fields::{shown, whole};

/// Largest block that TensorStore opens, in bytes, inclusive.
pub(super) const MAX_BLOCK_BYTES: u128 = 1 << 31;

/// Upper bound of an index interval that TensorStore takes for infinite; none beyond is valid.
const INFINITE: i128 = 1 << 62;

/// What TensorStore reports of an open dataset. Serialised, the spec has no `kvstore`.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorStore {
    spec: Map<String, Value>,
    schema: Value,
}

impl Serialize for TensorStore {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        json!({"spec": self.spec(None), "schema": self.schema}).serialize(serializer)
    }
}

impl TensorStore {
    /// `ts.open(…).spec().to_json()`, with the given member `kvstore`.
    pub fn spec(&self, kvstore: Option<Value>) -> Value {
        let mut spec = self.spec.clone();
        if let Some(kvstore) = kvstore {
            spec.insert("kvstore".to_owned(), kvstore);
        }
        Value::Object(spec)
    }

    /// `ts.open(…).schema.to_json()`.
    pub fn schema(&self) -> &Value {
        &self.schema
    }
}

/// The `kvstore` member for a dataset at `origin` (`https://host:port`, no slash at the end) and
/// `path` (from the host's root, segments not percent-encoded), as TensorStore writes it.
pub fn http_kvstore(origin: &str, path: &str) -> Value {
    let path = path.trim_matches('/');
    let path = if path.is_empty() { "/".to_owned() } else { format!("/{path}/") };
    json!({"driver": "http", "base_url": origin, "path": path})
}

/// What TensorStore reports of a dataset.
///
/// # Errors
/// Why TensorStore cannot open it.
pub fn tensorstore(dataset: &DatasetAttributes) -> Result<TensorStore, String> {
    let members = dataset.members();
    let dimensions = extents(members, "dimensions", 0)?;
    let blocks = extents(members, "blockSize", 1)?;
    let compression = compression(members.get("compression"))?;
    if dataset.data_type().size_bytes().is_none() {
        return Err(format!("unsupported data type {}", dataset.data_type()));
    }
    let rank = dataset.rank();
    let axes = per_axis(members, "axes", rank, "a string", |v| v.as_str().map(str::to_owned))?;
    let units = per_axis(members, "units", rank, "a string", |v| v.as_str().map(str::to_owned))?;
    let resolution = per_axis(members, "resolution", rank, "a number", Value::as_f64)?;
    let labels = axes.filter(|axes| axes.iter().any(|label| !label.is_empty()));
    if let Some(label) = labels.iter().flatten().find(|label| repeated(label, &labels)) {
        return Err(format!("the axis label {label:?} is not unique"));
    }
    if block_bytes(dataset).is_none_or(|bytes| bytes > MAX_BLOCK_BYTES) {
        return Err("a block of blockSize is larger than 2 GiB".to_owned());
    }
    if let Some(size) = dimensions.iter().find(|size| **size > INFINITE) {
        return Err(format!("the dimension {size} exceeds 2^62"));
    }

    let mut metadata = members.clone();
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
        let shape = integers(&blocks);
        let order: Vec<usize> = (0..rank).rev().collect();
        let layout = json!({"grid_origin": vec![0; rank], "inner_order": order,
            "read_chunk": {"shape": shape}, "write_chunk": {"shape": shape}});
        schema.insert("chunk_layout".to_owned(), layout);
        if let Some(units) = units {
            let multipliers = resolution.unwrap_or_else(|| vec![1.0; rank]);
            let units: Vec<Value> = multipliers.iter().zip(units).map(|(n, unit)| json!([n, unit])).collect();
            schema.insert("dimension_units".to_owned(), Value::Array(units));
        }
    }
    let Value::Object(spec) = spec else { return Err("no spec".to_owned()) };
    Ok(TensorStore { spec, schema: Value::Object(schema) })
}

/// An index domain; upper bounds are lists of one, which marks them as resizable.
fn domain(dimensions: &[i128], labels: Option<&[String]>, prefix: &str) -> Value {
    let mut members = Map::new();
    if dimensions.is_empty() {
        members.insert(format!("{prefix}rank"), Value::from(0));
        return Value::Object(members);
    }
    let bound = |size: &i128| if *size == INFINITE { json!(["+inf"]) } else { Value::Array(vec![integer(*size)]) };
    if dimensions.iter().any(|size| *size != INFINITE) {
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

fn repeated(label: &str, labels: &Option<Vec<String>>) -> bool {
    !label.is_empty() && labels.iter().flatten().filter(|other| *other == label).count() > 1
}

fn extents(members: &Map<String, Value>, key: &str, least: i128) -> Result<Vec<i128>, String> {
    let list = members.get(key).and_then(Value::as_array).ok_or_else(|| format!("{key} is not an array"))?;
    list.iter()
        .map(|value| {
            whole(value, least, i128::from(i64::MAX) - 1)
                .ok_or_else(|| format!("{key} holds {}, expected an integer from {least} to 2^63 - 2", shown(value)))
        })
        .collect()
}

fn per_axis<T>(
    members: &Map<String, Value>,
    key: &str,
    rank: usize,
    expected: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Option<Vec<T>>, String> {
    let Some(value) = members.get(key) else { return Ok(None) };
    let list = value.as_array().ok_or_else(|| format!("{key} is {}, expected an array", shown(value)))?;
    if list.len() != rank {
        return Err(format!("{key} has {} entries for {rank} axes", list.len()));
    }
    let each = |item: &Value| read(item).ok_or_else(|| format!("{key} holds {}, expected {expected}", shown(item)));
    list.iter().map(each).collect::<Result<_, _>>().map(Some)
}

/// What a member of `compression` may be.
enum Rule {
    /// An integer within bounds, with the default of one that may be missing.
    Integer(i128, i128, Option<i128>),
    /// A boolean that may be missing and is then false.
    Flag,
    /// One of these strings.
    Name(&'static [&'static str]),
}

static COMPRESSIONS: &[(&str, &[(&str, Rule)])] = &[
    ("raw", &[]),
    ("gzip", &[("level", Rule::Integer(-1, 9, Some(-1))), ("useZlib", Rule::Flag)]),
    ("bzip2", &[("blockSize", Rule::Integer(1, 9, Some(9)))]),
    ("xz", &[("preset", Rule::Integer(0, 9, Some(6)))]),
    ("zstd", &[("level", Rule::Integer(-131_072, 22, Some(0)))]),
    (
        "blosc",
        &[
            ("cname", Rule::Name(&["blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"])),
            ("clevel", Rule::Integer(0, 9, None)),
            ("shuffle", Rule::Integer(0, 2, None)),
            ("blocksize", Rule::Integer(0, u64::MAX as i128, Some(0))),
        ],
    ),
];

fn compression(value: Option<&Value>) -> Result<Value, String> {
    let value = value.ok_or("the attribute compression is missing")?;
    let given = value.as_object().ok_or_else(|| format!("compression is {}, expected an object", shown(value)))?;
    let name = given.get("type").and_then(Value::as_str).ok_or("compression has no type")?;
    let Some((_, rules)) = COMPRESSIONS.iter().find(|row| row.0 == name) else {
        return Err(format!("it has no compression {name:?}"));
    };
    if let Some(extra) = given.keys().find(|key| *key != "type" && !rules.iter().any(|rule| rule.0 == *key)) {
        return Err(format!("compression has the member {extra:?}, which it does not know"));
    }
    let mut parsed = Map::new();
    parsed.insert("type".to_owned(), Value::from(name));
    for (key, rule) in *rules {
        let value = given.get(*key);
        let wrong = || format!("compression.{key} is {}", value.map_or_else(|| "missing".to_owned(), shown));
        let member = match (rule, value) {
            (Rule::Integer(_, _, Some(default)), None) => integer(*default),
            (Rule::Integer(low, high, _), Some(value)) => integer(whole(value, *low, *high).ok_or_else(wrong)?),
            (Rule::Flag, None) => Value::Bool(false),
            (Rule::Flag, Some(value)) => Value::Bool(value.as_bool().ok_or_else(wrong)?),
            (Rule::Name(names), Some(value)) if value.as_str().is_some_and(|name| names.contains(&name)) => {
                value.clone()
            }
            (Rule::Integer(..) | Rule::Name(_), _) => return Err(wrong()),
        };
        parsed.insert((*key).to_owned(), member);
    }
    Ok(Value::Object(parsed))
}
