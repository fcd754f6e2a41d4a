//! Directory listings: as JSON, or as an HTML page for browsers and for the parsers of three programs.

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

/// Memory for the entries of a page of [`MAX_PAGE_ENTRIES`] entries, and for the text that is rendered from them.
const PAGE_BYTES: u64 = 8 << 20;

/// Memory for the first read of a directory if not even a small permit is free. A request hardly ever waits for so
/// little memory, because the smallest responses take as much.
const MIN_LISTING_BYTES: u64 = 32 << 10;

/// Memory for each entry in the list of containers, in addition to its name. The page around the list takes as much.
const MOUNT_BYTES: usize = 1 << 10;

/// Returns the list of containers. Only a server with several containers has such a list.
pub(crate) async fn of_mounts(context: &RequestContext<'_>) -> HandlerResult {
    let mut entries: Vec<DirectoryEntry> = context
        .app
        .mounts
        .iter()
        .filter(|mount| context.caller_view.is_none_or(|view| view.may_read(&mount.name)))
        .map(|mount| DirectoryEntry { name: mount.name.clone(), kind: EntryKind::Group })
        .collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let query = ListingQuery { with_blocks: false, ..ListingQuery::parse(context)? };
    if let Some(redirect) = redirect_to_token_path(context, query.is_html) {
        return Ok(redirect);
    }
    let bytes = entries.iter().map(|entry| entry.name.len() + MOUNT_BYTES).sum::<usize>() + MOUNT_BYTES;
    let memory = context.app.resources.reserve_memory(bytes as u64).await?;
    let page = DirectoryPage { entries, has_more: false };
    ListingPage { path: String::new(), page, query, cache_control: HeaderValue::from_static("no-cache") }
        .respond(context, memory)
}

/// Returns the listing of a group or dataset. In a view, the view's `documents` are listed instead of stored files, and
/// blocks are not listed.
pub(crate) async fn of_directory(
    context: &RequestContext<'_>,
    mount: &Mount,
    key: &Key,
    documents: Option<&[String]>,
) -> HandlerResult {
    let mut query = ListingQuery::parse(context)?;
    if let Some(redirect) = redirect_to_token_path(context, query.is_html) {
        return Ok(redirect);
    }
    query.with_blocks &= documents.is_none();
    let (mut page, memory) = read_page(context, mount, key, &query).await?;
    if let Some(documents) = documents {
        replace_files(&mut page, documents, query.after.as_deref());
    }
    // The response is never immutable, because groups and datasets may be added.
    let cache_control = mount.missing_cache_control.clone();
    ListingPage { path: mount.path_of(key), page, query, cache_control }.respond(context, memory)
}

/// Reads a page of the entries of a directory, and returns it with its memory permit. If `limits.slice_budget` is
/// small, pages have fewer entries.
///
/// If the memory for a whole page is not free, a small permit is taken first. It is enough for a directory with few
/// entries, and does not wait for slow clients.
async fn read_page(
    context: &RequestContext<'_>,
    mount: &Mount,
    key: &Key,
    query: &ListingQuery,
) -> Result<(DirectoryPage, MemoryPermit), Problem> {
    let container = &mount.container;
    let resources = container.resources();
    let read_entries = async |bytes: u64| {
        let max_entries = usize::try_from(bytes / (PAGE_BYTES / MAX_PAGE_ENTRIES as u64)).unwrap_or(MAX_PAGE_ENTRIES);
        let max_entries = max_entries.clamp(1, MAX_PAGE_ENTRIES);
        let listing = container.list(context.read_options, key, query.after.as_deref(), max_entries, query.with_blocks);
        let page = ReadError::hidden_as_none(container.abort_if_contended(key, Box::pin(listing)).await)?;
        page.ok_or_else(|| mount.not_found())
    };
    let full_bytes = PAGE_BYTES.min(resources.settings().slice_budget);
    if let Some(memory) = resources.try_reserve_memory(full_bytes) {
        return Ok((read_entries(full_bytes).await?, memory));
    }
    let mut bytes = resources.max_overtaking_bytes().min(full_bytes);
    let memory = if let Some(memory) = resources.try_reserve_memory(bytes) {
        memory
    } else {
        bytes = bytes.min(MIN_LISTING_BYTES);
        container.reserve_memory(bytes).await?
    };
    let page = read_entries(bytes).await?;
    if !page.has_more {
        return Ok((page, memory));
    }
    drop((page, memory));
    // The directory has more entries than fit into the small permit, so it is read again.
    let memory = container.reserve_memory(full_bytes).await?;
    Ok((read_entries(full_bytes).await?, memory))
}

/// Replaces the files on a page by the names in `documents` that belong on this page: those after `after`, and before
/// the next page.
fn replace_files(page: &mut DirectoryPage, documents: &[String], after: Option<&str>) {
    page.entries.retain(|entry| entry.kind != EntryKind::File);
    let last_name = page.entries.last().map(|entry| entry.name.clone()).filter(|_| page.has_more);
    let names = documents.iter().filter(|name| {
        after.is_none_or(|after| name.as_str() > after) && last_name.as_ref().is_none_or(|last| *name <= last)
    });
    page.entries.extend(names.map(|name| DirectoryEntry { name: name.clone(), kind: EntryKind::File }));
    page.entries.sort_by(|a, b| a.name.cmp(&b.name));
}

/// Query parameters of a listing. Unknown parameters are ignored, because clients add parameters of their own.
struct ListingQuery {
    is_html: bool,
    /// `after`: the name after which the page begins.
    after: Option<String>,
    /// `blocks`: true if directories and files of blocks are listed.
    with_blocks: bool,
}

impl ListingQuery {
    /// Parses the query. The format is HTML unless JSON is requested, by `format=json` or by an `Accept` that names
    /// JSON and not HTML.
    ///
    /// # Errors
    /// Returns a problem with status 400 for an unknown or invalid value, 406 if `Accept` allows neither format.
    fn parse(context: &RequestContext<'_>) -> Result<Self, Problem> {
        let mut format = None;
        let mut after = None;
        let mut blocks = None;
        for (name, value) in params::pairs(context.parts.uri.query()) {
            let (parameter, known): (_, &[&'static str]) = match name.as_str() {
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
            parameter.get_or_insert(value);
        }
        let is_html = if let Some(format) = format {
            format == "html"
        } else {
            let known = ["text/html", "application/json"];
            let accept = context.list_header(&ACCEPT);
            let media_type = output::best_media_type(&known, accept.as_deref()).ok_or_else(|| {
                let detail = "a listing is text/html or application/json; Accept allows neither";
                Problem::new(problem::NOT_ACCEPTABLE, detail).with_member("known", json!(known)).with_vary("accept")
            })?;
            media_type != "application/json"
        };
        Ok(Self { is_html, after, with_blocks: blocks.is_some_and(|value| value == "1") })
    }
}

/// Returns a redirect if a browser requests a page by a URL with a token in the query. The redirect leads to the same
/// page below `/token/TOKEN/`, so that the relative links of the page repeat the token. Programs add the token to each
/// URL themselves, and get the listing at once.
fn redirect_to_token_path(context: &RequestContext<'_>, is_html: bool) -> Option<Response<Body>> {
    let token = context.presented.query_token.as_deref().filter(|_| is_html)?;
    if !context.list_header(&ACCEPT)?.contains("text/html") {
        return None;
    }
    let inner = context.parts.uri.path().strip_prefix(context.app.options.base_path.as_str())?.trim_start_matches('/');
    let query = context.parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    // A token in the path was stripped from `uri` earlier. The location is relative to the URL that the client sees, so
    // the new token ends up after the old one.
    let token = format!("token/{}/", route::encode_segment(token));
    let location = HeaderValue::from_str(&format!("{}{token}{inner}{query}", relative_root(context))).ok()?;
    Some(respond::redirect(StatusCode::SEE_OTHER, Some(location), "no-store"))
}

/// A page of the entries of a directory, as the client requests it.
struct ListingPage {
    /// Path of the directory from the server's root.
    path: String,
    page: DirectoryPage,
    query: ListingQuery,
    cache_control: HeaderValue,
}

impl ListingPage {
    /// Renders the response, whose body owns `memory`: the permit is reduced to the body's length, and freed when the
    /// body has been sent.
    fn respond(self, context: &RequestContext<'_>, memory: MemoryPermit) -> HandlerResult {
        let (media_type, text) = if self.query.is_html {
            ("text/html; charset=utf-8", self.to_html(context))
        } else {
            ("application/json", self.to_json())
        };
        let entity = Entity::new(media_type, self.cache_control.clone());
        let mut entity = Entity { is_compressible: true, ..entity };
        respond::add_vary(&mut entity.extra, "accept");
        if self.query.is_html {
            page::add_security_headers(&mut entity.extra, page::PAGE_CSP, &context.app.options.frame_ancestors);
        }
        if let Some(next) = self.next() {
            respond::insert_header(&mut entity.extra, LINK, &self.next_link(context, next));
        }
        drop(self);
        entity.respond(context.parts, respond::text_bytes(text, Some(memory)))
    }

    /// Returns the name after which the next page begins; `None` for the last page.
    fn next(&self) -> Option<&str> {
        self.page.entries.last().filter(|_| self.page.has_more).map(|entry| entry.name.as_str())
    }

    /// Returns the `Link` to the next page.
    fn next_link(&self, context: &RequestContext<'_>, next: &str) -> String {
        // A client that needs a token for this page needs it for the next one.
        let token = context.presented.query_token.clone();
        let token = token.or_else(|| params::first_value(context.parts.uri.query(), "token"));
        let token = token.map_or_else(String::new, |token| format!("&token={}", route::encode_segment(&token)));
        let after = route::encode_segment(next);
        let blocks = if self.query.with_blocks { "&blocks=1" } else { "" };
        let format = if self.query.is_html { "" } else { "&format=json" };
        format!("<?after={after}{blocks}{format}{token}>; rel=\"next\"")
    }

    /// Renders `{"path", "entries": [{"name", "kind"}], "next"}`. The text is written entry by entry, because a JSON
    /// value of the whole page would take many times the memory.
    fn to_json(&self) -> String {
        let mut text = format!("{{\"path\":{},\"entries\":[", json!(self.path));
        for (index, entry) in self.page.entries.iter().enumerate() {
            let kind = match entry.kind {
                EntryKind::Group => "group",
                EntryKind::Dataset => "dataset",
                EntryKind::File => "file",
            };
            let comma = if index == 0 { "" } else { "," };
            // Writing to a String cannot fail.
            let _ = write!(text, "{comma}{}", json!({ "name": entry.name, "kind": kind }));
        }
        let _ = write!(text, "],\"next\":{}}}", json!(self.next()));
        text
    }

    /// Renders the HTML page.
    ///
    /// Java N5, Neuroglancer and fsspec find the entries by the pattern `href="…">text` (`n5:http/*.java`,
    /// `ng:html_directory_listing.ts`, `fsspec:http.py`). Therefore only entries match it, one per line. The links to
    /// styles and icon have an attribute between `href` and `>`.
    ///
    /// `page/page.js` completes the page from the attributes of `main`. `data-path` is the path in the container.
    /// `data-base` leads from here to the server's root, whatever prefix a proxy strips. `data-viewer` is present if
    /// `/viewer/` is served, and `data-token` if the page's URL has a token.
    fn to_html(&self, context: &RequestContext<'_>) -> String {
        let base = relative_root(context);
        let assets_url = format!("{base}viewer/page/");
        let path = escape_html(&self.path);
        let title = if path.is_empty() { "N5 container" } else { &path };
        let viewer_attribute = if context.app.viewer().is_some() { " data-viewer" } else { "" };
        let token_attribute = if context.presented.url_token().is_some() { " data-token" } else { "" };
        let mut html = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
             <title>{title}</title>\n\
             <link href=\"{assets_url}page.css\" rel=\"stylesheet\">\n<link href=\"{assets_url}preview.css\" rel=\"stylesheet\">\n\
             <link href=\"{assets_url}icon.svg\" rel=\"icon\">\n<script type=\"module\" src=\"{assets_url}page.js\"></script>\n\
             </head>\n<body>\n<main data-path=\"{path}\" data-base=\"{base}\"{viewer_attribute}{token_attribute}>\n<h1>{title}</h1>\n<ul id=\"entries\">\n"
        );
        for entry in &self.page.entries {
            let slash = if entry.kind == EntryKind::File { "" } else { "/" };
            let href = route::encode_segment(&entry.name);
            let name = escape_html(&entry.name);
            // Writing to a String cannot fail.
            let _ = writeln!(html, "<li><a href=\"{href}{slash}\">{name}{slash}</a></li>");
        }
        html.push_str("</ul>\n");
        if self.page.entries.is_empty() {
            html.push_str("<p>This group is empty.</p>\n");
        }
        if let Some(next) = self.next() {
            let after = escape_html(next);
            let blocks_input =
                if self.query.with_blocks { "<input type=\"hidden\" name=\"blocks\" value=\"1\">" } else { "" };
            let _ = writeln!(
                html,
                "<form id=\"more\"><input type=\"hidden\" name=\"after\" value=\"{after}\">{blocks_input}<button>More</button></form>"
            );
        }
        html.push_str("</main>\n</body>\n</html>\n");
        html
    }
}

/// Returns the relative reference from a directory's page to the root. An absolute one would be wrong behind a proxy
/// that strips or adds a prefix.
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
