//! `/viewer/`: the files of a directory with their compressed copies, and nothing outside of it; the files in the binary.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::read::GzEncoder;
use n5_server::http::{HttpOptions, Viewer};
use tempfile::TempDir;

use crate::support::program::Program;
use crate::support::writer::N5;
use crate::support::{Client, local, options, settings};

const SCRIPT: &str = "main.0123456789abcdef.js";

fn built() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("beside.txt"), "secret").unwrap();
    let dist = directory.path().join("dist");
    fs::create_dir_all(dist.join("sub")).unwrap();
    let write = |name: &str, content: &str| fs::write(dist.join(name), content).unwrap();
    write("index.html", "<!doctype html>");
    write(SCRIPT, "plain script");
    write(&format!("{SCRIPT}.br"), "as brotli");
    write(&format!("{SCRIPT}.gz"), "as gzip");
    write("code.wasm", "\0asm");
    write("sub/index.html", "below");
    directory
}

fn client(n5: &N5, directory: &Path) -> Client {
    let viewer = Viewer::open(directory).unwrap();
    Client::new(local(n5.root()), settings(), HttpOptions { viewer, ..options() })
}

#[tokio::test]
async fn the_path_without_a_slash_redirects_to_the_index() {
    let (n5, directory) = (N5::new(), built());
    let client = client(&n5, &directory.path().join("dist"));
    let bare = client.get("/viewer?x=1").await;
    assert_eq!((bare.status.as_u16(), bare.header("location")), (301, Some("viewer/?x=1")));
    let index = client.get("/viewer/").await;
    assert_eq!((index.status.as_u16(), index.body.as_ref()), (200, b"<!doctype html>".as_slice()));
    assert_eq!(index.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(index.header("cache-control"), Some("no-cache"));
    assert_eq!(index.header("access-control-allow-origin"), Some("*"));
    assert!(index.header("last-modified").is_some());
    let head = client.send("HEAD", "/viewer/", &[]).await;
    assert_eq!((head.status.as_u16(), head.header("content-length"), head.body.len()), (200, Some("15"), 0));
    let again = client.get_with("/viewer/", &[("if-none-match", index.header("etag").unwrap())]).await;
    assert_eq!((again.status.as_u16(), again.header("cache-control")), (304, Some("no-cache")));
}

#[tokio::test]
async fn hashed_files_are_immutable_and_sent_precompressed() {
    let (n5, directory) = (N5::new(), built());
    let client = client(&n5, &directory.path().join("dist"));
    let path = format!("/viewer/{SCRIPT}");
    for (accepted, encoding, body) in
        [("br, gzip", Some("br"), "as brotli"), ("gzip", Some("gzip"), "as gzip"), ("identity", None, "plain script")]
    {
        let reply = client.get_with(&path, &[("accept-encoding", accepted)]).await;
        assert_eq!((reply.status.as_u16(), reply.header("content-encoding")), (200, encoding));
        assert_eq!(reply.body.as_ref(), body.as_bytes());
        assert_eq!(reply.header("content-type"), Some("text/javascript; charset=utf-8"));
        assert_eq!(reply.header("cache-control"), Some("public, max-age=31536000, immutable"));
        assert_eq!(reply.header("vary"), Some("accept-encoding"));
    }
    assert_eq!(client.get("/viewer/code.wasm").await.header("content-type"), Some("application/wasm"));
    let part = client.get_with(&path, &[("range", "bytes=6-8")]).await;
    assert_eq!((part.status.as_u16(), part.body.as_ref()), (206, b"scr".as_slice()));
    let beyond = client.get_with(&path, &[("range", "bytes=99-")]).await;
    assert_eq!((beyond.status.as_u16(), beyond.header("content-range")), (416, Some("bytes */12")));
    assert_eq!(client.get_with(&path, &[("if-match", "\"other\"")]).await.status.as_u16(), 412);
}

#[tokio::test]
async fn other_paths_are_not_found_or_refused() {
    let (n5, directory) = (N5::new(), built());
    let client = client(&n5, &directory.path().join("dist"));
    for missing in ["nothing", "sub", "sub/", "sub/nothing", "attributes.json", "index.html/", "index.html/x"] {
        let reply = client.get(&format!("/viewer/{missing}")).await;
        assert_eq!(
            (reply.status.as_u16(), reply.header("content-type")),
            (404, Some("application/problem+json")),
            "{missing}"
        );
    }
    for climbing in ["../beside.txt", "%2e%2e/beside.txt", "..%2fbeside.txt", "sub/../../beside.txt", "/etc/passwd"] {
        assert_eq!(client.get(&format!("/viewer/{climbing}")).await.status.as_u16(), 400, "{climbing}");
    }
    // These names are reserved for the listing page.
    let dist = directory.path().join("dist");
    fs::create_dir(dist.join("page")).unwrap();
    fs::write(dist.join("page/x.js"), "").unwrap();
    for reserved in ["page", "page/", "page/x.js"] {
        assert_eq!(client.get(&format!("/viewer/{reserved}")).await.status.as_u16(), 404, "{reserved}");
    }
}

#[tokio::test]
async fn without_a_directory_there_is_no_viewer() {
    let n5 = N5::new();
    let client = client(&n5, Path::new(""));
    for path in ["/viewer", "/viewer/", "/viewer/index.html"] {
        let reply = client.get(path).await;
        assert_eq!(reply.status.as_u16(), 404, "{path}");
        assert!(reply.json()["detail"].as_str().unwrap().contains("viewer"));
    }
}

fn gzip(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzEncoder::new(text.as_bytes(), Compression::fast()).read_to_end(&mut bytes).unwrap();
    bytes
}

#[tokio::test]
async fn files_in_the_binary_are_served_like_those_of_a_directory() {
    let (n5, directory) = (N5::new(), tempfile::tempdir().unwrap());
    let mut compressed = Vec::new();
    for (name, text) in
        [("index.html", "<!doctype html>"), (SCRIPT, "plain script"), ("main.css", "p {}"), ("licences.txt", "MIT")]
    {
        // The server does not look at what is compressed.
        let forms = [("br", format!("{text} as brotli").into_bytes()), ("gz", gzip(text))];
        fs::write(directory.path().join(name), text).unwrap();
        for (ending, bytes) in forms {
            fs::write(directory.path().join(format!("{name}.{ending}")), &bytes).unwrap();
            compressed.push((format!("{name}.{ending}"), Bytes::from(bytes)));
        }
    }
    let viewer = Viewer::embedded(compressed);
    let embedded = Client::new(local(n5.root()), settings(), HttpOptions { viewer, ..options() });
    let on_disk = client(&n5, directory.path());
    let mut answers = 0;
    for path in ["", "index.html", SCRIPT, "main.css", "licences.txt", "absent", "index.html/", "index.html.br", "page"]
    {
        for method in ["GET", "HEAD"] {
            for headers in [
                vec![],
                vec![("accept-encoding", "gzip, deflate, br, zstd")],
                vec![("accept-encoding", "gzip, deflate")],
                vec![("accept-encoding", "zstd")],
                vec![("range", "bytes=1-3")],
                vec![("range", "bytes=99-"), ("accept-encoding", "identity")],
                vec![("if-match", "\"other\"")],
            ] {
                let path = format!("/viewer/{path}");
                // Only a path that names a file has documented ranges.
                if (method == "HEAD" || path == "/viewer/") && headers.iter().any(|(name, _)| *name == "range") {
                    continue;
                }
                let (got, wanted) =
                    (embedded.send(method, &path, &headers).await, on_disk.send(method, &path, &headers).await);
                let comparable = |name: &str| {
                    !["etag", "last-modified", "date", "x-request-id", "accept-range", "server-timing"].contains(&name)
                };
                let headers_of = |reply: &crate::support::WholeResponse| -> BTreeMap<String, String> {
                    let pairs = reply.headers.iter().filter(|(name, _)| comparable(name.as_str()));
                    pairs.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect()
                };
                // A compressed form has no URL of its own in the binary, which nobody needs.
                if path == "/viewer/index.html.br" {
                    assert_eq!(got.status, 404, "{path} {headers:?}");
                    continue;
                }
                assert_eq!(got.status, wanted.status, "{method} {path} {headers:?}");
                if got.status.is_success() {
                    assert_eq!(headers_of(&got), headers_of(&wanted), "{method} {path} {headers:?}");
                    assert_eq!(got.body, wanted.body, "{method} {path} {headers:?}");
                    answers += 1;
                    let known = [headers.clone(), vec![("if-none-match", got.header("etag").unwrap())]].concat();
                    assert_eq!(embedded.send(method, &path, &known).await.status, 304, "{path} {known:?}");
                }
            }
        }
    }
    assert!(answers > 40, "{answers}");
}

#[test]
fn a_configured_directory_without_a_viewer_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let program = Program::start(&format!("server.viewer = \"{}\"\n", directory.path().display()));
    assert!(program.logged("no viewer is served").contains("has no index.html"));
    assert_eq!(program.get("/viewer/").status, 404);
}

#[test]
fn a_304_of_a_cached_file_counts_as_complete() {
    let directory = built();
    let program = Program::start(&format!("server.viewer = \"{}\"\n", directory.path().join("dist").display()));
    let mut connection = program.connect();
    let first = connection.get("/viewer/", "").unwrap();
    assert_eq!((first.status, first.body.as_str()), (200, "<!doctype html>"));
    let known = format!("If-None-Match: {}\r\n", first.header("etag").unwrap());
    for _ in 0..3 {
        assert_eq!(connection.get("/viewer/", &known).unwrap().status, 304);
    }
    let cancelled = program.metric("n5_requests_cancelled_total{stage=\"sending\"}");
    assert!(cancelled.is_none_or(|count| count == 0.0), "{cancelled:?}");
}

#[tokio::test]
async fn files_behind_links_out_of_the_directory_are_not_found() {
    let (n5, directory) = (N5::new(), built());
    let dist = directory.path().join("dist");
    let link = |target: &Path, name: &str| std::os::unix::fs::symlink(target, dist.join(name)).unwrap();
    fs::write(directory.path().join("beside.js.br"), "secret").unwrap();
    link(Path::new("../beside.txt"), "up.txt");
    link(&directory.path().join("beside.txt"), "absolute.txt");
    link(directory.path(), "out");
    link(Path::new("index.html"), "inside.html");
    link(Path::new("nowhere"), "dangling");
    // Only the compressed copy is a link that leads outside.
    fs::write(dist.join("half.js"), "plain").unwrap();
    link(Path::new("../beside.js.br"), "half.js.br");
    let client = client(&n5, &dist);
    for path in ["up.txt", "absolute.txt", "out/beside.txt", "out", "dangling"] {
        for method in ["GET", "HEAD"] {
            let reply = client.send(method, &format!("/viewer/{path}"), &[]).await;
            assert_eq!(reply.status.as_u16(), 404, "{method} {path}");
            assert!(!String::from_utf8_lossy(&reply.body).contains("secret"));
        }
    }
    assert_eq!(client.get("/viewer/inside.html").await.body.as_ref(), b"<!doctype html>");
    let half = client.get_with("/viewer/half.js", &[("accept-encoding", "br")]).await;
    assert_eq!((half.status.as_u16(), half.body.as_ref()), (200, b"plain".as_slice()));
    // A viewer whose index file is a link that leads outside is not served, and the error says so.
    fs::rename(dist.join("index.html"), directory.path().join("index.html")).unwrap();
    link(Path::new("../index.html"), "index.html");
    assert!(Viewer::open(&dist).unwrap_err().to_string().contains("not followed"));
}

#[tokio::test]
async fn special_files_are_not_opened() {
    let (n5, directory) = (N5::new(), built());
    let dist = directory.path().join("dist");
    let client = client(&n5, &dist);
    let pipe = dist.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let write = format!("echo written > '{}'", pipe.display());
    let mut writer = std::process::Command::new("sh").args(["-c", &write]).spawn().unwrap();
    // Gives the writer time to open the FIFO.
    std::thread::sleep(Duration::from_millis(100));
    // More requests than the disk pool has threads.
    for _ in 0..100 {
        let reply = tokio::time::timeout(Duration::from_secs(5), client.get("/viewer/pipe")).await;
        assert_eq!(reply.unwrap().status, 404);
    }
    // Gives the writer time to end, if the server has opened the FIFO.
    std::thread::sleep(Duration::from_millis(100));
    assert!(writer.try_wait().unwrap().is_none(), "the writer still waits");
    assert_eq!(fs::read_to_string(&pipe).unwrap(), "written\n");
    assert!(writer.wait().unwrap().success());
    let long = client.get(&format!("/viewer/{}", "a".repeat(5000))).await;
    assert_eq!(long.status, 404);
}
