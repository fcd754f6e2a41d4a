//! Errors as pages, which people read: what happened, what to do, and where to go from here. Programs get problem
//! documents.
//!
//! A browser is recognized by `application/xhtml+xml` in `Accept`. `text/html` is not enough, because Java names it by
//! default. A request for a key never gets a page: programs request thousands of missing keys.

use std::fmt::Write;

use axum::body::Body;
use axum::http::header::ACCEPT;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Response, StatusCode};
use futures_util::future::BoxFuture;

use crate::http::app::App;
use crate::http::credentials::{FORM_QUERY, PresentedTokens, TOKEN_KEYWORD};
use crate::http::html::{self, escape_attribute, escape_text};
use crate::http::observe::request_id;
use crate::http::problem::{
    self, INTERNAL, ISSUER_UNAVAILABLE, NOT_FOUND, OVERLOADED, Problem, STORAGE_UNAVAILABLE, TIMEOUT, TOO_MANY,
    UNAUTHORIZED,
};
use crate::http::redact::redacted_excerpt;
use crate::http::request::RequestContext;
use crate::http::respond::HandlerResult;
use crate::http::route::{self, Endpoint, RequestTarget};
use crate::http::routes::page;
use crate::store::Key;

/// Content Security Policy of a page. It needs no script.
const ERROR_CSP: &str = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'";

/// Media type that only browsers name.
const XHTML: &str = "application/xhtml+xml";

/// Returns true if an error response to this request is a page. `target` is `None` if the path is invalid.
pub(crate) fn is_wanted(parts: &Parts, target: Option<&RequestTarget>) -> bool {
    let is_accepted = |line: &[u8]| line.windows(XHTML.len()).any(|part| part.eq_ignore_ascii_case(XHTML.as_bytes()));
    let accept = || parts.headers.get_all(ACCEPT).iter().map(HeaderValue::as_bytes);
    accept().any(is_accepted) && !accept().any(Problem::is_named_in_accept) && is_possible(parts, target)
}

/// Returns true if an error response to this request is a page for clients that accept one.
pub(crate) fn is_possible(parts: &Parts, target: Option<&RequestTarget>) -> bool {
    !match target {
        Some(target) => target.names_key(),
        None => parts.uri.path().rsplit('/').next().is_some_and(route::is_key_name),
    }
}

/// Runs a handler. If it fails because of the request or the data, adds the nearest directory to the problem.
pub(crate) async fn add_nearest_directory(
    context: &RequestContext<'_>,
    handling: BoxFuture<'_, HandlerResult>,
) -> HandlerResult {
    match handling.await {
        Err(problem) if !is_temporary(&problem) => Err(problem.with_directory(nearest_directory(context).await)),
        outcome => outcome,
    }
}

/// Returns true if the same request may succeed later.
fn is_temporary(problem: &Problem) -> bool {
    let temporary = [TOO_MANY, INTERNAL, STORAGE_UNAVAILABLE, ISSUER_UNAVAILABLE, OVERLOADED, TIMEOUT];
    temporary.contains(&problem.problem_type())
}

/// Returns the number of leading segments of the target's path that lead to an existing directory which the caller may
/// see. The search begins at the top, so that a long path of missing directories takes one look-up.
async fn nearest_directory(context: &RequestContext<'_>) -> usize {
    let Some(path) = context.target.container_path() else { return 0 };
    let Ok(Some((mount, _))) = context.locate(path) else { return 0 };
    let mount_segments = usize::from(!context.app.has_root_mount());
    let mut found = mount_segments;
    for end in mount_segments.saturating_add(1)..=path.len() {
        let Some(Ok(key)) = path.get(mount_segments..end).map(Key::from_segments) else { break };
        if !mount.container.is_directory(context.read_options, &key).await.unwrap_or(false) {
            break;
        }
        found = end;
    }
    found
}

/// Returns the response with the page of a problem.
pub(crate) fn respond(app: &App, parts: &Parts, target: Option<&RequestTarget>, problem: Problem) -> Response<Body> {
    let page = ErrorPage::new(app, parts, target, &problem).render();
    let mut response = problem.into_page_response(page);
    page::add_security_headers(response.headers_mut(), ERROR_CSP, &app.options.frame_ancestors);
    response
}

/// The problem and the request that a page describes.
struct ErrorPage<'a> {
    app: &'a App,
    parts: &'a Parts,
    target: Option<&'a RequestTarget>,
    problem: &'a Problem,
    presented: &'a PresentedTokens,
    /// True if the token of the request is not accepted. Links then do not repeat it.
    has_invalid_token: bool,
    /// Relative reference to the root, which is below the token if the path has a valid one.
    root: String,
    /// Relative reference to the root as a client without a token in the path sees it.
    plain_root: String,
}

impl<'a> ErrorPage<'a> {
    fn new(app: &'a App, parts: &'a Parts, target: Option<&'a RequestTarget>, problem: &'a Problem) -> Self {
        let presented = PresentedTokens::of(parts);
        let has_token = !matches!(presented.token(), Ok(None));
        // Several different tokens are invalid together.
        let has_invalid_token = presented.token().is_err() || (has_token && problem.problem_type() == UNAUTHORIZED);
        let (path, base_path) = (parts.uri.path(), app.options.base_path.as_str());
        let plain_root = html::relative_root_without_token(path, base_path, presented);
        let is_below_token = !has_invalid_token && !presented.path_ends_in_token;
        let root = if is_below_token { html::relative_root(path, base_path, 0) } else { plain_root.clone() };
        Self { app, parts, target, problem, presented, has_invalid_token, root, plain_root }
    }

    fn render(&self) -> String {
        let kind = self.problem.problem_type();
        let heading = self.heading();
        let (heading, root) = (escape_text(&heading), &self.root);
        let mut html = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
             <title>{heading}</title>\n<link href=\"{root}viewer/page/page.css\" rel=\"stylesheet\">\n\
             <link href=\"{root}viewer/page/error.css\" rel=\"stylesheet\">\n\
             <link href=\"{root}viewer/page/icon.svg\" rel=\"icon\">\n</head>\n<body>\n<main class=\"failure\">\n\
             <p class=\"kind\">{status}</p>\n<h1>{heading}</h1>\n",
            status = status_text(kind.status),
        );
        for text in self.detail().into_iter().chain([self.advice()]) {
            let _ = writeln!(html, "<p class=\"advice\">{}</p>", escape_text(&text));
        }
        if kind == UNAUTHORIZED {
            html.push_str(&self.token_form(" autofocus"));
        }
        html.push_str(&self.links());
        if kind == NOT_FOUND && self.app.options.access_control.is_some() {
            let _ = writeln!(html, "<details><summary>Use another token</summary>{}</details>", self.token_form(""));
        }
        html.push_str(&self.facts());
        let _ = write!(html, "</main>\n{}</body>\n</html>\n", html::footer(root));
        html
    }

    /// Returns what happened, in plain words.
    fn heading(&self) -> String {
        let kind = self.problem.problem_type();
        if kind == NOT_FOUND {
            return format!("Not found: {} at {}", self.subject(), self.shown_path());
        }
        match kind {
            UNAUTHORIZED if self.has_invalid_token => "This token is not accepted".to_owned(),
            UNAUTHORIZED => "A token is needed here".to_owned(),
            _ => kind.title.to_owned(),
        }
    }

    /// Returns what is missing.
    fn subject(&self) -> &'static str {
        match self.target.map(|target| target.endpoint) {
            Some(Endpoint::Operation(_) | Endpoint::Viewer) => "nothing",
            _ => "no group or dataset",
        }
    }

    /// Returns the path in the container, or the path of the URL if that is not about a container.
    fn shown_path(&self) -> String {
        let is_of_container =
            |target: &&RequestTarget| !matches!(target.endpoint, Endpoint::Operation(_) | Endpoint::Viewer);
        let target = self.target.filter(is_of_container);
        let path = target.and_then(RequestTarget::container_path).filter(|path| !path.is_empty());
        let path = path.map(|path| format!("/{}", path.join("/")));
        redacted_excerpt(path.as_deref().unwrap_or(self.parts.uri.path()))
    }

    /// Returns the detail as a sentence, unless the heading says the same or only a program could use it.
    fn detail(&self) -> Option<String> {
        let detail = self.problem.detail();
        let is_known =
            detail == problem::NO_SUCH_KEY || (self.problem.problem_type() == UNAUTHORIZED && !self.has_invalid_token);
        (!is_known).then(|| sentence(detail))
    }

    /// Returns what to do.
    fn advice(&self) -> String {
        let kind = self.problem.problem_type();
        let is_restricted = self.app.options.access_control.is_some();
        match kind {
            UNAUTHORIZED if self.has_invalid_token => {
                "Enter another one, or ask the operator of this server.".to_owned()
            }
            NOT_FOUND if is_restricted => format!("{} Or it needs a token that allows you to see it.", kind.advice),
            _ => kind.advice.to_owned(),
        }
    }

    /// Renders the form that asks for a token. It sends the token in the query, from where the server moves it into the
    /// path of a page. Its log, and the addresses that pages send to other servers, contain neither.
    fn token_form(&self, autofocus: &str) -> String {
        let path = self.parts.uri.path();
        let inner = path.strip_prefix(self.app.options.base_path.as_str()).unwrap_or_default().trim_start_matches('/');
        // Without an action, the form leads to the address of the page, where the token in the path would remain.
        let action = match self.presented.path_token_count {
            0 => String::new(),
            _ => format!(" action=\"{}{}\"", self.plain_root, escape_attribute(inner)),
        };
        let mut form = format!(
            "<form class=\"token\"{action}>\n<label for=\"token\">Token</label>\n\
             <input id=\"token\" name=\"{TOKEN_KEYWORD}\" type=\"password\" required autocomplete=\"current-password\" \
             spellcheck=\"false\" autocapitalize=\"none\"{autofocus}>\n"
        );
        if let Some(query) = self.parts.uri.query() {
            let query = escape_attribute(query);
            let _ = writeln!(form, "<input type=\"hidden\" name=\"{FORM_QUERY}\" value=\"{query}\">");
        }
        let _ = writeln!(form, "<button class=\"primary\">Open</button>\n</form>");
        form
    }

    /// Renders the links that lead on.
    fn links(&self) -> String {
        let mut links = String::from("<ul class=\"ways\">\n");
        let mut add = |href: &str, text: &str| {
            let _ = writeln!(links, "<li><a href=\"{}\">{}</a></li>", escape_attribute(href), escape_text(text));
        };
        if is_temporary(self.problem) {
            add("", "Try again");
        }
        if self.has_invalid_token && self.presented.url_token().is_some() {
            let inner = self.parts.uri.path().strip_prefix(self.app.options.base_path.as_str()).unwrap_or_default();
            add(&format!("{}{}", self.plain_root, inner.trim_start_matches('/')), "Open this page without a token");
        }
        let token = self.presented.query_token.as_deref().filter(|_| !self.has_invalid_token);
        let token = token.map(|token| format!("?token={}", route::encode_segment(token))).unwrap_or_default();
        let path = self.target.and_then(RequestTarget::container_path).unwrap_or_default();
        let mount_segments = usize::from(!self.app.has_root_mount());
        let found_segments = self.problem.directory();
        if let Some(target) = self.target
            && let Some(directory) = path.get(..found_segments).filter(|found| found.len() > mount_segments)
        {
            let encoded = route::encode_path(directory.iter().map(String::as_str));
            let href = format!("{}{}{encoded}/{token}", self.root, listing_prefix(target, directory));
            add(&href, &format!("Go to /{}", directory.join("/")));
        }
        if let Some(name) = path.first().filter(|_| mount_segments == 1 && found_segments >= 1) {
            let href = format!("{}{}/{token}", self.root, route::encode_segment(name));
            add(&href, &format!("Front page of {name}"));
        }
        let text = if mount_segments == 1 { "All containers" } else { "Front page" };
        add(&format!("{}{token}", self.root), text);
        links + "</ul>\n"
    }

    /// Renders what helps to report the problem.
    fn facts(&self) -> String {
        let kind = self.problem.problem_type();
        let id = request_id(&self.parts.headers);
        let address = redacted_excerpt(self.parts.uri.path());
        let rows = [
            ("Address", format!("<code>{}</code>", escape_text(&address))),
            ("Request ID", format!("<code>{}</code>", escape_text(id))),
            (
                "About this error",
                format!("<a href=\"{}{}\" rel=\"noreferrer\">{}</a>", problem::TYPE_BASE_URI, kind.name, kind.name),
            ),
        ];
        let rows = rows.map(|(name, value)| format!("<div><dt>{name}</dt><dd>{value}</dd></div>\n"));
        format!("<dl class=\"facts\">\n{}</dl>\n", rows.concat())
    }
}

/// Returns the prefix of the path of a directory's page: the view of the request, or none. A directory with the name of a
/// route is below `n5/`.
fn listing_prefix(target: &RequestTarget, directory: &[String]) -> String {
    if let Endpoint::View(view) = target.endpoint {
        let parameters = target.segments.get(..view.path_parameter_count()).unwrap_or_default();
        let names = std::iter::once(view.name()).chain(parameters.iter().map(String::as_str));
        return route::encode_path(names) + "/";
    }
    let first = directory.first().map(String::as_str).unwrap_or_default();
    let is_reserved = first == TOKEN_KEYWORD || route::endpoints().any(|(name, _)| name == first);
    if is_reserved { "n5/".to_owned() } else { String::new() }
}

/// Returns the number of a status and its name.
fn status_text(status: StatusCode) -> String {
    format!("{} {}", status.as_str(), status.canonical_reason().unwrap_or_default())
}

/// Returns a detail as a sentence: with a capital letter and a full stop.
fn sentence(detail: &str) -> String {
    let mut letters = detail.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    let end = if detail.ends_with(['.', '?', '!']) { "" } else { "." };
    format!("{first}{}{end}", letters.as_str())
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;
    use crate::http::problem::PROBLEM_TYPES;

    #[test]
    fn only_a_browser_that_requests_no_key_gets_pages() {
        let is_wanted_for = |accept: &[&str], path: &str| {
            let mut request = Request::builder().uri(path);
            for line in accept {
                request = request.header("accept", *line);
            }
            let parts = request.body(()).unwrap().into_parts().0;
            is_wanted(&parts, RequestTarget::parse(path, "").ok().flatten().as_ref())
        };
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8";
        for path in ["/", "/nosuch", "/a/2024-scan", "/slice/a?bogus", "/info/a", "/zarr3/nosuch", "/a/0/", "/a//b"] {
            assert!(is_wanted_for(&[browser], path), "{path}");
            assert!(is_wanted_for(&["image/avif", "Application/XHTML+xml"], path), "{path}");
            let java = "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2";
            for accept in [java, "*/*", "application/json", "application/problem+json, application/xhtml+xml"] {
                assert!(!is_wanted_for(&[accept], path), "{path} {accept}");
            }
            assert!(!is_wanted_for(&[], path), "{path}");
        }
        for path in [
            "/attributes.json",
            "/a/0/0",
            "/a/.zarray",
            "/a/zarr.json",
            "/n5/a/0",
            "/info",
            "/zarr3/a/zarr.json",
            "/zarr3/a/c/0/0",
            "/zarr3/a/c",
            "/zarr2/a/.zattrs",
            "/zarr2/a/0.0.0",
            "/precomputed/a/info",
            "/precomputed/a/s0/-4-0_0-4_0-1",
            "/as/gzip/a/attributes.json",
            "/a//0",
        ] {
            assert!(!is_wanted_for(&[browser], path), "{path}");
        }
    }

    #[test]
    fn every_advice_is_whole_sentences() {
        for kind in PROBLEM_TYPES {
            let advice = kind.advice;
            assert!(advice.starts_with(char::is_uppercase) && advice.ends_with('.'), "{}: {advice}", kind.name);
            assert!(!advice.contains(['&', '<', '\n']) && !advice.contains("  "), "{}: {advice}", kind.name);
        }
    }

    #[test]
    fn a_detail_is_shown_as_a_sentence() {
        assert_eq!(sentence("no such key"), "No such key.");
        assert_eq!(sentence("Is it? no!"), "Is it? no!");
        assert_eq!((sentence("é"), sentence("")), ("É.".to_owned(), ".".to_owned()));
    }
}
