//! Logs each panic as one line, instead of the multi-line text that the standard library writes to standard error.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{self, PanicHookInfo};

use crate::log_throttle::LogThrottle;

/// Installs a panic hook that logs panics, at most one per second.
pub(super) fn log_panics() {
    panic::set_hook(Box::new(log_panic));
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    static PANICS: LogThrottle = LogThrottle::new();
    let Some(unsaid) = PANICS.allow() else { return };
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        tracing::error!(text, place, unsaid, %backtrace, "panic: this is a bug in n5-server; please report it");
    } else {
        tracing::error!(text, place, unsaid, "panic: this is a bug in n5-server; please report it");
    }
}
