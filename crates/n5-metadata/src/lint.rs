//! Unusual attributes that may cause trouble in other programs.

use n5_format::{AttributesDocument, DescribedDataset};
use serde_json::Value;

use crate::codec::block_bytes;
use crate::json_values::{push_unique, truncated_json};
use crate::problem::{MetadataProblem, MetadataProblemKind};
use crate::tensorstore::MAX_BLOCK_BYTES;

/// Appends a problem for each unusual attribute of a dataset and its ancestors, root first.
pub(crate) fn lint(dataset: &DescribedDataset, ancestors: &[AttributesDocument], problems: &mut Vec<MetadataProblem>) {
    if dataset.has_legacy_compression() {
        push_unique(
            problems,
            "compressionType was used before N5 2.0.0; TensorStore, zarr and rust-n5 refuse it".to_owned(),
        );
    } else if dataset.members().contains_key("compressionType") {
        push_unique(problems, "both compression and compressionType are given; compression is used".to_owned());
    }
    if dataset.members().get("compression").is_some_and(|c| c.is_object() && c.get("type").is_none()) {
        push_unique(problems, "compression has no type and is read as raw, as N5 for Java does".to_owned());
    }
    for key in ["dimensions", "blockSize"] {
        let list = dataset.members().get(key).and_then(Value::as_array);
        if let Some(odd) = list.into_iter().flatten().find(|value| value.as_u64().is_none()) {
            push_unique(
                problems,
                format!("{key} holds {}; some programs do not read that as a whole number", truncated_json(odd)),
            );
        }
    }
    if dataset.dimensions().iter().any(|size| *size > 1 << 53) {
        push_unique(problems, "a dimension exceeds 2^53; JavaScript cannot represent all larger integers".to_owned());
    }
    if block_bytes(dataset).is_some_and(|bytes| bytes > MAX_BLOCK_BYTES) {
        push_unique(problems, "a full block is larger than 2 GiB, which N5 does not allow".to_owned());
    }
    if dataset.compression().codec().is_none() {
        let name = dataset.compression().name();
        push_unique(
            problems,
            MetadataProblemKind::Undecoded.with_text(format!(
                "this server does not decode the compression {name:?}; its blocks are served as stored"
            )),
        );
    }
    if dataset.data_type().size_bytes().is_none() {
        let name = dataset.data_type().name();
        let text = format!("this server does not decode the data type {name:?}; its blocks are served as stored");
        push_unique(problems, MetadataProblemKind::Undecoded.with_text(text));
    }
    lint_inherited(dataset, ancestors, problems);
}

/// Checks attributes of groups above, which Neuroglancer merges into those of a dataset.
fn lint_inherited(dataset: &DescribedDataset, ancestors: &[AttributesDocument], problems: &mut Vec<MetadataProblem>) {
    let has_own = |key: &str| dataset.members().contains_key(key);
    for members in ancestors.iter().map(AttributesDocument::members) {
        if members.contains_key("dimensions") {
            push_unique(
                problems,
                "a group above has dimensions; Neuroglancer treats such a group as a dataset".to_owned(),
            );
        }
        let is_scalar =
            members.get("downsamplingFactors").and_then(|factors| factors.get(0)).is_some_and(Value::is_number);
        if is_scalar && !has_own("downsamplingFactors") {
            push_unique(
                problems,
                "a group above has downsamplingFactors, which Neuroglancer applies to this dataset".to_owned(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{array, dataset, document};

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
