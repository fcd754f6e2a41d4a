//! Access decisions for rules, callers and paths in every spelling. They are compared with the rules as described in
//! docs/ACCESS.md, and with a server that lacks everything that the caller may not read.
//!
//! Input: lines. The first is the default, `public` or `private`. Then follow rules, one per line as in `access.rules`,
//! up to an empty line, and then requests, one per line: `WHO WHERE METHOD TARGET [ACCEPT]`. WHO is a caller's name or
//! `-`. WHERE is `q` for a token in the query, `p` for one in the path, or anything else for one in a header.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::LazyLock;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, Uri};
use bytes::Bytes;
use n5_server::access::{AccessControl, Policy};
use n5_server::fastpath::{FastOutcome, try_answer};
use percent_encoding::{percent_decode, percent_decode_str};

use super::server::{Server, WholeResponse, container, written};

/// A caller with a token, and the rights of the token according to docs/ACCESS.md.
struct Caller {
    name: &'static str,
    token: &'static str,
    /// The token is unknown or expired.
    is_bad: bool,
    groups: &'static [&'static str],
    reads: Option<&'static [&'static str]>,
}

const CALLERS: [Caller; 7] = [
    Caller { groups: &[], ..caller("alice", "n5t_alice-alice-alice-alice-alice-alice-alice-a") },
    Caller { groups: &["lab"], ..caller("bob", "n5t_bob-bob-bob-bob-bob-bob-bob-bob-bob-bob-bob") },
    caller("stranger", "n5t_stranger-stranger-stranger-stranger-strange"),
    Caller { reads: Some(&["em/v", "em/g/d"]), ..caller("link", "n5t_link-link-link-link-link-link-link-link-lin") },
    Caller { reads: Some(&[""]), groups: &["lab"], ..caller("all", "n5t_all-all-all-all-all-all-all-all-all-all-all") },
    Caller { is_bad: true, ..caller("late", "n5t_late-late-late-late-late-late-late-late-lat") },
    Caller { is_bad: true, ..caller("unknown", "n5t_unknown-unknown-unknown-unknown-unknown-unk") },
];

const fn caller(name: &'static str, token: &'static str) -> Caller {
    Caller { name, token, is_bad: false, groups: &[], reads: None }
}

/// The token file. It has the tokens of all callers but the last.
const TOKENS: &str = "\
alice 090c1f9433823c13e3ded9265dead938fba07b13aa77d107ff91ad3623d40c62
bob 3c9c40f7bf3e44695d8995380f704dd3883f432f8fb219a025f49a95e396a685 groups=lab
stranger 9ffc93a4db71b47da095ff66b4692fb1b3e244b058f15097a5864e0d6167ff9a
link e26ae90a1352196450fb75612f68ca3d791903d151a0a13d43a29cd9e1c307ce read=/em/v,/em/g/d
all 291180ea00f7a9c9ef5e64b77fc7201d37f574910815c19ff3adab6a1342d6e3 groups=lab read=/
late 0f9fad3bc14ff567572a12d6c4a3598675822601ede37236965a3c367b19f16a expires=2001-01-01T00:00:00Z
";

/// First segments of paths that need no rule.
const FREE: [&str; 5] = ["healthz", "readyz", "version", "openapi.yaml", "viewer"];

const MOST_RULES: usize = 8;
const MOST_REQUESTS: usize = 6;

/// The objects of both containers. Directories follow from their paths.
static OBJECTS: LazyLock<Vec<(String, Bytes)>> = LazyLock::new(objects);

/// Access control with the token file, opened once for all inputs. Opening it for each input would start a thread each
/// time, which watches the file.
static CONTROL: LazyLock<(AccessControl, PathBuf)> = LazyLock::new(|| {
    let directory = written(&[("tokens", Bytes::from_static(TOKENS.as_bytes()))]).expect("a file can be written");
    let path = directory.join("tokens");
    let policy = Policy::parse::<&str>(true, &[], "public").unwrap();
    (AccessControl::open(policy, Some(&path), None).expect("tokens"), path)
});

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (head, requests) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut lines = head.lines();
    let is_public = lines.next() != Some("private");
    let rules: Vec<&str> = lines.take(MOST_RULES).collect();
    // A server with an invalid rule does not start.
    let Ok(policy) = Policy::parse(is_public, &rules, "public") else { return };
    let reference = Reference::parse(is_public, &rules);
    let server = serve(policy, |_, _| true);
    let mut without = BTreeMap::new();
    for line in requests.lines().take(MOST_REQUESTS) {
        let Some(asked) = Asked::parse(line) else { continue };
        let response = server.ask(asked.request(), true);
        let what = format!("{text}\n{line}: {} {:?}", response.status, response.headers);
        reference.check(&asked, &response, &what);
        quick(&server, &asked, &response, &what);
        // A caller must not be able to detect objects that it may not read.
        let name = asked.caller.map(|caller| caller.name);
        let other = without.entry(name).or_insert_with(|| {
            let policy = Policy::parse(is_public, &rules, "public").unwrap();
            serve(policy, |path, _| reference.may_read(path, asked.caller))
        });
        let other = other.ask(asked.request(), true);
        assert_eq!(response.status, other.status, "by the status: {what}");
        let (more, less) = (told(&response.headers), told(&other.headers));
        let differ: Vec<_> = more.symmetric_difference(&less).collect();
        assert!(differ.is_empty(), "by headers, {differ:?}: {what}");
        let bodies = (response.body.escape_ascii().to_string(), other.body.escape_ascii().to_string());
        assert_eq!(bodies.0, bodies.1, "by the body: {what}");
    }
}

/// Returns the headers of a response without those that always differ.
fn told(headers: &HeaderMap) -> BTreeSet<(String, String)> {
    let differs = ["x-request-id", "date", "server-timing"];
    let told = headers.iter().filter(|(name, _)| !differs.contains(&name.as_str()));
    told.map(|(name, value)| (name.to_string(), value.as_bytes().escape_ascii().to_string())).collect()
}

/// Returns a server of the objects whose paths, with the container's name first, `keeps` accepts. Directories that it
/// accepts exist even if they are empty.
fn serve(policy: Policy, keeps: impl Fn(&str, bool) -> bool) -> Server {
    let (known, path) = &*CONTROL;
    let control = known.reconfigured(policy, Some(path), None).expect("the same file");
    let mounts = ["em", "seg"].map(|mount| {
        let mut kept = Vec::new();
        let mut directories = BTreeSet::new();
        for (path, bytes) in OBJECTS.iter() {
            let Some(key) = path.strip_prefix(mount).and_then(|rest| rest.strip_prefix('/')) else { continue };
            if keeps(path, false) {
                kept.push((key.to_owned(), bytes.clone()));
            }
            for (at, _) in path.match_indices('/') {
                directories.insert(&path[..at]);
            }
        }
        for directory in directories.into_iter().filter(|path| keeps(path, true)) {
            let key = directory.strip_prefix(mount).unwrap_or_default().trim_start_matches('/');
            kept.push((format!("{key}/no key of N5").trim_start_matches('/').to_owned(), Bytes::new()));
        }
        (mount, container(kept.iter().map(|(key, bytes)| (key.as_str(), bytes.clone()))))
    });
    Server::guarded(mounts, control)
}

/// A parsed request of the input.
struct Asked<'a> {
    caller: Option<&'static Caller>,
    place: &'a str,
    method: Method,
    target: &'a str,
    accept: &'a str,
}

impl<'a> Asked<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.splitn(5, ' ');
        let mut next = || words.next().unwrap_or_default();
        let (who, place, method, target, accept) = (next(), next(), next(), next(), next());
        // Only the caller provides the token. A token in the target would be another caller's.
        let has_token = |text: &str| percent_decode_str(text).decode_utf8_lossy().contains("token");
        // A token after `#` would not be part of the request.
        if !target.starts_with('/') || target.contains('#') || has_token(target) {
            return None;
        }
        let caller = CALLERS.iter().find(|caller| caller.name == who);
        let method = Method::from_bytes(method.as_bytes()).ok()?;
        let asked = Self { caller, place, method, target, accept };
        (Uri::try_from(asked.uri()).is_ok() && asked.accept.parse::<axum::http::HeaderValue>().is_ok()).then_some(asked)
    }

    fn uri(&self) -> String {
        let separator = if self.target.contains('?') { '&' } else { '?' };
        match (self.caller, self.place) {
            (Some(caller), "p") => format!("/token/{}{}", caller.token, self.target),
            (Some(caller), "q") => format!("{}{separator}token={}", self.target, caller.token),
            _ => self.target.to_owned(),
        }
    }

    fn request(&self) -> Request<Body> {
        let mut request = Request::builder().method(self.method.clone()).uri(self.uri());
        if let (Some(caller), false) = (self.caller, ["p", "q"].contains(&self.place)) {
            request = request.header("authorization", format!("Bearer {}", caller.token));
        }
        if !self.accept.is_empty() {
            request = request.header("accept", self.accept);
        }
        request.body(Body::empty()).unwrap()
    }

    /// Returns the requested path with the container's name first, or `None` if it is invalid or needs no rule.
    fn path(&self) -> Option<Vec<String>> {
        let uri = Uri::try_from(self.target).ok()?;
        let path = uri.path().strip_prefix('/')?;
        let path = path.strip_suffix('/').unwrap_or(path);
        let mut segments = Vec::new();
        for raw in path.split('/').filter(|_| !path.is_empty() || uri.path() != "/") {
            // A `%` without two hexadecimal digits after it.
            let mut escapes = raw.split('%').skip(1);
            if !escapes.all(|after| after.len() > 1 && after.bytes().take(2).all(|b| b.is_ascii_hexdigit())) {
                return None;
            }
            let segment = percent_decode(raw.as_bytes()).decode_utf8().ok()?.into_owned();
            let is_odd = |c: char| c.is_control() || c == '/' || c == '\\';
            if ["", ".", ".."].contains(&segment.as_str()) || segment.contains(is_odd) {
                return None;
            }
            segments.push(segment);
        }
        let skipped = match segments.first().map(String::as_str) {
            Some("n5" | "slice" | "info" | "stats" | "zarr2" | "zarr3" | "precomputed") => 1,
            Some("as") if segments.len() > 1 => 2,
            Some(first) if FREE.contains(&first) || first == "metrics" || first == "as" => return None,
            _ => 0,
        };
        Some(segments.split_off(skipped))
    }
}

/// A second implementation of the rules.
struct Reference {
    /// Principals of each rule, by the segments of its path.
    rules: BTreeMap<Vec<String>, Vec<String>>,
}

impl Reference {
    fn parse(is_public: bool, rules: &[&str]) -> Self {
        let mut parsed = BTreeMap::new();
        parsed.insert(Vec::new(), if is_public { vec!["public".to_owned()] } else { Vec::new() });
        for rule in rules {
            let (path, who) = rule.split_once(" = ").expect("a rule that was taken");
            let segments = path.trim().split('/').filter(|segment| !segment.is_empty());
            let segments = segments.map(|segment| percent_decode_str(segment).decode_utf8().unwrap().into_owned());
            parsed.insert(segments.collect(), who.split_whitespace().map(str::to_owned).collect());
        }
        Self { rules: parsed }
    }

    /// Returns true if the rule with the longest path lets the caller read `path`.
    fn may_read(&self, path: &str, caller: Option<&Caller>) -> bool {
        let path: Vec<String> = path.split('/').filter(|segment| !segment.is_empty()).map(str::to_owned).collect();
        let about = |rule: &[String]| path.starts_with(rule);
        let longest = self.rules.iter().filter(|(rule, _)| about(rule)).max_by_key(|(rule, _)| rule.len());
        let (rule, who) = longest.expect("the default is about everything");
        if who.iter().any(|word| word == "public") {
            return true;
        }
        let Some(caller) = caller.filter(|caller| !caller.is_bad && who.first().is_none_or(|word| word != "nobody"))
        else {
            return false;
        };
        let is_group = |word: &String| word.strip_prefix('@').is_some_and(|group| caller.groups.contains(&group));
        let is_named = who.iter().any(|word| word == caller.name || is_group(word));
        match caller.reads {
            None => is_named || who.iter().any(|word| word == "*"),
            // Such a token grants only its own paths, and not those below a longer rule that does not name the caller.
            Some(reads) => reads.iter().any(|read| {
                let read: Vec<String> = read.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
                path.starts_with(&read) && (rule.len() <= read.len() || is_named)
            }),
        }
    }

    fn check(&self, asked: &Asked<'_>, response: &WholeResponse, what: &str) {
        let status = response.status.as_u16();
        if asked.method != Method::GET && asked.method != Method::HEAD {
            assert!(matches!(status, 204 | 405), "{what}");
            return;
        }
        let Some(path) = asked.path() else { return };
        if asked.caller.is_some_and(|caller| caller.is_bad) {
            assert_eq!(status, 401, "a token that is not good: {what}");
            return;
        }
        let may = if path.is_empty() {
            // The list of containers.
            ["em", "seg"].iter().any(|mount| self.may_read(mount, asked.caller))
        } else {
            self.may_read(&path.join("/"), asked.caller)
        };
        if may {
            assert_ne!(status, 401, "{what}");
            return;
        }
        let is_walk = path.last().is_some_and(|name| name == "attributes.json");
        let refused = match asked.caller {
            Some(_) => status == 404,
            None => status == 401 || (is_walk && status == 404),
        };
        assert!(refused, "it may not be read: {what}");
        assert!(
            ["etag", "last-modified", "content-range", "location"].iter().all(|name| response.header(name).is_none())
        );
        assert_eq!(response.header("cache-control"), Some("no-store"), "{what}");
    }
}

/// Checks that a response of the fast path, if there is one, has the same status.
fn quick(server: &Server, asked: &Asked<'_>, response: &WholeResponse, what: &str) {
    let uri = asked.uri();
    if asked.request().headers().contains_key("authorization") || !uri.bytes().all(|byte| byte.is_ascii_graphic()) {
        return;
    }
    let request = format!("{} {uri} HTTP/1.1\r\nHost: x\r\n\r\n", asked.method);
    if let FastOutcome::Request(_, Some(reply)) = try_answer(&server.app, None, request.as_bytes()) {
        let status = format!("HTTP/1.1 {} ", response.status.as_u16());
        assert!(reply.head.starts_with(status.as_bytes()), "{}: {what}", reply.head.escape_ascii());
    }
}

/// Returns two containers with datasets, a pyramid, attributes above a dataset, and names that URLs have to escape.
fn objects() -> Vec<(String, Bytes)> {
    let dataset = |data_type: &str, more: &str| {
        Bytes::from(format!(
            "{{\"dimensions\":[4,4],\"blockSize\":[2,4],\"dataType\":\"{data_type}\",\"compression\":{{\"type\":\"raw\"}}{more}}}"
        ))
    };
    let block = |n: u8| Bytes::from([&[0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 4][..], &[n; 8]].concat());
    let text = |text: &'static str| Bytes::from_static(text.as_bytes());
    let mut objects = vec![
        ("em/attributes.json", text(r#"{"n5":"4.0.0","resolution":[4,4]}"#)),
        ("em/v/attributes.json", dataset("uint8", "")),
        ("em/v/0/0", block(1)),
        ("em/v/1/0", block(2)),
        (
            "em/p/attributes.json",
            text(r#"{"scales":[[1,1],[2,2]],"pixelResolution":{"unit":"nm","dimensions":[4,4]}}"#),
        ),
        ("em/p/s0/attributes.json", dataset("uint8", "")),
        ("em/p/s0/0/0", block(3)),
        ("em/p/s1/attributes.json", dataset("uint8", r#","downsamplingFactors":[2,2]"#)),
        ("em/p/s1/0/0", block(4)),
        ("em/g/attributes.json", text(r#"{"axes":["y","x"],"units":["um","um"],"name":"above"}"#)),
        ("em/g/d/attributes.json", dataset("int8", "")),
        ("em/g/d/1/0", block(5)),
        ("em/a b/é/attributes.json", dataset("uint8", "")),
        ("em/a b/é/0/0", block(6)),
        ("em/0/attributes.json", text(r#"{"a":1}"#)),
        ("em/n5/v/attributes.json", dataset("uint8", "")),
        ("seg/v/attributes.json", dataset("uint8", "")),
        ("seg/v/0/0", block(7)),
        ("seg/empty/0/attributes.json", text("{}")),
    ];
    objects.sort_by_key(|(path, _)| *path);
    objects.into_iter().map(|(path, bytes)| (path.to_owned(), bytes)).collect()
}
