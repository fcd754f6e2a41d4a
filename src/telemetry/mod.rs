//! Logs, metrics and traces.

pub mod log_throttle;
pub mod logs;
pub mod metrics;
pub mod trace;
