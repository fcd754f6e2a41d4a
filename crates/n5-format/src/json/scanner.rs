//! Byte-by-byte JSON scanner that keeps one bit per open level.

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
        /// The syntax element that is expected there.
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

#[derive(Debug, Clone)]
pub(super) struct JsonScanner<'a> {
    text: &'a str,
    at: usize,
    /// Number of arrays and objects around the next byte.
    pub(super) depth: u32,
    /// One bit per level: 1 for an object, 0 for an array.
    object_bits: u64,
    value_count: u32,
    pub(super) tree_bytes: u64,
}

impl<'a> JsonScanner<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0, object_bits: 1, value_count: 0, tree_bytes: 0 }
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    pub(super) fn eat(&mut self, byte: u8) -> bool {
        let is_match = self.peek() == Some(byte);
        self.at += usize::from(is_match);
        is_match
    }

    pub(super) fn skip_whitespace(&mut self) {
        while self.peek().is_some_and(|byte| is_whitespace(char::from(byte))) {
            self.at += 1;
        }
    }

    /// Checks that only white space is left.
    pub(super) fn expect_end(&mut self) -> Result<(), JsonError> {
        self.skip_whitespace();
        if self.peek().is_none() { Ok(()) } else { Err(self.syntax_error("the end of the text")) }
    }

    pub(super) fn syntax_error(&self, expected: &'static str) -> JsonError {
        let before = self.text.as_bytes().get(..self.at).unwrap_or_default();
        let line = memchr::memchr_iter(b'\n', before).count() + 1;
        let column = before.len() - memchr::memrchr(b'\n', before).map_or(0, |at| at + 1) + 1;
        JsonError::Syntax { expected, line, column }
    }

    fn add_tree_bytes(&mut self, bytes: u64) {
        self.tree_bytes = self.tree_bytes.saturating_add(bytes);
    }

    pub(super) fn count_value(&mut self) -> Result<(), JsonError> {
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
    pub(super) fn value(&mut self) -> Result<&'a str, JsonError> {
        self.skip_whitespace();
        let (start, outer_depth) = (self.at, self.depth);
        loop {
            if self.scan_value_start()? {
                continue;
            }
            if !self.scan_after_value(outer_depth)? {
                return Ok(self.text.get(start..self.at).unwrap_or_default());
            }
        }
    }

    /// Scans a scalar, an empty array or object, or the beginning of a non-empty one. Returns true in the last case:
    /// then a value follows.
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
                let Some(literal) = literal else { return Err(self.syntax_error("a value")) };
                self.at += literal.len();
                Ok(false)
            }
        }
    }

    /// Scans the text after a value. Returns true if another value follows, false once the arrays and objects deeper
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
    pub(super) fn key(&mut self) -> Result<&'a str, JsonError> {
        self.skip_whitespace();
        if self.peek() != Some(b'"') {
            return Err(self.syntax_error("a name in quotation marks"));
        }
        let key = self.string()?;
        self.add_tree_bytes(MEMBER_BYTES + STRING_BYTES + key.len() as u64);
        self.skip_whitespace();
        if self.eat(b':') { Ok(key) } else { Err(self.syntax_error("a colon")) }
    }

    /// Scans a string, of which the opening quotation mark is the next byte. Returns it with its quotation marks.
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
        if self.at > start { Ok(()) } else { Err(self.syntax_error("a digit")) }
    }
}

pub(super) fn is_whitespace(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}
