//! The last output of a command, and its exit status.

use std::io::{self, Write as _};
use std::process::ExitCode;

/// Exit status for a wrong command line or configuration, the same as clap's.
pub(super) const EXIT_USAGE: u8 = 2;

/// Writes `text` to standard output. A closed pipe (`| head`) is not an error.
///
/// # Errors
/// If it cannot be written.
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
    // A failed write, as on a full disk, must not change the exit status.
    let _ = writeln!(io::stderr(), "n5-server: {error:#}");
    ExitCode::from(status)
}
