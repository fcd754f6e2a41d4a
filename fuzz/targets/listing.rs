//! Listings from object stores and HTTP servers that answer with any bytes.
//!
//! Input: parts separated by lines of `---`. The bytes of the first select the kind of the root, the limit, the name
//! before the first entry, and the status of the responses. The other parts are the bodies of the responses, one after
//! the other; the last is repeated.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use n5_server::store::{
    DirEntry, DirectoryLister, EntryFilter, ErrorAnswer, FilterDecision, Key, Listing, ListingError, ListingResponse,
    ListingTransport, MAX_OMITTED_NAMES, StoreError,
};
use tokio::runtime::Runtime;

use super::Numbers;
use super::attributes::parts;

/// Maximum number of requests of one listing: pages without progress, and checks for each character of a name.
const MOST_REQUESTS: usize = 10_000;

/// libFuzzer has its own time limit.
const DEADLINE: Duration = Duration::from_secs(3600);

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());

/// A server with the bodies of the input.
struct Replies<'a> {
    status: u16,
    bodies: &'a [&'a [u8]],
    request_count: AtomicUsize,
}

impl Replies<'_> {
    fn reply(&self, target: &str, max_bytes: usize) -> ListingResponse {
        let number = self.request_count.fetch_add(1, Ordering::Relaxed);
        assert!(number < MOST_REQUESTS, "{number} requests, the last for {target}");
        assert!(target.starts_with(['?', '/']) && target.bytes().all(|byte| byte.is_ascii_graphic()), "{target}");
        let body = self.bodies.get(number).or(self.bodies.last()).copied().unwrap_or_default();
        let cut = &body[..body.len().min(max_bytes)];
        ListingResponse { status: self.status, body: Bytes::copy_from_slice(cut), is_cut: cut.len() < body.len() }
    }
}

#[async_trait]
impl ListingTransport for Replies<'_> {
    async fn get(&self, target: &str, max_bytes: usize) -> Result<ListingResponse, StoreError> {
        Ok(self.reply(target, max_bytes))
    }

    async fn has_object(&self, key: &Key) -> Result<bool, StoreError> {
        Ok(key.as_str().len().is_multiple_of(2))
    }
}

pub(crate) fn run(data: &[u8]) {
    let parts = parts(data);
    let mut numbers = Numbers::new(parts[0]);
    let lister = match numbers.below(3) {
        0 => DirectoryLister::s3("root", DEADLINE),
        1 => DirectoryLister::azure("", DEADLINE),
        _ => DirectoryLister::http("http://host:80", "root", "attributes.json", DEADLINE).unwrap(),
    };
    let limit = numbers.below(8);
    let after = numbers.of(&[None, Some("a"), Some("a-b"), Some("s0")]);
    let status = numbers.of(&[200, 200, 301, 400, 403, 404, 503]);
    let key = Key::parse("v").unwrap();
    for filter in [FilterDecision::keep_all(), with_checks()] {
        let replies = Replies { status, bodies: &parts[1..], request_count: AtomicUsize::new(0) };
        match RUNTIME.block_on(lister.list(&replies, &key, after, limit, &filter)) {
            Ok(Some(listing)) => check(&listing, after, limit),
            Ok(None) => {}
            Err(error) => check_error(&error),
        }
        let replies = Replies { request_count: AtomicUsize::new(0), ..replies };
        if let Err(error) = RUNTIME.block_on(lister.is_directory(&replies, &key)) {
            check_error(&error);
        }
    }
    for body in &parts[1..] {
        let text = ErrorAnswer::parse(status, body).to_string();
        assert!(text.len() < 8000 && !text.contains(char::is_control), "{text:?}");
    }
}

/// Returns a filter that lists directories that contain an object, and some files.
fn with_checks() -> EntryFilter {
    Arc::new(|entry: &DirEntry| match entry.is_directory {
        true => FilterDecision::KeepIfContains("attributes.json"),
        false if entry.name.len().is_multiple_of(2) => FilterDecision::Keep,
        false => FilterDecision::Skip,
    })
}

fn check(listing: &Listing, after: Option<&str>, limit: usize) {
    let names: Vec<&str> = listing.entries.iter().map(|entry| entry.name.as_str()).collect();
    assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    assert!(names.iter().all(|name| Key::is_segment(name) && after.is_none_or(|after| *name > after)), "{names:?}");
    assert!(names.len() <= limit && (!listing.has_more || names.len() == limit), "{names:?}");
    let omitted = listing.omitted_names.len();
    assert!(omitted <= MAX_OMITTED_NAMES && omitted as u64 <= listing.omitted_count);
}

fn check_error(error: &ListingError) {
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text:?}");
}
