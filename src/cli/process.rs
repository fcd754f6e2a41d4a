//! Process-level parts that all commands use: a runtime, the signals that end a command, output, and exit statuses.

use std::borrow::Cow;
use std::future::Future;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// Exit status for a wrong command line or configuration. clap uses the same status.
pub(super) const EXIT_USAGE: u8 = 2;

/// Runs `work` on the runtime that `builder` builds.
///
/// # Errors
/// Returns an error if the runtime cannot be started, or `work` fails.
pub(super) fn block_on<T>(mut builder: Builder, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = builder.enable_all().build().context("the runtime cannot be started")?;
    let result = runtime.block_on(work);
    // Blocking threads are not waited for, because a read that hangs in the storage must not keep the process alive.
    runtime.shutdown_background();
    result
}

/// Returns a future that completes when the process is told to stop. The signal handlers are installed at once, and not
/// when the future is polled.
pub(super) fn shutdown_signal() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Writes `text` to standard output. A closed pipe (`| head`) is not an error.
///
/// # Errors
/// Returns an error if the text cannot be written.
pub(super) fn write_stdout(text: &str) -> io::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Writes `text` to standard output and returns the exit status.
pub(super) fn print(text: &str) -> ExitCode {
    write_stdout(text).map_or_else(|error| fail(&error.into(), 1), |()| ExitCode::SUCCESS)
}

/// Prints `error` to standard error and returns `status`.
pub(super) fn fail(error: &anyhow::Error, status: u8) -> ExitCode {
    // An error of the write, such as a full disk, must not change the exit status.
    let _ = writeln!(io::stderr(), "n5-server: {error:#}");
    ExitCode::from(status)
}

/// Returns `text` with its control characters escaped. Names and attributes are not trusted: control characters in them
/// could move the cursor, hide lines or forge lines.
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
