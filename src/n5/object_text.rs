//! Objects of JSON that are written from the text of others, member by member, never as a tree.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use serde::Serialize;

use super::json::{self, Member, Members};

/// The text of an object that is being written. Names may be repeated; of equal ones readers take the last.
#[derive(Debug, Clone, Default)]
pub struct ObjectText {
    /// Without braces.
    members: String,
}

impl ObjectText {
    /// The members of the object that the bytes of an `attributes.json` hold and whose names are `wanted`, without the white
    /// space between them; of no others where the bytes are not JSON.
    pub fn of(bytes: &[u8], mut wanted: impl FnMut(&str) -> bool) -> Self {
        let mut object = Self::default();
        // What is copied is shorter.
        object.members.reserve_exact(bytes.len());
        for_each_member(Members::of(attributes_text(bytes)).ok(), |member| {
            if wanted(&member.name()) {
                object.copy(member);
            }
        });
        object.members.shrink_to_fit();
        object
    }

    /// Appends a member from the text of another object.
    pub fn copy(&mut self, member: Member<'_>) {
        self.begin();
        self.members.push_str(member.key);
        self.members.push(':');
        json::compact(member.value, &mut self.members);
    }

    /// Appends a member.
    pub fn insert(&mut self, name: &str, value: &impl Serialize) {
        self.name(name);
        // Only maps with other keys than strings fail, of which there are none.
        self.members.push_str(&serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned()));
    }

    /// Appends an object as a member.
    pub fn insert_object(&mut self, name: &str, object: &Self) {
        self.make_room(object.len() + name.len() + 16);
        self.name(name);
        self.members.push('{');
        self.members.push_str(&object.members);
        self.members.push('}');
    }

    /// Appends the members of `other`.
    pub fn extend(&mut self, other: &Self) {
        if !other.is_empty() {
            self.make_room(other.len() + 1);
            self.begin();
            self.members.push_str(&other.members);
        }
    }

    /// Appends those members of `other` whose names are not here yet. Takes 8 bytes for each member of this object for that.
    pub fn extend_by_missing(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let mut count = 0;
        for_each_member(Some(Members::within(&self.members)), |_| count += 1);
        let mut present: Vec<u64> = Vec::with_capacity(count);
        for_each_member(Some(Members::within(&self.members)), |member| present.push(hasher.hash_one(member.name())));
        present.sort_unstable();
        self.members.reserve_exact(other.len() + 1);
        for_each_member(Some(Members::within(&other.members)), |member| {
            if present.binary_search(&hasher.hash_one(member.name())).is_err() {
                self.copy(member);
            }
        });
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Length of the text in bytes.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// The text with braces.
    pub fn into_text(self) -> String {
        let mut text = self.members;
        text.reserve_exact(2);
        text.insert(0, '{');
        text.push('}');
        text
    }

    /// Long texts are copied once; of many short ones not each moves all of those before.
    fn make_room(&mut self, bytes: usize) {
        if bytes > self.len() / 2 { self.members.reserve_exact(bytes) } else { self.members.reserve(bytes) }
    }

    fn begin(&mut self) {
        if !self.members.is_empty() {
            self.members.push(',');
        }
    }

    fn name(&mut self, name: &str) {
        self.begin();
        self.members.push_str(&serde_json::Value::from(name).to_string());
        self.members.push(':');
    }
}

/// Calls `look` with each of `members`, as far as they are well formed.
pub fn for_each_member<'a>(members: Option<Members<'a>>, mut look: impl FnMut(Member<'a>)) {
    let Some(mut members) = members else { return };
    while let Ok(Some(member)) = members.next_member() {
        look(member);
    }
}

/// The text that the bytes of an `attributes.json` hold, without byte order mark; empty where it is none.
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
        let mut object = ObjectText::of(bytes, |name| name != "b");
        object.insert("e\"", &json!([1]));
        let mut inner = ObjectText::default();
        inner.insert_object("empty", &ObjectText::default());
        object.insert_object("f", &inner);
        let expected = r#"{"a":[1e999,"\ud800 x"],"\u0063":{"d":0.10},"e\"":[1],"f":{"empty":{}}}"#;
        assert_eq!(object.into_text(), expected);
        assert!(ObjectText::of(b"[1]", |_| true).is_empty());
        assert!(ObjectText::of(b"\xff", |_| true).is_empty());
    }

    #[test]
    fn only_missing_members_are_added() {
        let mut object = ObjectText::of(br#"{"a":1,"\u0062":2}"#, |_| true);
        object.extend_by_missing(&ObjectText::of(br#"{"b":3,"c":4,"a":5}"#, |_| true));
        assert_eq!(object.clone().into_text(), r#"{"a":1,"\u0062":2,"c":4}"#);
        object.extend(&ObjectText::default());
        object.extend(&ObjectText::of(br#"{"a":6}"#, |_| true));
        assert_eq!(object.into_text(), r#"{"a":1,"\u0062":2,"c":4,"a":6}"#);
    }
}
