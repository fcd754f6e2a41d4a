//! The state that requests share: [`App`] under one configuration, [`ProcessState`] for the life of the process.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use crate::container::Resources;
use crate::http::admission::client_limits::ClientRegistry;
use crate::http::admission::stalled_store_limit::StalledStoreLimit;
use crate::http::common_headers::MountHeaders;
use crate::http::exposition::ExpositionCache;
use crate::http::mount::{self, CallerView, Mount};
use crate::http::options::HttpOptions;
use crate::http::problem::Problem;
use crate::http::readiness::{self, StorageProbe};
use crate::http::route::{self, RequestTarget};
use crate::http::viewer_files::Viewer;
use crate::store::Key;
use crate::telemetry::metrics;

/// State that all requests share under one configuration.
pub struct App {
    /// Unique among the apps of the process.
    pub(crate) id: u64,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) resources: Arc<Resources>,
    pub(crate) options: HttpOptions,
    /// One probe for each mount.
    storage_probes: Vec<Arc<StorageProbe>>,
    pub(crate) process: Arc<ProcessState>,
    /// Metric handles of the frequent routes. Each is created at the first request for its route, when the recorder of
    /// metrics is installed.
    route_metrics: Vec<(&'static str, OnceLock<metrics::RouteMetrics>)>,
    /// Prepared headers of each mount's responses.
    pub(crate) header_templates: Vec<MountHeaders>,
    pub(crate) stalled_store_limit: StalledStoreLimit,
}

/// Id of the next [`App`].
static NEXT_APP_ID: AtomicU64 = AtomicU64::new(0);

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("mounts", &self.mounts).field("options", &self.options).finish_non_exhaustive()
    }
}

impl App {
    /// Creates an app that serves `mounts`. `render_metrics` renders the text of `/metrics`.
    pub fn new(
        mounts: Vec<Mount>,
        resources: Arc<Resources>,
        options: HttpOptions,
        render_metrics: impl Fn() -> String + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::with_process(ProcessState::new(render_metrics), mounts, resources, options)
    }

    /// Creates the app that replaces this one. Both share the request counts, the metrics and the draining state.
    pub fn reconfigured(&self, mounts: Vec<Mount>, resources: Arc<Resources>, options: HttpOptions) -> Arc<Self> {
        Self::with_process(Arc::clone(&self.process), mounts, resources, options)
    }

    fn with_process(
        process: Arc<ProcessState>,
        mounts: Vec<Mount>,
        resources: Arc<Resources>,
        options: HttpOptions,
    ) -> Arc<Self> {
        let frequent_routes = std::iter::once(route::STORED).chain(crate::view::VIEWS.iter().map(|view| view.name()));
        Arc::new(Self {
            id: NEXT_APP_ID.fetch_add(1, Ordering::Relaxed),
            header_templates: mounts.iter().map(|mount| MountHeaders::new(mount, &options)).collect(),
            route_metrics: frequent_routes.map(|route| (route, OnceLock::new())).collect(),
            storage_probes: mounts.iter().map(|_| Arc::default()).collect(),
            stalled_store_limit: StalledStoreLimit::new(mounts.len(), options.concurrent_requests),
            mounts,
            resources,
            options,
            process,
        })
    }

    /// Returns the viewer that is served at `/viewer/`. If there is none, links lead to a public viewer.
    pub fn viewer(&self) -> Option<&Viewer> {
        self.options.viewer.as_ref()
    }

    /// Makes `/readyz` return 503, so that load balancers send no more requests.
    pub fn drain(&self) {
        self.process.is_draining.store(true, Ordering::Relaxed);
    }

    /// Returns true if [`Self::drain`] has been called.
    pub fn is_draining(&self) -> bool {
        self.process.is_draining.load(Ordering::Relaxed)
    }

    /// Returns the number of requests whose responses have not been sent completely.
    pub fn requests_in_flight(&self) -> usize {
        self.process.requests_in_flight.load(Ordering::Relaxed)
    }

    /// Returns the readiness document.
    ///
    /// # Errors
    /// Returns a 503 problem if the server is not ready.
    pub(crate) async fn check_readiness(&self) -> Result<String, Problem> {
        readiness::check(&self.mounts, &self.storage_probes, &self.options, self.is_draining()).await
    }

    /// Returns true if a single container is served at the root, so that paths do not begin with a mount's name.
    pub(crate) fn has_root_mount(&self) -> bool {
        matches!(self.mounts.as_slice(), [only] if only.name.is_empty())
    }

    /// Returns the name that people know the only container by; `None` if there are several, or it has none.
    pub(crate) fn container_title(&self) -> Option<&str> {
        match self.mounts.as_slice() {
            [only] if only.name.is_empty() && !only.title.is_empty() => Some(&only.title),
            _ => None,
        }
    }

    /// Returns the mount named `name` and its index.
    pub(crate) fn find_mount(&self, name: &str) -> Option<(usize, &Mount)> {
        self.mounts.iter().enumerate().find(|(_, mount)| mount.name == name)
    }

    /// Returns the mount that the path `segments` belongs to, with its index, and the key within its container. Returns
    /// `Ok(None)` if several containers are served and `segments` is empty.
    pub(crate) fn locate(&self, segments: &[String]) -> Result<Option<(usize, &Mount, Key)>, Problem> {
        let (name, path) = match segments.split_first() {
            _ if self.has_root_mount() => ("", segments),
            Some((name, path)) => (name.as_str(), path),
            None => return Ok(None),
        };
        let (index, mount) = self.find_mount(name).ok_or_else(Problem::not_found)?;
        let key = Key::from_segments(path).map_err(|_checked| Problem::not_found())?;
        Ok(Some((index, mount, key)))
    }

    /// Replaces the name of a mount that has a suffix by the mount's own name
    /// ([`View::has_suffix_aliases`](crate::view::View::has_suffix_aliases)). To be called before the request is
    /// authorized.
    pub(crate) fn resolve_mount_suffix(&self, target: &mut RequestTarget) {
        let has_mount = |name: &str| self.find_mount(name).is_some();
        if !self.has_root_mount()
            && let Some(unsuffixed) = target.unsuffixed_path().and_then(|path| path.into_iter().next())
            && let Some(name) = target.container_path().and_then(<[String]>::first)
            && !has_mount(name)
        {
            // The mount `a.ome` is named `a.ome.zarr`, too.
            let shorter = name.strip_suffix(".zarr").filter(|name| has_mount(name)).map(str::to_owned);
            if let Some(name) = shorter.or_else(|| has_mount(&unsuffixed).then_some(unsuffixed)) {
                target.replace_mount_name(name);
            }
        }
    }

    /// Returns the mount of a target, restricted to what the caller may see. Returns `None` if the mount is public.
    pub(crate) fn visible_mount(&self, target: &RequestTarget, caller_view: &Arc<CallerView>) -> Option<Mount> {
        let (_, mount, _) = self.locate(target.container_path()?).ok()??;
        let is_public = mount::is_public_mount(self.options.access_control.as_deref(), &mount.name);
        let visibility = Arc::<CallerView>::clone(caller_view);
        (!is_public).then(|| Mount { container: mount.container.with_visibility(visibility), ..mount.clone() })
    }

    /// Returns the metric handles of a frequent route.
    pub(crate) fn route_metrics(&self, route: &'static str) -> Option<&metrics::RouteMetrics> {
        let (_, handles) = self.route_metrics.iter().find(|(name, _)| *name == route)?;
        Some(handles.get_or_init(|| metrics::RouteMetrics::new(route)))
    }
}

/// State that an app passes on when a new configuration replaces it.
pub(crate) struct ProcessState {
    /// True once the server is shutting down and should get no more requests.
    pub(crate) is_draining: AtomicBool,
    /// Number of requests whose responses have not been sent completely.
    pub(crate) requests_in_flight: AtomicUsize,
    /// Recent clients, and what each has used. Kept when the configuration changes.
    pub(crate) clients: Arc<ClientRegistry>,
    /// Number of rejected requests whose responses are still delayed.
    pub(crate) pending_rejections: AtomicUsize,
    /// Start of the first interval between batches of rejections.
    pub(crate) rejection_epoch: Instant,
    /// Renders the text of `/metrics`.
    pub(crate) render_metrics: Box<dyn Fn() -> String + Send + Sync>,
    /// Texts of `/metrics` that clients have not received completely.
    pub(crate) exposition: ExpositionCache,
    id_base: u64,
    id_count: AtomicU64,
}

impl ProcessState {
    fn new(render_metrics: impl Fn() -> String + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            is_draining: AtomicBool::new(false),
            requests_in_flight: AtomicUsize::new(0),
            clients: Arc::default(),
            pending_rejections: AtomicUsize::new(0),
            rejection_epoch: Instant::now(),
            render_metrics: Box::new(render_metrics),
            exposition: ExpositionCache::default(),
            id_base: RandomState::new().hash_one(std::process::id()),
            id_count: AtomicU64::new(0),
        })
    }

    /// Returns a number that no other request of this process has.
    pub(crate) fn new_request_id(&self) -> u64 {
        self.id_base ^ self.id_count.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}
