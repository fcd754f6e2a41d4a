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
mod blocks;
mod bounds;
mod codecs;
mod concurrency;
mod config;
mod conformance;
mod connections;
mod containment;
mod docs;
mod documents;
mod faults;
mod fuzzed;
mod golden;
mod http2;
mod lane;
mod openapi;
mod operations;
mod parts;
mod precomputed;
mod readiness;
mod reencoded;
mod reload;
mod seams;
mod shares;
mod slice;
mod slice_formats;
mod stats;
mod stored;
mod structure;
mod support;
mod tls;
mod torture;
mod traces;
mod trails;
mod verify;
mod viewer;
mod views;
