//! Integration tests over HTTP, against the server in process or the real program on a free port.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::missing_panics_doc,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss
)]

mod access;
mod access_jwt;
mod architecture;
mod attributes;
mod cached_chunks;
mod client_limits;
mod codecs;
mod comments;
mod concurrency;
mod config;
mod conformance;
mod connection_memory;
mod connections;
mod containment;
mod disk_cache;
mod docs;
mod error_pages;
mod expensive_blocks;
mod fast_path;
mod faults;
mod fuzz;
mod golden;
mod hostile_clients;
mod http2;
mod listings;
mod mirror;
mod openapi;
mod operations;
mod precomputed;
mod readiness;
mod recursive_info;
mod reencoded;
mod reload;
mod remote_outages;
mod remote_store;
mod slice;
mod slice_cost;
mod slice_formats;
mod slice_pictures;
mod startup;
mod stats;
mod stored;
mod structure;
mod support;
mod thumbnail;
mod tls;
mod traces;
mod verify;
mod viewer;
mod views;
