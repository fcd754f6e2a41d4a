//! Parts that all pages share: escaping, the footer, and relative references to the server's root.

use std::borrow::Cow;

use crate::http::credentials::PresentedTokens;

/// The project's repository, which shows the documentation.
const REPOSITORY_URL: &str = env!("CARGO_PKG_REPOSITORY");

/// Escapes text between tags. Only `&` and `<` have a meaning there. `>` and `"` are left as they are, because N5 for Java
/// does not unescape the names in a listing.
pub(crate) fn escape_text(text: &str) -> Cow<'_, str> {
    if !text.contains(['&', '<']) {
        return Cow::Borrowed(text);
    }
    text.replace('&', "&amp;").replace('<', "&lt;").into()
}

/// Escapes the value of an attribute in double quotes.
pub(crate) fn escape_attribute(text: &str) -> Cow<'_, str> {
    if !text.contains(['&', '<', '>', '"']) {
        return Cow::Borrowed(text);
    }
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").into()
}

/// Returns the relative reference from the page at `path` to the server's root: `./`, `../` and so on. An absolute one
/// would be wrong behind a proxy that strips or adds a prefix. `path` is the path of the request without its tokens, and
/// `base_path` the prefix that the server expects. `hidden_segments` is the number of segments that the address in the
/// browser has in addition, between the root and the page.
pub(crate) fn relative_root(path: &str, base_path: &str, hidden_segments: usize) -> String {
    let depth = |path: &str| path.matches('/').count().saturating_sub(1).saturating_add(hidden_segments);
    match path.strip_prefix(base_path) {
        Some(inner) if inner.starts_with('/') => match depth(inner) {
            0 => "./".to_owned(),
            depth => "../".repeat(depth),
        },
        // The root itself without a slash at its end.
        _ if path == base_path => format!("./{}/", base_path.rsplit('/').next().unwrap_or_default()),
        // A path outside.
        _ => format!("./{}{}/", "../".repeat(depth(path)), base_path.trim_start_matches('/')),
    }
}

/// Returns the relative reference from the page at `path` to the root of the server as a client without a token in the
/// path sees it.
pub(crate) fn relative_root_without_token(path: &str, base_path: &str, presented: &PresentedTokens) -> String {
    let token_segments = presented.path_token_count.saturating_mul(2);
    // The last segment of an address does not count, and here it is the token.
    let hidden_segments = token_segments.saturating_sub(usize::from(presented.path_ends_in_token));
    relative_root(path, base_path, hidden_segments)
}

/// Renders the footer. `root` is the relative reference to the server's root.
///
/// No program that looks for entries in a listing may find one here. Neuroglancer takes every `a` whose address is below
/// that of the listing for an entry, as the ones below the root are. Therefore these are buttons. The only `a` leads to
/// another host. N5 for Java and fsspec look for `href` followed by a quote, and fsspec also for `://`.
pub(crate) fn footer(root: &str) -> String {
    let repository = REPOSITORY_URL.replace("//", "&#47;&#47;");
    format!(
        "<footer><form><span>n5-server {version}</span>\
         <button formaction=\"{root}openapi.yaml\">API description</button>\
         <a href={repository}#readme rel=noreferrer>Documentation</a>\
         <button formaction=\"{root}version\">Version and formats</button></form></footer>\n",
        version = env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_escapes_less_than_attributes_do() {
        let name = r#"<a> & "b" 'c'"#;
        assert_eq!(escape_text(name), r#"&lt;a> &amp; "b" 'c'"#);
        assert_eq!(escape_attribute(name), "&lt;a&gt; &amp; &quot;b&quot; 'c'");
        assert_eq!((escape_text("é>\""), escape_attribute("é'")), ("é>\"".into(), "é'".into()));
    }

    #[test]
    fn references_lead_from_every_address_to_the_root() {
        // The path of the request, the base path, segments that only the browser sees; the address that a browser sees,
        // and the root.
        for (path, base_path, hidden_segments, address, root) in [
            ("/", "", 0, "http://h/", "http://h/"),
            ("/a", "", 0, "http://h/a", "http://h/"),
            ("/a/b/", "", 0, "http://h/proxy/a/b/", "http://h/proxy/"),
            ("/x/a/b", "/x", 0, "http://h/x/a/b", "http://h/x/"),
            ("/x/a/b", "/x", 0, "http://h/another/prefix/a/b", "http://h/another/prefix/"),
            ("/x", "/x", 0, "http://h/x", "http://h/x/"),
            ("/x/y", "/x/y", 0, "http://h/x/y", "http://h/x/y/"),
            ("/a/b", "/x", 0, "http://h/a/b", "http://h/x/"),
            ("/xy", "/x", 0, "http://h/xy", "http://h/x/"),
            ("/a//b", "", 0, "http://h/a//b", "http://h/"),
            ("/x/a/b", "/x", 2, "http://h/x/token/T/a/b", "http://h/x/"),
            ("/x/", "/x", 1, "http://h/x/token/T", "http://h/x/"),
            ("/x/", "/x", 2, "http://h/x/token/T/", "http://h/x/"),
        ] {
            let reference = relative_root(path, base_path, hidden_segments);
            assert_eq!(resolve(address, &reference), root, "{path} {base_path} {address} {reference}");
        }
    }

    /// Resolves a relative reference as browsers do.
    fn resolve(address: &str, reference: &str) -> String {
        let (host, path) = address.split_at("http://h".len());
        let mut segments: Vec<&str> = path.split('/').collect();
        segments.pop();
        for segment in reference.split('/') {
            match segment {
                "." => {}
                ".." => drop(segments.pop().filter(|_| segments.len() > 1)),
                other => segments.push(other),
            }
        }
        format!("{host}{}", segments.join("/"))
    }

    #[test]
    fn no_parser_of_listings_finds_an_entry_in_the_footer() {
        let footer = footer("../");
        assert!(footer.contains(&format!("n5-server {}", env!("CARGO_PKG_VERSION"))), "{footer}");
        for pattern in ["href=\"", "href='", "HREF", "://", "<A"] {
            assert!(!footer.contains(pattern), "{pattern}");
        }
        assert_eq!(footer.matches("<a ").count(), 1);
        assert!(footer.contains("href=https:&#47;&#47;"), "the only link leads to another host: {footer}");
    }
}
