//! The server in this process: its router over objects in memory or in files, and what every answer has to be.

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
use n5_server::access::Control;
use n5_server::container::{Container, Recheck, Resources, Settings};
use n5_server::http::{App, Mount, Options, router};
use n5_server::store::{Key, LocalStore, MemoryStore, Store, SymlinkPolicy};
use serde::de::IgnoredAny;
use tokio::runtime::Runtime;
use tower::ServiceExt;

const MIB: u64 = 1 << 20;

/// Most bytes of an answer: `limits.slice`, and what is made of it as text.
const MOST_BYTES: usize = 64 << 20;

/// Small enough that slices are streamed, blocks refused and caches full.
fn settings(recheck: Recheck) -> Settings {
    Settings {
        decoded_cache: 4 * MIB,
        stored_cache: 4 * MIB,
        weigh_frequency: false,
        recheck_metadata: recheck,
        recheck_data: recheck,
        slice: 4 * MIB,
        slice_budget: 2 * MIB,
        decode_budget: 4 * MIB,
        transfer_budget: 4 * MIB,
        decode_factor: 16,
        attributes: 64 << 10,
        budget_wait: Duration::from_secs(2),
        cores: 1,
    }
}

fn options() -> Options {
    Options {
        base_path: String::new(),
        trusted_proxies: vec!["127.0.0.1/32".parse().unwrap()],
        ready: n5_server::http::Ready::All,
        // Whoever fuzzes may be stopped for a while; what takes too long libFuzzer finds.
        request_timeout: Duration::from_secs(3600),
        concurrent_requests: 1024,
        origins: vec!["*".to_owned()],
        compress_slices: false,
        credentials: false,
        private_network: true,
        control: None,
        frame_ancestors: Vec::new(),
        clients: n5_server::http::Limits { requests: 0, bytes_per_second: 0, burst_bytes: 0, wait: Duration::ZERO },
        is_https: false,
        hsts: None,
        viewer: None,
        documents: None,
    }
}

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());

thread_local! {
    /// Of one thread, so that tests of several targets do not wait for each other's memory.
    static RESOURCES: Arc<Resources> = Resources::new(settings(Recheck::Always));
}

/// Waits for what the server does.
pub(crate) fn wait_for<T>(what: impl Future<Output = T>) -> T {
    RUNTIME.block_on(what)
}

/// A server of some objects.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) app: Arc<App>,
    pub(crate) router: Router,
    /// Whether rules may refuse something.
    is_guarded: bool,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// It was broken off after its head.
    pub(crate) is_broken: bool,
}

impl Server {
    /// Serves these objects; paths that are no keys are left out.
    pub(crate) fn of<'a>(objects: impl IntoIterator<Item = (&'a str, Bytes)>) -> Self {
        let objects = objects.into_iter().filter_map(|(path, bytes)| Some((Key::parse(path).ok()?, bytes)));
        let store = MemoryStore::new(objects, 1_000_000_000);
        Self::over(Arc::new(store), RESOURCES.with(Arc::clone))
    }

    /// Serves these objects from files, whatever is cached as long as it is: then most can be answered at once, by the
    /// clock of no file system.
    pub(crate) fn of_files(objects: &[(&str, Bytes)]) -> Self {
        let root = written(objects).expect("files can be written");
        for (path, bytes) in objects {
            // From now on the kernel has it in memory.
            assert!(fs::read(root.join(path)).is_ok_and(|found| found == bytes[..]), "{path}");
        }
        let store = LocalStore::open(&root, SymlinkPolicy::Inside, Duration::from_secs(30)).unwrap();
        Self::over(Arc::new(store), Resources::new(settings(Recheck::Never)))
    }

    fn over(store: Arc<dyn Store>, resources: Arc<Resources>) -> Self {
        let mount = Mount {
            name: String::new(),
            container: Container::new(store, Arc::clone(&resources)),
            cache_found: HeaderValue::from_static("no-cache"),
            cache_missing: HeaderValue::from_static("no-cache"),
        };
        let app = App::new(vec![mount], resources, options(), String::new);
        Self { router: router(Arc::clone(&app)), app, is_guarded: false }
    }

    /// Serves several containers to those that `control` lets in.
    pub(crate) fn guarded<'a>(mounts: impl IntoIterator<Item = (&'a str, Container)>, control: Control) -> Self {
        let mount = |(name, container): (&str, Container)| Mount {
            name: name.to_owned(),
            container,
            cache_found: HeaderValue::from_static("public, max-age=31536000, immutable"),
            cache_missing: HeaderValue::from_static("public, max-age=60"),
        };
        let mounts = mounts.into_iter().map(mount).collect();
        let options = Options { control: Some(Arc::new(control)), ..options() };
        let app = App::new(mounts, RESOURCES.with(Arc::clone), options, String::new);
        Self { router: router(Arc::clone(&app)), app, is_guarded: true }
    }

    /// Asks, and holds the answer to what every answer promises. Only where something cannot be read or converted,
    /// which may be seen after the head, `may_break`.
    pub(crate) fn ask(&self, request: Request<Body>, may_break: bool) -> Answer {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let answer = wait_for(async {
            let response = self.router.clone().oneshot(request).await.unwrap();
            let (parts, mut body) = response.into_parts();
            let (mut all, mut is_broken) = (Vec::new(), false);
            while let Some(frame) = body.frame().await {
                let Ok(frame) = frame else {
                    is_broken = true;
                    break;
                };
                all.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                assert!(all.len() <= MOST_BYTES, "an endless answer to {method} {uri}");
            }
            Answer { status: parts.status, headers: parts.headers, body: all.into(), is_broken }
        });
        assert!(may_break || !answer.is_broken, "broken off: {method} {uri}");
        answer.check(&method, &uri.to_string(), self.is_guarded);
        answer
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask(Request::get(path).body(Body::empty()).unwrap(), false)
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    fn check(&self, method: &Method, uri: &str, is_guarded: bool) {
        let what = format!("{method} {uri}: {} {:?}", self.status, self.headers);
        let status = self.status.as_u16();
        // Nothing waits here, so nothing may be shed or late, and nothing is ever the server's own fault.
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
            // Attributes are repeated as they are written, numbers beyond all floating point among them.
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

/// A container of these objects; paths that are no keys are left out.
pub(crate) fn container<'a>(objects: impl IntoIterator<Item = (&'a str, Bytes)>) -> Container {
    let objects = objects.into_iter().filter_map(|(path, bytes)| Some((Key::parse(path).ok()?, bytes)));
    Container::new(Arc::new(MemoryStore::new(objects, 1_000_000_000)), RESOURCES.with(Arc::clone))
}

/// A directory with these files, the same for every process; all last modified in 2001.
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
    // Another process may have been faster.
    if fs::rename(&unfinished, &root).is_err() {
        fs::remove_dir_all(&unfinished)?;
    }
    Ok(root)
}
