//! `attributes.json`: parsing, and everything that is made of it.
//!
//! Input: documents separated by lines of `---`: the group's or dataset's own, its parent's, then those of what it asks
//! for below, in turn.

use n5_server::metadata::{
    Node, Recommended, Space, Unit, canonical, canonical_group, codec_forms, compression_with_defaults, describe,
    pyramid, recommended, volume, wanted,
};
use n5_server::n5::{DatasetAttributes, Document};
use serde_json::{Value, json};

pub(crate) fn run(data: &[u8]) {
    let documents = parts(data);
    let own = Document::parse(documents[0]);
    let parent = documents.get(1).and_then(|bytes| Document::parse(bytes).ok());
    let below: Vec<Document> = documents.iter().skip(2).filter_map(|bytes| Document::parse(bytes).ok()).collect();
    if let Ok(own) = &own {
        own_alone(own);
    }
    let children = ["s0", "s1", "setup0", "timepoint0", "data", "0"].map(str::to_owned).to_vec();
    let mut node = Node { ancestors: parent.into_iter().collect(), document: Some(own), children, ..Node::default() };
    let paths = wanted(&node);
    assert!(paths.len() <= n5_server::metadata::MAX_LEVELS);
    for (at, path) in paths.into_iter().enumerate() {
        assert!(path.split('/').all(n5_server::store::Key::is_segment), "{path:?} is no path");
        if let Some(document) = below.get(at % below.len().max(1)) {
            node.child_documents.insert(path, document.clone());
        }
    }
    described(&node);
}

/// The documents of an input; at least one.
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

fn own_alone(document: &Document) {
    for text in document.members().values().filter_map(Value::as_str) {
        if let Some(unit) = Unit::parse(text) {
            assert!(unit.nanometers().is_none_or(f64::is_finite), "{text}");
            drop((unit.si(), unit.si_scaled(), unit.ngff()));
        }
    }
    let Ok(dataset) = DatasetAttributes::parse(document.clone()) else { return };
    assert!(document.describes_dataset() || dataset.rank() == 0 || !document.members().is_empty());
    assert_eq!(dataset.dimensions().len(), dataset.block_size().len());
    drop((codec_forms(&dataset), compression_with_defaults(dataset.compression())));
    strict(&dataset);
}

/// What is written for the strictest readers means the same, and is left as it is when it is read again.
fn strict(dataset: &DatasetAttributes) {
    let written = |dataset: &DatasetAttributes| {
        let space = Space::of_dataset(dataset, &[]);
        canonical(dataset, &space, dataset.data_type(), json!({ "type": "raw" }), None).0
    };
    let mut once = written(dataset);
    let text = Value::Object(once.clone()).to_string();
    let again = DatasetAttributes::parse(Document::parse(text.as_bytes()).unwrap()).unwrap();
    assert_eq!(again.dimensions(), dataset.dimensions());
    assert_eq!(again.data_type(), dataset.data_type());
    // Units that nobody understands are written as none, so that nobody takes them for nanometres; read again they are
    // none indeed.
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
    if let Some(Recommended::Reencoded(Some(data_type))) = recommended(node, &description) {
        assert!(data_type.size_bytes().is_some());
    }
    let _ = volume(node, "a/labels");
    if let Some(found) = pyramid(node, &mut Vec::new()) {
        assert!(!found.levels.is_empty() && found.levels.len() <= n5_server::metadata::MAX_LEVELS);
        drop(canonical_group(&found));
        for level in 0..found.levels.len() {
            drop(Space::of_level(&found, level));
        }
    }
}
