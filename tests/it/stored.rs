//! The container as stored: bytes, directories, listings, headers.

use std::time::Duration;

use n5_server::container::Settings;
use n5_server::http::HttpOptions;

use crate::support::program::{self, Program};
use crate::support::stores::{self, Probe};
use crate::support::writer::N5;
use crate::support::{Client, let_files_settle, local, options, settings};

fn nested() -> N5 {
    let n5 = N5::new();
    n5.dataset("a/b", &[40, 40], &[10, 10], "gzip").fill(|p| p[0] != 2, |_| false);
    n5.dataset("one", &[40], &[10], "raw").fill(|p| p[0] != 2, |_| false);
    n5.file("one/2/attributes.json", "{}");
    n5.file("a/b/7/attributes.json", r#"{"a child":"of a dataset"}"#);
    n5.file("a/100%/x y/attributes.json", "{}");
    n5.file("slice/attributes.json", r#"{"hidden":true}"#);
    n5.file("a/.hidden/attributes.json", "{}");
    for junk in ["a/.DS_Store", "a/b/0/0.__lock", "a/b/0/1.partial", "a/b/0/.nfs0001", "a/b/0/01", "a/readme.txt"] {
        n5.file(junk, "junk");
    }
    n5
}

fn names(listing: &serde_json::Value) -> Vec<String> {
    let entries = listing["entries"].as_array().unwrap();
    entries.iter().map(|e| format!("{}:{}", e["name"].as_str().unwrap(), e["kind"].as_str().unwrap())).collect()
}

#[tokio::test]
async fn objects_are_sent_byte_for_byte_with_their_headers() {
    let n5 = nested();
    let client = Client::of(n5.root());
    for (path, media_type) in [("a/b/0/0", "application/octet-stream"), ("a/b/attributes.json", "application/json")] {
        let stored = std::fs::read(n5.root().join(path)).unwrap();
        for prefix in ["/", "/n5/"] {
            let (get, head) = (
                client.get(&format!("{prefix}{path}")).await,
                client.send("HEAD", &format!("{prefix}{path}"), &[]).await,
            );
            assert_eq!((get.status.as_u16(), &get.body[..]), (200, &stored[..]));
            assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
            for reply in [&get, &head] {
                assert_eq!(reply.header("content-type"), Some(media_type));
                assert_eq!(reply.header("content-length").unwrap(), stored.len().to_string());
                assert_eq!(
                    (reply.header("accept-ranges"), reply.header("accept-range")),
                    (Some("bytes"), Some("bytes"))
                );
                assert!(reply.header("content-encoding").is_none());
                assert!(reply.header("etag").unwrap().starts_with('"'));
                assert!(reply.header("last-modified").is_some());
                assert_eq!(reply.header("cache-control"), Some("no-cache"));
                assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
            }
            assert_eq!(get.header("etag"), head.header("etag"));
        }
    }
    let gzip = client.get_with("/a/b/attributes.json", &[("accept-encoding", "gzip, zstd, br")]).await;
    assert!(gzip.header("content-encoding").is_none());
}

#[tokio::test]
async fn only_n5_keys_are_served_and_anything_else_is_missing() {
    let n5 = nested();
    let client = Client::of(n5.root());
    for path in [
        "/a/.DS_Store",
        "/a/b/0/0.__lock",
        "/a/b/0/1.partial",
        "/a/b/0/.nfs0001",
        "/a/b/0/01",
        "/a/readme.txt",
        "/.zarray",
        "/zarr.json",
        "/info",
        "/manifest.ocdbt",
        "/a/b/2/0",
        "/a/b/0/99",
        "/a/attributes.json",
        "/nothing/",
        "/as/attributes.json",
        "/as/gzip/a/b/2/0",
        "/zarr2/nothing/.zgroup",
        "/zarr3/attributes.json",
        "/precomputed/info",
        "/viewer/",
        "/stats/a",
        "/healthz/x",
        "/a/b/0/0/",
        "/a/b/attributes.json/",
        "/info/nothing",
        "/slice/nothing",
        "/slice",
        "/slice/",
        "/attributes.json/0",
    ] {
        let reply = client.get(path).await;
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.body.is_empty() || ["not-found", "not-a-dataset"].contains(&reply.problem().as_str()), "{path}");
        assert!(reply.header("cache-control").is_some_and(|policy| !policy.contains("immutable")));
    }
}

#[tokio::test]
async fn directories_redirect_unless_they_are_in_a_blocks_place() {
    let n5 = nested();
    let client = Client::of(n5.root());
    for (path, location) in [
        ("/a", "a/"),
        ("/a/b?token=x", "b/?token=x"),
        ("/n5", "n5/"),
        ("/n5/a/b/0", "0/"),
        ("/a/100%25/x%20y", "x%20y/"),
        ("/n5/slice", "slice/"),
        // Not a block's position: the grid has one more axis, and 7 is beyond it.
        ("/a/b/7", "7/"),
    ] {
        for method in ["GET", "HEAD"] {
            let reply = client.send(method, path, &[]).await;
            assert_eq!((reply.status.as_u16(), reply.header("location")), (301, Some(location)), "{method} {path}");
        }
    }
    let absent = client.get("/one/2").await;
    assert_eq!(absent.status, 404, "a directory where a block of a one-dimensional dataset would be");
    assert_eq!(client.get("/one/2/").await.status, 200);
    assert_eq!(client.get("/one/2/attributes.json").await.status, 200);
}

#[tokio::test]
async fn listings_name_groups_datasets_and_attributes() {
    let n5 = nested();
    let client = Client::of(n5.root());
    let root = client.get("/?format=json").await.json();
    assert_eq!(names(&root), ["a:group", "attributes.json:file", "one:dataset", "slice:group"]);
    assert_eq!((root["path"].as_str(), root["next"].is_null()), (Some(""), true));
    let a = client.get_with("/a/", &[("accept", "application/json")]).await;
    assert_eq!(a.header("vary"), Some("accept"));
    assert_eq!(names(&a.json()), [".hidden:group", "100%:group", "b:dataset"]);
    assert_eq!(names(&client.get("/a/b/?format=json").await.json()), ["7:group", "attributes.json:file"]);
    assert_eq!(names(&client.get("/a/b/0/?format=json").await.json()), [] as [&str; 0]);
    let blocks = client.get("/a/b/?format=json&blocks=1").await.json();
    assert_eq!(names(&blocks), ["0:group", "1:group", "3:group", "7:group", "attributes.json:file"]);
    let blocks = client.get("/a/b/0/?format=json&blocks=1").await.json();
    assert_eq!(names(&blocks), ["0:file", "1:file", "2:file", "3:file"]);
    assert_eq!(client.get_with("/a/", &[("accept", "image/png")]).await.problem(), "not-acceptable");
}

#[tokio::test]
async fn the_page_has_one_entry_per_line_and_no_other_links() {
    let n5 = nested();
    n5.file("<&\"'>/attributes.json", "{}");
    let client = Client::of(n5.root());
    for accept in ["*/*", "text/html", "text/html,application/xhtml+xml,*/*;q=0.8"] {
        let reply = client.get_with("/a/", &[("accept", accept)]).await;
        assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"));
        let page = String::from_utf8(reply.body.to_vec()).unwrap();
        let links: Vec<&str> = page.lines().filter(|line| line.contains("href=")).collect();
        let (head, links): (Vec<&str>, Vec<&str>) = links.into_iter().partition(|line| line.starts_with("<link "));
        let (footer, links): (Vec<&str>, Vec<&str>) = links.into_iter().partition(|line| line.starts_with("<footer>"));
        assert_eq!(footer.len(), 1);
        // Java and fsspec look for a quote after `href=`. Neuroglancer resolves the address, which is of another host.
        assert!(!footer[0].contains("href=\"") && footer[0].matches("<a ").count() == 1, "{footer:?}");
        assert!(footer[0].contains("href=https:&#47;&#47;"), "{footer:?}");
        for link in head {
            let (_, rest) = link.split_once("href=\"../viewer/page/").unwrap();
            let (_, rest) = rest.split_once('"').unwrap();
            assert!(rest.starts_with(" rel="), "parsers take what ends in href=\"…\"> for an entry: {link}");
        }
        assert_eq!(
            links,
            [
                "<li><a href=\".hidden/\">.hidden/</a></li>",
                "<li><a href=\"100%25/\">100%/</a></li>",
                "<li><a href=\"b/\">b/</a></li>"
            ]
        );
        assert!(!page.contains("://"), "fsspec takes every absolute URL for an entry");
    }
    let page = String::from_utf8(client.get("/").await.body.to_vec()).unwrap();
    assert!(page.contains("<a href=\"%3C%26%22%27%3E/\">&lt;&amp;\"'>/</a>"), "{page}");
}

#[tokio::test]
async fn the_title_is_the_path_by_which_gdal_recognizes_a_listing() {
    let n5 = nested();
    n5.file("a/b c é&<>/attributes.json", "{}");
    let title = async |client: &Client, path: &str, headers: &[(&str, &str)]| {
        let page = String::from_utf8(client.get_with(path, headers).await.body.to_vec()).unwrap();
        let line = page.lines().find(|line| line.contains("<title>")).unwrap().to_owned();
        line.strip_prefix("<title>").and_then(|line| line.strip_suffix("</title>")).unwrap().to_owned()
    };
    let client = Client::of(n5.root());
    for (path, expected) in [
        ("/", "Index of /"),
        ("/a/", "Index of /a"),
        ("/n5/a/b/?blocks=1", "Index of /n5/a/b"),
        ("/zarr3/a/", "Index of /zarr3/a"),
        ("/a/b%20c%20%C3%A9&%3C%3E/", "Index of /a/b c é&amp;&lt;>"),
    ] {
        assert_eq!(title(&client, path, &[]).await, expected);
    }
    // Clients of a proxy see its prefix. Only proxies that are trusted may name one.
    let prefixed = [("x-forwarded-prefix", "/data/")];
    assert_eq!(title(&client, "/a/", &prefixed).await, "Index of /data/a");
    let client = Client::new(local(n5.root()), settings(), HttpOptions { base_path: "/x/y".to_owned(), ..options() });
    assert_eq!(title(&client, "/x/y/a/", &[]).await, "Index of /x/y/a");
}

#[tokio::test]
async fn long_listings_are_paginated() {
    let n5 = N5::new();
    for n in 0..10_050 {
        std::fs::create_dir(n5.root().join(format!("g{n:05}"))).unwrap();
    }
    let client = Client::of(n5.root());
    let first = client.get("/?format=json").await;
    assert_eq!(first.json()["entries"].as_array().unwrap().len(), 10_000);
    let link = first.header("link").unwrap().to_owned();
    assert_eq!(link, "<?after=g09998&format=json>; rel=\"next\"");
    let with_token = client.get("/?format=json&token=a%2Bb").await;
    assert_eq!(with_token.header("link"), Some("<?after=g09998&format=json&token=a%2Bb>; rel=\"next\""));
    assert_eq!(first.json()["next"], "g09998");
    let second = client.get("/?after=g09998&format=json").await;
    assert_eq!(second.json()["entries"].as_array().unwrap().len(), 51);
    assert!(second.header("link").is_none());
}

#[tokio::test]
async fn a_page_is_shorter_if_names_are_long() {
    let n5 = N5::new();
    for n in 0..2200 {
        std::fs::create_dir(n5.root().join(format!("{n:0>250}g"))).unwrap();
    }
    let client = Client::of(n5.root());
    let (mut after, mut seen) = (String::new(), 0);
    let mut pages = Vec::new();
    loop {
        let page = client.get(&format!("/?format=json&after={after}")).await.json();
        pages.push(page["entries"].as_array().unwrap().len());
        seen += pages.last().unwrap();
        let Some(next) = page["next"].as_str() else { break };
        after = next.to_owned();
    }
    assert_eq!((pages[0], seen), ((512 << 10) / 251, 2201), "every directory and attributes.json, once");
}

#[tokio::test]
async fn a_dataset_of_many_blocks_is_listed_in_one_scan() {
    let n5 = N5::new();
    n5.dataset("d", &[50_000], &[1], "raw");
    for n in 0..50_000 {
        std::fs::write(n5.root().join(format!("d/{n}")), "").unwrap();
    }
    n5.file("d/50000/attributes.json", "{}");
    std::fs::create_dir(n5.root().join("d/50001")).unwrap();
    let probe = Probe::new(local(n5.root()));
    let client = Client::new(std::sync::Arc::<Probe>::clone(&probe), settings(), options());
    let page = client.get("/d/?format=json").await.json();
    assert_eq!(names(&page), ["50000:group", "attributes.json:file"]);
    assert_eq!((page["next"].is_null(), probe.lists()), (true, 1));
    let (mut after, mut all) = (String::new(), Vec::new());
    loop {
        let page = client.get(&format!("/d/?format=json&blocks=1&after={after}")).await.json();
        all.extend(names(&page));
        let Some(next) = page["next"].as_str() else { break };
        after = next.to_owned();
    }
    assert_eq!((all.len(), probe.lists()), (50_003, 7));
    assert!(all.iter().any(|name| name == "50001:group"));
}

#[tokio::test]
async fn listings_and_info_are_never_immutable_and_wait_for_memory() {
    let n5 = nested();
    let settings = Settings { budget_wait: Duration::from_millis(20), ..settings() };
    let client = stores::immutable(local(n5.root()), settings);
    let container = client.container.clone();
    for (path, policy) in
        [("/a/", "max-age=60"), ("/info/a/b", "max-age=60"), ("/info/a", "max-age=60"), ("/a/b/0/0", "immutable")]
    {
        assert_eq!(client.get(path).await.header("cache-control"), Some(policy), "{path}");
    }
    let all = container.reserve_memory(16 << 20).await.unwrap();
    for path in ["/a/", "/info/a/b"] {
        assert_eq!(client.get(path).await.problem(), "overloaded", "{path}");
    }
    drop(all);
    let sent = client.get("/a/").await;
    assert!(container.reserve_memory(16 << 20).await.is_err(), "the page holds its permit until it is sent");
    drop(sent);
    assert!(container.reserve_memory(16 << 20).await.is_ok());
}

#[tokio::test]
async fn too_large_attributes_count_as_missing_for_info() {
    let n5 = N5::new();
    n5.dataset("g/s0", &[40], &[10], "raw");
    n5.dataset("g/s1", &[20], &[10], "raw");
    n5.file("g/attributes.json", r#"{"scales":[[1],[2]]}"#);
    let long = |n: usize| format!(r#"{{"x":"{}"}}"#, "x".repeat(n));
    n5.file("big/attributes.json", long(2000));
    n5.dataset("big/d", &[40], &[10], "raw");
    let client = Client::new(local(n5.root()), Settings { max_attributes_bytes: 1000, ..settings() }, options());
    let problems = |info: &serde_json::Value| info["problems"].to_string();
    let info = client.get("/info/g").await.json();
    assert!(info["kind"] == "multiscale" && !problems(&info).contains("limits.attributes"), "{info}");
    // Attributes of an ancestor, then of the group itself.
    let info = client.get("/info/big/d").await.json();
    assert!(info["kind"] == "dataset" && problems(&info).contains("big/attributes.json has 2008 bytes"), "{info}");
    let info = client.get("/info/big").await.json();
    assert_eq!((&info["kind"], &info["attributes"]), (&serde_json::json!("group"), &serde_json::json!({})));
    assert!(problems(&info).contains("limits.attributes can be raised"), "{info}");
    // The attributes of a child are too long.
    n5.file("g/s1/attributes.json", long(2000));
    let info = client.get("/info/g").await.json();
    assert!(problems(&info).contains("g/s1/attributes.json has 2008 bytes"), "{info}");
    // An empty file is broken, not missing.
    n5.file("empty/attributes.json", "");
    assert!(problems(&client.get("/info/empty").await.json()).contains("not JSON"));
}

#[tokio::test]
async fn objects_support_ranges_and_preconditions() {
    let n5 = nested();
    let client = Client::of(n5.root());
    let whole = client.get("/a/b/0/0").await;
    let (etag, len) = (whole.header("etag").unwrap().to_owned(), whole.body.len());
    let part = client.get_with("/a/b/0/0", &[("range", "bytes=2-5")]).await;
    assert_eq!((part.status.as_u16(), &part.body[..]), (206, &whole.body[2..6]));
    assert_eq!(part.header("content-range").unwrap(), format!("bytes 2-5/{len}"));
    assert_eq!(part.header("content-length"), Some("4"));
    let suffix = client.get_with("/a/b/0/0", &[("range", "bytes=-3")]).await;
    assert_eq!(&suffix.body[..], &whole.body[len - 3..]);
    let beyond = client.get_with("/a/b/0/0", &[("range", &format!("bytes={len}-"))]).await;
    assert_eq!((beyond.status.as_u16(), beyond.header("content-range").unwrap()), (416, &*format!("bytes */{len}")));
    let known = client.get_with("/a/b/0/0", &[("if-none-match", &etag)]).await;
    assert_eq!((known.status.as_u16(), known.body.len(), known.header("etag")), (304, 0, Some(&*etag)));
    assert_eq!(client.get_with("/a/b/0/0", &[("if-match", "\"other\"")]).await.problem(), "precondition-failed");
}

#[tokio::test]
async fn a_base_path_is_part_of_every_path() {
    let n5 = nested();
    let client = Client::new(local(n5.root()), settings(), HttpOptions { base_path: "/x/y".to_owned(), ..options() });
    assert_eq!(client.get("/x/y/attributes.json").await.status, 200);
    assert_eq!(client.get("/x/y").await.header("location"), Some("y/"));
    assert_eq!(client.get("/x/y/slice/one?size=1").await.status, 200);
    for outside in ["/attributes.json", "/x/attributes.json", "/", "/x"] {
        assert_eq!(client.get(outside).await.status, 404, "{outside}");
    }
    for operation in ["/healthz", "/x/y/healthz", "/metrics", "/version", "/openapi.yaml", "/readyz"] {
        assert_eq!(client.get(operation).await.status, 200, "{operation}");
    }
    let urls = client.get("/x/y/info/a/b").await.json()["urls"].clone();
    assert_eq!(urls["slice"], "http://test/x/y/slice/a/b");
}

#[tokio::test]
async fn every_response_has_cors_headers_and_a_request_id() {
    let n5 = nested();
    let client = Client::new(local(n5.root()), settings(), HttpOptions { base_path: String::new(), ..options() });
    for (method, path, status) in [
        ("GET", "/a/", 200),
        ("GET", "/a", 301),
        ("GET", "/%zz", 400),
        ("GET", "/nothing", 404),
        ("POST", "/a/", 405),
        ("DELETE", "/slice/one", 405),
        ("GET", "/slice/one?start=-1", 400),
        ("GET", "/slice/one?format=tif", 400),
    ] {
        let reply = client.send(method, path, &[("x-request-id", "mine-1"), ("origin", "http://viewer")]).await;
        assert_eq!(reply.status.as_u16(), status, "{method} {path}");
        assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
        assert!(reply.header("access-control-expose-headers").unwrap().contains("n5-shape"));
        assert_eq!(reply.header("x-request-id"), Some("mine-1"));
        assert_eq!(reply.header("cross-origin-resource-policy"), Some("cross-origin"));
        assert_eq!(reply.header("timing-allow-origin"), Some("*"));
    }
    assert_eq!(client.send("PUT", "/a/", &[]).await.header("allow"), Some("GET, HEAD, OPTIONS"));
    let odd = client.get_with("/", &[("x-request-id", "a b<script>")]).await;
    assert_ne!(odd.header("x-request-id"), Some("a b<script>"));
}

#[tokio::test]
async fn a_missing_key_gets_no_body_unless_requested() {
    let n5 = nested();
    let client = Client::of(n5.root());
    for path in [
        "/nothing",
        "/nothing/attributes.json",
        "/zarr.json",
        "/a/b/9/9",
        "/n5/a/b/9/9",
        "/n5/a/b/.zarray",
        "/as/gzip/a/b/9/9",
        "/as/nothing/attributes.json",
        "/zarr2/nothing/.zarray",
        "/zarr2/a/b/9.9",
        "/zarr3/nothing/zarr.json",
        "/zarr3/a/b/c/9/9",
        "/precomputed/nothing/info",
        "/precomputed/a/b/raw/0-1_0-1_0-1",
        "/info",
    ] {
        for method in ["GET", "HEAD"] {
            let reply = client.send(method, path, &[("origin", "http://viewer")]).await;
            assert_eq!((reply.status.as_u16(), reply.body.len()), (404, 0), "{method} {path}");
            assert_eq!(reply.header("content-length"), Some("0"), "{method} {path}");
            assert_eq!(reply.header("content-type"), None, "{method} {path}");
            assert_eq!(reply.header("access-control-allow-origin"), Some("*"), "{method} {path}");
            assert!(reply.header("cache-control").is_some() && reply.header("x-request-id").is_some(), "{path}");
        }
        let requested = client.get_with(path, &[("accept", "text/plain, Application/Problem+JSON;q=0.5")]).await;
        assert_eq!(requested.status, 404);
        assert!(["not-found", "not-a-dataset"].contains(&requested.problem().as_str()), "{path}");
        assert!(requested.headers.get_all("vary").iter().any(|name| name == "accept"), "{path}");
    }
    for path in ["/nothing/", "/n5/nothing/", "/zarr3/nothing/", "/slice/nothing", "/info/nothing", "/stats/nothing"] {
        assert_eq!(client.get(path).await.problem(), "not-found", "{path}");
    }
}

#[tokio::test]
async fn invalid_listing_parameters_are_refused() {
    let n5 = nested();
    let client = Client::of(n5.root());
    for (query, parameter) in [
        ("format=xml", "format"),
        ("format=json&format=xml", "format"),
        ("format=%ff", "format"),
        ("format", "format"),
        ("f%6frmat=xml", "format"),
        ("blocks=yes", "blocks"),
        ("blocks=", "blocks"),
        ("after=%ff", "after"),
    ] {
        for path in ["/", "/a/", "/n5/a/", "/zarr3/a/"] {
            let reply = client.get(&format!("{path}?{query}")).await;
            assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (400, "invalid-parameter"), "{path}?{query}");
            assert_eq!(reply.json()["parameter"], parameter);
            let known = reply.json()["known"].clone();
            assert_eq!(known.is_array(), !query.ends_with("=%ff"), "{query}: {known}");
        }
    }
    for query in
        ["format=html", "format=json", "blocks=0", "blocks=1", "after=", "after=x%EF%BF%BD", "v=%ff&formats=xml"]
    {
        assert_eq!(client.get(&format!("/a/?{query}")).await.status, 200, "{query}");
    }
}

#[tokio::test]
async fn preflight_is_answered_without_a_body() {
    let n5 = nested();
    let client = Client::of(n5.root());
    let preflight = [
        ("origin", "http://viewer"),
        ("access-control-request-method", "GET"),
        ("access-control-request-headers", "range"),
        ("access-control-request-private-network", "true"),
    ];
    let reply = client.send("OPTIONS", "/a/b/0/0", &preflight).await;
    assert_eq!((reply.status.as_u16(), reply.body.len()), (204, 0));
    assert_eq!(reply.header("access-control-allow-methods"), Some("GET,HEAD,OPTIONS"));
    let allowed = reply.header("access-control-allow-headers").unwrap();
    for header in [
        "range",
        "if-none-match",
        "if-match",
        "if-modified-since",
        "if-range",
        "cache-control",
        "authorization",
        "x-request-id",
    ] {
        assert!(allowed.split(',').any(|name| name.trim() == header), "{header}");
    }
    assert_eq!(reply.header("access-control-max-age"), Some("86400"));
    assert_eq!(reply.header("access-control-allow-private-network"), Some("true"));
    let closed = Client::new(local(n5.root()), settings(), HttpOptions { cors_private_network: false, ..options() });
    let reply = closed.send("OPTIONS", "/a/b/0/0", &preflight).await;
    assert_eq!((reply.status.as_u16(), reply.header("access-control-allow-origin")), (204, Some("*")));
    assert_eq!(reply.header("access-control-allow-private-network"), None);
}

#[tokio::test]
async fn only_listed_origins_are_allowed() {
    let n5 = nested();
    let origins = vec!["http://good".to_owned(), "http://fine:81".to_owned()];
    let client = Client::new(local(n5.root()), settings(), HttpOptions { cors_origins: origins, ..options() });
    let good = client.get_with("/nothing", &[("origin", "http://good")]).await;
    assert_eq!(good.header("access-control-allow-origin"), Some("http://good"));
    let evil = client.get_with("/nothing", &[("origin", "http://evil")]).await;
    assert_eq!(evil.header("access-control-allow-origin"), None);
    for reply in [good, evil] {
        assert!(reply.headers.get_all("vary").iter().any(|v| v.to_str().unwrap().eq_ignore_ascii_case("origin")));
    }
}

#[test]
fn replacing_a_file_with_equal_length_and_mtime_changes_its_inode_tag() {
    let n5 = nested();
    let path = n5.root().join("one/0");
    let modified = std::time::SystemTime::now() - Duration::from_secs(3600);
    // Replaces the file like `rsync -t`.
    let replace = |bytes: &[u8]| {
        let new = n5.root().join("one/.0.new");
        std::fs::write(&new, bytes).unwrap();
        std::fs::File::options().write(true).open(&new).unwrap().set_modified(modified).unwrap();
        std::fs::rename(new, &path).unwrap();
    };
    let before = std::fs::read(&path).unwrap();
    let after: Vec<u8> = before.iter().enumerate().map(|(at, byte)| if at < 12 { *byte } else { byte ^ 1 }).collect();
    let root = n5.root().display();
    let program = Program::start(&format!(
        "[[containers]]\nname = \"m\"\nroot = \"{root}\"\n\
         [[containers]]\nname = \"i\"\nroot = \"{root}\"\nentity_tag = \"inode\"\n"
    ));
    let mut connection = program.connect();
    // The fast path has a thread cache. An unusual header sends the request to hyper.
    for (path, lines) in [("one/0", ""), ("one/0", "If-Unmodified-Since: x\r\n"), ("slice/m", ""), ("zarr2/m", "")] {
        let at = |container: &str| match path {
            "slice/m" => format!("/slice/{container}/one?size=8"),
            "zarr2/m" => format!("/zarr2/{container}/one/0"),
            path => format!("/{container}/{path}"),
        };
        replace(&before);
        let_files_settle();
        let mut get = |container: &str, more: &str| connection.get(&at(container), &format!("{lines}{more}")).unwrap();
        let first: Vec<_> = ["m", "i"].map(|container| (0..3).map(|_| get(container, "")).last().unwrap()).into();
        assert!(first.iter().all(|reply| reply.status == 200), "{first:?}");
        let known = |reply: &program::ProgramResponse| reply.header("etag").unwrap().to_owned();
        assert_ne!(known(&first[0]), known(&first[1]));
        for (reply, container) in first.iter().zip(["m", "i"]) {
            let again = get(container, &format!("If-None-Match: {}\r\n", known(reply)));
            assert_eq!(again.status, 304, "{path} of {container}");
        }
        // Dates in HTTP have a resolution of one second.
        std::thread::sleep(Duration::from_millis(1100));
        replace(&after);
        let_files_settle();
        for (reply, container) in first.iter().zip(["m", "i"]) {
            let is_told = container == "i";
            let etag = known(reply);
            let conditional = get(container, &format!("If-None-Match: {etag}\r\n"));
            assert_eq!(conditional.status == 304, !is_told, "{path} of {container}: {conditional:?}");
            // A request without a precondition gets the current content.
            let whole = get(container, "");
            assert_eq!(whole.status, 200);
            assert_ne!(whole.body, reply.body, "{path} of {container} is stale");
            assert_eq!(known(&whole) == etag, !is_told, "{path} of {container}");
            if path == "one/0" {
                let part = get(container, &format!("If-Range: {etag}\r\nRange: bytes=0-3\r\n"));
                assert_eq!(part.status == 206, !is_told, "{path} of {container}");
                let date = reply.header("last-modified").unwrap();
                let dated = get(container, &format!("If-Range: {date}\r\nRange: bytes=0-3\r\n"));
                assert_eq!(dated.status == 206, !is_told, "{path} of {container}");
                let since = get(container, &format!("If-Modified-Since: {date}\r\n"));
                assert_eq!(since.status == 304, !is_told, "{path} of {container}");
            }
        }
    }
}

#[test]
fn a_reload_changes_entity_tags() {
    let n5 = nested();
    let config = |tag: &str| format!("[[containers]]\nroot = \"{}\"\nentity_tag = \"{tag}\"\n", n5.root().display());
    let program = Program::start(&config("mtime"));
    let_files_settle();
    let mut connection = program.connect();
    let mut etag = || connection.get("/one/0", "").unwrap().header("etag").unwrap().to_owned();
    let (short, again) = (etag(), etag());
    assert_eq!(short, again);
    program.reload(&config("inode"));
    let long = etag();
    assert!(long.len() > short.len() && long.starts_with(short.trim_end_matches('"')), "{short} {long}");
    program.reload(&config("mtime"));
    assert_eq!(etag(), short);
}
