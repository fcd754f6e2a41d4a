//! Determines which programs can read a dataset, and finds unusual attributes that may cause trouble.
//!
//! Only attributes are examined, not blocks. A program that accepts the attributes may still fail on a block. For
//! example, TensorStore does not read gzip blocks with several members.
//!
//! Source: tests of how N5 for Java 4.0.2 (with n5-blosc and n5-zstandard), zarr-python 2.18.7 and z5py 3.0.2 handle
//! each other's datasets, and the source code of these programs.

use n5_format::{AttributesDocument, DescribedDataset};
use serde::Serialize;
use serde_json::Value;

use crate::codec::block_bytes;
use crate::json_values::{bounded_integer, push_unique, truncated_json};
use crate::multiscale::pyramid::Pyramid;
use crate::neuroglancer;
use crate::node::Node;
use crate::problem::{MetadataProblem, MetadataProblemKind};
use crate::tensorstore::{MAX_BLOCK_BYTES, tensorstore_info};

/// Programs that can open a directory and decode its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "one flag per program")]
pub struct Compatibility {
    /// Neuroglancer with `n5://`.
    pub neuroglancer: bool,
    /// TensorStore with the driver `n5`.
    pub tensorstore: bool,
    /// N5 for Java, release 4, with its blosc and zstandard plug-ins.
    pub java: bool,
    /// zarr-python 2 with `N5Store` or `N5FSStore`.
    pub zarr: bool,
    /// z5 and z5py 3.
    pub z5: bool,
}

const NEUROGLANCER: &str = "Neuroglancer";

/// Determines which programs can read a dataset. `ancestors` are the attributes of the directories above, root first.
/// Appends the reason of each refusal to `problems`.
pub(crate) fn dataset_compatibility(
    dataset: &DescribedDataset,
    ancestors: &[AttributesDocument],
    problems: &mut Vec<MetadataProblem>,
) -> Compatibility {
    let version = container_version(dataset, ancestors);
    let dialect = Lz4Dialect::detect(dataset, version);
    if dialect.is_some() {
        push_unique(
            problems,
            "lz4 is the name of four encodings, each read only by its own writer; this one was determined from its \
             parameters and the version in the container's root",
        );
    }
    let mut record_result = |program, result: Result<(), String>| match result {
        Ok(()) => true,
        Err(reason) => {
            MetadataProblemKind::RefusedBy(program).report(problems, format!("{program} cannot read it: {reason}"));
            false
        }
    };
    Compatibility {
        neuroglancer: record_result(NEUROGLANCER, neuroglancer::check_dataset(dataset, ancestors)),
        tensorstore: record_result("TensorStore", tensorstore_info(dataset).map(|_| ())),
        java: record_result("N5 for Java", check_n5_java(dataset, version, dialect)),
        zarr: record_result("zarr-python 2", check_zarr_python(dataset, dialect)),
        z5: record_result("z5", check_z5(dataset, version, dialect)),
    }
}

/// Returns the version of the container that holds a dataset: the attribute `n5` of the nearest directory above that
/// has it, or else of the dataset itself. The first of the `ancestors` need not be a container's root, because a plain
/// directory with several containers can be served.
fn container_version<'a>(dataset: &'a DescribedDataset, ancestors: &'a [AttributesDocument]) -> Option<&'a Value> {
    let above = ancestors.iter().rev().map(AttributesDocument::members);
    above.chain([dataset.members()]).find_map(|members| members.get("n5"))
}

/// Determines which programs can read a pyramid. Neuroglancer opens the group, whereas the other programs open each
/// level.
pub(crate) fn pyramid_compatibility(
    node: &Node,
    pyramid: &Pyramid,
    problems: &mut Vec<MetadataProblem>,
) -> Compatibility {
    let mut ancestors = node.ancestors.clone();
    ancestors.push(node.own_document().clone());
    let mut compatibility = Compatibility { neuroglancer: true, tensorstore: true, java: true, zarr: true, z5: true };
    for level in &pyramid.levels {
        let Some(dataset) = node.dataset_below(&level.path) else { continue };
        let mut reasons = Vec::new();
        let level_compatibility = dataset_compatibility(&dataset, &ancestors, &mut reasons);
        compatibility.tensorstore &= level_compatibility.tensorstore;
        compatibility.java &= level_compatibility.java;
        compatibility.zarr &= level_compatibility.zarr;
        compatibility.z5 &= level_compatibility.z5;
        for reason in reasons.iter().filter(|reason| reason.kind != MetadataProblemKind::RefusedBy(NEUROGLANCER)) {
            MetadataProblemKind::DatasetOfLevel.report(problems, format!("level {}: {}", level.path, &**reason));
        }
    }
    if let Err(reason) = neuroglancer::check_group(node, pyramid) {
        let text = format!("{NEUROGLANCER} cannot read it as one image: {reason}");
        MetadataProblemKind::RefusedBy(NEUROGLANCER).report(problems, text);
        compatibility.neuroglancer = false;
    }
    compatibility
}

/// Variant of the compression `lz4`, named after the program that writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lz4Dialect {
    Java,
    Rust,
    Z5,
    Zarr,
}

impl Lz4Dialect {
    /// Determines the variant from the attributes of a dataset. Returns `None` if its compression is not `lz4`.
    ///
    /// numcodecs writes `acceleration` and `id`. z5 writes a level, 6 by default, as `blockSize`, whereas Java requires
    /// a block size of at least 64. If these attributes do not decide, the version of the container does: z5 writes
    /// `2.0.0`, and the Rust crate writes `2.1.3`.
    fn detect(dataset: &DescribedDataset, container_version: Option<&Value>) -> Option<Self> {
        let compression = dataset.compression();
        if compression.name() != "lz4" {
            return None;
        }
        let parameters = compression.parameters();
        let block = parameters.get("blockSize");
        Some(if block.is_none() && ["acceleration", "id"].iter().any(|key| parameters.contains_key(*key)) {
            Self::Zarr
        } else if block.is_some_and(|block| bounded_integer(block, 0, 63).is_some()) {
            Self::Z5
        } else {
            match container_version.and_then(Value::as_str) {
                Some("2.0.0") => Self::Z5,
                Some("2.1.3") => Self::Rust,
                _ => Self::Java,
            }
        })
    }
}

fn check_n5_java(
    dataset: &DescribedDataset,
    container_version: Option<&Value>,
    lz4_dialect: Option<Lz4Dialect>,
) -> Result<(), String> {
    if let Some(version) = container_version.filter(|version| !java_accepts(version)) {
        return Err(format!("it refuses the container's version {version}"));
    }
    if dataset.members().get("codecs").is_some_and(|codecs| !codecs.is_null()) {
        return Err("it reads codecs instead of compression, and supports none of that form in N5".to_owned());
    }
    check_data_type(dataset, &["string", "object"])?;
    let name = dataset.compression().name();
    if !["raw", "gzip", "bzip2", "xz", "lz4", "blosc", "zstd"].contains(&name) {
        return Err(format!("it does not support the compression {name:?}"));
    }
    if dataset.has_legacy_compression() && ["blosc", "zstd"].contains(&name) {
        return Err(format!("it reads the compressionType {name:?} as raw"));
    }
    check_lz4_dialect(lz4_dialect, Lz4Dialect::Java)?;
    let elements = dataset.block_size().iter().try_fold(1_u64, |product, size| product.checked_mul(*size));
    let limit = i32::MAX.unsigned_abs();
    if elements.is_none_or(|elements| elements > limit.into()) {
        return Err("a block has more elements than a Java array can hold".to_owned());
    }
    Ok(())
}

/// Returns true if N5 for Java accepts the version of a container. Java takes the first three numbers in the text as
/// the version, and a text without a number as version 0.
fn java_accepts(version: &Value) -> bool {
    let Some(text) = version.as_str() else { return false };
    let Some(digits) = text.find(|c: char| c.is_ascii_digit()).and_then(|at| text.get(at..)) else { return true };
    let mut parts = digits.splitn(3, '.').map(|part| part.bytes().take_while(u8::is_ascii_digit).count());
    let is_complete = (0..3).all(|_| parts.next().is_some_and(|digits| digits > 0));
    let major: Option<u32> = digits.split('.').next().and_then(|major| major.parse().ok());
    is_complete && major.is_some_and(|major| major <= 4)
}

fn check_zarr_python(dataset: &DescribedDataset, lz4_dialect: Option<Lz4Dialect>) -> Result<(), String> {
    for key in ["dimensions", "blockSize"] {
        if let Some(odd) = list_values(dataset, key).find(|value| value.as_u64().is_none()) {
            return Err(format!("{key} holds {odd}, which it does not convert to a whole number"));
        }
    }
    check_data_type(dataset, &["bool", "float16"])?;
    let required: &[&str] = match dataset.compression().name() {
        "gzip" => &["level"],
        "bzip2" => &["blockSize"],
        "xz" => &["preset"],
        "blosc" => &["cname", "clevel", "shuffle", "blocksize"],
        "lzma" => &["format", "check", "preset", "filters"],
        _ => &[],
    };
    require_compression(dataset, required)?;
    let allowed: &[&str] = match dataset.compression().name() {
        "raw" | "gzip" | "bzip2" | "xz" | "blosc" | "lzma" => return Ok(()),
        "zstd" => &["level", "checksum", "id"],
        "lz4" => &["acceleration", "id"],
        "zlib" => &["level", "id"],
        name => return Err(format!("it does not support the compression {name:?}")),
    };
    check_lz4_dialect(lz4_dialect, Lz4Dialect::Zarr)?;
    match dataset.compression().parameters().keys().find(|key| !allowed.contains(&key.as_str())) {
        Some(extra) => Err(format!("it does not know compression.{extra}")),
        None => Ok(()),
    }
}

fn check_z5(
    dataset: &DescribedDataset,
    container_version: Option<&Value>,
    lz4_dialect: Option<Lz4Dialect>,
) -> Result<(), String> {
    if container_version.is_none() {
        return Err("no directory above it has the attribute n5, the version in the root of a container".to_owned());
    }
    if dataset.members().contains_key("compressionType") {
        return Err("it treats any directory with a compressionType as a group".to_owned());
    }
    for key in ["dimensions", "blockSize"] {
        if let Some(odd) = list_values(dataset, key).find(|value| value.is_string()) {
            return Err(format!("{key} holds {odd}, expected a number"));
        }
    }
    if dataset.rank() == 0 {
        return Err("it does not support datasets without axes".to_owned());
    }
    check_data_type(dataset, &[])?;
    check_z5_compression(dataset)?;
    check_lz4_dialect(lz4_dialect, Lz4Dialect::Z5)?;
    if block_bytes(dataset).is_none_or(|bytes| u64::try_from(bytes).is_err()) {
        return Err("a block is larger than 2^64 bytes".to_owned());
    }
    Ok(())
}

fn check_z5_compression(dataset: &DescribedDataset) -> Result<(), String> {
    let required: &[&str] = match dataset.compression().name() {
        "raw" => &[],
        "gzip" | "zstd" => &["level"],
        "bzip2" | "lz4" => &["blockSize"],
        "xz" => &["preset"],
        "blosc" => &["cname", "clevel", "shuffle"],
        name => return Err(format!("it does not support the compression {name:?}")),
    };
    require_compression(dataset, required)?;
    let mut numbers = required.iter().filter(|key| **key != "cname");
    match numbers.find(|key| !compression_parameter(dataset, key).is_some_and(Value::is_number)) {
        Some(odd) => Err(format!("compression.{odd} is not a number")),
        None => Ok(()),
    }
}

/// Checks that a program supports the data type: one of the specification's types, or one of `additional_types`.
fn check_data_type(dataset: &DescribedDataset, additional_types: &[&str]) -> Result<(), String> {
    let data_type = dataset.data_type();
    if data_type.size_bytes().is_none() && !additional_types.contains(&data_type.name()) {
        return Err(format!("it does not support the data type {:?}", data_type.name()));
    }
    Ok(())
}

/// Checks that blocks compressed with `lz4` have the variant that a program reads.
fn check_lz4_dialect(found: Option<Lz4Dialect>, expected: Lz4Dialect) -> Result<(), String> {
    if found.is_some_and(|dialect| dialect != expected) {
        return Err("it uses another encoding for lz4".to_owned());
    }
    Ok(())
}

fn list_values<'a>(dataset: &'a DescribedDataset, key: &str) -> impl Iterator<Item = &'a Value> {
    dataset.members().get(key).and_then(Value::as_array).into_iter().flatten()
}

fn compression_parameter<'a>(dataset: &'a DescribedDataset, key: &str) -> Option<&'a Value> {
    dataset.compression().parameters().get(key)
}

/// Checks that `compression` has a `type` and the `required` members.
fn require_compression(dataset: &DescribedDataset, required: &[&str]) -> Result<(), String> {
    let compression = dataset.members().get("compression").and_then(Value::as_object);
    if compression.is_none_or(|members| !members.get("type").is_some_and(Value::is_string)) {
        return Err("it requires the attribute compression with a type".to_owned());
    }
    match required.iter().find(|key| compression_parameter(dataset, key).is_none()) {
        Some(missing) => Err(format!("it requires compression.{missing}")),
        None => Ok(()),
    }
}

/// Appends a problem for each unusual attribute of a dataset or of the directories above. `ancestors` are the
/// attributes of these directories, root first.
pub(crate) fn lint(dataset: &DescribedDataset, ancestors: &[AttributesDocument], problems: &mut Vec<MetadataProblem>) {
    if dataset.has_legacy_compression() {
        push_unique(problems, "compressionType was used before N5 2.0.0; TensorStore, zarr and rust-n5 refuse it");
    } else if dataset.members().contains_key("compressionType") {
        push_unique(problems, "both compression and compressionType are given; compression is used");
    }
    if dataset.members().get("compression").is_some_and(|c| c.is_object() && c.get("type").is_none()) {
        push_unique(problems, "compression has no type and is read as raw, as N5 for Java does");
    }
    for key in ["dimensions", "blockSize"] {
        if let Some(odd) = list_values(dataset, key).find(|value| value.as_u64().is_none()) {
            push_unique(
                problems,
                format!("{key} holds {}; some programs do not read that as a whole number", truncated_json(odd)),
            );
        }
    }
    if dataset.dimensions().iter().any(|size| *size > 1 << 53) {
        push_unique(problems, "a dimension exceeds 2^53; JavaScript cannot represent all larger integers");
    }
    if block_bytes(dataset).is_some_and(|bytes| bytes > MAX_BLOCK_BYTES) {
        push_unique(problems, "a full block is larger than 2 GiB, which N5 does not allow");
    }
    let compression = dataset.compression();
    let data_type = dataset.data_type();
    let unknown_compression = compression.codec().is_none().then(|| ("compression", compression.name()));
    let unknown_type = data_type.size_bytes().is_none().then(|| ("data type", data_type.name()));
    for (attribute, name) in unknown_compression.into_iter().chain(unknown_type) {
        let text = format!("this server does not decode the {attribute} {name:?}; its blocks are served as stored");
        MetadataProblemKind::Undecoded.report(problems, text);
    }
    lint_inherited(dataset, ancestors, problems);
}

/// Appends a problem for each attribute of the directories above that changes how Neuroglancer reads the dataset,
/// because Neuroglancer merges the attributes of all directories on the path.
fn lint_inherited(dataset: &DescribedDataset, ancestors: &[AttributesDocument], problems: &mut Vec<MetadataProblem>) {
    let has_own = |key: &str| dataset.members().contains_key(key);
    for members in ancestors.iter().map(AttributesDocument::members) {
        if members.contains_key("dimensions") {
            push_unique(problems, "a group above has dimensions; Neuroglancer treats such a group as a dataset");
        }
        let is_scalar =
            members.get("downsamplingFactors").and_then(|factors| factors.get(0)).is_some_and(Value::is_number);
        if is_scalar && !has_own("downsamplingFactors") {
            push_unique(problems, "a group above has downsamplingFactors, which Neuroglancer applies to this dataset");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{array, dataset, document};

    /// Returns the letters of the programs that read a dataset: Neuroglancer, TensorStore, Java, zarr, z5.
    fn readers(version: &Value, further: &Value) -> String {
        let mut problems = Vec::new();
        let root = document(&json!({"n5": version}));
        let compatibility = dataset_compatibility(&dataset(&array(&[7, 5], further)), &[root], &mut problems);
        let flags = [
            (compatibility.neuroglancer, 'n'),
            (compatibility.tensorstore, 't'),
            (compatibility.java, 'j'),
            (compatibility.zarr, 'z'),
            (compatibility.z5, '5'),
        ];
        let refusal_count = problems.iter().filter(|problem| problem.contains(" cannot read it: ")).count();
        assert_eq!(refusal_count, flags.iter().filter(|(reads, _)| !reads).count(), "{problems:?}");
        flags.iter().filter(|(reads, _)| *reads).map(|(_, letter)| letter).collect()
    }

    #[test]
    fn each_scheme_has_its_readers() {
        for (compression, expected) in [
            (json!({"type": "raw"}), "ntjz5"),
            (json!({"type": "raw", "x": 1}), "njz5"),
            (json!({"type": "gzip", "level": 6, "useZlib": false}), "ntjz5"),
            (json!({"type": "gzip"}), "ntj"),
            (json!({"type": "bzip2", "blockSize": 9}), "tjz5"),
            (json!({"type": "xz", "preset": 6}), "tjz5"),
            (json!({"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}), "ntjz5"),
            (
                json!({"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0, "nthreads": 1}),
                "njz5",
            ),
            (json!({"type": "zstd", "level": 3}), "ntjz5"),
            (json!({"type": "zstd", "level": 3, "id": "zstd", "checksum": false}), "njz5"),
            (json!({}), "j"),
            (json!({"type": "zlib", "level": 1}), "z"),
            (json!({"type": "jpeg"}), ""),
        ] {
            let compression = json!({"compression": compression});
            assert_eq!(readers(&json!("2.0.0"), &compression), expected, "{compression}");
        }
    }

    #[test]
    fn lz4_is_read_by_its_writer_only() {
        let lz4 = |further: Value| {
            let mut compression = json!({"type": "lz4"});
            compression.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
            json!({"compression": compression})
        };
        assert_eq!(readers(&json!("4.0.0"), &lz4(json!({"blockSize": 65536}))), "j");
        assert_eq!(readers(&json!("2.0.0"), &lz4(json!({"blockSize": 65536}))), "5");
        assert_eq!(readers(&json!("2.1.3"), &lz4(json!({"blockSize": 65536}))), "");
        assert_eq!(readers(&json!("4.0.0"), &lz4(json!({"blockSize": 6}))), "5");
        assert_eq!(readers(&json!("2.0.0"), &lz4(json!({"id": "lz4", "acceleration": 1}))), "z");
    }

    #[test]
    fn the_nearest_directory_with_a_version_is_the_root_of_the_container() {
        let is_read_by = |ancestors: &[Value], own: &Value| {
            let ancestors: Vec<AttributesDocument> = ancestors.iter().map(document).collect();
            let own = array(&[7, 5], own);
            let compatibility = dataset_compatibility(&dataset(&own), &ancestors, &mut Vec::new());
            (compatibility.java, compatibility.z5)
        };
        let raw = json!({"compression": {"type": "raw"}});
        let lz4 = json!({"compression": {"type": "lz4", "blockSize": 65536}});
        let [java, z5] = ["4.0.0", "2.0.0"].map(|version| json!({"n5": version}));
        assert_eq!(is_read_by(&[json!({}), z5.clone(), json!({})], &raw), (true, true));
        assert_eq!(is_read_by(&[json!({}), json!({"n5": "5.0.0"})], &raw), (false, true));
        assert_eq!(is_read_by(&[java.clone(), z5.clone()], &lz4), (false, true));
        assert_eq!(is_read_by(&[z5, java], &lz4), (true, false));
        assert_eq!(is_read_by(&[json!({}), json!({})], &raw), (true, false));
        let root_dataset = json!({"n5": "4.0.0", "compression": {"type": "raw"}});
        assert_eq!(is_read_by(&[], &root_dataset), (true, true));
        assert_eq!(is_read_by(&[json!({})], &root_dataset), (true, true), "a container that is a dataset");
    }

    #[test]
    fn numbers_and_types_limit_the_readers() {
        assert_eq!(readers(&json!("2.0.0"), &json!({"dimensions": ["7", 5]})), "nj");
        assert_eq!(readers(&json!("2.0.0"), &json!({"dimensions": [7.0, 5]})), "ntj5");
        assert_eq!(readers(&json!("2.0.0"), &json!({"dataType": "float64"})), "tjz5");
        assert_eq!(readers(&json!("2.0.0"), &json!({"dataType": "bool"})), "z");
        assert_eq!(readers(&json!("2.0.0"), &json!({"dataType": "string"})), "j");
        assert_eq!(
            readers(&json!("2.0.0"), &json!({"compression": null, "compressionType": "gzip"})),
            "j",
            "null is not absent"
        );
        assert_eq!(readers(&json!("2.0.0"), &json!({"blockSize": [65536, 65536]})), "nz5");
    }

    #[test]
    fn java_reads_versions_up_to_4_of_three_parts() {
        for accepted in ["4.0.0", "2.5.1", "v2.5.1-SNAPSHOT", "Unknown", ""] {
            assert!(java_accepts(&json!(accepted)), "{accepted}");
        }
        for refused in [json!("5.0.0"), json!("4"), json!("4.0"), json!(4), json!(null), json!({})] {
            assert!(!java_accepts(&refused), "{refused}");
        }
    }

    fn problems(ancestor: &Value, further: &Value) -> Vec<MetadataProblem> {
        let mut problems = Vec::new();
        lint(&dataset(&array(&[7, 5], further)), &[document(ancestor)], &mut problems);
        problems
    }

    #[test]
    fn sound_attributes_have_no_problems() {
        assert!(problems(&json!({"n5": "4.0.0"}), &json!({"resolution": [4, 4]})).is_empty());
    }

    #[test]
    fn each_oddity_is_reported_once() {
        for (ancestor, further, word) in [
            (json!({}), json!({"compression": null, "compressionType": "gzip"}), "2.0.0"),
            (json!({}), json!({"compressionType": "gzip"}), "both"),
            (json!({}), json!({"compression": {}}), "no type"),
            (json!({}), json!({"dimensions": ["7", 5]}), "holds \"7\""),
            (json!({}), json!({"blockSize": [7.0, 5]}), "holds 7.0"),
            (json!({}), json!({"dimensions": [(1_u64 << 53) + 1, 5]}), "2^53"),
            (json!({}), json!({"blockSize": [65536, 65536]}), "2 GiB"),
            (json!({}), json!({"compression": {"type": "jpeg"}}), "jpeg"),
            (json!({}), json!({"dataType": "object"}), "object"),
            (json!({"dimensions": [1]}), json!({}), "dimensions"),
            (json!({"downsamplingFactors": [2, 2]}), json!({}), "downsamplingFactors"),
        ] {
            let reported = problems(&ancestor, &further);
            assert!(reported.len() == 1 && reported[0].contains(word), "{further}: {reported:?}");
        }
    }
}
