//! Everything below a group, for consolidated metadata.

use std::collections::HashMap;

use bytes::Bytes;

use super::super::node::COPIED_FACTOR;
use super::{Item, Repeated, is_dataset};
use crate::container::{GroupState, Memory, ReadError};
use crate::metadata::{self, Node, Space};
use crate::n5::Document;
use crate::store::Key;
use crate::view::Lookup;

/// Most directories that are described together.
const DIRECTORIES: usize = 500;

/// What is made of a directory takes at most about this much besides [`TREE_FACTOR`] and [`COPIED_FACTOR`].
const DIRECTORY_BYTES: u64 = 8 << 10;

/// Interpreted attributes and what is made of them take at most about this many times the memory of the attributes alone.
const TREE_FACTOR: u64 = 2;

/// Most bytes that the interpreted attributes of all take, and most that their text has.
const MOST_TREE_BYTES: u64 = 16 << 20;
const MOST_TEXT_BYTES: u64 = 4 << 20;

/// A directory that was found.
#[derive(Debug)]
struct Spot {
    key: Key,
    /// Number of the directory above; its own number for the first.
    above: usize,
    /// Whether anything below belongs to it.
    is_dataset: bool,
    /// Length of its attributes.
    text_bytes: u64,
}

/// What has been surveyed: every directory after the one above it.
#[derive(Debug)]
struct Survey {
    spots: Vec<Spot>,
    /// Bytes of the text of all attributes.
    text_bytes: u64,
    /// Bytes of all that is interpreted of them, those above the first directory included.
    tree_bytes: u64,
}

impl Survey {
    fn bytes(&self) -> u64 {
        let directories = (self.spots.len() as u64).saturating_mul(DIRECTORY_BYTES);
        let trees = self.tree_bytes.saturating_mul(TREE_FACTOR);
        self.text_bytes.saturating_mul(COPIED_FACTOR).saturating_add(trees).saturating_add(directories)
    }
}

/// Every group and array from the group `lookup.key` down, by its path relative to it (`""` for itself), with the
/// share of memory that stands for them. `None` where there are more than belong in one document, or than there is memory for,
/// or some cannot be seen.
///
/// # Errors
/// [`ReadError`] when the store fails or memory is short.
pub(in super::super) async fn tree(
    lookup: &Lookup<'_>,
    key: &Key,
) -> Result<Option<(Vec<(String, Item)>, Memory)>, ReadError> {
    let budget_bytes = lookup.container.resources().settings().slice_budget;
    let survey = ReadError::or_hidden(survey(lookup, key).await)?.filter(|survey| survey.bytes() <= budget_bytes);
    let Some(survey) = survey else { return Ok(None) };
    // Nothing of what was read is held while this waits.
    let memory = lookup.container.reserve(survey.bytes()).await?;
    let items = lookup.container.unless_needed(key, Box::pin(read_items(lookup, key, &survey))).await?;
    Ok(Some((items, memory)))
}

/// Reads and describes what was surveyed below `key`.
async fn read_items(lookup: &Lookup<'_>, key: &Key, survey: &Survey) -> Result<Vec<(String, Item)>, ReadError> {
    let mut above = Vec::new();
    let mut ancestor = key.parent();
    while let Some(at) = ancestor {
        above.push(document(lookup, &at).await?.and_then(Result::ok).unwrap_or_default());
        ancestor = at.parent();
    }
    above.reverse();
    let mut nodes: Vec<Node> = Vec::with_capacity(survey.spots.len());
    for (number, spot) in survey.spots.iter().enumerate() {
        let mut ancestors = above.clone();
        if let Some(parent) = nodes.get(spot.above).filter(|_| number > 0) {
            ancestors.clone_from(&parent.ancestors);
            ancestors.push(parent.document.clone().and_then(Result::ok).unwrap_or_default());
        }
        nodes.push(Node { ancestors, document: document(lookup, &spot.key).await?, ..Node::default() });
        let name = spot.key.name().map(str::to_owned);
        if let (Some(parent), Some(name)) = (nodes.get_mut(spot.above).filter(|_| number > 0), name) {
            parent.children.push(name);
        }
    }
    let paths: Vec<String> = survey.spots.iter().map(|spot| below(key, &spot.key).to_owned()).collect();
    let numbers: HashMap<&str, usize> =
        paths.iter().enumerate().map(|(number, path)| (path.as_str(), number)).collect();
    let mut levels: HashMap<usize, Space> = HashMap::new();
    let mut items = Vec::new();
    for (number, spot) in survey.spots.iter().enumerate() {
        let path = paths.get(number).map_or("", String::as_str);
        let at = |level: &str| {
            let joined = if path.is_empty() { level.to_owned() } else { format!("{path}/{level}") };
            numbers.get(joined.as_str()).copied()
        };
        let mut documents = Vec::new();
        if let Some(node) = nodes.get(number) {
            for level in metadata::wanted(node) {
                if let Some(Ok(document)) = at(&level).and_then(|n| nodes.get(n)?.document.clone()) {
                    documents.push((level, document));
                }
            }
        }
        let Some(node) = nodes.get_mut(number) else { continue };
        node.child_documents.extend(documents);
        if !spot.is_dataset
            && let Some(pyramid) = metadata::pyramid(node, &mut Vec::new())
        {
            for (level, found) in pyramid.levels.iter().enumerate() {
                let space = Space::of_level(&pyramid, level);
                if let Some(number) = at(&found.path).filter(|_| space.known) {
                    levels.insert(number, space);
                }
            }
        }
        let copy = if is_dataset(node) { Repeated::of_array } else { Repeated::of_group };
        let text = match spot.text_bytes {
            0 => Bytes::new(),
            bytes => lookup.container.attributes_bytes(lookup.access, &spot.key, bytes).await?,
        };
        let repeated = lookup.container.work_on(text.len(), move || copy(&text)).await?;
        if let Some(item) = Item::of(node, spot.key.name(), levels.get(&number), repeated) {
            items.push((path.to_owned(), item));
        }
    }
    Ok(items)
}

/// Looks what there is, without holding what it reads.
async fn survey(lookup: &Lookup<'_>, key: &Key) -> Result<Option<Survey>, ReadError> {
    let spot = |key, above| Spot { key, above, is_dataset: false, text_bytes: 0 };
    let mut survey = Survey { spots: vec![spot(key.clone(), 0)], text_bytes: 0, tree_bytes: 0 };
    let mut ancestor = key.parent();
    while let Some(at) = ancestor {
        let group = lookup.container.group_if_readable(lookup.access, &at).await?;
        survey.tree_bytes += group.map_or(0, |group| group.tree_bytes());
        ancestor = at.parent();
    }
    let mut next = 0;
    while let Some(at) = survey.spots.get(next).map(|spot| spot.key.clone()) {
        let (is_dataset, text_bytes, tree_bytes) = match lookup.container.group(lookup.access, &at).await {
            Ok(group) => {
                let is_dataset = matches!(group.state, GroupState::Dataset(_) | GroupState::Unusable(..));
                (is_dataset, group.text_bytes(), group.tree_bytes())
            }
            // Beyond what is parsed: a group without attributes.
            Err(ReadError::AttributesTooLarge { .. }) => (false, 0, 0),
            Err(error) => return Err(error),
        };
        survey.text_bytes += text_bytes;
        survey.tree_bytes += tree_bytes;
        if survey.text_bytes > MOST_TEXT_BYTES || survey.tree_bytes > MOST_TREE_BYTES {
            return Ok(None);
        }
        if let Some(spot) = survey.spots.get_mut(next) {
            (spot.is_dataset, spot.text_bytes) = (is_dataset, text_bytes);
        }
        if !is_dataset {
            let names = lookup.container.directories(&at, DIRECTORIES).await?.unwrap_or_default();
            let keys = names.iter().filter_map(|name| at.child(name).ok());
            survey.spots.extend(keys.map(|key| spot(key, next)));
        }
        if survey.spots.len() > DIRECTORIES {
            return Ok(None);
        }
        next += 1;
    }
    Ok(Some(survey))
}

async fn document(
    lookup: &Lookup<'_>,
    key: &Key,
) -> Result<Option<Result<Document, crate::n5::DocumentError>>, ReadError> {
    let group = lookup.container.group_if_readable(lookup.access, key).await?;
    Ok(group.and_then(|group| group.document()))
}

/// The path of `key` relative to `group`, which it begins with.
fn below<'a>(group: &Key, key: &'a Key) -> &'a str {
    key.as_str().strip_prefix(group.as_str()).unwrap_or_default().trim_start_matches('/')
}
