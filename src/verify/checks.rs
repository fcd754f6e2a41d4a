//! Findings about attributes and about blocks. Attributes are checked on their own, for each program that reads them,
//! and between the levels of a pyramid. Findings about blocks come from decode errors or from decoded elements.

use super::finding::{Finding, FindingKind};
use super::retry::StorageRetry;
use crate::cache::{Dataset, GroupState, ReadError, ReadOptions};
use crate::config::most_similar;
use crate::container::Container;
use crate::read::ValidBlock;
use crate::store::Key;
use crate::view;
use n5_format::{BlockError, BlockMode, CodecError, DocumentError, GridPosition};
use n5_metadata::{Description, MetadataProblem, MetadataProblemKind, Node, Pyramid};

/// Minimum similarity of the name of an unknown codec and that of a known one, from 0 to 1, at which the name is taken for
/// a typing error.
const MIN_SIMILARITY: f64 = 0.75;

/// Returns all findings about the attributes of the directory at `key`.
pub(super) async fn attribute_findings(
    container: &Container,
    retry: &StorageRetry,
    key: &Key,
    state: Result<&GroupState, &ReadError>,
) -> Vec<Finding> {
    let new_finding = |kind, message: String| Finding::new(kind, key.as_str(), message);
    if let Some(finding) = unusable_finding(key, state) {
        return vec![finding];
    }
    let loaded = match retry.run(|| view::read_node(container, ReadOptions::begin(), key)).await {
        Ok(loaded) => loaded,
        // The walk reports this error when it reaches the entries of the directory.
        Err(ReadError::Store(error)) if error.hides_object() => return Vec::new(),
        Err(error) => return vec![new_finding(FindingKind::UnreadableDirectory, error.to_string())],
    };
    let description = n5_metadata::describe(&loaded.node);
    let mut findings: Vec<Finding> =
        description.problems.iter().filter_map(|problem| finding_of_problem(key, &description, problem)).collect();
    findings.extend(loaded.problems.into_iter().map(|problem| new_finding(FindingKind::UnusualAttributes, problem)));
    if let Ok(GroupState::Dataset(dataset)) = state {
        let compression = dataset.attributes.compression();
        let data_type = dataset.attributes.data_type();
        if compression.codec().is_none() {
            let name = compression.name();
            let nearest = most_similar(name, container.resources().codecs().names(), MIN_SIMILARITY);
            let suggestion = nearest.map_or_else(String::new, |known| format!("; did the writer mean {known:?}?"));
            let message = format!("compression {name:?} is not supported, so its blocks cannot be decoded{suggestion}");
            // The programs that refuse this compression, too, are not listed: they would hide this finding.
            let refused_words = format!("compression {name:?}");
            findings.retain(|finding| finding.client.is_none() || !finding.message.contains(&refused_words));
            findings.push(new_finding(FindingKind::UnknownCompression, message));
        }
        if data_type.size_bytes().is_none() {
            let message = format!("data type {:?} is not supported, so its blocks cannot be decoded", data_type.name());
            findings.push(new_finding(FindingKind::UnknownDataType, message));
        }
    }
    if let Some(pyramid) = &description.multiscale {
        findings.extend(
            inconsistent_level_sizes(&loaded.node, pyramid)
                .into_iter()
                .map(|message| new_finding(FindingKind::InconsistentLevel, message)),
        );
    }
    findings
}

/// Returns a finding if the attributes of the directory at `key` cannot be used at all.
pub(super) fn unusable_finding(key: &Key, state: Result<&GroupState, &ReadError>) -> Option<Finding> {
    let (kind, message) = match state {
        Err(error @ ReadError::AttributesTooLarge { .. }) => (FindingKind::OversizedAttributes, error.to_string()),
        Err(error) => (FindingKind::UnreadableFile, error.to_string()),
        Ok(GroupState::Broken(error @ DocumentError::TooLarge(_))) => {
            (FindingKind::OversizedAttributes, error.to_string())
        }
        Ok(GroupState::Broken(error)) => (FindingKind::BrokenAttributes, error.to_string()),
        Ok(GroupState::Unusable(_, reason)) => (FindingKind::UnusableAttributes, reason.clone()),
        Ok(GroupState::NoAttributes | GroupState::Attributes(_) | GroupState::Dataset(_)) => return None,
    };
    Some(Finding::new(kind, key.as_str(), message))
}

/// Converts a problem that `/info` reports to a finding. Returns `None` if another finding covers the problem.
fn finding_of_problem(key: &Key, description: &Description, problem: &MetadataProblem) -> Option<Finding> {
    let (kind, client) = match problem.kind {
        // The walk reports problems of a level at the level's own dataset.
        MetadataProblemKind::Undecoded | MetadataProblemKind::Normalized | MetadataProblemKind::DatasetOfLevel => {
            return None;
        }
        MetadataProblemKind::RefusedBy(client) => (FindingKind::RefusedByClient, Some(client)),
        MetadataProblemKind::InvalidDataset => (FindingKind::UnusableAttributes, None),
        MetadataProblemKind::InvalidLevel if description.multiscale.is_some() => (FindingKind::InconsistentLevel, None),
        MetadataProblemKind::InvalidLevel | MetadataProblemKind::Other => (FindingKind::UnusualAttributes, None),
    };
    Some(Finding { client, ..Finding::new(kind, key.as_str(), &**problem) })
}

/// Returns a message for each level whose size is not that of the finest level divided by the level's factors. The
/// tolerance is one element plus 1 %.
fn inconsistent_level_sizes(node: &Node, pyramid: &Pyramid) -> Vec<String> {
    let Some((first, coarser_levels)) = pyramid.levels.split_first() else { return Vec::new() };
    let Some(finest) = node.dataset_below(&first.path) else { return Vec::new() };
    let mut messages = Vec::new();
    for level in coarser_levels {
        let Some(dataset) = node.dataset_below(&level.path) else { continue };
        #[expect(clippy::cast_precision_loss, reason = "sizes are compared approximately")]
        let is_consistent =
            dataset.dimensions().iter().zip(finest.dimensions()).zip(level.factors.iter().zip(&first.factors)).all(
                |((size, finest_size), (factor, base))| {
                    let expected = *finest_size as f64 * base / factor;
                    !expected.is_finite() || (*size as f64 - expected).abs() <= 1.0 + expected / 100.0
                },
            );
        if !is_consistent {
            messages.push(format!(
                "level {} has the dimensions {:?}, but level {} has {:?} and the factors are {:?}",
                level.path,
                dataset.dimensions().as_slice(),
                first.path,
                finest.dimensions().as_slice(),
                level.factors
            ));
        }
    }
    messages
}

/// Returns a finding if a block was decoded but is unusual.
pub(super) fn decoded_block_finding(dataset: &Dataset, position: &GridPosition, block: &ValidBlock) -> Option<Finding> {
    let new_finding = |kind, message: String| Some(block_finding(kind, dataset, position, message));
    let cell_size = dataset.attributes.grid().clipped_size(position);
    if block.size.iter().zip(&cell_size).any(|(size, min_size)| size < min_size) {
        let message = format!(
            "the block has the size {:?}, but its grid cell has the size {:?}",
            block.size.as_slice(),
            cell_size.as_slice()
        );
        return new_finding(FindingKind::SmallBlock, message);
    }
    match block.mode {
        Some(BlockMode::VarLength) => {
            new_finding(FindingKind::VarlengthBlock, "the block is of mode 1 (varlength)".to_owned())
        }
        Some(BlockMode::Default | BlockMode::Object) | None => None,
    }
}

/// Returns the finding for a block that could not be read or decoded.
pub(super) fn failed_block_finding(dataset: &Dataset, position: &GridPosition, error: &ReadError) -> Finding {
    let block = match error {
        ReadError::Block { error, .. } => error,
        ReadError::StoredTooLarge { bytes, .. } => {
            let needed_bytes = bytes.saturating_mul(2);
            return over_budget_finding(dataset, position, error.to_string(), needed_bytes);
        }
        ReadError::NotFound(_)
        | ReadError::NotADataset { .. }
        | ReadError::AttributesTooLarge { .. }
        | ReadError::TooLarge(_)
        | ReadError::InvalidParameter { .. }
        | ReadError::NotRepresentable(_)
        | ReadError::Convert(_)
        | ReadError::Store(_)
        | ReadError::Budget(_)
        | ReadError::Internal(_) => {
            return block_finding(FindingKind::UnreadableFile, dataset, position, error.to_string());
        }
    };
    let kind = match block {
        BlockError::ShortHeader { bytes: 0, .. } => FindingKind::EmptyBlock,
        BlockError::ShortHeader { .. } | BlockError::Implausible { .. } => FindingKind::TruncatedBlock,
        BlockError::UnknownMode(_) => FindingKind::UnknownMode,
        BlockError::Rank { .. } => FindingKind::WrongRank,
        BlockError::TooLargeForGrid { .. } => FindingKind::OversizedBlock,
        BlockError::Unsupported(_) => FindingKind::UndecodableBlock,
        BlockError::OverLimit { needed_bytes, .. } => {
            return over_budget_finding(dataset, position, block.to_string(), *needed_bytes);
        }
        BlockError::Payload(codec_error) => match codec_error {
            CodecError::Damaged { .. } => FindingKind::CorruptBlock,
            CodecError::WrongLength { .. } => FindingKind::WrongLength,
            CodecError::Trailing { .. } => FindingKind::TrailingBytes,
            CodecError::Memory { .. } | CodecError::Encode { .. } => FindingKind::UndecodableBlock,
            CodecError::Cancelled => FindingKind::UnreadableFile,
        },
    };
    block_finding(kind, dataset, position, block.to_string())
}

/// Returns the finding about a block that was listed but could not be read. `is_there` is true if the file still
/// exists.
pub(super) fn vanished_block_finding(dataset: &Dataset, position: &GridPosition, is_there: bool) -> Finding {
    let message = if is_there {
        "permission to read the block is denied"
    } else {
        "the block was removed before it could be read"
    };
    block_finding(FindingKind::UnreadableFile, dataset, position, message.to_owned())
}

fn over_budget_finding(dataset: &Dataset, position: &GridPosition, message: String, needed_bytes: u64) -> Finding {
    let mebibytes = needed_bytes.div_ceil(1 << 20);
    let advice = format!("verify again with more memory: --set limits.decode_budget={mebibytes}MiB");
    Finding { advice, ..block_finding(FindingKind::UnverifiedBlock, dataset, position, message) }
}

fn block_finding(kind: FindingKind, dataset: &Dataset, position: &GridPosition, message: String) -> Finding {
    let key = dataset.block_key(position);
    Finding::new(kind, key.as_str(), message).in_dataset(dataset.key.as_str()).at_position(position)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use n5_format::AttributesDocument;

    fn document(value: &Value) -> AttributesDocument {
        AttributesDocument::parse(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn every_refusal_names_its_client() {
        let dataset = json!({"dimensions": [5], "blockSize": [5], "dataType": "bool", "compression": {"type": "jpeg"}});
        let node = Node { document: Some(Ok(document(&dataset))), ..Node::default() };
        let description = n5_metadata::describe(&node);
        let findings: Vec<_> = description
            .problems
            .iter()
            .filter_map(|problem| finding_of_problem(&Key::root(), &description, problem))
            .collect();
        let clients: Vec<&str> = findings.iter().filter_map(|finding| finding.client).collect();
        assert_eq!(
            clients,
            ["Neuroglancer", "TensorStore", "N5 for Java", "zarr-python 2", "z5"],
            "{:?}",
            description.problems
        );
        assert!(findings.iter().all(|finding| finding.kind == "refused-by-client"), "{findings:?}");
    }

    #[test]
    fn levels_are_compared_with_the_finest() {
        let level = |size: u64| json!({"dimensions": [size, 64], "blockSize": [8, 8], "dataType": "uint8", "compression": {"type": "raw"}});
        let node = |second: u64| {
            let attributes = json!({"downsamplingFactors": [[1, 1], [2, 1]]});
            let children = vec!["s0".to_owned(), "s1".to_owned()];
            let mut node = Node { document: Some(Ok(document(&attributes))), children, ..Node::default() };
            for (path, size) in [("s0", 101), ("s1", second)] {
                node.child_documents.insert(path.to_owned(), document(&level(size)));
            }
            node
        };
        for (second, count) in [(50, 0), (51, 0), (64, 1), (101, 1)] {
            let node = node(second);
            let pyramid = n5_metadata::describe(&node).multiscale.unwrap();
            assert_eq!(inconsistent_level_sizes(&node, &pyramid).len(), count, "{second}");
        }
    }
}
