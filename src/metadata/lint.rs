//! What is unusual in attributes and may trip other programs.

use serde_json::Value;

use crate::n5::{DescribedDataset, Document};

use super::codec::block_bytes;
use super::fields::{note, shown};
use super::problem::{About, Problem};
use super::tensorstore::MAX_BLOCK_BYTES;

/// Appends what is unusual about a dataset and its ancestors, root first.
pub(super) fn lint(dataset: &DescribedDataset, ancestors: &[Document], problems: &mut Vec<Problem>) {
    if dataset.has_legacy_compression() {
        note(
            problems,
            "compressionType is the form of N5 before 2.0.0; TensorStore, zarr and rust-n5 refuse it".to_owned(),
        );
    } else if dataset.members().contains_key("compressionType") {
        note(problems, "both compression and compressionType are given; compression counts".to_owned());
    }
    if dataset.members().get("compression").is_some_and(|c| c.is_object() && c.get("type").is_none()) {
        note(problems, "compression has no type and is read as raw, as N5 for Java does".to_owned());
    }
    for key in ["dimensions", "blockSize"] {
        let list = dataset.members().get(key).and_then(Value::as_array);
        if let Some(odd) = list.into_iter().flatten().find(|value| value.as_u64().is_none()) {
            note(problems, format!("{key} holds {}; not every program reads that as a whole number", shown(odd)));
        }
    }
    if dataset.dimensions().iter().any(|size| *size > 1 << 53) {
        note(problems, "a dimension exceeds 2^53, beyond which JavaScript loses digits".to_owned());
    }
    if block_bytes(dataset).is_some_and(|bytes| bytes > MAX_BLOCK_BYTES) {
        note(problems, "a full block is larger than 2 GiB, more than N5 allows".to_owned());
    }
    if dataset.compression().codec().is_none() {
        let name = dataset.compression().name();
        note(
            problems,
            About::Undecoded
                .says(format!("this server does not decode the compression {name:?}; its blocks are served as stored")),
        );
    }
    if dataset.data_type().size_bytes().is_none() {
        let name = dataset.data_type().name();
        let text = format!("this server does not decode the data type {name:?}; its blocks are served as stored");
        note(problems, About::Undecoded.says(text));
    }
    inherited(dataset, ancestors, problems);
}

/// Neuroglancer merges the attributes of all directories above into a dataset's.
fn inherited(dataset: &DescribedDataset, ancestors: &[Document], problems: &mut Vec<Problem>) {
    let own = |key: &str| dataset.members().contains_key(key);
    for members in ancestors.iter().map(Document::members) {
        if members.contains_key("dimensions") {
            note(problems, "a group above has dimensions; Neuroglancer takes such a group for a dataset".to_owned());
        }
        let scalar =
            members.get("downsamplingFactors").and_then(|factors| factors.get(0)).is_some_and(Value::is_number);
        if scalar && !own("downsamplingFactors") {
            note(
                problems,
                "a group above has downsamplingFactors, which Neuroglancer applies to this dataset".to_owned(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{array, dataset, document};
    use super::*;

    fn problems(above: &Value, further: &Value) -> Vec<Problem> {
        let mut problems = Vec::new();
        lint(&dataset(&array(&[7, 5], further)), &[document(above)], &mut problems);
        problems
    }

    #[test]
    fn sound_attributes_have_no_problems() {
        assert!(problems(&json!({"n5": "4.0.0"}), &json!({"resolution": [4, 4]})).is_empty());
    }

    #[test]
    fn each_oddity_has_one_sentence() {
        for (above, further, word) in [
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
            let found = problems(&above, &further);
            assert!(found.len() == 1 && found[0].contains(word), "{further}: {found:?}");
        }
    }
}
