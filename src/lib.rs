//! n5-server: serves N5 containers over HTTP.

pub mod config;
pub mod metadata;
pub mod n5;
pub mod output;
