//! Lists a prefix of a bucket page by page.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::bucket_xml::{BucketPage, parse_azure, parse_s3};
use super::error_document::ErrorAnswer;
use super::page_reader::{MAX_PAGE_BYTES, PageReader};
use super::selection::EntrySelection;
use super::transport::ListingError;
use super::xml::printable;
use crate::store::key::Key;

/// Maximum number of keys on a page. S3 allows no more.
const MAX_KEYS: usize = 1000;

/// Maximum number of pages without a key that follow each other. S3 answers with such pages if many keys were deleted.
const MAX_EMPTY_PAGES: usize = 100;

/// Bytes of a query or path segment that are percent-encoded: all except the unreserved ones of a URI.
pub(super) const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Protocol of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BucketProtocol {
    /// S3, and Google.
    S3,
    /// Azure.
    Azure,
}

/// A directory in a bucket.
pub(super) struct BucketDirectory<'a> {
    pub(super) protocol: BucketProtocol,
    /// Path in front of the query: empty, or the path of the bucket on an HTTP server.
    pub(super) bucket_path: String,
    /// Key of the directory, for messages.
    pub(super) key: &'a Key,
    /// Prefix of all keys in the directory: empty, or with a slash at its end.
    pub(super) prefix: String,
}

/// The place where the next page begins.
enum Cursor {
    /// At the first key after this one.
    After(Option<String>),
    /// Where the token says.
    Token(String),
}

impl BucketDirectory<'_> {
    /// Offers the entries of the directory to `selection`, at least as many as it needs. Returns true if the directory
    /// exists: if there is a key with its prefix. A bucket itself always exists.
    ///
    /// # Errors
    /// Returns an error if a request fails, or if a page is not understood or makes no progress.
    pub(super) async fn list(
        &self,
        pages: &PageReader<'_>,
        selection: &mut EntrySelection<'_>,
    ) -> Result<bool, ListingError> {
        let request = selection.request();
        // The marker of the directory takes a place, and one entry more than the limit shows that there are more.
        let mut max_keys = request.limit.saturating_add(2).min(MAX_KEYS);
        let mut cursor = Cursor::After(request.after.map(|after| format!("{}{after}", self.prefix)));
        let mut has_keys = false;
        let mut progress = Progress::default();
        loop {
            let mut foreign_key = None;
            let page = self.read_page(pages, &cursor, "/", max_keys, &self.prefix, |key| {
                has_keys = true;
                progress.see(key);
                match key.strip_prefix(self.prefix.as_str()) {
                    // The marker of the directory itself.
                    Some("") => {}
                    Some(rest) => match rest.split_once('/') {
                        Some((name, _)) => selection.offer(name, true),
                        None => selection.offer(rest, false),
                    },
                    None => foreign_key = Some(key.to_owned()),
                }
            });
            let page = page.await?;
            if let Some(key) = foreign_key {
                return Err(self.malformed(&format!("{key:?} does not begin with the prefix {:?}", self.prefix)));
            }
            if selection.check_directories(pages.transport).await? {
                return Err(self.malformed("the page has more keys than requested"));
            }
            if !page.is_truncated {
                break;
            }
            if selection.largest_if_full().is_some() {
                self.offer_earlier_directories(pages, selection).await?;
                break;
            }
            cursor = progress.next(&cursor, page.token).map_err(|reason| self.malformed(&reason))?;
            max_keys = MAX_KEYS;
        }
        Ok(has_keys || self.prefix.is_empty() || (request.after.is_some() && self.exists(pages).await?))
    }

    /// Returns true if there is a key with the directory's prefix. The answer for a bucket is true.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::list`].
    pub(super) async fn exists(&self, pages: &PageReader<'_>) -> Result<bool, ListingError> {
        Ok(self.has_key_below(pages, &self.prefix).await? || self.prefix.is_empty())
    }

    /// Offers the directories that come before the last entry of `selection`, but after it in the order of keys.
    async fn offer_earlier_directories(
        &self,
        pages: &PageReader<'_>,
        selection: &mut EntrySelection<'_>,
    ) -> Result<(), ListingError> {
        for name in selection.earlier_directories() {
            if self.has_key_below(pages, &format!("{}{name}/", self.prefix)).await? {
                selection.offer(&name, true);
            }
        }
        selection.check_directories(pages.transport).await?;
        Ok(())
    }

    async fn has_key_below(&self, pages: &PageReader<'_>, prefix: &str) -> Result<bool, ListingError> {
        let mut cursor = Cursor::After(None);
        let mut progress = Progress::default();
        loop {
            let mut has_keys = false;
            let page = self
                .read_page(pages, &cursor, "", 1, prefix, |key| {
                    has_keys |= key.starts_with(prefix);
                    progress.see(key);
                })
                .await?;
            if has_keys || !page.is_truncated {
                return Ok(has_keys);
            }
            cursor = progress.next(&cursor, page.token).map_err(|reason| self.malformed(&reason))?;
        }
    }

    /// Requests a page of the keys with `prefix`, grouped by `delimiter`, and calls `visit` for each.
    async fn read_page(
        &self,
        pages: &PageReader<'_>,
        cursor: &Cursor,
        delimiter: &str,
        max_keys: usize,
        prefix: &str,
        visit: impl FnMut(&str),
    ) -> Result<BucketPage, ListingError> {
        let target = format!("{}?{}", self.bucket_path, self.query(cursor, delimiter, max_keys, prefix));
        let page = pages.get(&target, MAX_PAGE_BYTES).await?;
        let response = &page.response;
        if response.status != 200 {
            return Err(ListingError::Refused(ErrorAnswer::parse(response.status, &response.body)));
        }
        if response.is_cut {
            return Err(self.malformed(&format!("the page has more than {MAX_PAGE_BYTES} bytes")));
        }
        let parsed = match self.protocol {
            BucketProtocol::S3 => parse_s3(&response.body, visit),
            BucketProtocol::Azure => parse_azure(&response.body, visit),
        };
        parsed.map_err(|reason| self.malformed(&reason))
    }

    /// Returns the query that requests a page, with its parameters in alphabetical order.
    fn query(&self, cursor: &Cursor, delimiter: &str, max_keys: usize, prefix: &str) -> String {
        let max_keys = max_keys.to_string();
        let parameters: &[(&str, Option<&str>)] = match (self.protocol, cursor) {
            (BucketProtocol::S3, Cursor::After(after)) => &[
                ("delimiter", Some(delimiter)),
                ("list-type", Some("2")),
                ("max-keys", Some(&max_keys)),
                ("prefix", Some(prefix)),
                ("start-after", after.as_deref()),
            ],
            (BucketProtocol::S3, Cursor::Token(token)) => &[
                ("continuation-token", Some(token)),
                ("delimiter", Some(delimiter)),
                ("list-type", Some("2")),
                ("max-keys", Some(&max_keys)),
                ("prefix", Some(prefix)),
            ],
            // Azure cannot start after a name, so the selection drops the names before it.
            (BucketProtocol::Azure, cursor) => &[
                ("comp", Some("list")),
                ("delimiter", Some(delimiter)),
                ("marker", if let Cursor::Token(token) = cursor { Some(token) } else { None }),
                ("maxresults", Some(&max_keys)),
                ("prefix", Some(prefix)),
                ("restype", Some("container")),
            ],
        };
        let given =
            parameters.iter().filter_map(|(name, value)| Some((name, value.filter(|value| !value.is_empty())?)));
        let encoded = given.map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, ENCODED)));
        encoded.collect::<Vec<_>>().join("&")
    }

    fn malformed(&self, reason: &str) -> ListingError {
        ListingError::Malformed(self.key.clone(), printable(reason))
    }
}

/// Detects pages that lead nowhere.
#[derive(Default)]
struct Progress {
    /// Largest key of all pages.
    largest: Option<String>,
    /// True if the current page has a key.
    has_key: bool,
    /// True if the current page has a key that is larger than all before.
    has_larger_key: bool,
    /// Number of pages without a larger key since the last one with such a key.
    useless_pages: usize,
}

impl Progress {
    fn see(&mut self, key: &str) {
        self.has_key = true;
        if self.largest.as_deref().is_none_or(|largest| largest < key) {
            self.largest = Some(key.to_owned());
            self.has_larger_key = true;
        }
    }

    /// Returns the place where the page after the one at `cursor` begins.
    ///
    /// # Errors
    /// Returns a message if the pages make no progress.
    fn next(&mut self, cursor: &Cursor, token: Option<String>) -> Result<Cursor, String> {
        let (has_key, has_larger_key) = (std::mem::take(&mut self.has_key), std::mem::take(&mut self.has_larger_key));
        self.useless_pages = if has_larger_key { 0 } else { self.useless_pages + 1 };
        if self.useless_pages > MAX_EMPTY_PAGES {
            return Err(format!("{MAX_EMPTY_PAGES} pages brought no further key"));
        }
        match (token, cursor, &self.largest) {
            (Some(token), Cursor::Token(previous), _) if token == *previous => {
                Err("the next page is the same again".to_owned())
            }
            (Some(token), _, _) => Ok(Cursor::Token(token)),
            // Version 1 of the protocol has no token. The listing continues after the last key.
            (None, _, Some(largest)) if has_key && has_larger_key => Ok(Cursor::After(Some(largest.clone()))),
            (None, _, _) => Err("more keys follow, but the page does not say where".to_owned()),
        }
    }
}
