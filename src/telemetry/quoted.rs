//! Formatters that prevent forged log lines: no value can add a field or a line.
//!
//! Values come from clients (paths, hosts, subjects of tokens), from files (names, keys, paths) and from errors that
//! repeat either. The formatters of `tracing-subscriber` quote a `str` but write `%value` and errors unchanged. A JWT
//! with the subject `alice status=200` would add a field to the audit line. Here the formatter decides about quotes,
//! not the call site.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::{self, Debug, Write as _};
use std::io::{self, Write};

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;

/// Formats the fields of a text line as `name=value`, separated by spaces. Strings are quoted and escaped as by
/// `Debug`. Other values are, too, if they are empty or contain a space, `=`, `"`, `\` or anything other than printable
/// ASCII. The message is not quoted, but its invisible characters are escaped.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct QuotedFields;

impl<'writer> FormatFields<'writer> for QuotedFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = QuotedVisitor { writer, is_first: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct QuotedVisitor<'writer> {
    writer: Writer<'writer>,
    is_first: bool,
    result: fmt::Result,
}

impl QuotedVisitor<'_> {
    fn write(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        if self.result.is_ok() {
            self.result = self.try_write(field.name(), value);
        }
    }

    fn try_write(&mut self, name: &str, value: fmt::Arguments<'_>) -> fmt::Result {
        // The bridge from the crate `log` adds these fields; the line already begins with their values.
        if name.starts_with("log.") {
            return Ok(());
        }
        if !std::mem::take(&mut self.is_first) {
            self.writer.write_char(' ')?;
        }
        let name = name.strip_prefix("r#").unwrap_or(name);
        if name != "message" {
            if self.writer.has_ansi_escapes() {
                write!(self.writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m")?;
            } else {
                write!(self.writer, "{name}=")?;
            }
        }
        self.writer.write_fmt(value)
    }
}

impl Visit for QuotedVisitor<'_> {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.write(field, format_args!("{value}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.write(field, format_args!("{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.write(field, format_args!("{value}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.write(field, format_args!("{}", escape_invisible(value)));
        } else {
            self.write(field, format_args!("{value:?}"));
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        let mut text = value.to_string();
        let mut cause = value.source();
        while let Some(error) = cause {
            // Writing to a `String` cannot fail.
            let _ = write!(text, ": {error}");
            cause = error.source();
        }
        self.record_str(field, &text);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        if field.name() != "message" && is_unambiguous(&text) {
            self.write(field, format_args!("{text}"));
        } else {
            self.record_str(field, &text);
        }
    }
}

/// Returns true if a value needs no quotes: it ends at the next space and cannot be taken for several fields.
fn is_unambiguous(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && !br#""=\"#.contains(&byte))
}

/// Returns true if a terminal or a line reader may interpret this character instead of showing it: control characters,
/// line and paragraph separators, bidirectional formatting characters, and other unprintable ones.
fn is_invisible(c: char) -> bool {
    !matches!(c, '"' | '\'' | '\\') && c.escape_debug().len() > 1
}

/// Returns `text` with its invisible characters escaped.
fn escape_invisible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_invisible) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_invisible(c) { escaped.extend(c.escape_debug()) } else { escaped.push(c) }
    }
    Cow::Owned(escaped)
}

/// Writes lines of JSON with invisible characters as `\u` escapes. JSON already escapes control characters below
/// U+0020, but allows the others, such as U+2028, which many readers take for the end of a line, and U+009B, which some
/// terminals interpret.
#[derive(Debug)]
pub(super) struct JsonEscapingWriter<W>(pub(super) W);

impl<W: Write> Write for JsonEscapingWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.write_all(line).map(|()| line.len())
    }

    fn write_all(&mut self, line: &[u8]) -> io::Result<()> {
        if line.iter().all(|byte| matches!(byte, b'\n' | b' '..=b'~')) {
            return self.0.write_all(line);
        }
        let mut escaped = String::with_capacity(line.len());
        for c in String::from_utf8_lossy(line).chars() {
            if c == '\n' || !is_invisible(c) {
                escaped.push(c);
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a `String` cannot fail.
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        }
        self.0.write_all(escaped.as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Values that try to forge a field or a line.
    const ATTACKS: [&str; 9] = [
        "alice route=slice status=200",
        "alice\" status=200 x=\"",
        "alice\\\" status=200",
        "alice\n2026-01-01T00:00:00Z  INFO n5_server: forged",
        "alice\r\nforged",
        "alice\u{2028}forged\u{2029}\u{85}",
        "\u{1b}[2K\u{1b}[1Aforged\u{9b}31m\u{7f}",
        "alice\u{202e}002=sutats\u{2066}\u{e0001}",
        "",
    ];

    #[derive(Clone, Default)]
    struct CapturedLog(Arc<Mutex<Vec<u8>>>);

    impl Write for CapturedLog {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the lines that `job` logs.
    fn capture_log(is_json: bool, job: impl FnOnce()) -> String {
        let buffer = CapturedLog::default();
        let log_writer = buffer.clone();
        let log = tracing_subscriber::fmt().without_time().with_ansi(false);
        if is_json {
            let log = log.json().flatten_event(true).with_writer(move || JsonEscapingWriter(log_writer.clone()));
            tracing::subscriber::with_default(log.finish(), job);
        } else {
            let log = log.fmt_fields(QuotedFields).with_writer(move || log_writer.clone());
            tracing::subscriber::with_default(log.finish(), job);
        }
        let bytes = buffer.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    /// Parses the fields of a text line after the message; panics if they do not have the form of [`QuotedFields`].
    fn parse_fields(mut rest: &str) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        while !rest.is_empty() {
            let (name, value) = rest.split_once('=').unwrap();
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name:?}");
            let end = match value.strip_prefix('"') {
                // Escapes are skipped, not decoded. After a forged closing quote, the rest would not parse as fields.
                Some(quoted) => {
                    let mut is_escape = false;
                    let end = quoted.char_indices().find(|(_, c)| {
                        let is_end = *c == '"' && !is_escape;
                        is_escape = *c == '\\' && !is_escape;
                        is_end
                    });
                    end.unwrap().0 + 2
                }
                None => value.find(' ').unwrap_or(value.len()),
            };
            fields.push((name.to_owned(), value[..end].to_owned()));
            rest = value[end..].strip_prefix(' ').unwrap_or_else(|| {
                assert_eq!(value.len(), end, "{value:?}");
                ""
            });
        }
        fields
    }

    #[test]
    fn no_value_forges_a_field_or_a_line_of_text() {
        for attack in ATTACKS {
            let error = io::Error::other(attack);
            let text = capture_log(false, || {
                tracing::warn!(caller = %attack, peer = ?Some(attack), path = attack, %error, status = 404, "refused");
                let error: &(dyn Error + 'static) = &error;
                tracing::warn!(error, "ended");
            });
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len(), 2, "{text:?}");
            assert!(!text.replace('\n', "").contains(is_invisible), "{text:?}");
            let parsed = parse_fields(lines[0].split_once(": refused ").unwrap().1);
            let names: Vec<&str> = parsed.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, ["caller", "peer", "path", "error", "status"], "{text}");
            for index in [0, 2, 3] {
                assert_eq!(parsed[index].1, format!("{attack:?}"), "{text}");
            }
            assert_eq!(parsed[4].1, "404");
            assert_eq!(parse_fields(lines[1].split_once(": ended ").unwrap().1).len(), 1, "{text}");
        }
    }

    #[test]
    fn a_message_is_one_line_and_unambiguous_values_are_not_quoted() {
        let text = capture_log(false, || {
            let (peer, name) = (std::net::Ipv6Addr::LOCALHOST, "µm");
            tracing::info!(%peer, name, took = ?std::time::Duration::from_secs(3), ready = true, left = -1, "a\n\u{1b}[2Jb \"c\"");
        });
        assert_eq!(
            text.split_once(": ").unwrap().1,
            "a\\n\\u{1b}[2Jb \"c\" peer=::1 name=\"µm\" took=3s ready=true left=-1\n"
        );
    }

    #[test]
    fn json_has_one_line_per_event_for_any_line_splitter() {
        for attack in ATTACKS {
            let text = capture_log(true, || tracing::warn!(caller = %attack, "refused"));
            let line = text.strip_suffix('\n').unwrap();
            assert!(!line.contains(is_invisible), "{line:?}");
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!((&event["caller"], &event["message"]), (&attack.into(), &"refused".into()));
        }
    }
}
