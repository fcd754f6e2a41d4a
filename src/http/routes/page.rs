//! Assets of the listing page: scripts, styles and icon, embedded in the binary and served at `/viewer/page/{file}`.

use std::sync::LazyLock;

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

macro_rules! assets {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("page/", $name)))),+]
    };
}

/// Name and text of every file of `src/http/routes/page/`.
const ASSETS: &[(&str, &str)] = assets![
    "about.js",
    "actions.js",
    "attribute_texts.js",
    "box_drawing.js",
    "channel_controls.js",
    "channels.js",
    "colours.js",
    "contrast.js",
    "describe.js",
    "display.css",
    "display.js",
    "dom.js",
    "download.css",
    "download.js",
    "download_request.js",
    "entries.js",
    "entry_facts.js",
    "entry_order.js",
    "finding.js",
    "gallery.js",
    "gestures.js",
    "group_page.js",
    "header.js",
    "icon.svg",
    "metadata.js",
    "navigation.js",
    "neuroglancer_link.js",
    "neuroglancer_state.js",
    "notes.js",
    "other_viewers.js",
    "overlay.js",
    "page.css",
    "page.js",
    "pixels.js",
    "plane_layout.js",
    "plane_view.js",
    "planes.js",
    "preview.css",
    "preview.js",
    "preview_controls.js",
    "readout.js",
    "server.js",
    "snippets.js",
    "stack.js",
    "subtree.js",
    "thumbnail.js",
    "tile_plan.js",
    "tiles.js",
    "time_player.js",
    "together.js",
    "tree.js",
    "value_statistics.js",
    "view_state.js",
    "viewport.js",
    "volume.js",
    "volume_page.js",
];

/// Name and text of every asset as it is sent.
static SENT: LazyLock<Vec<(&str, String)>> =
    LazyLock::new(|| ASSETS.iter().map(|(name, text)| (*name, compact(name, text))).collect());

/// Returns the text of the asset of this name.
fn find_asset(name: &str) -> Option<&'static str> {
    SENT.iter().find(|(asset, _)| *asset == name).map(|(_, text)| text.as_str())
}

/// Returns a script or style without indentation and without the lines that are comments, a fifth of the text. The
/// lines of a template literal are kept as they are. The lines of a style also lose spaces that have no meaning.
fn compact(name: &str, text: &str) -> String {
    let is_style = name.rsplit_once('.').is_some_and(|(_, suffix)| suffix == "css");
    let mut compacted = String::with_capacity(text.len());
    let mut is_comment = false;
    let mut is_literal = false;
    for line in text.lines() {
        let trimmed = line.trim_start();
        if !is_literal {
            is_comment |= trimmed.starts_with("/*");
            if is_comment {
                is_comment = !trimmed.contains("*/");
                continue;
            }
            if trimmed.is_empty() || trimmed.starts_with("//") {
                continue;
            }
        }
        if is_style && !line.contains('"') {
            compacted.push_str(&without_spaces(trimmed));
        } else {
            compacted.push_str(if is_literal { line } else { trimmed });
        }
        compacted.push('\n');
        is_literal ^= backticks(line) % 2 == 1;
    }
    compacted
}

/// Returns a line of a style, which has no string, without the spaces beside braces and after punctuation.
fn without_spaces(line: &str) -> String {
    [(" {", "{"), ("{ ", "{"), (" }", "}"), ("; ", ";"), (": ", ":"), (", ", ",")]
        .iter()
        .fold(line.to_owned(), |line, (spaced, plain)| line.replace(spaced, plain))
}

/// Returns the number of backticks of a line that are not escaped.
fn backticks(line: &str) -> usize {
    let mut is_escaped = false;
    let is_delimiter = |character: char| {
        let counts = character == '`' && !is_escaped;
        is_escaped = character == '\\' && !is_escaped;
        counts
    };
    line.chars().map(is_delimiter).filter(|counts| *counts).count()
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
    const MAX_SENT: usize = 250 * 1024;

    #[test]
    fn every_file_of_the_folder_is_an_asset() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/routes/page");
        let mut names: Vec<String> =
            folder.read_dir().unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(ASSETS.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
    }

    #[test]
    fn comments_and_indentation_are_not_sent_but_template_literals_are() {
        let text = "// one\n\n/** two\n * three */\nfoo(`a\\`\n  // kept\n\n`);\n  bar(`x${`y`}`); // kept\n/* four */\n    * 5;\n";
        assert_eq!(compact("a.js", text), "foo(`a\\`\n  // kept\n\n`);\nbar(`x${`y`}`); // kept\n* 5;\n");
        for (name, text) in ASSETS {
            let code = compact(name, text);
            assert_eq!(backticks(&code) % 2, 0, "{name} ends within a template literal");
            assert!(!code.contains("/**") && code.len() <= text.len(), "{name}");
        }
    }

    /// Returns the files that a script imports, by `marker`: ` from "./` or `import("./`.
    fn imports<'a>(script: &'a str, marker: &str) -> Vec<&'a str> {
        let text = ASSETS.iter().find(|(name, _)| *name == script).unwrap().1;
        let names =
            text.match_indices(marker).map(|(offset, _)| text[offset + marker.len()..].split('"').next().unwrap());
        names.collect()
    }

    /// Returns a script and all scripts that it imports, directly or not, before it runs.
    fn with_imports(script: &'static str) -> BTreeSet<&'static str> {
        let mut found = BTreeSet::from([script]);
        let mut new = vec![script];
        while let Some(script) = new.pop() {
            new.extend(imports(script, " from \"./").into_iter().filter(|name| found.insert(*name)));
        }
        found
    }

    #[test]
    fn styles_lose_only_spaces_without_meaning() {
        let style = "/* one */\n@media (max-width: 34rem) {\n  a :hover, b > c { top: calc(100% - 2px); margin: 0 1px; }\n  d::before { content: \"{ }; x: y\"; }\n}\n";
        let sent = "@media (max-width:34rem){\na :hover,b > c{top:calc(100% - 2px);margin:0 1px;}\nd::before { content: \"{ }; x: y\"; }\n}\n";
        assert_eq!(compact("a.css", style), sent);
    }

    #[test]
    fn scripts_import_only_existing_files() {
        for (asset, _) in ASSETS {
            for marker in [" from \"./", "import(\"./"] {
                for name in imports(asset, marker) {
                    assert!(find_asset(name).is_some(), "{asset} imports {name}");
                }
            }
        }
    }

    #[test]
    fn the_scripts_that_show_a_volume_are_fetched_together() {
        let (_, text) = ASSETS.iter().find(|(name, _)| *name == "page.js").unwrap();
        let (_, list) = text.split_once("const VOLUME_SCRIPTS = [").unwrap();
        let (list, _) = list.split_once(']').unwrap();
        let listed: Vec<String> = list.split('"').skip(1).step_by(2).map(|name| format!("{name}.js")).collect();
        let base = with_imports("page.js");
        let volume = with_imports("volume_page.js");
        assert_eq!(listed, volume.difference(&base).copied().collect::<Vec<_>>());
    }

    #[test]
    fn all_files_together_stay_small() {
        let sent: usize = SENT.iter().map(|(_, text)| text.len()).sum();
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
