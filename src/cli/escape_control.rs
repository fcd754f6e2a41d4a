//! Escapes names and texts of a container for the terminal.

use std::borrow::Cow;

/// Returns `text` with its control characters escaped. Names and attributes are not trusted: their control characters
/// could move the cursor, hide lines or forge some.
pub(super) fn escape_control_chars(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escape_control_chars("µm \\ \"a\" 图"), "µm \\ \"a\" 图");
        assert_eq!(escape_control_chars("a\u{1b}[2Jb\n\u{9b}c\r\u{7f}"), "a\\u{1b}[2Jb\\n\\u{9b}c\\r\\u{7f}");
    }
}
