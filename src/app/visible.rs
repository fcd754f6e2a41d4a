//! Names and texts of a container as a terminal may show them.

use std::borrow::Cow;

/// `text` with its control characters as escapes: names and attributes are others' words, and these would move the cursor,
/// hide lines or make up some.
pub(super) fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_seen_and_not_obeyed() {
        assert_eq!(visible("µm \\ \"a\" 图"), "µm \\ \"a\" 图");
        assert_eq!(visible("a\u{1b}[2Jb\n\u{9b}c\r\u{7f}"), "a\\u{1b}[2Jb\\n\\u{9b}c\\r\\u{7f}");
    }
}
