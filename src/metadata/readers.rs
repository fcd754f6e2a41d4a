//! Which programs read a dataset, as far as its attributes tell.
//!
//! Blocks are not looked at: a gzip block of several members, say, fails in TensorStore all the same.
//!
//! Source: what N5 for Java 4.0.2 (with n5-blosc and n5-zstandard), zarr-python 2.18.7 and z5py 3.0.2
//! do with the datasets of each other, and their sources.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::n5::{DescribedDataset, Document};

use super::codec::block_bytes;
use super::fields::{note, whole};
use super::problem::{About, Problem};
use super::pyramid::Pyramid;
use super::{Node, neuroglancer, tensorstore};

/// Whether each program opens a directory and decodes its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "one answer per program")]
pub struct Readable {
    /// Neuroglancer's `n5://`.
    pub neuroglancer: bool,
    /// TensorStore's driver `n5`.
    pub tensorstore: bool,
    /// N5 for Java, release 4, with its blosc and zstandard plug-ins.
    pub java: bool,
    /// zarr-python 2, `N5Store` and `N5FSStore`.
    pub zarr: bool,
    /// z5 and z5py 3.
    pub z5: bool,
}

const NEUROGLANCER: &str = "Neuroglancer";

/// Which programs read a dataset with these ancestors, root first; the reasons of those that do not
/// are appended to `problems`.
pub(super) fn of_dataset(dataset: &DescribedDataset, ancestors: &[Document], problems: &mut Vec<Problem>) -> Readable {
    let root = ancestors.first().map_or_else(|| dataset.members(), Document::members);
    let dialect = Lz4::of(dataset, root);
    if dialect.is_some() {
        note(
            problems,
            "lz4 names four encodings, each read by its own writer only; which one this is was judged by its \
             parameters and the version in the container's root"
                .to_owned(),
        );
    }
    let mut verdict = |program, result: Result<(), String>| match result {
        Ok(()) => true,
        Err(reason) => {
            note(problems, About::RefusedBy(program).says(format!("{program} cannot read it: {reason}")));
            false
        }
    };
    Readable {
        neuroglancer: verdict(NEUROGLANCER, neuroglancer::dataset(dataset, ancestors)),
        tensorstore: verdict("TensorStore", tensorstore(dataset).map(|_| ())),
        java: verdict("N5 for Java", java(dataset, root, dialect)),
        zarr: verdict("zarr-python 2", zarr(dataset, dialect)),
        z5: verdict("z5", z5(dataset, root, dialect)),
    }
}

/// The same for a group with levels: Neuroglancer opens the group, the others every level.
pub(super) fn of_pyramid(node: &Node, pyramid: &Pyramid, problems: &mut Vec<Problem>) -> Readable {
    let mut ancestors = node.ancestors.clone();
    ancestors.push(node.own().clone());
    let mut all = Readable { neuroglancer: true, tensorstore: true, java: true, zarr: true, z5: true };
    for level in &pyramid.levels {
        let Some(dataset) = node.dataset_below(&level.path) else { continue };
        let mut reasons = Vec::new();
        let one = of_dataset(&dataset, &ancestors, &mut reasons);
        all.tensorstore &= one.tensorstore;
        all.java &= one.java;
        all.zarr &= one.zarr;
        all.z5 &= one.z5;
        for reason in reasons.iter().filter(|reason| reason.about != About::RefusedBy(NEUROGLANCER)) {
            note(problems, About::DatasetOfLevel.says(format!("level {}: {}", level.path, &**reason)));
        }
    }
    if let Err(reason) = neuroglancer::group(node, pyramid) {
        let text = format!("{NEUROGLANCER} cannot read it as one image: {reason}");
        note(problems, About::RefusedBy(NEUROGLANCER).says(text));
        all.neuroglancer = false;
    }
    all
}

/// The program whose encoding goes by the name `lz4` in a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lz4 {
    Java,
    Rust,
    Z5,
    Zarr,
}

impl Lz4 {
    /// `acceleration` and `id` are numcodecs'; z5 writes a level, by default 6, where Java demands a
    /// block size of 64 or more; else the container's version tells z5 (`2.0.0`) and the Rust crate
    /// (`2.1.3`) from Java.
    fn of(dataset: &DescribedDataset, root: &Map<String, Value>) -> Option<Self> {
        let compression = dataset.compression();
        if compression.name() != "lz4" {
            return None;
        }
        let parameters = compression.parameters();
        let block = parameters.get("blockSize");
        Some(if block.is_none() && ["acceleration", "id"].iter().any(|key| parameters.contains_key(*key)) {
            Self::Zarr
        } else if block.is_some_and(|block| whole(block, 0, 63).is_some()) {
            Self::Z5
        } else {
            match root.get("n5").and_then(Value::as_str) {
                Some("2.0.0") => Self::Z5,
                Some("2.1.3") => Self::Rust,
                _ => Self::Java,
            }
        })
    }
}

fn java(dataset: &DescribedDataset, root: &Map<String, Value>, lz4: Option<Lz4>) -> Result<(), String> {
    if let Some(version) = root.get("n5").filter(|version| !java_accepts(version)) {
        return Err(format!("it refuses the container's version {version}"));
    }
    if dataset.members().get("codecs").is_some_and(|codecs| !codecs.is_null()) {
        return Err("it reads codecs before compression, and has none of that form in N5".to_owned());
    }
    if dataset.data_type().size_bytes().is_none() && !["string", "object"].contains(&dataset.data_type().name()) {
        return Err(format!("it has no data type {:?}", dataset.data_type().name()));
    }
    let name = dataset.compression().name();
    if !["raw", "gzip", "bzip2", "xz", "lz4", "blosc", "zstd"].contains(&name) {
        return Err(format!("it has no compression {name:?}"));
    }
    if dataset.has_legacy_compression() && ["blosc", "zstd"].contains(&name) {
        return Err(format!("it takes the compressionType {name:?} for raw"));
    }
    if lz4.is_some_and(|writer| writer != Lz4::Java) {
        return Err("its lz4 is another encoding".to_owned());
    }
    let elements = dataset.block_size().iter().try_fold(1_u64, |product, size| product.checked_mul(*size));
    let limit = i32::MAX.unsigned_abs();
    if elements.is_none_or(|elements| elements > limit.into()) {
        return Err("a block has more elements than an array of Java".to_owned());
    }
    Ok(())
}

/// The first three numbers, anywhere in the text, are the version; none at all is version 0.
fn java_accepts(version: &Value) -> bool {
    let Some(text) = version.as_str() else { return false };
    let Some(digits) = text.find(|c: char| c.is_ascii_digit()).and_then(|at| text.get(at..)) else { return true };
    let mut parts = digits.splitn(3, '.').map(|part| part.bytes().take_while(u8::is_ascii_digit).count());
    let complete = (0..3).all(|_| parts.next().is_some_and(|digits| digits > 0));
    let major: Option<u32> = digits.split('.').next().and_then(|major| major.parse().ok());
    complete && major.is_some_and(|major| major <= 4)
}

fn zarr(dataset: &DescribedDataset, lz4: Option<Lz4>) -> Result<(), String> {
    for key in ["dimensions", "blockSize"] {
        if let Some(odd) = list(dataset, key).find(|value| value.as_u64().is_none()) {
            return Err(format!("{key} holds {odd}, which it takes as it is written"));
        }
    }
    let data_type = dataset.data_type();
    let numpy = ["bool", "float16"].contains(&data_type.name());
    if data_type.size_bytes().is_none() && !numpy {
        return Err(format!("it has no data type {:?}", data_type.name()));
    }
    let required: &[&str] = match dataset.compression().name() {
        "gzip" => &["level"],
        "bzip2" => &["blockSize"],
        "xz" => &["preset"],
        "blosc" => &["cname", "clevel", "shuffle", "blocksize"],
        "lzma" => &["format", "check", "preset", "filters"],
        _ => &[],
    };
    has_compression(dataset, required)?;
    let allowed: &[&str] = match dataset.compression().name() {
        "raw" | "gzip" | "bzip2" | "xz" | "blosc" | "lzma" => return Ok(()),
        "zstd" => &["level", "checksum", "id"],
        "lz4" => &["acceleration", "id"],
        "zlib" => &["level", "id"],
        name => return Err(format!("it has no compression {name:?}")),
    };
    if lz4.is_some_and(|writer| writer != Lz4::Zarr) {
        return Err("its lz4 is another encoding".to_owned());
    }
    match dataset.compression().parameters().keys().find(|key| !allowed.contains(&key.as_str())) {
        Some(extra) => Err(format!("it does not know compression.{extra}")),
        None => Ok(()),
    }
}

fn z5(dataset: &DescribedDataset, root: &Map<String, Value>, lz4: Option<Lz4>) -> Result<(), String> {
    if !root.contains_key("n5") {
        return Err("the container's root has no version (the attribute n5)".to_owned());
    }
    if dataset.members().contains_key("compressionType") {
        return Err("it takes anything with a compressionType for a group".to_owned());
    }
    for key in ["dimensions", "blockSize"] {
        if let Some(odd) = list(dataset, key).find(|value| value.is_string()) {
            return Err(format!("{key} holds {odd}, expected a number"));
        }
    }
    if dataset.rank() == 0 {
        return Err("it has no datasets without axes".to_owned());
    }
    if dataset.data_type().size_bytes().is_none() {
        return Err(format!("it has no data type {:?}", dataset.data_type().name()));
    }
    let required: &[&str] = match dataset.compression().name() {
        "raw" => &[],
        "gzip" | "zstd" => &["level"],
        "bzip2" | "lz4" => &["blockSize"],
        "xz" => &["preset"],
        "blosc" => &["cname", "clevel", "shuffle"],
        name => return Err(format!("it has no compression {name:?}")),
    };
    has_compression(dataset, required)?;
    if let Some(odd) =
        required.iter().find(|key| **key != "cname" && !parameter(dataset, key).is_some_and(Value::is_number))
    {
        return Err(format!("compression.{odd} is not a number"));
    }
    if lz4.is_some_and(|writer| writer != Lz4::Z5) {
        return Err("its lz4 is another encoding".to_owned());
    }
    if block_bytes(dataset).is_none_or(|bytes| u64::try_from(bytes).is_err()) {
        return Err("a block is larger than 2^64 bytes".to_owned());
    }
    Ok(())
}

fn list<'a>(dataset: &'a DescribedDataset, key: &str) -> impl Iterator<Item = &'a Value> {
    dataset.members().get(key).and_then(Value::as_array).into_iter().flatten()
}

fn parameter<'a>(dataset: &'a DescribedDataset, key: &str) -> Option<&'a Value> {
    dataset.compression().parameters().get(key)
}

/// Programs that want `compression` with a type and these members.
fn has_compression(dataset: &DescribedDataset, required: &[&str]) -> Result<(), String> {
    let given = dataset.members().get("compression").and_then(Value::as_object);
    if given.is_none_or(|members| !members.get("type").is_some_and(Value::is_string)) {
        return Err("it wants the attribute compression with a type".to_owned());
    }
    match required.iter().find(|key| parameter(dataset, key).is_none()) {
        Some(missing) => Err(format!("it wants compression.{missing}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{array, dataset, document};
    use super::*;

    /// Letters of the programs that read a dataset: Neuroglancer, TensorStore, Java, zarr, z5.
    fn readers(version: &Value, further: &Value) -> String {
        let mut problems = Vec::new();
        let root = document(&json!({"n5": version}));
        let read = of_dataset(&dataset(&array(&[7, 5], further)), &[root], &mut problems);
        let all =
            [(read.neuroglancer, 'n'), (read.tensorstore, 't'), (read.java, 'j'), (read.zarr, 'z'), (read.z5, '5')];
        let refusing = problems.iter().filter(|problem| problem.contains(" cannot read it: ")).count();
        assert_eq!(refusing, all.iter().filter(|(reads, _)| !reads).count(), "{problems:?}");
        all.iter().filter(|(reads, _)| *reads).map(|(_, letter)| letter).collect()
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
    fn numbers_and_types_divide_them_too() {
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
}
