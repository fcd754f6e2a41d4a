//! Panics as lines of the log, in place of the text of many lines that the standard library writes to standard error.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{self, PanicHookInfo};

use crate::seldom::Seldom;

/// From now on a panic is a line of the log; one a second at most.
pub(super) fn log_panics() {
    panic::set_hook(Box::new(log));
}

fn log(panic: &PanicHookInfo<'_>) {
    static PANICS: Seldom = Seldom::new();
    let Some(unsaid) = PANICS.may_say() else { return };
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        tracing::error!(text, place, unsaid, %backtrace, "panic: this is a fault of n5-server; please report it");
    } else {
        tracing::error!(text, place, unsaid, "panic: this is a fault of n5-server; please report it");
    }
}
