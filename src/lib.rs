//! n5-server: serves N5 containers over HTTP.

pub mod app;
pub mod config;
pub mod metadata;
pub mod metrics;
pub mod n5;
pub mod output;
pub mod telemetry;
