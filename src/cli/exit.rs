//! The last output of a command, and its exit status.

use std::io::Write as _;
use std::process::ExitCode;

/// Exit status for a wrong command line or configuration, the same as clap's.
pub(super) const EXIT_USAGE: u8 = 2;

/// Prints `text` to standard output.
pub(super) fn print(text: &str) -> ExitCode {
    // A closed pipe (`| head`) is not an error.
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => fail(&error.into(), 1),
        _ => ExitCode::SUCCESS,
    }
}

/// Prints `error` to standard error and returns `status`.
pub(super) fn fail(error: &anyhow::Error, status: u8) -> ExitCode {
    // A failed write, as on a full disk, must not change the exit status.
    let _ = writeln!(std::io::stderr(), "n5-server: {error:#}");
    ExitCode::from(status)
}
