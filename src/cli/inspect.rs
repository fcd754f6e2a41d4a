//! `n5-server inspect`: prints the information of `/info` as text. The information comes from a router in this process.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use anyhow::{Context, bail};
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use indicatif::{BinaryBytes, HumanCount};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};
use tower::ServiceExt;

use super::arguments::InspectArgs;
use super::process::{escape_control_chars, write_stdout};
use crate::config::{CacheControl, Config, ListenAddress};
use crate::container::{Container, EntryKind, Resources, Settings};
use crate::http::{self, App, HttpOptions};
use crate::server::{mount, open_store};
use crate::store::Key;

/// Maximum number of groups and datasets in a tree.
const MAX_TREE_LINES: usize = 500;

/// Maximum depth of the groups whose entries a tree shows. The group at the top has depth 0.
const MAX_TREE_DEPTH: usize = 64;

/// Maximum number of entries read from one directory.
const MAX_ENTRIES: usize = 10_000;

/// Programs that read N5: the key of each in the document, and its usual name.
const READERS: [(&str, &str); 5] = [
    ("neuroglancer", "Neuroglancer"),
    ("tensorstore", "TensorStore"),
    ("java", "N5 for Java"),
    ("zarr", "zarr-python 2"),
    ("z5", "z5"),
];

/// Prints a description of a container, group or dataset and returns the exit status.
///
/// # Errors
/// Returns an error if the object does not exist or cannot be read.
pub(super) async fn inspect(config: &Config, args: &InspectArgs) -> anyhow::Result<u8> {
    let [container_config] = config.containers.as_slice() else { bail!("inspect takes one container") };
    let resources = Resources::new(Settings::new(config));
    let container = Container::new(open_store(container_config, config).await?, Arc::clone(&resources))
        .configured(config, container_config);
    let mount = mount("", container.clone(), CacheControl::Revalidate);
    let name = args.dataset.trim_matches('/');
    let key = if name.is_empty() { Key::root() } else { Key::parse(name)? };
    let app = App::new(vec![mount], resources, HttpOptions::new(config), String::new);
    let body = request_info(&app, config, &key).await?;
    if args.json {
        write_stdout(&format!("{}\n", body.trim_end()))?;
        return Ok(0);
    }
    let info = parse_info(&body).context("/info")?;
    let mut levels = Vec::new();
    for level in info["multiscale"]["levels"].as_array().into_iter().flatten() {
        let path = text(&level["path"]);
        let level_key = Key::from_segments(key.segments().chain(path.split('/')))?;
        levels.push((path.to_owned(), info_or_null(&app, config, &level_key).await));
    }
    let is_group = info["kind"] == "group";
    let tree = if is_group { render_tree(&container, &app, config, &key).await? } else { String::new() };
    let title = if key.is_root() { container_config.root.to_string() } else { key.as_str().to_owned() };
    let text = render(&title, &info, &levels, &tree);
    write_stdout(&format!("{}\n", text.trim_end()))?;
    Ok(0)
}

/// Parses a document of `/info`. Replaces the attributes by their number, because they may hold numbers and strings
/// that Rust's types cannot represent.
fn parse_info(text: &str) -> serde_json::Result<Value> {
    #[derive(Deserialize)]
    struct InfoDocument {
        #[serde(deserialize_with = "count_members")]
        attributes: usize,
        #[serde(rename = "tensorstore")]
        _tensorstore: IgnoredAny,
        #[serde(flatten)]
        others: Map<String, Value>,
    }
    let InfoDocument { attributes, mut others, .. } = serde_json::from_str(text)?;
    others.insert("attributes".to_owned(), attributes.into());
    Ok(Value::Object(others))
}

/// Returns the number of members of a JSON object.
fn count_members<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    struct MemberCounter;
    impl<'de> Visitor<'de> for MemberCounter {
        type Value = usize;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<usize, A::Error> {
            let mut count = 0;
            while members.next_key_seed(IgnoredName)?.is_some() {
                members.next_value::<IgnoredAny>()?;
                count += 1;
            }
            Ok(count)
        }
    }
    deserializer.deserialize_map(MemberCounter)
}

/// Skips the name of a member. The name is read as bytes, because it may contain unpaired surrogates.
struct IgnoredName;

impl<'de> DeserializeSeed<'de> for IgnoredName {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_bytes(self)
    }
}

impl Visitor<'_> for IgnoredName {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<(), E> {
        Ok(())
    }
}

/// Returns the text of `/info` about `key` that a server of `app` with this configuration would send.
async fn request_info(app: &Arc<App>, config: &Config, key: &Key) -> anyhow::Result<String> {
    let path = http::route::encode_path(key.segments());
    let host = match &config.server.listen {
        ListenAddress::Tcp(address) => address.to_string(),
        ListenAddress::Unix(_) => "localhost".to_owned(),
    };
    let base = &config.server.base_path;
    let request = Request::get(format!("{base}/info/{path}")).header("host", host).body(Body::empty())?;
    let response = http::router(Arc::clone(app)).oneshot(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    let text = String::from_utf8_lossy(&body).into_owned();
    if status != StatusCode::OK {
        let problem: Value = serde_json::from_str(&text).unwrap_or_default();
        let detail = problem["detail"].as_str().map_or_else(|| status.to_string(), str::to_owned);
        bail!("{:?}: {detail}", key.as_str());
    }
    Ok(text)
}

/// Returns the document of `/info` about `key`, or null if it cannot be read.
async fn info_or_null(app: &Arc<App>, config: &Config, key: &Key) -> Value {
    let text = request_info(app, config, key).await.unwrap_or_default();
    parse_info(&text).unwrap_or_default()
}

/// Renders the tree below a group, depth first. Large trees are cut off.
async fn render_tree(container: &Container, app: &Arc<App>, config: &Config, key: &Key) -> anyhow::Result<String> {
    let options = Container::new_read_options();
    let mut lines = Vec::new();
    let mut totals = TreeTotals::default();
    let mut is_truncated = false;
    // Stack of the groups and datasets still to visit, each with its depth; the last one is next.
    let mut pending = vec![(key.clone(), 0)];
    while let Some((key, depth)) = pending.pop() {
        // The tree has no line for the group at the top.
        if depth > 0 {
            if lines.len() >= MAX_TREE_LINES {
                is_truncated = true;
                break;
            }
            let info = info_or_null(app, config, &key).await;
            totals.count(&info);
            lines.push(tree_line(key.name().unwrap_or_default(), depth - 1, &info));
        }
        if let Some(page) = container.list(options, &key, None, MAX_ENTRIES, false).await? {
            let directories = page.entries.iter().rev().filter(|entry| entry.kind != EntryKind::File);
            if depth > MAX_TREE_DEPTH {
                is_truncated |= directories.count() > 0;
                continue;
            }
            is_truncated |= page.has_more;
            pending.extend(directories.filter_map(|entry| Some((key.child(&entry.name).ok()?, depth + 1))));
        }
    }
    let mut text = columns(&lines);
    if is_truncated {
        text.push_str("  ... and more: name a group to see what is below it\n");
    }
    let _ = writeln!(text, "\ntotal{}\n  {totals}", if is_truncated { " of what is shown" } else { "" });
    Ok(text)
}

/// Totals of the groups and datasets in a tree.
#[derive(Default)]
struct TreeTotals {
    groups: u64,
    datasets: u64,
    /// Size of all elements of the datasets in bytes, whether their blocks are stored or not.
    element_bytes: u64,
}

impl TreeTotals {
    fn count(&mut self, info: &Value) {
        if info["kind"] == "dataset" {
            self.datasets += 1;
            let bytes = info["size_bytes"].as_str().and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
            self.element_bytes = self.element_bytes.saturating_add(bytes);
        } else if !info.is_null() {
            self.groups += 1;
        }
    }
}

impl fmt::Display for TreeTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        let Self { groups, datasets, element_bytes } = *self;
        write!(
            f,
            "{} group{}, {} dataset{}, {} when decoded",
            HumanCount(groups),
            plural(groups),
            HumanCount(datasets),
            plural(datasets),
            BinaryBytes(element_bytes)
        )
    }
}

/// Returns the line of a group or dataset in a tree.
fn tree_line(name: &str, depth: usize, info: &Value) -> (String, String) {
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

/// Renders everything about a group or dataset. `levels` has the path and the document of each level of a pyramid.
/// `tree` is the rendered tree below a group.
fn render(path: &str, info: &Value, levels: &[(String, Value)], tree: &str) -> String {
    let mut out = format!("{}: {}\n", escape_control_chars(path), text(&info["kind"]));
    for (name, value) in description_rows(info) {
        let _ = writeln!(out, "  {name:<12} {}", escape_control_chars(&value));
    }
    if !levels.is_empty() {
        out.push_str("\nlevels\n");
        out.push_str(&render_levels(info, levels));
    }
    if !tree.is_empty() {
        let _ = write!(out, "\nbelow\n{tree}");
    }
    if let Some(problems) = info["problems"].as_array().filter(|problems| !problems.is_empty()) {
        out.push_str("\nnotes\n");
        for problem in problems {
            let _ = writeln!(out, "  - {}", escape_control_chars(text(problem)));
        }
    }
    out
}

/// Returns the names and values that describe what a dataset stores.
fn dataset_rows(info: &Value) -> [(&'static str, String); 4] {
    let grid = info["grid"].as_array().into_iter().flatten().filter_map(Value::as_u64);
    let block_count = HumanCount(grid.fold(1, u64::saturating_mul));
    let blocks = format!("{} in a grid of {}: {block_count}", join_by_x(&info["block_size"]), join_by_x(&info["grid"]));
    [
        ("elements", elements(info)),
        ("size", info["size_bytes"].as_str().map_or_else(|| "unknown".to_owned(), size)),
        ("blocks", blocks),
        ("compression", compression(info)),
    ]
}

/// Returns the names and values that describe a group or dataset.
fn description_rows(info: &Value) -> Vec<(&'static str, String)> {
    let mut rows: Vec<(&'static str, String)> = Vec::new();
    if info["kind"] == "dataset" {
        rows.extend(dataset_rows(info));
    }
    if info["kind"] == "multiscale" {
        rows.push(("convention", text(&info["multiscale"]["convention"]).to_owned()));
    }
    if let Some(axes) = info["axes"].as_array() {
        let names: Vec<String> = axes.iter().map(plain).collect();
        rows.push(("axes", format!("{} (the first is the fastest)", names.join(", "))));
    }
    if let Some(resolution) = info["resolution"].as_array() {
        let units = info["units"].as_array().cloned().unwrap_or_default();
        let sizes = resolution.iter().enumerate().map(|(axis, size)| {
            let unit = units.get(axis).map(text).unwrap_or_default();
            if size.is_null() { "unknown".to_owned() } else { format!("{size} {unit}").trim_end().to_owned() }
        });
        rows.push(("voxel", sizes.collect::<Vec<_>>().join(" x ")));
    } else if info["kind"] != "group" {
        rows.push(("voxel", "unknown".to_owned()));
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
    rows
}

/// Renders the levels of a pyramid. `levels` has the path and document of each level. `info` is the document of the
/// pyramid, which has the scales.
fn render_levels(info: &Value, levels: &[(String, Value)]) -> String {
    let pyramid = info["multiscale"]["levels"].as_array().cloned().unwrap_or_default();
    // Otherwise the sizes of levels are multiples of an unknown size.
    let is_calibrated = info["resolution"].as_array().is_some_and(|sizes| sizes.iter().all(Value::is_number));
    let lines = levels.iter().enumerate().map(|(index, (path, info))| {
        let level_info = pyramid.get(index).unwrap_or(&Value::Null);
        let mut description =
            format!("{}  {}  factors {}", elements(info), compression(info), join_by_x(&level_info["factors"]));
        if is_calibrated {
            let _ = write!(description, "  voxel {}", join_by_x(&level_info["resolution"]));
        }
        (escape_control_chars(path).into_owned(), escape_control_chars(&description).into_owned())
    });
    columns(&lines.collect::<Vec<_>>())
}

/// Renders pairs of a name and its description as two columns.
fn columns(lines: &[(String, String)]) -> String {
    let mut out = String::new();
    let width = lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).min(48);
    for (name, description) in lines {
        let _ = writeln!(out, "{}", format!("  {name:<width$}  {description}").trim_end());
    }
    out
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

/// Returns a value as text. Strings have no quotes.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Joins the elements of an array, such as `512 x 512 x 64`.
fn join_by_x(value: &Value) -> String {
    let parts: Vec<String> = value.as_array().into_iter().flatten().map(plain).collect();
    if parts.is_empty() { "(no axes)".to_owned() } else { parts.join(" x ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_may_be_as_deep_as_the_server_accepts() {
        let nested = format!("{}{}", "[".repeat(63), "]".repeat(63));
        let text = format!(r#"{{"attributes":{{"a":{nested}}},"kind":"group","tensorstore":{{"x":{nested}}}}}"#);
        assert_eq!(parse_info(&text).unwrap()["attributes"], 1);
    }

    #[test]
    fn attributes_are_counted_regardless_of_their_values() {
        let text = r#"{"attributes":{"a":1e999,"b":"\ud800","\udfff":[1]},"kind":"group","tensorstore":{"x":1e999}}"#;
        assert_eq!(parse_info(text).unwrap(), serde_json::json!({"attributes": 3, "kind": "group"}));
    }
}
