//! Installs the log subscriber and the metrics recorder. Only `cli` and `server` call this module; all others use the
//! facades of `tracing` and `metrics`.

mod panics;
mod quoted;

use std::io::{self, IsTerminal as _, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{LevelFilter, ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use crate::config::{LogConfig, LogFormat};
use quoted::{JsonEscapingWriter, QuotedFields};

/// Upper bounds of the buckets of every `_duration_seconds` histogram, in seconds: the bounds of OpenTelemetry, with
/// finer ones below them for blocks that come from memory.
const DURATION_BUCKETS: [f64; 19] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0,
];

/// Interval at which observations are folded into their buckets, even if no client requests `/metrics`. Until then,
/// each observation takes 8 bytes. Loads of tiny blocks make a million observations per second on two cores: with an
/// interval of 5 seconds, they took 40 MiB.
const UPKEEP_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum number of log lines that wait to be written. While a full disk or a stalled reader accepts no lines, further
/// lines are dropped and counted, and no request waits for them.
const LOG_QUEUE_LINES: usize = 8192;

/// Counter of dropped lines.
static DROPPED_LINES: OnceLock<ErrorCounter> = OnceLock::new();

/// Number of lines that could not be written.
static UNWRITTEN_LINES: AtomicU64 = AtomicU64::new(0);

/// Writes each line with one call and counts the lines that were not written completely; on a full disk, all of them.
struct FailureCountingWriter<W>(W);

impl<W: Write> Write for FailureCountingWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write(line)
    }

    fn write_all(&mut self, line: &[u8]) -> io::Result<()> {
        let written = self.0.write_all(line);
        if written.is_err() {
            UNWRITTEN_LINES.fetch_add(1, Ordering::Relaxed);
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

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
/// [`TelemetryError`] if the filter is invalid or logging is already installed.
pub fn install_log(log: &LogConfig) -> Result<WorkerGuard, TelemetryError> {
    let (filter, handle) = reload::Layer::new(parse_level(&log.level)?);
    let _ = LEVEL_HANDLE.set(handle);
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(LOG_QUEUE_LINES)
        .thread_name("n5-log")
        .finish(FailureCountingWriter(log_writer(log.format)));
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
    panics::log_panics();
    Ok(guard)
}

/// Returns a writer to standard error that does the escaping which lines of this format still need.
fn log_writer(format: LogFormat) -> Box<dyn Write + Send> {
    match format {
        LogFormat::Text => Box::new(io::stderr()),
        LogFormat::Json => Box::new(JsonEscapingWriter(io::stderr())),
    }
}

/// Handle to the filter of log lines; set when logging is installed.
static LEVEL_HANDLE: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Changes `log.level`. Does nothing if logging is not installed.
///
/// # Errors
/// [`TelemetryError::Level`] if the filter is invalid.
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

/// Handle to the Prometheus recorder, from which `/metrics` is rendered. Cheap to clone.
#[derive(Clone)]
pub struct MetricsHandle(PrometheusHandle);

impl std::fmt::Debug for MetricsHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MetricsHandle")
    }
}

/// Installs the recorder of this process's metrics. Further calls return the same handle, so tests can build many
/// servers.
///
/// # Errors
/// [`TelemetryError::Metrics`] if another recorder is already installed.
pub fn install_metrics() -> Result<MetricsHandle, TelemetryError> {
    static INSTALLED: OnceLock<MetricsHandle> = OnceLock::new();
    if let Some(metrics) = INSTALLED.get() {
        return Ok(metrics.clone());
    }
    match prometheus_builder()?.install_recorder() {
        Ok(handle) => {
            metrics_process::Collector::default().describe();
            Ok(INSTALLED.get_or_init(|| MetricsHandle(handle)).clone())
        }
        // Another thread may have installed the recorder at the same time.
        Err(error) => INSTALLED.get().cloned().ok_or(error.into()),
    }
}

fn prometheus_builder() -> Result<PrometheusBuilder, BuildError> {
    PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_duration_seconds".to_owned()), &DURATION_BUCKETS)
}

impl MetricsHandle {
    /// Renders all metrics in Prometheus' text format, version 0.0.4, including the current metrics of the process
    /// (`process_*`).
    pub fn render(&self) -> String {
        metrics_process::Collector::default().collect();
        let dropped = DROPPED_LINES.get().map_or(0, ErrorCounter::dropped_lines) as u64;
        crate::metrics::log_lines_dropped(dropped.saturating_add(UNWRITTEN_LINES.load(Ordering::Relaxed)));
        self.0.render()
    }

    /// Folds observations into their buckets at regular intervals, so they do not accumulate in memory. Never returns;
    /// spawn it as a task.
    pub async fn upkeep(self) {
        let mut ticks = tokio::time::interval(UPKEEP_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.0.run_upkeep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
