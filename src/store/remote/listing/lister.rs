//! Lists the directories of a store behind HTTP.

use std::time::Duration;

use super::bucket::{BucketDirectory, BucketProtocol};
use super::error_document::StoreErrorCode;
use super::http_root::HttpRoot;
use super::page_reader::{PageMemory, PageReader};
use super::selection::{EntrySelection, ListingRequest};
use super::transport::{ListingError, ListingTransport};
use crate::store::error::StoreError;
use crate::store::key::Key;
use crate::store::listing::{EntryFilter, Listing};

/// Lists the directories of one root.
#[derive(Debug)]
pub struct DirectoryLister {
    root: RootKind,
    deadline: Duration,
    memory: PageMemory,
}

/// The kind of a root.
#[derive(Debug)]
enum RootKind {
    Bucket {
        protocol: BucketProtocol,
        /// Prefix of all keys, without slashes at its ends.
        prefix: String,
        /// As [`DirectoryLister::with_marker`].
        marker: Option<&'static str>,
    },
    Http(HttpRoot),
}

impl DirectoryLister {
    /// Creates a lister for a bucket of S3, or of a store with its protocol, such as Google's. `prefix` is the prefix of
    /// all keys. Each call ends within `deadline`.
    pub fn s3(prefix: &str, deadline: Duration) -> Self {
        Self::bucket(BucketProtocol::S3, prefix, deadline)
    }

    /// Creates a lister for a container of Azure.
    pub fn azure(prefix: &str, deadline: Duration) -> Self {
        Self::bucket(BucketProtocol::Azure, prefix, deadline)
    }

    fn bucket(protocol: BucketProtocol, prefix: &str, deadline: Duration) -> Self {
        let prefix = prefix.trim_matches('/').to_owned();
        Self { root: RootKind::Bucket { protocol, prefix, marker: None }, deadline, memory: PageMemory::new() }
    }

    /// Sets the name of an object that shows that a directory exists, for buckets whose objects may be read but not
    /// listed. Without it, every call for such a bucket is refused.
    #[must_use]
    pub fn with_marker(mut self, name: &'static str) -> Self {
        if let RootKind::Bucket { marker, .. } = &mut self.root {
            *marker = Some(name);
        }
        self
    }

    /// Creates a lister for an HTTP server, by its origin and the decoded path of the root. `marker` is the name of an
    /// object that shows that a directory exists, for servers without listings.
    ///
    /// # Errors
    /// Returns an error if the origin is not a URL.
    pub fn http(origin: &str, prefix: &str, marker: &'static str, deadline: Duration) -> Result<Self, url::ParseError> {
        let root = RootKind::Http(HttpRoot::new(origin, prefix, marker)?);
        Ok(Self { root, deadline, memory: PageMemory::new() })
    }

    /// Lists a directory, as [`Store::list`](crate::store::Store::list) describes. Names that no key can have are
    /// reported if the pages of this listing contain them.
    ///
    /// # Errors
    /// Returns an error if a request fails or is refused, or if a response is not understood.
    pub async fn list(
        &self,
        transport: &dyn ListingTransport,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        filter: &EntryFilter,
    ) -> Result<Option<Listing>, ListingError> {
        let pages = PageReader { transport, memory: &self.memory };
        let mut selection = EntrySelection::new(ListingRequest { directory: key, after, limit, filter });
        let exists = self.within_deadline("list", key, async {
            match &self.root {
                RootKind::Bucket { protocol, prefix, marker } => {
                    let result = bucket_directory(*protocol, prefix, key).list(&pages, &mut selection).await;
                    let Some((answer, exists)) = exists_if_denied(&result, &pages, key, *marker).await? else {
                        return result;
                    };
                    if exists { Err(ListingError::CannotList(key.clone(), answer)) } else { Ok(false) }
                }
                RootKind::Http(root) => root.list(&pages, &mut selection).await,
            }
        });
        Ok(exists.await?.then(|| selection.finish()))
    }

    /// Returns true if `key` is a directory. For a bucket, one key with its prefix is requested.
    ///
    /// # Errors
    /// Returns an error if a request fails or is refused, or if a response is not understood.
    pub async fn is_directory(&self, transport: &dyn ListingTransport, key: &Key) -> Result<bool, ListingError> {
        let pages = PageReader { transport, memory: &self.memory };
        let is_directory = self.within_deadline("find", key, async {
            match &self.root {
                RootKind::Bucket { protocol, prefix, marker } => {
                    let result = bucket_directory(*protocol, prefix, key).exists(&pages).await;
                    let exists = exists_if_denied(&result, &pages, key, *marker).await?;
                    exists.map_or(result, |(_, exists)| Ok(exists))
                }
                RootKind::Http(root) => root.is_directory(&pages, key).await,
            }
        });
        is_directory.await
    }

    /// Checks that the store lists its bucket. Whether the root exists does not matter.
    ///
    /// # Errors
    /// Returns an error if the request fails or is refused, or if the response is not understood.
    pub async fn check_bucket(&self, transport: &dyn ListingTransport) -> Result<(), ListingError> {
        let pages = PageReader { transport, memory: &self.memory };
        let root = Key::root();
        self.within_deadline("find", &root, async {
            match &self.root {
                RootKind::Bucket { protocol, prefix, .. } => {
                    bucket_directory(*protocol, prefix, &root).exists(&pages).await.map(|_exists| ())
                }
                RootKind::Http(_) => Ok(()),
            }
        })
        .await
    }

    async fn within_deadline<T>(
        &self,
        action: &'static str,
        key: &Key,
        work: impl Future<Output = Result<T, ListingError>>,
    ) -> Result<T, ListingError> {
        let result = tokio::time::timeout(self.deadline, work).await;
        result.unwrap_or_else(|_elapsed| Err(StoreError::Timeout(action, key.clone()).into()))
    }
}

/// Returns true if a directory contains the marker, with the answer of a store that does not permit to list it. Returns
/// `None` if the store permits it, or if there is no sign that its objects can be read.
///
/// # Errors
/// Returns an error if the store cannot tell, as with credentials that are not valid.
async fn exists_if_denied(
    result: &Result<bool, ListingError>,
    pages: &PageReader<'_>,
    key: &Key,
    marker: Option<&str>,
) -> Result<Option<(String, bool)>, ListingError> {
    let (Err(ListingError::Refused(answer)), Some(marker)) = (result, marker) else { return Ok(None) };
    if answer.code != StoreErrorCode::AccessDenied {
        return Ok(None);
    }
    let exists = match key.child(marker) {
        Ok(object) => pages.transport.has_object(&object).await?,
        Err(_too_deep) => false,
    };
    Ok((exists || !key.is_root()).then(|| (answer.to_string(), exists)))
}

fn bucket_directory<'a>(protocol: BucketProtocol, prefix: &str, key: &'a Key) -> BucketDirectory<'a> {
    let names = [prefix, key.as_str()].into_iter().filter(|path| !path.is_empty());
    let prefix = names.flat_map(|path| [path, "/"]).collect();
    BucketDirectory { protocol, bucket_path: String::new(), key, prefix }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fmt::Write;
    use std::sync::{Arc, Mutex};

    use async_trait::async_trait;
    use percent_encoding::percent_decode_str;
    use proptest::prelude::*;

    use super::*;
    use crate::store::listing::{DirEntry, FilterDecision};
    use crate::store::remote::listing::page_reader::LISTING_BYTES_PER_STORE;
    use crate::store::remote::listing::transport::ListingResponse;

    const DEADLINE: Duration = Duration::from_secs(60);

    /// Order in which a bucket lists its keys.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Order {
        /// By the bytes of keys and common prefixes, as S3 and Azure define it.
        Keys,
        /// By the names of entries, as servers list that store keys in directories.
        Names,
    }

    /// A bucket in memory that records the queries.
    struct Bucket {
        protocol: BucketProtocol,
        keys: BTreeSet<String>,
        /// Prefix in front of the keys of the root.
        root: &'static str,
        order: Order,
        /// Largest number of keys on a page, whatever the query says.
        max_keys: usize,
        queries: Mutex<Vec<BTreeMap<String, String>>>,
    }

    impl Bucket {
        fn new(keys: impl IntoIterator<Item = impl Into<String>>) -> Self {
            Self {
                protocol: BucketProtocol::S3,
                keys: keys.into_iter().map(Into::into).collect(),
                root: "",
                order: Order::Keys,
                max_keys: 1000,
                queries: Mutex::default(),
            }
        }

        fn query_count(&self) -> usize {
            self.queries.lock().unwrap().len()
        }

        /// Returns the keys and common prefixes with `prefix`, in the order of the bucket.
        fn items(&self, prefix: &str, delimiter: &str) -> Vec<String> {
            let matching = self.keys.iter().filter_map(|key| key.strip_prefix(prefix));
            let grouped = matching.map(|rest| match rest.find(delimiter).filter(|_| !delimiter.is_empty()) {
                Some(at) => format!("{prefix}{}", &rest[..=at]),
                None => format!("{prefix}{rest}"),
            });
            let mut items: Vec<String> = grouped.collect::<BTreeSet<_>>().into_iter().collect();
            if self.order == Order::Names {
                items.sort_by_key(|item| item.trim_end_matches('/').to_owned());
            }
            items
        }

        fn page(&self, query: &BTreeMap<String, String>) -> String {
            let get = |name: &str| query.get(name).map_or("", String::as_str);
            let is_s3 = self.protocol == BucketProtocol::S3;
            let (after, max_keys) = if is_s3 { ("start-after", "max-keys") } else { ("none", "maxresults") };
            let token = get(if is_s3 { "continuation-token" } else { "marker" });
            let mut items = self.items(get("prefix"), get("delimiter"));
            if let Some(token) = token.strip_prefix("token ") {
                items.drain(..=items.iter().position(|item| item == token).unwrap());
            } else {
                // A group follows the name if one of its keys does.
                let last_key =
                    |item: &String| if item.ends_with('/') { format!("{item}\u{10ffff}") } else { item.clone() };
                items.retain(|item| last_key(item).as_str() > get(after));
            }
            let limit = get(max_keys).parse::<usize>().unwrap().min(self.max_keys);
            let is_truncated = items.len() > limit;
            items.truncate(limit);
            let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;");
            let next = items.last().filter(|_| is_truncated).map(|last| escape(&format!("token {last}")));
            let mut xml = String::new();
            for item in &items {
                let is_group = item.ends_with('/') && !get("delimiter").is_empty() && item != get("prefix");
                let item = escape(item);
                let _ = match (is_s3, is_group) {
                    (true, true) => write!(xml, "<CommonPrefixes><Prefix>{item}</Prefix></CommonPrefixes>"),
                    (true, false) => write!(xml, "<Contents><Key>{item}</Key><Size>1</Size></Contents>"),
                    (false, true) => write!(xml, "<BlobPrefix><Name>{item}</Name></BlobPrefix>"),
                    (false, false) => write!(xml, "<Blob><Name>{item}</Name></Blob>"),
                };
            }
            if is_s3 {
                let next = next
                    .map_or_else(String::new, |next| format!("<NextContinuationToken>{next}</NextContinuationToken>"));
                format!("<ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>{xml}{next}</ListBucketResult>")
            } else {
                let next = next.unwrap_or_default();
                format!("<EnumerationResults><Blobs>{xml}</Blobs><NextMarker>{next}</NextMarker></EnumerationResults>")
            }
        }

        fn lister(&self, prefix: &str) -> DirectoryLister {
            DirectoryLister::bucket(self.protocol, prefix, DEADLINE)
        }
    }

    #[async_trait]
    impl ListingTransport for Bucket {
        async fn get(&self, target: &str, _: usize) -> Result<ListingResponse, StoreError> {
            let decode = |text: &str| percent_decode_str(text).decode_utf8().unwrap().into_owned();
            let pairs = target.strip_prefix('?').unwrap().split('&').map(|pair| pair.split_once('=').unwrap());
            let query: BTreeMap<String, String> = pairs.map(|(name, value)| (name.to_owned(), decode(value))).collect();
            let body = self.page(&query).into();
            self.queries.lock().unwrap().push(query);
            Ok(ListingResponse { status: 200, body, is_cut: false })
        }

        async fn has_object(&self, key: &Key) -> Result<bool, StoreError> {
            Ok(self.keys.contains(&format!("{}{key}", self.root)))
        }
    }

    /// Answers every request with the next of some responses, or with the last one.
    struct Replies {
        /// The responses, the next one at the end.
        responses: Mutex<Vec<ListingResponse>>,
        /// Keys of objects that can be read.
        objects: Vec<&'static str>,
    }

    impl Replies {
        fn new(replies: &[(u16, &str)]) -> Self {
            let reply =
                |&(status, body): &(u16, &str)| ListingResponse { status, body: body.to_owned().into(), is_cut: false };
            Self { responses: Mutex::new(replies.iter().rev().map(reply).collect()), objects: Vec::new() }
        }
    }

    #[async_trait]
    impl ListingTransport for Replies {
        async fn get(&self, _: &str, _: usize) -> Result<ListingResponse, StoreError> {
            let mut replies = self.responses.lock().unwrap();
            Ok(if replies.len() > 1 { replies.pop().unwrap() } else { replies[0].clone() })
        }

        async fn has_object(&self, key: &Key) -> Result<bool, StoreError> {
            Ok(self.objects.contains(&key.as_str()))
        }
    }

    fn key(path: &str) -> Key {
        if path.is_empty() { Key::root() } else { Key::parse(path).unwrap() }
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn list(
        lister: &DirectoryLister,
        transport: &dyn ListingTransport,
        path: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Option<Listing>, ListingError> {
        run(lister.list(transport, &key(path), after, limit, &FilterDecision::keep_all()))
    }

    fn names(listing: &Listing) -> Vec<String> {
        let slash = |entry: &DirEntry| if entry.is_directory { "/" } else { "" };
        listing.entries.iter().map(|entry| format!("{}{}", entry.name, slash(entry))).collect()
    }

    /// Returns the entries of a directory as a plain reading of the keys gives them: sorted by name, a directory instead
    /// of an object of the same name.
    fn reference(keys: &BTreeSet<String>, prefix: &str) -> BTreeMap<String, bool> {
        let mut entries = BTreeMap::new();
        for rest in keys.iter().filter_map(|key| key.strip_prefix(prefix)).filter(|rest| !rest.is_empty()) {
            let name = rest.split('/').next().unwrap();
            if Key::is_segment(name) {
                *entries.entry(name.to_owned()).or_default() |= rest.contains('/');
            }
        }
        entries
    }

    fn any_keys() -> impl Strategy<Value = BTreeSet<String>> {
        // Characters before and after the slash, so that the order of keys and that of names differ.
        proptest::collection::btree_set("[ab.-]{1,3}(/[ab0-]{0,2}){0,2}", 0..30)
            .prop_map(|keys| keys.into_iter().map(|key| format!("root/{key}")).collect())
    }

    /// Bodies of parts of documents, in any order.
    fn any_body() -> impl Strategy<Value = String> {
        let parts = [
            "<ListBucketResult>|</ListBucketResult>|<Contents><Key>[a-c/]{0,3}</Key></Contents>",
            "<IsTruncated>true</IsTruncated>|<NextContinuationToken>[ab]</NextContinuationToken>",
            "<EnumerationResults>|</EnumerationResults>|<Blobs><Blob><Name>[a-c/]{0,3}</Name></Blob></Blobs>",
            r#"<title>Index of /</title>|<a href="[a-c%/]{0,4}">|\{"entries":\[|\{"name":"[a-c]","kind":"file"\},?"#,
            r#"\],"next":"[a-c]"\}|[{}\[\]"a:,&;]|\PC"#,
        ];
        let parts = parts.map(|part| proptest::string::string_regex(part).unwrap().boxed());
        proptest::collection::vec(proptest::strategy::Union::new(parts), 0..8).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn listings_have_the_smallest_names_in_any_order_of_the_bucket(
            keys in any_keys(),
            is_s3: bool,
            is_by_name: bool,
            max_keys in 1usize..6,
            limit in 0usize..6,
            after in proptest::option::of("[ab.-]{1,3}"),
        ) {
            let bucket = Bucket {
                protocol: if is_s3 { BucketProtocol::S3 } else { BucketProtocol::Azure },
                order: if is_by_name { Order::Names } else { Order::Keys },
                max_keys,
                ..Bucket::new(keys.clone())
            };
            let listing = list(&bucket.lister("root"), &bucket, "", after.as_deref(), limit).unwrap();
            let is_after = |name: &String| after.as_ref().is_none_or(|after| name > after);
            let expected: Vec<DirEntry> = reference(&keys, "root/")
                .into_iter()
                .filter(|(name, _)| is_after(name))
                .map(|(name, is_directory)| DirEntry { name, is_directory })
                .collect();
            prop_assert_eq!(listing.is_some(), !keys.is_empty());
            let listing = listing.unwrap_or_default();
            prop_assert_eq!(&listing.entries[..], &expected[..limit.min(expected.len())]);
            prop_assert_eq!(listing.has_more, expected.len() > limit);
        }

        #[test]
        fn a_filter_that_looks_into_directories_sees_each_one(
            keys in any_keys(),
            max_keys in 1usize..6,
            limit in 1usize..4,
        ) {
            let bucket = Bucket { root: "root/", max_keys, ..Bucket::new(keys.clone()) };
            let filter: EntryFilter = Arc::new(|entry: &DirEntry| match entry.is_directory {
                true => FilterDecision::KeepIfContains("a"),
                false if entry.name.starts_with('a') => FilterDecision::Keep,
                false => FilterDecision::Skip,
            });
            let mut entries = Vec::new();
            loop {
                let after = entries.last().map(|entry: &DirEntry| entry.name.clone());
                let listing = run(bucket.lister("root").list(&bucket, &Key::root(), after.as_deref(), limit, &filter));
                let listing = listing.unwrap().unwrap_or_default();
                prop_assert!(listing.entries.len() == limit || !listing.has_more);
                entries.extend(listing.entries);
                if !listing.has_more {
                    break;
                }
            }
            let contains = |name: &str| keys.contains(&format!("root/{name}/a"));
            // An object that is listed although a directory has its name stays an object if the directory is not listed.
            let mut expected = BTreeMap::new();
            let names = keys.iter().map(|key| key["root/".len()..].split('/').next().unwrap());
            for name in names.filter(|name| Key::is_segment(name)) {
                if contains(name) {
                    expected.insert(name.to_owned(), true);
                } else if name.starts_with('a') && keys.contains(&format!("root/{name}")) {
                    expected.insert(name.to_owned(), false);
                }
            }
            let actual: Vec<_> = entries.into_iter().map(|entry| (entry.name, entry.is_directory)).collect();
            prop_assert_eq!(actual, expected.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn no_response_panics_or_loops(
            bodies in proptest::collection::vec((proptest::sample::select(vec![200u16, 404, 403, 503]), any_body()), 1..6),
            limit in 0usize..3,
        ) {
            let bodies: Vec<_> = bodies.iter().map(|(status, body)| (*status, body.as_str())).collect();
            let listers = [
                DirectoryLister::s3("", DEADLINE),
                DirectoryLister::azure("a", DEADLINE),
                DirectoryLister::http("http://host", "a/b", "attributes.json", DEADLINE).unwrap(),
            ];
            for lister in listers {
                let result = list(&lister, &Replies::new(&bodies), "c", Some("a"), limit);
                if let Ok(Some(listing)) = result {
                    prop_assert!(listing.entries.iter().all(|entry| Key::is_segment(&entry.name)));
                }
                let _ = run(lister.is_directory(&Replies::new(&bodies), &key("c")));
            }
        }
    }

    #[test]
    fn a_hundred_thousand_children_are_listed_in_pages_of_a_thousand() {
        let bucket = Bucket::new((0..100_000).map(|n| format!("v/s0/{n:06}/0/0")));
        let lister = bucket.lister("v");
        let listing = list(&lister, &bucket, "s0", None, 10_000).unwrap().unwrap();
        assert_eq!((listing.entries.len(), listing.has_more, bucket.query_count()), (10_000, true, 11));
        assert_eq!(listing.entries[9999], DirEntry { name: "009999".to_owned(), is_directory: true });
        let listing = list(&lister, &bucket, "s0", Some("099998"), 10_000).unwrap().unwrap();
        assert_eq!((names(&listing), listing.has_more, bucket.query_count()), (vec!["099999/".to_owned()], false, 12));
        assert_eq!(lister.memory.free_bytes(), LISTING_BYTES_PER_STORE);
    }

    #[test]
    fn a_directory_that_sorts_late_in_the_bucket_is_found_with_one_request() {
        let keys = (0..5000).map(|n| format!("a-{n:04}/x")).chain(["a/x".to_owned()]);
        let bucket = Bucket::new(keys);
        let listing = list(&bucket.lister(""), &bucket, "", None, 3).unwrap().unwrap();
        assert_eq!(names(&listing), ["a/", "a-0000/", "a-0001/"]);
        assert_eq!((listing.has_more, bucket.query_count()), (true, 2));
    }

    #[test]
    fn markers_and_names_that_no_key_has_are_not_entries() {
        let bucket =
            Bucket::new(["v/", "v//x", "v/a/", "v/b/", "v/b/c", "v/d\\e", "v/f\u{1}", "v/%2F", "v/ü +&<", "w"]);
        let listing = list(&bucket.lister(""), &bucket, "v", None, 100).unwrap().unwrap();
        assert_eq!(names(&listing), ["%2F", "a/", "b/", "ü +&<"]);
        assert_eq!(
            (listing.omitted_names, listing.omitted_count),
            (vec!["/".into(), "d\\e".into(), "f\u{1}".into()], 3)
        );
        // The marker makes a directory that is empty otherwise.
        assert_eq!(names(&list(&bucket.lister("v"), &bucket, "a", None, 9).unwrap().unwrap()), Vec::<String>::new());
        assert_eq!(list(&bucket.lister("v"), &bucket, "missing", None, 9).unwrap(), None);
        assert!(list(&bucket.lister("v"), &bucket, "b", Some("z"), 9).unwrap().is_some());
    }

    #[test]
    fn a_directory_is_found_with_one_key() {
        let bucket = Bucket::new(["v/a/b", "v/ab", "v/c/"]);
        let is_directory = |path: &str| run(bucket.lister("v").is_directory(&bucket, &key(path))).unwrap();
        assert!(is_directory("a") && is_directory("c") && is_directory(""));
        assert!(!is_directory("ab") && !is_directory("a/b") && !is_directory("x"));
        let queries = bucket.queries.lock().unwrap();
        assert_eq!(queries.len(), 6);
        assert!(queries.iter().all(|query| query["max-keys"] == "1" && !query.contains_key("delimiter")));
    }

    #[test]
    fn pages_without_progress_are_an_error() {
        let page = |inner: &str| format!("<ListBucketResult><IsTruncated>true</IsTruncated>{inner}</ListBucketResult>");
        let key = "<Contents><Key>a</Key></Contents>";
        let token = "<NextContinuationToken>t</NextContinuationToken>";
        for (inner, reason) in [
            (String::new(), "does not say where"),
            (format!("{key}{token}"), "the same again"),
            (token.to_owned(), "the same again"),
            (key.to_owned(), "does not say where"),
        ] {
            let error = list(&DirectoryLister::s3("", DEADLINE), &Replies::new(&[(200, &page(&inner))]), "", None, 9);
            let error = error.unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        let tokens: Vec<String> = (0..200).map(|n| page(&token.replace(">t<", &format!(">{n}<")))).collect();
        let replies: Vec<_> = tokens.iter().map(|page| (200, page.as_str())).collect();
        let error = list(&DirectoryLister::s3("", DEADLINE), &Replies::new(&replies), "", None, 9).unwrap_err();
        assert!(error.to_string().contains("brought no further key"), "{error}");
    }

    #[test]
    fn refusals_and_foreign_documents_are_errors() {
        let lister = DirectoryLister::s3("p", DEADLINE);
        let refused = Replies::new(&[(403, "<Error><Code>ExpiredToken</Code></Error>")]);
        let error = list(&lister, &refused, "", None, 9).unwrap_err();
        assert!(matches!(error, ListingError::Refused(answer) if answer.code_name == "ExpiredToken"));
        for body in ["<html></html>", "", "<ListBucketResult><Contents><Key>q/a</Key></Contents></ListBucketResult>"] {
            let error = list(&lister, &Replies::new(&[(200, body)]), "", None, 9).unwrap_err();
            assert!(matches!(error, ListingError::Malformed(..)), "{body}: {error}");
        }
    }

    #[test]
    fn a_bucket_that_may_not_be_listed_has_directories_with_the_marker() {
        let denied = Replies::new(&[(403, "<Error><Code>AccessDenied</Code></Error>")]);
        let denied = Replies { objects: vec!["a/attributes.json"], ..denied };
        let lister = DirectoryLister::s3("", DEADLINE);
        let is_refused = |error: ListingError| matches!(error, ListingError::Refused(_));
        assert!(is_refused(list(&lister, &denied, "a", None, 9).unwrap_err()));
        let lister = lister.with_marker("attributes.json");
        let error = list(&lister, &denied, "a", None, 9).unwrap_err();
        assert!(matches!(error, ListingError::CannotList(..)), "{error}");
        assert_eq!(list(&lister, &denied, "b", None, 9).unwrap(), None);
        let is_directory = |path: &str| run(lister.is_directory(&denied, &key(path)));
        assert!(is_directory("a").unwrap() && !is_directory("b").unwrap());
        // Nothing shows that objects below the root can be read.
        assert!(is_refused(is_directory("").unwrap_err()));
        let expired = Replies::new(&[(400, "<Error><Code>ExpiredToken</Code></Error>")]);
        let expired = Replies { objects: vec!["a/attributes.json"], ..expired };
        assert!(is_refused(run(lister.is_directory(&expired, &key("a"))).unwrap_err()));
    }

    #[tokio::test]
    async fn a_store_that_does_not_answer_ends_the_listing_at_the_deadline() {
        struct Silent;
        #[async_trait]
        impl ListingTransport for Silent {
            async fn get(&self, _: &str, _: usize) -> Result<ListingResponse, StoreError> {
                std::future::pending().await
            }

            async fn has_object(&self, _: &Key) -> Result<bool, StoreError> {
                std::future::pending().await
            }
        }
        let lister = DirectoryLister::s3("", Duration::from_millis(20));
        let error = lister.list(&Silent, &Key::root(), None, 9, &FilterDecision::keep_all()).await.unwrap_err();
        assert!(matches!(error, ListingError::Store(StoreError::Timeout("list", _))), "{error}");
    }
}
