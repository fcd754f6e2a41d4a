//! `attributes.json`: parsing, and everything derived from it.
//!
//! Each parsed document is compared with the result of serde_json.
//!
//! Input: documents separated by lines of `---`. The first is that of the group or dataset, and the second that of its
//! parent. The others are used in turn for the paths below it that the description needs.

use n5_format::{
    AttributesDocument, DescribedDataset, DocumentError, JsonObjectBuilder, MAX_INTERPRETED_BYTES, attributes_text,
};
use n5_metadata::{
    CoordinateSpace, NeuroglancerSource, Node, Unit, canonical_attributes, canonical_group_attributes,
    codec_equivalents, compression_with_defaults, describe, pyramid, recommended_source, required_paths, volume_kind,
};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

pub(crate) fn run(data: &[u8]) {
    let documents = parts(data);
    let own = AttributesDocument::parse(documents[0]);
    for bytes in &documents {
        scanned(bytes);
    }
    let parent = documents.get(1).and_then(|bytes| AttributesDocument::parse(bytes).ok());
    let below: Vec<AttributesDocument> =
        documents.iter().skip(2).filter_map(|bytes| AttributesDocument::parse(bytes).ok()).collect();
    if let Ok(own) = &own {
        own_alone(own);
    }
    let children = ["s0", "s1", "setup0", "timepoint0", "data", "0"].map(str::to_owned).to_vec();
    let mut node = Node { ancestors: parent.into_iter().collect(), document: Some(own), children, ..Node::default() };
    let paths = required_paths(&node);
    assert!(paths.len() <= n5_metadata::MAX_LEVELS);
    for (at, path) in paths.into_iter().enumerate() {
        assert!(path.split('/').all(n5_server::store::Key::is_segment), "{path:?} is no path");
        if let Some(document) = below.get(at % below.len().max(1)) {
            node.child_documents.insert(path, document.clone());
        }
    }
    described(&node);
}

/// Returns the documents of an input, at least one.
pub(crate) fn parts(data: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let mut rest = data;
    while let Some(at) = rest.windows(5).position(|bytes| bytes == b"\n---\n") {
        parts.push(&rest[..at]);
        rest = &rest[at + 5..];
    }
    parts.push(rest);
    parts
}

/// Members that are interpreted in full. Of other members only a part is kept.
const WHOLE: [&str; 13] = [
    "dimensions",
    "blockSize",
    "dataType",
    "compression",
    "compressionType",
    "n5",
    "axes",
    "units",
    "resolution",
    "pixelResolution",
    "downsamplingFactors",
    "scales",
    "transform",
];

/// Checks that the scanner accepts the same JSON as serde_json, within the limits, and that kept members and copied
/// text have the same meaning.
fn scanned(bytes: &[u8]) {
    let text = attributes_text(bytes);
    let is_json = !text.is_empty() && serde_json::from_str::<IgnoredAny>(text).is_ok();
    let whole = serde_json::from_str::<Value>(text).ok();
    let copied = JsonObjectBuilder::from_matching(bytes, |_| true).into_text();
    let document = match AttributesDocument::parse(bytes) {
        Ok(document) => document,
        // serde_json limits the depth differently.
        Err(DocumentError::TooLarge(_)) => return,
        Err(DocumentError::NotAnObject(_)) => return assert!(is_json && !whole.is_some_and(|whole| whole.is_object())),
        Err(DocumentError::Syntax(error)) => return assert!(!is_json, "{error}"),
    };
    assert!(is_json, "{text}");
    assert!(document.tree_bytes() <= MAX_INTERPRETED_BYTES);
    assert!(serde_json::from_str::<IgnoredAny>(&copied).is_ok() && copied.len() <= text.len(), "{copied}");
    // serde_json refuses numbers beyond the range of `f64` and unpaired surrogates.
    let Some(whole) = whole else { return };
    assert_eq!(serde_json::from_str::<Value>(&copied).unwrap(), whole);
    let is_unread = |name: &str| document.unreadable().iter().any(|(unread, _)| *unread == name);
    for name in WHOLE.into_iter().filter(|name| !is_unread(name)) {
        assert_eq!(document.members().get(name), whole.get(name), "{name}");
    }
}

fn own_alone(document: &AttributesDocument) {
    for text in document.members().values().filter_map(Value::as_str) {
        if let Some(unit) = Unit::parse(text) {
            assert!(unit.nanometers().is_none_or(f64::is_finite), "{text}");
            drop((unit.si_symbol(), unit.si_scaled(), unit.ngff_name()));
        }
    }
    let Ok(dataset) = DescribedDataset::parse(document.clone()) else { return };
    assert!(document.describes_dataset());
    assert_eq!(dataset.dimensions().len(), dataset.block_size().len());
    drop((codec_equivalents(&dataset), compression_with_defaults(dataset.compression())));
    strict(&dataset);
}

/// Checks that the canonical attributes, written for the strictest readers, have the same meaning, and that writing
/// them a second time changes nothing.
fn strict(dataset: &DescribedDataset) {
    let written = |dataset: &DescribedDataset| {
        let space = CoordinateSpace::of_dataset(dataset, &[]);
        canonical_attributes(dataset, &space, dataset.data_type(), json!({ "type": "raw" }), None).0
    };
    let mut once = written(dataset);
    let text = Value::Object(once.clone()).to_string();
    let again = DescribedDataset::parse(AttributesDocument::parse(text.as_bytes()).unwrap()).unwrap();
    assert_eq!(again.dimensions(), dataset.dimensions());
    assert_eq!(again.data_type(), dataset.data_type());
    // Unknown units are written as empty strings, so that no reader takes them for nanometres. Read again, they are
    // absent.
    if once.get("units").and_then(Value::as_array).is_some_and(|units| units.iter().all(|unit| *unit == "")) {
        once.remove("units");
    }
    assert_eq!(written(&again), once, "written twice");
}

fn described(node: &Node) {
    let description = describe(node);
    let text = serde_json::to_string(&description).expect("a description is JSON");
    assert!(serde_json::from_str::<Value>(&text).is_ok_and(|value| value.is_object()));
    assert!(description.problems.len() < 10_000, "{} problems", description.problems.len());
    if let Some(NeuroglancerSource::Reencoded(Some(data_type))) = recommended_source(node, &description) {
        assert!(data_type.size_bytes().is_some());
    }
    let _ = volume_kind(node, "a/labels");
    if let Some(found) = pyramid(node, &mut Vec::new()) {
        assert!(!found.levels.is_empty() && found.levels.len() <= n5_metadata::MAX_LEVELS);
        drop(canonical_group_attributes(&found));
        for level in 0..found.levels.len() {
            drop(CoordinateSpace::of_level(&found, level));
        }
    }
}
