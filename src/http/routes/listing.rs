//! Directory listings: as JSON, or as an HTML page for browsers and for the parsers of three programs.

use std::fmt::Write;

use axum::body::Body;
use axum::http::header::{ACCEPT, LINK};
use axum::http::{HeaderValue, Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::json;

use crate::cache::{GroupState, MemoryPermit, ReadError};
use crate::container::{BYTES_PER_INDEX, DirectoryEntry, DirectoryPage, EntryKind, ZarrFormat};
use crate::http::forwarded;
use crate::http::html::{self, escape_attribute, escape_text};
use crate::http::mount::Mount;
use crate::http::problem::{self, Problem};
use crate::http::query::params::{self, unknown_value};
use crate::http::request::RequestContext;
use crate::http::respond::{self, Entity, HandlerResult};
use crate::http::route;
use crate::http::routes::page;
use crate::output;
use crate::store::Key;
use crate::view::{View, ViewLookup};

/// Maximum number of entries of one page. Pages are for JSON, which names the next page, and for browsers, which link to
/// it. All other programs take the listing for complete, so it is.
const MAX_PAGE_ENTRIES: usize = 10_000;

/// Memory for the entries of a page of [`MAX_PAGE_ENTRIES`] entries, and for the text that is rendered from them.
const PAGE_BYTES: u64 = 8 << 20;

/// Maximum memory for a complete listing that does not fit on one page. A listing takes at most half of the slice
/// budget. Half of the memory is for the entries that are read at once, and the other half for the text.
const MAX_COMPLETE_BYTES: u64 = 256 << 20;

/// Number of entries of a complete listing that are rendered before the length of the text is checked. The text of a long
/// name has several times as many bytes, because most of them are escaped.
const ENTRIES_PER_CHECK: usize = 16;

/// Maximum memory for the chunks of a view in a listing. A listing takes at most a quarter of the slice budget for them.
const MAX_CHUNKS_BYTES: u64 = 32 << 20;

/// Memory for an entry of a listing of chunks, and for the text that is rendered from it.
const CHUNK_ENTRY_BYTES: u64 = BYTES_PER_INDEX + 112;

/// Memory for reading the directory of a dataset in addition to its chunks. Few datasets have other directories.
const CHUNKS_PAGE_BYTES: u64 = 2 << 20;

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
    let mut query = ListingQuery::parse(context)?;
    if query.files == ListedFiles::WithBlocks {
        query.files = ListedFiles::Documents;
    }
    if let Some(redirect) = redirect_to_token_path(context, query.is_html) {
        return Ok(redirect);
    }
    let bytes = entries.iter().map(|entry| entry.name.len() + MOUNT_BYTES).sum::<usize>() + MOUNT_BYTES;
    let memory = context.app.resources.reserve_memory(bytes as u64).await?;
    let page = ListingEntries { entries, next: None, zarr: None };
    ListingPage { path: String::new(), page, query, cache_control: HeaderValue::from_static("no-cache") }
        .respond(context, memory)
}

/// Returns the listing of a group or dataset as stored.
pub(crate) async fn of_directory(context: &RequestContext<'_>, mount: &Mount, key: &Key) -> HandlerResult {
    let query = ListingQuery::parse(context)?;
    if let Some(redirect) = redirect_to_token_path(context, query.is_html) {
        return Ok(redirect);
    }
    DirectoryListing { context, mount, key, query, view_entries: None, exists_in_view: false }.respond(None).await
}

/// Returns the listing of a group or dataset in a view: the view's documents instead of stored files, and those groups
/// and datasets that the view can present. If blocks are requested, also lists chunks.
pub(crate) async fn of_view(
    context: &RequestContext<'_>,
    mount: &Mount,
    view: &dyn View,
    lookup: &ViewLookup<'_>,
) -> HandlerResult {
    let query = ListingQuery::parse(context)?;
    if let Some(redirect) = redirect_to_token_path(context, query.is_html) {
        return Ok(redirect);
    }
    let to_problem = |error| mount.problem(error);
    // A listing omits documents that the server cannot read.
    let documents = match ReadError::hidden_as_none(view.list_documents(lookup).await.map(Some)) {
        Err(ReadError::AttributesTooLarge { .. }) => Vec::new(),
        result => result.map_err(to_problem)?.unwrap_or_default(),
    };
    let to_entry = |kind| move |name| DirectoryEntry { name, kind };
    let mut entries: Vec<DirectoryEntry> = documents.into_iter().map(to_entry(EntryKind::File)).collect();
    let directories = match view.list_further_directories(lookup).await {
        Err(error) if error.hides_attributes() => Vec::new(),
        result => result.map_err(to_problem)?,
    };
    entries.extend(directories.into_iter().map(to_entry(EntryKind::Dataset)));
    let mut chunks_memory = None;
    if query.files != ListedFiles::Documents {
        let container = &mount.container;
        let chunks_bytes = MAX_CHUNKS_BYTES.min(container.resources().settings().slice_budget / 4);
        let max_chunks = usize::try_from(chunks_bytes / CHUNK_ENTRY_BYTES).unwrap_or(usize::MAX);
        let memory = container.reserve_memory(chunks_bytes.saturating_add(CHUNKS_PAGE_BYTES)).await?;
        let chunks = Box::pin(view.list_chunks(lookup, max_chunks));
        match container.abort_if_contended(lookup.key, chunks).await {
            Err(error) if error.hides_attributes() => {}
            chunks => {
                if let Some(chunks) = chunks.map_err(to_problem)? {
                    entries.extend(chunks);
                    chunks_memory = Some(memory);
                }
            }
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    let exists_in_view = !entries.is_empty() || chunks_memory.is_some();
    DirectoryListing { context, mount, key: lookup.key, query, view_entries: Some(entries), exists_in_view }
        .respond(chunks_memory)
        .await
}

/// A directory that is to be listed.
struct DirectoryListing<'a> {
    context: &'a RequestContext<'a>,
    mount: &'a Mount,
    key: &'a Key,
    query: ListingQuery,
    /// Entries that a view lists instead of stored files, sorted; `None` outside views.
    view_entries: Option<Vec<DirectoryEntry>>,
    /// True if the view has the directory, even if the container does not.
    exists_in_view: bool,
}

impl DirectoryListing<'_> {
    /// Returns the response. `chunks_memory` is the permit for the entries of the view if these include chunks, and for
    /// reading the directory.
    async fn respond(self, chunks_memory: Option<MemoryPermit>) -> HandlerResult {
        let lists_chunks = chunks_memory.is_some();
        let (mut page, memory) = match chunks_memory {
            Some(memory) => (self.read_entries(self.query.after.as_deref(), CHUNKS_PAGE_BYTES).await?, memory),
            None => self.read_page().await?,
        };
        if page.next.is_some() && self.query.is_complete {
            drop(page);
            return self.respond_completely(memory, lists_chunks).await;
        }
        if lists_chunks && !self.query.is_complete && page.entries.len() > MAX_PAGE_ENTRIES {
            page.entries.truncate(MAX_PAGE_ENTRIES);
            page.next = page.entries.last().map(|entry| entry.name.clone());
        }
        // The response is never immutable, because groups and datasets may be added.
        let cache_control = self.mount.missing_cache_control.clone();
        let path = self.mount.path_of(self.key);
        ListingPage { path, page, query: self.query, cache_control }.respond(self.context, memory)
    }

    /// Returns the response with all entries of a directory that does not fit on one page. The entries are read and
    /// rendered in several steps, so that most of the memory is for the text. `memory` is the permit of the first page,
    /// and of the view's chunks if `lists_chunks` is true.
    async fn respond_completely(self, memory: MemoryPermit, lists_chunks: bool) -> HandlerResult {
        let container = &self.mount.container;
        let budget_bytes = container.resources().settings().slice_budget;
        // While the text grows, the old buffer and the new one may exist at the same time.
        let (memory, page_bytes, max_text_bytes) = if lists_chunks {
            // The view's entries stay in memory, and a request that holds memory must not wait for more.
            (memory, CHUNKS_PAGE_BYTES, MAX_CHUNKS_BYTES.min(budget_bytes / 4) / 4)
        } else {
            drop(memory);
            let bytes = MAX_COMPLETE_BYTES.min(budget_bytes / 2);
            (container.reserve_memory(bytes).await?, bytes / 2, bytes / 4)
        };
        let mut after = None;
        let page = ListingEntries { entries: Vec::new(), next: None, zarr: None };
        let cache_control = self.mount.missing_cache_control.clone();
        let listing =
            ListingPage { path: self.mount.path_of(self.key), page, query: self.query.clone(), cache_control };
        let mut html = listing.html_before_entries(self.context);
        loop {
            let page = self.read_entries(after.as_deref(), page_bytes).await?;
            for entries in page.entries.chunks(ENTRIES_PER_CHECK) {
                listing.push_html_entries(&mut html, entries);
                if html.len() as u64 > max_text_bytes {
                    let detail = format!(
                        "the listing has more than {max_text_bytes} bytes, a share of limits.slice_budget; request it \
                         in pages with ?format=json, where `next` names the entry after which the next page begins"
                    );
                    return Err(Problem::too_large(detail, max_text_bytes));
                }
            }
            after = match page.next {
                Some(next) => Some(next),
                None => break,
            };
        }
        listing.push_html_after_entries(&mut html, self.context);
        listing.respond_with_text(self.context, html, memory)
    }

    /// Reads a page of the entries of a directory, and returns it with its memory permit. If `limits.slice_budget` is
    /// small, pages have fewer entries.
    ///
    /// If the memory for a whole page is not free, a small permit is taken first. It is enough for a directory with few
    /// entries, and does not wait for slow clients.
    async fn read_page(&self) -> Result<(ListingEntries, MemoryPermit), Problem> {
        let container = &self.mount.container;
        let resources = container.resources();
        let after = self.query.after.as_deref();
        let full_bytes = PAGE_BYTES.min(resources.settings().slice_budget);
        if let Some(memory) = resources.try_reserve_memory(full_bytes) {
            return Ok((self.read_entries(after, full_bytes).await?, memory));
        }
        let mut bytes = resources.max_overtaking_bytes().min(full_bytes);
        let memory = if let Some(memory) = resources.try_reserve_memory(bytes) {
            memory
        } else {
            bytes = bytes.min(MIN_LISTING_BYTES);
            container.reserve_memory(bytes).await?
        };
        let page = self.read_entries(after, bytes).await?;
        if page.next.is_none() {
            return Ok((page, memory));
        }
        drop((page, memory));
        // The directory has more entries than fit into the small permit, so it is read again.
        let memory = container.reserve_memory(full_bytes).await?;
        Ok((self.read_entries(after, full_bytes).await?, memory))
    }

    /// Reads entries that follow the name `after`, as many as `bytes` suffice for.
    async fn read_entries(&self, after: Option<&str>, bytes: u64) -> Result<ListingEntries, Problem> {
        let container = &self.mount.container;
        let max_entries = usize::try_from(bytes / (PAGE_BYTES / MAX_PAGE_ENTRIES as u64)).unwrap_or(MAX_PAGE_ENTRIES);
        let max_entries =
            max_entries.clamp(1, MAX_PAGE_ENTRIES.max(if self.query.is_complete { max_entries } else { 0 }));
        let lists_blocks = self.query.files != ListedFiles::Documents && self.view_entries.is_none();
        let listing = container.list(self.context.read_options, self.key, after, max_entries, lists_blocks);
        let page = ReadError::hidden_as_none(container.abort_if_contended(self.key, Box::pin(listing)).await)?;
        let Some(view_entries) = &self.view_entries else {
            return page.map(ListingEntries::of_page).ok_or_else(|| self.mount.not_found());
        };
        // A view has directories that the container does not have, such as those of chunks in Zarr 3.
        let page = match page {
            None if !self.exists_in_view => return Err(self.mount.not_found()),
            None => DirectoryPage { entries: Vec::new(), has_more: false, zarr: None },
            Some(page) => page,
        };
        let mut page = ListingEntries::of_page(page);
        self.retain_presentable(&mut page.entries).await?;
        page.merge(view_entries, after);
        Ok(page)
    }

    /// Removes files, and directories that a view cannot present: datasets that are not decoded, and directories whose
    /// attributes cannot be read. A program that lists a container recursively would otherwise fail at them, or take
    /// them for groups.
    async fn retain_presentable(&self, entries: &mut Vec<DirectoryEntry>) -> Result<(), Problem> {
        let mut kept = Vec::with_capacity(entries.len());
        for entry in entries.drain(..) {
            let Ok(key) = self.key.child(&entry.name) else { continue };
            if entry.kind == EntryKind::File {
                continue;
            }
            let is_presentable = match self.mount.container.group(self.context.read_options, &key).await {
                Ok(group) => match &group.state {
                    GroupState::Dataset(dataset) => dataset.attributes.is_decodable(),
                    GroupState::Unusable(..) => false,
                    GroupState::NoAttributes | GroupState::Broken(_) | GroupState::Attributes(_) => true,
                },
                Err(error) if error.hides_attributes() => false,
                Err(error) => return Err(self.mount.problem(error)),
            };
            if is_presentable {
                kept.push(entry);
            }
        }
        *entries = kept;
        Ok(())
    }
}

/// Entries of a directory that are listed together.
struct ListingEntries {
    entries: Vec<DirectoryEntry>,
    /// Name after which the next page begins; `None` on the last page.
    next: Option<String>,
    /// Format of the Zarr store to which the directory belongs, if that was seen.
    zarr: Option<ZarrFormat>,
}

impl ListingEntries {
    fn of_page(page: DirectoryPage) -> Self {
        let next = page.entries.last().filter(|_| page.has_more).map(|entry| entry.name.clone());
        Self { entries: page.entries, next, zarr: page.zarr }
    }

    /// Adds those of `further`, which are sorted, that belong on this page: those after `after`, and before the next
    /// page. A name that is already on the page is not added.
    fn merge(&mut self, further: &[DirectoryEntry], after: Option<&str>) {
        let belongs = |entry: &&DirectoryEntry| {
            let name = entry.name.as_str();
            after.is_none_or(|after| name > after) && self.next.as_deref().is_none_or(|next| name <= next)
        };
        let further: Vec<DirectoryEntry> = further.iter().filter(belongs).cloned().collect();
        self.entries.extend(further);
        self.entries.sort_by(|a, b| a.name.cmp(&b.name));
        self.entries.dedup_by(|a, b| a.name == b.name);
    }
}

/// Files that a listing contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListedFiles {
    /// Documents, but no blocks.
    Documents,
    /// Blocks, too, because the query has `blocks=1`. The links to directories repeat that.
    WithBlocks,
    /// Every file, because the path is below `/files/`. The listing is plain HTML, without script.
    Every,
}

/// Query parameters of a listing. Unknown parameters are ignored, because clients add parameters of their own.
#[derive(Clone)]
struct ListingQuery {
    is_html: bool,
    /// True if the listing must not be cut: the client neither reads the address of the next page, as readers of JSON
    /// do, nor shows it to a person, as browsers do.
    is_complete: bool,
    /// `after`: the name after which the page begins.
    after: Option<String>,
    /// Files that are listed.
    files: ListedFiles,
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
        let accept = context.list_header(&ACCEPT);
        let is_html = if let Some(format) = format {
            format == "html"
        } else {
            let known = ["text/html", "application/json"];
            let media_type = output::best_media_type(&known, accept.as_deref()).ok_or_else(|| {
                let detail = "a listing is text/html or application/json; Accept allows neither";
                Problem::new(problem::NOT_ACCEPTABLE, detail).with_member("known", json!(known)).with_vary("accept")
            })?;
            media_type != "application/json"
        };
        // Of all clients, only browsers name this type.
        let is_browser = accept.is_some_and(|accept| accept.contains("application/xhtml+xml"));
        let files = match blocks.as_deref() {
            _ if context.target.lists_every_file => ListedFiles::Every,
            Some("1") => ListedFiles::WithBlocks,
            Some(_) | None => ListedFiles::Documents,
        };
        let is_complete = is_html && after.is_none() && (files == ListedFiles::Every || !is_browser);
        Ok(Self { is_html, is_complete, after, files })
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
    page: ListingEntries,
    query: ListingQuery,
    cache_control: HeaderValue,
}

impl ListingPage {
    /// Renders the response, whose body owns `memory`: the permit is reduced to the body's length, and freed when the
    /// body has been sent.
    fn respond(self, context: &RequestContext<'_>, memory: MemoryPermit) -> HandlerResult {
        let text = if self.query.is_html { self.to_html(context) } else { self.to_json() };
        self.respond_with_text(context, text, memory)
    }

    fn respond_with_text(self, context: &RequestContext<'_>, text: String, memory: MemoryPermit) -> HandlerResult {
        let media_type = if self.query.is_html { "text/html; charset=utf-8" } else { "application/json" };
        let entity = Entity::new(media_type, self.cache_control.clone());
        let mut entity = Entity { is_compressible: true, ..entity };
        respond::add_vary(&mut entity.extra, "accept");
        if self.query.is_html {
            page::add_security_headers(&mut entity.extra, page::PAGE_CSP, &context.app.options.frame_ancestors);
        }
        if let Some(next) = &self.page.next {
            respond::insert_header(&mut entity.extra, LINK, &self.next_link(context, next));
        }
        drop(self);
        entity.respond(context.parts, respond::text_bytes(text, Some(memory)))
    }

    /// Returns the `Link` to the next page.
    fn next_link(&self, context: &RequestContext<'_>, next: &str) -> String {
        // A client that needs a token for this page needs it for the next one.
        let token = context.presented.query_token.clone();
        let token = token.or_else(|| params::first_value(context.parts.uri.query(), "token"));
        let token = token.map_or_else(String::new, |token| format!("&token={}", route::encode_segment(&token)));
        let after = route::encode_segment(next);
        let blocks = if self.query.files == ListedFiles::WithBlocks { "&blocks=1" } else { "" };
        let format = if self.query.is_html { "" } else { "&format=json" };
        format!("<?after={after}{blocks}{format}{token}>; rel=\"next\"")
    }

    /// Renders `{"path", "entries": [{"name", "kind"}], "next"}`, and `"store"` for a Zarr store. The text is written
    /// entry by entry, because a JSON value of the whole page would take many times the memory.
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
        let store = self.page.zarr.map_or_else(String::new, |zarr| format!(",\"store\":\"{}\"", zarr.name()));
        let _ = write!(text, "],\"next\":{}{store}}}", json!(self.page.next));
        text
    }

    /// Renders the HTML page.
    ///
    /// Java N5, Neuroglancer and fsspec find the entries by the pattern `href="…">text` (`n5:http/*.java`,
    /// `ng:html_directory_listing.ts`, `fsspec:http.py`). Therefore only entries match it, one per line. The links to
    /// styles and icon have an attribute between `href` and `>`. GDAL reads only pages with the title `Index of PATH`,
    /// where PATH is the decoded path of the URL, without a slash at its end (`gdal:cpl_vsil_curl.cpp`).
    ///
    /// `page/page.js` completes the page from the attributes of `main`. `data-path` is the path in the container.
    /// `data-base` leads from here to the server's root, whatever prefix a proxy strips. `data-viewer` is present if
    /// `/viewer/` is served, and `data-token` if the page's URL has a token. `data-name` is the name of a single
    /// container.
    fn to_html(&self, context: &RequestContext<'_>) -> String {
        let mut html = self.html_before_entries(context);
        self.push_html_entries(&mut html, &self.page.entries);
        self.push_html_after_entries(&mut html, context);
        html
    }

    fn html_before_entries(&self, context: &RequestContext<'_>) -> String {
        if self.query.files == ListedFiles::Every {
            let path = escape_text(context.parts.uri.path());
            return format!(
                "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
                 <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
                 <title>Index of {path}</title>\n</head>\n<body>\n<main>\n<h1>Index of {path}</h1>\n<ul>\n"
            );
        }
        let base = relative_root(context);
        let assets_url = format!("{base}viewer/page/");
        let path = escape_attribute(&self.path);
        // The name of a container belongs to its root, and is shown to those who may read that.
        let may_read_root = context.caller_view.is_none_or(|view| view.may_read(""));
        let container = context.app.container_title().filter(|_| may_read_root);
        let heading = if self.path.is_empty() { container.unwrap_or("N5 container") } else { self.path.as_str() };
        let heading = escape_text(heading);
        let name_attribute =
            container.map_or_else(String::new, |name| format!(" data-name=\"{}\"", escape_attribute(name)));
        let url_path = client_path(context);
        let title = escape_text(&url_path);
        let viewer_attribute = if context.app.viewer().is_some() { " data-viewer" } else { "" };
        let token_attribute = if context.presented.url_token().is_some() { " data-token" } else { "" };
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
             <title>Index of {title}</title>\n\
             <link href=\"{assets_url}page.css\" rel=\"stylesheet\">\n\
             <link href=\"{assets_url}icon.svg\" rel=\"icon\">\n<script type=\"module\" src=\"{assets_url}page.js\"></script>\n\
             </head>\n<body>\n<main data-path=\"{path}\" data-base=\"{base}\"{name_attribute}{viewer_attribute}{token_attribute}>\n<h1>{heading}</h1>\n<ul id=\"entries\">\n"
        )
    }

    /// Appends an item for each entry. If blocks were requested by the query, the links to directories repeat that, so
    /// that programs that follow links find all blocks.
    fn push_html_entries(&self, html: &mut String, entries: &[DirectoryEntry]) {
        let directory_query = if self.query.files == ListedFiles::WithBlocks { "?blocks=1" } else { "" };
        for entry in entries {
            let (slash, query) = if entry.kind == EntryKind::File { ("", "") } else { ("/", directory_query) };
            let href = route::encode_segment(&entry.name);
            let name = escape_text(&entry.name);
            // Writing to a String cannot fail.
            let _ = writeln!(html, "<li><a href=\"{href}{slash}{query}\">{name}{slash}</a></li>");
        }
    }

    fn push_html_after_entries(&self, html: &mut String, context: &RequestContext<'_>) {
        let is_empty = !html.ends_with("</li>\n");
        html.push_str("</ul>\n");
        if self.page.zarr.is_some() {
            html.push_str(
                "<p>This is a Zarr store. This server reads N5 only; any file server can serve the store.</p>\n",
            );
        } else if is_empty {
            html.push_str("<p>This group is empty.</p>\n");
        }
        if let Some(next) = &self.page.next {
            let after = escape_attribute(next);
            let blocks_input = if self.query.files == ListedFiles::WithBlocks {
                "<input type=\"hidden\" name=\"blocks\" value=\"1\">"
            } else {
                ""
            };
            // Writing to a String cannot fail.
            let _ = writeln!(
                html,
                "<form id=\"more\"><input type=\"hidden\" name=\"after\" value=\"{after}\">{blocks_input}<button>More</button></form>"
            );
        }
        html.push_str("</main>\n");
        // A list for programs has nothing but entries.
        if self.query.files != ListedFiles::Every {
            html.push_str(&html::footer(&relative_root(context)));
        }
        html.push_str("</body>\n</html>\n");
    }
}

/// Returns the relative reference from a directory's page to the root, which is below the token if the path has one.
fn relative_root(context: &RequestContext<'_>) -> String {
    html::relative_root(context.parts.uri.path(), &context.app.options.base_path, 0)
}

/// Returns the decoded path of the URL that the client requested, without its token and without a slash at its end.
fn client_path(context: &RequestContext<'_>) -> String {
    let prefix = forwarded::public_prefix(context.parts, context.peer, &context.app.options);
    let path = percent_decode_str(context.parts.uri.path()).decode_utf8_lossy();
    let path = format!("{prefix}{}", path.trim_end_matches('/'));
    if path.is_empty() { "/".to_owned() } else { path }
}
