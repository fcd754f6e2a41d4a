//! Listings from which programs copy whole containers: `/files/`, `blocks=1` in views, and listings of any length.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use crate::support::stores::Probe;
use crate::support::writer::N5;
use crate::support::{Client, guarded, local, options, settings};
use n5_server::container::Settings;

/// Creates a container with three axes, holes, a scalar, nested groups and names that need escapes.
fn container() -> N5 {
    let n5 = N5::new();
    n5.file("g/attributes.json", r#"{"who":"me"}"#);
    n5.dataset("g/a", &[25, 18, 7], &[10, 10, 4], "gzip").fill(|p| p != [1, 0, 0] && p[2] != 1, |_| false);
    n5.dataset("g/100% \"né/x", &[9], &[2], "raw").fill(|_| true, |_| false);
    n5.dataset("flat", &[40], &[2], "raw").fill(|p| p[0] % 3 != 0, |_| false);
    n5.dataset("none", &[4, 4], &[2, 2], "raw");
    n5.file("none/7/7", "a block outside the grid");
    let scalar = json!({"dimensions": [], "blockSize": [], "dataType": "uint16", "compression": {"type": "raw"}});
    n5.file("scalar/attributes.json", scalar.to_string());
    n5.file("scalar/0", b"\0\0\0\0\x01\x02");
    n5
}

/// Follows the links of HTML listings, as programs that mirror sites do, and returns the paths of all files below
/// `start` with their bytes.
async fn mirrored(client: &Client, start: &str) -> BTreeSet<(String, Vec<u8>)> {
    let mut files = BTreeSet::new();
    let mut pending = vec![start.to_owned()];
    while let Some(directory) = pending.pop() {
        let reply = client.get(&directory).await;
        assert_eq!(reply.status, 200, "{directory}");
        assert_eq!(reply.header("link"), None, "{directory}");
        let page = String::from_utf8(reply.body.to_vec()).unwrap();
        let base = directory.split('?').next().unwrap();
        for link in page.split("<a href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            let url = format!("{base}{link}");
            if link.split('?').next().unwrap().ends_with('/') {
                pending.push(url);
            } else {
                let file = client.get(&url).await;
                assert_eq!(file.status, 200, "{url}");
                files.insert((url[start.split('?').next().unwrap().len()..].to_owned(), file.body.to_vec()));
            }
        }
    }
    files
}

fn names(files: &BTreeSet<(String, Vec<u8>)>) -> Vec<&str> {
    files.iter().map(|(name, _)| name.as_str()).collect()
}

#[tokio::test]
async fn a_mirror_of_files_is_the_container() {
    let n5 = container();
    let client = Client::of(n5.root());
    let mut expected = BTreeSet::new();
    let mut pending = vec![n5.root().to_path_buf()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                pending.push(entry);
            } else {
                let name = entry.strip_prefix(n5.root()).unwrap().to_str().unwrap().to_owned();
                expected.insert((name, std::fs::read(entry).unwrap()));
            }
        }
    }
    let decoded = |(name, bytes): (String, Vec<u8>)| {
        (percent_encoding::percent_decode_str(&name).decode_utf8().unwrap().into_owned(), bytes)
    };
    let found: BTreeSet<_> = mirrored(&client, "/files/").await.into_iter().map(decoded).collect();
    assert_eq!(found, expected);
    // The links of a listing with `blocks=1` repeat the parameter.
    assert_eq!(mirrored(&client, "/n5/?blocks=1").await.into_iter().map(decoded).collect::<BTreeSet<_>>(), expected);
}

#[tokio::test]
async fn files_are_those_of_the_container_and_listings_are_plain() {
    let n5 = container();
    let client = Client::of(n5.root());
    let stored = client.get("/n5/flat/1").await;
    let file = client.get("/files/flat/1").await;
    assert_eq!((file.status, &file.body, file.header("etag")), (stored.status, &stored.body, stored.header("etag")));
    assert_eq!(client.get("/files/flat/0").await.status, 404);
    let redirect = client.get("/files/g").await;
    assert_eq!((redirect.status.as_u16(), redirect.header("location")), (301, Some("g/")));
    let page = String::from_utf8(client.get("/files/g/").await.body.to_vec()).unwrap();
    assert!(page.contains("<title>Index of /files/g/</title>") && !page.contains("script"), "{page}");
    let listed = client.get("/files/scalar/?format=json").await.json();
    let entries = json!([{"name": "0", "kind": "file"}, {"name": "attributes.json", "kind": "file"}]);
    assert_eq!(listed["entries"], entries);
    // A group of this name is below /n5/.
    n5.file("files/attributes.json", "{}");
    assert_eq!(client.get("/files/attributes.json").await.json()["n5"], "2.0.0");
    assert_eq!(client.get("/n5/files/attributes.json").await.body, "{}");
}

#[tokio::test]
async fn views_list_exactly_the_chunks_that_exist() {
    let n5 = container();
    let client = Client::of(n5.root());
    let mut expected = BTreeSet::new();
    for (x, y, z) in [(0, 0, 0), (2, 0, 0), (0, 1, 0), (1, 1, 0), (2, 1, 0)] {
        expected.insert(format!("{z}/{y}/{x}"));
    }
    let two = mirrored(&client, "/zarr2/g/?blocks=1").await;
    let chunks: BTreeSet<String> = names(&two)
        .iter()
        .filter_map(|name| name.strip_prefix("a/"))
        .filter(|name| !name.contains('.'))
        .map(str::to_owned)
        .collect();
    assert_eq!(chunks, expected);
    for document in [".zgroup", ".zattrs", ".zmetadata", "a/.zarray", "a/.zattrs"] {
        assert!(names(&two).contains(&document), "{document}: {:?}", names(&two));
    }
    let three = mirrored(&client, "/zarr3/g/?blocks=1").await;
    let chunks: BTreeSet<String> =
        names(&three).iter().filter_map(|name| name.strip_prefix("a/c/")).map(str::to_owned).collect();
    assert_eq!(chunks, expected);
    let stored = mirrored(&client, "/as/raw/g/?blocks=1").await;
    assert_eq!(names(&stored).iter().filter(|name| name.starts_with("a/") && !name.ends_with("json")).count(), 5);

    let flat: Vec<String> = (0..20).filter(|n| n % 3 != 0).map(|n| n.to_string()).collect();
    let listed = mirrored(&client, "/zarr3/flat/c/?blocks=1").await;
    assert_eq!(names(&listed).into_iter().collect::<BTreeSet<_>>(), flat.iter().map(String::as_str).collect());
    for (path, expected) in [
        ("/zarr2/scalar/?blocks=1", vec![".zarray", ".zattrs", "0"]),
        ("/zarr3/scalar/?blocks=1", vec!["c", "zarr.json"]),
        ("/as/gzip/scalar/?blocks=1", vec!["0", "attributes.json"]),
        // A block outside the grid is no chunk.
        ("/zarr2/none/?blocks=1", vec![".zarray", ".zattrs"]),
        ("/zarr3/none/?blocks=1", vec!["zarr.json"]),
        ("/zarr3/none/c/?blocks=1", vec![]),
    ] {
        assert_eq!(names(&mirrored(&client, path).await), expected, "{path}");
    }
    for missing in ["/zarr2/g/a/9/?blocks=1", "/zarr3/g/a/c/1/?blocks=1", "/zarr3/g/c/?blocks=1", "/zarr3/g/a/c/"] {
        assert_eq!(client.get(missing).await.status, 404, "{missing}");
    }
}

#[tokio::test]
async fn chunks_of_a_dense_dataset_are_found_in_few_directories() {
    let n5 = N5::new();
    n5.dataset("a", &[20, 20, 20], &[1, 2, 2], "raw").fill(|_| true, |_| false);
    let probe = Probe::new(local(n5.root()));
    let client = Client::new(Arc::<Probe>::clone(&probe), settings(), options());
    let listed = client.get("/zarr3/a/c/?blocks=1&format=json").await.json();
    assert_eq!(listed["entries"].as_array().unwrap().len(), 10);
    assert!(probe.lists() < 8, "{} directories were listed", probe.lists());
}

#[tokio::test]
async fn programs_get_whole_listings_and_browsers_and_json_get_pages() {
    let n5 = N5::new();
    n5.dataset("a", &[25_000], &[1], "raw");
    for n in 0..25_000 {
        n5.file(&format!("a/{n}"), "");
    }
    let client = Client::of(n5.root());
    let count = |text: &str| text.matches("<li>").count();
    for (path, expected) in [
        ("/files/a/", 25_001),
        ("/a/?blocks=1", 25_001),
        ("/zarr2/a/?blocks=1", 25_002),
        ("/zarr3/a/c/?blocks=1", 25_000),
    ] {
        let reply = client.get(path).await;
        let page = String::from_utf8(reply.body.to_vec()).unwrap();
        assert_eq!((count(&page), reply.header("link")), (expected, None), "{path}");
        assert!(page.ends_with("</html>\n") && !page.contains("id=\"more\""), "{path}");
        let browser = [("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")];
        let reply = client.get_with(path, &browser).await;
        assert_eq!(reply.status, 200, "{path}: {:?}", reply.body);
        let page = String::from_utf8(reply.body.to_vec()).unwrap();
        let is_whole = path.starts_with("/files/");
        assert_eq!(
            (count(&page), reply.header("link").is_some()),
            if is_whole { (expected, false) } else { (10_000, true) },
            "{path}"
        );

        let separator = if path.contains('?') { '&' } else { '?' };
        let mut json = client.get(&format!("{path}{separator}format=json")).await.json();
        let mut seen = 0;
        loop {
            seen += json["entries"].as_array().unwrap().len();
            let Some(next) = json["next"].as_str() else { break };
            json = client.get(&format!("{path}{separator}format=json&after={next}")).await.json();
        }
        assert_eq!(seen, expected, "{path}");
    }
}

#[tokio::test]
async fn a_listing_that_exceeds_the_budget_is_refused_and_never_cut() {
    let n5 = N5::new();
    n5.dataset("a", &[30_000], &[1], "raw");
    for n in 0..30_000 {
        n5.file(&format!("a/{n}"), "");
    }
    let client = Client::new(local(n5.root()), Settings { slice_budget: 4 << 20, ..settings() }, options());
    for path in ["/files/a/", "/zarr3/a/c/?blocks=1"] {
        let reply = client.get(path).await;
        assert_eq!((reply.status.as_u16(), reply.problem()), (413, "too-large".to_owned()), "{path}");
    }
    assert!(client.get("/files/a/?format=json").await.json()["next"].is_string());
}

#[tokio::test]
async fn a_view_lists_no_directory_at_which_a_recursive_listing_would_fail() {
    let n5 = container();
    n5.file("g/bad/attributes.json", "x".repeat(4000));
    let text = json!({"dimensions": [4], "blockSize": [2], "dataType": "string", "compression": {"type": "raw"}});
    n5.file("g/text/attributes.json", text.to_string());
    let object = json!({"dimensions": [4], "blockSize": [2], "dataType": "object", "compression": {"type": "raw"}});
    n5.file("g/object/attributes.json", object.to_string());
    n5.file("g/unusable/attributes.json", text.to_string().replace("[2]", "[0]"));
    n5.file("g/broken/attributes.json", "{");
    n5.file("g/broken/0/1", "a block of a dataset whose attributes are broken");
    let client = Client::new(local(n5.root()), Settings { max_attributes_bytes: 1000, ..settings() }, options());
    for (view, documents) in
        [("zarr2", vec![".zgroup", ".zarray"]), ("zarr3", vec!["zarr.json"]), ("as/gzip", vec!["attributes.json"])]
    {
        let listed = client.get(&format!("/{view}/g/?format=json")).await.json();
        let directories: Vec<&str> = listed["entries"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|entry| entry["kind"] != "file")
            .map(|entry| entry["name"].as_str().unwrap())
            .collect();
        assert_eq!(directories, ["100% \"né", "a", "broken"], "{view}");
        for name in directories {
            let name = name.replace('%', "%25").replace(' ', "%20").replace('"', "%22");
            for document in &documents {
                let status = client.get(&format!("/{view}/g/{name}/{document}")).await.status.as_u16();
                assert!([200, 404].contains(&status), "{view} {name} {document}: {status}");
            }
        }
    }
    // As stored, every directory is listed.
    let listed = client.get("/g/?format=json").await.json();
    assert_eq!(listed["entries"].as_array().unwrap().len(), 8);
    let consolidated = client.get("/zarr3/g/zarr.json").await.json()["consolidated_metadata"]["metadata"].clone();
    let paths: Vec<&String> = consolidated.as_object().unwrap().keys().collect();
    assert_eq!(paths, ["100% \"né", "100% \"né/x", "a", "bad", "broken"]);
}

#[tokio::test]
async fn mirrors_contain_only_what_the_caller_may_read() {
    let (em, seg) = (container(), container());
    let router = n5_server::http::router(guarded(&em, &seg, &["/em = alice", "/seg/g = alice"]));
    let ask = async |path: &str| {
        let request = axum::http::Request::builder().uri(path).body(axum::body::Body::empty()).unwrap();
        let reply = tower::ServiceExt::oneshot(router.clone(), request).await.unwrap();
        let status = reply.status().as_u16();
        let body = axum::body::to_bytes(reply.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8_lossy(&body).into_owned())
    };
    for refused in
        ["/files/em/", "/files/em/flat/1", "/files/seg/g/", "/files/seg/g/a/0/0/", "/zarr3/seg/g/a/c/?blocks=1"]
    {
        assert_eq!(ask(refused).await.0, 401, "{refused}");
    }
    let (status, root) = ask("/files/").await;
    assert!(status == 200 && root.contains("seg/") && !root.contains("em/"), "{root}");
    let (status, listed) = ask("/files/seg/").await;
    assert!(status == 200 && listed.contains("\"flat/\"") && !listed.contains("\"g/\""), "{listed}");
    assert_eq!(ask("/files/seg/flat/1").await.0, 200);
}
