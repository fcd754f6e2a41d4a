//! Metadata of everything below a group, for consolidated metadata.

use std::collections::HashMap;

use bytes::Bytes;

use super::lookup::ViewLookup;
use super::node::{COPY_MEMORY_FACTOR, read_document};
use super::omero::{ChannelPlan, ChannelWindow};
use super::zarr_node::{CopiedAttributes, ZarrNode, relative_path, reordered_levels};
use crate::cache::{GroupState, MemoryPermit, ReadError};
use crate::store::Key;
use n5_metadata::{CoordinateSpace, Node};

/// Maximum number of directories in one consolidated document.
const MAX_DIRECTORIES: usize = 500;

/// Approximate upper bound of the memory for one directory in bytes, in addition to the memory for its attributes.
const DIRECTORY_OVERHEAD_BYTES: u64 = 8 << 10;

/// Approximate upper bound of the memory for interpreted attributes and everything derived from them, as a multiple of
/// the memory for the interpreted attributes alone.
const TREE_MEMORY_FACTOR: u64 = 2;

/// Maximum total memory of all interpreted attributes, in bytes.
const MAX_TREE_BYTES: u64 = 16 << 20;
/// Maximum total length of the attributes of all nodes as text, in bytes.
const MAX_TEXT_BYTES: u64 = 4 << 20;

/// A directory that the survey found.
#[derive(Debug)]
struct SurveyedDirectory {
    key: Key,
    /// Index of the parent directory. The first directory has its own index.
    parent_index: usize,
    /// True if the directory is a dataset, so that everything below is a part of it.
    is_dataset: bool,
    /// True if the directory is a Zarr store, which is not a part of the N5 hierarchy.
    is_zarr_store: bool,
    /// Length of the text of the directory's attributes, in bytes.
    text_bytes: u64,
}

/// Returns the group `key` and every group and array below it, each with its path relative to `key`, and their memory
/// permit. Returns `None` if they are too many for one document or for the memory, or if some are hidden.
///
/// # Errors
/// Returns an error if the store fails or there is not enough memory.
pub(super) async fn read_subtree(
    lookup: &ViewLookup<'_>,
    key: &Key,
) -> Result<Option<(Vec<(String, ZarrNode)>, MemoryPermit)>, ReadError> {
    let Some((directories, memory_bytes)) = affordable_survey(lookup, key).await? else { return Ok(None) };
    let mut channels = HashMap::new();
    if directories.iter().any(|directory| directory.is_dataset) {
        // This request holds no attributes while it is waiting for memory, nor while it samples the images.
        let memory = lookup.container.reserve_memory(memory_bytes).await?;
        let plan_channels = Box::pin(async {
            let nodes = load_nodes(lookup, key, &directories).await?;
            channel_plans(lookup, key, &directories, nodes).await
        });
        let plans = lookup.container.abort_if_contended(key, plan_channels).await?;
        drop(memory);
        for (index, plan) in plans {
            let windows = plan.read_windows(lookup).await?;
            channels.insert(index, (plan, windows));
        }
    }
    let memory = lookup.container.reserve_memory(memory_bytes).await?;
    let read_zarr_nodes = Box::pin(async {
        let nodes = load_nodes(lookup, key, &directories).await?;
        zarr_nodes(lookup, key, &directories, nodes, &channels).await
    });
    let zarr_nodes = lookup.container.abort_if_contended(key, read_zarr_nodes).await?;
    Ok(Some((zarr_nodes, memory)))
}

/// Returns true if [`read_subtree`] returns nodes, unless something changes before.
///
/// # Errors
/// Returns an error if the store fails.
pub(super) async fn can_read_subtree(lookup: &ViewLookup<'_>, key: &Key) -> Result<bool, ReadError> {
    Ok(affordable_survey(lookup, key).await?.is_some())
}

/// Returns the result of [`survey`], or `None` if some directories are hidden or the memory is not enough.
async fn affordable_survey(
    lookup: &ViewLookup<'_>,
    key: &Key,
) -> Result<Option<(Vec<SurveyedDirectory>, u64)>, ReadError> {
    let budget_bytes = lookup.container.resources().settings().slice_budget;
    Ok(ReadError::hidden_as_none(survey(lookup, key).await)?.filter(|(_, bytes)| *bytes <= budget_bytes))
}

/// Loads the surveyed directories, beginning with `key`, without the levels of their pyramids.
async fn load_nodes(
    lookup: &ViewLookup<'_>,
    key: &Key,
    directories: &[SurveyedDirectory],
) -> Result<Vec<Node>, ReadError> {
    let mut outer_ancestors = Vec::new();
    for ancestor in std::iter::successors(key.parent(), Key::parent) {
        let document = read_document(lookup.container, lookup.options, &ancestor).await?;
        outer_ancestors.push(document.and_then(Result::ok).unwrap_or_default());
    }
    outer_ancestors.reverse();
    let mut nodes: Vec<Node> = Vec::with_capacity(directories.len());
    for directory in directories {
        let document = read_document(lookup.container, lookup.options, &directory.key).await?;
        // The first directory is its own parent, and is not among the nodes yet.
        let ancestors = match nodes.get_mut(directory.parent_index) {
            Some(parent) => {
                parent.children.extend(directory.key.name().map(str::to_owned));
                let mut ancestors = parent.ancestors.clone();
                ancestors.push(parent.document.clone().and_then(Result::ok).unwrap_or_default());
                ancestors
            }
            None => outer_ancestors.clone(),
        };
        nodes.push(Node { ancestors, document, ..Node::default() });
    }
    Ok(nodes)
}

/// Returns the Zarr nodes of the surveyed directories by path.
async fn zarr_nodes(
    lookup: &ViewLookup<'_>,
    key: &Key,
    directories: &[SurveyedDirectory],
    mut nodes: Vec<Node>,
    channels: &HashMap<usize, (ChannelPlan, Vec<ChannelWindow>)>,
) -> Result<Vec<(String, ZarrNode)>, ReadError> {
    let indices = indices_by_path(key, directories);
    let mut level_spaces = HashMap::new();
    let mut level_orders = HashMap::new();
    let mut zarr_nodes = Vec::new();
    for (index, directory) in directories.iter().enumerate().filter(|(_, directory)| !directory.is_zarr_store) {
        let path = relative_path(key, &directory.key);
        let index_of = |level: &str| index_below(&indices, path, level);
        add_child_documents(&mut nodes, index, index_of);
        let Some(node) = nodes.get(index) else { continue };
        if !directory.is_dataset
            && let Some(pyramid) = n5_metadata::pyramid(node, &mut Vec::new())
        {
            // The levels of a pyramid come after the pyramid, so their spaces are known when it is their turn.
            for (number, level) in pyramid.levels.iter().enumerate() {
                let space = || CoordinateSpace::of_level(&pyramid, number);
                level_spaces.extend(index_of(&level.path).map(|index| (index, space())));
            }
            let orders = reordered_levels(node, &pyramid);
            level_orders.extend(orders.filter_map(|(level, order)| Some((index_of(level)?, order))));
        }
        let copied = copy_attributes(lookup, directory, node).await?;
        let space = level_spaces.get(&index);
        if let Some(order) = level_orders.get(&index) {
            let reordered = ZarrNode::of(node, directory.key.name(), space, Some(*order), None, copied.clone());
            zarr_nodes.extend(reordered.map(|zarr_node| (order.name_of(path), zarr_node)));
        }
        let zarr_node = ZarrNode::of(node, directory.key.name(), space, None, channels.get(&index), copied);
        zarr_nodes.extend(zarr_node.map(|zarr_node| (path.to_owned(), zarr_node)));
    }
    Ok(zarr_nodes)
}

/// Returns the plans for describing the channels of the images among the directories, by index.
async fn channel_plans(
    lookup: &ViewLookup<'_>,
    key: &Key,
    directories: &[SurveyedDirectory],
    mut nodes: Vec<Node>,
) -> Result<Vec<(usize, ChannelPlan)>, ReadError> {
    let indices = indices_by_path(key, directories);
    let mut plans = Vec::new();
    for (index, directory) in directories.iter().enumerate().filter(|(_, directory)| !directory.is_dataset) {
        let path = relative_path(key, &directory.key);
        add_child_documents(&mut nodes, index, |level: &str| index_below(&indices, path, level));
        let Some(node) = nodes.get(index) else { continue };
        if n5_metadata::pyramid(node, &mut Vec::new()).is_none() {
            continue;
        }
        let copied = copy_attributes(lookup, directory, node).await?;
        plans.extend(copied.channel_plan(node, &directory.key).map(|plan| (index, plan)));
    }
    Ok(plans)
}

/// Copies the attributes of a directory for its Zarr node.
async fn copy_attributes(
    lookup: &ViewLookup<'_>,
    directory: &SurveyedDirectory,
    node: &Node,
) -> Result<CopiedAttributes, ReadError> {
    let is_dataset = node.is_dataset();
    let text = match directory.text_bytes {
        0 => Bytes::new(),
        bytes => lookup.container.attributes_bytes(lookup.options, &directory.key, bytes).await?,
    };
    let text_bytes = text.len();
    lookup.container.run_document_job(text_bytes, move || CopiedAttributes::of(&text, is_dataset)).await
}

/// Returns the indices of the directories by their paths relative to `key`.
fn indices_by_path<'a>(key: &Key, directories: &'a [SurveyedDirectory]) -> HashMap<&'a str, usize> {
    let paths = directories.iter().map(|directory| relative_path(key, &directory.key));
    paths.enumerate().map(|(index, path)| (path, index)).collect()
}

/// Returns the index of the directory at `level`, a path relative to the directory at `path`.
fn index_below(indices: &HashMap<&str, usize>, path: &str, level: &str) -> Option<usize> {
    let joined = if path.is_empty() { level.to_owned() } else { format!("{path}/{level}") };
    indices.get(joined.as_str()).copied()
}

/// Adds the loaded documents at the required paths to the node at `index`. `index_of` returns the index of the node at
/// a path relative to this node.
fn add_child_documents(nodes: &mut [Node], index: usize, index_of: impl Fn(&str) -> Option<usize>) {
    let required = nodes.get(index).map(n5_metadata::required_paths).unwrap_or_default();
    for path in required {
        let child = index_of(&path).and_then(|child| nodes.get(child)?.document.clone());
        if let (Some(node), Some(Ok(document))) = (nodes.get_mut(index), child) {
            node.child_documents.insert(path, document);
        }
    }
}

/// Finds `key` and all directories below it, each after its parent, and measures their attributes without keeping them.
/// Also returns the memory in bytes that their nodes take. Returns `None` if there are too many directories or
/// attributes.
async fn survey(lookup: &ViewLookup<'_>, key: &Key) -> Result<Option<(Vec<SurveyedDirectory>, u64)>, ReadError> {
    let new_directory = |key, parent_index| SurveyedDirectory {
        key,
        parent_index,
        is_dataset: false,
        is_zarr_store: false,
        text_bytes: 0,
    };
    let mut directories = vec![new_directory(key.clone(), 0)];
    let mut all_text_bytes = 0;
    // Memory of all interpreted attributes, including those of the directories above `key`.
    let mut all_tree_bytes = 0;
    for ancestor in std::iter::successors(key.parent(), Key::parent) {
        let group = lookup.container.group_if_readable(lookup.options, &ancestor).await?;
        all_tree_bytes += group.map_or(0, |group| group.tree_bytes());
    }
    let mut next_index = 0;
    while let Some(directory_key) = directories.get(next_index).map(|directory| directory.key.clone()) {
        let (is_dataset, may_be_dataset, text_bytes, tree_bytes) =
            match lookup.container.group(lookup.options, &directory_key).await {
                Ok(group) => {
                    let is_dataset = matches!(group.state, GroupState::Dataset(_) | GroupState::Unusable(..));
                    let may_be_dataset = matches!(group.state, GroupState::Broken(_));
                    (is_dataset, may_be_dataset, group.text_bytes(), group.tree_bytes())
                }
                // A directory with attributes that are too large to be parsed counts as a group without attributes.
                Err(ReadError::AttributesTooLarge { .. }) => (false, true, 0, 0),
                Err(error) => return Err(error),
            };
        all_text_bytes += text_bytes;
        all_tree_bytes += tree_bytes;
        if all_text_bytes > MAX_TEXT_BYTES || all_tree_bytes > MAX_TREE_BYTES {
            return Ok(None);
        }
        if let Some(directory) = directories.get_mut(next_index) {
            (directory.is_dataset, directory.text_bytes) = (is_dataset, text_bytes);
        }
        if !is_dataset {
            // The directories of blocks of an unreadable dataset are no groups.
            let with_numbers = !may_be_dataset;
            let children = lookup.container.subdirectories(&directory_key, None, MAX_DIRECTORIES, with_numbers).await?;
            let children = children.unwrap_or_default();
            if children.zarr.is_some() {
                if let Some(directory) = directories.get_mut(next_index) {
                    directory.is_zarr_store = true;
                }
            } else {
                let keys = children.names.iter().filter_map(|name| directory_key.child(name).ok());
                directories.extend(keys.map(|key| new_directory(key, next_index)));
            }
        }
        if directories.len() > MAX_DIRECTORIES {
            return Ok(None);
        }
        next_index += 1;
    }
    let overhead_bytes = (directories.len() as u64).saturating_mul(DIRECTORY_OVERHEAD_BYTES);
    let tree_bytes = all_tree_bytes.saturating_mul(TREE_MEMORY_FACTOR);
    // Levels with reordered axes are copied twice.
    let text_bytes = all_text_bytes.saturating_mul(2 * COPY_MEMORY_FACTOR);
    Ok(Some((directories, text_bytes.saturating_add(tree_bytes).saturating_add(overhead_bytes))))
}
