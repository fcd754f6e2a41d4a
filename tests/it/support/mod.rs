//! Parts that the tests share: an N5 writer without code of the server, stores with faults, servers and clients.
//!
//! There are three clients. [`Client`] calls the router in this process, without a connection.
//! [`Http1Client`](http1::Http1Client) sends requests over a socket to a [server in this process](server).
//! [`Connection`](program::Connection) does the same to the [real program](program::Program), without async.

pub mod attacked;
pub mod deadlines;
pub mod faulty;
pub mod h2;
pub mod http1;
pub mod load_metrics;
pub mod openapi;
pub mod program;
pub mod remote;
pub mod server;
pub mod stores;
pub mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use bytes::Bytes;
use http_body_util::BodyExt;
use n5_server::cache::RevalidationPolicy;
use n5_server::config::Config;
use n5_server::container::{Container, Resources, Settings};
use n5_server::http::{App, HttpOptions, Mount, router};
use n5_server::store::{LocalStore, Store, SymlinkPolicy};
use tower::ServiceExt;

const MIB: u64 = 1 << 20;

/// Time between two checks of a test that waits for an event.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Small caches and budgets; every request revalidates everything.
pub fn settings() -> Settings {
    Settings {
        decoded_cache: 64 * MIB,
        stored_cache: 16 * MIB,
        recheck_metadata: RevalidationPolicy::Always,
        recheck_data: RevalidationPolicy::Always,
        slice_budget: 16 * MIB,
        decode_budget: 16 * MIB,
        transfer_budget: 16 * MIB,
        max_attributes_bytes: MIB,
        cores: 2,
        ..Settings::new(&Config::default())
    }
}

/// Returns the default options, which have no access control and do not limit the requests of a client.
pub fn options() -> HttpOptions {
    HttpOptions::new(&Config::default())
}

/// Returns a store of local files that follows links inside `root`.
pub fn local(root: &Path) -> Arc<dyn Store> {
    Arc::new(LocalStore::open(root, SymlinkPolicy::Inside, Duration::from_secs(10)).unwrap())
}

/// Waits until the files written so far have versions that last. The server compares a file with the store at every
/// request while the file is younger than 20 ms, because clocks of file systems tick slowly.
pub fn let_files_settle() {
    std::thread::sleep(Duration::from_millis(40));
}

/// Longest wait of [`wait_until`]. Slow machines decode for tens of seconds.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Polls until `is_true` returns true, for up to [`MAX_WAIT`]. Returns false if it never does.
#[must_use]
pub async fn wait_until(mut is_true: impl AsyncFnMut() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < MAX_WAIT {
        if is_true().await {
            return true;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    false
}

/// Like [`wait_until`], without async.
#[must_use]
pub fn wait_until_blocking(mut is_true: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while started.elapsed() < MAX_WAIT {
        if is_true() {
            return true;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    false
}

/// Requests `/readyz` until it has this status, for up to 30 s. The server caches a check of the storage for a second.
pub async fn wait_for_readyz(client: &Client, status: u16) -> serde_json::Value {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let reply = client.get("/readyz").await;
        if reply.status == status {
            return reply.json();
        }
        assert!(Instant::now() < deadline, "still {}", reply.status);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Tools that `.ci/run` installs.
const CI_TOOLS: [&str; 2] = ["promtool", "script"];

/// Reports that a test is skipped because `tool` is not installed. Fails if `CI` is set and `.ci/run` installs the
/// tool.
pub fn skip_without(tool: &str) {
    let is_required = CI_TOOLS.contains(&tool) && std::env::var_os("CI").is_some();
    assert!(!is_required, "{tool} is not installed; install it, or unset CI to skip this test");
    eprintln!("skipped: {tool} is not installed");
}

/// Returns the corpus of datasets by other programs: the directory in `N5_CORPUS`, which must exist, or the one beside
/// the repository. `.ci/run` does not provide it.
pub fn corpus() -> Option<PathBuf> {
    if let Some(corpus) = std::env::var_os("N5_CORPUS").filter(|path| !path.is_empty()).map(PathBuf::from) {
        assert!(corpus.join("manifest.json").is_file(), "no manifest.json in N5_CORPUS={}", corpus.display());
        return Some(corpus);
    }
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus/open");
    let exists = corpus.join("manifest.json").is_file();
    if !exists {
        eprintln!("skipped: no manifest.json in {}, set N5_CORPUS", corpus.display());
    }
    exists.then_some(corpus)
}

/// A server in this process, and a client of it.
#[derive(Clone)]
pub struct Client {
    router: Router,
    pub app: Arc<App>,
    pub container: Container,
}

/// A response with its whole body.
#[derive(Debug)]
pub struct WholeResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Client {
    /// Creates a server of one container without a name.
    pub fn new(store: Arc<dyn Store>, settings: Settings, options: HttpOptions) -> Self {
        Self::with_resources(store, Resources::new(settings), options)
    }

    /// Returns a server of another store that shares caches and budgets with this one.
    pub fn also(&self, store: Arc<dyn Store>) -> Self {
        Self::with_resources(store, Arc::clone(self.container.resources()), options())
    }

    /// Creates a server whose caches and budgets are `resources`.
    pub fn with_resources(store: Arc<dyn Store>, resources: Arc<Resources>, options: HttpOptions) -> Self {
        let container = Container::new(store, Arc::clone(&resources));
        let mount = Mount {
            name: String::new(),
            title: String::new(),
            container: container.clone(),
            found_cache_control: HeaderValue::from_static("no-cache"),
            missing_cache_control: HeaderValue::from_static("no-cache"),
        };
        let app = App::new(vec![mount], resources, options, String::new);
        Self { router: router(Arc::clone(&app)), app, container }
    }

    /// Returns a server of several stores, each in a container of the given name.
    pub fn of_several(stores: Vec<(&str, Arc<dyn Store>)>, settings: Settings, options: HttpOptions) -> Self {
        let resources = Resources::new(settings);
        let mount = |(name, store): (&str, _)| Mount {
            name: name.to_owned(),
            title: String::new(),
            container: Container::new(store, Arc::clone(&resources)),
            found_cache_control: HeaderValue::from_static("no-cache"),
            missing_cache_control: HeaderValue::from_static("no-cache"),
        };
        let mounts: Vec<Mount> = stores.into_iter().map(mount).collect();
        let container = mounts[0].container.clone();
        let app = App::new(mounts, resources, options, String::new);
        Self { router: router(Arc::clone(&app)), app, container }
    }

    /// Serves a directory with [`settings`] and [`options`].
    pub fn of(root: &Path) -> Self {
        Self::new(local(root), settings(), options())
    }

    /// Sends a request and returns the response with its unread body.
    pub async fn ask(&self, request: Request<Body>) -> axum::response::Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    /// Sends a GET request.
    pub async fn get(&self, path: &str) -> WholeResponse {
        self.get_with(path, &[]).await
    }

    /// Sends a GET request with headers.
    pub async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> WholeResponse {
        self.send("GET", path, headers).await
    }

    /// Sends a request and checks that `openapi.yaml` lists the status of its response.
    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> WholeResponse {
        let mut request = Request::builder().method(method).uri(path).header("host", "test");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.ask(request.body(Body::empty()).unwrap()).await;
        openapi::check(method, path, response.status());
        let (parts, body) = response.into_parts();
        let length = parts.headers.get("content-length").and_then(|n| n.to_str().ok()?.parse().ok());
        WholeResponse { status: parts.status, headers: parts.headers, body: read(body, length).await }
    }
}

/// Reads the whole body. If a single frame has the whole body, it is not copied. Otherwise each frame is copied and
/// then dropped at once, as a connection does.
async fn read(mut body: Body, length: Option<usize>) -> Bytes {
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.expect("a body that is not broken off").into_data() else { continue };
        if all.is_empty() && length == Some(data.len()) {
            return data;
        }
        all.extend_from_slice(&data);
    }
    all.into()
}

impl WholeResponse {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    /// Returns the fragment of the problem's type URI.
    pub fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{:?}", self.body);
        let document = self.json();
        let kind = document["type"].as_str().unwrap();
        kind.rsplit('#').next().unwrap().to_owned()
    }
}

/// Returns an application with two containers, `em` and `seg`, and access rules, without a token file.
pub fn guarded(em: &writer::N5, seg: &writer::N5, rules: &[&str]) -> Arc<App> {
    use n5_server::access::{AccessControl, Policy};
    let resources = Resources::new(settings());
    let mount = |name: &str, n5: &writer::N5| Mount {
        name: name.to_owned(),
        title: String::new(),
        container: Container::new(local(n5.root()), Arc::clone(&resources)),
        found_cache_control: HeaderValue::from_static("no-cache"),
        missing_cache_control: HeaderValue::from_static("no-cache"),
    };
    let policy = Policy::parse(true, rules, "public").unwrap();
    let control = Some(Arc::new(AccessControl::open(policy, None, None).unwrap()));
    let mounts = vec![mount("em", em), mount("seg", seg)];
    App::new(mounts, Arc::clone(&resources), HttpOptions { access_control: control, ..options() }, String::new)
}
