//! Installs what logs and metrics go to. Called by `main` and `app` only; everything below speaks to the facades.

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

use crate::config::{Log, LogFormat};
use quoted::{EscapedJson, QuotedFields};

/// Upper bounds of the buckets of every `_duration_seconds` histogram, in seconds: those of OpenTelemetry, with finer
/// ones below for blocks that come from memory.
const DURATION_BUCKETS: [f64; 19] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0,
];

/// How often observations are folded into their buckets when no client asks for them. Until then each takes 8 bytes, and loads of tiny
/// blocks make a million of them a second on two cores: with 5 seconds, they grew to 40 MiB.
const UPKEEP_INTERVAL: Duration = Duration::from_millis(250);

/// Lines of the log that wait to be written: what comes while a full disk or a reader that reads nothing takes none is
/// dropped and counted, and no request waits for it.
const WAITING_LINES: usize = 8192;

/// Counts the lines that were dropped.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Those that could not be written.
static UNWRITTEN: AtomicU64 = AtomicU64::new(0);

/// Writes lines, each by one call, and counts those that were not written to their end: on a full disk, every one.
struct CountingFailures<W>(W);

impl<W: Write> Write for CountingFailures<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write(line)
    }

    fn write_all(&mut self, line: &[u8]) -> io::Result<()> {
        let written = self.0.write_all(line);
        if written.is_err() {
            UNWRITTEN.fetch_add(1, Ordering::Relaxed);
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The log; what waits to be written is, within a moment, when this is dropped.
#[derive(Debug)]
pub struct LogGuard(#[expect(dead_code, reason = "held for its end")] WorkerGuard);

/// Why logs or metrics cannot be installed.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// `log.level` is not a filter.
    #[error("log.level is not a filter")]
    Level(#[from] ParseError),
    /// Another subscriber is installed already.
    #[error("logging is installed already")]
    Log(#[from] TryInitError),
    /// The recorder cannot be built, or another is installed already.
    #[error("metrics cannot be recorded")]
    Metrics(#[from] BuildError),
}

/// Sends log lines of this process to standard error, as `[log]` says, from a thread of its own; panics are such lines, too.
///
/// # Errors
/// [`TelemetryError`] when the filter is unreadable or logging is installed already.
pub fn install_log(log: &Log) -> Result<LogGuard, TelemetryError> {
    let (filter, handle) = reload::Layer::new(filter(&log.level)?);
    let _ = LEVEL.set(handle);
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(WAITING_LINES)
        .thread_name("n5-log")
        .finish(CountingFailures(output(log.format)));
    let _ = DROPPED.set(writer.error_counter());
    let registry = tracing_subscriber::registry().with(filter);
    match log.format {
        LogFormat::Text => {
            let colours = io::stderr().is_terminal();
            let lines =
                tracing_subscriber::fmt::layer().fmt_fields(QuotedFields).with_writer(writer).with_ansi(colours);
            registry.with(lines).try_init()?;
        }
        LogFormat::Json => {
            let lines =
                tracing_subscriber::fmt::layer().json().flatten_event(true).with_span_list(false).with_writer(writer);
            registry.with(lines).try_init()?;
        }
    }
    panics::log_panics();
    Ok(LogGuard(guard))
}

/// Standard error, with what lines of this format still need to be escaped.
fn output(format: LogFormat) -> Box<dyn Write + Send> {
    match format {
        LogFormat::Text => Box::new(io::stderr()),
        LogFormat::Json => Box::new(EscapedJson(io::stderr())),
    }
}

/// What decides which lines are written, once logging is installed.
static LEVEL: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Writes log lines as another `log.level` says from now on; without a log, nothing.
///
/// # Errors
/// [`TelemetryError::Level`] when the filter is unreadable.
pub fn set_level(level: &str) -> Result<(), TelemetryError> {
    let filter = filter(level)?;
    if let Some(handle) = LEVEL.get() {
        // It fails only where the log is gone.
        let _ = handle.reload(filter);
    }
    Ok(())
}

/// Reads `log.level`; a space would become part of a target's name.
fn filter(level: &str) -> Result<Targets, ParseError> {
    let targets: Targets = level.replace(' ', "").parse()?;
    let most = targets.default_level().unwrap_or(LevelFilter::OFF);
    // It warns of each connection whose client takes its requests back, and whoever wants to fill a disk makes many.
    let is_theirs = targets.iter().any(|(target, _)| target == "h2") || most >= LevelFilter::DEBUG;
    Ok(if is_theirs { targets } else { targets.with_target("h2", most.min(LevelFilter::ERROR)) })
}

/// What `/metrics` answers from; cheap to clone.
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

/// Records the metrics of this process. A second call gives what the first did, so that tests can build many servers.
///
/// # Errors
/// [`TelemetryError::Metrics`] when another recorder is installed already.
pub fn install_metrics() -> Result<Metrics, TelemetryError> {
    static INSTALLED: OnceLock<Metrics> = OnceLock::new();
    if let Some(metrics) = INSTALLED.get() {
        return Ok(metrics.clone());
    }
    match builder()?.install_recorder() {
        Ok(handle) => {
            metrics_process::Collector::default().describe();
            Ok(INSTALLED.get_or_init(|| Metrics(handle)).clone())
        }
        // Two threads came at once, and the other was first.
        Err(error) => INSTALLED.get().cloned().ok_or(error.into()),
    }
}

fn builder() -> Result<PrometheusBuilder, BuildError> {
    PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_duration_seconds".to_owned()), &DURATION_BUCKETS)
}

impl Metrics {
    /// All metrics in Prometheus' text format, version 0.0.4, with those of the process (`process_*`) as they are now.
    pub fn render(&self) -> String {
        metrics_process::Collector::default().collect();
        let dropped = DROPPED.get().map_or(0, ErrorCounter::dropped_lines) as u64;
        crate::metrics::log_lines_dropped(dropped.saturating_add(UNWRITTEN.load(Ordering::Relaxed)));
        self.0.render()
    }

    /// Folds observations into their buckets for ever, so that they do not pile up in memory. To be spawned.
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
    fn every_level_that_is_valid_is_a_filter() {
        for level in ["info", "OFF", "warn,n5_server=debug", "n5_server::http=trace, info"] {
            let log = Log { level: level.to_owned(), ..Log::default() };
            let config = crate::config::Config { log, ..crate::config::Config::default() };
            assert!(config.validate(&[]).is_ok());
            let filter = filter(level).unwrap();
            assert_eq!(
                filter.would_enable("n5_server::http", &tracing::Level::TRACE),
                level.contains("trace"),
                "{level}"
            );
            assert_eq!(filter.would_enable("other", &tracing::Level::INFO), level.ends_with("info"), "{level}");
            assert!(!filter.would_enable("h2::proto", &tracing::Level::WARN), "{level}");
        }
        for level in ["debug", "info,h2=warn"] {
            assert!(filter(level).unwrap().would_enable("h2::proto", &tracing::Level::WARN), "{level}");
        }
    }
}
