//! COSEM / CellMap: `transform: {axes, scale, translate, units}` per level.
//!
//! On each dataset, and for the group as `multiscales: [{"datasets": [{"path": …, "transform": …}]}]`.
//! The lists are in C order, slowest axis first, unless `ordering` (or `order`) is `"F"`; they are
//! reversed here.
//!
//! Wants the listed paths, and the children named `s<number>` when nothing is listed: a group of
//! those with a `transform` each counts too. Told from OME-NGFF by the member `transform`.
//!
//! Source: n5-universe `N5CosemMetadata.java`; janelia-cellmap/schemas `multiscale.md`.

use serde_json::{Map, Value};

use super::fields::{note, numbers, path_below, shown, strings};
use super::pyramid::{Convention, Level, Pyramid, factors_from_resolution, find_levels};
use super::scales::level_names;
use super::{MAX_LEVELS, Node};

/// A `transform` in N5 axis order.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Transform {
    pub(super) axes: Option<Vec<String>>,
    pub(super) units: Option<Vec<String>>,
    pub(super) scale: Vec<f64>,
    pub(super) translate: Vec<f64>,
}

/// Reads a `transform` of `rank` axes.
///
/// # Errors
/// A sentence about what is wrong with it.
pub(super) fn transform(value: &Value, rank: usize) -> Result<Transform, String> {
    let wrong = || format!("transform {} is not usable for {rank} axes", shown(value));
    let members = value.as_object().ok_or_else(wrong)?;
    let fortran = ["ordering", "order"].iter().any(|key| members.get(*key).and_then(Value::as_str) == Some("F"));
    let list = |key: &str| -> Result<Option<Vec<f64>>, String> {
        match members.get(key).map(numbers) {
            None => Ok(None),
            Some(Some(mut list)) if list.len() == rank => {
                if !fortran {
                    list.reverse();
                }
                Ok(Some(list))
            }
            Some(_) => Err(wrong()),
        }
    };
    let names = |key: &str| {
        let mut list = members.get(key).and_then(strings).filter(|list| list.len() == rank)?;
        if !fortran {
            list.reverse();
        }
        Some(list)
    };
    let scale = list("scale")?.ok_or_else(wrong)?;
    let translate = list("translate")?.unwrap_or_else(|| vec![0.0; rank]);
    Ok(Transform { axes: names("axes"), units: names("units"), scale, translate })
}

/// The levels that the group lists: path and `transform`; `None` when it lists none in this form.
fn listed(attributes: &Map<String, Value>) -> Option<Vec<(String, Option<&Value>)>> {
    let datasets = attributes.get("multiscales")?.get(0)?.get("datasets")?.as_array()?;
    let ours = datasets.iter().any(|dataset| dataset.get("transform").is_some_and(Value::is_object));
    let paths = datasets.iter().take(MAX_LEVELS).filter_map(|dataset| {
        let path = path_below(dataset.get("path")?.as_str()?)?;
        Some((path, dataset.get("transform")))
    });
    ours.then(|| paths.collect())
}

pub(super) fn wanted(node: &Node) -> Vec<String> {
    match listed(node.attributes()) {
        Some(levels) => levels.into_iter().map(|(path, _)| path).collect(),
        None => level_names(node).into_iter().map(|(_, name)| name).collect(),
    }
}

pub(super) fn read(node: &Node, problems: &mut Vec<String>) -> Option<Pyramid> {
    let listed = listed(node.attributes()).unwrap_or_else(|| unlisted(node));
    if listed.is_empty() {
        return None;
    }
    let names = listed.iter().enumerate().map(|(number, (path, _))| (number, path.clone()));
    let mut first: Option<Transform> = None;
    let mut levels = Vec::new();
    for found in find_levels(node, names, problems) {
        let rank = found.dataset.rank();
        let own = found.dataset.members().get("transform");
        let Some(value) = listed.get(found.number).and_then(|(_, value)| *value).or(own) else {
            note(problems, format!("level {} has no transform", found.path));
            continue;
        };
        match transform(value, rank) {
            Ok(transform) => {
                let base = first.get_or_insert_with(|| transform.clone());
                let factors = factors_from_resolution(&transform.scale, &base.scale);
                let (resolution, translation) = (transform.scale, transform.translate);
                levels.push(Level { path: found.path, factors, resolution, translation });
            }
            Err(problem) => note(problems, format!("level {}: {problem}", found.path)),
        }
    }
    let first = first?;
    Some(Pyramid { convention: Convention::Cosem, axes: first.axes, units: first.units, levels })
}

/// The children `s<number>` when each has a `transform` of its own.
fn unlisted(node: &Node) -> Vec<(String, Option<&Value>)> {
    let names: Vec<String> = level_names(node).into_iter().map(|(_, name)| name).collect();
    let has_transform = |name: &String| {
        let transform = node.child_documents.get(name).and_then(|document| document.members().get("transform"));
        transform.is_some_and(|transform| transform.get("scale").is_some())
    };
    if names.iter().all(has_transform) { names.into_iter().map(|name| (name, None)).collect() } else { Vec::new() }
}
