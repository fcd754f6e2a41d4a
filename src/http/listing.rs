//! Directory listings: one HTML page for people and three parsers, or JSON.

use std::fmt::Write;

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, LINK, LOCATION};
use axum::http::{HeaderValue, Response, StatusCode};
use serde_json::json;

use super::compress::Compressible;
use super::problem::{self, Problem};
use super::strict_query::{invalid_parameter, unknown_value};
use super::{HandlerResult, Mount, RequestContext, add_vary, lenient_query, page, respond, route};
use crate::container::{DirectoryEntry, DirectoryPage, EntryKind, MemoryPermit, ReadError};
use crate::output;
use crate::store::Key;

/// Maximum number of entries of one page.
const MAX_PAGE_ENTRIES: usize = 10_000;

/// Memory for the entries of such a page and for the page rendered from them.
const PAGE_BYTES: u64 = 8 << 20;

/// Memory for the first read of a directory if not even a small permit is free. The smallest responses take as much and
/// hardly ever have to wait for it.
const MIN_LISTING_BYTES: u64 = 32 << 10;

/// Returns the maximum number of entries of a page that has `bytes` of memory.
fn max_entries_for(bytes: u64) -> usize {
    usize::try_from(bytes / (PAGE_BYTES / MAX_PAGE_ENTRIES as u64))
        .unwrap_or(MAX_PAGE_ENTRIES)
        .clamp(1, MAX_PAGE_ENTRIES)
}

/// Reads a page of the entries of a directory after `after`, and returns it with its memory permit. If
/// `limits.slice_budget` is small, pages have fewer entries.
///
/// If the memory for a whole page is not free, a small permit is taken first; it is enough for a directory with few
/// entries. Small permits need not wait for slow clients; the smaller the permit, the shorter the wait.
async fn read_page(
    ask: &RequestContext<'_>,
    mount: &Mount,
    key: &Key,
    after: Option<&str>,
    blocks: bool,
) -> Result<(DirectoryPage, MemoryPermit), Problem> {
    let (container, resources) = (&mount.container, mount.container.resources());
    let list = async |bytes| {
        let listed = container.list(ask.freshness, key, after, max_entries_for(bytes), blocks);
        let listed = ReadError::hidden_as_none(container.yield_if_contended(key, Box::pin(listed)).await)?;
        listed.ok_or_else(|| Problem::not_found().with_cache_control_if_missing(mount.missing_cache_control.clone()))
    };
    let whole = PAGE_BYTES.min(resources.settings().slice_budget);
    if let Some(memory) = resources.try_reserve_memory(whole) {
        return Ok((list(whole).await?, memory));
    }
    // The directory is read at most twice.
    let small = resources.max_overtaking_bytes().min(whole);
    let (bytes, memory) = match resources.try_reserve_memory(small) {
        Some(memory) => (small, memory),
        None => (MIN_LISTING_BYTES.min(small), container.reserve_memory(MIN_LISTING_BYTES.min(small)).await?),
    };
    let listed = list(bytes).await?;
    if !listed.more {
        return Ok((listed, memory));
    }
    drop((listed, memory));
    let memory = container.reserve_memory(whole).await?;
    Ok((list(whole).await?, memory))
}

/// Memory per container in the list of containers, besides its name, and for the page around them.
const MOUNT_BYTES: usize = 1 << 10;

/// Returns the list of containers of a server with several.
pub(super) async fn of_mounts(ask: &RequestContext<'_>) -> HandlerResult {
    let mut entries: Vec<DirectoryEntry> = ask
        .app
        .mounts
        .iter()
        .filter(|mount| ask.can_see_mount(&mount.name))
        .map(|mount| DirectoryEntry { name: mount.name.clone(), kind: EntryKind::Group })
        .collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let ListingQuery { is_html, .. } = ListingQuery::parse(ask)?;
    if let Some(page) = redirect_to_token_path(ask, is_html) {
        return Ok(page);
    }
    let bytes = entries.iter().map(|entry| entry.name.len() + MOUNT_BYTES).sum::<usize>() + MOUNT_BYTES;
    let memory = ask.app.resources.reserve_memory(bytes as u64).await?;
    let mut response = render(ask, "", &DirectoryPage { entries, more: false }, is_html, false, memory);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// Returns the listing of a group or dataset.
pub(super) async fn of_directory(ask: &RequestContext<'_>, mount: &Mount, key: &Key) -> HandlerResult {
    let ListingQuery { is_html, after, blocks } = ListingQuery::parse(ask)?;
    if let Some(page) = redirect_to_token_path(ask, is_html) {
        return Ok(page);
    }
    let (listed, memory) = read_page(ask, mount, key, after.as_deref(), blocks).await?;
    let path = if mount.name.is_empty() { key.to_string() } else { format!("{}/{key}", mount.name) };
    let mut response = render(ask, path.trim_end_matches('/'), &listed, is_html, blocks, memory);
    // Never immutable: groups and datasets may be added.
    response.headers_mut().insert(CACHE_CONTROL, mount.missing_cache_control.clone());
    Ok(response)
}

/// Returns the listing of a directory as a view shows it, with `documents` instead of `attributes.json`.
pub(super) async fn of_view(ask: &RequestContext<'_>, mount: &Mount, key: &Key, documents: &[String]) -> HandlerResult {
    let ListingQuery { is_html, after, .. } = ListingQuery::parse(ask)?;
    if let Some(page) = redirect_to_token_path(ask, is_html) {
        return Ok(page);
    }
    let (mut listed, memory) = read_page(ask, mount, key, after.as_deref(), false).await?;
    listed.entries.retain(|entry| entry.kind != EntryKind::File);
    let names = documents.iter().filter(|name| after.as_ref().is_none_or(|after| *name > after));
    let last = listed.entries.last().map(|entry| entry.name.clone()).filter(|_| listed.more);
    let names = names.filter(|name| last.as_ref().is_none_or(|last| *name <= last));
    listed.entries.extend(names.map(|name| DirectoryEntry { name: name.clone(), kind: EntryKind::File }));
    listed.entries.sort_by(|a, b| a.name.cmp(&b.name));
    let path = if mount.name.is_empty() { key.to_string() } else { format!("{}/{key}", mount.name) };
    let mut response = render(ask, path.trim_end_matches('/'), &listed, is_html, false, memory);
    response.headers_mut().insert(CACHE_CONTROL, mount.missing_cache_control.clone());
    Ok(response)
}

/// Query parameters of a listing. Unknown ones are ignored, because clients add their own.
struct ListingQuery {
    is_html: bool,
    /// `after`: entries after this name.
    after: Option<String>,
    /// `blocks`: grid components are listed, too.
    blocks: bool,
}

impl ListingQuery {
    /// Parses the query. The format is HTML unless JSON is requested, by `format=json` or by an `Accept` that names
    /// JSON and not HTML.
    ///
    /// # Errors
    /// 400 for an unknown or invalid value, 406 if `Accept` allows neither format.
    fn parse(ask: &RequestContext<'_>) -> Result<Self, Problem> {
        let (mut format, mut after, mut blocks) = (None, None, None);
        for (name, value) in lenient_query::pairs(ask.query()) {
            let (given, known): (_, &[&'static str]) = match name.as_str() {
                "format" => (&mut format, &["html", "json"]),
                "blocks" => (&mut blocks, &["0", "1"]),
                "after" => (&mut after, &[]),
                _ => continue,
            };
            let Some(value) = value else {
                return Err(invalid_parameter(&name, format!("{name} is not percent-encoded UTF-8")).into());
            };
            if !known.is_empty() && !known.contains(&value.as_str()) {
                return Err(unknown_value(&name, &value, known).into());
            }
            // The first value of a repeated parameter counts.
            given.get_or_insert(value);
        }
        let is_html = match format.as_deref() {
            Some(format) => format == "html",
            None => accepts_html(ask)?,
        };
        Ok(Self { is_html, after, blocks: blocks.is_some_and(|value| value == "1") })
    }
}

fn accepts_html(ask: &RequestContext<'_>) -> Result<bool, Problem> {
    let accept = ask.list_header(&axum::http::header::ACCEPT);
    match output::best_media_type(&["text/html", "application/json"], accept.as_deref()) {
        Some("application/json") => Ok(false),
        Some(_) => Ok(true),
        None => Err(Problem::new(
            problem::NOT_ACCEPTABLE,
            "a listing is text/html or application/json; Accept allows neither",
        )
        .with_member("known", json!(["text/html", "application/json"]))
        .with_vary("accept")),
    }
}

/// Redirects a person whose URL has the token in the query to the same page below a path with the token, where every
/// link of the page repeats it. Programs that add the token to each URL themselves get the listing directly.
fn redirect_to_token_path(ask: &RequestContext<'_>, is_html: bool) -> Option<Response<Body>> {
    let token = ask.presented.query_token().filter(|_| is_html)?;
    if !ask.list_header(&axum::http::header::ACCEPT)?.contains("text/html") {
        return None;
    }
    let inner = ask.path().strip_prefix(ask.app.options.base_path.as_str())?.trim_start_matches('/');
    let query = ask.query().map(|query| format!("?{query}")).unwrap_or_default();
    // If the path has a token already, the relative root is the root below that token.
    let token = format!("token/{}/", route::encode_segment(token));
    let location = HeaderValue::from_str(&format!("{}{token}{inner}{query}", relative_root(ask))).ok()?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    response.headers_mut().insert(LOCATION, location);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Some(response)
}

/// Renders the response. `memory` is reduced to its size and held until it is sent.
fn render(
    ask: &RequestContext<'_>,
    path: &str,
    listed: &DirectoryPage,
    is_html: bool,
    blocks: bool,
    mut memory: MemoryPermit,
) -> Response<Body> {
    let next = listed.more.then(|| listed.entries.last().map(|entry| entry.name.clone())).flatten();
    let (media_type, mut text) = if is_html {
        ("text/html; charset=utf-8", render_html(ask, path, listed, next.as_deref(), blocks))
    } else {
        ("application/json", render_json(path, listed, next.as_deref()))
    };
    text.shrink_to_fit();
    memory.shrink(text.len() as u64);
    let mut response = respond(StatusCode::OK, media_type, memory.own(text.into()));
    add_vary(response.headers_mut(), "accept");
    response.extensions_mut().insert(Compressible);
    if is_html {
        page::add_security_headers(response.headers_mut(), page::PAGE_CSP, &ask.app.options.frame_ancestors);
    }
    if let Some(next) = next {
        let format = if is_html { "" } else { "&format=json" };
        // A client that needs a token for this page needs it for the next one.
        let token =
            ask.presented.query_token().map(str::to_owned).or_else(|| lenient_query::first_value(ask.query(), "token"));
        let token = token.map_or_else(String::new, |token| format!("&token={}", route::encode_segment(&token)));
        let link = format!("<?{}{format}{token}>; rel=\"next\"", next_query(&next, blocks));
        if let Ok(link) = HeaderValue::from_str(&link) {
            response.headers_mut().insert(LINK, link);
        }
    }
    response
}

fn next_query(next: &str, blocks: bool) -> String {
    format!("after={}{}", route::encode_segment(next), if blocks { "&blocks=1" } else { "" })
}

/// Renders `{"path", "entries": [{"name", "kind"}], "next"}`. It is written entry by entry: a single JSON value would
/// take many times the memory.
fn render_json(path: &str, listed: &DirectoryPage, next: Option<&str>) -> String {
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

/// Renders the HTML page.
///
/// Its only `href="…">text` are the entries, one per line, so that Java N5, Neuroglancer and fsspec read the same list.
/// The links to styles and icon have an attribute between `href` and `>`. `page/page.js` adds everything that a person
/// needs beyond the list, from the attributes of `main`: `data-path` is the path in the container, `data-base` leads
/// from here to the server's root whatever prefix a proxy strips, `data-viewer` is present if `/viewer/` is served, and
/// `data-token` if the page's URL has a token.
///
/// Source: the parsers in `n5:http/*.java`, `ng:html_directory_listing.ts`, `fsspec:http.py`.
fn render_html(
    ask: &RequestContext<'_>,
    path: &str,
    listed: &DirectoryPage,
    next: Option<&str>,
    blocks: bool,
) -> String {
    let (base, viewer) = (relative_root(ask), if ask.app.viewer().is_some() { " data-viewer" } else { "" });
    let carries = if ask.presented.url_token().is_some() { " data-token" } else { "" };
    let title = escape_html(if path.is_empty() { "N5 container" } else { path });
    let files = format!("{base}viewer/page/");
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{title}</title>\n\
         <link href=\"{files}page.css\" rel=\"stylesheet\">\n<link href=\"{files}preview.css\" rel=\"stylesheet\">\n\
         <link href=\"{files}icon.svg\" rel=\"icon\">\n<script type=\"module\" src=\"{files}page.js\"></script>\n\
         </head>\n<body>\n<main data-path=\"{}\" data-base=\"{base}\"{viewer}{carries}>\n<h1>{title}</h1>\n<ul id=\"entries\">\n",
        escape_html(path)
    );
    for entry in &listed.entries {
        let slash = if entry.kind == EntryKind::File { "" } else { "/" };
        let (href, name) = (route::encode_segment(&entry.name), escape_html(&entry.name));
        // Writing to a String cannot fail.
        let _ = writeln!(page, "<li><a href=\"{href}{slash}\">{name}{slash}</a></li>");
    }
    page.push_str("</ul>\n");
    if listed.entries.is_empty() {
        page.push_str("<p>This group is empty.</p>\n");
    }
    if let Some(next) = next {
        let blocks = if blocks { "<input type=\"hidden\" name=\"blocks\" value=\"1\">" } else { "" };
        let after = escape_html(next);
        let _ = writeln!(
            page,
            "<form id=\"more\"><input type=\"hidden\" name=\"after\" value=\"{after}\">{blocks}<button>More</button></form>"
        );
    }
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

/// Returns the reference from a directory's page to the root. It is relative because a proxy may strip or add a prefix.
fn relative_root(ask: &RequestContext<'_>) -> String {
    let inner = ask.path().strip_prefix(ask.app.options.base_path.as_str()).unwrap_or_default();
    let depth = inner.matches('/').count().saturating_sub(1);
    if depth == 0 { "./".to_owned() } else { "../".repeat(depth) }
}

fn escape_html(text: &str) -> String {
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
