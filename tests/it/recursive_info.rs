//! `/info/{path}?recursive=1`: everything below a directory in pages, and Zarr stores among the groups.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, Request};
use http_body_util::BodyExt;
use n5_server::container::Settings;
use n5_server::http::{App, router};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::writer::N5;
use crate::support::{Client, guarded, local, options, settings};

/// Writes a container with a pyramid, datasets, groups and broken attributes.
fn container() -> N5 {
    let n5 = N5::new();
    n5.file(
        "em/attributes.json",
        r#"{"name":"Brain","scales":[[1,1],[2,2]],"pixelResolution":{"unit":"nm","dimensions":[4,8]}}"#,
    );
    n5.dataset("em/s0", &[20, 10], &[8, 8], "gzip").fill(|_| true, |_| false);
    n5.dataset("em/s1", &[10, 5], &[8, 8], "gzip").fill(|_| true, |_| false);
    n5.dataset("a/labels/ids", &[3], &[2], "raw").fill(|_| true, |_| false);
    n5.file("a/b/c/attributes.json", "{}");
    n5.file("broken/attributes.json", "{'a':1}");
    n5.file(
        "unusable/attributes.json",
        r#"{"dimensions":[4],"blockSize":[0],"dataType":"uint8","compression":{"type":"raw"}}"#,
    );
    n5
}

fn paths(page: &Value) -> Vec<String> {
    page["entries"].as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect()
}

/// Requests all pages and returns their entries.
async fn all_entries(client: &Client, path: &str, query: &str) -> Vec<Value> {
    let mut entries = Vec::new();
    let mut after = String::new();
    for _ in 0..10_000 {
        let page = client.get(&format!("{path}?recursive=1{query}{after}")).await;
        assert_eq!(page.status, 200, "{page:?}");
        let next = page.json()["next"].clone();
        let link = page.header("link").map(str::to_owned);
        entries.extend(page.json()["entries"].as_array().unwrap().iter().cloned());
        let Some(next) = next.as_str() else {
            assert_eq!(link, None);
            return entries;
        };
        let encoded = next.replace('/', "%2F");
        assert!(link.unwrap().starts_with(&format!("<?recursive=1&after={encoded}")), "{next}");
        after = format!("&after={encoded}");
    }
    panic!("the pages do not end");
}

#[tokio::test]
async fn everything_below_a_directory_is_listed_depth_first_in_byte_order() {
    let n5 = container();
    let client = Client::of(n5.root());
    let page = client.get("/info/?recursive=1").await;
    assert_eq!(page.header("content-type"), Some("application/json"));
    let page = page.json();
    let expected = ["a", "a/b", "a/b/c", "a/labels", "a/labels/ids", "broken", "em", "unusable"];
    assert_eq!(paths(&page), expected);
    assert_eq!((&page["path"], &page["next"]), (&json!(""), &Value::Null));
    assert_eq!(paths(&client.get("/info/a?recursive=1").await.json()), &expected[1..5]);
    assert_eq!(paths(&client.get("/info/em?recursive=1").await.json()), [""; 0]);
    let with_levels = client.get("/info/em?recursive=1&levels=1").await.json();
    assert_eq!(paths(&with_levels), ["em/s0", "em/s1"]);
    assert_eq!(client.get("/info/none?recursive=1").await.status, 404);
}

#[tokio::test]
async fn an_entry_has_the_members_that_apply() {
    let n5 = container();
    let client = Client::of(n5.root());
    let page = client.get("/info/?recursive=1").await.json();
    let entry =
        |path: &str| page["entries"].as_array().unwrap().iter().find(|entry| entry["path"] == path).unwrap().clone();
    let dataset = json!({"path": "a/labels/ids", "kind": "dataset", "volume": "segmentation", "dimensions": [3],
        "data_type": "uint16", "compression": {"type": "raw"}, "size_bytes": "6"});
    assert_eq!(entry("a/labels/ids"), dataset);
    let pyramid = json!({"path": "em", "kind": "multiscale", "title": "Brain", "volume": "image",
        "dimensions": [20, 10], "data_type": "uint16", "compression": {"level": -1, "type": "gzip", "useZlib": false},
        "resolution": [4.0, 8.0], "units": ["nm", "nm"], "levels": 2, "size_bytes": "400"});
    assert_eq!(entry("em"), pyramid);
    assert_eq!(entry("a"), json!({"path": "a", "kind": "group", "children": true}));
    assert!(entry("broken")["error"].as_str().unwrap().starts_with("attributes.json is not JSON"));
    assert!(entry("unusable")["error"].as_str().unwrap().contains("blockSize[0] is 0"));
}

#[tokio::test]
async fn pages_of_any_size_have_the_same_entries() {
    let n5 = container();
    let client = Client::of(n5.root());
    for query in ["", "&levels=1", "&depth=1", "&depth=2"] {
        let whole = all_entries(&client, "/info/", query).await;
        for limit in [1, 2, 3, 5] {
            assert_eq!(
                all_entries(&client, "/info/", &format!("{query}&limit={limit}")).await,
                whole,
                "{query} {limit}"
            );
        }
        let below = all_entries(&client, "/info/a", &format!("{query}&limit=1")).await;
        assert_eq!(below, all_entries(&client, "/info/a", query).await);
    }
}

#[tokio::test]
async fn depth_limits_the_names_in_the_path_of_an_entry() {
    let n5 = container();
    let client = Client::of(n5.root());
    let page = client.get("/info/?recursive=1&depth=1").await.json();
    assert_eq!(paths(&page), ["a", "broken", "em", "unusable"]);
    assert_eq!(page["entries"][0]["children"], true);
    let page = client.get("/info/a?recursive=1&depth=1").await.json();
    assert_eq!(paths(&page), ["a/b", "a/labels"]);
}

#[tokio::test]
async fn a_page_begins_after_a_path_that_no_longer_exists() {
    let n5 = container();
    let client = Client::of(n5.root());
    let after = async |path: &str| paths(&client.get(&format!("/info/?recursive=1&after={path}")).await.json());
    assert_eq!(after("a%2Fb%2Fzzz").await, ["a/labels", "a/labels/ids", "broken", "em", "unusable"]);
    assert_eq!(after("a%2Fc").await, ["a/labels", "a/labels/ids", "broken", "em", "unusable"]);
    assert_eq!(after("em%2Fs0").await, ["unusable"]);
    assert_eq!(after("zzz").await, [""; 0]);
}

#[tokio::test]
async fn invalid_parameters_are_refused_with_the_reason() {
    let n5 = container();
    let client = Client::of(n5.root());
    for (query, reason) in [
        ("recursive=true", "recursive is \"true\"; known: 0, 1"),
        ("recursive=1&limit=0", "limit is \"0\"; give a whole number from 1 to 10000"),
        ("recursive=1&depth=x", "depth is \"x\"; give a whole number from 1 to 256"),
        ("recursive=1&after=..", "after is \"..\""),
        ("recursive=1&after=a", "which is not below \"a\""),
        ("recursive=1&levels=", "levels is \"\""),
        ("recursive=1&blocks=1", "unknown parameter \"blocks\""),
    ] {
        let reply = client.get(&format!("/info/a?{query}")).await;
        assert_eq!((reply.status.as_u16(), reply.problem()), (400, "invalid-parameter".to_owned()), "{query}");
        let detail = reply.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(reason), "{query}: {detail}");
    }
    // As before, /info itself ignores parameters.
    assert_eq!(client.get("/info/a?limit=0&recursive=0").await.json()["kind"], "group");
}

#[tokio::test]
async fn blocks_are_no_groups_even_if_the_attributes_around_them_are_broken() {
    let n5 = container();
    n5.dataset("broken/x", &[9, 9], &[2, 2], "raw");
    n5.file("broken/0/0/0", "block");
    n5.file("unusable/0/0", "block");
    n5.file("7/8/attributes.json", "{}");
    let client = Client::of(n5.root());
    let page = client.get("/info/?recursive=1").await.json();
    let found: BTreeSet<String> = paths(&page).into_iter().collect();
    assert!(found.contains("broken/x") && found.contains("7/8"), "{found:?}");
    assert!(
        !found.iter().any(|path| path.starts_with("broken/0") || path.starts_with("unusable/") || path.contains("s0"))
    );
}

#[tokio::test]
async fn a_listing_around_broken_attributes_has_no_blocks_and_info_has_the_reason() {
    let n5 = container();
    for directory in ["broken/0/0", "broken/10/0", "unusable/0"] {
        n5.file(&format!("{directory}/0"), "block");
    }
    n5.file("broken/1/attributes.json", "{}");
    n5.file("broken/name/0/1", "no block");
    let client = Client::of(n5.root());
    let listed = async |path: &str| {
        let page = client.get(&format!("/{path}format=json")).await.json();
        let names = page["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(listed("broken/?").await, ["1", "attributes.json", "name"], "1 has attributes of its own");
    assert_eq!(listed("broken/0/?").await, [""; 0]);
    assert_eq!(listed("broken/name/?").await, ["0"], "a group of that name is no part of a grid");
    assert_eq!(listed("unusable/?").await, ["attributes.json"]);
    assert_eq!(listed("broken/?blocks=1&").await, ["0", "1", "10", "attributes.json", "name"]);
    let entries = all_entries(&client, "/info/", "&levels=1").await;
    for (path, reason) in [("broken", "attributes.json is not JSON: "), ("unusable", "blockSize[0] is 0"), ("em", "")] {
        let info = client.get(&format!("/info/{path}")).await.json();
        let entry = entries.iter().find(|entry| entry["path"] == path).unwrap();
        assert_eq!(info["error"], entry["error"], "{path}");
        assert!(info["error"].as_str().unwrap_or_default().contains(reason), "{path}: {info}");
        assert!(info["error"].is_null() || info["problems"][0] == info["error"], "{path}: {info}");
    }
}

#[tokio::test]
async fn datasets_of_each_container_in_a_plain_directory_are_judged_by_its_version() {
    let n5 = N5::new();
    n5.file("attributes.json", "{}");
    n5.dataset("a.n5/data", &[9, 9], &[2, 2], "raw");
    n5.file("a.n5/attributes.json", r#"{"n5":"2.0.0"}"#);
    n5.dataset("b.n5/data", &[9, 9], &[2, 2], "raw");
    let client = Client::of(n5.root());
    for (path, is_readable) in [("a.n5/data", true), ("b.n5/data", false)] {
        let info = client.get(&format!("/info/{path}")).await.json();
        assert_eq!(info["readable"]["z5"], is_readable, "{info}");
    }
}

#[tokio::test]
async fn links_that_lead_upwards_are_not_followed() {
    let n5 = container();
    symlink("../..", n5.root().join("a/b/up")).unwrap();
    symlink(".", n5.root().join("a/b/here")).unwrap();
    symlink("../em", n5.root().join("a/link")).unwrap();
    symlink("/etc", n5.root().join("a/outside")).unwrap();
    let client = Client::of(n5.root());
    for limit in [1, 1000] {
        let entries = all_entries(&client, "/info/a", &format!("&limit={limit}")).await;
        assert_eq!(paths(&json!({ "entries": entries })), ["a/b", "a/b/c", "a/labels", "a/labels/ids", "a/link"]);
    }
}

/// Sends a request without a token to `app`.
async fn ask(app: &Arc<App>, path: &str) -> (HeaderMap, Value) {
    let request = Request::get(path).header("host", "test").body(Body::empty()).unwrap();
    let response = router(Arc::clone(app)).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.headers, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn what_the_caller_may_not_see_is_missing() {
    let (em, seg) = (container(), container());
    let app = guarded(&em, &seg, &["/em/a/labels = alice", "/seg = alice"]);
    let (headers, page) = ask(&app, "/info/em?recursive=1").await;
    assert!(headers["cache-control"].to_str().unwrap().contains("private"));
    assert_eq!(paths(&page), ["em/a", "em/a/b", "em/a/b/c", "em/broken", "em/em", "em/unusable"]);
    let (headers, page) = ask(&app, "/info/?recursive=1").await;
    assert!(headers["cache-control"].to_str().unwrap().contains("private"));
    let found = paths(&page);
    assert_eq!((found.len(), found[0].as_str()), (7, "em"));
    assert!(found.iter().all(|path| !path.contains("labels") && !path.starts_with("seg")), "{found:?}");
}

#[tokio::test]
async fn the_common_root_lists_all_containers() {
    let (one, two) = (container(), N5::new());
    two.dataset("x", &[4], &[4], "raw");
    let stores = vec![("two", local(two.root())), ("one", local(one.root()))];
    let client = Client::of_several(stores, settings(), options());
    let whole = all_entries(&client, "/info/", "").await;
    let found = paths(&json!({ "entries": whole }));
    assert_eq!((found[0].as_str(), &found[1..3]), ("one", &["one/a".to_owned(), "one/a/b".to_owned()][..]));
    assert_eq!(found[found.len() - 2..], ["two".to_owned(), "two/x".to_owned()]);
    assert_eq!((&whole[0]["container"], &whole[0]["kind"]), (&json!(true), &json!("group")));
    for limit in [1, 2, 9] {
        assert_eq!(all_entries(&client, "/info/", &format!("&limit={limit}")).await, whole);
    }
    let containers = client.get("/info/?recursive=1&depth=1").await.json();
    assert_eq!(paths(&containers), ["one", "two"]);
}

#[tokio::test]
async fn containers_in_a_plain_directory_are_marked() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["a.n5", "b", "c"] {
        fs::create_dir_all(directory.path().join(name).join("inner.n5")).unwrap();
    }
    fs::write(directory.path().join("b/attributes.json"), r#"{"n5":"4.0.0","title":"B"}"#).unwrap();
    fs::write(directory.path().join("b/inner.n5/attributes.json"), r#"{"n5":"4.0.0"}"#).unwrap();
    let client = Client::of(directory.path());
    let page = client.get("/info/?recursive=1").await.json();
    let marked = |entry: &&Value| entry["container"] == true;
    let entries: Vec<Value> = page["entries"].as_array().unwrap().iter().filter(marked).cloned().collect();
    assert_eq!(paths(&json!({ "entries": entries })), ["a.n5", "b", "c/inner.n5"]);
    for (path, expected) in
        [("a.n5", true), ("a.n5/inner.n5", false), ("b", true), ("b/inner.n5", false), ("c", false), ("", false)]
    {
        assert_eq!(client.get(&format!("/info/{path}")).await.json()["container"], expected, "{path}");
    }
}

/// Writes a Zarr 3 and a Zarr 2 store into a container.
fn with_zarr_stores() -> N5 {
    let n5 = container();
    n5.file("a/three/zarr.json", r#"{"zarr_format":3,"node_type":"group"}"#);
    n5.file("a/three/image/zarr.json", r#"{"zarr_format":3,"node_type":"array"}"#);
    n5.file("a/three/image/c/0/0/0", "chunk");
    n5.file("two/.zgroup", r#"{"zarr_format":2}"#);
    n5.file("two/image/.zarray", "{}");
    n5.file("two/image/0/0", "chunk");
    // A group of N5 that zarr-python also calls a group of Zarr.
    n5.file("both/.zgroup", r#"{"zarr_format":2}"#);
    n5.file("both/attributes.json", "{}");
    n5.file("both/below/attributes.json", "{}");
    n5
}

#[tokio::test]
async fn zarr_stores_are_named_and_not_entered() {
    let n5 = with_zarr_stores();
    let client = Client::of(n5.root());
    let page = client.get("/info/?recursive=1").await.json();
    let found: Vec<String> =
        paths(&page).into_iter().filter(|path| path.contains('o') && !path.contains("unus")).collect();
    assert_eq!(found, ["both", "both/below", "broken", "two"]);
    let stores: Vec<(String, String)> = page["entries"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|entry| Some((entry["path"].as_str()?.to_owned(), entry["store"].as_str()?.to_owned())))
        .collect();
    let expected = [("a/three", "zarr3"), ("two", "zarr2")];
    assert_eq!(stores, expected.map(|(path, store)| (path.to_owned(), store.to_owned())));
    assert!(
        page["entries"]
            .as_array()
            .unwrap()
            .iter()
            .all(|entry| entry["store"].is_null() || entry.get("children").is_none())
    );
    for (path, store) in [
        ("a/three", json!("zarr3")),
        ("a/three/image", json!("zarr3")),
        ("a/three/image/c/0", json!("zarr3")),
        ("two", json!("zarr2")),
        ("two/image", json!("zarr2")),
        ("both", Value::Null),
        ("a", Value::Null),
        ("a/b", Value::Null),
    ] {
        let info = client.get(&format!("/info/{path}")).await.json();
        assert_eq!((&info["store"], &info["kind"]), (&store, &json!("group")), "{path}");
    }
}

#[tokio::test]
async fn a_listing_of_a_zarr_store_says_what_it_is() {
    let n5 = with_zarr_stores();
    let client = Client::of(n5.root());
    let html = client.get("/a/three/").await;
    let html = String::from_utf8_lossy(&html.body).into_owned();
    assert!(html.contains("This is a Zarr store.") && html.contains("image/</a>") && !html.contains("empty"), "{html}");
    assert_eq!(client.get("/two/?format=json").await.json()["store"], "zarr2");
    assert_eq!(client.get("/both/?format=json").await.json().get("store"), None);
}

#[tokio::test]
async fn zarr_views_invent_nothing_inside_a_zarr_store() {
    let n5 = with_zarr_stores();
    let client = Client::of(n5.root());
    for path in
        ["a/three", "a/three/image", "a/three/image/c", "a/three/image/c/0/0", "two", "two/image", "two/image/0"]
    {
        for key in ["zarr.json", ".zgroup", ".zattrs", ".zarray", ".zmetadata"] {
            let view = if key == "zarr.json" { "zarr3" } else { "zarr2" };
            assert_eq!(client.get(&format!("/{view}/{path}/{key}")).await.status, 404, "{view} {path} {key}");
        }
        for view in ["zarr2", "zarr3"] {
            let listing = client.get(&format!("/{view}/{path}/?format=json")).await.json();
            let files = listing["entries"].as_array().unwrap().iter().filter(|entry| entry["kind"] == "file");
            assert_eq!(files.count(), 0, "{view} {path}");
        }
    }
    let root = client.get("/zarr3/zarr.json").await.json();
    let nodes: Vec<&String> = root["consolidated_metadata"]["metadata"].as_object().unwrap().keys().collect();
    assert!(nodes.iter().any(|path| *path == "both/below"), "{nodes:?}");
    assert!(!nodes.iter().any(|path| path.contains("three") || path.contains("two")), "{nodes:?}");
    assert_eq!(client.get("/zarr3/both/zarr.json").await.status, 200);
}

#[tokio::test]
async fn a_small_budget_gives_smaller_pages_with_the_same_entries() {
    let n5 = N5::new();
    for n in 0..400 {
        n5.file(&format!("g{:03}/attributes.json", n % 200), format!(r#"{{"name":"{}"}}"#, "n".repeat(300)));
        n5.file(&format!("g{:03}/{}/attributes.json", n % 200, "x".repeat(200)), "{}");
    }
    let whole = all_entries(&Client::of(n5.root()), "/info/", "").await;
    assert_eq!(whole.len(), 400);
    let small = Settings { slice_budget: 256 << 10, ..settings() };
    let client = Client::new(local(n5.root()), small, options());
    let first = client.get("/info/?recursive=1").await.json();
    assert!(first["next"].is_string());
    assert_eq!(all_entries(&client, "/info/", "").await, whole);
}

#[tokio::test]
async fn thousands_of_directories_are_listed_in_pages() {
    let n5 = N5::new();
    for n in 0..2500 {
        fs::create_dir_all(n5.root().join(format!("flat/g{n:05}"))).unwrap();
    }
    let client = Client::of(n5.root());
    let first = client.get("/info/?recursive=1").await.json();
    assert_eq!((paths(&first).len(), first["next"].as_str()), (1000, Some("flat/g00998")));
    assert_eq!(all_entries(&client, "/info/", "").await.len(), 2501);
}

#[tokio::test]
async fn attributes_that_cannot_be_read_have_an_entry_with_the_reason() {
    let n5 = container();
    n5.file("long/attributes.json", format!(r#"{{"x":"{}"}}"#, "x".repeat(2 << 20)));
    n5.dataset("long/inside", &[4], &[4], "raw");
    let client = Client::of(n5.root());
    let page = client.get("/info/long?recursive=1").await.json();
    assert_eq!(paths(&page), ["long/inside"]);
    let page = client.get("/info/?recursive=1&depth=1").await.json();
    let entry = page["entries"].as_array().unwrap().iter().find(|entry| entry["path"] == "long").unwrap();
    assert!(entry["error"].as_str().unwrap().contains("are parsed"), "{entry}");
}
