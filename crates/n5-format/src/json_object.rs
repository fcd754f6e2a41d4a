//! JSON objects built from the text of other objects, member by member, without building a tree.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use serde::Serialize;

use crate::json::{self, JsonMember, JsonMembers};

/// Builder for the text of a JSON object. A name may be added more than once; readers then take the last value.
#[derive(Debug, Clone, Default)]
pub struct JsonObjectBuilder {
    /// Text of the members, without the braces of the object.
    members: String,
}

impl JsonObjectBuilder {
    /// Creates an object with those members of an `attributes.json` for whose names `predicate` returns true. White
    /// space between tokens is removed. Copying stops at the first syntax error, so bytes that are not JSON give an
    /// empty object.
    pub fn from_matching(bytes: &[u8], mut predicate: impl FnMut(&str) -> bool) -> Self {
        let mut object = Self::default();
        // The copied text is at most as long as the input.
        object.members.reserve_exact(bytes.len());
        for_each_member(JsonMembers::parse(attributes_text(bytes)).ok(), |member| {
            if predicate(&member.name()) {
                object.push_member(member);
            }
        });
        object.members.shrink_to_fit();
        object
    }

    /// Appends a member that is copied from the text of another object.
    pub fn push_member(&mut self, member: JsonMember<'_>) {
        self.push_comma();
        self.members.push_str(member.key);
        self.members.push(':');
        json::compact(member.value, &mut self.members);
    }

    /// Appends a member with the name `name` and the serialized `value`.
    pub fn insert(&mut self, name: &str, value: &impl Serialize) {
        self.push_name(name);
        // Serialization fails only for maps whose keys are not strings, and no such map is passed.
        self.members.push_str(&serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned()));
    }

    /// Appends a member whose value is an object.
    pub fn insert_object(&mut self, name: &str, object: &Self) {
        self.reserve(object.len() + name.len() + 16);
        self.push_name(name);
        self.members.push('{');
        self.members.push_str(&object.members);
        self.members.push('}');
    }

    /// Appends the members of `other`.
    pub fn extend(&mut self, other: &Self) {
        if !other.is_empty() {
            self.reserve(other.len() + 1);
            self.push_comma();
            self.members.push_str(&other.members);
        }
    }

    /// Appends those members of `other` whose names do not occur in this object. Allocates 8 bytes for each member of
    /// this object.
    pub fn extend_missing(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let mut count = 0;
        for_each_member(Some(JsonMembers::without_braces(&self.members)), |_| count += 1);
        let mut present: Vec<u64> = Vec::with_capacity(count);
        for_each_member(Some(JsonMembers::without_braces(&self.members)), |member| {
            present.push(hasher.hash_one(member.name()));
        });
        present.sort_unstable();
        self.members.reserve_exact(other.len() + 1);
        for_each_member(Some(JsonMembers::without_braces(&other.members)), |member| {
            if present.binary_search(&hasher.hash_one(member.name())).is_err() {
                self.push_member(member);
            }
        });
    }

    /// Returns true if the object has no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the length in bytes of the members' text, without the braces of the object.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns the text of the object, with braces.
    pub fn into_text(self) -> String {
        let mut text = self.members;
        text.reserve_exact(2);
        text.insert(0, '{');
        text.push('}');
        text
    }

    /// Reserves space for `bytes` more bytes. For a long text, exactly this space is reserved, so that the text is
    /// copied only once. For short texts, the buffer grows geometrically, so that appending many of them rarely moves
    /// the buffer.
    fn reserve(&mut self, bytes: usize) {
        if bytes > self.len() / 2 { self.members.reserve_exact(bytes) } else { self.members.reserve(bytes) }
    }

    fn push_comma(&mut self) {
        if !self.members.is_empty() {
            self.members.push(',');
        }
    }

    fn push_name(&mut self, name: &str) {
        self.push_comma();
        self.members.push_str(&serde_json::Value::from(name).to_string());
        self.members.push(':');
    }
}

/// Calls `visit` with each member, in order, and stops at the first syntax error. Does nothing if `members` is `None`.
pub fn for_each_member<'a>(members: Option<JsonMembers<'a>>, mut visit: impl FnMut(JsonMember<'a>)) {
    let Some(mut members) = members else { return };
    while let Ok(Some(member)) = members.next_member() {
        visit(member);
    }
}

/// Returns the text of an `attributes.json` without its byte order mark, or an empty text if the bytes are not UTF-8.
pub fn attributes_text(bytes: &[u8]) -> &str {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    std::str::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_are_copied_as_they_are_written() {
        let bytes = b"\xef\xbb\xbf{ \"a\" : [ 1e999, \"\\ud800 x\" ],\n\"b\":1,\"\\u0063\":{\"d\": 0.10}}";
        let mut object = JsonObjectBuilder::from_matching(bytes, |name| name != "b");
        object.insert("e\"", &json!([1]));
        let mut inner = JsonObjectBuilder::default();
        inner.insert_object("empty", &JsonObjectBuilder::default());
        object.insert_object("f", &inner);
        let expected = r#"{"a":[1e999,"\ud800 x"],"\u0063":{"d":0.10},"e\"":[1],"f":{"empty":{}}}"#;
        assert_eq!(object.into_text(), expected);
        assert!(JsonObjectBuilder::from_matching(b"[1]", |_| true).is_empty());
        assert!(JsonObjectBuilder::from_matching(b"\xff", |_| true).is_empty());
    }

    #[test]
    fn only_missing_members_are_added() {
        let mut object = JsonObjectBuilder::from_matching(br#"{"a":1,"\u0062":2}"#, |_| true);
        object.extend_missing(&JsonObjectBuilder::from_matching(br#"{"b":3,"c":4,"a":5}"#, |_| true));
        assert_eq!(object.clone().into_text(), r#"{"a":1,"\u0062":2,"c":4}"#);
        object.extend(&JsonObjectBuilder::default());
        object.extend(&JsonObjectBuilder::from_matching(br#"{"a":6}"#, |_| true));
        assert_eq!(object.into_text(), r#"{"a":1,"\u0062":2,"c":4,"a":6}"#);
    }
}
