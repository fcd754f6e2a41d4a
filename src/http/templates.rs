//! Header lines of the fast path, prepared at startup by the functions that make the headers of the slow path.

use axum::http::{HeaderMap, Request, Response, StatusCode};
use futures_util::FutureExt;
use tower::{Layer, ServiceExt, service_fn};

use crate::http::mount::Mount;
use crate::http::options::HttpOptions;
use crate::http::{caller_view, cors, respond};

/// Header lines of one mount's responses, as `name: value`, by kind of response.
pub(crate) struct MountHeaders {
    /// True if the whole mount is public. The fast path answers for no other mount.
    pub(crate) is_public: bool,
    pub(crate) attributes: Vec<u8>,
    pub(crate) block: Vec<u8>,
    pub(crate) not_modified: Vec<u8>,
    /// Includes the content length, which is 0.
    pub(crate) missing: Vec<u8>,
}

impl MountHeaders {
    pub(crate) fn new(mount: &Mount, options: &HttpOptions) -> Self {
        let cors = cors_headers(options);
        let object_headers = |status, is_attributes| {
            let mut headers = HeaderMap::new();
            mount.stored_entity(is_attributes).add_headers(&mut headers, status);
            header_lines(headers, status, options, &cors)
        };
        let missing = mount.not_found().into_bodyless_response();
        Self {
            is_public: caller_view::is_public_mount(options.access_control.as_deref(), &mount.name),
            attributes: object_headers(StatusCode::OK, true),
            block: object_headers(StatusCode::OK, false),
            not_modified: object_headers(StatusCode::NOT_MODIFIED, false),
            missing: header_lines(missing.headers().clone(), missing.status(), options, &cors),
        }
    }
}

/// Returns the headers that the CORS layer adds to the response to a request without an origin.
fn cors_headers(options: &HttpOptions) -> HeaderMap {
    let inner = service_fn(|_: Request<()>| std::future::ready(Ok::<_, std::convert::Infallible>(Response::new(()))));
    let response = cors::layer(options).layer(inner).oneshot(Request::new(())).now_or_never();
    response.and_then(Result::ok).map(|response| response.into_parts().0.headers).unwrap_or_default()
}

fn header_lines(mut headers: HeaderMap, status: StatusCode, options: &HttpOptions, cors: &HeaderMap) -> Vec<u8> {
    respond::add_common_headers(&mut headers, status, options);
    let mut lines = Vec::new();
    for (name, value) in headers.iter().chain(cors) {
        push_header(&mut lines, name.as_str(), value.as_bytes());
    }
    lines
}

/// Appends a header line.
pub(crate) fn push_header(head: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        head.extend_from_slice(part);
    }
}
