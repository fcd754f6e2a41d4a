//! Indexes of directories as JSON: those of n5-server, of nginx (`autoindex_format json`) and of Caddy.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::index_entry::IndexEntry;

/// A JSON index that was read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct JsonIndex {
    /// Name after which the next page begins. Only n5-server divides an index into pages.
    pub(super) next: Option<String>,
}

/// Reads an index and calls `visit` with each entry. If `is_cut` is true, the text may end anywhere after the first
/// entry. Returns `None` if the text is no index; some entries may have been visited.
pub(super) fn parse_json(text: &[u8], is_cut: bool, mut visit: impl FnMut(IndexEntry<'_>)) -> Option<JsonIndex> {
    // nginx writes names as they are, so that a single name can make the text invalid.
    let text = String::from_utf8_lossy(text);
    let has_replacements = matches!(text, Cow::Owned(_));
    let mut has_entries = false;
    let mut next = None;
    let mut visit_entry = |entry: &JsonEntry| {
        has_entries = true;
        let is_replaced = has_replacements && entry.name.contains(char::REPLACEMENT_CHARACTER);
        visit(match entry.kind.as_deref() {
            _ if is_replaced => IndexEntry::Unusable(&entry.name),
            Some("group" | "dataset" | "directory") => IndexEntry::Directory(&entry.name),
            Some("file") => IndexEntry::File(&entry.name),
            Some(_) => IndexEntry::Unusable(&entry.name),
            // Caddy adds a slash to the names of directories.
            None if entry.is_dir == Some(true) => IndexEntry::Directory(entry.name.trim_end_matches('/')),
            None => IndexEntry::File(&entry.name),
        });
    };
    let mut deserializer = serde_json::Deserializer::from_str(&text);
    let index = IndexVisitor { entries: Entries { visit: &mut visit_entry }, next: &mut next };
    match deserializer.deserialize_any(index).and_then(|()| deserializer.end()) {
        Ok(()) => Some(JsonIndex { next }),
        Err(error) if is_cut && error.is_eof() && has_entries => Some(JsonIndex { next }),
        Err(_) => None,
    }
}

/// An entry of an index.
#[derive(Deserialize)]
struct JsonEntry {
    name: String,
    /// Kind of the entry: `group`, `dataset` or `file` from n5-server, `directory`, `file` or `other` from nginx.
    #[serde(alias = "type")]
    kind: Option<String>,
    /// True for the directories of Caddy.
    is_dir: Option<bool>,
}

/// Passes on the entries of a list, one by one.
struct Entries<'a, F> {
    visit: &'a mut F,
}

impl<'de, F: FnMut(&JsonEntry)> Visitor<'de> for Entries<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        while let Some(entry) = entries.next_element::<JsonEntry>()? {
            if entry.kind.is_none() && entry.is_dir.is_none() {
                return Err(A::Error::custom("an entry has no kind"));
            }
            (self.visit)(&entry);
        }
        Ok(())
    }
}

impl<'de, F: FnMut(&JsonEntry)> DeserializeSeed<'de> for Entries<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

/// Reads the list of nginx and Caddy, or the document of n5-server.
struct IndexVisitor<'a, F> {
    entries: Entries<'a, F>,
    next: &'a mut Option<String>,
}

impl<'de, F: FnMut(&JsonEntry)> Visitor<'de> for IndexVisitor<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the index of a directory")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, entries: A) -> Result<(), A::Error> {
        self.entries.visit_seq(entries)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let (mut entries, mut has_next) = (Some(self.entries), false);
        while let Some(name) = members.next_key::<String>()? {
            match name.as_str() {
                "entries" => {
                    let entries = entries.take().ok_or_else(|| A::Error::duplicate_field("entries"))?;
                    members.next_value_seed(entries)?;
                }
                "next" => {
                    has_next = true;
                    *self.next = members.next_value()?;
                }
                _ => drop(members.next_value::<IgnoredAny>()?),
            }
        }
        let is_index = entries.is_none() && has_next;
        if is_index { Ok(()) } else { Err(A::Error::custom("the document has no entries or no next page")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the entries and the next page of an index, with a slash after directories and a mark before entries that
    /// cannot be used.
    fn entries(text: &[u8], is_cut: bool) -> Option<(Vec<String>, Option<String>)> {
        let mut entries = Vec::new();
        let index = parse_json(text, is_cut, |entry| {
            entries.push(match entry {
                IndexEntry::File(name) => name.to_owned(),
                IndexEntry::Directory(name) => format!("{name}/"),
                IndexEntry::Unusable(name) => format!("!{name}"),
            });
        })?;
        Some((entries, index.next))
    }

    #[test]
    fn indexes_of_three_servers_are_read() {
        let n5 = br#"{"path":"a","entries":[{"name":"attributes.json","kind":"file"},{"name":"s0","kind":"dataset"},
                     {"name":"g","kind":"group"}],"next":"s0","store":"zarr2"}"#;
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(entries(n5, false), Some((names(&["attributes.json", "s0/", "g/"]), Some("s0".to_owned()))));
        let nginx = b"[\n{ \"name\":\"s0\", \"type\":\"directory\", \"mtime\":\"x\" },\n\
                      { \"name\":\"a\xff\", \"type\":\"file\", \"size\":5 },{\"name\":\"p\",\"type\":\"other\"}]\n";
        assert_eq!(entries(nginx, false), Some((names(&["s0/", "!a\u{fffd}", "!p"]), None)));
        let caddy = br#"[{"name":"s0/","size":4096,"url":"./s0/","mode":2147484141,"is_dir":true,"is_symlink":false},
                        {"name":"a","size":2,"url":"./a","mode":420,"is_dir":false,"is_symlink":false}]"#;
        assert_eq!(entries(caddy, false), Some((names(&["s0/", "a"]), None)));
        assert_eq!(entries(b"[]", false), Some((Vec::new(), None)));
    }

    #[test]
    fn other_json_is_no_index() {
        for text in [
            "",
            "{}",
            "null",
            "3",
            r#"{"n5":"4.0.0"}"#,
            r#"{"entries":[],"more":1}"#,
            r#"{"entries":3,"next":null}"#,
            r#"[{"id":1}]"#,
            r#"[{"name":"x"}]"#,
            r"[1,2]",
            r#"[{"name":"x","type":"file"}"#,
            "[] []",
        ] {
            assert_eq!(entries(text.as_bytes(), false), None, "{text}");
        }
        assert!(entries(&b"[".repeat(100_000), false).is_none());
    }

    #[test]
    fn the_beginning_of_an_index_is_recognised() {
        assert!(entries(br#"{"path":"","entries":[{"name":"a","kind":"file"},{"na"#, true).is_some());
        assert!(entries(br#"{"path":"","entries":[{"na"#, true).is_none());
        assert!(entries(br#"[{"name":"a","type":"file"},{"x":}"#, true).is_none());
    }
}
