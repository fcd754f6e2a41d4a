//! What the tests share: a writer of N5 that shares no code with the server, stores that misbehave,
//! and an application to ask.

pub mod described;
pub mod faulty;
pub mod loads;
pub mod program;
pub mod stores;
pub mod undisturbed;
pub mod writer;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use bytes::Bytes;
use http_body_util::BodyExt;
use n5_server::container::{Container, Recheck, Resources, Settings};
use n5_server::http::{App, Limits, Mount, Options, router};
use n5_server::store::{LocalStore, Store, SymlinkPolicy};
use tower::ServiceExt;

const MIB: u64 = 1 << 20;

/// Small bounds, everything re-checked at every request.
pub fn settings() -> Settings {
    Settings {
        decoded_cache: 64 * MIB,
        stored_cache: 16 * MIB,
        weigh_frequency: false,
        recheck_metadata: Recheck::Always,
        recheck_data: Recheck::Always,
        slice: 64 << 30,
        slice_budget: 16 * MIB,
        decode_budget: 16 * MIB,
        transfer_budget: 16 * MIB,
        decode_factor: 16,
        attributes: MIB,
        budget_wait: Duration::from_secs(10),
        cores: 2,
    }
}

pub fn options() -> Options {
    Options {
        base_path: String::new(),
        trusted_proxies: Vec::new(),
        ready: n5_server::http::Ready::All,
        request_timeout: Duration::from_secs(60),
        concurrent_requests: 1024,
        origins: vec!["*".to_owned()],
        compress_slices: false,
        credentials: false,
        private_network: true,
        control: None,
        frame_ancestors: Vec::new(),
        clients: Limits { requests: 0, bytes_per_second: 0, burst_bytes: 0, wait: Duration::from_secs(10) },
        is_https: false,
        hsts: None,
        viewer: None,
        documents: None,
    }
}

pub fn local(root: &Path) -> Arc<dyn Store> {
    Arc::new(LocalStore::open(root, SymlinkPolicy::Inside, Duration::from_secs(10)).unwrap())
}

/// A server that is asked in process.
#[derive(Clone)]
pub struct Client {
    router: Router,
    pub app: Arc<App>,
    pub container: Container,
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Client {
    pub fn new(store: Arc<dyn Store>, settings: Settings, options: Options) -> Self {
        let resources = Resources::new(settings);
        let container = Container::new(store, Arc::clone(&resources));
        let mount = Mount {
            name: String::new(),
            container: container.clone(),
            cache_found: HeaderValue::from_static("no-cache"),
            cache_missing: HeaderValue::from_static("no-cache"),
        };
        let app = App::new(vec![mount], resources, options, String::new);
        Self { router: router(Arc::clone(&app)), app, container }
    }

    /// A server of another store that shares caches and budgets with this one.
    pub fn also(&self, store: Arc<dyn Store>) -> Self {
        let resources = Arc::clone(self.container.resources());
        let container = Container::new(store, Arc::clone(&resources));
        let mount = Mount {
            name: String::new(),
            container: container.clone(),
            cache_found: HeaderValue::from_static("no-cache"),
            cache_missing: HeaderValue::from_static("no-cache"),
        };
        let app = App::new(vec![mount], resources, options(), String::new);
        Self { router: router(Arc::clone(&app)), app, container }
    }

    /// A server of several stores, each in a container of that name.
    pub fn of_several(stores: Vec<(&str, Arc<dyn Store>)>, settings: Settings, options: Options) -> Self {
        let resources = Resources::new(settings);
        let mount = |(name, store): (&str, _)| Mount {
            name: name.to_owned(),
            container: Container::new(store, Arc::clone(&resources)),
            cache_found: HeaderValue::from_static("no-cache"),
            cache_missing: HeaderValue::from_static("no-cache"),
        };
        let mounts: Vec<Mount> = stores.into_iter().map(mount).collect();
        let container = mounts[0].container.clone();
        let app = App::new(mounts, resources, options, String::new);
        Self { router: router(Arc::clone(&app)), app, container }
    }

    /// Serves a directory with the usual settings.
    pub fn of(root: &Path) -> Self {
        Self::new(local(root), settings(), options())
    }

    pub async fn ask(&self, request: Request<Body>) -> axum::response::Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.get_with(path, &[]).await
    }

    pub async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        self.send("GET", path, headers).await
    }

    pub async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = Request::builder().method(method).uri(path).header("host", "test");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.ask(request.body(Body::empty()).unwrap()).await;
        described::check(method, path, response.status());
        let (parts, body) = response.into_parts();
        let length = parts.headers.get("content-length").and_then(|n| n.to_str().ok()?.parse().ok());
        Reply { status: parts.status, headers: parts.headers, body: read(body, length).await }
    }
}

/// The whole body. Where one frame has all of it, that is not copied; of several, each is let go as soon as
/// it is copied, as a connection does.
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

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    /// The end of the problem's type.
    pub fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{:?}", self.body);
        let document = self.json();
        let kind = document["type"].as_str().unwrap();
        kind.rsplit('#').next().unwrap().to_owned()
    }
}

/// Two containers, `em` and `seg`, of which rules say who may read what; without tokens.
pub fn guarded(em: &writer::N5, seg: &writer::N5, rules: &[&str]) -> Arc<App> {
    use n5_server::access::{Control, Policy};
    let resources = Resources::new(settings());
    let mount = |name: &str, n5: &writer::N5| Mount {
        name: name.to_owned(),
        container: Container::new(local(n5.root()), Arc::clone(&resources)),
        cache_found: HeaderValue::from_static("no-cache"),
        cache_missing: HeaderValue::from_static("no-cache"),
    };
    let policy = Policy::parse(true, rules, "public").unwrap();
    let control = Some(Arc::new(Control::open(policy, None, None).unwrap()));
    let mounts = vec![mount("em", em), mount("seg", seg)];
    App::new(mounts, Arc::clone(&resources), Options { control, ..options() }, String::new)
}
