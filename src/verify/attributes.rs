//! What is wrong with attributes: of a directory alone, for each program that reads it, and beside its siblings.

use super::finding::{Finding, Kind};
use super::patience::Patience;
use crate::container::{Container, GroupState, ReadError};
use crate::metadata::{self, About, Description, Node, Problem, Pyramid};
use crate::n5::DocumentError;
use crate::store::Key;
use crate::view;

/// Everything that is to be said of the attributes of the directory at `key`.
pub(super) async fn findings(
    container: &Container,
    patience: &Patience,
    key: &Key,
    state: Result<&GroupState, &ReadError>,
) -> Vec<Finding> {
    let find = |kind, message: String| Finding::new(kind, key.as_str(), message);
    if let Some(fault) = fault(key, state) {
        return vec![fault];
    }
    let known = match patience.with(|| view::read_node(container, container.resources().begin(), key)).await {
        Ok(known) => known,
        // The walk says so when it comes to what is in it.
        Err(ReadError::Store(error)) if error.hides() => return Vec::new(),
        Err(error) => return vec![find(Kind::UnreadableDirectory, error.to_string())],
    };
    let description = metadata::describe(&known.node);
    let mut findings: Vec<Finding> =
        description.problems.iter().filter_map(|problem| of_problem(key, &description, problem)).collect();
    findings.extend(known.problems.into_iter().map(|problem| find(Kind::UnusualAttributes, problem)));
    if let Ok(GroupState::Dataset(dataset)) = state {
        let (compression, data_type) = (dataset.attributes.compression(), dataset.attributes.data_type());
        if compression.codec().is_none() {
            let text = format!("the compression {:?} is not decoded", compression.name());
            findings.push(find(Kind::UnknownCompression, text));
        }
        if data_type.size_bytes().is_none() {
            let text = format!("the data type {:?} is not decoded", data_type.name());
            findings.push(find(Kind::UnknownDataType, text));
        }
    }
    if let Some(pyramid) = &description.multiscale {
        findings.extend(sizes(&known.node, pyramid).into_iter().map(|text| find(Kind::InconsistentLevel, text)));
    }
    findings
}

/// Why the attributes of the directory at `key` cannot be used at all.
pub(super) fn fault(key: &Key, state: Result<&GroupState, &ReadError>) -> Option<Finding> {
    let (kind, message) = match state {
        Err(error @ ReadError::AttributesTooLarge { .. }) => (Kind::OversizedAttributes, error.to_string()),
        Err(error) => (Kind::UnreadableFile, error.to_string()),
        Ok(GroupState::Broken(error @ DocumentError::TooLarge(_))) => (Kind::OversizedAttributes, error.to_string()),
        Ok(GroupState::Broken(error)) => (Kind::BrokenAttributes, error.to_string()),
        Ok(GroupState::Unusable(_, reason)) => (Kind::UnusableAttributes, reason.clone()),
        Ok(GroupState::NoAttributes | GroupState::Attributes(_) | GroupState::Dataset(_)) => return None,
    };
    Some(Finding::new(kind, key.as_str(), message))
}

/// A problem that `/info` tells, in terms of this report; `None` for what is said elsewhere.
fn of_problem(key: &Key, description: &Description, problem: &Problem) -> Option<Finding> {
    let (kind, client) = match problem.about {
        // Of a level its own dataset tells.
        About::Undecoded | About::Mended | About::DatasetOfLevel => return None,
        About::RefusedBy(client) => (Kind::RefusedByClient, Some(client)),
        About::NoDataset => (Kind::UnusableAttributes, None),
        About::Level if description.multiscale.is_some() => (Kind::InconsistentLevel, None),
        About::Level | About::Other => (Kind::UnusualAttributes, None),
    };
    Some(Finding { client, ..Finding::new(kind, key.as_str(), &**problem) })
}

/// Levels whose size is not that of the finest one divided by their factors, give or take one element.
fn sizes(node: &Node, pyramid: &Pyramid) -> Vec<String> {
    let Some((first, rest)) = pyramid.levels.split_first() else { return Vec::new() };
    let Some(finest) = node.dataset_below(&first.path) else { return Vec::new() };
    let mut told = Vec::new();
    for level in rest {
        let Some(dataset) = node.dataset_below(&level.path) else { continue };
        #[expect(clippy::cast_precision_loss, reason = "sizes are compared roughly")]
        let fits =
            dataset.dimensions().iter().zip(finest.dimensions()).zip(level.factors.iter().zip(&first.factors)).all(
                |((size, whole), (factor, base))| {
                    let expected = *whole as f64 * base / factor;
                    !expected.is_finite() || (*size as f64 - expected).abs() <= 1.0 + expected / 100.0
                },
            );
        if !fits {
            let (size, whole) = (dataset.dimensions().as_slice(), finest.dimensions().as_slice());
            let (path, factors) = (&level.path, &level.factors);
            told.push(format!(
                "level {path} has the dimensions {size:?}, but level {} has {whole:?} and the factors are {factors:?}",
                first.path
            ));
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::n5::Document;

    fn document(value: &Value) -> Document {
        Document::parse(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn every_refusal_names_its_client() {
        let dataset = json!({"dimensions": [5], "blockSize": [5], "dataType": "bool", "compression": {"type": "jpeg"}});
        let node = Node { document: Some(Ok(document(&dataset))), ..Node::default() };
        let description = metadata::describe(&node);
        let found: Vec<_> =
            description.problems.iter().filter_map(|problem| of_problem(&Key::root(), &description, problem)).collect();
        let clients: Vec<&str> = found.iter().filter_map(|finding| finding.client).collect();
        assert_eq!(
            clients,
            ["Neuroglancer", "TensorStore", "N5 for Java", "zarr-python 2", "z5"],
            "{:?}",
            description.problems
        );
        assert!(found.iter().all(|finding| finding.kind == "refused-by-client"), "{found:?}");
    }

    #[test]
    fn levels_are_compared_with_the_finest() {
        let level = |size: u64| json!({"dimensions": [size, 64], "blockSize": [8, 8], "dataType": "uint8", "compression": {"type": "raw"}});
        let node = |second: u64| {
            let own = json!({"downsamplingFactors": [[1, 1], [2, 1]]});
            let children = vec!["s0".to_owned(), "s1".to_owned()];
            let mut node = Node { document: Some(Ok(document(&own))), children, ..Node::default() };
            for (path, size) in [("s0", 101), ("s1", second)] {
                node.child_documents.insert(path.to_owned(), document(&level(size)));
            }
            node
        };
        for (second, count) in [(50, 0), (51, 0), (64, 1), (101, 1)] {
            let node = node(second);
            let pyramid = metadata::describe(&node).multiscale.unwrap();
            assert_eq!(sizes(&node, &pyramid).len(), count, "{second}");
        }
    }
}
