//! Lists directories of HTTP servers: by their indexes, or as prefixes of a bucket whose URL is given without a scheme
//! of its own. The kind of listing that a server has is found out by trial and remembered.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use percent_encoding::utf8_percent_encode;
use url::Url;

use super::bucket::{BucketDirectory, BucketProtocol, ENCODED};
use super::error_document::ErrorAnswer;
use super::html_index::parse_html;
use super::index_entry::IndexEntry;
use super::json_index::{JsonIndex, parse_json};
use super::page_reader::{INDEX_HEAD_BYTES, MAX_INDEX_BYTES, PageReader};
use super::selection::EntrySelection;
use super::transport::{ListingError, ListingResponse};
use crate::store::key::Key;

/// A server without listings is tried again after this time.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Query of an index. n5-server then lists everything, as JSON. File servers ignore it.
const INDEX_QUERY: &str = "?blocks=1&format=json";

/// Name after all others. With it, the index of n5-server is empty, and as cheap as a test for existence can be.
const LAST_NAME: &str = "\u{10ffff}";

/// A root on an HTTP server.
#[derive(Debug)]
pub(super) struct HttpRoot {
    origin: Url,
    /// Decoded path of the root, without slashes at its ends.
    prefix: String,
    /// Name of an object that only directories contain. It shows that a directory exists if the server has no listings.
    marker: &'static str,
    /// Kind of listing that the server has, and when it was found out.
    kind: Mutex<Option<(ServerKind, Instant)>>,
}

/// The kind of listing that a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerKind {
    /// An index.
    Index,
    /// Listings of a bucket, which is the server itself.
    BucketAtOrigin,
    /// Listings of a bucket, whose name is the first segment of the path.
    BucketInPath,
    /// Nothing.
    Unlisted,
}

/// Result of a request for an index.
enum IndexAnswer {
    /// It is an index.
    Index,
    /// There is no such path, or the server has no indexes.
    Missing,
    /// There is no index, for this reason.
    NoIndex(String),
}

impl HttpRoot {
    /// Creates a root from the server's origin and a decoded path.
    ///
    /// # Errors
    /// Returns an error if the origin is not a URL.
    pub(super) fn new(origin: &str, prefix: &str, marker: &'static str) -> Result<Self, url::ParseError> {
        let prefix = prefix.trim_matches('/').to_owned();
        Ok(Self { origin: Url::parse(origin)?, prefix, marker, kind: Mutex::default() })
    }

    /// Offers the entries of a directory to `selection`, at least as many as it needs. Returns true if the directory
    /// exists.
    ///
    /// # Errors
    /// Returns an error if a request fails, or if the server has no listing of the directory.
    pub(super) async fn list(
        &self,
        pages: &PageReader<'_>,
        selection: &mut EntrySelection<'_>,
    ) -> Result<bool, ListingError> {
        let key = selection.request().directory;
        let kind = self.kind();
        if let Some(bucket) = kind.and_then(|kind| self.bucket_directory(kind, key)) {
            return bucket.list(pages, selection).await;
        }
        let mut reason = "it has neither an index nor the interface of a bucket".to_owned();
        if kind != Some(ServerKind::Unlisted) {
            match self.list_index(pages, selection).await? {
                IndexAnswer::Index => {
                    self.remember(ServerKind::Index);
                    return Ok(true);
                }
                IndexAnswer::Missing if kind == Some(ServerKind::Index) => return Ok(false),
                IndexAnswer::Missing => {}
                IndexAnswer::NoIndex(text) => reason = text,
            }
            if kind.is_none()
                && let Some(bucket) = self.find_bucket(pages, key).await?
            {
                return bucket.list(pages, selection).await;
            }
        }
        if !self.has_marker(pages, key).await? {
            return Ok(false);
        }
        if kind.is_none() {
            self.remember(ServerKind::Unlisted);
        }
        Err(ListingError::CannotList(key.clone(), reason))
    }

    /// Returns true if the server has an index of a directory, or a key with its prefix. Without listings, returns true
    /// for the root, and for directories that contain the marker.
    ///
    /// # Errors
    /// Returns an error if a request fails.
    pub(super) async fn is_directory(&self, pages: &PageReader<'_>, key: &Key) -> Result<bool, ListingError> {
        let kind = self.kind();
        if let Some(bucket) = kind.and_then(|kind| self.bucket_directory(kind, key)) {
            return bucket.exists(pages).await;
        }
        if kind != Some(ServerKind::Unlisted) {
            match self.find_index(pages, key).await? {
                IndexAnswer::Index => {
                    self.remember(ServerKind::Index);
                    return Ok(true);
                }
                IndexAnswer::Missing if kind == Some(ServerKind::Index) => return Ok(false),
                IndexAnswer::Missing | IndexAnswer::NoIndex(_) => {}
            }
            if kind.is_none()
                && let Some(bucket) = self.find_bucket(pages, key).await?
            {
                return bucket.exists(pages).await;
            }
        }
        let exists = self.has_marker(pages, key).await?;
        if exists && kind.is_none() {
            self.remember(ServerKind::Unlisted);
        }
        Ok(exists)
    }

    fn kind(&self) -> Option<ServerKind> {
        let kind = *self.kind.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known =
            |&(kind, since): &(ServerKind, Instant)| kind != ServerKind::Unlisted || since.elapsed() < RETRY_INTERVAL;
        kind.filter(is_known).map(|(kind, _)| kind)
    }

    fn remember(&self, kind: ServerKind) {
        *self.kind.lock().unwrap_or_else(PoisonError::into_inner) = Some((kind, Instant::now()));
    }

    /// Returns true for the root, and for directories that contain the marker.
    async fn has_marker(&self, pages: &PageReader<'_>, key: &Key) -> Result<bool, ListingError> {
        if key.is_root() {
            return Ok(true);
        }
        let Ok(marker) = key.child(self.marker) else { return Ok(false) };
        Ok(pages.transport.has_object(&marker).await?)
    }

    /// Returns the decoded segments of the path of a directory.
    fn segments<'a>(&'a self, key: &'a Key) -> impl Iterator<Item = &'a str> {
        let root = self.prefix.split('/').filter(|_| !self.prefix.is_empty());
        root.chain(key.segments())
    }

    /// Returns the encoded path of a directory, with a slash at its end.
    fn path(&self, key: &Key) -> String {
        let mut path = "/".to_owned();
        for segment in self.segments(key) {
            path.extend(utf8_percent_encode(segment, ENCODED));
            path.push('/');
        }
        path
    }

    /// Offers the entries of an index to `selection`.
    async fn list_index(
        &self,
        pages: &PageReader<'_>,
        selection: &mut EntrySelection<'_>,
    ) -> Result<IndexAnswer, ListingError> {
        let request = selection.request();
        let path = self.path(request.directory);
        let malformed = |reason: String| ListingError::Malformed(request.directory.clone(), reason);
        let mut after = request.after.map(str::to_owned);
        loop {
            let page = pages.get(&index_target(&path, after.as_deref()), MAX_INDEX_BYTES).await?;
            let url = match self.check_index(&page.response, &path)? {
                Ok(url) => url,
                Err(answer) => return Ok(answer),
            };
            if page.response.is_cut {
                return Err(malformed(format!("the index has more than {MAX_INDEX_BYTES} bytes")));
            }
            let next = loop {
                let index = parse_index(&page.response, &url, |entry| match entry {
                    IndexEntry::File(name) => selection.offer(name, false),
                    IndexEntry::Directory(name) => selection.offer(name, true),
                    IndexEntry::Unusable(name) => selection.omit(name),
                });
                if !selection.check_directories(pages.transport).await? {
                    break index.and_then(|index| index.next);
                }
            };
            if next.is_none() || selection.largest_if_full().is_some() {
                return Ok(IndexAnswer::Index);
            }
            if next <= after {
                return Err(malformed("the next page of the index is not after this one".to_owned()));
            }
            after = next;
        }
    }

    /// Requests the beginning of an index.
    async fn find_index(&self, pages: &PageReader<'_>, key: &Key) -> Result<IndexAnswer, ListingError> {
        let path = self.path(key);
        let page = pages.get(&index_target(&path, Some(LAST_NAME)), INDEX_HEAD_BYTES).await?;
        Ok(self.check_index(&page.response, &path)?.err().unwrap_or(IndexAnswer::Index))
    }

    /// Returns the URL of an index if the response is one.
    ///
    /// # Errors
    /// Returns an error if the server has a temporary fault or asks for credentials.
    fn check_index(&self, response: &ListingResponse, path: &str) -> Result<Result<Url, IndexAnswer>, ListingError> {
        let status = response.status;
        match status {
            200 => {}
            404 | 410 => return Ok(Err(IndexAnswer::Missing)),
            401 | 429 | 500..=599 => return Err(ListingError::Refused(ErrorAnswer::parse(status, &response.body))),
            _ => return Ok(Err(IndexAnswer::NoIndex(format!("status {status}")))),
        }
        let not_an_index = || IndexAnswer::NoIndex("the page is no index".to_owned());
        let url = self.origin.join(path).ok();
        let url = url.filter(|url| parse_index(response, url, |_| ()).is_some());
        Ok(url.ok_or_else(not_an_index))
    }

    /// Returns the directory as a prefix of a bucket, if the server has that kind.
    fn bucket_directory<'a>(&self, kind: ServerKind, key: &'a Key) -> Option<BucketDirectory<'a>> {
        let mut segments = self.segments(key);
        let bucket_path = match kind {
            ServerKind::Index | ServerKind::Unlisted => return None,
            ServerKind::BucketAtOrigin => "/".to_owned(),
            ServerKind::BucketInPath => format!("/{}/", utf8_percent_encode(segments.next()?, ENCODED)),
        };
        let prefix: String = segments.flat_map(|segment| [segment, "/"]).collect();
        Some(BucketDirectory { protocol: BucketProtocol::S3, bucket_path, key, prefix })
    }

    /// Tests if the server is a bucket, or has buckets in its first segments.
    async fn find_bucket<'a>(
        &self,
        pages: &PageReader<'_>,
        key: &'a Key,
    ) -> Result<Option<BucketDirectory<'a>>, ListingError> {
        for kind in [ServerKind::BucketAtOrigin, ServerKind::BucketInPath] {
            let Some(bucket) = self.bucket_directory(kind, key) else { continue };
            match bucket.exists(pages).await {
                Ok(_) => {
                    self.remember(kind);
                    return Ok(Some(bucket));
                }
                Err(ListingError::Refused(answer)) if answer.is_temporary() => {
                    return Err(ListingError::Refused(answer));
                }
                Err(ListingError::Store(error)) => return Err(ListingError::Store(error)),
                Err(ListingError::Refused(_) | ListingError::Malformed(..) | ListingError::CannotList(..)) => {}
            }
        }
        Ok(None)
    }
}

fn index_target(path: &str, after: Option<&str>) -> String {
    let after = after.map_or_else(String::new, |after| format!("&after={}", utf8_percent_encode(after, ENCODED)));
    format!("{path}{INDEX_QUERY}{after}")
}

/// Reads an index in any of the known formats. Returns `None` if the response is none.
fn parse_index(response: &ListingResponse, url: &Url, visit: impl FnMut(IndexEntry<'_>)) -> Option<JsonIndex> {
    let body = &response.body;
    match body.trim_ascii_start().first() {
        Some(b'{' | b'[') => parse_json(body, response.is_cut, visit),
        Some(_) => parse_html(body, url, visit).then(JsonIndex::default),
        None => None,
    }
}
