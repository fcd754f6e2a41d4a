//! The document in `attributes.json`: read in one pass, of which those members are kept that have a meaning here.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::json::{self, JsonError, Members};

/// Most bytes that the values of a document's interpreted members take, as `json::tree_bytes` counts.
pub const INTERPRETED_BYTES: u64 = 256 << 10;

/// The same for each of those that make it a dataset.
const ARRAY_BYTES: u64 = 8 << 10;

/// Levels of a pyramid beyond these are never read.
const MAX_LEVELS: usize = 64;

/// What is read of a member; the rest of it counts as absent.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// All.
    Whole,
    /// All of a scalar; of an array or an object only that it is one.
    Kind,
    /// Of an array so many elements, of these a part; of an object only that it is one.
    First(usize, &'static Part),
    /// Of an object these members; of an array only that it is one.
    Members(&'static [(&'static str, Part)]),
}

/// An OME-NGFF image or a list of COSEM's: other entries of `multiscales` than the first are never read.
const IMAGES: Part = Part::First(
    1,
    &Part::Members(&[
        ("axes", Part::Whole),
        ("version", Part::Kind),
        ("datasets", Part::First(MAX_LEVELS, &Part::Whole)),
        ("coordinateTransformations", Part::Whole),
    ]),
);

/// The members of a document that have a meaning: how much each may take, and the part that is read. The array attributes
/// come first, so that no other member can keep them from being read.
///
/// What `metadata/` reads must stand here; it is not there otherwise.
const INTERPRETED: &[(&str, u64, Part)] = &[
    ("dimensions", ARRAY_BYTES, Part::Whole),
    ("blockSize", ARRAY_BYTES, Part::Whole),
    ("dataType", ARRAY_BYTES, Part::Whole),
    ("compression", ARRAY_BYTES, Part::Whole),
    ("compressionType", ARRAY_BYTES, Part::Whole),
    ("n5", ARRAY_BYTES, Part::Whole),
    ("codecs", INTERPRETED_BYTES, Part::Kind),
    ("axes", INTERPRETED_BYTES, Part::Whole),
    ("units", INTERPRETED_BYTES, Part::Whole),
    ("unit", INTERPRETED_BYTES, Part::Whole),
    ("resolution", INTERPRETED_BYTES, Part::Whole),
    ("offset", INTERPRETED_BYTES, Part::Whole),
    ("pixelResolution", INTERPRETED_BYTES, Part::Whole),
    ("downsamplingFactors", INTERPRETED_BYTES, Part::Whole),
    ("scales", INTERPRETED_BYTES, Part::Whole),
    ("transform", INTERPRETED_BYTES, Part::Whole),
    ("multiScale", INTERPRETED_BYTES, Part::Kind),
    ("version", INTERPRETED_BYTES, Part::Kind),
    ("maxId", INTERPRETED_BYTES, Part::Kind),
    ("isLabelMultiset", INTERPRETED_BYTES, Part::Kind),
    ("image-label", INTERPRETED_BYTES, Part::Kind),
    ("painteraData", INTERPRETED_BYTES, Part::Members(&[("type", Part::Kind)])),
    ("cellmap", INTERPRETED_BYTES, Part::Members(&[("annotation", Part::Kind)])),
    (
        "ome",
        INTERPRETED_BYTES,
        Part::Members(&[("version", Part::Kind), ("image-label", Part::Kind), ("multiscales", IMAGES)]),
    ),
    ("multiscales", INTERPRETED_BYTES, IMAGES),
];

/// Why the bytes of an `attributes.json` hold no attributes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// Not JSON.
    #[error("attributes.json is not JSON: {0}")]
    Syntax(String),
    /// JSON, but not an object.
    #[error("attributes.json holds {0}, not an object")]
    NotAnObject(&'static str),
    /// More values or levels than are read.
    #[error("attributes.json is not interpreted: {0}")]
    TooLarge(JsonError),
}

/// The interpreted part of an `attributes.json`. Cheap to clone.
///
/// It holds neither the text nor other members; [`ObjectText`](super::ObjectText) copies them from the stored bytes.
#[derive(Debug, Clone, Default)]
pub struct Document {
    interpreted: Arc<Interpreted>,
}

#[derive(Debug, Default)]
struct Interpreted {
    members: Map<String, Value>,
    unread: Vec<Unread>,
    tree_bytes: u64,
}

/// A member that has a meaning, but cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unread {
    /// Its name.
    pub name: &'static str,
    /// Why not.
    pub reason: String,
}

/// An `attributes.json` that has been looked through: which members are to be interpreted, and what that takes.
#[derive(Debug)]
pub struct Outline<'a> {
    found: Vec<(&'static str, &'a str, Part)>,
    unread: Vec<Unread>,
    tree_bytes: u64,
}

impl<'a> Outline<'a> {
    /// Looks through strict JSON, with or without a byte order mark; of duplicate members the last counts.
    ///
    /// Takes no memory to speak of, however long and deep the text is.
    ///
    /// # Errors
    /// [`DocumentError`] when the bytes are not JSON, not an object, or more than is read.
    pub fn read(bytes: &'a [u8]) -> Result<Self, DocumentError> {
        let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let text = std::str::from_utf8(text).map_err(|error| DocumentError::Syntax(error.to_string()))?;
        if let Some(kind) = kind_of_text(text) {
            json::check(text).map_err(DocumentError::from)?;
            return Err(DocumentError::NotAnObject(kind));
        }
        let mut found = [None; INTERPRETED.len()];
        let mut members = Members::of(text)?;
        while let Some(member) = members.next_member()? {
            let name = member.name();
            let row = INTERPRETED.iter().position(|(interpreted, ..)| *interpreted == name);
            if let Some(slot) = row.and_then(|row| found.get_mut(row)) {
                *slot = Some(member.value);
            }
        }
        let mut outline = Self { found: Vec::new(), unread: Vec::new(), tree_bytes: 0 };
        for ((name, most_bytes, part), value) in INTERPRETED.iter().zip(found) {
            let Some(value) = value else { continue };
            let mut bytes = MEMBER_BYTES;
            part.cut(value, &mut |piece, is_tree| {
                bytes += if is_tree { json::tree_bytes(piece) } else { MEMBER_BYTES + 2 * piece.len() as u64 };
            });
            if bytes > *most_bytes || outline.tree_bytes + bytes > INTERPRETED_BYTES {
                let reason = format!("it is too large to be interpreted ({} bytes of text)", value.len());
                outline.unread.push(Unread { name, reason });
            } else {
                outline.tree_bytes += bytes;
                outline.found.push((name, value, *part));
            }
        }
        Ok(outline)
    }

    /// Most bytes that [`Self::interpret`] takes; at most [`INTERPRETED_BYTES`].
    pub fn tree_bytes(&self) -> u64 {
        self.tree_bytes
    }

    /// Reads the members that have a meaning.
    pub fn interpret(self) -> Document {
        let Self { found, mut unread, tree_bytes } = self;
        let mut members = Map::new();
        for (name, value, part) in found {
            let mut text = String::new();
            part.cut(value, &mut |piece, _| text.push_str(piece));
            match serde_json::from_str(&text) {
                Ok(value) => drop(members.insert(name.to_owned(), value)),
                // Numbers beyond all floating point, unpaired surrogates.
                Err(error) => unread.push(Unread { name, reason: error.to_string() }),
            }
        }
        Document { interpreted: Arc::new(Interpreted { members, unread, tree_bytes }) }
    }
}

/// What a member of an object takes besides its value; as in `json`.
const MEMBER_BYTES: u64 = 192;

impl Part {
    /// Hands out the pieces of this part of `value`, which is well formed: whole values, and what stands between them.
    fn cut(self, value: &str, piece: &mut dyn FnMut(&str, bool)) {
        match (self, value.as_bytes().first()) {
            (Self::Kind | Self::First(..), Some(b'{')) => piece("{}", true),
            (Self::Kind | Self::Members(_), Some(b'[')) => piece("[]", true),
            (Self::First(count, part), Some(b'[')) => {
                // Each bracket and comma counts, which covers the array itself.
                let mut before = "[";
                for element in json::first_elements(value, count) {
                    piece(before, false);
                    part.cut(element, piece);
                    before = ",";
                }
                piece(if before == "[" { "[]" } else { "]" }, false);
            }
            (Self::Members(parts), Some(b'{')) => {
                // Each brace, name, colon and comma counts, which covers the object itself.
                let (mut before, mut last) = ("{", vec![None; parts.len()]);
                super::object_text::for_each_member(Members::of(value).ok(), |member| {
                    let row = parts.iter().position(|(name, _)| *name == member.name());
                    if let Some(slot) = row.and_then(|row| last.get_mut(row)) {
                        *slot = Some(member);
                    }
                });
                for (member, (_, part)) in last.into_iter().zip(parts) {
                    let Some(member) = member else { continue };
                    piece(before, false);
                    piece(member.key, false);
                    piece(":", false);
                    part.cut(member.value, piece);
                    before = ",";
                }
                piece(if before == "{" { "{}" } else { "}" }, false);
            }
            _ => piece(value, true),
        }
    }
}

impl Document {
    /// [`Outline::read`] and [`Outline::interpret`].
    ///
    /// # Errors
    /// [`DocumentError`] when the bytes are not JSON, not an object, or more than is read.
    pub fn parse(bytes: &[u8]) -> Result<Self, DocumentError> {
        Outline::read(bytes).map(Outline::interpret)
    }

    /// The members that have a meaning, as far as they can be read; of some only the part that has one.
    pub fn members(&self) -> &Map<String, Value> {
        &self.interpreted.members
    }

    /// Members that have a meaning, but cannot be read: they count as absent.
    pub fn unread(&self) -> &[Unread] {
        &self.interpreted.unread
    }

    /// Whether the members say that this is meant to be a dataset: `dimensions`, `blockSize` and
    /// `dataType` are all there. (A BDV setup group has a `dataType` alone.)
    pub fn describes_dataset(&self) -> bool {
        let is_there = |key: &str| self.get(key).is_some() || self.unread().iter().any(|unread| unread.name == key);
        ["dimensions", "blockSize", "dataType"].into_iter().all(is_there)
    }

    /// Most bytes that this takes.
    pub fn tree_bytes(&self) -> u64 {
        self.interpreted.tree_bytes
    }

    /// A member that is there and not null.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
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

/// What a text holds that is no object; `None` for an object, and for what is no JSON from the start.
fn kind_of_text(text: &str) -> Option<&'static str> {
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

    fn parse(text: &str) -> Document {
        Document::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_byte_order_mark_is_skipped_and_other_documents_are_named() {
        assert!(Document::parse(b"\xef\xbb\xbf{}").is_ok());
        assert_eq!(Document::parse(b" []").unwrap_err(), DocumentError::NotAnObject("an array"));
        assert_eq!(Document::parse(b"null").unwrap_err(), DocumentError::NotAnObject("null"));
        for bad in [&b""[..], b"{} x", b"[", b"nul", b"{\"a\":\"\xff\"}", b"{\"a\":NaN}"] {
            assert!(matches!(Document::parse(bad), Err(DocumentError::Syntax(_))), "{bad:?}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(Document::parse(deep.as_bytes()).unwrap_err(), DocumentError::TooLarge(JsonError::TooDeep));
    }

    #[test]
    fn only_members_with_a_meaning_are_kept() {
        let long = format!("[{}1]", "{\"\":0},".repeat(100_000));
        let document = parse(&format!(
            r#"{{"history":{long},"axes":["x"],"omero":{long},"axes":["y"],"over":1e999,"lone":"\ud800","\u0075nit":"nm"}}"#
        ));
        assert_eq!(Value::Object(document.members().clone()), json!({"axes": ["y"], "unit": "nm"}));
        assert!(document.unread().is_empty() && document.tree_bytes() < 2000, "{document:?}");
    }

    #[test]
    fn of_long_members_only_the_part_with_a_meaning_is_kept() {
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
            json!({"multiscales": image, "ome": {"version": "0.6", "multiscales": image}, "codecs": [],
                "painteraData": {}, "cellmap": {"annotation": {}}, "image-label": {}, "maxId": 7})
        );
        assert!(document.unread().is_empty() && document.tree_bytes() < 20_000, "{document:?}");
    }

    #[test]
    fn members_that_cannot_be_read_count_as_absent_and_say_why() {
        let long = format!("[{}1]", "{\"\":0},".repeat(10_000));
        let document =
            parse(&format!(r#"{{"transform":{long},"resolution":[1e999],"units":["\ud800"],"axes":["x"]}}"#));
        assert_eq!(Value::Object(document.members().clone()), json!({"axes": ["x"]}));
        let unread: Vec<String> = document.unread().iter().map(|u| format!("{}: {}", u.name, u.reason)).collect();
        assert!(unread.len() == 3 && unread[0].starts_with("transform: it is too large"), "{unread:?}");
        assert!(unread.contains(&"resolution: number out of range at line 1 column 6".to_owned()), "{unread:?}");
        // No other member keeps the array attributes from being read.
        let array = r#""dimensions":[4],"blockSize":[4],"dataType":"uint8","compression":{"type":"raw"}"#;
        let filling = format!("[{}1]", "{\"\":0},".repeat(200));
        let document = parse(&format!(r#"{{"scales":{filling},"transform":{filling},{array}}}"#));
        assert!(document.describes_dataset() && document.unread().len() == 1, "{:?}", document.unread());
        assert!(document.tree_bytes() <= INTERPRETED_BYTES);
    }

    #[test]
    fn a_dataset_of_which_a_member_cannot_be_read_is_still_meant_to_be_one() {
        let document =
            parse(&format!(r#"{{"dimensions":[{}4],"blockSize":[4],"dataType":"uint8"}}"#, "4,".repeat(1000)));
        assert!(document.describes_dataset());
    }
}
