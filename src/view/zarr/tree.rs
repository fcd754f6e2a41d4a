//! Everything below a group, for consolidated metadata.

use std::collections::HashMap;

use super::{Item, most_text_bytes};
use crate::container::{ATTRIBUTES, GroupState, Memory, ReadError};
use crate::metadata::{self, Node, Space};
use crate::n5::Document;
use crate::store::Key;
use crate::view::Lookup;

/// Most directories that are described together.
const DIRECTORIES: usize = 500;

/// What is made of a directory takes at most about this much besides [`TEXT_FACTOR`].
const DIRECTORY_BYTES: u64 = 8 << 10;

/// Parsed attributes, what is made of them and the answer take at most about this many times the memory of
/// their text.
const TEXT_FACTOR: u64 = 64;

/// A directory that was found.
#[derive(Debug)]
struct Spot {
    key: Key,
    /// Number of the directory above; its own number for the first.
    above: usize,
    /// Whether anything below belongs to it.
    is_dataset: bool,
}

/// What has been surveyed: every directory after the one above it.
#[derive(Debug)]
struct Survey {
    spots: Vec<Spot>,
    /// Bytes of all attributes, those above the first directory included.
    text_bytes: u64,
}

/// Every group and array from the group `lookup.key` down, by its path relative to it (`""` for itself), with the
/// share of memory that stands for them. `None` where there are more than belong in one document, or some cannot be seen.
///
/// # Errors
/// [`ReadError`] when the store fails or memory is short.
pub(in super::super) async fn tree(
    lookup: &Lookup<'_>,
    key: &Key,
) -> Result<Option<(Vec<(String, Item)>, Memory)>, ReadError> {
    let Some(survey) = ReadError::or_hidden(survey(lookup, key).await)? else { return Ok(None) };
    let directories = survey.spots.len() as u64;
    let bytes = survey.text_bytes.saturating_mul(TEXT_FACTOR).saturating_add(directories * DIRECTORY_BYTES);
    // Nothing of what was read is held while this waits.
    let memory = lookup.container.reserve(bytes).await?;
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
        if let Some(item) = Item::of(node, spot.key.name(), levels.get(&number)) {
            items.push((path.to_owned(), item));
        }
    }
    Ok(items)
}

/// Looks what there is, without holding what it reads.
async fn survey(lookup: &Lookup<'_>, key: &Key) -> Result<Option<Survey>, ReadError> {
    let most = most_text_bytes(lookup.container);
    let mut survey = Survey { spots: vec![Spot { key: key.clone(), above: 0, is_dataset: false }], text_bytes: 0 };
    let mut ancestor = key.parent();
    while let Some(at) = ancestor {
        survey.text_bytes += ReadError::or_hidden(text_bytes(lookup, &at).await.map(Some))?.unwrap_or(0);
        ancestor = at.parent();
    }
    let mut next = 0;
    while let Some(at) = survey.spots.get(next).map(|spot| spot.key.clone()) {
        survey.text_bytes += text_bytes(lookup, &at).await?;
        if survey.text_bytes > most {
            return Ok(None);
        }
        let is_dataset = match lookup.container.group(lookup.access, &at).await {
            Ok(group) => matches!(group.state, GroupState::Dataset(_) | GroupState::Unusable(..)),
            // Beyond what is parsed: a group without attributes.
            Err(ReadError::AttributesTooLarge { .. }) => false,
            Err(error) => return Err(error),
        };
        if let Some(spot) = survey.spots.get_mut(next) {
            spot.is_dataset = is_dataset;
        }
        if !is_dataset {
            let names = lookup.container.directories(&at, DIRECTORIES).await?.unwrap_or_default();
            let keys = names.iter().filter_map(|name| at.child(name).ok());
            survey.spots.extend(keys.map(|key| Spot { key, above: next, is_dataset: false }));
        }
        if survey.spots.len() > DIRECTORIES {
            return Ok(None);
        }
        next += 1;
    }
    Ok(Some(survey))
}

/// Length of the attributes that [`document`] would read.
async fn text_bytes(lookup: &Lookup<'_>, key: &Key) -> Result<u64, ReadError> {
    let Ok(file) = key.child(ATTRIBUTES) else { return Ok(0) };
    let limit = lookup.container.resources().settings().attributes;
    let meta = lookup.container.meta(lookup.access, &file).await?;
    Ok(meta.map_or(0, |meta| meta.len).min(limit.saturating_add(1)))
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
