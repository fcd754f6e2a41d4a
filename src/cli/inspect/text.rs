//! Renders `/info` as aligned text.

use std::fmt::Write as _;

use indicatif::{BinaryBytes, HumanCount};
use serde_json::Value;

use super::super::escape_control::escape_control_chars;

/// Programs, by their keys in the document and their usual names.
const READERS: [(&str, &str); 5] = [
    ("neuroglancer", "Neuroglancer"),
    ("tensorstore", "TensorStore"),
    ("java", "N5 for Java"),
    ("zarr", "zarr-python 2"),
    ("z5", "z5"),
];

/// Groups and datasets below a group.
#[derive(Default)]
pub(super) struct TreeListing {
    /// A line for each group and dataset: its name and its description.
    pub(super) lines: Vec<(String, String)>,
    /// True if there are more groups and datasets than lines.
    pub(super) is_truncated: bool,
}

/// Returns the line of a group or dataset in a tree.
pub(super) fn tree_line(name: &str, depth: usize, info: &Value) -> (String, String) {
    let slash = if info["kind"] == "dataset" { "" } else { "/" };
    let description = match info["kind"].as_str() {
        Some("dataset") => format!("{}  {}", elements(info), compression(info)),
        Some("multiscale") => {
            let levels = info["multiscale"]["levels"].as_array().map_or(0, Vec::len);
            format!("multiscale ({}), {levels} levels", text(&info["multiscale"]["convention"]))
        }
        _ if info["problems"].as_array().is_some_and(|problems| !problems.is_empty()) => {
            text(&info["problems"][0]).to_owned()
        }
        _ => String::new(),
    };
    (
        format!("{:indent$}{}{slash}", "", escape_control_chars(name), indent = 2 * depth),
        escape_control_chars(&description).into_owned(),
    )
}

/// Renders everything about a group or dataset. `levels` has the path of each level of a pyramid and its document.
pub(super) fn render(path: &str, info: &Value, levels: &[(String, Value)], tree: Option<&TreeListing>) -> String {
    let mut out = format!("{}: {}\n", escape_control_chars(path), text(&info["kind"]));
    let mut rows: Vec<(&str, String)> = Vec::new();
    if info["kind"] == "dataset" {
        rows.push(("elements", elements(info)));
        rows.push(("size", info["size_bytes"].as_str().map_or_else(|| "unknown".to_owned(), size)));
        let grid = numbers(&info["grid"]);
        let blocks = grid.iter().fold(1_u64, |product, n| product.saturating_mul(*n));
        rows.push((
            "blocks",
            format!(
                "{} in a grid of {}: {}",
                join_by_x(&info["block_size"]),
                join_by_x(&info["grid"]),
                HumanCount(blocks)
            ),
        ));
        rows.push(("compression", compression(info)));
    }
    if info["kind"] == "multiscale" {
        rows.push(("convention", text(&info["multiscale"]["convention"]).to_owned()));
    }
    if let Some(axes) = info["axes"].as_array() {
        rows.push(("axes", format!("{} (the first is the fastest)", list(axes))));
    }
    if let Some(resolution) = info["resolution"].as_array() {
        let units = info["units"].as_array().cloned().unwrap_or_default();
        let sizes = resolution.iter().enumerate().map(|(axis, size)| {
            let unit = units.get(axis).map(text).unwrap_or_default();
            format!("{size} {unit}").trim_end().to_owned()
        });
        rows.push(("voxel", sizes.collect::<Vec<_>>().join(" x ")));
    }
    if let Some(volume) = info["volume"].as_str() {
        rows.push(("shows", volume.to_owned()));
    }
    if let Some(readable) = info["readable"].as_object() {
        let reader_names = |reads: bool| -> Vec<&str> {
            let readers = READERS.iter().filter(|(key, _)| readable.get(*key) == Some(&Value::Bool(reads)));
            readers.map(|(_, name)| *name).collect()
        };
        let or_none = |names: Vec<&str>| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        rows.push(("read by", or_none(reader_names(true))));
        rows.push(("refused by", or_none(reader_names(false))));
    }
    if let Some(view) = info["urls"]["recommended"]["view"].as_str() {
        rows.push(("best view", format!("/{view} (for Neuroglancer)")));
    }
    let attribute_count = info["attributes"].as_u64().unwrap_or(0);
    rows.push(("attributes", format!("{attribute_count} (--json shows them)")));
    for (name, value) in rows {
        let _ = writeln!(out, "  {name:<12} {}", escape_control_chars(&value));
    }
    if !levels.is_empty() {
        out.push_str("\nlevels\n");
        let pyramid = info["multiscale"]["levels"].as_array().cloned().unwrap_or_default();
        let lines = levels.iter().enumerate().map(|(n, (path, info))| {
            let level_info = pyramid.get(n).unwrap_or(&Value::Null);
            let description = format!(
                "{}  {}  factors {}  voxel {}",
                elements(info),
                compression(info),
                join_by_x(&level_info["factors"]),
                join_by_x(&level_info["resolution"])
            );
            (escape_control_chars(path).into_owned(), escape_control_chars(&description).into_owned())
        });
        columns(&mut out, &lines.collect::<Vec<_>>());
    }
    if let Some(tree) = tree.filter(|tree| !tree.lines.is_empty()) {
        out.push_str("\nbelow\n");
        columns(&mut out, &tree.lines);
        if tree.is_truncated {
            out.push_str("  ... and more: name a group to see what is below it\n");
        }
    }
    if let Some(problems) = info["problems"].as_array().filter(|problems| !problems.is_empty()) {
        out.push_str("\nnotes\n");
        for problem in problems {
            let _ = writeln!(out, "  - {}", escape_control_chars(text(problem)));
        }
    }
    out
}

fn columns(out: &mut String, lines: &[(String, String)]) {
    let width = lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).min(48);
    for (name, description) in lines {
        let _ = writeln!(out, "{}", format!("  {name:<width$}  {description}").trim_end());
    }
}

fn elements(info: &Value) -> String {
    format!("{} {}", text(&info["data_type"]), join_by_x(&info["dimensions"]))
}

/// Returns the scheme and its parameters, such as `gzip (level 5)`.
fn compression(info: &Value) -> String {
    let Some(members) = info["compression"].as_object() else { return String::new() };
    let parameters: Vec<String> = members
        .iter()
        .filter(|(key, _)| *key != "type")
        .map(|(key, value)| format!("{key} {}", plain(value)))
        .collect();
    let scheme = members.get("type").map(text).unwrap_or_default();
    if parameters.is_empty() { scheme.to_owned() } else { format!("{scheme} ({})", parameters.join(", ")) }
}

fn size(bytes: &str) -> String {
    let format_size = |bytes: u64| format!("{} ({} bytes)", BinaryBytes(bytes), HumanCount(bytes));
    bytes.parse().map_or_else(|_| format!("{bytes} bytes"), format_size)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns a value as text, a string without quotes.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
}

/// Joins the elements of an array, such as `512 x 512 x 64`.
fn join_by_x(value: &Value) -> String {
    let parts: Vec<String> = value.as_array().into_iter().flatten().map(plain).collect();
    if parts.is_empty() { "(no axes)".to_owned() } else { parts.join(" x ") }
}

fn list(values: &[Value]) -> String {
    values.iter().map(plain).collect::<Vec<_>>().join(", ")
}
