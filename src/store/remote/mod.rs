//! A store behind a network: S3 and compatible stores, Google Cloud Storage, Azure Blob Storage, and HTTP servers.
//!
//! `object_store` obtains credentials and signs requests. Requests are sent here, because the answers of stores must be
//! seen as they are: a fault must never look like a missing object.

mod client;
mod credentials;
mod failure;
mod forbidden;
mod listing;
mod location;
mod object;
mod profile;
mod signer;
mod upstream;
mod variables;
mod waiting_calls;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::header::{ACCEPT, HeaderName, HeaderValue, LOCATION};
use axum::http::{Request, StatusCode};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use http_body_util::Full;
use tokio::time::Instant;
use url::Url;

use super::Store;
use super::disk_pool::StorePressure;
use super::error::StoreError;
use super::key::Key;
use super::listing::{EntryFilter, Listing};
use super::object::{InlineLimit, Object, ObjectData, ObjectMeta, Revalidation};
use crate::config::{ForbiddenPolicy, Provider, RemoteRoot, StoreSettings};
use crate::http_client::{HttpClient, HttpClientOptions};
use crate::runtime::fair_queue::{ClientId, ClientQuota, CostBasis, FairSemaphore};
use crate::runtime::off_thread::off_thread;
use client::{SignedService, StoreClient, StoreRequest, StoreResponse};
use failure::{error_of_answer, error_of_listing};
use forbidden::{ForbiddenKeys, IMPOSSIBLE_NAME};
pub use listing::{
    DirectoryLister, ErrorAnswer, LISTING_ACCEPT, LISTING_BYTES_PER_STORE, ListingError, ListingResponse,
    ListingTransport, StoreErrorCode,
};
use location::Location;
use object::{CollectedObject, RemoteObject, Validators, check_encoding, if_changed, range_header};
use upstream::{
    RetryCount, UpstreamOperation, UpstreamService, UpstreamSettings, content_length, register, shared_bucket,
};
pub use upstream::{log_upstream_costs, record_upstream_metrics};
use variables::Variables;

/// Name of the object that a probe of the store reads. Directories without listings are recognised by it.
const ATTRIBUTES: &str = "attributes.json";

/// Region of a store with the protocol of S3 that names none.
const DEFAULT_REGION: &str = "us-east-1";

/// [`config::MAX_UNANNOUNCED_BYTES`](crate::config::MAX_UNANNOUNCED_BYTES) as a length.
const MAX_UNANNOUNCED_BYTES: usize = 1 << 20;

/// [`config::UNANNOUNCED_OBJECTS`](crate::config::UNANNOUNCED_OBJECTS) as a number of permits.
const UNANNOUNCED_OBJECTS: usize = 16;

const _: () = assert!(
    MAX_UNANNOUNCED_BYTES as u64 == crate::config::MAX_UNANNOUNCED_BYTES
        && UNANNOUNCED_OBJECTS as u64 == crate::config::UNANNOUNCED_OBJECTS
        && LISTING_BYTES_PER_STORE as u64 == crate::config::STORE_LISTING_BYTES,
    "the announced memory is that of the store"
);

/// Time for which an object that was readable shows that the store is well.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// A container in an object store or on an HTTP server.
pub struct RemoteStore {
    client: Arc<StoreClient>,
    forbidden: ForbiddenKeys,
    lister: DirectoryLister,
    /// One permit for every object without an announced length that is in memory of the store.
    unannounced: FairSemaphore,
}

impl fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteStore").field("client", &self.client).finish_non_exhaustive()
    }
}

/// Result of a request for an object.
enum ObjectAnswer {
    Missing,
    Unchanged,
    /// The requested range lies beyond the end of the object.
    Unsatisfiable,
    Found(Box<StoreResponse>),
}

impl RemoteStore {
    /// Opens the container at `root`: finds its credentials and its region, and checks that it can be read. A call that
    /// takes longer than `call_timeout` fails. The metrics of its requests have the label `container`.
    ///
    /// Files are read on a thread of its own, which keeps `attempt` until the files have been read, even if the caller
    /// has given up.
    ///
    /// # Errors
    /// Returns a message that says what is wrong and what to do. It contains no secret.
    pub async fn open(
        container: &str,
        root: &RemoteRoot,
        settings: &StoreSettings,
        call_timeout: Duration,
        attempt: impl Send + 'static,
    ) -> Result<Self, String> {
        Self::open_with(container, root, settings, call_timeout, Variables::from_env(), attempt).await
    }

    async fn open_with(
        container: &str,
        root: &RemoteRoot,
        settings: &StoreSettings,
        call_timeout: Duration,
        variables: Variables,
        attempt: impl Send + 'static,
    ) -> Result<Self, String> {
        let read_files = {
            let (root, settings) = (root.clone(), settings.clone());
            move || {
                let credentials = credentials::find(&root, &settings, &variables).map_err(anyhow::Error::msg)?;
                let options = HttpClientOptions {
                    uses_proxy: true,
                    max_idle_connections: settings.concurrency,
                    ..HttpClientOptions::default()
                };
                let http = credentials::http_client(&settings, &options).map_err(anyhow::Error::msg)?;
                Ok((attempt, credentials, http))
            }
        };
        let files = off_thread(call_timeout, read_files).await;
        let (_attempt, credentials, http) = files.map_err(|error| format!("{error:#}"))?;
        let named = Some(settings.region.clone()).filter(|region| !region.is_empty());
        let mut region = root.region.clone().or(named);
        if region.is_none() && root.provider == Provider::S3 && location::endpoint(root, settings).is_none() {
            let timeout = settings.timeout.min(call_timeout);
            // Buckets of China and of the government are known only in their own regions.
            let endpoint = location::amazon_endpoint(credentials.region.as_deref().unwrap_or(DEFAULT_REGION));
            let found = find_region(&http, &endpoint, &root.bucket, credentials.region.as_deref(), timeout);
            region = Some(found.await?);
        }
        let region = region.or(credentials.region).unwrap_or_else(|| DEFAULT_REGION.to_owned());
        let account = credentials.account.as_deref();
        let location = Location::new(root, settings, &region, account)?;
        let project = credentials.project.as_deref();
        let signer = credentials.source.signer(root.provider, &region, settings.requester_pays, account, project)?;
        if location.is_exposed() && !signer.is_anonymous() {
            return Err("credentials are not sent over plain http to another machine; use https, or \
                        store.credentials = \"none\""
                .to_owned());
        }
        let lister = match root.provider {
            Provider::S3 | Provider::Google | Provider::Memory => {
                DirectoryLister::s3(&root.prefix, call_timeout).with_marker(ATTRIBUTES)
            }
            Provider::Azure => DirectoryLister::azure(&root.prefix, call_timeout).with_marker(ATTRIBUTES),
            Provider::Http => DirectoryLister::http(&location.origin, &root.prefix, ATTRIBUTES, call_timeout)
                .map_err(|error| format!("the address is not a URL: {error}"))?,
        };
        let bucket = shared_bucket(&location.limit_url(), settings.concurrency);
        let counters = register(container, &bucket);
        let upstream = UpstreamSettings { timeout: settings.timeout, hedge: settings.hedge };
        let service = UpstreamService::new(SignedService { http, signer }, upstream, bucket, counters);
        let client = StoreClient::new(location, service, call_timeout);
        let store = Self::new(client, settings.missing_403, lister);
        store.probe().await.map_err(|error| {
            if matches!(error, StoreError::Io { .. } | StoreError::Timeout(..)) {
                format!("the store cannot be used, check the address, store.endpoint and the network: {error}")
            } else {
                error.to_string()
            }
        })?;
        Ok(store)
    }

    fn new(client: StoreClient, policy: ForbiddenPolicy, lister: DirectoryLister) -> Self {
        let quota = ClientQuota { alone: UNANNOUNCED_OBJECTS, among_others: UNANNOUNCED_OBJECTS / 2 };
        let unannounced = FairSemaphore::new(UNANNOUNCED_OBJECTS, quota, CostBasis::Time);
        Self { client: Arc::new(client), forbidden: ForbiddenKeys::new(policy), lister, unannounced }
    }

    /// Returns the URL of the root, which contains no secret.
    pub fn url(&self) -> String {
        self.client.location.object_url(&Key::root())
    }

    fn provider(&self) -> Provider {
        self.client.location.provider
    }

    /// Requests the object at `key`, or a range of it. `headers` are conditions, without which it is never unchanged.
    ///
    /// # Errors
    /// Returns an error unless the store sends the object or says that there is none, or that it is unchanged.
    async fn request_object(
        &self,
        action: &'static str,
        key: &Key,
        mut headers: Vec<(HeaderName, HeaderValue)>,
        range: Option<&Range<u64>>,
        deadline: Instant,
        retries: &RetryCount,
    ) -> Result<ObjectAnswer, StoreError> {
        if key.is_root() {
            return Ok(ObjectAnswer::Missing);
        }
        let url = self.client.location.object_url(key);
        let is_conditional = !headers.is_empty();
        headers.extend(range.map(range_header));
        let operation = if range.is_some() { UpstreamOperation::GetRange } else { UpstreamOperation::Get };
        let retries = retries.clone();
        let request = StoreRequest { operation, action, key, url, headers, deadline, retries };
        let started = Instant::now();
        let response = self.client.send(&request).await?;
        match response.status {
            status if status == StatusCode::OK || status == StatusCode::PARTIAL_CONTENT && range.is_some() => {
                self.forbidden.record_readable(key, started);
                check_encoding(key, &response.headers)?;
                response.check_end()?;
                return Ok(ObjectAnswer::Found(Box::new(response)));
            }
            StatusCode::NOT_MODIFIED if is_conditional => {
                self.forbidden.record_readable(key, started);
                return Ok(ObjectAnswer::Unchanged);
            }
            StatusCode::RANGE_NOT_SATISFIABLE if range.is_some() => return Ok(ObjectAnswer::Unsatisfiable),
            status if status.is_redirection() && self.is_directory_redirect(key, &response) => {
                return Ok(ObjectAnswer::Missing);
            }
            _ => {}
        }
        let answer = response.error_answer();
        let is_missing = match self.forbidden.policy_for(&answer) {
            Some(ForbiddenPolicy::Always) => true,
            Some(ForbiddenPolicy::Auto) => self.denial_means_missing(key, deadline).await?,
            Some(ForbiddenPolicy::Never) | None if answer.code != StoreErrorCode::NoSuchObject => false,
            Some(ForbiddenPolicy::Never) | None if self.provider() == Provider::Http => true,
            Some(ForbiddenPolicy::Never) | None => {
                answer.names_missing_object()
                    || self.has_working_bucket(deadline).await?
                        // The fault may have ended just now, so the object is requested again.
                        && self.status_of(key, deadline).await? == StatusCode::NOT_FOUND
            }
        };
        if is_missing { Ok(ObjectAnswer::Missing) } else { Err(error_of_answer(action, key, &answer, None)) }
    }

    /// Returns true if a file server redirects from the path of a directory to the same path with a slash. Behind a
    /// proxy, the server may name another scheme and port than its own.
    fn is_directory_redirect(&self, key: &Key, response: &StoreResponse) -> bool {
        let location = response.headers.get(LOCATION).and_then(|location| location.to_str().ok());
        let requested = Url::parse(&self.client.location.object_url(key)).ok();
        let (Some(location), Some(requested)) = (location, requested) else { return false };
        let Ok(target) = requested.join(location) else { return false };
        let path = |url: &Url| percent_encoding::percent_decode_str(url.path()).collect::<Vec<u8>>();
        let directory = [&path(&requested)[..], b"/"].concat();
        self.provider() == Provider::Http && target.host() == requested.host() && path(&target) == directory
    }

    /// Returns true if a 403 answer for `key` means that there is no such object: the store answers 403 for keys that
    /// cannot exist, too, although it lets an object be read.
    async fn denial_means_missing(&self, key: &Key, deadline: Instant) -> Result<bool, StoreError> {
        let ask = async {
            let Ok(key) = Key::root().child(IMPOSSIBLE_NAME) else { return Ok(false) };
            Ok(self.status_of(&key, deadline).await? == StatusCode::FORBIDDEN)
        };
        // The rights may have been revoked a moment ago, so an object must be readable after the denial. They may be
        // back since then, so `key` and the key that cannot exist must be denied after that.
        let denied = Instant::now();
        Ok(!self.forbidden.reports_missing().await
            && self.is_readable(denied, deadline).await? == Some(true)
            && self.forbidden.hides_missing(ask).await?
            && self.status_of(key, deadline).await? == StatusCode::FORBIDDEN)
    }

    /// Returns true if the bucket answers requests that begin now: for an object that was readable, or else for a
    /// listing. Only emulators need that. Without it, a balancer without a backend could make all objects look missing.
    async fn has_working_bucket(&self, deadline: Instant) -> Result<bool, StoreError> {
        if self.is_readable(Instant::now(), deadline).await? == Some(true) {
            return Ok(true);
        }
        match self.lister.check_bucket(self).await {
            Ok(()) => Ok(true),
            Err(ListingError::Store(error)) => Err(error),
            Err(ListingError::Refused(_) | ListingError::CannotList(..) | ListingError::Malformed(..)) => Ok(false),
        }
    }

    /// Returns true if an object that was readable still is, by a request that began after `since`. Returns `None` if
    /// none has been read yet. One request serves all callers that wait for it.
    async fn is_readable(&self, since: Instant, deadline: Instant) -> Result<Option<bool>, StoreError> {
        let _checking = self.forbidden.checking.lock().await;
        let Some((key, confirmed)) = self.forbidden.readable() else { return Ok(None) };
        if confirmed >= since {
            return Ok(Some(true));
        }
        let started = Instant::now();
        let status = self.status_of(&key, deadline).await?;
        if status == StatusCode::OK {
            self.forbidden.confirm_readable(key, started);
        } else if status == StatusCode::NOT_FOUND {
            self.forbidden.forget(&key);
        }
        Ok(Some(status == StatusCode::OK))
    }

    /// Returns the status of the answer to a request for an object, without its bytes.
    async fn status_of(&self, key: &Key, deadline: Instant) -> Result<StatusCode, StoreError> {
        let url = self.client.location.object_url(key);
        Ok(self.client.send(&head_request("read", key, url, deadline)).await?.status)
    }

    /// Opens an object without reading any of its bytes.
    async fn open_unread(&self, key: &Key, deadline: Instant) -> Result<Option<Object>, StoreError> {
        let url = self.client.location.object_url(key);
        let response = self.client.send(&head_request("read", key, url, deadline)).await?;
        let Some(len) = content_length(&response.headers).filter(|_| response.status == StatusCode::OK) else {
            return Store::get(self, key, &InlineLimit::new(0)).await;
        };
        let object = RemoteObject::without_response(Arc::clone(&self.client), key, &response.headers, len);
        Ok(Some(Object { meta: object.meta().clone(), age: Duration::ZERO, data: ObjectData::Open(Arc::new(object)) }))
    }

    /// Returns the object of a response. Its bytes are read if `inline` allows that.
    async fn to_object(
        &self,
        key: &Key,
        response: StoreResponse,
        inline: &InlineLimit,
        deadline: Instant,
        retries: &RetryCount,
    ) -> Result<Object, StoreError> {
        let Some(len) = response.body.announced_bytes() else {
            let (meta, collected) = self.collect(key, response, deadline).await?;
            let data = if meta.len <= inline.bytes() {
                ObjectData::InMemory(collected.bytes)
            } else {
                ObjectData::Open(Arc::new(collected))
            };
            return Ok(Object { meta, age: Duration::ZERO, data });
        };
        let object = RemoteObject::new(Arc::clone(&self.client), key, response, len);
        let meta = object.meta().clone();
        if len <= inline.bytes()
            && let Some(bytes) = object.read_range(0..len, len, deadline, retries, || len <= inline.bytes()).await?
        {
            return Ok(Object { meta, age: Duration::ZERO, data: ObjectData::InMemory(bytes) });
        }
        object.release_permit();
        Ok(Object { meta, age: Duration::ZERO, data: ObjectData::Open(Arc::new(object)) })
    }

    /// Reads an object whose length the server does not announce.
    ///
    /// # Errors
    /// Returns an error if it exceeds [`MAX_UNANNOUNCED_BYTES`].
    async fn collect(
        &self,
        key: &Key,
        mut response: StoreResponse,
        deadline: Instant,
    ) -> Result<(ObjectMeta, CollectedObject), StoreError> {
        let memory = tokio::time::timeout_at(deadline, self.unannounced.acquire(ClientId::current().flow(0), 1)).await;
        let memory = memory.map_err(|_elapsed| StoreError::Overloaded("read", key.clone()))?;
        let (bytes, is_cut) = response.body.read_up_to(MAX_UNANNOUNCED_BYTES, deadline).await?;
        if is_cut {
            return Err(response.body.failed(&format!(
                "the server does not announce the length of an object of more than {MAX_UNANNOUNCED_BYTES} bytes; it \
                 must send Content-Length"
            )));
        }
        let meta = Validators::of(&response.headers).meta(bytes.len() as u64);
        Ok((meta, CollectedObject { key: key.clone(), bytes, _memory: memory }))
    }
}

#[async_trait]
impl Store for RemoteStore {
    fn backend(&self) -> &'static str {
        match self.provider() {
            Provider::S3 => "s3",
            Provider::Google => "google",
            Provider::Azure => "azure",
            Provider::Http => "http",
            Provider::Memory => "memory",
        }
    }

    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        let deadline = self.client.deadline();
        if key.is_root() {
            return Ok(None);
        }
        let url = self.client.location.object_url(key);
        let started = Instant::now();
        let response = self.client.send(&head_request("stat", key, url, deadline)).await?;
        if response.status == StatusCode::OK
            && let Some(len) = content_length(&response.headers)
        {
            self.forbidden.record_readable(key, started);
            return Ok(Some(Validators::of(&response.headers).meta(len)));
        }
        if response.status == StatusCode::NOT_FOUND && self.provider() == Provider::Http {
            return Ok(None);
        }
        drop(response);
        // Only the response to GET says why an object cannot be read.
        Ok(match self.request_object("stat", key, Vec::new(), None, deadline, &RetryCount::default()).await? {
            ObjectAnswer::Missing | ObjectAnswer::Unchanged | ObjectAnswer::Unsatisfiable => None,
            ObjectAnswer::Found(response) => match response.body.announced_bytes() {
                Some(len) => Some(Validators::of(&response.headers).meta(len)),
                None => Some(self.collect(key, *response, deadline).await?.0),
            },
        })
    }

    async fn head_many(&self, keys: Vec<Key>) -> Result<Vec<Option<ObjectMeta>>, StoreError> {
        let requests = keys.into_iter().map(|key| async move { self.head(&key).await });
        stream::iter(requests).buffered(self.concurrent_reads().max(1)).try_collect().await
    }

    async fn get(&self, key: &Key, inline: &InlineLimit) -> Result<Option<Object>, StoreError> {
        let deadline = self.client.deadline();
        let retries = RetryCount::default();
        match self.request_object("read", key, Vec::new(), None, deadline, &retries).await? {
            ObjectAnswer::Missing | ObjectAnswer::Unchanged | ObjectAnswer::Unsatisfiable => Ok(None),
            ObjectAnswer::Found(response) => self.to_object(key, *response, inline, deadline, &retries).await.map(Some),
        }
    }

    async fn open_range(&self, key: &Key, range: Range<u64>) -> Result<Option<Object>, StoreError> {
        let (deadline, retries) = (self.client.deadline(), RetryCount::default());
        let response = match self.request_object("read", key, Vec::new(), Some(&range), deadline, &retries).await? {
            ObjectAnswer::Missing | ObjectAnswer::Unchanged => return Ok(None),
            ObjectAnswer::Unsatisfiable => return self.open_unread(key, deadline).await,
            ObjectAnswer::Found(response) => *response,
        };
        if response.status == StatusCode::OK && response.body.announced_bytes().is_none() {
            return self.to_object(key, response, &InlineLimit::new(0), deadline, &retries).await.map(Some);
        }
        let object = RemoteObject::of_range(Arc::clone(&self.client), key, response, &range)?;
        object.release_permit();
        Ok(Some(Object { meta: object.meta().clone(), age: Duration::ZERO, data: ObjectData::Open(Arc::new(object)) }))
    }

    async fn revalidate(&self, key: &Key, known: Option<(&str, u64)>) -> Result<Revalidation, StoreError> {
        let deadline = self.client.deadline();
        let condition = known.map(|(etag, _)| if_changed(etag)).unwrap_or_default();
        let mut response =
            match self.request_object("read", key, condition, None, deadline, &RetryCount::default()).await? {
                ObjectAnswer::Unchanged | ObjectAnswer::Unsatisfiable => return Ok(Revalidation::Unchanged),
                ObjectAnswer::Missing if known.is_none() => return Ok(Revalidation::Unchanged),
                ObjectAnswer::Missing => return Ok(Revalidation::Current(None)),
                ObjectAnswer::Found(response) => response,
            };
        let Some(len) = response.body.announced_bytes() else {
            let (meta, collected) = self.collect(key, *response, deadline).await?;
            if known.is_some_and(|(_, version)| version == meta.version) {
                return Ok(Revalidation::Unchanged);
            }
            return Ok(Revalidation::Current(Some(Object {
                meta,
                age: Duration::ZERO,
                data: ObjectData::Open(Arc::new(collected)),
            })));
        };
        let meta = Validators::of(&response.headers).meta(len);
        if known.is_some_and(|(_, version)| version == meta.version) {
            // The store has ignored the condition.
            response.body.discard(deadline).await;
            return Ok(Revalidation::Unchanged);
        }
        let object = RemoteObject::new(Arc::clone(&self.client), key, *response, len);
        object.release_permit();
        Ok(Revalidation::Current(Some(Object { meta, age: Duration::ZERO, data: ObjectData::Open(Arc::new(object)) })))
    }

    fn sends_conditional_requests(&self) -> bool {
        true
    }

    fn reports_missing_root(&self) -> bool {
        // The answers of buckets distinguish a missing bucket from a missing object. A file server answers 404 to all
        // requests while its directory is missing.
        self.provider() != Provider::Http
    }

    fn concurrent_reads(&self) -> usize {
        self.client.concurrency()
    }

    fn max_concurrent_reads(&self) -> usize {
        self.client.max_concurrency()
    }

    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError> {
        let found = self.lister.is_directory(self, key).await;
        found.map_err(|error| error_of_listing(key, error))
    }

    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        filter: EntryFilter,
    ) -> Result<Option<Listing>, StoreError> {
        let listed = self.lister.list(self, key, after, limit, &filter).await;
        listed.map_err(|error| error_of_listing(key, error))
    }

    fn pressure(&self) -> StorePressure {
        self.client.pressure()
    }

    async fn probe(&self) -> Result<(), StoreError> {
        let deadline = self.client.deadline();
        let recently = Instant::now().checked_sub(PROBE_INTERVAL).unwrap_or_else(Instant::now);
        if self.is_readable(recently, deadline).await? == Some(true) {
            return Ok(());
        }
        let Ok(key) = Key::root().child(ATTRIBUTES) else { return Ok(()) };
        match self.request_object("read", &key, Vec::new(), None, deadline, &RetryCount::default()).await {
            Ok(_) => Ok(()),
            // The root need not have attributes, and a store that forbids listings then answers 403.
            Err(StoreError::Denied { .. }) if self.is_directory(&Key::root()).await.is_ok() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl ListingTransport for RemoteStore {
    async fn get(&self, target: &str, max_bytes: usize) -> Result<ListingResponse, StoreError> {
        let deadline = self.client.deadline();
        let url = self.client.location.listing_url(target);
        let accept = (ACCEPT, HeaderValue::from_static(LISTING_ACCEPT));
        let headers = if self.provider() == Provider::Http { vec![accept] } else { Vec::new() };
        let root = Key::root();
        let asks_for_one = target.split(['?', '&']).any(|part| matches!(part, "max-keys=1" | "maxresults=1"));
        let request = StoreRequest {
            operation: if asks_for_one { UpstreamOperation::Probe } else { UpstreamOperation::List },
            action: "list",
            key: &root,
            url,
            headers,
            deadline,
            retries: RetryCount::default(),
        };
        let mut response = self.client.send(&request).await?;
        let status = response.status;
        let (body, is_cut) = if status.is_success() {
            response.check_end()?;
            response.body.read_up_to(max_bytes, deadline).await?
        } else {
            (response.error_document, false)
        };
        Ok(ListingResponse { status: status.as_u16(), body, is_cut })
    }

    async fn has_object(&self, key: &Key) -> Result<bool, StoreError> {
        let deadline = self.client.deadline();
        let answer = self.request_object("stat", key, Vec::new(), None, deadline, &RetryCount::default()).await?;
        let ObjectAnswer::Found(mut response) = answer else { return Ok(false) };
        response.body.discard(deadline).await;
        Ok(true)
    }
}

/// Returns a request for the metadata of an object.
fn head_request<'a>(action: &'static str, key: &'a Key, url: String, deadline: Instant) -> StoreRequest<'a> {
    let (operation, retries) = (UpstreamOperation::Head, RetryCount::default());
    StoreRequest { operation, action, key, url, headers: Vec::new(), deadline, retries }
}

/// Asks Amazon at `endpoint` for the region of a bucket. Returns `fallback` if there is no answer: the region of the
/// environment is that of the machine, which need not be that of the bucket.
///
/// # Errors
/// Returns a message if there is neither an answer nor a fallback.
async fn find_region(
    http: &HttpClient,
    endpoint: &str,
    bucket: &str,
    fallback: Option<&str>,
    timeout: Duration,
) -> Result<String, String> {
    let found = ask_for_region(http, endpoint, bucket, timeout).await;
    found.or_else(|why| fallback.map(str::to_owned).ok_or(why))
}

async fn ask_for_region(http: &HttpClient, endpoint: &str, bucket: &str, timeout: Duration) -> Result<String, String> {
    let url = format!("{endpoint}/{bucket}");
    let request = Request::head(url).body(Full::<Bytes>::default());
    let request = request.map_err(|error| format!("the name of the bucket is not valid: {error}"))?;
    let response = tokio::time::timeout(timeout, http.send(request)).await;
    let response = response.map_err(|_elapsed| {
        "Amazon does not say in which region the bucket is; check the network, or set store.region".to_owned()
    })?;
    let response = response.map_err(|error| format!("cannot ask Amazon for the region of the bucket: {error}"))?;
    let region = response.headers().get("x-amz-bucket-region").and_then(|region| region.to_str().ok());
    match region {
        Some(region) => Ok(region.to_owned()),
        None if response.status() == StatusCode::NOT_FOUND => {
            Err(format!("there is no bucket {bucket:?}; check the address of the container"))
        }
        None => Err(format!("the region of the bucket {bucket:?} is unknown; set store.region")),
    }
}

#[cfg(test)]
mod tests;
