//! `/viewer/`: the files of a built Neuroglancer, from a directory. `page` serves the listing page's assets at
//! `/viewer/page/`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_UNMODIFIED_SINCE, RANGE,
};
use axum::http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::mpsc;
use tower_http::services::fs::{DefaultServeDirFallback, ServeDir};

use super::problem::{self, Problem};
use super::viewer_files::ViewerFiles;
use super::{HandlerResult, RequestContext, add_vary, page, route, stored};
use crate::store::{Key, LocalStore, SymlinkPolicy};

/// The viewer's start page.
const INDEX: &str = "index.html";
/// Bytes of a file that are read at a time.
const READ_BUFFER_BYTES: usize = 16 << 10;
/// Longest path of a file, in bytes.
const MAX_PATH_BYTES: usize = 4096;
/// Maximum wait for the disk when a file is looked up.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);

/// A built Neuroglancer.
#[derive(Debug, Clone)]
pub struct Viewer {
    directory: PathBuf,
    files: ServeDir<DefaultServeDirFallback, ViewerFiles>,
}

impl Viewer {
    /// Opens the viewer in `directory`, which is relative to the working directory. Symbolic links on the way to it are
    /// resolved now. Returns `None` if `directory` is empty or has no `index.html`. Links out of it are not followed.
    ///
    /// Compressed copies of a file may lie beside it, with the endings `.br` and `.gz`.
    ///
    /// Blocks the thread on disk I/O.
    ///
    /// # Errors
    /// If the directory cannot be examined.
    pub fn open(directory: &Path) -> std::io::Result<Option<Self>> {
        if directory.as_os_str().is_empty() {
            return Ok(None);
        }
        let store = match LocalStore::open(directory, SymlinkPolicy::Inside, STORE_TIMEOUT) {
            Ok(store) => store,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            Err(error) => return Err(error),
        };
        let index = Key::root().child(INDEX).map_err(std::io::Error::other)?;
        if !store.has_file_blocking(&index)? {
            return Ok(None);
        }
        let files = ServeDir::with_backend("", ViewerFiles(store))
            .append_index_html_on_directories(false)
            // Each response holds a few of them: in the file's buffer, between the threads and on the way to the
            // client.
            .with_buf_chunk_size(READ_BUFFER_BYTES)
            .ignore_multi_range_requests(true)
            .precompressed_br()
            .precompressed_gzip();
        Ok(Some(Self { directory: directory.to_owned(), files }))
    }

    /// Returns the directory of the viewer's files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

pub(super) async fn answer(context: &RequestContext<'_>) -> HandlerResult {
    let segments: Vec<&str> = context.target.segments.iter().map(String::as_str).collect();
    let Some(viewer) = context.app.viewer() else {
        return Err(Problem::new(problem::NOT_FOUND, "this server has no viewer; see docs/DEPLOYMENT.md, Viewer"));
    };
    match segments.as_slice() {
        [] if context.target.is_bare => Ok(stored::redirect_to_slash(context)),
        [] => viewer.file_response(context, &[INDEX]).await,
        // Directories are not listed, and the path of a file does not end in a slash.
        _ if context.target.has_trailing_slash => Err(Problem::not_found()),
        path => viewer.file_response(context, path).await,
    }
}

impl Viewer {
    async fn file_response(&self, context: &RequestContext<'_>, path: &[&str]) -> HandlerResult {
        let encoded: Vec<String> = path.iter().map(|segment| route::encode_segment(segment).to_string()).collect();
        let uri = format!("/{}", encoded.join("/"));
        if uri.len() > MAX_PATH_BYTES {
            return Err(Problem::not_found());
        }
        let mut request = Request::new(Body::empty());
        *request.method_mut() = context.method().clone();
        *request.uri_mut() = uri.parse().map_err(|_invalid| Problem::not_found())?;
        for name in [ACCEPT_ENCODING, IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE, RANGE] {
            if let Some(value) = context.headers().get(&name) {
                request.headers_mut().insert(name, value.clone());
            }
        }
        let response = self.files.clone().try_call(request).await.map_err(|error| self.read_problem(&error))?;
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::NOT_MODIFIED => {}
            StatusCode::PRECONDITION_FAILED => {
                return Err(Problem::new(problem::PRECONDITION_FAILED, "the entity tag of the file has changed"));
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                return Err(Problem::range_not_satisfiable(complete_length(response.headers())));
            }
            _ => return Err(Problem::not_found()),
        }
        let mut response: Response<Body> = response.map(|body| read_on_this_runtime(Body::new(body)));
        let headers = response.headers_mut();
        let name = path.last().copied().unwrap_or_default();
        let policy = if has_content_hash(name) { "public, max-age=31536000, immutable" } else { "no-cache" };
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(policy));
        let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).filter(|t| t.starts_with("text/"));
        if let Some(Ok(content_type)) = text.map(|text| HeaderValue::from_str(&format!("{text}; charset=utf-8"))) {
            headers.insert(CONTENT_TYPE, content_type);
        }
        if name == INDEX {
            page::add_security_headers(headers, page::VIEWER_CSP, &context.app.options.frame_ancestors);
        }
        if response.status() == StatusCode::NOT_MODIFIED {
            add_vary(response.headers_mut(), "accept-encoding");
        }
        Ok(response)
    }

    fn read_problem(&self, error: &std::io::Error) -> Problem {
        let missing_kinds =
            [ErrorKind::NotFound, ErrorKind::NotADirectory, ErrorKind::IsADirectory, ErrorKind::InvalidFilename];
        if missing_kinds.contains(&error.kind()) {
            return Problem::not_found();
        }
        let cause = format!("{}: {error}", self.directory.display());
        Problem::with_cause(problem::STORAGE_UNAVAILABLE, "the viewer's files cannot be read", cause)
    }
}

/// Returns a body that a task of the current runtime reads, whichever thread sends it. Reading a file may block, which
/// the threads that serve connections must not do.
fn read_on_this_runtime(mut body: Body) -> Body {
    if http_body::Body::is_end_stream(&body) {
        return body;
    }
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Some(frame) = body.frame().await {
            if sender.send(frame).await.is_err() {
                return;
            }
        }
    });
    let next = |mut receiver: mpsc::Receiver<_>| async move { receiver.recv().await.map(|frame| (frame, receiver)) };
    Body::new(StreamBody::new(futures_util::stream::unfold(receiver, next)))
}

/// Returns the complete length of the file, from a response to an unsatisfiable range.
fn complete_length(headers: &HeaderMap) -> u64 {
    let range = headers.get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
    range.and_then(|range| range.strip_prefix("bytes */")?.parse().ok()).unwrap_or(0)
}

/// Returns true if a file's name has a hash of its content (`main.0123456789abcdef.js`), so that it never changes.
fn has_content_hash(name: &str) -> bool {
    name.split('.').skip(1).any(|part| part.len() == 16 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_a_hash_are_immutable() {
        assert!(has_content_hash("main.0123456789abcdef.js"));
        assert!(has_content_hash("main.0123456789abcdef.js.map"));
        for name in ["index.html", "0123456789abcdef", "main.0123456789abcde.js", "main.0123456789abcdeg.js", ""] {
            assert!(!has_content_hash(name), "{name}");
        }
    }

    #[test]
    fn a_directory_without_an_index_is_not_a_viewer() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Viewer::open(directory.path()).unwrap().is_none());
        std::fs::create_dir(directory.path().join(INDEX)).unwrap();
        assert!(Viewer::open(directory.path()).unwrap().is_none());
        assert!(Viewer::open(Path::new("")).unwrap().is_none());
        assert!(Viewer::open(Path::new(&"x".repeat(300))).is_err());
    }
}
