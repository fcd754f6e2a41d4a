//! Assets of the listing page: scripts, styles and icon, embedded in the binary and served at `/viewer/page/{file}`.

use axum::http::HeaderValue;
use axum::http::header::{CONTENT_SECURITY_POLICY, HeaderMap, REFERRER_POLICY};
use axum::http::request::Parts;

use crate::http::problem::Problem;
use crate::http::request::RequestContext;
use crate::http::respond::{Entity, HandlerResult};

/// Content Security Policy of the page that `listing` renders. The page loads only from its own origin.
pub(crate) const PAGE_CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
                                 connect-src 'self'; form-action 'self'; base-uri 'none'";

/// Content Security Policy of the built Neuroglancer. Neuroglancer loads its own files, and data from any host that a
/// link names. Its decoders are WebAssembly, its workers start from blobs, and it sets styles on elements.
pub(crate) const VIEWER_CSP: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self' blob:; \
                                        style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; \
                                        connect-src * data: blob:; form-action 'none'; base-uri 'none'; object-src 'none'";

/// Adds the security headers of a document that a browser shows: what the document may load, and which pages may embed
/// the document. `Referrer-Policy` keeps the browser from sending the document's address, which may contain a token, to
/// other servers.
pub(crate) fn add_security_headers(headers: &mut HeaderMap, policy: &str, frame_ancestors: &[String]) {
    let ancestors = if frame_ancestors.is_empty() { "'none'".to_owned() } else { frame_ancestors.join(" ") };
    if let Ok(policy) = HeaderValue::from_str(&format!("{policy}; frame-ancestors {ancestors}")) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
}

/// Name and text of every file of `src/http/routes/page/`, as it is sent. `build.rs` minifies the scripts.
const ASSETS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/page_assets.rs"));

/// Returns the text of the asset of this name.
fn find_asset(name: &str) -> Option<&'static str> {
    ASSETS.iter().find(|(asset, _)| *asset == name).map(|(_, text)| *text)
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/javascript; charset=utf-8",
    }
}

/// Returns the entity tag of a text. The tag is weak, because compressed forms of the text share it.
fn etag(text: &str) -> String {
    format!("W/\"{:016x}\"", xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
}

/// Handles `/viewer/page/{file}`; `path` holds the segments after `/viewer/page`.
pub(crate) fn handle(context: &RequestContext<'_>, path: &[String]) -> HandlerResult {
    let [name] = path else { return Err(Problem::not_found()) };
    let text = find_asset(name).filter(|_| !context.target.has_trailing_slash).ok_or_else(Problem::not_found)?;
    asset_response(context.parts, name, text)
}

/// Returns the asset, or 304 if the client's copy is current. Clients revalidate each asset at every use, so that
/// scripts of two releases are never mixed.
fn asset_response(request: &Parts, name: &str, text: &'static str) -> HandlerResult {
    let entity = Entity::new(media_type(name), HeaderValue::from_static("no-cache"));
    let etag = Some(etag(text).into());
    Entity { etag, is_compressible: true, subject: "the file", ..entity }.respond(request, text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::http::header::ETAG;
    use axum::http::{Request, StatusCode};

    use super::*;

    /// Maximum size of all files as they are sent, in bytes. No page loads all of them.
    const MAX_SENT: usize = 200_000;

    /// Returns the text of a script as it is written.
    fn source(script: &str) -> String {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/routes/page");
        #[expect(clippy::disallowed_methods, reason = "a test")]
        std::fs::read_to_string(folder.join(script)).unwrap()
    }

    /// Returns the files that a script imports, by `marker`: ` from "./` or `import("./`.
    fn imports(script: &str, marker: &str) -> Vec<String> {
        let text = source(script);
        let name = |(offset, _): (usize, &str)| text[offset + marker.len()..].split('"').next().unwrap().to_owned();
        text.match_indices(marker).map(name).collect()
    }

    /// Returns a script and all scripts that it imports, directly or not, before it runs.
    fn with_imports(script: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::from([script.to_owned()]);
        let mut new = vec![script.to_owned()];
        while let Some(script) = new.pop() {
            new.extend(imports(&script, " from \"./").into_iter().filter(|name| found.insert(name.clone())));
        }
        found
    }

    #[test]
    fn scripts_import_only_existing_files() {
        for (asset, _) in ASSETS.iter().filter(|(asset, _)| media_type(asset).starts_with("text/javascript")) {
            for marker in [" from \"./", "import(\"./"] {
                for name in imports(asset, marker) {
                    assert!(find_asset(&name).is_some(), "{asset} imports {name}");
                }
            }
        }
    }

    #[test]
    fn the_scripts_that_show_a_volume_are_fetched_together() {
        let text = source("page.js");
        let (_, list) = text.split_once("const VOLUME_SCRIPTS = [").unwrap();
        let (list, _) = list.split_once(']').unwrap();
        let listed: Vec<String> = list.split('"').skip(1).step_by(2).map(|name| format!("{name}.js")).collect();
        let base = with_imports("page.js");
        let volume = with_imports("volume_page.js");
        assert_eq!(listed, volume.difference(&base).cloned().collect::<Vec<_>>());
    }

    #[test]
    fn scripts_are_sent_minified_and_still_export_what_others_import() {
        let sent = find_asset("describe.js").unwrap();
        assert!(sent.len() < source("describe.js").len() * 3 / 4 && !sent.contains("/**"), "{sent}");
        assert!(sent.contains("voxelSize"), "{sent}");
    }

    #[test]
    fn all_files_together_stay_small() {
        let sent: usize = ASSETS.iter().map(|(_, text)| text.len()).sum();
        assert!(sent < MAX_SENT, "{sent} bytes");
    }

    #[test]
    fn an_unchanged_file_is_not_sent_again() {
        let text = find_asset("page.js").unwrap();
        let mut request = Request::new(()).into_parts().0;
        let first = asset_response(&request, "page.js", text).unwrap();
        assert_eq!(first.status(), StatusCode::OK);
        request.headers.insert("if-none-match", first.headers()[ETAG].clone());
        assert_eq!(asset_response(&request, "page.js", text).unwrap().status(), StatusCode::NOT_MODIFIED);
        request.headers.insert("if-none-match", HeaderValue::from_static("W/\"0\""));
        assert_eq!(asset_response(&request, "page.js", text).unwrap().status(), StatusCode::OK);
    }

    #[test]
    fn a_file_that_fails_if_match_is_not_sent() {
        let text = find_asset("page.js").unwrap();
        let get_if_match = |value: &str| {
            let request = Request::builder().header("if-match", value).body(()).unwrap().into_parts().0;
            asset_response(&request, "page.js", text)
        };
        // The entity tag is weak and If-Match compares strongly, so no list of tags matches it (RFC 9110, section
        // 13.1.1).
        for tags in ["\"0\"", &etag(text), etag(text).trim_start_matches("W/")] {
            let problem = get_if_match(tags).unwrap_err();
            assert_eq!(problem.into_response("/", "").status(), StatusCode::PRECONDITION_FAILED, "{tags}");
        }
        assert_eq!(get_if_match("*").unwrap().status(), StatusCode::OK);
    }

    #[test]
    fn no_asset_refers_to_another_host() {
        // Namespace URIs are not requested. Public viewers are requested only if a person follows the link.
        let allowed = [
            "http://www.w3.org/2000/svg",
            "https://neuroglancer-demo.appspot.com/",
            "https://hms-dbmi.github.io/vizarr/",
            "https://ome.github.io/ome-ngff-validator/",
        ];
        for (asset, text) in ASSETS {
            let text = allowed.iter().fold((*text).to_owned(), |text, url| text.replace(url, ""));
            for scheme in ["http://", "https://"] {
                assert!(!text.contains(scheme), "{asset}");
            }
        }
    }
}
