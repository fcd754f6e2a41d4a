//! Indexes of directories as HTML: those of nginx, Apache, Python's `http.server`, Go's file server and others.

use html5gum::{DefaultEmitter, StartTag, Token, Tokenizer};
use percent_encoding::percent_decode_str;
use url::Url;

use super::index_entry::IndexEntry;

/// Beginnings of the titles and headings of indexes, in lower case: of nginx, Apache, lighttpd and n5-server; of Python,
/// rclone and Tomcat; of Jetty; of the npm package serve.
const HEADINGS: &[&str] = &["index of /", "directory listing", "directory: /", "files within "];

/// Maximum number of bytes of a heading that are compared.
const MAX_HEADING_BYTES: usize = 256;

/// Tags of an index without a heading. Go's file server writes nothing but links in a `pre`.
const PLAIN_TAGS: &[&[u8]] = &[b"html", b"head", b"meta", b"body", b"pre", b"a", b"br", b"hr"];

/// Reads an index and calls `visit` with each entry. The links to direct children of `base`, the URL of the directory,
/// are its entries. Returns false, without a call, if the page is no index, as the page that an application returns
/// for any path.
pub(super) fn parse_html(html: &[u8], base: &Url, mut visit: impl FnMut(IndexEntry<'_>)) -> bool {
    if !is_index(html, base) {
        return false;
    }
    for token in tokens(html) {
        if let Token::StartTag(tag) = token
            && let Some(href) = href_of(&tag)
        {
            visit_child(base, &href, &mut visit);
        }
    }
    true
}

/// Returns true if a page says in its title or heading that it is an index, or if it consists of links to children.
fn is_index(html: &[u8], base: &Url) -> bool {
    let mut heading: Option<Vec<u8>> = None;
    let (mut has_plain_tags_only, mut has_pre, mut has_heading) = (true, false, false);
    for token in tokens(html) {
        match token {
            Token::StartTag(tag) => {
                let is_heading = is_heading_tag(&tag.name);
                has_heading |= is_heading;
                heading = is_heading.then(Vec::new);
                has_plain_tags_only &= PLAIN_TAGS.contains(&tag.name.as_slice());
                has_pre |= tag.name.as_slice() == b"pre";
                if let Some(href) = href_of(&tag) {
                    let mut is_child = false;
                    visit_child(base, &href, &mut |_| is_child = true);
                    has_plain_tags_only &= is_child;
                }
            }
            Token::String(text) => {
                if let Some(heading) = &mut heading {
                    let room = MAX_HEADING_BYTES.saturating_sub(heading.len());
                    heading.extend(text.iter().take(room));
                }
            }
            Token::EndTag(_) => {
                if heading.take().is_some_and(|heading| is_index_heading(&heading)) {
                    return true;
                }
            }
            Token::Comment(_) | Token::Doctype(_) | Token::Error(_) => {}
        }
    }
    has_pre && has_plain_tags_only && !has_heading
}

/// Returns the tokens of a page. The text of scripts and titles contains no tags.
fn tokens(html: &[u8]) -> impl Iterator<Item = Token> + '_ {
    let mut emitter = DefaultEmitter::default();
    emitter.naively_switch_states(true);
    Tokenizer::new_with_emitter(html, emitter).map(|Ok(token)| token)
}

fn is_heading_tag(name: &[u8]) -> bool {
    name == b"title" || name == b"h1"
}

fn is_index_heading(heading: &[u8]) -> bool {
    let heading = String::from_utf8_lossy(heading).trim().to_lowercase();
    HEADINGS.iter().any(|known| heading.starts_with(known))
}

/// Calls `visit` if `href` leads to a direct child of `base`.
fn visit_child(base: &Url, href: &str, visit: &mut impl FnMut(IndexEntry<'_>)) {
    let Ok(url) = base.join(href) else { return };
    if url.origin() != base.origin() || url.query().is_some() || url.fragment().is_some() {
        return;
    }
    // The server may encode the path of the directory in another way than this program.
    let (path, is_directory) = url.path().strip_suffix('/').map_or((url.path(), false), |path| (path, true));
    let Some((parent, name)) = path.rsplit_once('/') else { return };
    let directory = base.path().strip_suffix('/').unwrap_or(base.path());
    let is_same = parent == directory || percent_decode_str(parent).eq(percent_decode_str(directory));
    if !is_same || name.is_empty() {
        return;
    }
    let name: Vec<u8> = percent_decode_str(name).collect();
    match std::str::from_utf8(&name) {
        Ok(name) if is_directory => visit(IndexEntry::Directory(name)),
        Ok(name) => visit(IndexEntry::File(name)),
        Err(_) => visit(IndexEntry::Unusable(&String::from_utf8_lossy(&name))),
    }
}

fn href_of(tag: &StartTag<()>) -> Option<String> {
    if tag.name.as_slice() != b"a" {
        return None;
    }
    let href = tag.attributes.get(b"href".as_slice())?;
    Some(String::from_utf8_lossy(href).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries_at(base: &str, html: &str) -> Option<Vec<String>> {
        let mut entries = Vec::new();
        let is_index = parse_html(html.as_bytes(), &Url::parse(base).unwrap(), |entry| {
            entries.push(match entry {
                IndexEntry::File(name) => name.to_owned(),
                IndexEntry::Directory(name) => format!("{name}/"),
                IndexEntry::Unusable(name) => format!("!{name}"),
            });
        });
        assert!(is_index || entries.is_empty());
        is_index.then_some(entries)
    }

    fn entries(links: &[&str]) -> Vec<String> {
        let links = links.iter().map(|link| format!("<li><a href=\"{link}\">x</a>\n")).collect::<Vec<_>>().concat();
        entries_at("http://host:8080/n5/a%20b/", &format!("<title>Index of /n5</title><ul>{links}")).unwrap()
    }

    #[test]
    fn only_links_to_direct_children_are_entries() {
        assert_eq!(
            entries(&["s0/", "attributes.json", "./x", "/n5/a%20b/y", "/n5/a b/z/", "http://host:8080/n5/a%20b/full"]),
            ["s0/", "attributes.json", "x", "y", "z/", "full"]
        );
        let others = [
            "../",
            "..",
            ".",
            "",
            "/",
            "/n5/",
            "?C=N;O=D",
            "#top",
            "x?v=1",
            "x#y",
            "s0/attributes.json",
            "//host/x",
            "http://host/n5/a%20b/x",
            "https://host:8080/n5/a%20b/x",
            "mailto:x@y",
            "javascript:void(0)",
            "a//",
            "/n5/a/x",
        ];
        assert_eq!(entries(&others), Vec::<String>::new());
    }

    #[test]
    fn names_are_decoded_once() {
        assert_eq!(
            entries(&[
                "a%2525b",
                "a+b",
                "%C3%BC",
                "ü",
                "a&amp;b",
                "a%3Fb%23c/",
                "a%2Fb",
                "%ff",
                "a&#x27;b",
                "a%26amp;b"
            ]),
            ["a%25b", "a+b", "ü", "ü", "a&b", "a?b#c/", "a/b", "!\u{fffd}", "a'b", "a&amp;b"]
        );
    }

    #[test]
    fn pages_of_applications_are_no_index() {
        for page in [
            "",
            "plain text",
            "<title>My data</title><a href=\"s0/\">s0</a>",
            "<!doctype html><html><head><title>App</title><script>document.title = \"Index of /\"</script></head>\
             <body><div id=root></div></body></html>",
            "<pre>text</pre><script>1</script>",
            "<pre><a href=\"x\">x</a><a href=\"/about\">about</a></pre>",
            "<h1>Welcome to nginx!</h1><a href=\"http://nginx.org/\">nginx.org</a>",
            "<html><head><title>403 Forbidden</title></head><body><center><h1>403 Forbidden</h1></center></body></html>",
        ] {
            assert_eq!(entries_at("http://host/a/", page), None, "{page}");
        }
    }

    #[test]
    fn indexes_without_a_heading_consist_of_links() {
        let go = "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n\
                  <a href=\"s0/\">s0/</a>\n<a href=\"attributes.json\">attributes.json</a>\n</pre>\n";
        assert_eq!(entries_at("http://host/", go).unwrap(), ["s0/", "attributes.json"]);
        assert_eq!(entries_at("http://host/", "<pre>\n</pre>\n").unwrap(), Vec::<String>::new());
    }
}
