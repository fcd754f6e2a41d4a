//! What a request's path addresses. The raw path is split first and each segment decoded once.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::problem::{INVALID_PARAMETER, Problem};
use crate::container::ATTRIBUTES;
use crate::store::{Key, KeyError};
use crate::view;

/// Every byte that is not unreserved in a URI.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What a first path segment stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// The container as stored.
    Stored,
    /// Sub-regions.
    Slice,
    /// Descriptions.
    Info,
    /// Neuroglancer, and what the listing page is made of.
    Viewer,
    /// What elements are like.
    Stats,
    /// The container in another program's form.
    Other(&'static dyn view::View),
    /// An operation of the server itself, which stands alone.
    Operation(Operation),
}

/// Answers about the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Whether the process lives.
    Health,
    /// Whether it should be sent requests.
    Ready,
    /// Prometheus metrics.
    Metrics,
    /// Version and codecs.
    Version,
    /// The OpenAPI description.
    OpenApi,
}

/// The reserved first segments, besides those of [`view::VIEWS`]. No container may have one of these names, and a
/// group that does is reached below `/n5/`.
const OWN: &[(&str, View)] = &[
    ("n5", View::Stored),
    ("slice", View::Slice),
    ("info", View::Info),
    ("viewer", View::Viewer),
    ("stats", View::Stats),
    ("healthz", View::Operation(Operation::Health)),
    ("readyz", View::Operation(Operation::Ready)),
    ("metrics", View::Operation(Operation::Metrics)),
    ("version", View::Operation(Operation::Version)),
    ("openapi.yaml", View::Operation(Operation::OpenApi)),
];

/// All reserved first segments.
pub fn views() -> impl Iterator<Item = (&'static str, View)> {
    let others = view::VIEWS.iter().map(|view| (view.name(), View::Other(*view)));
    others.chain(OWN.iter().copied())
}

/// A request's path, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The view.
    pub view: View,
    /// Decoded segments after the view's.
    pub segments: Vec<String>,
    /// Whether the path ends in a slash.
    pub trailing_slash: bool,
    /// Whether the path was the base path or a view without anything after it, not even a slash.
    pub bare: bool,
}

impl Target {
    /// The path of the key, decoded, that a raw path addresses in the container as stored; `None` for everything else,
    /// and where [`Self::parse`] has to look closer. For the same path this allocates nothing.
    pub(super) fn plain<'a>(path: &'a str, base_path: &str) -> Option<&'a str> {
        let inner = path.strip_prefix(base_path)?.strip_prefix('/')?;
        if !inner.bytes().all(Self::is_plain) {
            return None;
        }
        let first = inner.split('/').next()?;
        match views().find(|(name, _)| *name == first) {
            None => Some(inner),
            Some((_, View::Stored)) => inner.strip_prefix(first)?.strip_prefix('/'),
            Some(_) => None,
        }
    }

    /// Whether a byte stands for itself in a path (RFC 3986, section 3.3).
    pub(super) fn is_plain(byte: u8) -> bool {
        byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte)
    }

    /// Whether the last segment begins as a block's or chunk's does.
    pub(super) fn is_numbered(&self) -> bool {
        self.segments.last().is_some_and(|name| name.starts_with(|first: char| first.is_ascii_digit()))
    }

    /// Whether it addresses a key of a container, as stored or in a view, and neither a directory nor a document about
    /// one. `/info` alone is the key by which clients look for precomputed volumes.
    pub(super) fn is_key(&self) -> bool {
        match self.view {
            View::Stored | View::Other(_) => !self.trailing_slash,
            View::Info => self.bare,
            View::Slice | View::Viewer | View::Stats | View::Operation(_) => false,
        }
    }

    /// Takes the raw path apart. `base_path` is empty or begins with a slash and does not end in one.
    ///
    /// `Ok(None)`: a path outside the base path.
    ///
    /// # Errors
    /// `invalid-parameter` for a segment that no key may have.
    pub fn parse(path: &str, base_path: &str) -> Result<Option<Self>, Problem> {
        let Some(rest) = path.strip_prefix(base_path).filter(|rest| rest.is_empty() || rest.starts_with('/')) else {
            // Operations answer without the base path, too.
            let outside = if base_path.is_empty() { None } else { Self::parse(path, "")? };
            return Ok(outside.filter(|target| matches!(target.view, View::Operation(_))));
        };
        let trailing_slash = rest.ends_with('/');
        let inner = rest.strip_prefix('/').unwrap_or(rest);
        let inner = inner.strip_suffix('/').unwrap_or(inner);
        let mut segments = Vec::new();
        if !inner.is_empty() || rest.len() > 1 {
            for raw in inner.split('/') {
                segments.push(decode(raw)?.into_owned());
            }
        }
        match Key::from_segments(&segments) {
            Ok(_) => {}
            // No file has such a path.
            Err(KeyError::Length) => return Err(Problem::missing()),
            Err(error) => {
                return Err(Problem::new(INVALID_PARAMETER, format!("{error}; see the path rules in the README")));
            }
        }
        let found = segments.first().and_then(|first| views().find(|(name, _)| name == first));
        let (view, named) = found.map_or((View::Stored, false), |(_, view)| (view, true));
        if named {
            segments.remove(0);
        }
        let bare = segments.is_empty() && !trailing_slash;
        Ok(Some(Self { view, segments, trailing_slash, bare }))
    }
}

/// Decodes one segment: `%` followed by two hexadecimal digits is an octet, and the octets are UTF-8.
fn decode(segment: &str) -> Result<Cow<'_, str>, Problem> {
    let invalid = |fault: &str| {
        let shown: String = segment.chars().take(80).collect();
        Problem::new(INVALID_PARAMETER, format!("the path segment {shown:?} {fault}"))
    };
    let mut rest = segment.as_bytes();
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        match rest.get(at + 1..at + 3) {
            Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => rest = rest.get(at + 3..).unwrap_or(&[]),
            _ => return Err(invalid("has a % that is not followed by two hexadecimal digits")),
        }
    }
    percent_decode_str(segment).decode_utf8().map_err(|_not| invalid("does not decode to UTF-8"))
}

/// A name as a path segment of a URI, every byte but the unreserved ones encoded.
pub fn encode(name: &str) -> impl std::fmt::Display + '_ {
    utf8_percent_encode(name, RESERVED)
}

/// A key as the path of a URI, without a leading slash.
pub fn encode_key(key: &Key) -> String {
    key.segments().map(|segment| encode(segment).to_string()).collect::<Vec<_>>().join("/")
}

/// Whether a path is of a document that is made, or a file of the viewer, which wants threads that may wait; rather than of
/// a block, a chunk or a slice.
pub(super) fn takes_time(path: &str, base_path: &str) -> bool {
    let Ok(Some(target)) = Target::parse(path, base_path) else { return false };
    match target.view {
        View::Stored | View::Other(_) => {
            !target.is_numbered() && target.segments.last().is_none_or(|name| name != ATTRIBUTES)
        }
        // The page's own files are in memory.
        View::Viewer => target.segments.first().is_none_or(|first| first != "page"),
        View::Info | View::Stats => true,
        View::Slice | View::Operation(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(path: &str) -> Option<(View, Vec<String>, bool)> {
        Target::parse(path, "").ok().flatten().map(|t| (t.view, t.segments, t.trailing_slash))
    }

    fn stored(segments: &[&str], slash: bool) -> (View, Vec<String>, bool) {
        (View::Stored, segments.iter().map(ToString::to_string).collect(), slash)
    }

    #[test]
    fn segments_are_decoded_once_after_splitting() {
        assert_eq!(parse("/"), Some(stored(&[], true)));
        assert_eq!(parse("/a/b"), Some(stored(&["a", "b"], false)));
        assert_eq!(parse("/a%252Fb/"), Some(stored(&["a%2Fb"], true)));
        assert_eq!(parse("/a+b;c,d:e"), Some(stored(&["a+b;c,d:e"], false)));
        assert_eq!(parse("/é%C3%A9"), Some(stored(&["éé"], false)));
        assert_eq!(parse("/%73lice/x"), Some((View::Slice, vec!["x".into()], false)));
    }

    #[test]
    fn what_no_key_may_have_is_refused_in_every_spelling() {
        for bad in [
            "//",
            "/a//b",
            "/a//",
            "/..",
            "/%2e%2e/x",
            "/a/../b",
            "/./a",
            "/a/%2E",
            "/a%2Fb",
            "/a%5cb",
            "/a\\b",
            "/a%00",
            "/a%0a",
            "/%zz",
            "/%",
            "/a%2",
            "/%ff",
            "/%c3",
            "/n5/../x",
            "/slice/%2e%2e",
        ] {
            assert!(Target::parse(bad, "").is_err(), "{bad}");
        }
    }

    #[test]
    fn views_stand_first_and_groups_of_their_name_below_n5() {
        assert_eq!(parse("/n5/slice/a"), Some(stored(&["slice", "a"], false)));
        assert_eq!(parse("/a/slice"), Some(stored(&["a", "slice"], false)));
        assert!(Target::parse("/info", "").unwrap().unwrap().bare);
        assert!(!Target::parse("/info/", "").unwrap().unwrap().bare);
    }

    #[test]
    fn the_base_path_is_part_of_the_path_but_for_operations() {
        let at = |path| Target::parse(path, "/x/y").unwrap();
        assert_eq!(at("/x/y/a").unwrap().segments, ["a"]);
        assert!(at("/x/y").unwrap().bare);
        assert!(at("/x/yz").is_none());
        assert!(at("/a").is_none());
        assert_eq!(at("/healthz").unwrap().view, View::Operation(Operation::Health));
    }

    proptest! {
        #[test]
        fn encoded_names_come_back(name in "[^/\\\\\\p{Cc}]{1,20}") {
            prop_assume!(name != "." && name != "..");
            let target = Target::parse(&format!("/n5/{}", encode(&name)), "").unwrap().unwrap();
            prop_assert_eq!(target.segments, vec![name]);
        }

        #[test]
        fn a_plain_path_is_taken_apart_alike(path in "(/x)?(/(n5|slice|info|a|b~|..|%41|é|[0-9]{1,3})){0,4}/?") {
            if let Some(plain) = Target::plain(&path, "/x")
                && let Ok(key) = Key::parse(plain)
            {
                let target = Target::parse(&path, "/x").unwrap().unwrap();
                prop_assert_eq!(target.view, View::Stored);
                prop_assert!(!target.trailing_slash);
                prop_assert_eq!(Key::from_segments(&target.segments).unwrap(), key);
            }
        }

        #[test]
        fn arbitrary_paths_never_panic(path in "/[ -~é]{0,40}") {
            let _ = Target::parse(&path, "");
        }
    }
}
