//! What quick answers have in common, made at the start by the functions that make the general ones.

use std::sync::Arc;

use axum::http::header::ETAG;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use futures_util::FutureExt;
use tower::{Layer, ServiceExt, service_fn};

use super::problem::Problem;
use super::quick::header;
use super::{Mount, Options, forwarded, guard, observe, stored};
use crate::store::Meta;

/// What every answer of a mount says, as `name: value` lines.
pub(super) struct Templates {
    pub(super) mounts: Vec<Template>,
    /// Whether what is said depends on the origin that asks.
    pub(super) by_origin: bool,
}

/// The lines of one mount, by what is answered.
pub(super) struct Template {
    /// Whether everybody may read everything of it. Of another mount nothing is answered here.
    pub(super) is_open: bool,
    pub(super) attributes: Vec<u8>,
    pub(super) block: Vec<u8>,
    pub(super) not_modified: Vec<u8>,
    /// With the length, 0.
    pub(super) missing: Vec<u8>,
}

impl Templates {
    pub(super) fn new(mounts: &[Mount], options: &Options) -> Self {
        let cors = cors(options);
        let template = |mount: &Mount| {
            let found = |status, is_json| {
                let mut headers = HeaderMap::new();
                let meta = Meta { len: 0, modified: None, etag: Arc::from("\"\""), version: 0 };
                stored::describe(&mut headers, status, &meta, mount, is_json);
                headers.remove(ETAG);
                lines(headers, status, options, &cors)
            };
            let missing = Problem::missing().cached(mount.cache_missing.clone()).of_missing_key();
            Template {
                is_open: guard::is_open(options.control.as_deref(), &mount.name),
                attributes: found(StatusCode::OK, true),
                block: found(StatusCode::OK, false),
                not_modified: found(StatusCode::NOT_MODIFIED, false),
                missing: lines(missing.headers().clone(), missing.status(), options, &cors),
            }
        };
        let by_origin = !options.origins.iter().any(|origin| origin == "*");
        Self { mounts: mounts.iter().map(template).collect(), by_origin }
    }
}

/// The headers that the layer adds to an answer to a request without an origin.
fn cors(options: &Options) -> HeaderMap {
    let inner = service_fn(|_: Request<()>| std::future::ready(Ok::<_, std::convert::Infallible>(Response::new(()))));
    let answer = forwarded::cors(options).layer(inner).oneshot(Request::new(())).now_or_never();
    answer.and_then(Result::ok).map(|answer| answer.into_parts().0.headers).unwrap_or_default()
}

fn lines(mut headers: HeaderMap, status: StatusCode, options: &Options, cors: &HeaderMap) -> Vec<u8> {
    observe::finish(&mut headers, status, options);
    let mut lines = Vec::new();
    for (name, value) in headers.iter().chain(cors) {
        header(&mut lines, name.as_str(), value.as_bytes());
    }
    lines
}
