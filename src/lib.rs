//! n5-server: serves N5 containers over HTTP.

pub mod config;
pub mod http;
pub mod metadata;
pub mod n5;
pub mod output;
