//! n5-server: serves N5 containers over HTTP.

pub mod allocator;
pub mod app;
pub mod config;
pub mod container;
pub mod cpu;
pub mod demo;
pub mod http;
pub mod metadata;
pub mod metrics;
pub mod n5;
pub mod output;
pub mod store;
pub mod telemetry;
