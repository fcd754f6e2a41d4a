//! Objects of remote stores: their metadata, and reads of ranges.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use axum::http::header::{
    CONTENT_ENCODING, CONTENT_RANGE, ETAG, HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE,
};
use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use super::super::error::StoreError;
use super::super::key::Key;
use super::super::object::{ObjectMeta, ReadAt};
use super::client::{ResponseBody, StoreClient, StoreRequest, StoreResponse};
use super::failure::error_of_answer;
use super::upstream::{RetryCount, UpstreamOperation};
use crate::runtime::fair_queue::FairPermit;

/// Maximum number of responses of an object that readers have read in part and may continue.
const MAX_STARTED_BODIES: usize = 4;

/// Maximum number of bytes before a range that are read and dropped if a server ignores ranges.
const MAX_SKIPPED_BYTES: u64 = 16 << 20;

/// Beginning of the entity tags that stand for the weak tags of a store.
const WEAK_PREFIX: &str = "\"weak-";

/// Beginning of the entity tags that stand for a date of modification.
const DATE_PREFIX: &str = "\"modified-";

/// Validators of the content of an object: headers of the store that identify it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Validators {
    etag: Option<HeaderValue>,
    last_modified: Option<HeaderValue>,
}

impl Validators {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        Self { etag: headers.get(ETAG).cloned(), last_modified: headers.get(LAST_MODIFIED).cloned() }
    }

    /// Returns the entity tag if it is strong.
    fn strong_etag(&self) -> Option<&str> {
        let etag = self.etag.as_ref()?.to_str().ok()?;
        let is_strong = etag.len() > 2 && etag.starts_with('"') && etag.ends_with('"');
        is_strong.then_some(etag)
    }

    fn weak_etag(&self) -> Option<&str> {
        let etag = self.etag.as_ref()?.to_str().ok()?.strip_prefix("W/")?;
        (etag.len() > 2 && etag.starts_with('"') && etag.ends_with('"')).then_some(etag)
    }

    fn modified(&self) -> Option<SystemTime> {
        httpdate::parse_http_date(self.last_modified.as_ref()?.to_str().ok()?).ok()
    }

    /// Returns the metadata of the object with this length.
    pub(super) fn meta(&self, len: u64) -> ObjectMeta {
        let [etag, last_modified] =
            [&self.etag, &self.last_modified].map(|value| value.as_ref().map_or(&b""[..], HeaderValue::as_bytes));
        // Without validators, no two responses count as the same object.
        let nonce = if etag.is_empty() && last_modified.is_empty() { RandomState::new().hash_one(len) } else { 0 };
        let version = xxh3_64(&[etag, &[0], last_modified, &[0], &len.to_le_bytes(), &nonce.to_le_bytes()].concat());
        let modified = self.modified();
        let seconds =
            modified.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok()).map(|age| age.as_secs());
        let etag = match (self.strong_etag(), self.weak_etag(), seconds) {
            (Some(etag), _, _) => etag.to_owned(),
            (None, Some(etag), _) => format!("{WEAK_PREFIX}{}", etag.trim_start_matches('"')),
            (None, None, Some(seconds)) => format!("{DATE_PREFIX}{seconds:x}-{len:x}\""),
            (None, None, None) => format!("\"unknown-{version:x}\""),
        };
        ObjectMeta { len, modified, etag: etag.into(), version }
    }

    /// Returns the header that makes a request fail if the object has changed; `None` if the store sends nothing to
    /// compare.
    fn if_unchanged(&self) -> Option<(HeaderName, HeaderValue)> {
        if self.strong_etag().is_some() {
            return self.etag.clone().map(|etag| (IF_MATCH, etag));
        }
        // Servers ignore a condition with a malformed date, and signers of requests may panic at its bytes.
        self.modified()?;
        self.last_modified.clone().map(|date| (IF_UNMODIFIED_SINCE, date))
    }

    /// Returns true if a response with the validators `other` is about the same content. A response to a request for a
    /// range may lack the date.
    fn matches(&self, other: &Self) -> bool {
        match (&other.etag, &other.last_modified) {
            (Some(etag), _) => self.etag.as_ref() == Some(etag),
            (None, Some(date)) => self.last_modified.as_ref() == Some(date),
            (None, None) => false,
        }
    }
}

/// Returns the headers that make a request conditional: the store need not send the object if its entity tag is still
/// `known`, as [`Validators::meta`] returned it.
pub(super) fn if_changed(known: &str) -> Vec<(HeaderName, HeaderValue)> {
    let condition = if let Some(rest) = known.strip_prefix(DATE_PREFIX) {
        let seconds = rest.split('-').next().and_then(|seconds| u64::from_str_radix(seconds, 16).ok());
        let date = seconds.and_then(|seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
        date.map(|date| (IF_MODIFIED_SINCE, httpdate::fmt_http_date(date)))
    } else if let Some(rest) = known.strip_prefix(WEAK_PREFIX) {
        // Another n5-server may have made the tag in this form, and sends it as its own.
        Some((IF_NONE_MATCH, format!("W/\"{rest}, {known}")))
    } else {
        Some((IF_NONE_MATCH, known.to_owned()))
    };
    let header = condition.and_then(|(name, value)| Some((name, HeaderValue::from_str(&value).ok()?)));
    header.into_iter().collect()
}

/// An object whose response has begun.
#[derive(Debug)]
pub(super) struct RemoteObject {
    client: Arc<StoreClient>,
    key: Key,
    meta: ObjectMeta,
    validators: Validators,
    /// The responses that have begun. A read continues the one that has reached its beginning.
    started: Mutex<Vec<StartedBody>>,
    /// True if the server has answered a request for a range with the whole object.
    ignores_ranges: AtomicBool,
}

/// A body that has been read in part.
struct StartedBody {
    body: ResponseBody,
    /// Position in the object of the next byte.
    position: u64,
    /// Position in the object of the end of the body.
    end: u64,
}

impl fmt::Debug for StartedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartedBody").field("position", &self.position).finish_non_exhaustive()
    }
}

impl RemoteObject {
    /// Wraps a response with the whole object, which has `len` bytes.
    pub(super) fn new(client: Arc<StoreClient>, key: &Key, response: StoreResponse, len: u64) -> Self {
        let object = Self::without_response(client, key, &response.headers, len);
        object.keep(StartedBody { body: response.body, position: 0, end: len });
        object
    }

    /// Wraps a response to the request for a `range`, which may exceed the object. The response has this part of the
    /// object, or all of it if the server ignores ranges.
    ///
    /// # Errors
    /// Returns an error if the response has another range.
    pub(super) fn of_range(
        client: Arc<StoreClient>,
        key: &Key,
        response: StoreResponse,
        range: &Range<u64>,
    ) -> Result<Self, StoreError> {
        if response.status != StatusCode::PARTIAL_CONTENT {
            let len = response.body.announced_bytes().unwrap_or_default();
            let object = Self::new(client, key, response, len);
            object.ignores_ranges.store(true, Ordering::Relaxed);
            return Ok(object);
        }
        let Some((first, last, len)) = content_range(&response.headers)
            .filter(|(first, last, len)| *first == range.start && (first..len).contains(&last) && *last < range.end)
        else {
            return Err(response.body.failed("the server sent another range than was requested"));
        };
        let object = Self::without_response(client, key, &response.headers, len);
        object.keep(StartedBody { body: response.body, position: first, end: last.saturating_add(1) });
        Ok(object)
    }

    /// Creates an object of `len` bytes that is read by further requests. `headers` are those of a response about it.
    pub(super) fn without_response(client: Arc<StoreClient>, key: &Key, headers: &HeaderMap, len: u64) -> Self {
        let validators = Validators::of(headers);
        let meta = validators.meta(len);
        let (started, ignores_ranges) = (Mutex::default(), AtomicBool::new(false));
        Self { client, key: key.clone(), meta, validators, started, ignores_ranges }
    }

    /// Lets other requests use the permit of the response until its bytes are read.
    pub(super) fn release_permit(&self) {
        for started in &*self.lock() {
            started.body.release_permit();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<StartedBody>> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    /// Reads the bytes of `range`, and requests those up to `end` as well if it sends a request. Returns `None` as soon
    /// as `is_wanted` returns false. `retries` counts the requests that continue a response which broke off.
    ///
    /// # Errors
    /// Returns an error if the bytes cannot be read, or if the object has changed.
    pub(super) async fn read_range(
        &self,
        range: Range<u64>,
        end: u64,
        deadline: Instant,
        retries: &RetryCount,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Option<Bytes>, StoreError> {
        let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let end = end.clamp(range.end, self.meta.len.max(range.end));
        if range.end > self.meta.len {
            return Err(StoreError::Truncated(self.key.clone()));
        }
        if !is_wanted() {
            return Ok(None);
        }
        let mut bytes = Vec::with_capacity(len);
        let mut started = self.take_started(range.start);
        if let Some(started) = &mut started {
            self.skip_to(range.start, started, deadline).await?;
        }
        while bytes.len() < len {
            let position = range.start.saturating_add(bytes.len() as u64);
            let mut current = match started.take() {
                Some(current) => current,
                None => self.open_range(position..end, deadline, retries).await?,
            };
            // The response may have a part of the range only.
            let remaining = current.end.saturating_sub(position);
            let until = usize::try_from(remaining).map_or(len, |rest| len.min(bytes.len().saturating_add(rest)));
            match self.continue_reading(&mut current, &mut bytes, until, deadline, &is_wanted).await {
                Ok(true) => started = Some(current).filter(|current| current.position < current.end),
                Ok(false) => return Ok(None),
                Err(_) if self.client.may_continue(retries, deadline).await => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(started) = started {
            started.body.release_permit();
            self.keep(started);
        }
        Ok(Some(bytes.into()))
    }

    /// Appends bytes of a body until `bytes` has `len` of them. Returns false if they are no longer wanted.
    async fn continue_reading(
        &self,
        started: &mut StartedBody,
        bytes: &mut Vec<u8>,
        len: usize,
        deadline: Instant,
        is_wanted: &impl Fn() -> bool,
    ) -> Result<bool, StoreError> {
        while bytes.len() < len {
            let Some(chunk) = started.body.next(len - bytes.len(), deadline).await? else {
                return Err(started.body.broken("it is shorter than the range"));
            };
            if !is_wanted() {
                return Ok(false);
            }
            started.position = started.position.saturating_add(chunk.len() as u64);
            bytes.extend_from_slice(&chunk);
        }
        Ok(true)
    }

    /// Keeps a response that has been read in part. If there are too many, the oldest one is dropped.
    fn keep(&self, body: StartedBody) {
        let mut started = self.lock();
        if started.len() >= MAX_STARTED_BODIES {
            started.remove(0);
        }
        started.push(body);
    }

    /// Takes a response whose next byte is that at `position`. If the server ignores ranges, one that is before it will
    /// do as well.
    fn take_started(&self, position: u64) -> Option<StartedBody> {
        let mut started = self.lock();
        let ignores_ranges = self.ignores_ranges.load(Ordering::Relaxed);
        let is_usable = |body: &StartedBody| body.position == position || ignores_ranges && body.position < position;
        let candidates = started.iter().enumerate().filter(|(_, body)| is_usable(body));
        let (index, _) = candidates.max_by_key(|(_, body)| body.position)?;
        Some(started.remove(index))
    }

    /// Drops the bytes of a response before `position`.
    ///
    /// # Errors
    /// Returns an error if they are too many.
    async fn skip_to(&self, position: u64, started: &mut StartedBody, deadline: Instant) -> Result<(), StoreError> {
        if position.saturating_sub(started.position) > MAX_SKIPPED_BYTES {
            return Err(started.body.failed(&format!(
                "the server ignores the header Range, so no part of an object can be read that begins after its first \
                 {MAX_SKIPPED_BYTES} bytes"
            )));
        }
        while started.position < position {
            let rest = usize::try_from(position - started.position).unwrap_or(usize::MAX);
            let Some(skipped) = started.body.next(rest, deadline).await? else {
                return Err(StoreError::Torn(self.key.clone()));
            };
            started.position = started.position.saturating_add(skipped.len() as u64);
        }
        Ok(())
    }

    /// Requests a range of the object.
    ///
    /// # Errors
    /// Returns [`StoreError::Torn`] if the object has changed.
    async fn open_range(
        &self,
        range: Range<u64>,
        deadline: Instant,
        retries: &RetryCount,
    ) -> Result<StartedBody, StoreError> {
        let failed = |reason: &str| StoreError::Io {
            action: "read",
            key: self.key.clone(),
            cause: Arc::new(io::Error::other(reason.to_owned())),
        };
        let Some(condition) = self.validators.if_unchanged() else {
            return Err(failed(
                "the server sends neither a strong ETag nor a valid Last-Modified, so the object cannot be read in parts",
            ));
        };
        let request = StoreRequest {
            operation: UpstreamOperation::GetRange,
            action: "read",
            key: &self.key,
            url: self.client.location.object_url(&self.key),
            headers: vec![range_header(&range), condition],
            deadline,
            retries: retries.clone(),
        };
        let response = self.client.send(&request).await?;
        match response.status {
            StatusCode::PARTIAL_CONTENT | StatusCode::OK => {}
            StatusCode::PRECONDITION_FAILED | StatusCode::NOT_FOUND | StatusCode::RANGE_NOT_SATISFIABLE => {
                return Err(StoreError::Torn(self.key.clone()));
            }
            _ => {
                return Err(error_of_answer("read", &self.key, &response.error_answer(), None));
            }
        }
        check_encoding(&self.key, &response.headers)?;
        if !self.validators.matches(&Validators::of(&response.headers)) {
            return Err(StoreError::Torn(self.key.clone()));
        }
        let is_partial = response.status == StatusCode::PARTIAL_CONTENT;
        let (position, end) = if is_partial { (range.start, range.end) } else { (0, self.meta.len) };
        let mut started = StartedBody { body: response.body, position, end };
        let sent = content_range(&response.headers);
        if is_partial && sent != Some((range.start, range.end.saturating_sub(1), self.meta.len)) {
            return Err(failed("the server sent another range than was requested"));
        }
        if !is_partial {
            self.ignores_ranges.store(true, Ordering::Relaxed);
            self.skip_to(range.start, &mut started, deadline).await?;
        }
        Ok(started)
    }
}

#[async_trait]
impl ReadAt for RemoteObject {
    async fn read_at(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let end = range.end;
        self.read_sequential(range, end).await
    }

    async fn read_sequential(&self, range: Range<u64>, end: u64) -> Result<Bytes, StoreError> {
        let bytes = self.read_range(range, end, self.client.deadline(), &RetryCount::default(), || true).await?;
        bytes.ok_or_else(|| StoreError::Preempted(self.key.clone()))
    }
}

/// An object whose length the server did not announce. Its bytes are in memory of the store.
pub(super) struct CollectedObject {
    pub(super) key: Key,
    pub(super) bytes: Bytes,
    pub(super) _memory: FairPermit,
}

impl fmt::Debug for CollectedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CollectedObject").field("key", &self.key).finish_non_exhaustive()
    }
}

#[async_trait]
impl ReadAt for CollectedObject {
    async fn read_at(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let bounds = [range.start, range.end].map(|bound| usize::try_from(bound).unwrap_or(usize::MAX));
        let part = self.bytes.get(bounds[0]..bounds[1]);
        // A slice would hold the store's memory without the permit.
        part.map(Bytes::copy_from_slice).ok_or_else(|| StoreError::Truncated(self.key.clone()))
    }
}

/// Returns an error if the bytes of a response are not those of the object.
pub(super) fn check_encoding(key: &Key, headers: &HeaderMap) -> Result<(), StoreError> {
    let encoding = headers.get(CONTENT_ENCODING).map(HeaderValue::as_bytes).unwrap_or_default();
    if encoding.is_empty() || encoding == b"identity" || encoding == b"aws-chunked" {
        return Ok(());
    }
    let reason = format!(
        "the object has the Content-Encoding {}, which is not supported; store it without",
        String::from_utf8_lossy(encoding).escape_debug()
    );
    Err(StoreError::Io { action: "read", key: key.clone(), cause: Arc::new(io::Error::other(reason)) })
}

/// Returns the header that requests `range`. A range without an end has the end `u64::MAX`.
pub(super) fn range_header(range: &Range<u64>) -> (HeaderName, HeaderValue) {
    let last = if range.end == u64::MAX { String::new() } else { range.end.saturating_sub(1).to_string() };
    // Digits are valid in a header.
    let value = HeaderValue::from_str(&format!("bytes={}-{last}", range.start));
    (RANGE, value.unwrap_or(HeaderValue::from_static("bytes=0-")))
}

/// Returns the first and the last position of the range that a response has, and the length of the object.
fn content_range(headers: &HeaderMap) -> Option<(u64, u64, u64)> {
    parse_content_range(headers.get(CONTENT_RANGE)?.to_str().ok()?)
}

/// Parses `bytes FIRST-LAST/TOTAL`.
fn parse_content_range(text: &str) -> Option<(u64, u64, u64)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?, total.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validators(etag: Option<&'static str>, date: Option<&'static str>) -> Validators {
        Validators { etag: etag.map(HeaderValue::from_static), last_modified: date.map(HeaderValue::from_static) }
    }

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    #[test]
    fn a_strong_tag_is_passed_on_and_compared() {
        let strong = validators(Some("\"abc\""), Some(DATE));
        assert_eq!(&*strong.meta(3).etag, "\"abc\"");
        assert_eq!(if_changed("\"abc\""), [(IF_NONE_MATCH, HeaderValue::from_static("\"abc\""))]);
        assert_eq!(strong.if_unchanged(), Some((IF_MATCH, HeaderValue::from_static("\"abc\""))));
    }

    #[test]
    fn other_validators_become_strong_tags_from_which_the_condition_is_made_again() {
        let weak = validators(Some("W/\"abc\""), None);
        assert_eq!(&*weak.meta(3).etag, "\"weak-abc\"");
        assert_eq!(if_changed("\"weak-abc\""), [(IF_NONE_MATCH, HeaderValue::from_static("W/\"abc\", \"weak-abc\""))]);
        let dated = validators(None, Some(DATE));
        assert_eq!(if_changed(&dated.meta(3).etag), [(IF_MODIFIED_SINCE, HeaderValue::from_static(DATE))]);
        assert_eq!(dated.if_unchanged(), Some((IF_UNMODIFIED_SINCE, HeaderValue::from_static(DATE))));
        // An unquoted tag could not be compared.
        assert!(validators(Some("abc"), Some(DATE)).meta(3).etag.starts_with(DATE_PREFIX));
    }

    #[test]
    fn the_version_depends_on_everything_that_the_store_says() {
        let version = |etag, date, len| validators(etag, date).meta(len).version;
        let known = version(Some("\"a\""), Some(DATE), 3);
        assert_eq!(known, version(Some("\"a\""), Some(DATE), 3));
        assert_ne!(known, version(Some("\"b\""), Some(DATE), 3));
        assert_ne!(known, version(Some("\"a\""), None, 3));
        assert_ne!(known, version(Some("\"a\""), Some(DATE), 4));
        assert_ne!(version(None, None, 3), version(None, None, 3), "nothing proves that they are the same");
    }

    #[test]
    fn ranges_of_responses_are_parsed() {
        assert_eq!(parse_content_range("bytes 0-9/10"), Some((0, 9, 10)));
        assert_eq!(parse_content_range("bytes 0-9/*"), None);
        assert_eq!(parse_content_range("bytes */10"), None);
    }
}
