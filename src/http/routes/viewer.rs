//! `/viewer/`: serves the files of a built Neuroglancer, from the binary or from a directory. The assets of the listing
//! page, at `/viewer/page/`, are served by `page`.

use std::io::ErrorKind;
use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, IF_MATCH,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE, RANGE,
};
use axum::http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::mpsc;

use crate::http::compress::{ContentCoding, best_coding_of};
use crate::http::embedded_viewer::{EmbeddedFile, INDEX};
use crate::http::problem::{self, Problem};
use crate::http::request::RequestContext;
use crate::http::respond::{Entity, HandlerResult, add_vary};
use crate::http::route;
use crate::http::routes::page;
use crate::http::viewer_files::{Viewer, ViewerDirectory, ViewerSource};

const NO_VIEWER: &str = "this server has no viewer: install a build that contains one, or let server.viewer name the \
                         directory of a built Neuroglancer (docs/DEPLOYMENT.md, Viewer)";

/// Longest path of a file, in bytes.
const MAX_PATH_BYTES: usize = 4096;

pub(crate) async fn handle(context: &RequestContext<'_>) -> HandlerResult {
    let segments: Vec<&str> = context.target.segments.iter().map(String::as_str).collect();
    let Some(viewer) = context.app.viewer() else {
        return Err(Problem::new(problem::NOT_FOUND, NO_VIEWER));
    };
    match segments.as_slice() {
        [] if context.target.is_bare => Ok(context.redirect_to_slash()),
        [] => file_response(context, viewer, &[INDEX]).await,
        // Directories are not listed, and the path of a file does not end in a slash.
        _ if context.target.has_trailing_slash => Err(Problem::not_found()),
        path => file_response(context, viewer, path).await,
    }
}

async fn file_response(context: &RequestContext<'_>, viewer: &Viewer, path: &[&str]) -> HandlerResult {
    let mut response = match &viewer.0 {
        ViewerSource::Embedded(files) => {
            let file = files.find(&path.join("/")).ok_or_else(Problem::not_found)?;
            embedded_response(context, path, file)?
        }
        ViewerSource::Directory(directory) => directory_response(context, directory, path).await?,
    };
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
    Ok(response)
}

/// Returns the response with a file that is part of the binary, in the coding that the client prefers.
fn embedded_response(context: &RequestContext<'_>, path: &[&str], file: &EmbeddedFile) -> HandlerResult {
    let accepted = context.list_header(&ACCEPT_ENCODING);
    let coding = best_coding_of(&[ContentCoding::Brotli, ContentCoding::Gzip], accepted.as_deref().unwrap_or_default());
    let compressed = coding.and_then(|coding| {
        let form = if coding == ContentCoding::Brotli { &file.brotli } else { &file.gzip };
        Some((coding, form.as_ref()?))
    });
    let form = compressed.map(|(_, form)| form).or_else(|| file.plain()).ok_or_else(Problem::not_found)?;
    let mut extra = HeaderMap::new();
    add_vary(&mut extra, "accept-encoding");
    extra.extend(compressed.map(|(coding, _)| (CONTENT_ENCODING, HeaderValue::from_static(coding.name()))));
    let media_type = media_type(path.last().copied().unwrap_or_default());
    // The caller decides for how long a file is fresh.
    let entity = Entity::new(media_type, HeaderValue::from_static("no-cache"));
    let etag = Some(Arc::clone(&form.etag));
    Entity { etag, has_ranges: true, extra, subject: "the file", ..entity }.respond(context.parts, form.bytes.clone())
}

/// Returns the media type of a file of the viewer.
fn media_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html",
        Some("js") => "text/javascript",
        Some("css") => "text/css",
        Some("txt") => "text/plain",
        Some("wasm") => "application/wasm",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        _ => "application/octet-stream",
    }
}

/// Returns the response with a file of a directory.
async fn directory_response(context: &RequestContext<'_>, directory: &ViewerDirectory, path: &[&str]) -> HandlerResult {
    let uri = format!("/{}", route::encode_path(path.iter().copied()));
    if uri.len() > MAX_PATH_BYTES {
        return Err(Problem::not_found());
    }
    let mut request = Request::new(Body::empty());
    *request.method_mut() = context.parts.method.clone();
    *request.uri_mut() = uri.parse().map_err(|_invalid| Problem::not_found())?;
    for name in [ACCEPT_ENCODING, IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE, RANGE] {
        if let Some(value) = context.parts.headers.get(&name) {
            request.headers_mut().insert(name, value.clone());
        }
    }
    let response = directory.call(request).await.map_err(|error| read_problem(directory, &error))?;
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
    let mut response = response.map(read_on_this_runtime);
    if response.status() == StatusCode::NOT_MODIFIED {
        add_vary(response.headers_mut(), "accept-encoding");
    }
    Ok(response)
}

fn read_problem(directory: &ViewerDirectory, error: &std::io::Error) -> Problem {
    let missing_kinds =
        [ErrorKind::NotFound, ErrorKind::NotADirectory, ErrorKind::IsADirectory, ErrorKind::InvalidFilename];
    if missing_kinds.contains(&error.kind()) {
        return Problem::not_found();
    }
    let cause = format!("{}: {error}", directory.path().display());
    Problem::with_cause(problem::STORAGE_UNAVAILABLE, "the viewer's files cannot be read", cause)
}

/// Returns a body that is read by a task on the current runtime. Reading a file may block, and the threads that serve
/// connections must not block.
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

/// Returns the complete length of the file. `headers` are those of the response to a range that is not satisfiable.
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
    #[cfg(feature = "embed-viewer")]
    #[test]
    fn every_file_of_the_built_viewer_has_a_known_type() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("viewer/dist");
        for file in folder.read_dir().unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            if !matches!(name.rsplit('.').next(), Some("br" | "gz")) {
                assert_ne!(media_type(&name), "application/octet-stream", "{name}");
            }
        }
    }
}
