//! What makes a listing a page in a browser: scripts, style and icon, carried by the binary and served at
//! `/viewer/page/{file}`.

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, ETAG, HeaderMap, REFERRER_POLICY};
use axum::http::{HeaderValue, Method, Response, StatusCode};

use super::compress::Compressible;
use super::conditional::{self, Verdict};
use super::problem::{self, Problem};
use super::{Answer, Ask, respond};

/// What the HTML may load, from its own origin only. The policy of the page that `listing` makes.
pub(super) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
                                 connect-src 'self'; form-action 'self'; base-uri 'none'";

/// What the built Neuroglancer may load: itself, and data from wherever a link says. Decoders are WebAssembly, workers begin
/// as blobs, and styles are set on elements.
pub(super) const VIEWER_POLICY: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self' blob:; \
                                        style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; \
                                        connect-src * data: blob:; form-action 'none'; base-uri 'none'; object-src 'none'";

/// The headers of a document that a browser shows: what it may load, who may show it within their page, and that its
/// address, which may hold a token, is told to nobody.
pub(super) fn protect(headers: &mut HeaderMap, policy: &str, frame_ancestors: &[String]) {
    let ancestors = if frame_ancestors.is_empty() { "'none'".to_owned() } else { frame_ancestors.join(" ") };
    if let Ok(policy) = HeaderValue::from_str(&format!("{policy}; frame-ancestors {ancestors}")) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
}

/// A file of the page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asset {
    /// Last segment of its path.
    name: &'static str,
    text: &'static str,
}

macro_rules! assets {
    ($($name:literal),+ $(,)?) => {
        &[$(Asset { name: $name, text: include_str!(concat!("page/", $name)) }),+]
    };
}

/// Every file of `src/http/page/`.
const ASSETS: &[Asset] = assets![
    "colours.js",
    "contrast.js",
    "describe.js",
    "dom.js",
    "entries.js",
    "icon.svg",
    "neuroglancer_link.js",
    "page.css",
    "page.js",
    "planes.js",
    "preview.css",
    "preview.js",
    "server.js",
    "snippets.js",
    "thumbnail.js",
    "volume.js",
];

/// The file of this name.
pub(super) fn asset(name: &str) -> Option<Asset> {
    ASSETS.iter().find(|asset| asset.name == name).copied()
}

impl Asset {
    fn media_type(self) -> &'static str {
        match self.name.rsplit('.').next() {
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "text/javascript; charset=utf-8",
        }
    }

    /// Weak: the same for the compressed forms of the text.
    fn etag(self) -> String {
        format!("W/\"{:016x}\"", xxhash_rust::xxh3::xxh3_64(self.text.as_bytes()))
    }
}

/// The answer to `/viewer/page/{file}`; `path` is what follows `/viewer/page`.
pub(super) fn answer(ask: &Ask<'_>, path: &[String]) -> Answer {
    let [name] = path else { return Err(Problem::missing()) };
    let asset = asset(name).filter(|_| !ask.target.trailing_slash).ok_or_else(Problem::missing)?;
    file(ask.method(), ask.headers(), asset)
}

/// Asked for anew each time, so that scripts of two releases never meet; 304 where nothing has changed.
fn file(method: &Method, headers: &HeaderMap, asset: Asset) -> Answer {
    let etag = asset.etag();
    let mut response = match conditional::evaluate(method, headers, Some(&etag), None, None) {
        Verdict::NotModified => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        }
        Verdict::PreconditionFailed => {
            let detail = format!("the file has the entity tag {etag} now");
            return Err(Problem::new(problem::PRECONDITION_FAILED, detail));
        }
        // It serves no ranges.
        Verdict::Whole | Verdict::Part(..) | Verdict::Unsatisfiable => {
            let mut response = respond(StatusCode::OK, asset.media_type(), asset.text);
            response.extensions_mut().insert(Compressible);
            response
        }
    };
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(etag) = HeaderValue::from_str(&etag) {
        response.headers_mut().insert(ETAG, etag);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_an_asset() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/page");
        let mut names: Vec<String> =
            folder.read_dir().unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(ASSETS.iter().map(|asset| asset.name).collect::<Vec<_>>(), names);
    }

    #[test]
    fn scripts_import_only_files_that_are_there() {
        for asset in ASSETS {
            for (_, rest) in
                asset.text.match_indices(" from \"./").map(|(at, found)| (at, &asset.text[at + found.len()..]))
            {
                let name = rest.split('"').next().unwrap();
                assert!(super::asset(name).is_some(), "{} imports {name}", asset.name);
            }
        }
    }

    #[test]
    fn an_unchanged_file_is_not_sent_again() {
        let asset = asset("page.js").unwrap();
        let mut headers = HeaderMap::new();
        let first = file(&Method::GET, &headers, asset).unwrap();
        assert_eq!(first.status(), StatusCode::OK);
        headers.insert("if-none-match", first.headers()[ETAG].clone());
        assert_eq!(file(&Method::GET, &headers, asset).unwrap().status(), StatusCode::NOT_MODIFIED);
        headers.insert("if-none-match", HeaderValue::from_static("W/\"0\""));
        assert_eq!(file(&Method::GET, &headers, asset).unwrap().status(), StatusCode::OK);
    }

    #[test]
    fn a_file_that_must_be_another_is_not_sent() {
        let asset = asset("page.js").unwrap();
        let ask = |value: &str| {
            let headers = [(axum::http::header::IF_MATCH, HeaderValue::from_str(value).unwrap())].into_iter().collect();
            file(&Method::GET, &headers, asset)
        };
        // Its own tag is weak, and If-Match compares strongly: no list of tags names it (RFC 9110, section 13.1.1).
        for tags in ["\"0\"", &asset.etag(), asset.etag().trim_start_matches("W/")] {
            let problem = ask(tags).unwrap_err();
            assert_eq!(problem.into_response("/", "").status(), StatusCode::PRECONDITION_FAILED, "{tags}");
        }
        assert_eq!(ask("*").unwrap().status(), StatusCode::OK);
    }

    #[test]
    fn no_file_names_another_host() {
        // Namespaces and the public Neuroglancer, which a person may follow a link to, are no requests.
        let allowed = ["http://www.w3.org/2000/svg", "https://neuroglancer-demo.appspot.com/"];
        for asset in ASSETS {
            let text = allowed.iter().fold(asset.text.to_owned(), |text, url| text.replace(url, ""));
            for scheme in ["http://", "https://"] {
                assert!(!text.contains(scheme), "{}", asset.name);
            }
        }
    }
}
