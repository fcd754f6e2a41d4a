//! JSON text scanned in one pass and in constant memory: validation, the positions of an object's members, and an upper
//! bound of the memory that the tree of a value takes.
//!
//! Source: RFC 8259. Numbers of any size and unpaired surrogates in escapes are accepted.

mod scanner;

use std::borrow::Cow;

use memchr::memchr2;

use self::scanner::{JsonScanner, is_whitespace};

pub(crate) use self::scanner::MEMBER_BYTES;
pub use self::scanner::{JsonError, MAX_DEPTH, MAX_VALUES};

/// Longer names are compared as written. No name of interest is this long, even with all characters escaped.
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
    state: JsonMembersState,
    has_braces: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonMembersState {
    First,
    Next,
    Ended,
}

impl<'a> JsonMembers<'a> {
    /// Starts to read the members of the object in `text`.
    ///
    /// # Errors
    /// [`JsonError`] if the text does not begin with an object.
    pub fn parse(text: &'a str) -> Result<Self, JsonError> {
        let mut scanner = JsonScanner::new(text);
        scanner.skip_whitespace();
        if !scanner.eat(b'{') {
            return Err(scanner.syntax_error("an object"));
        }
        scanner.count_value()?;
        scanner.depth = 1;
        Ok(Self { scanner, state: JsonMembersState::First, has_braces: true })
    }

    /// Starts to read the members of an object whose text is given without its braces.
    pub(crate) fn without_braces(text: &'a str) -> Self {
        let mut scanner = JsonScanner::new(text);
        scanner.depth = 1;
        Self { scanner, state: JsonMembersState::First, has_braces: false }
    }

    /// Returns the next member. Returns `None` after the last one, if only white space follows the object.
    ///
    /// # Errors
    /// [`JsonError`] if the text is malformed or exceeds a limit. All further calls return `None`.
    pub fn next_member(&mut self) -> Result<Option<JsonMember<'a>>, JsonError> {
        let next = self.read();
        if !matches!(next, Ok(Some(_))) {
            self.state = JsonMembersState::Ended;
        }
        next
    }

    fn read(&mut self) -> Result<Option<JsonMember<'a>>, JsonError> {
        let scanner = &mut self.scanner;
        scanner.skip_whitespace();
        match self.state {
            JsonMembersState::Ended => return Ok(None),
            _ if !self.has_braces && scanner.peek().is_none() => return Ok(None),
            _ if self.has_braces && scanner.eat(b'}') => {
                scanner.expect_end()?;
                return Ok(None);
            }
            JsonMembersState::First => {}
            JsonMembersState::Next if scanner.eat(b',') => {}
            JsonMembersState::Next => return Err(scanner.syntax_error("a comma or the end of the object")),
        }
        self.state = JsonMembersState::Next;
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
/// [`JsonError`] if it is not, or exceeds a limit.
pub(crate) fn validate(text: &str) -> Result<(), JsonError> {
    let mut scanner = JsonScanner::new(text);
    scanner.value()?;
    scanner.expect_end()
}

/// Returns an upper bound of the bytes that a `serde_json::Value` takes for `value`, including the bytes of its text.
/// `value` must be well formed.
pub(crate) fn tree_bytes(value: &str) -> u64 {
    let mut scanner = JsonScanner::new(value);
    // Text that is not well formed has no tree.
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
