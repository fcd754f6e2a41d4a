//! Errors as pages: who gets one, what it says, and where its links lead.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::http::{Request, StatusCode};
use n5_server::access::issue;
use n5_server::config::Config;
use n5_server::http::HttpOptions;
use n5_server::http::problem::{PROBLEM_TYPES, Problem};

use crate::support::faulty::{Fault, Faulty};
use crate::support::writer::N5;
use crate::support::{Client, WholeResponse, local, options, settings};

/// `Accept` of Firefox and of Chromium for a page.
const BROWSERS: [&str; 2] = [
    "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8,\
     application/signed-exchange;v=b3;q=0.7",
];

/// `Accept` of programs: none, the defaults of curl and of Java, and others.
const PROGRAMS: [&str; 5] = [
    "*/*",
    "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2",
    "text/html, */*",
    "application/json",
    "application/octet-stream",
];

fn volume() -> N5 {
    let n5 = N5::new();
    n5.dataset("a/v", &[8, 8], &[4, 4], "raw").fill(|_| true, |_| false);
    n5.dataset("a/large", &[40, 40], &[40, 40], "raw").fill(|_| true, |_| false);
    n5.file("a/info/attributes.json", "{}");
    n5.dataset("slice", &[8, 8], &[4, 4], "raw").fill(|_| true, |_| false);
    n5
}

async fn page(client: &Client, path: &str) -> (WholeResponse, String) {
    let reply = client.get_with(path, &[("accept", BROWSERS[0])]).await;
    let text = String::from_utf8(reply.body.to_vec()).unwrap();
    assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"), "{path}: {text}");
    assert!(text.starts_with("<!doctype html>\n") && text.ends_with("</html>\n"), "{text}");
    (reply, text)
}

/// Returns the heading of a page.
fn heading(page: &str) -> &str {
    page.split_once("<h1>").unwrap().1.split_once("</h1>").unwrap().0
}

/// Returns the address and text of each link that leads on.
fn ways(page: &str) -> Vec<(&str, &str)> {
    let list = page.split_once("<ul class=\"ways\">").unwrap().1.split_once("</ul>").unwrap().0;
    let items = list.split("<li><a href=\"").skip(1);
    items.map(|item| item.split_once("</a>").unwrap().0.split_once("\">").unwrap()).collect()
}

#[tokio::test]
async fn a_browser_gets_a_page_and_programs_get_the_same_document_as_ever() {
    let n5 = volume();
    let client = Client::of(n5.root());
    for (path, status, kind) in [
        ("/nosuch/", 404, "not-found"),
        ("/slice/a/v?bogus=1", 400, "invalid-parameter"),
        ("/slice/a/v?start=9,9", 400, "out-of-bounds"),
        ("/slice/a", 404, "not-a-dataset"),
        ("/slice/nosuch", 404, "not-found"),
        ("/slice/a/large?dtype=uint8&size=40,40", 422, "not-representable"),
        ("/info/nosuch", 404, "not-found"),
        ("/a//b/", 400, "invalid-parameter"),
        ("/%zz", 400, "invalid-parameter"),
        ("/a/?format=xml", 400, "invalid-parameter"),
        ("/zarr3/nosuch/", 404, "not-found"),
    ] {
        for browser in BROWSERS {
            let reply = client.get_with(path, &[("accept", browser)]).await;
            let text = String::from_utf8(reply.body.to_vec()).unwrap();
            assert_eq!((reply.status.as_u16(), reply.header("vary")), (status, Some("accept")), "{path}");
            assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"), "{path}");
            assert_eq!(reply.header("referrer-policy"), Some("no-referrer"), "{path}");
            let policy = reply.header("content-security-policy").unwrap();
            assert!(policy.contains("default-src 'none'") && !policy.contains("script"), "{path}: {policy}");
            assert!(policy.contains("frame-ancestors 'none'"), "{path}: {policy}");
            assert!(text.contains(&format!("docs/PROBLEMS.md#{kind}\"")), "{path}: {text}");
            assert!(text.contains(reply.header("x-request-id").unwrap()), "{path}: {text}");
            assert!(!text.contains("<script") && !text.contains("style="), "{path}: {text}");
            if kind == "not-representable" {
                // HEAD reads no elements.
                continue;
            }
            let head = client.send("HEAD", path, &[("accept", browser)]).await;
            assert_eq!((head.status, head.body.len()), (reply.status, 0), "{path}");
            assert_eq!(head.header("content-type"), reply.header("content-type"), "{path}");
            assert_eq!(head.header("content-length"), Some(&*reply.body.len().to_string()), "{path}");
            assert_eq!(head.header("cache-control"), reply.header("cache-control"), "{path}");
        }
        let reply = client.get(path).await;
        assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (status, kind), "{path}");
        for program in PROGRAMS {
            let other = client.get_with(path, &[("accept", program)]).await;
            // A listing may also be refused because of `Accept`, which comes first.
            let same = (other.status, &other.body) == (reply.status, &reply.body);
            assert!(same || other.problem() == "not-acceptable", "{path} {program}");
        }
    }
}

#[tokio::test]
async fn a_page_says_what_is_missing_and_leads_to_the_nearest_directory() {
    let n5 = volume();
    n5.file("1st <scan> & \"more\"/x/attributes.json", "{}");
    let client = Client::of(n5.root());
    for (path, text, expected) in [
        ("/nosuch", "/nosuch", vec![("./", "Front page")]),
        ("/nosuch/", "/nosuch", vec![("../", "Front page")]),
        ("/a/nosuch", "/a/nosuch", vec![("../a/", "Go to /a"), ("../", "Front page")]),
        ("/a/v/x/y/", "/a/v/x/y", vec![("../../../../a/v/", "Go to /a/v"), ("../../../../", "Front page")]),
        ("/n5/a/nosuch", "/a/nosuch", vec![("../../a/", "Go to /a"), ("../../", "Front page")]),
        ("/n5/slice/nosuch", "/slice/nosuch", vec![("../../n5/slice/", "Go to /slice"), ("../../", "Front page")]),
        ("/slice/a/nosuch", "/a/nosuch", vec![("../../a/", "Go to /a"), ("../../", "Front page")]),
        ("/info/a/nosuch", "/a/nosuch", vec![("../../a/", "Go to /a"), ("../../", "Front page")]),
        ("/zarr3/a/nosuch", "/a/nosuch", vec![("../../zarr3/a/", "Go to /a"), ("../../", "Front page")]),
        ("/as/gzip/a/nosuch", "/a/nosuch", vec![("../../../as/gzip/a/", "Go to /a"), ("../../../", "Front page")]),
        (
            "/1st%20%3Cscan%3E%20&%20%22more%22/%3Cb%3E",
            "/1st &lt;scan> &amp; \"more\"/&lt;b>",
            vec![
                ("../1st%20%3Cscan%3E%20%26%20%22more%22/", "Go to /1st &lt;scan> &amp; \"more\""),
                ("../", "Front page"),
            ],
        ),
    ] {
        let (reply, page) = page(&client, path).await;
        assert_eq!(reply.status, 404, "{path}");
        assert_eq!(heading(&page), format!("Not found: no group or dataset at {text}"), "{path}");
        assert_eq!(ways(&page), expected, "{path}");
        assert!(page.contains("Check the spelling"), "{page}");
    }
    // A region of a group: the group exists, and its page is the way on.
    let (_, not_a_dataset) = page(&client, "/slice/a").await;
    assert_eq!(ways(&not_a_dataset), [("../a/", "Go to /a"), ("../", "Front page")]);
    assert_eq!(heading(&not_a_dataset), "This is not a dataset");
    // Neither operations nor the viewer are in a container.
    let (_, operation) = page(&client, "/version/x").await;
    assert_eq!(heading(&operation), "Not found: nothing at /version/x");
}

#[tokio::test]
async fn a_page_of_several_containers_leads_to_the_front_page_of_one_and_of_all() {
    let (em, seg) = (volume(), volume());
    let stores = [("em", &em), ("seg", &seg)].map(|(name, n5)| (name, local(n5.root())));
    let client = Client::of_several(stores.into(), settings(), options());
    for (path, expected) in [
        ("/nosuch/a", vec![("../", "All containers")]),
        ("/em/nosuch", vec![("../em/", "Front page of em"), ("../", "All containers")]),
        (
            "/em/a/nosuch",
            vec![("../../em/a/", "Go to /em/a"), ("../../em/", "Front page of em"), ("../../", "All containers")],
        ),
    ] {
        let (_, page) = page(&client, path).await;
        assert_eq!(ways(&page), expected, "{path}");
        assert_eq!(heading(&page), format!("Not found: no group or dataset at {path}"));
    }
}

#[tokio::test]
async fn keys_of_containers_and_views_never_get_a_page() {
    let n5 = volume();
    let client = Client::of(n5.root());
    for path in [
        "/nosuch/attributes.json",
        "/a/v/9/9",
        "/a/v/.zarray",
        "/a/zarr.json",
        "/.zgroup",
        "/info",
        "/n5/a/v/9/9",
        "/zarr2/a/v/9/9",
        "/zarr2/a/v/.zmetadata-of-another-version",
        "/zarr3/nosuch/zarr.json",
        "/zarr3/a/v/c/9/9",
        "/as/gzip/a/v/9/9",
        "/precomputed/a/info",
        "/precomputed/a/v/s0/9-12_0-4_0-1",
    ] {
        for accept in BROWSERS.into_iter().chain(PROGRAMS) {
            for method in ["GET", "HEAD"] {
                let reply = client.send(method, path, &[("accept", accept)]).await;
                assert_eq!((reply.status.as_u16(), reply.body.len()), (404, 0), "{path} {accept}");
                assert_eq!((reply.header("content-length"), reply.header("content-type")), (Some("0"), None), "{path}");
            }
        }
        let accept = format!("{}, application/problem+json", BROWSERS[0]);
        let document = client.get_with(path, &[("accept", &accept)]).await;
        assert!(["not-found", "not-a-dataset"].contains(&document.problem().as_str()), "{path}");
    }
    // Where a group could be, programs get the same empty response, and a browser gets a page.
    for path in ["/nosuch", "/a/nosuch", "/zarr3/nosuch", "/2024-scan"] {
        let reply = client.get(path).await;
        assert_eq!((reply.status.as_u16(), reply.body.len()), (404, 0), "{path}");
        assert_eq!(page(&client, path).await.0.status, 404, "{path}");
    }
}

#[tokio::test]
async fn links_are_right_below_a_base_path_and_for_paths_outside() {
    let n5 = volume();
    let client = Client::new(local(n5.root()), settings(), HttpOptions { base_path: "/x/y".to_owned(), ..options() });
    for (path, root, shown) in [
        ("/x/y/nosuch", "./", "/nosuch"),
        ("/x/y/a/nosuch/", "../../", "/a/nosuch"),
        ("/x/z/nosuch", "./../../x/y/", "/x/z/nosuch"),
        ("/x", "./x/y/", "/x"),
    ] {
        let (_, page) = page(&client, path).await;
        assert_eq!(ways(&page).last(), Some(&(root, "Front page")), "{path}");
        assert!(page.contains(&format!("<link href=\"{root}viewer/page/page.css\"")), "{path}: {page}");
        assert!(page.contains(&format!("formaction=\"{root}version\"")), "{path}: {page}");
        assert_eq!(heading(&page), format!("Not found: no group or dataset at {shown}"), "{path}");
    }
}

/// Two containers with tokens. Only Ann may read `em`, and only Bob `seg/draft`; the rest of `seg` is public.
fn restricted(basic_challenge: bool) -> (Client, String, [N5; 2]) {
    let (em, seg) = (volume(), volume());
    let issued = issue("ann", None, &[], &[], SystemTime::now()).unwrap();
    let file = em.root().join("tokens");
    std::fs::write(&file, issued.line + "\n").unwrap();
    let mut config = Config::default();
    config.access.rules = vec!["/em = ann".into(), "/seg/draft = bob".into()];
    config.access.tokens = file;
    config.access.basic_challenge = basic_challenge;
    let access_control = n5_server::server::open_access_control(&config, None).unwrap();
    let stores = [("em", &em), ("seg", &seg)].map(|(name, n5)| (name, local(n5.root())));
    let options = HttpOptions { access_control, ..HttpOptions::new(&config) };
    (Client::of_several(stores.into(), settings(), options), issued.token, [em, seg])
}

#[tokio::test]
async fn a_refusal_offers_a_place_for_the_token() {
    let (client, token, _data) = restricted(false);
    let form =
        |page: &str| page.split_once("<form class=\"token\"").unwrap().1.split_once("</form>").unwrap().0.to_owned();
    for path in ["/em/", "/em", "/em/a/v/", "/slice/em/a/v?size=1,1&format=json", "/info/em/a", "/zarr3/em/a/"] {
        let (reply, page) = page(&client, path).await;
        assert_eq!(reply.status, 401, "{path}");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer realm=\"n5-server\""), "{path}");
        assert_eq!(reply.header("cache-control"), Some("no-store"), "{path}");
        assert_eq!(heading(&page), "A token is needed here", "{path}");
        let form = form(&page);
        assert!(form.starts_with(">\n"), "the form leads to the address of the page: {form}");
        assert!(form.contains("name=\"token\" type=\"password\" required"), "{form}");
        let query = path.split_once('?').map(|(_, query)| query.replace('&', "&amp;"));
        let input = query.map(|query| format!("name=\"token-query\" value=\"{query}\""));
        assert_eq!(form.contains("hidden"), input.is_some(), "{form}");
        assert!(form.contains(input.as_deref().unwrap_or_default()), "{form}");
        // What a browser sends leads to the page, or to the data at once.
        let and = if path.contains('?') { '&' } else { '?' };
        let sent = client.get_with(&format!("{path}{and}token={token}+"), &[("accept", BROWSERS[0])]).await;
        let location = sent.header("location").unwrap_or_default();
        assert!(sent.status == 200 || location.contains(&token), "{path}: {} {location}", sent.status);
    }
    // The query is kept as it is.
    let sent = format!("/em/?token={token}&token-query=after%3Da%2520b%252B%26blocks%3D1");
    let reply = client.get_with(&sent, &[("accept", BROWSERS[0])]).await;
    let location = format!("../token/{token}/em/?after=a%20b%2B&blocks=1");
    assert_eq!((reply.status.as_u16(), reply.header("location")), (303, Some(location.as_str())));
    let sent = format!("/slice/em/a/v?token={token}&token-query=size%3D1%2C1%26format%3Djson");
    assert_eq!(client.get_with(&sent, &[("accept", BROWSERS[0])]).await.status, 200);
    // Rules decide where the link leads, without a look at what exists.
    let (reply, draft) = page(&client, "/seg/draft/x").await;
    assert_eq!(reply.status, 401);
    assert_eq!(ways(&draft), [("../../seg/", "Front page of seg"), ("../../", "All containers")]);
    let (_, em) = page(&client, "/em/a/v/").await;
    assert_eq!(ways(&em), [("../../../", "All containers")]);
}

#[tokio::test]
async fn a_token_that_is_not_accepted_is_not_repeated_and_can_be_replaced() {
    let (client, token, _data) = restricted(false);
    for (path, root, action) in [
        ("/em/a/?token=wrong", "../../", ""),
        ("/token/wrong/em/a/", "../../../../", " action=\"../../../../em/a/\""),
        ("/token/wrong/em/a%20b", "../../../", " action=\"../../../em/a%20b\""),
        ("/token/wrong", "../", " action=\"../\""),
        ("/token/wrong/", "../../", " action=\"../../\""),
        ("/token/wrong/token/wrong/seg/", "../../../../../", " action=\"../../../../../seg/\""),
    ] {
        let (reply, page) = page(&client, path).await;
        assert_eq!(reply.status, 401, "{path}");
        assert!(reply.header("www-authenticate").unwrap().contains("invalid_token"), "{path}");
        assert_eq!(heading(&page), "This token is not accepted", "{path}");
        assert!(page.contains(">The token is unknown.</p>\n<p class=\"advice\">Enter another one"), "{path}: {page}");
        assert!(!page.contains("wrong"), "{path}: {page}");
        assert!(page.contains(&format!("<form class=\"token\"{action}>")), "{path}: {page}");
        assert!(page.contains(&format!("<link href=\"{root}viewer/page/page.css\"")), "{path}: {page}");
        let ways = ways(&page);
        assert_eq!(ways.first().map(|(_, text)| *text), Some("Open this page without a token"), "{path}");
        assert_eq!(ways.last(), Some(&(root, "All containers")), "{path}");
    }
    // Two tokens exclude each other.
    let (reply, two) = page(&client, &format!("/token/{token}/em/?token=wrong")).await;
    assert_eq!((reply.status.as_u16(), two.contains(&token)), (400, false));
    // A token that is accepted stays in the links, and a refused path is as one that does not exist.
    let (reply, refused) = page(&client, &format!("/token/{token}/seg/draft/x")).await;
    assert_eq!(reply.status, 404);
    assert_eq!(heading(&refused), "Not found: no group or dataset at /seg/draft/x");
    assert!(refused.contains("Or it needs a token that allows you to see it."), "{refused}");
    assert_eq!(ways(&refused), [("../../seg/", "Front page of seg"), ("../../", "All containers")]);
    let (_, missing) = page(&client, &format!("/token/{token}/seg/nosuch/x")).await;
    assert_eq!(missing.matches("../../").count(), refused.matches("../../").count());
    assert_eq!(ways(&missing), ways(&refused));
    let (_, missing) = page(&client, &format!("/slice/em/nosuch?token={token}")).await;
    let query = format!("?token={token}");
    let links = [(format!("../../em/{query}"), "Front page of em"), (format!("../../{query}"), "All containers")];
    assert_eq!(ways(&missing), links.each_ref().map(|(href, text)| (href.as_str(), *text)));
}

#[tokio::test]
async fn a_browser_is_asked_for_a_password_only_if_that_is_configured() {
    for basic_challenge in [false, true] {
        let (client, token, _data) = restricted(basic_challenge);
        for (path, bearer) in
            [("/em/", "Bearer realm=\"n5-server\""), ("/em/v/0/0?token=x", "Bearer realm=\"n5-server\", error=")]
        {
            let request = Request::get(path).body(Body::empty()).unwrap();
            let response = client.ask(request).await;
            let challenges: Vec<_> =
                response.headers().get_all("www-authenticate").iter().map(|value| value.to_str().unwrap()).collect();
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
            assert!(challenges[0].starts_with(bearer), "{challenges:?}");
            let basic: &[&str] = if basic_challenge { &["Basic realm=\"n5-server\", charset=\"UTF-8\""] } else { &[] };
            assert_eq!(&challenges[1..], basic, "{path}");
        }
        // The token is accepted as a password in both cases.
        let mut credentials = Vec::new();
        headers::Header::encode(&headers::Authorization::basic("ann", &token), &mut credentials);
        let reply = client.get_with("/em/", &[("authorization", credentials[0].to_str().unwrap())]).await;
        assert_eq!(reply.status, 200);
        assert!(
            !String::from_utf8_lossy(&reply.body).contains(&token),
            "a token from a header is never put into a URL"
        );
        // A preflight is the same in both cases.
        let preflight = [("origin", "https://example.org"), ("access-control-request-method", "GET")];
        let reply = client.send("OPTIONS", "/em/", &preflight).await;
        assert_eq!((reply.status.as_u16(), reply.header("www-authenticate")), (204, None));
        assert_eq!(reply.header("access-control-allow-credentials"), None);
    }
}

#[tokio::test]
async fn a_fault_of_the_storage_gets_a_page_that_says_when_to_try_again() {
    let n5 = volume();
    let store = Faulty::new(local(n5.root()));
    store.begin(|_| true, Fault::Errno(5));
    let client = Client::new(Arc::<Faulty>::clone(&store), settings(), options());
    let (reply, page) = page(&client, "/slice/a/v").await;
    assert_eq!((reply.status.as_u16(), reply.header("retry-after")), (503, Some("1")));
    assert_eq!(heading(&page), "The storage is unavailable");
    assert!(page.contains("<p class=\"kind\">503 Service Unavailable</p>"), "{page}");
    assert_eq!(ways(&page), [("", "Try again"), ("../../", "Front page")]);
}

#[tokio::test]
async fn a_long_missing_path_is_answered_without_a_look_at_each_of_its_directories() {
    let n5 = volume();
    let store = Faulty::new(local(n5.root()));
    let client = Client::new(Arc::<Faulty>::clone(&store), settings(), options());
    let path = format!("/slice/{}", ["x"; 500].join("/"));
    let began = std::time::Instant::now();
    let (_, page) = page(&client, &path).await;
    assert_eq!(ways(&page).len(), 1);
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn everything_that_comes_from_a_request_is_escaped() {
    let n5 = volume();
    let client = Client::of(n5.root());
    let hostile = "%3Cscript%3Ealert(1)%3C%2Fscript%3E%22%27%26";
    for path in [
        format!("/{}", hostile.replace("%2F", "")),
        format!("/slice/a/v?{hostile}=1"),
        format!("/slice/a/v?format={hostile}"),
        format!("/a/?blocks={hostile}&after=1"),
        format!("/a/{}/b/", hostile.replace("%2F", "")),
        "/%22onload=x/%ff".to_owned(),
    ] {
        let (reply, page) = page(&client, &path).await;
        assert!(reply.status.is_client_error());
        for text in ["<script", "\"onload", "alert(1)</"] {
            assert!(!page.contains(text), "{path}: {page}");
        }
    }
    let (reply, _) = page(&client, &format!("/{}", "é".repeat(3000))).await;
    assert!(reply.body.len() < 10_000, "a long path is cut off");
}

#[test]
fn every_kind_of_problem_has_advice() {
    for kind in PROBLEM_TYPES {
        assert!(kind.advice.len() > 20, "{}", kind.name);
        let response = Problem::new(*kind, "x").into_response("/", "id");
        assert_eq!(response.headers()["content-type"], "application/problem+json", "{}", kind.name);
    }
}

#[tokio::test]
async fn without_access_control_no_page_speaks_of_tokens() {
    let n5 = volume();
    let (_, page) = page(&Client::of(n5.root()), "/nosuch?token=x").await;
    assert!(!page.to_lowercase().contains("token"), "{page}");
}
