//! Scanner of JSON text that works in one pass and constant memory. It validates a text, finds the members of an
//! object, and computes an upper bound of the memory that the tree of a value takes.
//!
//! Source: RFC 8259. Numbers of any size and unpaired surrogates in escapes are accepted.

use std::borrow::Cow;

use memchr::memchr2;

/// Maximum number of values in a text: scalars, arrays and objects.
pub const MAX_VALUES: u32 = 2_000_000;

/// Maximum nesting depth of arrays and objects. The scanner keeps one bit per level in a `u64`.
pub const MAX_DEPTH: u32 = 64;

/// Upper bounds of the memory that `serde_json::Value` takes for a non-empty object, for each member, and for each
/// element of a growing array. A B-tree node takes 640 bytes, has room for 11 members, and is at least half full unless
/// it is the only one. Measured for 33 shapes with a counting allocator: a tree takes at most 84 % of the bound.
const OBJECT_BYTES: u64 = 736;
pub(crate) const MEMBER_BYTES: u64 = 192;
const ELEMENT_BYTES: u64 = 96;
const ARRAY_BYTES: u64 = 128;
const STRING_BYTES: u64 = 16;

/// Error from scanning a JSON text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// The text is not JSON.
    #[error("expected {expected} at line {line} column {column}")]
    Syntax {
        /// The syntax element that is expected at this place.
        expected: &'static str,
        /// Line number, from 1.
        line: usize,
        /// Number of the byte in the line, from 1.
        column: usize,
    },
    /// The text has more than [`MAX_VALUES`] values.
    #[error("it has more than {MAX_VALUES} values")]
    TooManyValues,
    /// The text has more than [`MAX_DEPTH`] levels.
    #[error("it has more than {MAX_DEPTH} levels of arrays and objects")]
    TooDeep,
}

/// Maximum length in bytes of a name whose escapes are decoded. No name of interest is longer, even if all its
/// characters are escaped.
const LONG_NAME_BYTES: usize = 512;

/// A member of an object, as written in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JsonMember<'a> {
    /// The name with its quotation marks.
    pub key: &'a str,
    /// The text of the value.
    pub value: &'a str,
}

impl<'a> JsonMember<'a> {
    /// Returns the name with escapes decoded. A name that is very long or not valid Unicode is returned as written.
    pub fn name(&self) -> Cow<'a, str> {
        let raw_name = self.key.get(1..self.key.len().saturating_sub(1)).unwrap_or_default();
        if raw_name.len() > LONG_NAME_BYTES || !raw_name.contains('\\') {
            return Cow::Borrowed(raw_name);
        }
        serde_json::from_str(self.key).map_or(Cow::Borrowed(raw_name), Cow::Owned)
    }
}

/// Reader of the members of an object, in the order of the text, including repeated names.
#[derive(Debug, Clone)]
pub struct JsonMembers<'a> {
    scanner: JsonScanner<'a>,
    has_braces: bool,
    /// True once a member has been read.
    needs_comma: bool,
    has_ended: bool,
}

impl<'a> JsonMembers<'a> {
    /// Starts to read the members of the object in `text`.
    ///
    /// # Errors
    /// Returns a [`JsonError`] if the text does not begin with an object.
    pub fn parse(text: &'a str) -> Result<Self, JsonError> {
        let mut scanner = JsonScanner::new(text);
        scanner.skip_whitespace();
        if !scanner.eat(b'{') {
            return Err(scanner.syntax_error("an object"));
        }
        scanner.count_value()?;
        scanner.depth = 1;
        Ok(Self { scanner, has_braces: true, needs_comma: false, has_ended: false })
    }

    /// Starts to read the members of an object whose text is given without its braces.
    pub(crate) fn without_braces(text: &'a str) -> Self {
        let mut scanner = JsonScanner::new(text);
        scanner.depth = 1;
        Self { scanner, has_braces: false, needs_comma: false, has_ended: false }
    }

    /// Returns the next member. Returns `None` after the last one, if only white space follows the object.
    ///
    /// # Errors
    /// Returns a [`JsonError`] if the text is malformed or exceeds a limit. All further calls return `None`.
    pub fn next_member(&mut self) -> Result<Option<JsonMember<'a>>, JsonError> {
        if self.has_ended {
            return Ok(None);
        }
        let next = self.read();
        self.has_ended = !matches!(next, Ok(Some(_)));
        next
    }

    fn read(&mut self) -> Result<Option<JsonMember<'a>>, JsonError> {
        let scanner = &mut self.scanner;
        scanner.skip_whitespace();
        if !self.has_braces && scanner.peek().is_none() {
            return Ok(None);
        }
        if self.has_braces && scanner.eat(b'}') {
            scanner.expect_end()?;
            return Ok(None);
        }
        if self.needs_comma && !scanner.eat(b',') {
            return Err(scanner.syntax_error("a comma or the end of the object"));
        }
        self.needs_comma = true;
        let key = scanner.key()?;
        let value = scanner.value()?;
        Ok(Some(JsonMember { key, value }))
    }
}

/// Returns the first `count` elements of an array, which must be well formed.
pub(crate) fn first_elements(array: &str, count: usize) -> impl Iterator<Item = &str> {
    let mut scanner = JsonScanner::new(array);
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

/// Checks that `text` is a single JSON value.
///
/// # Errors
/// Returns a [`JsonError`] if it is not, or exceeds a limit.
pub(crate) fn validate(text: &str) -> Result<(), JsonError> {
    let mut scanner = JsonScanner::new(text);
    scanner.value()?;
    scanner.expect_end()
}

/// Returns an upper bound of the bytes that a `serde_json::Value` takes for `value`, including the bytes of its text.
/// `value` must be well formed.
pub(crate) fn tree_bytes(value: &str) -> u64 {
    let mut scanner = JsonScanner::new(value);
    // A value that is well formed gives no error.
    let _ = scanner.value();
    scanner.tree_bytes.saturating_add(value.len() as u64)
}

/// Appends `value` to `out` without the white space between tokens. `value` must be well formed.
pub(crate) fn compact(value: &str, out: &mut String) {
    let mut rest = value;
    while let Some(at) = rest.bytes().position(|byte| byte == b'"' || is_whitespace(char::from(byte))) {
        let (plain, from) = rest.split_at_checked(at).unwrap_or((rest, ""));
        out.push_str(plain);
        let len = if from.starts_with('"') { string_len(from) } else { 0 };
        let (string, after) = from.split_at_checked(len).unwrap_or((from, ""));
        out.push_str(string);
        rest = after.trim_start_matches(is_whitespace);
    }
    out.push_str(rest);
}

/// Returns the length of the string at the beginning of `text`, including its quotation marks.
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

/// Scanner of JSON text. It takes constant memory, because it keeps only one bit for each array or object that is open.
#[derive(Debug, Clone)]
struct JsonScanner<'a> {
    text: &'a str,
    at: usize,
    /// Number of arrays and objects that are open at the current position.
    depth: u32,
    /// One bit per level: 1 for an object, 0 for an array.
    object_bits: u64,
    value_count: u32,
    tree_bytes: u64,
}

impl<'a> JsonScanner<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0, object_bits: 1, value_count: 0, tree_bytes: 0 }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let is_match = self.peek() == Some(byte);
        self.at += usize::from(is_match);
        is_match
    }

    fn skip_whitespace(&mut self) {
        while self.peek().is_some_and(|byte| is_whitespace(char::from(byte))) {
            self.at += 1;
        }
    }

    /// Checks that only white space is left.
    fn expect_end(&mut self) -> Result<(), JsonError> {
        self.skip_whitespace();
        if self.peek().is_none() { Ok(()) } else { Err(self.syntax_error("the end of the text")) }
    }

    fn syntax_error(&self, expected: &'static str) -> JsonError {
        let before = self.text.as_bytes().get(..self.at).unwrap_or_default();
        let line = memchr::memchr_iter(b'\n', before).count() + 1;
        let column = before.len() - memchr::memrchr(b'\n', before).map_or(0, |at| at + 1) + 1;
        JsonError::Syntax { expected, line, column }
    }

    /// Returns the error at a place where a value or its first digit is `expected`. Some programs write numbers there that
    /// JSON does not have.
    fn value_error(&self, expected: &'static str) -> JsonError {
        let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let is_not_finite = rest.starts_with(b"NaN") || rest.starts_with(b"Infinity");
        let finite = "a finite number, because JSON has neither NaN nor Infinity,";
        self.syntax_error(if is_not_finite { finite } else { expected })
    }

    fn add_tree_bytes(&mut self, bytes: u64) {
        self.tree_bytes = self.tree_bytes.saturating_add(bytes);
    }

    fn count_value(&mut self) -> Result<(), JsonError> {
        self.value_count += 1;
        if self.value_count > MAX_VALUES { Err(JsonError::TooManyValues) } else { Ok(()) }
    }

    fn open(&mut self, is_object: bool) -> Result<(), JsonError> {
        if self.depth >= MAX_DEPTH {
            return Err(JsonError::TooDeep);
        }
        let bit = 1_u64 << self.depth;
        self.object_bits = if is_object { self.object_bits | bit } else { self.object_bits & !bit };
        self.depth += 1;
        Ok(())
    }

    /// Scans the next value and returns its text.
    fn value(&mut self) -> Result<&'a str, JsonError> {
        self.skip_whitespace();
        let start = self.at;
        let outer_depth = self.depth;
        loop {
            if self.scan_value_start()? {
                continue;
            }
            if !self.scan_after_value(outer_depth)? {
                return Ok(self.text.get(start..self.at).unwrap_or_default());
            }
        }
    }

    /// Scans a scalar, an empty array or object, or the beginning of a non-empty one. Returns true if it was the
    /// beginning of a non-empty array or object, whose first value follows.
    fn scan_value_start(&mut self) -> Result<bool, JsonError> {
        self.skip_whitespace();
        self.count_value()?;
        match self.peek() {
            Some(b'{') => {
                self.at += 1;
                self.open(true)?;
                self.skip_whitespace();
                if self.eat(b'}') {
                    self.depth -= 1;
                    return Ok(false);
                }
                self.add_tree_bytes(OBJECT_BYTES);
                self.key()?;
                Ok(true)
            }
            Some(b'[') => {
                self.at += 1;
                self.open(false)?;
                self.skip_whitespace();
                if self.eat(b']') {
                    self.depth -= 1;
                    return Ok(false);
                }
                self.add_tree_bytes(ARRAY_BYTES + ELEMENT_BYTES);
                Ok(true)
            }
            Some(b'"') => self.string().map(|text| {
                self.add_tree_bytes(STRING_BYTES + text.len() as u64);
                false
            }),
            Some(b'-' | b'0'..=b'9') => self.number().map(|()| false),
            _ => {
                let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
                let literal = ["true", "false", "null"].iter().find(|literal| rest.starts_with(literal.as_bytes()));
                let Some(literal) = literal else { return Err(self.value_error("a value")) };
                self.at += literal.len();
                Ok(false)
            }
        }
    }

    /// Scans the text after a value. Returns true if another value follows, and false if all arrays and objects deeper
    /// than `outer_depth` have ended.
    fn scan_after_value(&mut self, outer_depth: u32) -> Result<bool, JsonError> {
        while self.depth > outer_depth {
            self.skip_whitespace();
            let is_object = self.object_bits & (1_u64 << (self.depth - 1)) != 0;
            match (self.peek(), is_object) {
                (Some(b','), true) => {
                    self.at += 1;
                    self.skip_whitespace();
                    self.key()?;
                    return Ok(true);
                }
                (Some(b','), false) => {
                    self.at += 1;
                    self.add_tree_bytes(ELEMENT_BYTES);
                    return Ok(true);
                }
                (Some(b'}'), true) | (Some(b']'), false) => {
                    self.at += 1;
                    self.depth -= 1;
                }
                (_, true) => return Err(self.syntax_error("a comma or the end of the object")),
                (_, false) => return Err(self.syntax_error("a comma or the end of the array")),
            }
        }
        Ok(false)
    }

    /// Scans a member's name and the colon after it. Returns the name with its quotation marks.
    fn key(&mut self) -> Result<&'a str, JsonError> {
        self.skip_whitespace();
        if self.peek() != Some(b'"') {
            return Err(self.syntax_error("a name in quotation marks"));
        }
        let key = self.string()?;
        self.add_tree_bytes(MEMBER_BYTES + STRING_BYTES + key.len() as u64);
        self.skip_whitespace();
        if self.eat(b':') { Ok(key) } else { Err(self.syntax_error("a colon")) }
    }

    /// Scans a string that begins at the next byte. Returns the string with its quotation marks.
    fn string(&mut self) -> Result<&'a str, JsonError> {
        let start = self.at;
        self.at += 1;
        loop {
            let rest = self.text.as_bytes().get(self.at..).unwrap_or_default();
            let found = memchr2(b'"', b'\\', rest);
            let plain = rest.get(..found.unwrap_or(rest.len())).unwrap_or_default();
            if let Some(at) = plain.iter().position(|byte| *byte < 0x20) {
                self.at += at;
                return Err(self.syntax_error("an escape instead of a control character"));
            }
            self.at += plain.len();
            if found.is_none() {
                return Err(self.syntax_error("the end of the string"));
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
                        return Err(self.syntax_error("four hexadecimal digits"));
                    }
                    self.at += 5;
                }
                _ => return Err(self.syntax_error("an escape")),
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

    /// Scans at least one digit.
    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at > start { Ok(()) } else { Err(self.value_error("a digit")) }
    }
}

fn is_whitespace(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn names(text: &str) -> Result<Vec<(String, &str)>, JsonError> {
        let mut members = JsonMembers::parse(text)?;
        let mut names = Vec::new();
        while let Some(member) = members.next_member()? {
            names.push((member.name().into_owned(), member.value));
        }
        Ok(names)
    }

    #[test]
    fn members_are_returned_as_written() {
        let text = r#" { "a" : [1, {"b": 2}] , "\u0061": "x\"}" ,"é":1e999,"\ud800":-0.0e+7,"":{} } "#;
        let expected =
            [("a", r#"[1, {"b": 2}]"#), ("a", r#""x\"}""#), ("é", "1e999"), (r"\ud800", "-0.0e+7"), ("", "{}")];
        let expected: Vec<_> = expected.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        assert_eq!(names(text).unwrap(), expected);
    }

    #[test]
    fn syntax_errors_have_a_line_and_a_column() {
        for (text, position) in [
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
            assert_eq!((line, column), position, "{text:?}");
        }
    }

    #[test]
    fn numbers_that_json_does_not_have_are_named() {
        for text in ["{\"resolution\":[NaN,4]}", "{\"resolution\":[Infinity]}", "{\"resolution\":[-Infinity]}"] {
            let message = names(text).unwrap_err().to_string();
            assert!(
                message.starts_with("expected a finite number, because JSON has neither NaN nor Infinity, at line 1")
            );
        }
        assert_eq!(names("{\"a\":N}").unwrap_err().to_string(), "expected a value at line 1 column 6");
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
    fn first_elements_ignores_later_elements() {
        let first = |text, count| first_elements(text, count).collect::<Vec<_>>();
        assert_eq!(first(" [ {\"a\":[1]} , 2 ,3]", 2), ["{\"a\":[1]}", "2"]);
        assert_eq!(first("[1]", 2), ["1"]);
        assert!(first("[]", 2).is_empty() && first("{}", 2).is_empty() && first("[ ]", 1).is_empty());
    }

    /// Generates JSON text with white space and repeated names that serde_json accepts, too.
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
        fn compacting_keeps_the_value(text in json()) {
            validate(&text).unwrap();
            let mut compacted = String::new();
            compact(&text, &mut compacted);
            validate(&compacted).unwrap();
            let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            prop_assert_eq!(read(&compacted), read(&text));
            prop_assert!(!compacted.replace("\" a\\\"\\u00e9\\\\ \"", "").contains(is_whitespace), "{}", compacted);
        }

        #[test]
        fn validate_agrees_with_serde_json(text in r#"[\[\]{},: "\\a0-9.eE+\-\n]{0,12}|\{"a":[0-9.eE+-]{1,6}\}"#) {
            let theirs = serde_json::from_str::<serde::de::IgnoredAny>(&text);
            prop_assert_eq!(validate(&text).is_ok(), theirs.is_ok(), "{}", text);
        }
    }
}
