//! JSON text read in one pass and in constant memory: whether it is well formed, where the members of an object are, and
//! at most how much memory a tree of a value takes.
//!
//! Source: RFC 8259. Numbers of any size and unpaired surrogates in escapes are well formed.

use std::borrow::Cow;

use memchr::memchr2;

/// Most values in a text: scalars, arrays and objects.
pub const MAX_VALUES: u32 = 2_000_000;

/// Most arrays and objects within each other; the bits of a `u64` tell them apart.
pub const MAX_DEPTH: u32 = 64;

/// Most bytes that `serde_json::Value` takes for an object with its first member, for each member, and for each element of an
/// array that grows: a node of a B-tree has room for 11 members and is at least half full.
const OBJECT_BYTES: u64 = 736;
const MEMBER_BYTES: u64 = 192;
const ELEMENT_BYTES: u64 = 96;
const ARRAY_BYTES: u64 = 128;
const STRING_BYTES: u64 = 16;

/// Longer names are compared as they are written: no name of interest is as long, however it is escaped.
const LONG_NAME_BYTES: usize = 512;

/// Why a text is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// It is not JSON.
    #[error("expected {expected} at line {line} column {column}")]
    Syntax {
        /// What must be there.
        expected: &'static str,
        /// Line, from 1.
        line: usize,
        /// Byte in the line, from 1.
        column: usize,
    },
    /// More than [`MAX_VALUES`].
    #[error("it has more than {MAX_VALUES} values")]
    TooManyValues,
    /// More than [`MAX_DEPTH`].
    #[error("it has more than {MAX_DEPTH} levels of arrays and objects")]
    TooDeep,
}

/// A member of an object, as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member<'a> {
    /// The name with its quotation marks.
    pub key: &'a str,
    /// The value.
    pub value: &'a str,
}

impl<'a> Member<'a> {
    /// The name. One that no Rust string holds, or that is very long, as it is written.
    pub fn name(&self) -> Cow<'a, str> {
        let written = self.key.get(1..self.key.len().saturating_sub(1)).unwrap_or_default();
        if written.len() > LONG_NAME_BYTES || !written.contains('\\') {
            return Cow::Borrowed(written);
        }
        serde_json::from_str(self.key).map_or(Cow::Borrowed(written), Cow::Owned)
    }
}

/// The members of an object, in the order of the text, repeated names included.
#[derive(Debug, Clone)]
pub struct Members<'a> {
    scanner: Scanner<'a>,
    state: State,
    has_braces: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    First,
    Next,
    Ended,
}

impl<'a> Members<'a> {
    /// The members of the object that `text` is.
    ///
    /// # Errors
    /// [`JsonError`] when the text does not begin with an object.
    pub fn of(text: &'a str) -> Result<Self, JsonError> {
        let mut scanner = Scanner::new(text);
        scanner.skip_whitespace();
        if !scanner.eat(b'{') {
            return Err(scanner.expected("an object"));
        }
        scanner.count_value()?;
        scanner.depth = 1;
        Ok(Self { scanner, state: State::First, has_braces: true })
    }

    /// The members of the object that `text` is without its braces.
    pub(super) fn within(text: &'a str) -> Self {
        let mut scanner = Scanner::new(text);
        scanner.depth = 1;
        Self { scanner, state: State::First, has_braces: false }
    }

    /// The next member; `None` after the last, when nothing but white space follows the object.
    ///
    /// # Errors
    /// [`JsonError`]; all further calls return `None`.
    pub fn next_member(&mut self) -> Result<Option<Member<'a>>, JsonError> {
        let next = self.read();
        if !matches!(next, Ok(Some(_))) {
            self.state = State::Ended;
        }
        next
    }

    fn read(&mut self) -> Result<Option<Member<'a>>, JsonError> {
        let scanner = &mut self.scanner;
        scanner.skip_whitespace();
        match self.state {
            State::Ended => return Ok(None),
            _ if !self.has_braces && scanner.peek().is_none() => return Ok(None),
            _ if self.has_braces && scanner.eat(b'}') => {
                scanner.end()?;
                return Ok(None);
            }
            State::First => {}
            State::Next if scanner.eat(b',') => {}
            State::Next => return Err(scanner.expected("a comma or the end of the object")),
        }
        self.state = State::Next;
        let key = scanner.key()?;
        let value = scanner.value()?;
        Ok(Some(Member { key, value }))
    }
}

/// The first `count` elements of an array that is known to be well formed.
pub(super) fn first_elements(array: &str, count: usize) -> impl Iterator<Item = &str> {
    let mut scanner = Scanner::new(array);
    scanner.skip_whitespace();
    let mut is_next = scanner.eat(b'[');
    std::iter::from_fn(move || {
        let element = if is_next { scanner.value().ok() } else { None };
        scanner.skip_whitespace();
        is_next = scanner.eat(b',');
        element
    })
    .take(count)
}

/// Checks that `text` is one value.
///
/// # Errors
/// [`JsonError`].
pub(super) fn check(text: &str) -> Result<(), JsonError> {
    let mut scanner = Scanner::new(text);
    scanner.value()?;
    scanner.end()
}

/// Most bytes that a `serde_json::Value` takes of a value that is known to be well formed, its text included.
pub(super) fn tree_bytes(value: &str) -> u64 {
    let mut scanner = Scanner::new(value);
    // One that is not has no tree.
    let _ = scanner.value();
    scanner.tree_bytes.saturating_add(value.len() as u64)
}

/// Appends a value that is known to be well formed, without the white space between its parts.
pub(super) fn compact(value: &str, out: &mut String) {
    let mut rest = value;
    while let Some(at) = rest.find(|c: char| c == '"' || is_whitespace(c)) {
        let (plain, from) = rest.split_at_checked(at).unwrap_or((rest, ""));
        out.push_str(plain);
        let len = if from.starts_with('"') { string_len(from) } else { 0 };
        let (string, after) = from.split_at_checked(len).unwrap_or((from, ""));
        out.push_str(string);
        rest = after.trim_start_matches(is_whitespace);
    }
    out.push_str(rest);
}

fn is_whitespace(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

/// Length of the string that `text` begins with, quotation marks included.
fn string_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found;
        if bytes.get(at) == Some(&b'"') {
            return at + 1;
        }
        at += 2;
    }
    bytes.len()
}

#[derive(Debug, Clone)]
struct Scanner<'a> {
    text: &'a str,
    at: usize,
    /// Arrays and objects around the next byte.
    depth: u32,
    /// The bit of each level: 1 for an object.
    objects: u64,
    values: u32,
    tree_bytes: u64,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0, objects: 1, values: 0, tree_bytes: 0 }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let is_there = self.peek() == Some(byte);
        self.at += usize::from(is_there);
        is_there
    }

    fn skip_whitespace(&mut self) {
        while self.peek().is_some_and(|byte| is_whitespace(char::from(byte))) {
            self.at += 1;
        }
    }

    /// Nothing but white space is left.
    fn end(&mut self) -> Result<(), JsonError> {
        self.skip_whitespace();
        if self.peek().is_none() { Ok(()) } else { Err(self.expected("the end of the text")) }
    }

    fn expected(&self, expected: &'static str) -> JsonError {
        let before = self.text.as_bytes().get(..self.at).unwrap_or_default();
        let line = memchr::memchr_iter(b'\n', before).count() + 1;
        let column = before.len() - memchr::memrchr(b'\n', before).map_or(0, |at| at + 1) + 1;
        JsonError::Syntax { expected, line, column }
    }

    fn costs(&mut self, bytes: u64) {
        self.tree_bytes = self.tree_bytes.saturating_add(bytes);
    }

    fn count_value(&mut self) -> Result<(), JsonError> {
        self.values += 1;
        if self.values > MAX_VALUES { Err(JsonError::TooManyValues) } else { Ok(()) }
    }

    fn open(&mut self, is_object: bool) -> Result<(), JsonError> {
        if self.depth >= MAX_DEPTH {
            return Err(JsonError::TooDeep);
        }
        let bit = 1_u64 << self.depth;
        self.objects = if is_object { self.objects | bit } else { self.objects & !bit };
        self.depth += 1;
        Ok(())
    }

    /// The next value, whatever it is.
    fn value(&mut self) -> Result<&'a str, JsonError> {
        self.skip_whitespace();
        let (start, outside) = (self.at, self.depth);
        loop {
            if self.begins_value()? {
                continue;
            }
            if !self.goes_on(outside)? {
                return Ok(self.text.get(start..self.at).unwrap_or_default());
            }
        }
    }

    /// Reads a scalar, an empty array or object, or the beginning of another: then the result is `true`, and a value follows.
    fn begins_value(&mut self) -> Result<bool, JsonError> {
        self.skip_whitespace();
        self.count_value()?;
        match self.peek() {
            Some(b'{') => {
                self.at += 1;
                self.open(true)?;
                self.costs(OBJECT_BYTES);
                self.skip_whitespace();
                if self.eat(b'}') {
                    self.depth -= 1;
                    return Ok(false);
                }
                self.key()?;
                Ok(true)
            }
            Some(b'[') => {
                self.at += 1;
                self.open(false)?;
                self.costs(ARRAY_BYTES);
                self.skip_whitespace();
                if self.eat(b']') {
                    self.depth -= 1;
                    return Ok(false);
                }
                self.costs(ELEMENT_BYTES);
                Ok(true)
            }
            Some(b'"') => self.string().map(|text| {
                self.costs(STRING_BYTES + text.len() as u64);
                false
            }),
            Some(b'-' | b'0'..=b'9') => self.number().map(|()| false),
            _ => {
                let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
                let literal = ["true", "false", "null"].iter().find(|literal| rest.starts_with(literal.as_bytes()));
                let Some(literal) = literal else { return Err(self.expected("a value")) };
                self.at += literal.len();
                Ok(false)
            }
        }
    }

    /// Reads what follows a value: `true` where another one does, `false` where the arrays and objects within `outside` have
    /// ended.
    fn goes_on(&mut self, outside: u32) -> Result<bool, JsonError> {
        while self.depth > outside {
            self.skip_whitespace();
            let is_object = self.objects & (1_u64 << (self.depth - 1)) != 0;
            match (self.peek(), is_object) {
                (Some(b','), true) => {
                    self.at += 1;
                    self.skip_whitespace();
                    self.key()?;
                    return Ok(true);
                }
                (Some(b','), false) => {
                    self.at += 1;
                    self.costs(ELEMENT_BYTES);
                    return Ok(true);
                }
                (Some(b'}'), true) | (Some(b']'), false) => {
                    self.at += 1;
                    self.depth -= 1;
                }
                (_, true) => return Err(self.expected("a comma or the end of the object")),
                (_, false) => return Err(self.expected("a comma or the end of the array")),
            }
        }
        Ok(false)
    }

    /// A name and its colon; the name with its quotation marks.
    fn key(&mut self) -> Result<&'a str, JsonError> {
        self.skip_whitespace();
        if self.peek() != Some(b'"') {
            return Err(self.expected("a name in quotation marks"));
        }
        let key = self.string()?;
        self.costs(MEMBER_BYTES + STRING_BYTES + key.len() as u64);
        self.skip_whitespace();
        if self.eat(b':') { Ok(key) } else { Err(self.expected("a colon")) }
    }

    /// A string with its quotation marks, the first of which is there.
    fn string(&mut self) -> Result<&'a str, JsonError> {
        let start = self.at;
        self.at += 1;
        loop {
            let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
            let found = memchr2(b'"', b'\\', rest);
            let plain = rest.get(..found.unwrap_or(rest.len())).unwrap_or_default();
            if let Some(at) = plain.iter().position(|byte| *byte < 0x20) {
                self.at += at;
                return Err(self.expected("a control character to be escaped"));
            }
            self.at += plain.len();
            if found.is_none() {
                return Err(self.expected("the end of the string"));
            }
            if self.eat(b'"') {
                return Ok(self.text.get(start..self.at).unwrap_or_default());
            }
            self.at += 1;
            match self.peek() {
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
                Some(b'u') => {
                    let digits = self.text.as_bytes().get(self.at + 1..self.at + 5);
                    if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                        return Err(self.expected("four hexadecimal digits"));
                    }
                    self.at += 5;
                }
                _ => return Err(self.expected("an escape")),
            }
        }
    }

    fn number(&mut self) -> Result<(), JsonError> {
        self.eat(b'-');
        if !self.eat(b'0') {
            self.digits()?;
        }
        if self.eat(b'.') {
            self.digits()?;
        }
        if self.eat(b'e') || self.eat(b'E') {
            let _ = self.eat(b'+') || self.eat(b'-');
            self.digits()?;
        }
        Ok(())
    }

    /// At least one digit.
    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at > start { Ok(()) } else { Err(self.expected("a digit")) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn names(text: &str) -> Result<Vec<(String, &str)>, JsonError> {
        let mut members = Members::of(text)?;
        let mut names = Vec::new();
        while let Some(member) = members.next_member()? {
            names.push((member.name().into_owned(), member.value));
        }
        Ok(names)
    }

    #[test]
    fn members_come_as_they_are_written() {
        let text = r#" { "a" : [1, {"b": 2}] , "\u0061": "x\"}" ,"é":1e999,"\ud800":-0.0e+7,"":{} } "#;
        let expected =
            [("a", r#"[1, {"b": 2}]"#), ("a", r#""x\"}""#), ("é", "1e999"), (r"\ud800", "-0.0e+7"), ("", "{}")];
        let expected: Vec<_> = expected.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        assert_eq!(names(text).unwrap(), expected);
    }

    #[test]
    fn what_is_not_json_is_told_with_its_place() {
        for (text, place) in [
            ("{\"a\":1,\n \"b\": tru}", (2, 7)),
            ("{\"a\":01}", (1, 7)),
            ("{\"a\":1,}", (1, 8)),
            ("{\"a\" 1}", (1, 6)),
            ("{\"a\":[1 2]}", (1, 9)),
            ("{\"a\":[1}", (1, 8)),
            ("{\"a\":NaN}", (1, 6)),
            ("{\"a\":-}", (1, 7)),
            ("{\"a\":1.}", (1, 8)),
            ("{\"a\":\"\\x\"}", (1, 8)),
            ("{\"a\":\"\\ud80\"}", (1, 8)),
            ("{\"a\":\"\t\"}", (1, 7)),
            ("{\"a\":\"", (1, 7)),
            ("{\"a\":1} x", (1, 9)),
            ("{", (1, 2)),
            ("", (1, 1)),
        ] {
            let Err(JsonError::Syntax { line, column, .. }) = names(text) else { panic!("{text:?}") };
            assert_eq!((line, column), place, "{text:?}");
        }
    }

    #[test]
    fn values_and_levels_are_bounded() {
        let deep = |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1));
        assert!(names(&deep(64)).is_ok());
        assert_eq!(names(&deep(65)).unwrap_err(), JsonError::TooDeep);
        assert_eq!(names(&"{\"a\":".repeat(1_000_000)).unwrap_err(), JsonError::TooDeep);
        let many = |values: usize| format!("{{\"a\":[0{}]}}", ",0".repeat(values - 3));
        assert!(names(&many(2_000_000)).is_ok());
        assert_eq!(names(&many(2_000_001)).unwrap_err(), JsonError::TooManyValues);
    }

    #[test]
    fn first_elements_need_no_others() {
        let first = |text, count| first_elements(text, count).collect::<Vec<_>>();
        assert_eq!(first(" [ {\"a\":[1]} , 2 ,3]", 2), ["{\"a\":[1]}", "2"]);
        assert_eq!(first("[1]", 2), ["1"]);
        assert!(first("[]", 2).is_empty() && first("{}", 2).is_empty() && first("[ ]", 1).is_empty());
    }

    /// JSON text that serde_json reads, too, with white space and repeated names.
    fn json() -> impl Strategy<Value = String> {
        let leaf = prop::sample::select(vec![
            "null",
            "true",
            "false",
            "0",
            "-1.5e3",
            "\"\"",
            "\" a\\\"\\u00e9\\\\ \"",
            "\"\\ud83d\\ude00\"",
            "[ ]",
            "{\t}",
        ]);
        leaf.prop_map(str::to_owned).prop_recursive(5, 60, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(|list| format!("[ {} ]", list.join(" ,\n"))),
                prop::collection::vec(("[ab]?", inner), 0..14).prop_map(|members| {
                    let members: Vec<_> = members.iter().map(|(key, value)| format!("\"{key}\" :\r{value}")).collect();
                    format!("{{{}}}", members.join(" , "))
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_compacted_means_the_same(text in json()) {
            check(&text).unwrap();
            let mut compacted = String::new();
            compact(&text, &mut compacted);
            check(&compacted).unwrap();
            let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            prop_assert_eq!(read(&compacted), read(&text));
            prop_assert!(!compacted.replace("\" a\\\"\\u00e9\\\\ \"", "").contains(is_whitespace), "{}", compacted);
        }

        #[test]
        fn the_same_texts_are_json_as_for_serde_json(text in r#"[\[\]{},: "\\a0-9.eE+\-\n]{0,12}|\{"a":[0-9.eE+-]{1,6}\}"#) {
            let theirs = serde_json::from_str::<serde::de::IgnoredAny>(&text);
            prop_assert_eq!(check(&text).is_ok(), theirs.is_ok(), "{}", text);
        }
    }
}
