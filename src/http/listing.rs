//! Listings of directories: one page for people and three parsers, or JSON.

use std::fmt::Write;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, LINK, LOCATION};
use axum::http::{HeaderValue, Response, StatusCode};
use serde_json::json;

use super::compress::Compressible;
use super::parameters::{invalid, unknown_value};
use super::problem::{self, Problem};
use super::{Answer, Ask, Mount, page, query, respond, target, vary};
use crate::container::{EntryKind, Listed, ListedEntry, Memory, ReadError};
use crate::output;
use crate::store::Key;

/// Most entries of one page.
const PAGE: usize = 10_000;

/// Memory for the entries of such a page and for the page made of them.
const PAGE_BYTES: u64 = 8 << 20;

/// Memory for the first look at a directory while others hold more: as much as the smallest answers take, which are hardly ever
/// short of it.
const LEAST_BYTES: u64 = 32 << 10;

/// Most entries of a page that has so much memory.
fn entries_in(bytes: u64) -> usize {
    usize::try_from(bytes / (PAGE_BYTES / PAGE as u64)).unwrap_or(PAGE).clamp(1, PAGE)
}

/// A page of the entries of a directory after `after`, and the memory for it. Where `limits.slice_budget` is small, pages have fewer
/// entries.
///
/// While others hold the memory for a whole page, a small share is enough for a directory with few entries: such shares need not
/// wait for slow clients, the smallest the least.
async fn page_of(
    ask: &Ask<'_>,
    mount: &Mount,
    key: &Key,
    after: Option<&str>,
    blocks: bool,
) -> Result<(Listed, Memory), Problem> {
    let (container, resources) = (&mount.container, mount.container.resources());
    let list = async |bytes| {
        let listed = container.list(ask.access, key, after, entries_in(bytes), blocks);
        let listed = ReadError::or_hidden(container.unless_needed(key, Box::pin(listed)).await)?;
        listed.ok_or_else(|| Problem::missing().cached(mount.cache_missing.clone()))
    };
    let whole = PAGE_BYTES.min(resources.settings().slice_budget);
    if let Some(memory) = resources.memory_at_once(whole) {
        return Ok((list(whole).await?, memory));
    }
    // The directory is read twice at most.
    let small = resources.small_bytes().min(whole);
    let (bytes, memory) = match resources.memory_at_once(small) {
        Some(memory) => (small, memory),
        None => (LEAST_BYTES.min(small), container.reserve(LEAST_BYTES.min(small)).await?),
    };
    let listed = list(bytes).await?;
    if !listed.more {
        return Ok((listed, memory));
    }
    drop((listed, memory));
    let memory = container.reserve(whole).await?;
    Ok((list(whole).await?, memory))
}

/// Memory for a container in the listing of all, but for its name, and for the page around them.
const MOUNT_BYTES: usize = 1 << 10;

/// The listing of the containers, where there are several.
pub(super) async fn of_mounts(ask: &Ask<'_>) -> Answer {
    let mut entries: Vec<ListedEntry> = ask
        .app
        .mounts
        .iter()
        .filter(|mount| ask.shows(&mount.name))
        .map(|mount| ListedEntry { name: mount.name.clone(), kind: EntryKind::Group })
        .collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let Wanted { is_html, .. } = Wanted::by(ask)?;
    if let Some(page) = page_with_token(ask, is_html) {
        return Ok(page);
    }
    let bytes = entries.iter().map(|entry| entry.name.len() + MOUNT_BYTES).sum::<usize>() + MOUNT_BYTES;
    let memory = ask.app.resources.memory(bytes as u64).await?;
    let mut response = rendered(ask, "", &Listed { entries, more: false }, is_html, false, memory);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// The listing of a group or dataset.
pub(super) async fn of_directory(ask: &Ask<'_>, mount: &Mount, key: &Key) -> Answer {
    let Wanted { is_html, after, blocks } = Wanted::by(ask)?;
    if let Some(page) = page_with_token(ask, is_html) {
        return Ok(page);
    }
    let (listed, memory) = page_of(ask, mount, key, after.as_deref(), blocks).await?;
    let path = if mount.name.is_empty() { key.to_string() } else { format!("{}/{key}", mount.name) };
    let mut response = rendered(ask, path.trim_end_matches('/'), &listed, is_html, blocks, memory);
    // Never immutable: groups and datasets may be added.
    response.headers_mut().insert(CACHE_CONTROL, mount.cache_missing.clone());
    Ok(response)
}

/// The listing of a directory as a view shows it: `documents` in place of `attributes.json`.
pub(super) async fn of_view(ask: &Ask<'_>, mount: &Mount, key: &Key, documents: &[String]) -> Answer {
    let Wanted { is_html, after, .. } = Wanted::by(ask)?;
    if let Some(page) = page_with_token(ask, is_html) {
        return Ok(page);
    }
    let (mut listed, memory) = page_of(ask, mount, key, after.as_deref(), false).await?;
    listed.entries.retain(|entry| entry.kind != EntryKind::File);
    let names = documents.iter().filter(|name| after.as_ref().is_none_or(|after| *name > after));
    let last = listed.entries.last().map(|entry| entry.name.clone()).filter(|_| listed.more);
    let names = names.filter(|name| last.as_ref().is_none_or(|last| *name <= last));
    listed.entries.extend(names.map(|name| ListedEntry { name: name.clone(), kind: EntryKind::File }));
    listed.entries.sort_by(|a, b| a.name.cmp(&b.name));
    let path = if mount.name.is_empty() { key.to_string() } else { format!("{}/{key}", mount.name) };
    let mut response = rendered(ask, path.trim_end_matches('/'), &listed, is_html, false, memory);
    response.headers_mut().insert(CACHE_CONTROL, mount.cache_missing.clone());
    Ok(response)
}

/// The parameters of a listing; others are ignored, as clients add their own.
struct Wanted {
    is_html: bool,
    /// `after`: entries behind this name.
    after: Option<String>,
    /// `blocks`: grid components, too.
    blocks: bool,
}

impl Wanted {
    /// HTML unless JSON is asked for, by `format=json` or by an `Accept` that names it and not HTML.
    ///
    /// # Errors
    /// 400 for a value that does not exist, 406 where `Accept` allows neither form.
    fn by(ask: &Ask<'_>) -> Result<Self, Problem> {
        let (mut format, mut after, mut blocks) = (None, None, None);
        for (name, value) in query::pairs(ask.query()) {
            let (given, known): (_, &[&'static str]) = match name.as_str() {
                "format" => (&mut format, &["html", "json"]),
                "blocks" => (&mut blocks, &["0", "1"]),
                "after" => (&mut after, &[]),
                _ => continue,
            };
            let Some(value) = value else {
                return Err(invalid(&name, format!("{name} is not percent-encoded UTF-8")).into());
            };
            if !known.is_empty() && !known.contains(&value.as_str()) {
                return Err(unknown_value(&name, &value, known).into());
            }
            // The first of a name counts.
            given.get_or_insert(value);
        }
        let is_html = match format.as_deref() {
            Some(format) => format == "html",
            None => accepts_html(ask)?,
        };
        Ok(Self { is_html, after, blocks: blocks.is_some_and(|value| value == "1") })
    }
}

fn accepts_html(ask: &Ask<'_>) -> Result<bool, Problem> {
    let accept = ask.list_header(&axum::http::header::ACCEPT);
    match output::best_of(&["text/html", "application/json"], accept.as_deref()) {
        Some("application/json") => Ok(false),
        Some(_) => Ok(true),
        None => Err(Problem::new(
            problem::NOT_ACCEPTABLE,
            "a listing is text/html or application/json; Accept allows neither",
        )
        .with("known", json!(["text/html", "application/json"]))
        .varying("accept")),
    }
}

/// The way to the same page below a path that carries the token, for a person whose URL has it in the query: there every
/// link of the page carries it on. Programs that put it on each URL themselves get the listing where they ask.
fn page_with_token(ask: &Ask<'_>, is_html: bool) -> Option<Response<Body>> {
    let token = ask.presented.in_query().filter(|_| is_html)?;
    if !ask.list_header(&axum::http::header::ACCEPT)?.contains("text/html") {
        return None;
    }
    let inner = ask.path().strip_prefix(ask.app.options.base_path.as_str())?.trim_start_matches('/');
    let query = ask.query().map(|query| format!("?{query}")).unwrap_or_default();
    // From a path that carries it already, its root is one that carries it.
    let token = format!("token/{}/", target::encode(token));
    let location = HeaderValue::from_str(&format!("{}{token}{inner}{query}", way_up(ask))).ok()?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    response.headers_mut().insert(LOCATION, location);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Some(response)
}

/// The answer; `memory` is cut down to its size and kept until it is sent.
fn rendered(
    ask: &Ask<'_>,
    path: &str,
    listed: &Listed,
    is_html: bool,
    blocks: bool,
    mut memory: Memory,
) -> Response<Body> {
    let next = listed.more.then(|| listed.entries.last().map(|entry| entry.name.clone())).flatten();
    let (media_type, mut text) = if is_html {
        ("text/html; charset=utf-8", html(ask, path, listed, next.as_deref(), blocks))
    } else {
        ("application/json", json_page(path, listed, next.as_deref()))
    };
    text.shrink_to_fit();
    memory.shrink(text.len() as u64);
    let mut response = respond(StatusCode::OK, media_type, memory.own(text.into()));
    vary(response.headers_mut(), "accept");
    response.extensions_mut().insert(Compressible);
    if is_html {
        page::protect(response.headers_mut(), page::POLICY, &ask.app.options.frame_ancestors);
    }
    if let Some(next) = next {
        let format = if is_html { "" } else { "&format=json" };
        // A client that needs one for this page needs it for the next.
        let token = ask.presented.in_query().map(str::to_owned).or_else(|| query::parameter(ask.query(), "token"));
        let token = token.map_or_else(String::new, |token| format!("&token={}", target::encode(&token)));
        let link = format!("<?{}{format}{token}>; rel=\"next\"", next_query(&next, blocks));
        if let Ok(link) = HeaderValue::from_str(&link) {
            response.headers_mut().insert(LINK, link);
        }
    }
    response
}

fn next_query(next: &str, blocks: bool) -> String {
    format!("after={}{}", target::encode(next), if blocks { "&blocks=1" } else { "" })
}

/// `{"path", "entries": [{"name", "kind"}], "next"}`, written entry by entry: as one value it would take
/// many times the memory.
fn json_page(path: &str, listed: &Listed, next: Option<&str>) -> String {
    let mut page = format!("{{\"path\":{},\"entries\":[", json!(path));
    for (n, entry) in listed.entries.iter().enumerate() {
        let kind = match entry.kind {
            EntryKind::Group => "group",
            EntryKind::Dataset => "dataset",
            EntryKind::File => "file",
        };
        let comma = if n == 0 { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = write!(page, "{comma}{}", json!({ "name": entry.name, "kind": kind }));
    }
    let _ = write!(page, "],\"next\":{}}}", json!(next));
    page
}

/// The page. Its only `href="…">text` are the entries, a line each, so that Java N5, Neuroglancer and
/// fsspec read the same list; style and icon have an attribute between `href` and `>`. What a person needs
/// beyond the list is drawn by `page/page.js`, from what `main` says: `data-path` is the path in the
/// container, `data-base` leads from here to the server's root, whatever prefix a proxy strips,
/// `data-viewer` is there when `/viewer/` is, `data-token` when the page's URL carries a token.
/// Source: the parsers in `n5:http/*.java`, `ng:html_directory_listing.ts`, `fsspec:http.py`.
fn html(ask: &Ask<'_>, path: &str, listed: &Listed, next: Option<&str>, blocks: bool) -> String {
    let (base, viewer) = (way_up(ask), if ask.app.viewer().is_some() { " data-viewer" } else { "" });
    let carries = if ask.presented.in_url().is_some() { " data-token" } else { "" };
    let title = escape(if path.is_empty() { "N5 container" } else { path });
    let files = format!("{base}viewer/page/");
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{title}</title>\n\
         <link href=\"{files}page.css\" rel=\"stylesheet\">\n<link href=\"{files}preview.css\" rel=\"stylesheet\">\n\
         <link href=\"{files}icon.svg\" rel=\"icon\">\n<script type=\"module\" src=\"{files}page.js\"></script>\n\
         </head>\n<body>\n<main data-path=\"{}\" data-base=\"{base}\"{viewer}{carries}>\n<h1>{title}</h1>\n<ul id=\"entries\">\n",
        escape(path)
    );
    for entry in &listed.entries {
        let slash = if entry.kind == EntryKind::File { "" } else { "/" };
        let (href, name) = (target::encode(&entry.name), escape(&entry.name));
        // Writing to a String cannot fail.
        let _ = writeln!(page, "<li><a href=\"{href}{slash}\">{name}{slash}</a></li>");
    }
    page.push_str("</ul>\n");
    if listed.entries.is_empty() {
        page.push_str("<p>There is nothing in this group.</p>\n");
    }
    if let Some(next) = next {
        let blocks = if blocks { "<input type=\"hidden\" name=\"blocks\" value=\"1\">" } else { "" };
        let after = escape(next);
        let _ = writeln!(
            page,
            "<form id=\"more\"><input type=\"hidden\" name=\"after\" value=\"{after}\">{blocks}<button>More</button></form>"
        );
    }
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

/// The way from a directory's page to the root: a relative reference, as a proxy may strip or add a prefix.
fn way_up(ask: &Ask<'_>) -> String {
    let inner = ask.path().strip_prefix(ask.app.options.base_path.as_str()).unwrap_or_default();
    let depth = inner.matches('/').count().saturating_sub(1);
    if depth == 0 { "./".to_owned() } else { "../".repeat(depth) }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
    }
    escaped
}
