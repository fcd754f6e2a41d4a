//! Installs the log subscriber and the metrics recorder. Only `cli` and `server` call this module. Other modules use
//! the facades of `tracing` and `metrics`.
//!
//! No logged value can add a field or a line. Values come from clients (paths, hosts, subjects of tokens), from files
//! (names, keys, paths) and from errors that contain such values. The formatters of `tracing-subscriber` quote a `str`
//! but write `%value` and errors unchanged. With them, a JWT with the subject `alice status=200` would add a field to
//! the audit line. The formatter here quotes values itself, whatever the call site.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::borrow::Cow;
use std::error::Error;
use std::fmt::{self, Debug, Write as _};
use std::io::{self, IsTerminal as _, Write};
use std::panic::{self, PanicHookInfo};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tracing::field::{Field, Visit};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::Registry;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use crate::config::{LogConfig, LogFormat};
use crate::telemetry::log_throttle::LogThrottle;

/// Upper bounds of the buckets of every `_duration_seconds` histogram, in seconds. These are OpenTelemetry's bounds,
/// and lower ones for blocks that are read from memory.
const DURATION_BUCKETS: [f64; 19] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0,
];

/// Interval at which observations are added to their buckets, even if no client requests `/metrics`. Until then, each
/// observation takes 8 bytes. Loading tiny blocks makes a million observations per second on two cores. With an
/// interval of 5 seconds, these observations took 40 MiB.
const UPKEEP_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum number of log lines that wait to be written. If a full disk or a stalled reader accepts no lines, further
/// lines are dropped and counted, so that no request waits.
const LOG_QUEUE_LINES: usize = 8192;

/// Counter of dropped lines.
static DROPPED_LINES: OnceLock<ErrorCounter> = OnceLock::new();

/// Number of lines that could not be written.
static UNWRITTEN_LINES: AtomicU64 = AtomicU64::new(0);

/// Error while installing logs or metrics.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// `log.level` is not a filter.
    #[error("log.level is not a filter")]
    Level(#[from] ParseError),
    /// Another subscriber is already installed.
    #[error("logging is already installed")]
    Log(#[from] TryInitError),
    /// The recorder cannot be built, or another one is already installed.
    #[error("the metrics recorder cannot be installed")]
    Metrics(#[from] BuildError),
}

/// Installs a log subscriber that writes lines and panics to standard error from a dedicated thread, as configured in
/// `[log]`. Dropping the returned guard writes the lines that still wait, within a short time.
///
/// # Errors
/// Returns [`TelemetryError`] if the filter is invalid or logging is already installed.
pub fn install_log(log: &LogConfig) -> Result<WorkerGuard, TelemetryError> {
    let (filter, handle) = reload::Layer::new(parse_level(&log.level)?);
    let _ = LEVEL_HANDLE.set(handle);
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(LOG_QUEUE_LINES)
        .thread_name("n5-log")
        .finish(LineWriter { out: io::stderr(), is_json: log.format == LogFormat::Json });
    let _ = DROPPED_LINES.set(writer.error_counter());
    let registry = tracing_subscriber::registry().with(filter);
    match log.format {
        LogFormat::Text => {
            let use_colours = io::stderr().is_terminal();
            let lines =
                tracing_subscriber::fmt::layer().fmt_fields(QuotedFields).with_writer(writer).with_ansi(use_colours);
            registry.with(lines).try_init()?;
        }
        LogFormat::Json => {
            let lines =
                tracing_subscriber::fmt::layer().json().flatten_event(true).with_span_list(false).with_writer(writer);
            registry.with(lines).try_init()?;
        }
    }
    panic::set_hook(Box::new(log_panic));
    Ok(guard)
}

/// Handle to the filter of log lines; set when logging is installed.
static LEVEL_HANDLE: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Changes `log.level`. Does nothing if logging is not installed.
///
/// # Errors
/// Returns [`TelemetryError::Level`] if the filter is invalid.
pub fn set_level(level: &str) -> Result<(), TelemetryError> {
    let filter = parse_level(level)?;
    if let Some(handle) = LEVEL_HANDLE.get() {
        // This fails only if the log no longer exists.
        let _ = handle.reload(filter);
    }
    Ok(())
}

/// Parses `log.level`. Spaces are removed, because they would become part of a target's name.
fn parse_level(level: &str) -> Result<Targets, ParseError> {
    let targets: Targets = level.replace(' ', "").parse()?;
    let max_level = targets.default_level().unwrap_or(LevelFilter::OFF);
    // `h2` logs a warning for each connection whose client cancels its requests. An attacker could fill a disk with
    // such warnings.
    let includes_h2 = targets.iter().any(|(target, _)| target == "h2") || max_level >= LevelFilter::DEBUG;
    Ok(if includes_h2 { targets } else { targets.with_target("h2", max_level.min(LevelFilter::ERROR)) })
}

/// Handle to the Prometheus recorder, which renders `/metrics`. Cheap to clone.
#[derive(Debug, Clone)]
pub struct MetricsHandle(PrometheusHandle);

/// Installs the recorder of this process's metrics. Further calls return the same handle, so tests can build many
/// servers.
///
/// # Errors
/// Returns [`TelemetryError::Metrics`] if another recorder is already installed.
pub fn install_metrics() -> Result<MetricsHandle, TelemetryError> {
    static INSTALLED: OnceLock<MetricsHandle> = OnceLock::new();
    if let Some(metrics) = INSTALLED.get() {
        return Ok(metrics.clone());
    }
    let durations = Matcher::Suffix("_duration_seconds".to_owned());
    match PrometheusBuilder::new().set_buckets_for_metric(durations, &DURATION_BUCKETS)?.install_recorder() {
        Ok(handle) => {
            metrics_process::Collector::default().describe();
            Ok(INSTALLED.get_or_init(|| MetricsHandle(handle)).clone())
        }
        // Another thread may have installed the recorder at the same time.
        Err(error) => INSTALLED.get().cloned().ok_or(error.into()),
    }
}

impl MetricsHandle {
    /// Renders all metrics in Prometheus' text format, version 0.0.4, including the current metrics of the process
    /// (`process_*`).
    pub fn render(&self) -> String {
        metrics_process::Collector::default().collect();
        let dropped = DROPPED_LINES.get().map_or(0, ErrorCounter::dropped_lines) as u64;
        crate::telemetry::metrics::log_lines_dropped(dropped.saturating_add(UNWRITTEN_LINES.load(Ordering::Relaxed)));
        self.0.render()
    }

    /// Adds observations to their buckets at regular intervals, so that they do not accumulate in memory. Never
    /// returns, and must be spawned as a task.
    pub async fn upkeep(self) {
        let mut ticks = tokio::time::interval(UPKEEP_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.0.run_upkeep();
        }
    }
}

/// Returns the message of a panic, if it has one.
pub fn panic_message(panic: &(dyn Any + Send)) -> Option<&str> {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str))
}

/// Logs a panic as one line, at most one per second, instead of the multi-line text that the standard library writes to
/// standard error.
fn log_panic(panic: &PanicHookInfo<'_>) {
    static PANICS: LogThrottle = LogThrottle::new();
    let Some(suppressed) = PANICS.allow() else { return };
    let text = panic_message(panic.payload());
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| tracing::field::display(backtrace));
    tracing::error!(text, place, suppressed, backtrace, "panic: this is a bug in n5-server; please report it");
}

/// Formats the fields of a text line as `name=value`, separated by spaces. Strings are quoted and escaped as `Debug`
/// does. Other values are quoted if they are empty or contain a space, `=`, `"`, `\` or a character other than
/// printable ASCII. The message is not quoted, but its invisible characters are escaped.
struct QuotedFields;

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

/// Writes each line to `out` with one call, and counts the lines that were not written completely.
///
/// Invisible characters of JSON become `\u` escapes. JSON itself escapes only control characters below U+0020. It
/// allows U+2028, which many readers take for the end of a line, and U+009B, which some terminals interpret.
struct LineWriter<W> {
    out: W,
    is_json: bool,
}

impl<W: Write> Write for LineWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.write_all(line).map(|()| line.len())
    }

    fn write_all(&mut self, line: &[u8]) -> io::Result<()> {
        let is_plain = !self.is_json || line.iter().all(|byte| matches!(byte, b'\n' | b' '..=b'~'));
        let line = if is_plain { Cow::Borrowed(line) } else { escape_json(line).into_bytes().into() };
        let written = self.out.write_all(&line);
        if written.is_err() {
            UNWRITTEN_LINES.fetch_add(1, Ordering::Relaxed);
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn escape_json(line: &[u8]) -> String {
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
    escaped
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
            let log = log
                .json()
                .flatten_event(true)
                .with_writer(move || LineWriter { out: log_writer.clone(), is_json: true });
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
            tracing::info!(%peer, name, took = ?Duration::from_secs(3), ready = true, left = -1, "a\n\u{1b}[2Jb \"c\"");
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

    #[test]
    fn metrics_are_installed_once_and_rendered_with_buckets() {
        let first = install_metrics().unwrap();
        metrics::histogram!("n5_test_duration_seconds").record(Duration::from_micros(200));
        let text = install_metrics().unwrap().render();
        assert!(text.contains("n5_test_duration_seconds_bucket{le=\"0.00025\"} 1"), "{text}");
        assert!(text.contains("# TYPE n5_test_duration_seconds histogram"));
        assert!(first.render().contains("n5_test_duration"));
        if cfg!(target_os = "linux") {
            assert!(text.contains("process_resident_memory_bytes"), "{text}");
        }
    }

    #[test]
    fn every_valid_level_is_a_filter() {
        for level in ["info", "OFF", "warn,n5_server=debug", "n5_server::http=trace, info"] {
            let log = LogConfig { level: level.to_owned(), ..LogConfig::default() };
            let config = crate::config::Config { log, ..crate::config::Config::default() };
            assert!(config.validate(&[]).is_ok());
            let filter = parse_level(level).unwrap();
            assert_eq!(
                filter.would_enable("n5_server::http", &tracing::Level::TRACE),
                level.contains("trace"),
                "{level}"
            );
            assert_eq!(filter.would_enable("other", &tracing::Level::INFO), level.ends_with("info"), "{level}");
            assert!(!filter.would_enable("h2::proto", &tracing::Level::WARN), "{level}");
        }
        for level in ["debug", "info,h2=warn"] {
            assert!(parse_level(level).unwrap().would_enable("h2::proto", &tracing::Level::WARN), "{level}");
        }
    }
}
