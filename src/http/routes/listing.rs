//! Directory listings: one HTML page for people and three parsers, or JSON.

use std::borrow::Cow;
use std::fmt::Write;

use axum::body::Body;
use axum::http::header::{ACCEPT, LINK};
use axum::http::{HeaderValue, Response, StatusCode};
use serde_json::json;

use crate::cache::{MemoryPermit, ReadError};
use crate::container::{DirectoryEntry, DirectoryPage, EntryKind};
use crate::http::mount::Mount;
use crate::http::problem::{self, Problem};
use crate::http::query::params::{self, unknown_value};
use crate::http::request::RequestContext;
use crate::http::respond::{self, Entity, HandlerResult};
use crate::http::route;
use crate::http::routes::page;
use crate::output;
use crate::store::Key;

/// Maximum number of entries of one page.
const MAX_PAGE_ENTRIES: usize = 10_000;

/// Memory for the entries of such a page and for the page rendered from them.
const PAGE_BYTES: u64 = 8 << 20;

/// Memory for the first read of a directory if not even a small permit is free. The smallest responses take as much and
/// hardly ever have to wait for it.
const MIN_LISTING_BYTES: u64 = 32 << 10;

/// Reads a page of the entries of a directory after `after`, and returns it with its memory permit. If
/// `limits.slice_budget` is small, pages have fewer entries.
///
/// If the memory for a whole page is not free, a small permit is taken first; it is enough for a directory with few
/// entries. Small permits need not wait for slow clients; the smaller the permit, the shorter the wait.
async fn read_page(
    context: &RequestContext<'_>,
    mount: &Mount,
    key: &Key,
    after: Option<&str>,
    with_blocks: bool,
) -> Result<(DirectoryPage, MemoryPermit), Problem> {
    let (container, resources) = (&mount.container, mount.container.resources());
    let read_entries = async |bytes: u64| {
        let max_entries = usize::try_from(bytes / (PAGE_BYTES / MAX_PAGE_ENTRIES as u64)).unwrap_or(MAX_PAGE_ENTRIES);
        let max_entries = max_entries.clamp(1, MAX_PAGE_ENTRIES);
        let listing = container.list(context.freshness, key, after, max_entries, with_blocks);
        let page = ReadError::hidden_as_none(container.abort_if_contended(key, Box::pin(listing)).await)?;
        page.ok_or_else(|| mount.not_found())
    };
    let full_bytes = PAGE_BYTES.min(resources.settings().slice_budget);
    if let Some(memory) = resources.try_reserve_memory(full_bytes) {
        return Ok((read_entries(full_bytes).await?, memory));
    }
    // The directory is read at most twice.
    let small_bytes = resources.max_overtaking_bytes().min(full_bytes);
    let (bytes, memory) = match resources.try_reserve_memory(small_bytes) {
        Some(memory) => (small_bytes, memory),
        None => {
            (MIN_LISTING_BYTES.min(small_bytes), container.reserve_memory(MIN_LISTING_BYTES.min(small_bytes)).await?)
        }
    };
    let page = read_entries(bytes).await?;
    if !page.has_more {
        return Ok((page, memory));
    }
    drop((page, memory));
    let memory = container.reserve_memory(full_bytes).await?;
    Ok((read_entries(full_bytes).await?, memory))
}

/// Memory per container in the list of containers, in addition to its name, and for the page around them.
const MOUNT_BYTES: usize = 1 << 10;

/// Returns the list of containers of a server with several.
pub(crate) async fn of_mounts(context: &RequestContext<'_>) -> HandlerResult {
    let mut entries: Vec<DirectoryEntry> = context
        .app
        .mounts
        .iter()
        .filter(|mount| context.caller_view.is_none_or(|view| view.may_read(&mount.name)))
        .map(|mount| DirectoryEntry { name: mount.name.clone(), kind: EntryKind::Group })
        .collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let ListingQuery { is_html, .. } = ListingQuery::parse(context)?;
    if let Some(redirect) = redirect_to_token_path(context, is_html) {
        return Ok(redirect);
    }
    let bytes = entries.iter().map(|entry| entry.name.len() + MOUNT_BYTES).sum::<usize>() + MOUNT_BYTES;
    let memory = context.app.resources.reserve_memory(bytes as u64).await?;
    let (page, no_cache) = (DirectoryPage { entries, has_more: false }, HeaderValue::from_static("no-cache"));
    render(context, "", &page, is_html, false, (memory, no_cache))
}

/// Returns the listing of a group or dataset. In a view, its `documents` take the place of `attributes.json`, and
/// blocks are not listed.
pub(crate) async fn of_directory(
    context: &RequestContext<'_>,
    mount: &Mount,
    key: &Key,
    documents: Option<&[String]>,
) -> HandlerResult {
    let ListingQuery { is_html, after, with_blocks } = ListingQuery::parse(context)?;
    if let Some(redirect) = redirect_to_token_path(context, is_html) {
        return Ok(redirect);
    }
    let with_blocks = with_blocks && documents.is_none();
    let (mut page, memory) = read_page(context, mount, key, after.as_deref(), with_blocks).await?;
    if let Some(documents) = documents {
        page.entries.retain(|entry| entry.kind != EntryKind::File);
        let names = documents.iter().filter(|name| after.as_ref().is_none_or(|after| *name > after));
        let last_name = page.entries.last().map(|entry| entry.name.clone()).filter(|_| page.has_more);
        let names = names.filter(|name| last_name.as_ref().is_none_or(|last| *name <= last));
        page.entries.extend(names.map(|name| DirectoryEntry { name: name.clone(), kind: EntryKind::File }));
        page.entries.sort_by(|a, b| a.name.cmp(&b.name));
    }
    // Never immutable: groups and datasets may be added.
    let cache_control = mount.missing_cache_control.clone();
    render(context, &mount.path_of(key), &page, is_html, with_blocks, (memory, cache_control))
}

/// Query parameters of a listing. Unknown ones are ignored, because clients add their own.
struct ListingQuery {
    is_html: bool,
    /// `after`: entries after this name.
    after: Option<String>,
    /// `blocks`: grid components are listed, too.
    with_blocks: bool,
}

impl ListingQuery {
    /// Parses the query. The format is HTML unless JSON is requested, by `format=json` or by an `Accept` that names
    /// JSON and not HTML.
    ///
    /// # Errors
    /// 400 for an unknown or invalid value, 406 if `Accept` allows neither format.
    fn parse(context: &RequestContext<'_>) -> Result<Self, Problem> {
        let (mut format, mut after, mut blocks) = (None, None, None);
        for (name, value) in params::pairs(context.parts.uri.query()) {
            let (slot, known): (_, &[&'static str]) = match name.as_str() {
                "format" => (&mut format, &["html", "json"]),
                "blocks" => (&mut blocks, &["0", "1"]),
                "after" => (&mut after, &[]),
                _ => continue,
            };
            let Some(value) = value else {
                return Err(Problem::invalid_parameter(&name, format!("{name} is not percent-encoded UTF-8")));
            };
            if !known.is_empty() && !known.contains(&value.as_str()) {
                return Err(unknown_value(&name, &value, known));
            }
            // The first value of a repeated parameter counts.
            slot.get_or_insert(value);
        }
        let is_html = if let Some(format) = format {
            format == "html"
        } else {
            let (accept, known) = (context.list_header(&ACCEPT), ["text/html", "application/json"]);
            let media_type = output::best_media_type(&known, accept.as_deref()).ok_or_else(|| {
                let detail = "a listing is text/html or application/json; Accept allows neither";
                Problem::new(problem::NOT_ACCEPTABLE, detail).with_member("known", json!(known)).with_vary("accept")
            })?;
            media_type != "application/json"
        };
        Ok(Self { is_html, after, with_blocks: blocks.is_some_and(|value| value == "1") })
    }
}

/// Redirects a person whose URL has the token in the query to the same page below a path with the token, where every
/// link of the page repeats it. Programs that add the token to each URL themselves get the listing directly.
fn redirect_to_token_path(context: &RequestContext<'_>, is_html: bool) -> Option<Response<Body>> {
    let token = context.presented.query_token.as_deref().filter(|_| is_html)?;
    if !context.list_header(&ACCEPT)?.contains("text/html") {
        return None;
    }
    let inner = context.parts.uri.path().strip_prefix(context.app.options.base_path.as_str())?.trim_start_matches('/');
    let query = context.parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    // If the path has a token already, the relative root is the root below that token.
    let token = format!("token/{}/", route::encode_segment(token));
    let location = HeaderValue::from_str(&format!("{}{token}{inner}{query}", relative_root(context))).ok()?;
    Some(respond::redirect(StatusCode::SEE_OTHER, Some(location), "no-store"))
}

/// Renders the response. `memory` is reduced to its size and held until it is sent.
fn render(
    context: &RequestContext<'_>,
    path: &str,
    page: &DirectoryPage,
    is_html: bool,
    with_blocks: bool,
    (memory, cache_control): (MemoryPermit, HeaderValue),
) -> HandlerResult {
    let next = page.has_more.then(|| page.entries.last().map(|entry| entry.name.clone())).flatten();
    let (media_type, text) = if is_html {
        ("text/html; charset=utf-8", render_html(context, path, page, next.as_deref(), with_blocks))
    } else {
        ("application/json", render_json(path, page, next.as_deref()))
    };
    let mut entity = Entity { is_compressible: true, ..Entity::new(media_type, cache_control) };
    respond::add_vary(&mut entity.extra, "accept");
    if is_html {
        page::add_security_headers(&mut entity.extra, page::PAGE_CSP, &context.app.options.frame_ancestors);
    }
    if let Some(next) = next {
        let format = if is_html { "" } else { "&format=json" };
        // A client that needs a token for this page needs it for the next one.
        let token = context.presented.query_token.clone();
        let token = token.or_else(|| params::first_value(context.parts.uri.query(), "token"));
        let token = token.map_or_else(String::new, |token| format!("&token={}", route::encode_segment(&token)));
        let (after, blocks) = (route::encode_segment(&next), if with_blocks { "&blocks=1" } else { "" });
        let link = format!("<?after={after}{blocks}{format}{token}>; rel=\"next\"");
        respond::insert_header(&mut entity.extra, LINK, &link);
    }
    entity.respond(context.parts, respond::text_bytes(text, Some(memory)))
}

/// Renders `{"path", "entries": [{"name", "kind"}], "next"}`. It is written entry by entry: a single JSON value would
/// take many times the memory.
fn render_json(path: &str, page: &DirectoryPage, next: Option<&str>) -> String {
    let mut text = format!("{{\"path\":{},\"entries\":[", json!(path));
    for (n, entry) in page.entries.iter().enumerate() {
        let kind = match entry.kind {
            EntryKind::Group => "group",
            EntryKind::Dataset => "dataset",
            EntryKind::File => "file",
        };
        let comma = if n == 0 { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = write!(text, "{comma}{}", json!({ "name": entry.name, "kind": kind }));
    }
    let _ = write!(text, "],\"next\":{}}}", json!(next));
    text
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
    context: &RequestContext<'_>,
    path: &str,
    page: &DirectoryPage,
    next: Option<&str>,
    with_blocks: bool,
) -> String {
    let (base, viewer_attribute) =
        (relative_root(context), if context.app.viewer().is_some() { " data-viewer" } else { "" });
    let token_attribute = if context.presented.url_token().is_some() { " data-token" } else { "" };
    let title = escape_html(if path.is_empty() { "N5 container" } else { path });
    let assets_url = format!("{base}viewer/page/");
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{title}</title>\n\
         <link href=\"{assets_url}page.css\" rel=\"stylesheet\">\n<link href=\"{assets_url}preview.css\" rel=\"stylesheet\">\n\
         <link href=\"{assets_url}icon.svg\" rel=\"icon\">\n<script type=\"module\" src=\"{assets_url}page.js\"></script>\n\
         </head>\n<body>\n<main data-path=\"{}\" data-base=\"{base}\"{viewer_attribute}{token_attribute}>\n<h1>{title}</h1>\n<ul id=\"entries\">\n",
        escape_html(path)
    );
    for entry in &page.entries {
        let slash = if entry.kind == EntryKind::File { "" } else { "/" };
        let (href, name) = (route::encode_segment(&entry.name), escape_html(&entry.name));
        // Writing to a String cannot fail.
        let _ = writeln!(html, "<li><a href=\"{href}{slash}\">{name}{slash}</a></li>");
    }
    html.push_str("</ul>\n");
    if page.entries.is_empty() {
        html.push_str("<p>This group is empty.</p>\n");
    }
    if let Some(next) = next {
        let blocks_input = if with_blocks { "<input type=\"hidden\" name=\"blocks\" value=\"1\">" } else { "" };
        let after = escape_html(next);
        let _ = writeln!(
            html,
            "<form id=\"more\"><input type=\"hidden\" name=\"after\" value=\"{after}\">{blocks_input}<button>More</button></form>"
        );
    }
    html.push_str("</main>\n</body>\n</html>\n");
    html
}

/// Returns the reference from a directory's page to the root. It is relative because a proxy may strip or add a prefix.
fn relative_root(context: &RequestContext<'_>) -> String {
    let inner = context.parts.uri.path().strip_prefix(context.app.options.base_path.as_str()).unwrap_or_default();
    let depth = inner.matches('/').count().saturating_sub(1);
    if depth == 0 { "./".to_owned() } else { "../".repeat(depth) }
}

fn escape_html(text: &str) -> Cow<'_, str> {
    if !text.contains(['&', '<', '>', '"']) {
        return Cow::Borrowed(text);
    }
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").into()
}
