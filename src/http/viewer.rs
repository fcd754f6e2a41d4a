//! `/viewer/`: the files of a built Neuroglancer from a directory, and the assets of the listing page beside them.

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
use super::viewer_files::Files;
use super::{Answer, Ask, page, stored, target, vary};
use crate::store::{Key, LocalStore, SymlinkPolicy};

/// What the viewer starts from.
const INDEX: &str = "index.html";
/// Bytes of a file that are read at a time.
const CHUNK: usize = 16 << 10;
/// The longest path of one in bytes.
const LONGEST: usize = 4096;
/// How long the disk is waited for when a file is looked for.
const DEADLINE: Duration = Duration::from_secs(30);

/// A built viewer.
#[derive(Debug, Clone)]
pub struct Viewer {
    directory: PathBuf,
    files: ServeDir<DefaultServeDirFallback, Files>,
}

impl Viewer {
    /// The viewer in `directory`, relative to the working directory and where links lead now; `None` where there is no
    /// `index.html`, or no directory is named. Links out of the directory are not followed.
    ///
    /// Beside a file may lie `.br` and `.gz`, its compressed copies.
    ///
    /// Waits for the disk.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub fn find(directory: &Path) -> std::io::Result<Option<Self>> {
        if directory.as_os_str().is_empty() {
            return Ok(None);
        }
        let store = match LocalStore::open(directory, SymlinkPolicy::Inside, DEADLINE) {
            Ok(store) => store,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            Err(error) => return Err(error),
        };
        let index = Key::root().child(INDEX).map_err(std::io::Error::other)?;
        if !store.has_file(&index)? {
            return Ok(None);
        }
        let files = ServeDir::with_backend("", Files(store))
            .append_index_html_on_directories(false)
            // A few of them are held for each answer: in the file's buffer, between the threads and on the way to the client.
            .with_buf_chunk_size(CHUNK)
            .ignore_multi_range_requests(true)
            .precompressed_br()
            .precompressed_gzip();
        Ok(Some(Self { directory: directory.to_owned(), files }))
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

pub(super) async fn answer(ask: &Ask<'_>) -> Answer {
    let segments: Vec<&str> = ask.target.segments.iter().map(String::as_str).collect();
    let Some(viewer) = ask.app.viewer() else {
        return Err(Problem::new(problem::NOT_FOUND, "this server has no viewer; the README says how to add it"));
    };
    match segments.as_slice() {
        [] if ask.target.bare => Ok(stored::redirect(ask)),
        [] => viewer.file(ask, &[INDEX]).await,
        // No directory is listed, and no file is one.
        _ if ask.target.trailing_slash => Err(Problem::missing()),
        path => viewer.file(ask, path).await,
    }
}

impl Viewer {
    async fn file(&self, ask: &Ask<'_>, path: &[&str]) -> Answer {
        let encoded: Vec<String> = path.iter().map(|segment| target::encode(segment).to_string()).collect();
        let uri = format!("/{}", encoded.join("/"));
        if uri.len() > LONGEST {
            return Err(Problem::missing());
        }
        let mut request = Request::new(Body::empty());
        *request.method_mut() = ask.method().clone();
        *request.uri_mut() = uri.parse().map_err(|_invalid| Problem::missing())?;
        for name in [ACCEPT_ENCODING, IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE, RANGE] {
            if let Some(value) = ask.headers().get(&name) {
                request.headers_mut().insert(name, value.clone());
            }
        }
        let response = self.files.clone().try_call(request).await.map_err(|error| self.unreadable(&error))?;
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::NOT_MODIFIED => {}
            StatusCode::PRECONDITION_FAILED => {
                return Err(Problem::new(problem::PRECONDITION_FAILED, "the file has another entity tag now"));
            }
            StatusCode::RANGE_NOT_SATISFIABLE => return Err(Problem::range(length_of(response.headers()))),
            _ => return Err(Problem::missing()),
        }
        let mut response: Response<Body> = response.map(|body| relayed(Body::new(body)));
        let headers = response.headers_mut();
        let name = path.last().copied().unwrap_or_default();
        let policy = if is_hashed(name) { "public, max-age=31536000, immutable" } else { "no-cache" };
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(policy));
        let text = headers.get(CONTENT_TYPE).and_then(|found| found.to_str().ok()).filter(|t| t.starts_with("text/"));
        if let Some(Ok(typed)) = text.map(|text| HeaderValue::from_str(&format!("{text}; charset=utf-8"))) {
            headers.insert(CONTENT_TYPE, typed);
        }
        if name == INDEX {
            page::protect(headers, page::VIEWER_POLICY, &ask.app.options.frame_ancestors);
        }
        if response.status() == StatusCode::NOT_MODIFIED {
            vary(response.headers_mut(), "accept-encoding");
        }
        Ok(response)
    }

    fn unreadable(&self, error: &std::io::Error) -> Problem {
        let absent =
            [ErrorKind::NotFound, ErrorKind::NotADirectory, ErrorKind::IsADirectory, ErrorKind::InvalidFilename];
        if absent.contains(&error.kind()) {
            return Problem::missing();
        }
        let cause = format!("{}: {error}", self.directory.display());
        Problem::own(problem::STORAGE_UNAVAILABLE, "the viewer's files cannot be read", cause)
    }
}

/// A body read by the runtime that this runs in, whoever sends it: files are waited for, and who serves connections must not.
fn relayed(mut body: Body) -> Body {
    if http_body::Body::is_end_stream(&body) {
        return body;
    }
    let (send, sent) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Some(frame) = body.frame().await {
            if send.send(frame).await.is_err() {
                return;
            }
        }
    });
    let next = |mut sent: mpsc::Receiver<_>| async move { sent.recv().await.map(|frame| (frame, sent)) };
    Body::new(StreamBody::new(futures_util::stream::unfold(sent, next)))
}

/// The length that an answer to an unsatisfiable range gives.
fn length_of(headers: &HeaderMap) -> u64 {
    let range = headers.get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
    range.and_then(|range| range.strip_prefix("bytes */")?.parse().ok()).unwrap_or(0)
}

/// Whether a file's name has a hash of its content (`main.0123456789abcdef.js`), so that it never changes.
fn is_hashed(name: &str) -> bool {
    name.split('.').skip(1).any(|part| part.len() == 16 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_a_hash_are_kept_for_ever() {
        assert!(is_hashed("main.0123456789abcdef.js"));
        assert!(is_hashed("main.0123456789abcdef.js.map"));
        for name in ["index.html", "0123456789abcdef", "main.0123456789abcde.js", "main.0123456789abcdeg.js", ""] {
            assert!(!is_hashed(name), "{name}");
        }
    }

    #[test]
    fn a_directory_without_an_index_is_no_viewer() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Viewer::find(directory.path()).unwrap().is_none());
        std::fs::create_dir(directory.path().join(INDEX)).unwrap();
        assert!(Viewer::find(directory.path()).unwrap().is_none());
        assert!(Viewer::find(Path::new("")).unwrap().is_none());
        assert!(Viewer::find(Path::new(&"x".repeat(300))).is_err());
    }
}
