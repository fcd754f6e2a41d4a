//! `GET /info/{path}?recursive=1`: a short description of every group, pyramid and dataset below a directory, in pages.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use axum::http::HeaderValue;
use axum::http::header::LINK;
use serde_json::{Value, json};

use crate::cache::{MemoryPermit, ReadError};
use crate::http::mount::Mount;
use crate::http::problem::Problem;
use crate::http::query::params::{self, parse_query, unknown_value};
use crate::http::redact::excerpt;
use crate::http::request::RequestContext;
use crate::http::respond::{self, Entity, HandlerResult};
use crate::http::route;
use crate::store::Key;
use crate::view::{self, MAX_PAGE_TIME, SubtreeEnd, SubtreeEntry, SubtreeRequest};

/// All parameters. `http::credentials` reads `token`.
const PARAMETERS: [&str; 6] = ["recursive", "limit", "after", "depth", "levels", "token"];

/// Number of entries of a page unless `limit` is given.
const DEFAULT_LIMIT: usize = 1000;

/// Maximum number of entries of a page.
const MAX_LIMIT: usize = 10_000;

/// Maximum value of `depth`. No path has more names.
const MAX_DEPTH: usize = 256;

/// Memory for the walk and for the text of a page. A quarter is for the text.
const PAGE_BYTES: u64 = 8 << 20;

/// Maximum length of an entry's text in bytes. A longer one is replaced by a reference to its own document.
const MAX_ENTRY_BYTES: usize = 16 << 10;

/// Parsed query parameters.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SubtreeQuery {
    limit: usize,
    /// Path after which the page begins, from the server's root.
    after: Option<Key>,
    /// Maximum number of names in the path from the directory to an entry; `None` for any number.
    max_depth: Option<usize>,
    with_levels: bool,
}

impl SubtreeQuery {
    /// Parses the query. Returns `None` unless it has `recursive=1`: all other parameters of `/info` are ignored.
    ///
    /// # Errors
    /// Returns a problem with status 400 for a value that is not valid and, with `recursive=1`, for a parameter that is
    /// unknown or repeated.
    pub(crate) fn parse(query: Option<&str>) -> Result<Option<Self>, Problem> {
        let query = query.unwrap_or_default();
        let is_named = |(name, _): &(String, Option<String>)| name == "recursive";
        let Some((name, value)) = params::pairs(Some(query)).find(is_named) else { return Ok(None) };
        if !parse_switch("recursive", &value.unwrap_or(name))? {
            return Ok(None);
        }
        let parameters = parse_query(query, &PARAMETERS)?;
        let number = |name: &'static str, max: usize| {
            let Some(text) = parameters.get(name) else { return Ok(None) };
            let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse().ok().filter(|number| is_decimal && (1..=max).contains(number));
            number.map(Some).ok_or_else(|| {
                let detail = format!("{name} is {:?}; give a whole number from 1 to {max}", excerpt(text));
                Problem::invalid_parameter(name, detail)
            })
        };
        let limit = number("limit", MAX_LIMIT)?.unwrap_or(DEFAULT_LIMIT);
        let max_depth = number("depth", MAX_DEPTH)?;
        let after = match parameters.get("after") {
            None => None,
            Some(text) => Some(Key::parse(text).map_err(|error| {
                let detail = format!("after is {:?}: {error}; give the value of next of a page", excerpt(text));
                Problem::invalid_parameter("after", detail)
            })?),
        };
        let with_levels = parameters.get("levels").map_or(Ok(false), |text| parse_switch("levels", text))?;
        Ok(Some(Self { limit, after, max_depth, with_levels }))
    }

    /// Returns the names that lead from the directory with the path `directory` to the path `after`.
    ///
    /// # Errors
    /// Returns a problem with status 400 if `after` is not below the directory.
    fn names_below(&self, directory: &[String]) -> Result<Vec<String>, Problem> {
        let Some(after) = &self.after else { return Ok(Vec::new()) };
        let names: Vec<String> = after.segments().map(str::to_owned).collect();
        match names.strip_prefix(directory) {
            Some(below) if !below.is_empty() => Ok(below.to_vec()),
            Some(_) | None => {
                let detail = format!(
                    "after is {:?}, which is not below {:?}; give the value of next of a page of the same path",
                    excerpt(after.as_str()),
                    excerpt(&directory.join("/"))
                );
                Err(Problem::invalid_parameter("after", detail))
            }
        }
    }
}

/// Parses a parameter that is `1` or `0`.
fn parse_switch(name: &str, value: &str) -> Result<bool, Problem> {
    match value {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err(unknown_value(name, value, &["0", "1"])),
    }
}

/// Handles a request with `recursive=1`.
pub(crate) async fn handle(context: &RequestContext<'_>, query: &SubtreeQuery) -> HandlerResult {
    let segments = &context.target.segments;
    let after = query.names_below(segments)?;
    let resources = &context.app.resources;
    let full_bytes = PAGE_BYTES.min(resources.settings().slice_budget);
    let located = context.locate(segments)?;
    let (memory, memory_bytes) = if let Some(memory) = resources.try_reserve_memory(full_bytes) {
        (memory, full_bytes)
    } else {
        // A smaller page needs no memory that slow clients hold.
        let bytes = resources.max_overtaking_bytes().min(full_bytes);
        let memory = match &located {
            Some((mount, _)) => mount.container.reserve_memory(bytes).await?,
            None => resources.reserve_memory(bytes).await?,
        };
        (memory, bytes)
    };
    let path = segments.join("/");
    let mut page = PageText::new(&path, query.limit, memory_bytes);
    let (next, cache_control) = match located {
        Some((mount, key)) => {
            let request = SubtreeRequest {
                container: &mount.container,
                options: context.read_options,
                key: &key,
                after: &after,
                with_levels: query.with_levels,
                max_depth: query.max_depth.unwrap_or(MAX_DEPTH),
                memory_bytes,
            };
            let end = add_subtree(mount, request, &mut page).await?;
            (end, mount.missing_cache_control.clone())
        }
        None => {
            (add_mounts(context, query, &after, memory_bytes, &mut page).await?, HeaderValue::from_static("no-cache"))
        }
    };
    respond(context, query, page, next.as_deref(), memory, cache_control)
}

/// Adds everything below a directory of a mount. Returns the path after which the next page begins; `None` if no
/// entries follow.
async fn add_subtree(
    mount: &Mount,
    request: SubtreeRequest<'_>,
    page: &mut PageText,
) -> Result<Option<String>, Problem> {
    let last_before = page.last_path.clone();
    let end = view::summarize_subtree(request, |entry| page.add(&mount.path_of(&entry.key), &entry)).await;
    Ok(match end.map_err(|error| mount.problem(error))? {
        SubtreeEnd::Complete => None,
        SubtreeEnd::After(Some(key)) => Some(mount.path_of(&key)),
        SubtreeEnd::After(None) => last_before,
    })
}

/// Adds each container that the caller may see, with everything below it.
async fn add_mounts(
    context: &RequestContext<'_>,
    query: &SubtreeQuery,
    after: &[String],
    memory_bytes: u64,
    page: &mut PageText,
) -> Result<Option<String>, Problem> {
    let is_visible = |mount: &&Mount| context.caller_view.is_none_or(|view| view.may_read(&mount.name));
    let mut mounts: Vec<&Mount> = context.app.mounts.iter().filter(is_visible).collect();
    mounts.sort_by(|a, b| a.name.cmp(&b.name));
    let root = Key::root();
    let started = Instant::now();
    for mount in mounts {
        if page.last_path.is_some() && started.elapsed() >= MAX_PAGE_TIME {
            return Ok(page.last_path.clone());
        }
        let (is_resumed, after) = match after.split_first() {
            Some((name, _)) if *name > mount.name => continue,
            Some((name, below)) if *name == mount.name => (true, below),
            Some(_) | None => (false, &[][..]),
        };
        let visible;
        let mount = match context.caller_view {
            None => mount,
            Some(view) => {
                let container = mount.container.with_visibility(Arc::new(view.of_mount(&mount.name)));
                visible = Mount { container, ..mount.clone() };
                &visible
            }
        };
        let request = SubtreeRequest {
            container: &mount.container,
            options: context.read_options,
            key: &root,
            after,
            with_levels: query.with_levels,
            max_depth: query.max_depth.unwrap_or(MAX_DEPTH).saturating_sub(1),
            memory_bytes,
        };
        if !is_resumed {
            let entry = match view::summarize_directory(request).await {
                Ok(entry) => entry.map(|entry| SubtreeEntry { is_container: true, ..entry }),
                // The other containers are listed although this one fails.
                Err(error) => {
                    page.add_failed(&mount.name, &error);
                    continue;
                }
            };
            let Some(entry) = entry else { continue };
            if !page.add(&mount.name, &entry) {
                return Ok(page.last_path.clone());
            }
        }
        if request.max_depth == 0 {
            continue;
        }
        match add_subtree(mount, request, page).await? {
            None => {}
            next => return Ok(next),
        }
    }
    Ok(None)
}

/// Text of a page, which is written entry by entry.
struct PageText {
    text: String,
    entry_count: usize,
    limit: usize,
    max_bytes: usize,
    /// Path of the last entry.
    last_path: Option<String>,
}

impl PageText {
    fn new(path: &str, limit: usize, memory_bytes: u64) -> Self {
        Self {
            text: format!("{{\"path\":{},\"entries\":[", json!(path)),
            entry_count: 0,
            limit,
            max_bytes: usize::try_from(memory_bytes / 4).unwrap_or(usize::MAX),
            last_path: None,
        }
    }

    /// Adds the entry of the directory at `path`. Returns false if the page is full, and the entry is not added.
    fn add(&mut self, path: &str, entry: &SubtreeEntry) -> bool {
        self.add_text(path, &entry_text(path, entry))
    }

    /// Adds the entry of a container that cannot be read.
    fn add_failed(&mut self, path: &str, error: &ReadError) {
        tracing::warn!(container = path, %error, "not readable; listed without its content");
        let text = json!({ "path": path, "kind": "group", "container": true,
            "error": "the container cannot be read at present" });
        self.add_text(path, &text.to_string());
    }

    fn add_text(&mut self, path: &str, text: &str) -> bool {
        let is_full = self.entry_count >= self.limit || self.text.len() + text.len() > self.max_bytes;
        if is_full && self.entry_count > 0 {
            return false;
        }
        if self.entry_count > 0 {
            self.text.push(',');
        }
        self.text.push_str(text);
        self.entry_count += 1;
        self.last_path = Some(path.to_owned());
        true
    }
}

/// Returns the JSON text of an entry.
fn entry_text(path: &str, entry: &SubtreeEntry) -> String {
    let mut members = serde_json::Map::new();
    members.insert("path".to_owned(), json!(path));
    if let Ok(Value::Object(summary)) = serde_json::to_value(&entry.summary) {
        members.extend(summary);
    }
    if let Some(title) = &entry.title {
        members.insert("title".to_owned(), json!(title));
    }
    if let Some(zarr) = entry.zarr {
        members.insert("store".to_owned(), json!(zarr.name()));
    }
    if entry.has_children {
        members.insert("children".to_owned(), json!(true));
    }
    if entry.is_container {
        members.insert("container".to_owned(), json!(true));
    }
    let text = Value::Object(members).to_string();
    if text.len() <= MAX_ENTRY_BYTES {
        return text;
    }
    let error = "the description is too long for this list; /info of this path has it";
    json!({ "path": path, "kind": entry.summary.kind, "error": error }).to_string()
}

/// Makes the response, whose body owns `memory`.
fn respond(
    context: &RequestContext<'_>,
    query: &SubtreeQuery,
    page: PageText,
    next: Option<&str>,
    memory: MemoryPermit,
    cache_control: HeaderValue,
) -> HandlerResult {
    let mut text = page.text;
    // Writing to a String cannot fail.
    let _ = write!(text, "],\"next\":{}}}", json!(next));
    let mut entity = Entity { is_compressible: true, ..Entity::new("application/json", cache_control) };
    if let Some(next) = next {
        let limit = if query.limit == DEFAULT_LIMIT { String::new() } else { format!("&limit={}", query.limit) };
        let depth = query.max_depth.map_or_else(String::new, |depth| format!("&depth={depth}"));
        let levels = if query.with_levels { "&levels=1" } else { "" };
        let token = context.presented.query_token.clone();
        let token = token.or_else(|| params::first_value(context.parts.uri.query(), "token"));
        let token = token.map_or_else(String::new, |token| format!("&token={}", route::encode_segment(&token)));
        let after = route::encode_segment(next);
        let link = format!("<?recursive=1&after={after}{limit}{depth}{levels}{token}>; rel=\"next\"");
        respond::insert_header(&mut entity.extra, LINK, &link);
    }
    entity.respond(context.parts, respond::text_bytes(text, Some(memory)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_parameters_are_checked_only_with_recursive() {
        let parse = |query: &str| SubtreeQuery::parse(Some(query));
        assert_eq!(parse("").unwrap(), None);
        assert_eq!(parse("limit=x&recursive=0&y").unwrap(), None);
        let query = parse("recursive=1&limit=5&after=a%2Fb&depth=2&levels=1&token=x").unwrap().unwrap();
        let after = Key::parse("a/b").ok();
        assert_eq!(query, SubtreeQuery { limit: 5, after, max_depth: Some(2), with_levels: true });
        for bad in [
            "recursive",
            "recursive=yes",
            "recursive=1&limit=0",
            "recursive=1&limit=10001",
            "recursive=1&limit=+5",
            "recursive=1&limit=",
            "recursive=1&after=",
            "recursive=1&after=/a",
            "recursive=1&after=a/../b",
            "recursive=1&levels=2",
            "recursive=1&recursive=1",
            "recursive=1&depth=0",
            "recursive=1&shape=2",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_page_begins_after_a_path_below_the_directory() {
        let query = SubtreeQuery { limit: 1, after: Key::parse("a/b/c").ok(), max_depth: None, with_levels: false };
        let below = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            query.names_below(&names).ok()
        };
        assert_eq!(below(&["a"]), Some(vec!["b".to_owned(), "c".to_owned()]));
        assert_eq!(below(&[]).map(|names| names.len()), Some(3));
        assert_eq!(below(&["a", "b", "c"]), None);
        assert_eq!(below(&["b"]), None);
    }
}
