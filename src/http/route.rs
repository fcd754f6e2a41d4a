//! The target of a request: the endpoint and the key that its path addresses. The raw path is split into segments, and
//! then each segment is decoded once.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::cache::ATTRIBUTES;
use crate::container::grid_component;
use crate::http::problem::{INVALID_PARAMETER, Problem};
use crate::store::{Key, KeyError};
use crate::view;

/// Bytes that are percent-encoded: all except the unreserved ones of a URI.
const PERCENT_ENCODE_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Endpoint of a request, selected by the first segment of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// The container as stored.
    Stored,
    /// Regions of datasets.
    Slice,
    /// Descriptions of groups and datasets.
    Info,
    /// Neuroglancer, and the assets of the listing page.
    Viewer,
    /// Statistics of elements.
    Stats,
    /// Small pictures of volumes.
    Thumbnail,
    /// A view: the container in another program's format.
    View(&'static dyn view::View),
    /// An operation of the server itself, with no further path.
    Operation(Operation),
}

/// An operation of the server itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Liveness of the process.
    Health,
    /// Readiness for requests.
    Ready,
    /// Prometheus metrics.
    Metrics,
    /// Version, codecs and output formats.
    Version,
    /// The OpenAPI description.
    OpenApi,
}

/// The built-in endpoints and their names. These names and those of [`view::VIEWS`] are reserved: no container may have
/// one. A group with such a name is served below `/n5/`.
const BUILT_IN_ENDPOINTS: &[(&str, Endpoint)] = &[
    ("n5", Endpoint::Stored),
    (FILES, Endpoint::Stored),
    ("slice", Endpoint::Slice),
    ("info", Endpoint::Info),
    ("viewer", Endpoint::Viewer),
    ("stats", Endpoint::Stats),
    ("thumbnail", Endpoint::Thumbnail),
    ("healthz", Endpoint::Operation(Operation::Health)),
    ("readyz", Endpoint::Operation(Operation::Ready)),
    ("metrics", Endpoint::Operation(Operation::Metrics)),
    ("version", Endpoint::Operation(Operation::Version)),
    ("openapi.yaml", Endpoint::Operation(Operation::OpenApi)),
];

/// The endpoint name below which listings contain every file, for programs that mirror containers.
const FILES: &str = "files";

/// Label of the route that most requests take.
pub(crate) const STORED: &str = "stored";

impl Endpoint {
    /// Returns true if requests must be admitted, and may have to wait for that. Operations are answered at once, even
    /// under overload.
    pub(crate) fn needs_admission(self) -> bool {
        !matches!(self, Self::Operation(_))
    }

    /// Returns the route's name in metrics and logs.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Stored => STORED,
            Self::View(view) => view.name(),
            Self::Slice | Self::Info | Self::Viewer | Self::Stats | Self::Thumbnail | Self::Operation(_) => {
                BUILT_IN_ENDPOINTS.iter().find(|(_, endpoint)| *endpoint == self).map_or("", |(name, _)| name)
            }
        }
    }
}

/// Returns all reserved first segments with their endpoints.
pub fn endpoints() -> impl Iterator<Item = (&'static str, Endpoint)> {
    let views = view::VIEWS.iter().map(|view| (view.name(), Endpoint::View(*view)));
    views.chain(BUILT_IN_ENDPOINTS.iter().copied())
}

/// A parsed request path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestTarget {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Decoded segments after the endpoint's name.
    pub segments: Vec<String>,
    /// True if the path ends in a slash.
    pub has_trailing_slash: bool,
    /// True if the path consists of the base path, or of the base path and an endpoint's name, without a trailing
    /// slash.
    pub is_bare: bool,
    /// True below `/files/`: listings contain every file that the server has, not only those that people look for.
    pub lists_every_file: bool,
}

impl RequestTarget {
    /// Returns the path of the stored key that a raw path addresses. Unlike [`Self::parse`], allocates nothing. Returns
    /// `None` for paths that address something else, and for paths with percent-encoded characters.
    pub(crate) fn parse_literal_stored<'a>(path: &'a str, base_path: &str) -> Option<&'a str> {
        let inner = path.strip_prefix(base_path)?.strip_prefix('/')?;
        if !inner.bytes().all(Self::is_literal_path_byte) {
            return None;
        }
        let first = inner.split('/').next()?;
        match endpoints().find(|(name, _)| *name == first) {
            None => Some(inner),
            Some((_, Endpoint::Stored)) => inner.strip_prefix(first)?.strip_prefix('/'),
            Some(_) => None,
        }
    }

    /// Returns true if a byte stands for itself in a path (RFC 3986, section 3.3).
    pub(crate) fn is_literal_path_byte(byte: u8) -> bool {
        byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte)
    }

    /// Returns true if the last segment begins with a digit, like those of blocks and chunks.
    pub(crate) fn ends_like_chunk(&self) -> bool {
        self.segments.last().is_some_and(|name| name.starts_with(|first: char| first.is_ascii_digit()))
    }

    /// Returns true if the target is a key of a container, as stored or in a view, and not a directory or a document
    /// about one. `/info` without a path counts as a key, because clients probe it to find precomputed volumes.
    pub(crate) fn addresses_key(&self) -> bool {
        match self.endpoint {
            Endpoint::Stored | Endpoint::View(_) => !self.has_trailing_slash,
            Endpoint::Info => self.is_bare,
            Endpoint::Slice | Endpoint::Viewer | Endpoint::Stats | Endpoint::Thumbnail | Endpoint::Operation(_) => {
                false
            }
        }
    }

    /// Returns true if the target is a key that programs look for: an `attributes.json`, a block, a chunk or a document
    /// of a view. Unlike [`Self::addresses_key`], does not include paths that look like those of groups and datasets.
    pub(crate) fn names_key(&self) -> bool {
        self.addresses_key()
            && match (self.segments.last(), self.endpoint) {
                // The only chunk of an array without axes in Zarr 3 is `c`.
                (Some(name), Endpoint::View(_)) => is_key_name(name) || self.ends_like_chunk() || name == "c",
                (Some(name), _) => is_key_name(name),
                (None, _) => true,
            }
    }

    /// Returns the segments that name a path in a container: all segments or, for a view, those after its path
    /// parameters. Returns `None` if a parameter of the view is missing.
    pub(crate) fn container_path(&self) -> Option<&[String]> {
        let parameter_count = if let Endpoint::View(view) = self.endpoint { view.path_parameter_count() } else { 0 };
        self.segments.get(parameter_count..)
    }

    /// Returns the names in [`Self::container_path`] without the suffixes that programs expect of the view, or `None` if
    /// no name has one. Only where no group has the suffixed name does such a path stand for the other one.
    pub(crate) fn unsuffixed_path(&self) -> Option<Vec<String>> {
        let Endpoint::View(view) = self.endpoint else { return None };
        let path = self.container_path()?;
        if !view.has_suffix_aliases() || !path.iter().any(|name| without_suffix(name).is_some()) {
            return None;
        }
        Some(path.iter().map(|name| without_suffix(name).unwrap_or(name).to_owned()).collect())
    }

    /// Replaces the first name of the path in the container, which is that of the mount.
    pub(crate) fn replace_mount_name(&mut self, name: String) {
        let parameter_count = if let Endpoint::View(view) = self.endpoint { view.path_parameter_count() } else { 0 };
        if let Some(first) = self.segments.get_mut(parameter_count) {
            *first = name;
        }
    }

    /// Returns true if the request must be handled on the document runtime, whose threads may block. This concerns
    /// generated documents and the files of the viewer, but not blocks, chunks and slices.
    pub(crate) fn runs_on_document_runtime(&self) -> bool {
        match self.endpoint {
            Endpoint::Stored | Endpoint::View(_) => {
                !self.ends_like_chunk() && self.segments.last().is_none_or(|name| name != ATTRIBUTES)
            }
            // The assets of the listing page are in memory.
            Endpoint::Viewer => self.segments.first().is_none_or(|first| first != "page"),
            Endpoint::Info | Endpoint::Stats | Endpoint::Thumbnail => true,
            Endpoint::Slice | Endpoint::Operation(_) => false,
        }
    }

    /// Parses a raw path. `base_path` is empty, or begins with a slash and does not end in one.
    ///
    /// Returns `Ok(None)` for a path outside the base path.
    ///
    /// # Errors
    /// Returns the problem `invalid-parameter` for a segment that no key may have.
    pub fn parse(path: &str, base_path: &str) -> Result<Option<Self>, Problem> {
        let Some(rest) = path.strip_prefix(base_path).filter(|rest| rest.is_empty() || rest.starts_with('/')) else {
            // Operations are also served outside the base path.
            let operation = if base_path.is_empty() { None } else { Self::parse(path, "")? };
            return Ok(operation.filter(|target| matches!(target.endpoint, Endpoint::Operation(_))));
        };
        let has_trailing_slash = rest.ends_with('/');
        let inner = rest.strip_prefix('/').unwrap_or(rest);
        let inner = inner.strip_suffix('/').unwrap_or(inner);
        let mut segments = Vec::new();
        if !inner.is_empty() || rest.len() > 1 {
            for raw in inner.split('/') {
                segments.push(decode_segment(raw)?.into_owned());
            }
        }
        match Key::from_segments(&segments) {
            Ok(_) => {}
            // The path is too long for a file, so that no such key exists.
            Err(KeyError::Length) => return Err(Problem::not_found()),
            Err(error) => {
                return Err(Problem::new(INVALID_PARAMETER, format!("{error}; see Paths in docs/API.md")));
            }
        }
        let named_endpoint = segments.first().and_then(|first| endpoints().find(|(name, _)| name == first));
        let (endpoint, is_named) = named_endpoint.map_or((Endpoint::Stored, false), |(_, endpoint)| (endpoint, true));
        let lists_every_file = is_named && segments.first().is_some_and(|first| first == FILES);
        if is_named {
            segments.remove(0);
        }
        let is_bare = segments.is_empty() && !has_trailing_slash;
        Ok(Some(Self { endpoint, segments, has_trailing_slash, is_bare, lists_every_file }))
    }
}

/// Returns the name without the suffix `.zarr` or `.ome.zarr`, or `None` if it has no such suffix or nothing else.
pub(crate) fn without_suffix(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".zarr")?;
    Some(name.strip_suffix(".ome").unwrap_or(name)).filter(|name| !name.is_empty())
}

/// Decodes one segment. `%` followed by two hexadecimal digits is an octet, and the octets must be UTF-8.
fn decode_segment(segment: &str) -> Result<Cow<'_, str>, Problem> {
    let invalid = |fault: &str| {
        let excerpt: String = segment.chars().take(80).collect();
        Problem::new(INVALID_PARAMETER, format!("the path segment {excerpt:?} {fault}"))
    };
    let mut rest = segment.as_bytes();
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        match rest.get(at + 1..at + 3) {
            Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => rest = rest.get(at + 3..).unwrap_or(&[]),
            _ => return Err(invalid("has a % that is not followed by two hexadecimal digits")),
        }
    }
    percent_decode_str(segment).decode_utf8().map_err(|_error| invalid("does not decode to UTF-8"))
}

/// Returns true if the name of the key is that of an attributes file, or a component of a grid position. No other files
/// are served.
pub(crate) fn is_n5_key(key: &Key) -> bool {
    key.name().is_some_and(|name| name == ATTRIBUTES || grid_component(name).is_some())
}

/// Returns true if programs look for objects with this name in every directory: blocks, and the metadata of N5, Zarr and
/// precomputed volumes.
pub(crate) fn is_key_name(name: &str) -> bool {
    let is_metadata = name.starts_with('.') || ["zarr.json", "info"].contains(&name) || name == ATTRIBUTES;
    is_metadata || grid_component(name).is_some() || name.starts_with('-')
}

/// Encodes a name as a path segment of a URI. Every byte except the unreserved ones is percent-encoded.
pub fn encode_segment(name: &str) -> impl std::fmt::Display + '_ {
    utf8_percent_encode(name, PERCENT_ENCODE_SET)
}

/// Encodes names as the path of a URI, without a leading slash.
pub fn encode_path<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(|name| encode_segment(name).to_string()).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(path: &str) -> Option<(Endpoint, Vec<String>, bool)> {
        RequestTarget::parse(path, "").ok().flatten().map(|t| (t.endpoint, t.segments, t.has_trailing_slash))
    }

    fn stored(segments: &[&str], slash: bool) -> (Endpoint, Vec<String>, bool) {
        (Endpoint::Stored, segments.iter().map(ToString::to_string).collect(), slash)
    }

    #[test]
    fn the_label_of_an_endpoint_is_its_name() {
        for (name, endpoint) in endpoints() {
            assert_eq!(endpoint.label(), if endpoint == Endpoint::Stored { STORED } else { name });
        }
    }

    #[test]
    fn segments_are_decoded_once_after_splitting() {
        assert_eq!(parse("/"), Some(stored(&[], true)));
        assert_eq!(parse("/a/b"), Some(stored(&["a", "b"], false)));
        assert_eq!(parse("/a%252Fb/"), Some(stored(&["a%2Fb"], true)));
        assert_eq!(parse("/a+b;c,d:e"), Some(stored(&["a+b;c,d:e"], false)));
        assert_eq!(parse("/é%C3%A9"), Some(stored(&["éé"], false)));
        assert_eq!(parse("/%73lice/x"), Some((Endpoint::Slice, vec!["x".into()], false)));
    }

    #[test]
    fn invalid_segments_are_refused_in_every_spelling() {
        for path in [
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
            assert!(RequestTarget::parse(path, "").is_err(), "{path}");
        }
    }

    #[test]
    fn endpoint_names_are_reserved_and_groups_of_that_name_are_below_n5() {
        assert_eq!(parse("/n5/slice/a"), Some(stored(&["slice", "a"], false)));
        assert_eq!(parse("/a/slice"), Some(stored(&["a", "slice"], false)));
        assert!(RequestTarget::parse("/info", "").unwrap().unwrap().is_bare);
        assert!(!RequestTarget::parse("/info/", "").unwrap().unwrap().is_bare);
    }

    #[test]
    fn files_is_another_name_of_the_stored_container() {
        let target = RequestTarget::parse("/files/a/0", "").unwrap().unwrap();
        assert_eq!((target.endpoint, target.lists_every_file), (Endpoint::Stored, true));
        assert_eq!(target.segments, ["a", "0"]);
        assert!(!RequestTarget::parse("/n5/files/a/", "").unwrap().unwrap().lists_every_file);
        assert_eq!(RequestTarget::parse_literal_stored("/files/a/0", ""), Some("a/0"));
    }

    #[test]
    fn only_the_zarr_views_have_names_with_a_suffix() {
        let unsuffixed = |path: &str| RequestTarget::parse(path, "").unwrap().unwrap().unsuffixed_path();
        assert_eq!(unsuffixed("/zarr3/a/em.ome.zarr/s0/zarr.json").unwrap(), ["a", "em", "s0", "zarr.json"]);
        assert_eq!(unsuffixed("/zarr2/a.zarr/.zgroup").unwrap(), ["a", ".zgroup"]);
        for path in ["/zarr3/a/s0/c/0", "/zarr3/.zarr/x", "/n5/a.zarr/", "/as/gzip/a.zarr/", "/zarr3/a.zarr.d/"] {
            assert_eq!(unsuffixed(path), None, "{path}");
        }
    }

    #[test]
    fn the_base_path_is_required_except_for_operations() {
        let parse_below_base = |path| RequestTarget::parse(path, "/x/y").unwrap();
        assert_eq!(parse_below_base("/x/y/a").unwrap().segments, ["a"]);
        assert!(parse_below_base("/x/y").unwrap().is_bare);
        assert!(parse_below_base("/x/yz").is_none());
        assert!(parse_below_base("/a").is_none());
        assert_eq!(parse_below_base("/healthz").unwrap().endpoint, Endpoint::Operation(Operation::Health));
    }

    proptest! {
        #[test]
        fn encoded_names_round_trip(name in "[^/\\\\\\p{Cc}]{1,20}") {
            prop_assume!(name != "." && name != "..");
            let target = RequestTarget::parse(&format!("/n5/{}", encode_segment(&name)), "").unwrap().unwrap();
            prop_assert_eq!(target.segments, vec![name]);
        }

        #[test]
        fn both_parsers_agree_on_literal_paths(path in "(/x)?(/(n5|files|slice|info|a|b~|..|%41|é|[0-9]{1,3})){0,4}/?") {
            if let Some(literal) = RequestTarget::parse_literal_stored(&path, "/x")
                && let Ok(key) = Key::parse(literal)
            {
                let target = RequestTarget::parse(&path, "/x").unwrap().unwrap();
                prop_assert_eq!(target.endpoint, Endpoint::Stored);
                prop_assert!(!target.has_trailing_slash);
                prop_assert_eq!(Key::from_segments(&target.segments).unwrap(), key);
            }
        }

        #[test]
        fn arbitrary_paths_never_panic(path in "/[ -~é]{0,40}") {
            let _ = RequestTarget::parse(&path, "");
        }
    }
}
