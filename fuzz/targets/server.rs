//! The server in this process: its router over objects in memory or in files, and the checks of every response.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use bytes::Bytes;
use http_body_util::BodyExt;
use n5_server::access::AccessControl;
use n5_server::cache::RevalidationPolicy;
use n5_server::config::Config;
use n5_server::container::{Container, Resources, Settings};
use n5_server::http::{App, HttpOptions, Mount, router};
use n5_server::store::{Key, LocalStore, MemoryStore, Store, SymlinkPolicy};
use serde::de::IgnoredAny;
use tokio::runtime::Runtime;
use tower::ServiceExt;

const MIB: u64 = 1 << 20;

/// Maximum size of a response in bytes: `limits.slice`, and its representation as text.
const MOST_BYTES: usize = 64 << 20;

/// Returns settings so small that slices are streamed, blocks refused and caches filled.
fn settings(recheck: RevalidationPolicy) -> Settings {
    Settings {
        decoded_cache: 4 * MIB,
        stored_cache: 4 * MIB,
        recheck_metadata: recheck,
        recheck_data: recheck,
        max_slice_bytes: 4 * MIB,
        slice_budget: 2 * MIB,
        decode_budget: 4 * MIB,
        transfer_budget: 4 * MIB,
        max_attributes_bytes: 64 << 10,
        budget_wait: Duration::from_secs(2),
        cores: 1,
        ..Settings::new(&Config::default())
    }
}

fn options() -> HttpOptions {
    HttpOptions {
        trusted_proxies: vec!["127.0.0.1/32".parse().unwrap()],
        // The fuzzing process may be suspended for a while. libFuzzer has its own time limit.
        request_timeout: Duration::from_secs(3600),
        budget_wait: Duration::ZERO,
        ..HttpOptions::new(&Config::default())
    }
}

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());

thread_local! {
    /// One per thread, so that tests of several targets do not wait for each other's memory.
    static RESOURCES: Arc<Resources> = Resources::new(settings(RevalidationPolicy::Always));
}

/// Runs a future to completion on the runtime.
pub(crate) fn wait_for<T>(what: impl Future<Output = T>) -> T {
    RUNTIME.block_on(what)
}

/// A server of some objects.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) app: Arc<App>,
    pub(crate) router: Router,
    /// Access rules may refuse requests.
    is_guarded: bool,
}

/// A whole response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The response was aborted after its head.
    pub(crate) is_broken: bool,
}

impl Server {
    /// Serves these objects. Paths that are not valid keys are omitted.
    pub(crate) fn of<'a>(objects: impl IntoIterator<Item = (&'a str, Bytes)>) -> Self {
        let objects = objects.into_iter().filter_map(|(path, bytes)| Some((Key::parse(path).ok()?, bytes)));
        let store = MemoryStore::new(objects, 1_000_000_000);
        Self::over(Arc::new(store), RESOURCES.with(Arc::clone))
    }

    /// Serves these objects from files and never revalidates cached ones. Most requests can then be answered without
    /// waiting, regardless of the file system's clock.
    pub(crate) fn of_files(objects: &[(&str, Bytes)]) -> Self {
        let root = written(objects).expect("files can be written");
        for (path, bytes) in objects {
            // This puts the file into the page cache.
            assert!(fs::read(root.join(path)).is_ok_and(|found| found == bytes[..]), "{path}");
        }
        let store = LocalStore::open(&root, SymlinkPolicy::Inside, Duration::from_secs(30)).unwrap();
        Self::over(Arc::new(store), Resources::new(settings(RevalidationPolicy::Never)))
    }

    fn over(store: Arc<dyn Store>, resources: Arc<Resources>) -> Self {
        let mount = Mount {
            name: String::new(),
            title: String::new(),
            container: Container::new(store, Arc::clone(&resources)),
            found_cache_control: HeaderValue::from_static("no-cache"),
            missing_cache_control: HeaderValue::from_static("no-cache"),
        };
        let app = App::new(vec![mount], resources, options(), String::new);
        Self { router: router(Arc::clone(&app)), app, is_guarded: false }
    }

    /// Serves several containers with access control.
    pub(crate) fn guarded<'a>(mounts: impl IntoIterator<Item = (&'a str, Container)>, control: AccessControl) -> Self {
        let mount = |(name, container): (&str, Container)| Mount {
            name: name.to_owned(),
            title: String::new(),
            container,
            found_cache_control: HeaderValue::from_static("public, max-age=31536000, immutable"),
            missing_cache_control: HeaderValue::from_static("public, max-age=60"),
        };
        let mounts = mounts.into_iter().map(mount).collect();
        let options = HttpOptions { access_control: Some(Arc::new(control)), ..options() };
        let app = App::new(mounts, RESOURCES.with(Arc::clone), options, String::new);
        Self { router: router(Arc::clone(&app)), app, is_guarded: true }
    }

    /// Sends a request and checks the properties that every response has. With `may_break`, the response may be aborted
    /// after its head, because a block may turn out to be unreadable or not convertible.
    pub(crate) fn ask(&self, request: Request<Body>, may_break: bool) -> Response {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let response = wait_for(async {
            let response = self.router.clone().oneshot(request).await.unwrap();
            let (parts, mut body) = response.into_parts();
            let (mut all, mut is_broken) = (Vec::new(), false);
            while let Some(frame) = body.frame().await {
                let Ok(frame) = frame else {
                    is_broken = true;
                    break;
                };
                all.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                assert!(all.len() <= MOST_BYTES, "an endless response to {method} {uri}");
            }
            Response { status: parts.status, headers: parts.headers, body: all.into(), is_broken }
        });
        assert!(may_break || !response.is_broken, "broken off: {method} {uri}");
        response.check(&method, &uri.to_string(), self.is_guarded);
        response
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.ask(Request::get(path).body(Body::empty()).unwrap(), false)
    }
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    fn check(&self, method: &Method, uri: &str, is_guarded: bool) {
        let what = format!("{method} {uri}: {} {:?}", self.status, self.headers);
        let status = self.status.as_u16();
        // No request waits here, so none may be shed or time out. An internal error is always a finding.
        let known = [200, 204, 206, 301, 304, 400, 404, 405, 406, 412, 413, 416, 422, 501];
        let refusals = if is_guarded { &[303, 307, 401][..] } else { &[] };
        assert!(known.contains(&status) || refusals.contains(&status), "{what}");
        assert!(self.headers.contains_key("access-control-allow-origin"), "no CORS: {what}");
        assert!(self.headers.contains_key("x-request-id"), "{what}");
        if self.is_broken {
            assert_eq!(status, 200, "{what}");
            return;
        }
        let length = self.header("content-length").map(|length| length.parse::<usize>().unwrap());
        if *method == Method::HEAD || matches!(status, 204 | 304) {
            assert!(self.body.is_empty(), "a body: {what}");
        } else {
            assert!(length.is_none_or(|length| length == self.body.len()), "{} bytes: {what}", self.body.len());
        }
        if self.header("content-type") == Some("application/problem+json") && *method != Method::HEAD {
            let problem: serde_json::Value = serde_json::from_slice(&self.body).expect("a problem is JSON");
            assert_eq!(problem["status"], status, "{what}");
            assert!(self.body.len() < 16 << 10, "{} bytes of problem: {what}", self.body.len());
        }
        if self.header("content-type") == Some("application/json")
            && !self.headers.contains_key("content-encoding")
            && matches!(status, 200)
            && *method == Method::GET
            && !uri.contains("attributes.json")
        {
            // Attributes are repeated as written. They may contain numbers beyond the range of `f64`, so only the
            // syntax is checked.
            assert!(serde_json::from_slice::<IgnoredAny>(&self.body).is_ok(), "no JSON: {what}");
        }
        if status == 206 {
            let range = self.header("content-range").and_then(|range| range.strip_prefix("bytes ")?.split_once('/'));
            let (part, whole) = range.expect("a part says which it is");
            let (first, last) = part.split_once('-').unwrap();
            let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
            assert!(last < whole.parse().unwrap() && last - first + 1 == self.body.len(), "{what}");
        }
    }
}

/// Returns a container of these objects. Paths that are not valid keys are omitted.
pub(crate) fn container<'a>(objects: impl IntoIterator<Item = (&'a str, Bytes)>) -> Container {
    let objects = objects.into_iter().filter_map(|(path, bytes)| Some((Key::parse(path).ok()?, bytes)));
    Container::new(Arc::new(MemoryStore::new(objects, 1_000_000_000)), RESOURCES.with(Arc::clone))
}

/// Returns a directory with these files, the same for every process. Their modification time is 2^30 s after the epoch.
pub(crate) fn written(objects: &[(&str, Bytes)]) -> io::Result<PathBuf> {
    let mut hash = DefaultHasher::new();
    objects.hash(&mut hash);
    let root = std::env::temp_dir().join(format!("n5-server-fuzz-{:016x}", hash.finish()));
    if root.is_dir() {
        return Ok(root);
    }
    let unfinished = root.with_extension(std::process::id().to_string());
    for (path, bytes) in objects {
        let path = unfinished.join(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        fs::write(&path, bytes)?;
        File::options().write(true).open(&path)?.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30))?;
    }
    // Another process may have created the directory first.
    if fs::rename(&unfinished, &root).is_err() {
        fs::remove_dir_all(&unfinished)?;
    }
    Ok(root)
}
