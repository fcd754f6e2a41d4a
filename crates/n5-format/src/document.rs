//! The document in `attributes.json`, read in one pass. Only members that this crate interprets are kept.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::compression::Codecs;
use crate::json::{self, JsonError, JsonMembers, MEMBER_BYTES};

/// Maximum memory in bytes for the values of a document's interpreted members.
pub const MAX_INTERPRETED_BYTES: u64 = 256 << 10;

/// Maximum memory in bytes for the value of each member that describes the array of a dataset.
const MAX_ARRAY_MEMBER_BYTES: u64 = 8 << 10;

/// Maximum number of pyramid levels that are read.
const MAX_LEVELS: usize = 64;

/// The part of a member's value that is read. The rest is treated as absent.
#[derive(Debug, Clone, Copy)]
enum Projection {
    /// The whole value.
    Whole,
    /// A scalar is read unchanged; an array or object is read as an empty one.
    Shallow,
    /// The given number of elements at the start of an array, each projected. An object is read as an empty one.
    First(usize, &'static Projection),
    /// The listed members of an object, each projected. An array is read as an empty one.
    Members(&'static [(&'static str, Projection)]),
}

/// Projection of `multiscales`, the list of images of OME-NGFF and COSEM. Only its first entry is read.
const MULTISCALES: Projection = Projection::First(
    1,
    &Projection::Members(&[
        ("axes", Projection::Whole),
        ("version", Projection::Shallow),
        ("datasets", Projection::First(MAX_LEVELS, &Projection::Whole)),
        ("coordinateTransformations", Projection::Whole),
    ]),
);

/// Maximum number of channels whose display is read.
const MAX_CHANNELS: usize = 256;

/// Projection of `omero`, the display of OME-NGFF's channels.
const OMERO: Projection = Projection::Members(&[(
    "channels",
    Projection::First(
        MAX_CHANNELS,
        &Projection::Members(&[
            ("label", Projection::Shallow),
            ("color", Projection::Shallow),
            ("active", Projection::Shallow),
            ("window", Projection::Members(&[("start", Projection::Shallow), ("end", Projection::Shallow)])),
        ]),
    ),
)]);

/// Interpreted members: name, maximum memory in bytes, and projection. The array attributes come first, so that no
/// other member can use up their share of the memory.
///
/// Every member that this crate or `n5-metadata` reads must be listed here. All other members are dropped.
const INTERPRETED: &[(&str, u64, Projection)] = &[
    ("dimensions", MAX_ARRAY_MEMBER_BYTES, Projection::Whole),
    ("blockSize", MAX_ARRAY_MEMBER_BYTES, Projection::Whole),
    ("dataType", MAX_ARRAY_MEMBER_BYTES, Projection::Whole),
    ("compression", MAX_ARRAY_MEMBER_BYTES, Projection::Whole),
    ("compressionType", MAX_ARRAY_MEMBER_BYTES, Projection::Whole),
    ("n5", MAX_ARRAY_MEMBER_BYTES, Projection::Whole),
    ("codecs", MAX_INTERPRETED_BYTES, Projection::Shallow),
    ("axes", MAX_INTERPRETED_BYTES, Projection::Whole),
    ("units", MAX_INTERPRETED_BYTES, Projection::Whole),
    ("unit", MAX_INTERPRETED_BYTES, Projection::Whole),
    ("resolution", MAX_INTERPRETED_BYTES, Projection::Whole),
    ("offset", MAX_INTERPRETED_BYTES, Projection::Whole),
    ("pixelResolution", MAX_INTERPRETED_BYTES, Projection::Whole),
    ("downsamplingFactors", MAX_INTERPRETED_BYTES, Projection::Whole),
    ("scales", MAX_INTERPRETED_BYTES, Projection::Whole),
    ("transform", MAX_INTERPRETED_BYTES, Projection::Whole),
    ("multiScale", MAX_INTERPRETED_BYTES, Projection::Shallow),
    ("version", MAX_INTERPRETED_BYTES, Projection::Shallow),
    ("maxId", MAX_INTERPRETED_BYTES, Projection::Shallow),
    ("isLabelMultiset", MAX_INTERPRETED_BYTES, Projection::Shallow),
    ("image-label", MAX_INTERPRETED_BYTES, Projection::Shallow),
    ("painteraData", MAX_INTERPRETED_BYTES, Projection::Members(&[("type", Projection::Shallow)])),
    ("cellmap", MAX_INTERPRETED_BYTES, Projection::Members(&[("annotation", Projection::Shallow)])),
    (
        "ome",
        MAX_INTERPRETED_BYTES,
        Projection::Members(&[
            ("version", Projection::Shallow),
            ("image-label", Projection::Shallow),
            ("multiscales", MULTISCALES),
            ("omero", OMERO),
        ]),
    ),
    ("multiscales", MAX_INTERPRETED_BYTES, MULTISCALES),
    ("omero", MAX_INTERPRETED_BYTES, OMERO),
];

/// Reason why the bytes of an `attributes.json` cannot be read as attributes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// The bytes are not JSON.
    #[error("attributes.json is not JSON: {0}")]
    Syntax(String),
    /// The text is JSON, but not an object.
    #[error("attributes.json contains {0}, expected an object")]
    NotAnObject(&'static str),
    /// The text has more values or levels than allowed.
    #[error("attributes.json exceeds a limit: {0}")]
    TooLarge(JsonError),
}

/// The interpreted members of an `attributes.json`: those of N5 and of the programs that extend it. Cheap to clone.
///
/// The document holds neither the text nor other members. [`JsonObjectBuilder`](crate::JsonObjectBuilder) copies other
/// members from the stored bytes.
#[derive(Debug, Clone, Default)]
pub struct AttributesDocument(Arc<InterpretedMembers>);

/// Content of an [`AttributesDocument`], which all clones share.
#[derive(Debug, Default)]
struct InterpretedMembers {
    members: Map<String, Value>,
    unreadable: Vec<(&'static str, String)>,
    tree_bytes: u64,
    codecs: Codecs,
}

impl Projection {
    /// Splits the projection of `value` into pieces and passes each to `emit`, with `true` for a whole value and
    /// `false` for text between values. `value` must be well formed.
    fn project(self, value: &str, emit: &mut dyn FnMut(&str, bool)) {
        match (self, value.as_bytes().first()) {
            (Self::Shallow | Self::First(..), Some(b'{')) => emit("{}", true),
            (Self::Shallow | Self::Members(_), Some(b'[')) => emit("[]", true),
            (Self::First(count, projection), Some(b'[')) => {
                // Brackets and commas are passed to `emit`, because their sizes stand for the memory of the array
                // itself.
                let mut separator = "[";
                for element in json::first_elements(value, count) {
                    emit(separator, false);
                    projection.project(element, emit);
                    separator = ",";
                }
                emit(if separator == "[" { "[]" } else { "]" }, false);
            }
            (Self::Members(parts), Some(b'{')) => {
                // Braces, names, colons and commas are passed to `emit`, because their sizes stand for the memory of
                // the object itself.
                let mut last = vec![None; parts.len()];
                crate::json_object::for_each_member(JsonMembers::parse(value).ok(), |member| {
                    let row = parts.iter().position(|(name, _)| *name == member.name());
                    if let Some(slot) = row.and_then(|row| last.get_mut(row)) {
                        *slot = Some(member);
                    }
                });
                let mut separator = "{";
                for (member, (_, projection)) in last.into_iter().zip(parts) {
                    let Some(member) = member else { continue };
                    emit(separator, false);
                    emit(member.key, false);
                    emit(":", false);
                    projection.project(member.value, emit);
                    separator = ",";
                }
                emit(if separator == "{" { "{}" } else { "}" }, false);
            }
            _ => emit(value, true),
        }
    }
}

impl AttributesDocument {
    /// Parses the bytes of an `attributes.json`: strict JSON, with or without a byte order mark. If a member occurs
    /// more than once, the last one counts. If the document describes a dataset, its blocks are decoded by the codecs
    /// of this crate.
    ///
    /// The memory for parsing is independent of the length and depth of the text. The result takes at most
    /// [`MAX_INTERPRETED_BYTES`].
    ///
    /// # Errors
    /// Returns a [`DocumentError`] if the bytes are not JSON, not an object, or exceed the limits on values and levels.
    pub fn parse(bytes: &[u8]) -> Result<Self, DocumentError> {
        Self::parse_with(bytes, Codecs::built_in())
    }

    /// Like [`Self::parse`], but if the document describes a dataset, its blocks are decoded by `codecs`.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::parse`].
    pub fn parse_with(bytes: &[u8], codecs: &Codecs) -> Result<Self, DocumentError> {
        let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let text = std::str::from_utf8(text).map_err(|error| DocumentError::Syntax(error.to_string()))?;
        if let Some(kind) = json_type_of_text(text) {
            json::validate(text).map_err(DocumentError::from)?;
            return Err(DocumentError::NotAnObject(kind));
        }
        let mut accepted = Vec::new();
        let mut unreadable = Vec::new();
        let mut tree_bytes = 0;
        for ((name, max_bytes, projection), value) in INTERPRETED.iter().zip(interpreted_values(text)?) {
            let Some(value) = value else { continue };
            let mut bytes = MEMBER_BYTES;
            projection.project(value, &mut |fragment, is_tree| {
                bytes += if is_tree { json::tree_bytes(fragment) } else { MEMBER_BYTES + 2 * fragment.len() as u64 };
            });
            if bytes > *max_bytes || tree_bytes + bytes > MAX_INTERPRETED_BYTES {
                unreadable.push((*name, format!("it is too large to be interpreted ({} bytes of text)", value.len())));
            } else {
                tree_bytes += bytes;
                accepted.push((*name, value, *projection));
            }
        }
        let mut members = Map::new();
        for (name, value, projection) in accepted {
            let mut text = String::new();
            projection.project(value, &mut |fragment, _| text.push_str(fragment));
            match serde_json::from_str(&text) {
                Ok(value) => drop(members.insert(name.to_owned(), value)),
                // The value contains, for example, a number beyond the range of `f64` or an unpaired surrogate.
                Err(error) => unreadable.push((name, error.to_string())),
            }
        }
        Ok(Self(Arc::new(InterpretedMembers { members, unreadable, tree_bytes, codecs: codecs.clone() })))
    }

    /// Returns the codecs used to decode the blocks of the dataset that this document describes.
    pub fn codecs(&self) -> &Codecs {
        &self.0.codecs
    }

    /// Returns the interpreted members, except for unreadable ones. Large members contain only the parts that are
    /// interpreted.
    pub fn members(&self) -> &Map<String, Value> {
        &self.0.members
    }

    /// Returns the name of each interpreted member that is present but cannot be read, with the reason. Such members
    /// count as absent.
    pub fn unreadable(&self) -> &[(&'static str, String)] {
        &self.0.unreadable
    }

    /// Returns true if the document is meant to describe a dataset: `dimensions`, `blockSize` and `dataType` are all
    /// present, even if they cannot be read. (A BDV setup group has only a `dataType`.)
    pub fn describes_dataset(&self) -> bool {
        let is_present = |key: &str| self.get(key).is_some() || self.unreadable().iter().any(|(name, _)| *name == key);
        ["dimensions", "blockSize", "dataType"].into_iter().all(is_present)
    }

    /// Returns an upper bound of the memory that this document takes, in bytes.
    pub fn tree_bytes(&self) -> u64 {
        self.0.tree_bytes
    }

    /// Returns a member that is present and not null.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.members().get(key).filter(|value| !value.is_null())
    }
}

impl From<JsonError> for DocumentError {
    fn from(error: JsonError) -> Self {
        match error {
            JsonError::Syntax { .. } => Self::Syntax(error.to_string()),
            JsonError::TooManyValues | JsonError::TooDeep => Self::TooLarge(error),
        }
    }
}

/// Returns the values of the members in [`INTERPRETED`], in the order of the list. If a member occurs more than once,
/// the last one counts.
fn interpreted_values(text: &str) -> Result<[Option<&str>; INTERPRETED.len()], JsonError> {
    let mut values = [None; INTERPRETED.len()];
    let mut members = JsonMembers::parse(text)?;
    while let Some(member) = members.next_member()? {
        let name = member.name();
        let row = INTERPRETED.iter().position(|(interpreted, ..)| *interpreted == name);
        if let Some(slot) = row.and_then(|row| values.get_mut(row)) {
            *slot = Some(member.value);
        }
    }
    Ok(values)
}

/// Describes the JSON value of a text that is not an object. Returns `None` for an object, and for text that does not
/// begin like JSON.
fn json_type_of_text(text: &str) -> Option<&'static str> {
    match text.trim_start_matches([' ', '\t', '\n', '\r']).as_bytes().first()? {
        b'[' => Some("an array"),
        b'"' => Some("a string"),
        b'-' | b'0'..=b'9' => Some("a number"),
        b't' | b'f' => Some("a boolean"),
        b'n' => Some("null"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(text: &str) -> AttributesDocument {
        AttributesDocument::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_byte_order_mark_is_skipped_and_other_documents_are_named() {
        assert!(AttributesDocument::parse(b"\xef\xbb\xbf{}").is_ok());
        assert_eq!(AttributesDocument::parse(b" []").unwrap_err(), DocumentError::NotAnObject("an array"));
        assert_eq!(AttributesDocument::parse(b"null").unwrap_err(), DocumentError::NotAnObject("null"));
        for bad in [&b""[..], b"{} x", b"[", b"nul", b"{\"a\":\"\xff\"}", b"{\"a\":NaN}"] {
            assert!(matches!(AttributesDocument::parse(bad), Err(DocumentError::Syntax(_))), "{bad:?}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(
            AttributesDocument::parse(deep.as_bytes()).unwrap_err(),
            DocumentError::TooLarge(JsonError::TooDeep)
        );
    }

    #[test]
    fn a_clone_takes_no_more_memory_than_a_pointer() {
        assert_eq!(size_of::<AttributesDocument>(), size_of::<usize>());
    }

    #[test]
    fn only_members_with_a_meaning_are_kept() {
        let long = format!("[{}1]", "{\"\":0},".repeat(100_000));
        let document = parse(&format!(
            r#"{{"history":{long},"axes":["x"],"omero":{long},"axes":["y"],"over":1e999,"lone":"\ud800","\u0075nit":"nm"}}"#
        ));
        assert_eq!(Value::Object(document.members().clone()), json!({"axes": ["y"], "unit": "nm", "omero": []}));
        assert!(document.unreadable().is_empty() && document.tree_bytes() < 2000, "{document:?}");
    }

    #[test]
    fn only_the_meaningful_part_of_long_members_is_kept() {
        let long = format!("[{}1]", "{\"\":0},".repeat(100_000));
        let images = format!(r#"[{{"datasets":[{{"path":"s0"}}],"metadata":{long},"version":"0.4"}},{long}]"#);
        let document = parse(&format!(
            r#"{{"multiscales":{images},"ome":{{"omero":{long},"version":"0.5","version":"0.6","multiscales":{images}}},
                "codecs":{long},"painteraData":{{"source":{long}}},"cellmap":{{"annotation":{{"a":{long}}},"x":1}},
                "image-label":{{"colors":{long}}},"maxId":7}}"#
        ));
        let image = json!([{"datasets": [{"path": "s0"}], "version": "0.4"}]);
        assert_eq!(
            Value::Object(document.members().clone()),
            json!({"multiscales": image, "ome": {"version": "0.6", "multiscales": image, "omero": []}, "codecs": [],
                "painteraData": {}, "cellmap": {"annotation": {}}, "image-label": {}, "maxId": 7})
        );
        assert!(document.unreadable().is_empty() && document.tree_bytes() < 20_000, "{document:?}");
    }

    #[test]
    fn of_omero_only_the_display_of_the_channels_is_kept() {
        let long = format!("[{}1]", "{\"\":0},".repeat(100_000));
        let window = r#""window":{"min":0,"start":1,"end":2,"max":3}"#;
        let document = parse(&format!(
            r#"{{"omero":{{"id":1,"rdefs":{long},"channels":[{{"label":"a","color":"00FF00","active":true,"family":{long},{window}}}]}}}}"#
        ));
        let channel = json!({"label": "a", "color": "00FF00", "active": true, "window": {"start": 1, "end": 2}});
        assert_eq!(Value::Object(document.members().clone()), json!({"omero": {"channels": [channel]}}));
        assert!(document.unreadable().is_empty() && document.tree_bytes() < 8000, "{document:?}");
    }

    #[test]
    fn unreadable_members_count_as_absent_with_a_reason() {
        let long = format!("[{}1]", "{\"\":0},".repeat(10_000));
        let document =
            parse(&format!(r#"{{"transform":{long},"resolution":[1e999],"units":["\ud800"],"axes":["x"]}}"#));
        assert_eq!(Value::Object(document.members().clone()), json!({"axes": ["x"]}));
        let unread: Vec<String> =
            document.unreadable().iter().map(|(name, reason)| format!("{name}: {reason}")).collect();
        assert!(unread.len() == 3 && unread[0].starts_with("transform: it is too large"), "{unread:?}");
        assert!(unread.contains(&"resolution: number out of range at line 1 column 6".to_owned()), "{unread:?}");
        // Even large values of other members leave enough memory for the array attributes.
        let array = r#""dimensions":[4],"blockSize":[4],"dataType":"uint8","compression":{"type":"raw"}"#;
        let filling = format!("[{}1]", "{\"\":0},".repeat(200));
        let document = parse(&format!(r#"{{"scales":{filling},"transform":{filling},{array}}}"#));
        assert!(document.describes_dataset() && document.unreadable().len() == 1, "{:?}", document.unreadable());
        assert!(document.tree_bytes() <= MAX_INTERPRETED_BYTES);
    }

    #[test]
    fn a_dataset_with_an_unreadable_member_is_still_a_dataset() {
        let document =
            parse(&format!(r#"{{"dimensions":[{}4],"blockSize":[4],"dataType":"uint8"}}"#, "4,".repeat(1000)));
        assert!(document.describes_dataset());
    }
}
