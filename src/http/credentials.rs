//! Tokens of a request. They are removed from the request before other code sees it, so that no log line, problem, link
//! or cache can repeat a token by accident.

use std::borrow::Cow;
use std::fmt;

use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, Uri};
use headers::authorization::Basic;
use headers::{Authorization, Header};
use percent_encoding::percent_decode_str;

use crate::http::redact::{begins_like_token, redact};

/// First segment of paths that carry a token (`/token/TOKEN/...`), and name of the query parameter.
pub(crate) const TOKEN_KEYWORD: &str = "token";

/// Parameter in which the form for a token sends the query of the page, as one text. A browser would encode the parameters
/// of the query in another way, with `+` for a space.
pub(crate) const FORM_QUERY: &str = "token-query";

/// Tokens that a request presented.
#[derive(Clone, Default)]
pub(crate) struct PresentedTokens {
    /// At most two different tokens. A request with two is refused, so further ones do not matter.
    tokens: Vec<String>,
    /// The token of the path, decoded.
    path_token: Option<String>,
    /// The token of the query, decoded. Relative references do not repeat the query, so links must add the token.
    pub(crate) query_token: Option<String>,
    /// True if the path ended with its token.
    pub(crate) path_ends_in_token: bool,
    /// Number of tokens that the path began with.
    pub(crate) path_token_count: usize,
}

impl fmt::Debug for PresentedTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PresentedTokens").field("tokens", &self.tokens.len()).finish_non_exhaustive()
    }
}

impl PresentedTokens {
    /// Returns the tokens that were removed from a request.
    pub(crate) fn of(request: &Parts) -> &Self {
        static NO_TOKENS: PresentedTokens = PresentedTokens {
            tokens: Vec::new(),
            path_token: None,
            query_token: None,
            path_ends_in_token: false,
            path_token_count: 0,
        };
        request.extensions.get().unwrap_or(&NO_TOKENS)
    }

    /// Returns the token if there is one. Returns an error if there are several different ones.
    pub(crate) fn token(&self) -> Result<Option<&str>, ()> {
        match self.tokens.as_slice() {
            [] => Ok(None),
            [only] => Ok(Some(only)),
            _ => Err(()),
        }
    }

    /// Returns the token of the URL, which links must repeat.
    pub(crate) fn url_token(&self) -> Option<&str> {
        self.path_token.as_deref().or(self.query_token.as_deref())
    }

    fn add(&mut self, token: &str) {
        if !token.is_empty() && self.tokens.len() < 2 && !self.tokens.iter().any(|known| known == token) {
            self.tokens.push(token.to_owned());
        }
    }
}

/// Removes the tokens from a request: from `Authorization`, from `token` in the query, and from the start of the path
/// after `base_path`. Text elsewhere in the URL that looks like a token is redacted.
pub(crate) fn extract_tokens(request: &mut Request, base_path: &str) -> PresentedTokens {
    let mut presented = PresentedTokens::default();
    let path = take_from_path(request.uri().path(), base_path, &mut presented);
    let query = request.uri().query().map(|query| take_from_query(query, &mut presented));
    let query = query.filter(|query| !query.is_empty());
    let text = query.map_or_else(|| redact(&path), |query| format!("{}?{}", redact(&path), redact(&query)));
    if *text != *request.uri().path_and_query().map_or("", PathAndQuery::as_str) {
        let mut parts = request.uri().clone().into_parts();
        // The path and query of a URL stay valid without their tokens.
        parts.path_and_query = Some(text.parse().unwrap_or(PathAndQuery::from_static("/")));
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
    }
    take_from_headers(request.headers_mut(), &mut presented);
    presented
}

/// Returns the path without the tokens at its start. Tokens are also removed from paths outside the base path, because
/// operations are served there, and because a misplaced token must not be disclosed.
fn take_from_path(path: &str, base_path: &str, presented: &mut PresentedTokens) -> String {
    let inner = path.strip_prefix(base_path).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let (base, mut rest) = inner.map_or(("", path), |rest| (base_path, rest));
    let original = rest;
    while let Some((raw, after)) = split_token(rest) {
        let token = percent_decode_str(raw).decode_utf8_lossy().into_owned();
        presented.add(&token);
        presented.path_token = Some(token);
        presented.path_ends_in_token = after.is_empty();
        presented.path_token_count += 1;
        rest = after;
    }
    let slash = if rest.is_empty() && !original.is_empty() { "/" } else { "" };
    format!("{base}{slash}{rest}")
}

/// Splits `/token/TOKEN...` into the token and the rest.
fn split_token(path: &str) -> Option<(&str, &str)> {
    let (segment, rest) = path.strip_prefix('/')?.split_once('/')?;
    if percent_decode_str(segment).decode_utf8().ok()? != TOKEN_KEYWORD {
        return None;
    }
    let end = rest.find('/').unwrap_or(rest.len());
    rest.split_at_checked(end).filter(|(token, _)| !token.is_empty())
}

/// Returns the query without its tokens. A query that the form for a token has sent as a parameter is restored.
fn take_from_query(query: &str, presented: &mut PresentedTokens) -> String {
    let mut remaining_pairs: Vec<Cow<'_, str>> = Vec::new();
    for pair in query.split('&') {
        match form_query(pair) {
            Some(original) => {
                let pairs = original.split('&').filter(|pair| !take_token(pair, presented));
                remaining_pairs.extend(pairs.map(|pair| Cow::Owned(pair.to_owned())));
            }
            None if take_token(pair, presented) => {}
            None => remaining_pairs.push(Cow::Borrowed(pair)),
        }
    }
    remaining_pairs.join("&")
}

/// Takes the token of a pair of the query. Returns false if the pair has another name.
fn take_token(pair: &str, presented: &mut PresentedTokens) -> bool {
    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
    if !has_name(name, TOKEN_KEYWORD) {
        return false;
    }
    let decoded = percent_decode_str(value).decode_utf8_lossy();
    // People copy spaces with a token, which a form sends as `+`. No token begins or ends with either.
    let token = decoded.trim_matches(|c: char| c == '+' || c.is_whitespace());
    presented.add(token);
    presented.query_token = Some(token.to_owned()).filter(|token| !token.is_empty());
    true
}

/// Returns the query in the value of [`FORM_QUERY`], if `pair` has that name and the value can be a query.
fn form_query(pair: &str) -> Option<String> {
    let (_, value) = pair.split_once('=').filter(|(name, _)| has_name(name, FORM_QUERY))?;
    let query = percent_decode_str(value).decode_utf8().ok()?;
    let is_valid = !query.contains('#') && PathAndQuery::try_from(format!("/?{query}")).is_ok();
    is_valid.then(|| query.into_owned())
}

fn has_name(encoded: &str, name: &str) -> bool {
    percent_decode_str(encoded).decode_utf8().is_ok_and(|decoded| decoded == name)
}

/// Removes all `Authorization` headers, and takes the tokens of the schemes Bearer and Basic. Other credentials are for a
/// proxy.
fn take_from_headers(headers: &mut HeaderMap, presented: &mut PresentedTokens) {
    if !headers.contains_key(AUTHORIZATION) {
        return;
    }
    for line in headers.get_all(AUTHORIZATION) {
        let value = String::from_utf8_lossy(line.as_bytes());
        let (scheme, token) = value.trim().split_once(' ').unwrap_or((value.trim(), ""));
        if scheme.eq_ignore_ascii_case("bearer") {
            // An empty bearer token counts as presented; `-` stands for it and is never valid.
            presented.add(Some(token.trim()).filter(|token| !token.is_empty()).unwrap_or("-"));
        } else if let Some(token) = basic_token(line) {
            presented.add(&token);
        }
    }
    headers.remove(AUTHORIZATION);
}

/// Returns the password of HTTP Basic credentials if it begins like a token. The name is ignored. Any other password is
/// for a proxy, which may pass it on.
fn basic_token(value: &HeaderValue) -> Option<String> {
    let credentials = Authorization::<Basic>::decode(&mut std::iter::once(value)).ok()?;
    Some(credentials.password().trim()).filter(|password| begins_like_token(password)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use proptest::prelude::*;

    use super::*;

    fn extract_from(uri: &str, headers: &[&str]) -> (String, PresentedTokens) {
        let mut request = Request::builder().uri(uri);
        for value in headers {
            request = request.header(AUTHORIZATION, *value);
        }
        let mut request = request.body(Body::empty()).unwrap();
        let presented = extract_tokens(&mut request, "/x");
        assert!(!request.headers().contains_key(AUTHORIZATION));
        (request.uri().to_string(), presented)
    }

    #[test]
    fn tokens_are_found_and_removed_in_every_permitted_place() {
        for (uri, expected_uri, token) in [
            ("/x/token/T/a/0?size=1", "/x/a/0?size=1", "T"),
            ("/x/%74oken/%54/a", "/x/a", "T"),
            ("/x/a?token=T", "/x/a", "T"),
            ("/x/a?b=1&tok%65n=%54&c", "/x/a?b=1&c", "T"),
            ("/token/T/metrics", "/metrics", "T"),
            ("/x/token/T/", "/x/", "T"),
            ("http://h/x/token/T/a", "http://h/x/a", "T"),
            ("/x/token/T/a?token=T", "/x/a", "T"),
        ] {
            let (remaining_uri, presented) = extract_from(uri, &[]);
            assert_eq!((remaining_uri.as_str(), presented.token()), (expected_uri, Ok(Some(token))), "{uri}");
            assert_eq!(presented.url_token(), Some(token), "{uri}");
        }
        let (remaining_uri, presented) = extract_from("/x/a", &["bEARER  T "]);
        assert_eq!((remaining_uri.as_str(), presented.token(), presented.url_token()), ("/x/a", Ok(Some("T")), None));
    }

    fn basic(credentials: &str) -> String {
        let (name, password) = credentials.split_once(':').unwrap();
        let mut values = Vec::new();
        Authorization::basic(name, password).encode(&mut values);
        values[0].to_str().unwrap().to_owned()
    }

    #[test]
    fn a_token_is_the_password_of_http_basic_with_any_name() {
        let jwt = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl";
        for (credentials, token) in [
            (":n5t_1", Some("n5t_1")),
            ("ann:n5t_1", Some("n5t_1")),
            ("ann:n5t_1 ", Some("n5t_1")),
            (&format!("é:{jwt}"), Some(jwt)),
            // A proxy checks these.
            ("ann:secret", None),
            ("n5t_1:", None),
            ("ann:x:n5t_1", None),
            (":eyJhbGciOiJSUzI1NiJ9", None),
        ] {
            let header = basic(credentials);
            let (_, presented) = extract_from("/x/a", &[&header]);
            assert_eq!((presented.token(), presented.url_token()), (Ok(token), None), "{credentials}");
            let lower = header.replace("Basic", "bASIC");
            assert_eq!(extract_from("/x/a", &[&lower]).1.token(), Ok(token), "{credentials}");
        }
        for invalid in ["Basic", "Basic ", "Basic !", "Basic bjV0XzE=", "Basic OjV0X/8="] {
            assert_eq!(extract_from("/x/a", &[invalid]).1.token(), Ok(None), "{invalid}");
        }
        assert_eq!(extract_from("/x/a?token=n5t_2", &[&basic(":n5t_1")]).1.token(), Err(()));
    }

    #[test]
    fn spaces_around_a_token_from_a_form_are_ignored() {
        for query in ["token=T+", "token=+T", "token=%20T%0A", "token=++T++"] {
            let (_, presented) = extract_from(&format!("/x/a?{query}"), &[]);
            assert_eq!((presented.token(), presented.url_token()), (Ok(Some("T")), Some("T")), "{query}");
        }
        assert_eq!(extract_from("/x/a?token=+", &[]).1.token(), Ok(None));
    }

    #[test]
    fn the_query_that_a_form_sends_as_a_parameter_is_restored() {
        for (sent, restored) in [
            ("token=T&token-query=after%3Da%2520b%26c%2Bd%3D%252B%26e", "?after=a%20b&c+d=%2B&e"),
            ("token-query=a%3D1&token=T", "?a=1"),
            ("token=T&token-query=", ""),
            // Tokens are never left in the query, and a query in a restored query is a parameter like any other.
            ("token-query=a%26token%3DT", "?a"),
            ("token=T&token-query=token-query%3Da%2526token%253DU", "?token-query=a%26token%3DU"),
            // No such query can have been sent.
            ("token=T&token-query=a%20b", "?token-query=a%20b"),
            ("token=T&token-query=a%23b", "?token-query=a%23b"),
            ("token=T&token-query=%FF", "?token-query=%FF"),
        ] {
            let (remaining_uri, presented) = extract_from(&format!("/x/a?{sent}"), &[]);
            assert_eq!((remaining_uri, presented.token()), (format!("/x/a{restored}"), Ok(Some("T"))), "{sent}");
        }
    }

    #[test]
    fn the_path_of_a_token_becomes_the_root_with_a_slash() {
        let (remaining_uri, presented) = extract_from("/x/token/T", &[]);
        assert_eq!((remaining_uri.as_str(), presented.path_ends_in_token), ("/x/", true));
        assert!(!extract_from("/x/token/T/", &[]).1.path_ends_in_token);
    }

    #[test]
    fn text_that_is_not_a_token_is_unchanged() {
        for uri in
            ["/x/tokens/T/a", "/x/a/token/T", "/x/token", "/x/token/", "/x/token//a", "/x/n5/token/T/a", "/x/a?b"]
        {
            let (remaining_uri, presented) = extract_from(uri, &["Basic YTpi"]);
            assert_eq!((remaining_uri.as_str(), presented.token()), (uri, Ok(None)), "{uri}");
        }
        assert_eq!(extract_from("/x/a?token=", &[]).1.token(), Ok(None));
        assert_eq!(extract_from("/x/a", &["Bearer"]).1.token(), Ok(Some("-")));
    }

    #[test]
    fn different_tokens_are_an_error() {
        for (uri, header) in [
            ("/x/token/T/a?token=U", "Basic x"),
            ("/x/a?token=T&token=U", "Basic x"),
            ("/x/token/T/token/U/a", "Basic x"),
            ("/x/a?token=T", "Bearer U"),
        ] {
            assert_eq!(extract_from(uri, &[header]).1.token(), Err(()), "{uri}");
        }
        assert_eq!(extract_from("/x/a", &["Bearer T", "Bearer U"]).1.token(), Err(()));
        assert_eq!(extract_from("/x/token/T/token/T/a?token=T", &["Bearer T"]).1.token(), Ok(Some("T")));
    }

    #[test]
    fn a_misplaced_token_is_redacted() {
        let token = format!("n5t_{}", "0".repeat(64));
        let jwt = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl";
        for secret in [token.as_str(), jwt] {
            for uri in
                [format!("/x/zarr2/token/{secret}/a"), format!("/x/a?access_token={secret}&b"), format!("/y/{secret}")]
            {
                let (remaining_uri, _) = extract_from(&uri, &[]);
                assert!(!remaining_uri.contains(secret) && remaining_uri.contains("..."), "{remaining_uri}");
            }
        }
        assert_eq!(extract_from("/x/n5t_volume/eyJ/0.0.0", &[]).0, "/x/n5t_volume/eyJ/0.0.0");
    }

    #[test]
    fn a_long_url_is_redacted_in_linear_time() {
        // These 64 MB would take minutes if every match were searched for in all the text that follows.
        for piece in ["/eyJ", "/n5t_", "/eyJ/n5t_"] {
            let text = piece.repeat((8 << 20) / piece.len());
            assert_eq!(redact(&text), text);
        }
        let (_, presented) = extract_from(&format!("/x/a?{}", "token=a&token=b&token=c&".repeat(1000)), &[]);
        assert_eq!((presented.token(), presented.tokens.len()), (Err(()), 2));
    }

    proptest! {
        #[test]
        fn no_url_panics(uri in "/(x/)?((token|%74oken|n5t_|eyJ|é|%ff|a)/?){0,5}(\\?[a-z=&%]{0,20})?") {
            if uri.parse::<Uri>().is_ok() {
                let _ = extract_from(&uri, &[]);
            }
        }
    }
}
