//! Access control. Each promise in docs/ACCESS.md names a test of this file, of `access_jwt.rs` or of
//! `tests/clients/test_access.py`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::StatusCode;
use n5_server::access::issue;
use n5_server::config::{Config, ContainerConfig, DefaultAccess, EntityTagSource, SymlinkPolicy};
use n5_server::http::HttpOptions;
use serde_json::json;
use tempfile::TempDir;

use crate::support::faulty::{Fault, Faulty};
use crate::support::http1::{Http1Client, Http1Response};
use crate::support::openapi;
use crate::support::server::{RunningServer, start_server};
use crate::support::writer::N5;
use crate::support::{Client, guarded, local, options, settings, wait_until};

/// A server with two containers, and tokens for it. Only Alice may read `em`; `seg` is public, except `seg/draft`.
struct Site {
    em: N5,
    /// Keeps the directory while it is served.
    _seg: N5,
    server: RunningServer,
    secrets: TempDir,
    /// Token that may read `em`.
    alice: String,
    /// Token of the group that may read `seg/draft`.
    lab: String,
    /// Token that may read only what is public.
    nobody: String,
    /// Token that may read `em/open` and what is public.
    link: String,
    expired: String,
}

impl Site {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let em = volume();
        let seg = volume();
        seg.dataset("draft/s0", &[8, 8], &[4, 4], "raw").fill(|_| true, |_| false);
        seg.file("draft/attributes.json", r#"{"name":"the draft"}"#);
        let now = SystemTime::now();
        let token = |name: &str, group: &[&str], read: &[&str], now: SystemTime, expires: Option<&str>| {
            let owned = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
            issue(name, expires, &owned(group), &owned(read), now).unwrap()
        };
        let [alice, lab, nobody, link, expired] = [
            token("alice", &[], &[], now, None),
            token("bob", &["lab"], &[], now, Some("1h")),
            token("nobody-in-particular", &[], &[], now, None),
            token("link", &[], &["/em/open"], now, None),
            token("alice", &[], &[], now - Duration::from_secs(3600), Some("1m")),
        ];
        let secrets = TempDir::new().unwrap();
        let lines = [&alice, &lab, &nobody, &link, &expired].map(|issued| issued.line.clone());
        std::fs::write(secrets.path().join("tokens"), lines.join("\n") + "\n").unwrap();
        let containers = [("em", &em), ("seg", &seg)].map(|(name, n5)| container(name, n5)).to_vec();
        let mut config = Config { containers, ..Config::default() };
        config.access.rules = vec!["/em = alice".into(), "/seg/draft = @lab".into()];
        config.access.tokens = secrets.path().join("tokens");
        change(&mut config);
        let server = start_server(Duration::from_secs(20), config).await;
        let token = |issued: n5_server::access::IssuedToken| issued.token;
        let [alice, lab, nobody, link, expired] = [alice, lab, nobody, link, expired].map(token);
        Self { em, _seg: seg, server, secrets, alice, lab, nobody, link, expired }
    }

    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Http1Response {
        let response = Http1Client::connect(&self.server).await.ask(method, path, headers).await;
        openapi::check(method, path, StatusCode::from_u16(status(&response)).unwrap());
        response
    }

    async fn get(&self, path: &str) -> Http1Response {
        self.ask("GET", path, &[]).await
    }

    async fn get_as(&self, token: &str, path: &str) -> Http1Response {
        self.ask("GET", path, &[("Authorization", &format!("Bearer {token}"))]).await
    }

    fn tokens(&self) -> PathBuf {
        self.secrets.path().join("tokens")
    }
}

fn container(name: &str, n5: &N5) -> ContainerConfig {
    let defaults = Config::default().container_defaults;
    ContainerConfig {
        name: name.to_owned(),
        root: n5.root().into(),
        cache_control: defaults.cache_control,
        symlinks: SymlinkPolicy::Inside,
        must_be_mount: false,
        entity_tag: EntityTagSource::Mtime,
        ..ContainerConfig::default()
    }
}

fn volume() -> N5 {
    let n5 = N5::new();
    n5.dataset("v", &[8, 8], &[4, 4], "raw").fill(|_| true, |_| false);
    let scales = json!({"scales": [[1, 1], [2, 2]], "pixelResolution": {"unit": "nm", "dimensions": [4, 4]}});
    n5.file("pyramid/attributes.json", scales.to_string());
    n5.dataset("pyramid/s0", &[8, 8], &[4, 4], "raw").fill(|_| true, |_| false);
    n5.dataset("pyramid/s1", &[4, 4], &[4, 4], "raw").fill(|_| true, |_| false);
    n5.dataset("open/s0", &[8, 8], &[4, 4], "raw").fill(|_| true, |_| false);
    n5
}

fn status(response: &Http1Response) -> u16 {
    response.status.split(' ').nth(1).unwrap().parse().unwrap()
}

fn text(response: &Http1Response) -> String {
    String::from_utf8_lossy(&response.body).into_owned()
}

/// Returns paths of every route into a container, with existing and missing objects.
fn paths(of: &str) -> Vec<String> {
    let templates = [
        "/{}/",
        "/{}",
        "/{}/attributes.json",
        "/{}/v/0/0",
        "/{}/v/9/9",
        "/{}/v/attributes.json",
        "/{}/nothing/attributes.json",
        "/n5/{}/v/",
        "/n5/{}/v",
        "/slice/{}/v?size=1,1",
        "/slice/{}/nothing",
        "/info/{}/v",
        "/info/{}/",
        "/stats/{}/v",
        "/as/gzip/{}/v/0/0",
        "/as/gzip/{}/v/attributes.json",
        "/zarr2/{}/v/0/0",
        "/zarr2/{}/v/.zarray",
        "/zarr2/{}/.zgroup",
        "/zarr2/{}/.zmetadata",
        "/zarr3/{}/zarr.json",
        "/zarr3/{}/v/c/0/0",
        "/precomputed/{}/pyramid/info",
        "/precomputed/{}/pyramid/s0/raw/0-4_0-4_0-1",
    ];
    templates.iter().map(|thing| thing.replace("{}", of)).collect()
}

#[tokio::test]
async fn a_request_without_a_token_gets_401_for_private_data_and_200_for_public_data() {
    let site = Site::new().await;
    for path in paths("em").into_iter().chain(["/seg/draft/".to_owned(), "/seg/draft/s0/0/0".to_owned()]) {
        let response = site.get(&path).await;
        assert_eq!(status(&response), 401, "{path}");
        // RFC 6750: a request without a token gets no error code.
        assert_eq!(response.header("www-authenticate"), Some("Bearer realm=\"n5-server\""), "{path}");
        assert_eq!(response.header("cache-control"), Some("no-store"), "{path}");
        assert!(text(&response).contains("#unauthorized"), "{path}");
    }
    for path in [
        "/seg/v/0/0",
        "/seg/v/attributes.json",
        "/seg/",
        "/slice/seg/v?size=1,1",
        "/info/seg/v",
        "/",
        "/zarr2/seg/v/0/0",
    ] {
        assert_eq!(status(&site.get(path).await), 200, "{path}");
    }
    assert_eq!(status(&site.get("/seg/v/9/9").await), 404);
    // Other authentication schemes belong to a proxy and are ignored.
    assert_eq!(status(&site.ask("GET", "/seg/v/0/0", &[("Authorization", "Basic eDp5")]).await), 200);
}

#[tokio::test]
async fn an_invalid_token_gets_401_even_for_public_data() {
    let site = Site::new().await;
    let almost = format!("{}0", site.alice);
    for token in ["x", "n5t_", &almost, "", "Bearer"] {
        for path in ["/em/v/0/0", "/seg/v/0/0", "/metrics"] {
            let response = site.get_as(token, path).await;
            assert_eq!(status(&response), 401, "{token:?} {path}");
            assert!(
                response.header("www-authenticate").unwrap().contains("error=\"invalid_token\""),
                "{token:?} {path}"
            );
        }
    }
    assert_eq!(status(&site.get("/token/x/seg/v/0/0").await), 401);
    assert_eq!(status(&site.get("/seg/v/0/0?token=x").await), 401);
}

#[tokio::test]
async fn an_expired_token_gets_401_with_the_reason() {
    let site = Site::new().await;
    let response = site.get_as(&site.expired, "/em/v/0/0").await;
    assert_eq!(status(&response), 401);
    assert!(response.header("www-authenticate").unwrap().contains("expired"));
}

#[tokio::test]
async fn a_token_for_one_container_grants_no_access_to_another() {
    let site = Site::new().await;
    for path in paths("em") {
        assert_eq!(status(&site.get_as(&site.lab, &path).await), 404, "{path}");
    }
    assert_eq!(status(&site.get_as(&site.lab, "/seg/draft/s0/0/0").await), 200);
    assert_eq!(status(&site.get_as(&site.alice, "/seg/draft/s0/0/0").await), 404);
    // A token that lists paths grants access only to these paths.
    for (path, expected) in
        [("/em/open/s0/0/0", 200), ("/em/v/0/0", 404), ("/em/", 404), ("/em/opening", 404), ("/seg/v/0/0", 200)]
    {
        assert_eq!(status(&site.get_as(&site.link, path).await), expected, "{path}");
    }
}

#[tokio::test]
async fn a_token_is_accepted_in_the_header_the_query_and_the_path() {
    let site = Site::new().await;
    let block = std::fs::read(site.em.root().join("v/0/0")).unwrap();
    let token = &site.alice;
    for path in paths("em").into_iter().filter(|path| !path.contains("nothing") && !path.contains("9/9")) {
        let by_header = site.get_as(token, &path).await;
        assert!([200, 301].contains(&status(&by_header)), "{path}: {}", by_header.status);
        let and = if path.contains('?') { '&' } else { '?' };
        for other in
            [site.get(&format!("{path}{and}token={token}")).await, site.get(&format!("/token/{token}{path}")).await]
        {
            assert_eq!(status(&other), status(&by_header), "{path}");
            assert!(other.header("cache-control").unwrap().starts_with("private"), "{path}");
        }
    }
    for path in [
        format!("/em/v/0/0?token={token}"),
        format!("/token/{token}/em/v/0/0"),
        format!("/%74oken/{token}/n5/em/v/0/0?x"),
    ] {
        assert_eq!(site.get(&path).await.body, block, "{path}");
    }
}

#[tokio::test]
async fn a_token_is_accepted_as_the_password_of_http_basic() {
    let site = Site::new().await;
    let basic = |credentials: &str| {
        let mut values = Vec::new();
        let (name, password) = credentials.split_once(':').unwrap();
        headers::Header::encode(&headers::Authorization::basic(name, password), &mut values);
        values[0].to_str().unwrap().to_owned()
    };
    let ask = async |path: &str, credentials: &str| {
        let response = site.ask("GET", path, &[("Authorization", &basic(credentials))]).await;
        (status(&response), response)
    };
    for name in ["", "ann", "anyone at all"] {
        let (code, response) = ask("/em/v/0/0", &format!("{name}:{}", site.alice)).await;
        assert_eq!(code, 200, "{name}");
        assert!(response.header("cache-control").unwrap().starts_with("private"));
        assert_eq!(response.header("vary"), Some("authorization"));
        assert_eq!(ask("/em/v/0/0", &format!("{name}:{}", site.lab)).await.0, 404, "{name}");
    }
    for (password, path, expected) in [
        (site.expired.as_str(), "/em/v/0/0", 401),
        ("n5t_wrong", "/em/v/0/0", 401),
        ("n5t_wrong", "/seg/v/0/0", 401),
        // A proxy may ask for passwords itself, and pass them on.
        ("secret", "/seg/v/0/0", 200),
        ("secret", "/em/v/0/0", 401),
    ] {
        let (code, response) = ask(path, &format!(":{password}")).await;
        assert_eq!(code, expected, "{path}");
        let names_token = response.header("www-authenticate").is_some_and(|value| value.contains("invalid_token"));
        assert_eq!(names_token, password != "secret", "{path}");
    }
    let both = [("Authorization", basic(&format!(":{}", site.alice)))];
    let response = site.ask("GET", &format!("/em/v/0/0?token={}", site.lab), &[(both[0].0, &both[0].1)]).await;
    assert_eq!(status(&response), 400);
}

#[tokio::test]
async fn two_different_tokens_get_400_and_the_same_token_twice_is_accepted() {
    let site = Site::new().await;
    let (a, b) = (&site.alice, &site.lab);
    for path in [
        format!("/token/{a}/em/v/0/0?token={b}"),
        format!("/em/v/0/0?token={a}&token={b}"),
        format!("/token/{a}/token/{b}/em/v/0/0"),
    ] {
        let response = site.get(&path).await;
        assert_eq!((status(&response), response.header("cache-control")), (400, Some("no-store")), "{path}");
    }
    assert_eq!(status(&site.get_as(b, &format!("/em/v/0/0?token={a}")).await), 400);
    assert_eq!(status(&site.get_as(a, &format!("/token/{a}/em/v/0/0?token={a}")).await), 200);
}

/// A measurement of time would only be noise. The test checks in the source that digests have no comparison but the
/// constant-time one.
#[test]
fn tokens_are_compared_by_digest_and_in_constant_time() {
    let source = include_str!("../../src/access/token_file.rs");
    let code = source.split("#[cfg(test)]\nmod ").next().unwrap();
    let digest = code.split("struct TokenDigest").next().unwrap().rsplit("#[derive(").next().unwrap();
    assert!(!digest.contains("Eq"), "a digest can be compared by == now");
    assert!(code.contains("self.0.ct_eq(&other.0)"));
    // The token itself is only hashed and used nowhere else.
    let lookup = code.split("fn authenticate(&self, token").nth(1).unwrap().split("\n    }").next().unwrap();
    assert_eq!(lookup.matches("token").count(), 1 + lookup.matches("TokenDigest::of(token)").count() - 1, "{lookup}");
}

/// The duration of a refusal cannot depend on what exists, because the store is not accessed.
#[tokio::test]
async fn a_refused_request_does_not_access_the_store() {
    let n5 = volume();
    let mut config = Config::default();
    config.access.rules = vec!["/v = nobody".into()];
    let control = n5_server::server::open_access_control(&config, None).unwrap();
    let store = Faulty::new(local(n5.root()));
    store.begin(|_| true, Fault::Errno(5));
    let client =
        Client::new(Arc::<Faulty>::clone(&store), settings(), HttpOptions { access_control: control, ..options() });
    for path in [
        "/v/0/0",
        "/v/9/9",
        "/v/",
        "/v/attributes.json",
        "/slice/v",
        "/info/v",
        "/stats/v",
        "/zarr2/v/.zarray",
        "/zarr2/v/0/0",
        "/zarr3/v/c/0/0",
        "/as/raw/v/0/0",
        "/precomputed/v/info",
    ] {
        assert_eq!(client.get(path).await.status, 401, "{path}");
    }
    assert_eq!(store.injected(), 0);
    assert_eq!(client.get("/w/0/0").await.status, 503);
    assert!(store.injected() > 0);
}

#[tokio::test]
async fn refusals_of_existing_and_missing_objects_are_identical() {
    let site = Site::new().await;
    for token in [&site.nobody, &site.link] {
        // Responses for other paths (0) and for keys (1). The 404 of a missing key has no body.
        let mut seen = [std::collections::BTreeSet::new(), std::collections::BTreeSet::new()];
        for path in [
            "/em/v/0/0",
            "/em/v/9/9",
            "/em/v/",
            "/em/v",
            "/em/absent/",
            "/em/absent/0",
            "/em/attributes.json",
            "/slice/em/v",
            "/slice/em/absent",
            "/info/em/v",
            "/zarr3/em/v/zarr.json",
        ] {
            for headers in
                [vec![], vec![("Range", "bytes=0-1")], vec![("If-None-Match", "*")], vec![("If-Match", "\"x\"")]]
            {
                let bearer = format!("Bearer {token}");
                let headers = [vec![("Authorization", bearer.as_str()), ("X-Request-Id", "same")], headers].concat();
                let mut client = Http1Client::connect(&site.server).await;
                let response = client.ask("GET", path, &headers).await;
                let body = text(&response).replace(path, "PATH");
                let headers: Vec<_> =
                    ["cache-control", "content-type", "vary", "etag", "last-modified", "accept-ranges"]
                        .map(|name| response.header(name).map(str::to_owned))
                        .to_vec();
                let is_key = ["/em/", "/zarr3/"].iter().any(|view| path.starts_with(view)) && !path.ends_with('/');
                assert_eq!(body.is_empty(), is_key, "{path}");
                seen[usize::from(is_key)].insert((response.status.clone(), headers, body));
            }
        }
        for seen in seen {
            assert_eq!(seen.len(), 1, "{seen:#?}");
            assert!(seen.first().unwrap().0.contains("404"));
        }
    }
}

#[tokio::test]
async fn headers_do_not_reveal_whether_a_private_part_exists() {
    let absent = |config: &mut Config| {
        config.access.rules.extend(["/seg/pyramid/absent = @lab".into(), "/seg/open/s0 = @lab".into()]);
    };
    let site = Site::with(absent).await;
    for path in
        ["/seg/pyramid/", "/seg/open/", "/info/seg/pyramid", "/stats/seg/pyramid", "/zarr3/seg/pyramid/zarr.json"]
    {
        let response = site.get(path).await;
        assert_eq!(status(&response), 200, "{path}");
        assert!(response.header("cache-control").unwrap().starts_with("private"), "{path}");
        assert!(response.all("vary").contains("authorization"), "{path}");
    }
    // The server looks for levels in the parent directory.
    for path in ["/as/gzip/seg/pyramid/s7/0/0", "/as/raw/seg/pyramid/s7/attributes.json"] {
        let response = site.get(path).await;
        assert_eq!(status(&response), 404, "{path}");
        assert!(response.all("vary").contains("authorization"), "{path}");
    }
    // The response for a path without private parts does not depend on the caller.
    assert_eq!(site.get("/seg/v/0/0").await.header("cache-control"), Some("no-cache"));
}

#[tokio::test]
async fn preconditions_ranges_head_and_options_reveal_nothing() {
    let site = Site::new().await;
    let known = site.get_as(&site.alice, "/em/v/0/0").await;
    let tag = known.header("etag").unwrap().to_owned();
    for headers in [
        vec![("If-None-Match", tag.as_str())],
        vec![("If-None-Match", "*")],
        vec![("Range", "bytes=0-3")],
        vec![("If-Modified-Since", "Thu, 01 Jan 2099 00:00:00 GMT")],
    ] {
        for method in ["GET", "HEAD"] {
            let response = site.ask(method, "/em/v/0/0", &headers).await;
            assert_eq!((status(&response), response.header("etag")), (401, None), "{method} {headers:?}");
            let mut headers = headers.clone();
            let bearer = format!("Bearer {}", site.nobody);
            headers.push(("Authorization", &bearer));
            let response = site.ask(method, "/em/v/0/0", &headers).await;
            assert_eq!((status(&response), response.header("etag")), (404, None), "{method} {headers:?}");
        }
    }
    let alice_headers = [("If-None-Match", tag.as_str()), ("Authorization", &format!("Bearer {}", site.alice))];
    let response = site.ask("GET", "/em/v/0/0", &alice_headers).await;
    assert_eq!((status(&response), response.header("cache-control")), (304, Some("private, no-cache")));
    // Preflight requests carry no token. Their response is the same for every path.
    let preflight = [
        ("Origin", "https://viewer.example"),
        ("Access-Control-Request-Method", "GET"),
        ("Access-Control-Request-Headers", "authorization"),
    ];
    for path in ["/em/v/0/0", "/em/absent", "/seg/v/0/0"] {
        let response = site.ask("OPTIONS", path, &preflight).await;
        assert_eq!((status(&response), response.header("access-control-allow-origin")), (204, Some("*")), "{path}");
        assert!(response.header("access-control-allow-headers").unwrap().contains("authorization"));
        assert_eq!(response.header("access-control-allow-credentials"), None);
    }
    assert_eq!(status(&site.ask("POST", "/em/v/0/0", &[("Content-Length", "0")]).await), 405);
}

#[tokio::test]
async fn callers_that_share_a_connection_each_get_their_own_responses() {
    let site = Site::new().await;
    let mut client = Http1Client::connect(&site.server).await;
    let bearer = |token: &str| format!("Bearer {token}");
    let (alice, lab) = (bearer(&site.alice), bearer(&site.lab));
    let in_path = format!("/token/{}/em/v/0/0", site.alice);
    // Repeats the requests until everything cacheable is cached.
    for round in 0..20 {
        for (path, token, expected) in [
            ("/seg/v/0/0", None, 200),
            ("/em/v/0/0", None, 401),
            ("/em/v/0/0", Some(&alice), 200),
            ("/em/v/0/0", None, 401),
            (&in_path, None, 200),
            ("/em/v/0/0", Some(&lab), 404),
            ("/seg/v/0/0", Some(&lab), 200),
            ("/zarr2/em/v/0/0", Some(&alice), 200),
            ("/zarr2/em/v/0/0", None, 401),
            ("/zarr2/seg/v/0/0", None, 200),
            ("/seg/draft/s0/0/0", Some(&lab), 200),
            ("/seg/draft/s0/0/0", None, 401),
            ("/em/v/9/9", None, 401),
        ] {
            let headers: Vec<_> = token.map(|token| ("Authorization", token.as_str())).into_iter().collect();
            let response = client.ask("GET", path, &headers).await;
            assert_eq!(status(&response), expected, "{round} {path} {token:?}");
        }
    }
}

#[tokio::test]
async fn access_is_decided_on_the_decoded_path() {
    let site = Site::new().await;
    for path in [
        "/%65m/v/0/0",
        "/em/%76/0/0",
        "/n5/em/v/0/0",
        "/n5/%65%6d/v/0/0",
        "/%6e5/em/v/0/0",
        "/seg/dr%61ft/s0/0/0",
        "/slice/seg/%64raft/s0",
        "/zarr2/%73eg/draft/s0/0/0",
        "/as/gzip/em/v/0/0",
        "/as/gzip,uint8/em/v/0/0",
    ] {
        assert_eq!(status(&site.get(path).await), 401, "{path}");
    }
    // An invalid path is refused before access is checked.
    for path in [
        "/seg/../em/v/0/0",
        "/seg/%2e%2e/em/v/0/0",
        "/seg/./draft",
        "/seg//draft/s0/0/0",
        "/em%2Fv/0/0",
        "/seg/draft%2Fs0/0/0",
        "//em/v/0/0",
        "/seg/..%2fem/v",
        "/em\\v",
        "/em/v%00",
    ] {
        assert_eq!(status(&site.get(path).await), 400, "{path}");
    }
    for path in ["/em%252Fv/0/0", "/EM/v/0/0", "/seg/draft%20/s0/0/0"] {
        assert_eq!(status(&site.get(path).await), 404, "{path}");
    }
    assert_eq!(status(&site.get("http://else.example/em/v/0/0").await), 401);
}

#[tokio::test]
async fn listings_documents_and_views_omit_private_entries() {
    let site = Site::new().await;
    for path in [
        "/seg/",
        "/seg/?format=json",
        "/zarr2/seg/",
        "/zarr2/seg/.zmetadata",
        "/zarr3/seg/zarr.json",
        "/info/seg/",
        "/as/gzip/seg/",
    ] {
        let public = site.get(path).await;
        assert_eq!(status(&public), 200, "{path}");
        assert!(!text(&public).contains("draft"), "{path}: {}", text(&public));
        assert!(public.header("cache-control").unwrap().starts_with("private"), "{path}");
        assert!(public.all("vary").contains("authorization"), "{path}");
        assert!(!text(&site.get_as(&site.alice, path).await).contains("draft"), "{path}");
    }
    for path in ["/seg/?format=json", "/zarr2/seg/.zmetadata", "/zarr3/seg/zarr.json"] {
        assert!(text(&site.get_as(&site.lab, path).await).contains("draft"), "{path}");
    }
    let names = |response: Http1Response| text(&response);
    assert!(!names(site.get("/?format=json").await).contains("\"em\""));
    assert!(names(site.get("/?format=json").await).contains("\"seg\""));
    assert!(names(site.get_as(&site.alice, "/?format=json").await).contains("\"em\""));
}

#[tokio::test]
async fn access_is_checked_for_pyramid_levels_parent_attributes_and_parts_of_datasets() {
    let rules = |config: &mut Config| {
        config.access.rules = vec![
            "/seg/pyramid/s0 = alice".into(),
            "/seg/v/0 = alice".into(),
            "/em/pyramid = alice".into(),
            "/em/pyramid/s1 = public".into(),
        ];
    };
    let site = Site::with(rules).await;
    // The finest level is private. The pyramid consists of the other levels.
    for path in ["/info/seg/pyramid", "/precomputed/seg/pyramid/info", "/zarr3/seg/pyramid/zarr.json"] {
        let (public, alices) = (site.get(path).await, site.get_as(&site.alice, path).await);
        assert!(!text(&public).contains("\"s0"), "{path}: {}", text(&public));
        assert!(text(&alices).contains("s0"), "{path}: {}", text(&alices));
    }
    assert_eq!(status(&site.get("/precomputed/seg/pyramid/s0/raw/0-4_0-4_0-1").await), 401);
    // These routes name no keys of blocks, so rules for parts of the dataset cannot be checked. Only callers that may
    // read every part may use them.
    for path in
        ["/slice/seg/v?size=1,1", "/zarr2/seg/v/1/1", "/stats/seg/v", "/as/gzip/seg/v/1/1", "/zarr3/seg/v/c/1/1"]
    {
        assert_eq!(status(&site.get(path).await), 404, "{path}");
        assert_eq!(status(&site.get_as(&site.alice, path).await), 200, "{path}");
    }
    assert_eq!(status(&site.get("/seg/v/0/1").await), 401);
    assert_eq!(status(&site.get("/seg/v/1/1").await), 200);
    // The private group above a public dataset reveals nothing.
    let info = site.get("/info/em/pyramid/s1").await;
    let voxel = "nm";
    assert_eq!(status(&info), 200);
    assert!(!text(&info).contains(&format!("\"{voxel}\"")), "{}", text(&info));
    // A client that looks for attributes above a public dataset gets 404. It would take 401 for a failure.
    assert_eq!(status(&site.get("/em/pyramid/attributes.json").await), 404);
    assert_eq!(status(&site.get("/em/attributes.json").await), 200);
    assert_eq!(status(&site.get("/em/pyramid/s1/0/0").await), 200);
}

#[tokio::test]
async fn cache_control_is_private_only_if_the_response_depends_on_the_caller() {
    let site = Site::with(|config| {
        for container in &mut config.containers {
            container.cache_control = n5_server::config::CacheControl::Immutable;
        }
    })
    .await;
    let public = "public, max-age=31536000, immutable";
    let private = "private, max-age=31536000, immutable";
    let bearer = format!("Bearer {}", site.alice);
    let alice = [("Authorization", bearer.as_str())];
    for (path, headers, expected, varies) in [
        ("/seg/v/0/0", &[][..], public, false),
        ("/slice/seg/v", &[], public, false),
        ("/zarr2/seg/v/0/0", &[], public, false),
        ("/seg/v/0/0", &alice, public, false),
        ("/em/v/0/0", &alice, private, true),
        ("/slice/em/v", &alice, private, true),
        ("/zarr2/em/v/0/0", &alice, private, true),
        ("/em/v/9/9", &alice, "private, max-age=60", true),
    ] {
        let response = site.ask("GET", path, headers).await;
        assert_eq!(response.header("cache-control"), Some(expected), "{path}");
        let vary = response.all("vary");
        assert_eq!(vary.contains("authorization"), varies, "{path}: {vary}");
    }
    let by_url = site.get(&format!("/seg/v/0/0?token={}", site.alice)).await;
    assert_eq!(by_url.header("cache-control"), Some(private));
}

#[tokio::test]
async fn links_repeat_a_token_from_the_url_but_not_from_the_header() {
    let site = Site::new().await;
    let token = &site.alice;
    let info = site.get(&format!("/token/{token}/info/em/pyramid")).await;
    let document: serde_json::Value = serde_json::from_slice(&info.body).unwrap();
    for (name, url) in document["urls"].as_object().unwrap() {
        let url = url.as_str().or(url["source"].as_str());
        assert!(url.is_none_or(|url| url.contains(&format!("//test/token/{token}/"))), "{name}: {url:?}");
    }
    let n5 = document["urls"]["attributes"].as_str().unwrap().strip_prefix("http://test").unwrap().to_owned();
    assert_eq!(status(&site.get(&n5).await), 200);
    assert!(text(&site.get(&format!("/info/em/v?token={token}")).await).contains(&format!("/token/{token}/")));
    assert!(!text(&site.get_as(token, "/info/em/v").await).contains("token"));
    // Links in listings are relative. A redirect keeps the token in the path or in the query, where it was.
    let listing = text(&site.get(&format!("/token/{token}/em/")).await);
    assert!(listing.contains("<li><a href=\"v/\">v/</a></li>") && listing.contains("data-base=\"../\""), "{listing}");
    assert!(listing.contains(" data-token>"), "{listing}");
    for (path, location) in [
        (format!("/token/{token}"), format!("{token}/")),
        (format!("/token/{token}/em/v"), "v/".to_owned()),
        (format!("/em/v?token={token}"), format!("v/?token={token}")),
    ] {
        let response = site.get(&path).await;
        assert_eq!(response.header("location"), Some(location.as_str()), "{path}");
        assert!(["private, no-cache", "no-store"].contains(&response.header("cache-control").unwrap()), "{path}");
    }
    // A page for a browser is redirected to the URL with the token in the path, where its relative links work. A
    // listing for a program is not redirected.
    let page =
        site.ask("GET", &format!("/n5/em/v/?blocks=1&token={token}"), &[("Accept", "text/html,*/*;q=0.8")]).await;
    assert_eq!((status(&page), page.header("cache-control")), (303, Some("no-store")));
    assert_eq!(page.header("location"), Some(format!("../../../token/{token}/n5/em/v/?blocks=1").as_str()));
    let listing = site.get(&format!("/n5/em/v/?token={token}")).await;
    assert!(status(&listing) == 200 && !text(&listing).contains(token.as_str()));
}

#[tokio::test]
async fn attributes_above_readable_data_get_404_instead_of_401() {
    let site = Site::with(|config| {
        config.access.default = DefaultAccess::Private;
        config.access.rules = vec!["/em = alice".into(), "/seg/pyramid/s0 = public".into()];
    })
    .await;
    // Neuroglancer requests these above /token/T/n5/em/v. It walks up to the root of the host, without the token.
    for path in ["/token/attributes.json", "/attributes.json", "/seg/pyramid/attributes.json", "/seg/attributes.json"] {
        let response = site.get(path).await;
        assert_eq!((status(&response), response.header("cache-control")), (404, Some("no-store")), "{path}");
    }
    for path in ["/em/attributes.json", "/seg/v/attributes.json", "/seg/pyramid/", "/seg/pyramid/s1/attributes.json"] {
        assert_eq!(status(&site.get(path).await), 401, "{path}");
    }
    assert_eq!(status(&site.get("/seg/pyramid/s0/attributes.json").await), 200);
    // A wrong token is also refused at the end of the path.
    assert_eq!(status(&site.get("/token/wrong").await), 401);
    assert_eq!(status(&site.get("/token/wrong/").await), 401);
    let root = site.get(&format!("/token/{}", site.alice)).await;
    assert_eq!((status(&root), root.header("location")), (307, Some(format!("{}/", site.alice).as_str())));
}

#[tokio::test]
async fn metrics_have_their_own_rule_and_health_checks_are_public() {
    let site = Site::with(|config| {
        config.access.metrics = "@lab".into();
        config.access.default = DefaultAccess::Private;
        config.access.rules = vec!["/em = alice".into()];
    })
    .await;
    assert_eq!(status(&site.get("/metrics").await), 401);
    assert_eq!(status(&site.get_as(&site.alice, "/metrics").await), 404);
    assert_eq!(status(&site.get_as(&site.lab, "/metrics").await), 200);
    for path in ["/healthz", "/readyz", "/version", "/openapi.yaml", "/viewer/page/page.js"] {
        assert_eq!(status(&site.get(path).await), 200, "{path}");
        assert_eq!(status(&site.get_as("wrong", path).await), 200, "{path}");
    }
    // With a private default, every path is 401 without a token, also the list of containers and missing containers.
    for path in ["/", "/seg/v/0/0", "/absent/x", "/info/"] {
        assert_eq!(status(&site.get(path).await), 401, "{path}");
    }
    assert_eq!(status(&site.get_as(&site.nobody, "/").await), 404);
}

#[tokio::test]
async fn the_token_file_is_reloaded_and_an_invalid_file_is_ignored() {
    let site = Site::new().await;
    let mut lines = std::fs::read_to_string(site.tokens()).unwrap();
    let new = issue("alice", None, &[], &[], SystemTime::now()).unwrap();
    assert_eq!(status(&site.get_as(&new.token, "/em/v/0/0").await), 401);
    let wait_for = async |token: &str, expected: u16| {
        let is_expected = wait_until(async || status(&site.get_as(token, "/em/v/0/0").await) == expected);
        tokio::time::timeout(Duration::from_secs(10), is_expected).await == Ok(true)
    };
    lines = format!("{}\n{lines}", new.line);
    std::fs::write(site.tokens(), &lines).unwrap();
    assert!(wait_for(&new.token, 200).await);
    // A broken file changes nothing: all former tokens stay valid. The next valid file replaces them.
    std::fs::write(site.tokens(), "nonsense").unwrap();
    let second = issue("alice", None, &[], &[], SystemTime::now()).unwrap();
    for _ in 0..60 {
        assert_eq!(status(&site.get_as(&new.token, "/em/v/0/0").await), 200);
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    std::fs::write(site.tokens(), format!("{}\n", second.line)).unwrap();
    assert!(wait_for(&second.token, 200).await);
    assert!(wait_for(&new.token, 401).await);
    assert!(wait_for(&site.alice, 401).await);
}

#[tokio::test]
async fn pages_have_a_content_security_policy_and_send_no_referrer() {
    for (ancestors, expected) in [
        (vec![], "frame-ancestors 'none'"),
        (vec!["https://a.example".to_owned()], "frame-ancestors https://a.example"),
    ] {
        let site = Site::with(|config| config.server.frame_ancestors = ancestors).await;
        let page = site.get("/seg/").await;
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self';") && policy.ends_with(expected), "{policy}");
        assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    }
}

#[tokio::test]
async fn cors_allows_credentials_only_for_listed_origins() {
    let site = Site::with(|config| {
        config.cors.origins = vec!["https://viewer.example".into()];
        config.cors.credentials = true;
    })
    .await;
    for path in ["/seg/v/0/0", "/em/v/0/0"] {
        let listed = site.ask("GET", path, &[("Origin", "https://viewer.example")]).await;
        assert_eq!(listed.header("access-control-allow-origin"), Some("https://viewer.example"));
        assert_eq!(listed.header("access-control-allow-credentials"), Some("true"));
        let exposed = listed.header("access-control-expose-headers").unwrap();
        assert!(exposed.contains("www-authenticate") && !exposed.contains('*'), "{exposed}");
        let other = site.ask("GET", path, &[("Origin", "https://else.example")]).await;
        assert_eq!(other.header("access-control-allow-origin"), None);
    }
}

#[tokio::test]
async fn without_access_control_tokens_have_no_meaning() {
    let n5 = volume();
    n5.dataset("token/x", &[8, 8], &[4, 4], "raw").fill(|_| true, |_| false);
    let config = Config { containers: vec![container("", &n5)], ..Config::default() };
    let server = start_server(Duration::from_secs(20), config).await;
    let mut client = Http1Client::connect(&server).await;
    for path in ["/token/x/0/0", "/v/0/0?token=wrong", "/n5/token/x/0/0"] {
        let plain = client.ask("GET", path, &[]).await;
        assert_eq!(status(&plain), 200, "{path}");
        assert_eq!((plain.header("cache-control"), plain.header("vary")), (Some("no-cache"), None));
        let named = client.ask("GET", path, &[("Authorization", "Bearer wrong")]).await;
        assert_eq!((status(&named), named.header("cache-control")), (200, Some("no-cache")), "{path}");
    }
    assert!(
        !client.ask("GET", "/v/0/0", &[]).await.header("access-control-expose-headers").unwrap().contains("www-auth")
    );
}

#[tokio::test]
async fn with_access_control_a_group_named_token_is_reachable_below_n5() {
    let n5 = volume();
    n5.dataset("token/x", &[8, 8], &[4, 4], "raw").fill(|_| true, |_| false);
    let mut config = Config { containers: vec![container("", &n5)], ..Config::default() };
    config.access.rules = vec!["/v = nobody".into()];
    let server = start_server(Duration::from_secs(20), config).await;
    let mut client = Http1Client::connect(&server).await;
    for (path, expected) in
        [("/n5/token/x/0/0", 200), ("/token/x/0/0", 401), ("/pyramid/s0/0/0", 200), ("/v/0/0", 401), ("/n5/v/0/0", 401)]
    {
        assert_eq!(status(&client.ask("GET", path, &[]).await), expected, "{path}");
    }
}

#[tokio::test]
async fn the_base_path_precedes_the_token_in_the_path() {
    let site = Site::with(|config| config.server.base_path = "/data/n5".into()).await;
    let token = &site.alice;
    for (path, expected) in [
        (format!("/data/n5/token/{token}/em/v/0/0"), 200),
        ("/data/n5/em/v/0/0".to_owned(), 401),
        ("/em/v/0/0".to_owned(), 404),
        (format!("/token/{token}/metrics"), 200),
    ] {
        assert_eq!(status(&site.get(&path).await), expected, "{path}");
    }
    let info = text(&site.get(&format!("/data/n5/token/{token}/info/em/v")).await);
    assert!(info.contains(&format!("http://test/data/n5/token/{token}/n5/em/v")), "{info}");
}

#[tokio::test]
async fn only_fully_public_containers_take_the_fast_path() {
    use n5_server::fastpath::{FastOutcome, try_answer};
    let (em, seg) = (volume(), volume());
    let paths = |of: &str| {
        ["/{}/v/0/0", "/{}/v/attributes.json", "/{}/v/9/9", "/zarr2/{}/v/0/0"].map(|path| path.replace("{}", of))
    };
    for (rules, is_open) in [(&["/em = alice"][..], true), (&["/em = alice", "/seg/draft = bob"], false)] {
        let app = guarded(&em, &seg, rules);
        let router = n5_server::http::router(Arc::clone(&app));
        let answered = |path: &str| {
            let head = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
            matches!(try_answer(&app, None, head.as_bytes()), FastOutcome::Request(_, Some(_)))
        };
        let ask = async |path: &str| {
            let request = axum::http::Request::builder().uri(path).body(axum::body::Body::empty()).unwrap();
            drop(tower::ServiceExt::oneshot(router.clone(), request).await.unwrap());
        };
        for path in paths("seg") {
            let mut was_answered = false;
            // The fast path answers from the cache only once the file's timestamps distinguish its versions.
            for _ in 0..100 {
                ask(&path).await;
                was_answered |= answered(&path);
                if was_answered {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(was_answered, is_open, "{rules:?} {path}");
            assert!(!answered(&format!("/token/x{path}")), "{path}");
            // The fast path must not answer a path with a misplaced token, not even with 404.
            let misplaced = format!("{path}/token/n5t_{}/0", "0".repeat(64));
            assert!(!answered(&misplaced), "{misplaced}");
        }
        for path in paths("em") {
            ask(&path).await;
            assert!(!answered(&path), "{rules:?} {path}");
        }
    }
}
