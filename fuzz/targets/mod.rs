//! Fuzz targets: one function for each kind of hostile input, which takes any bytes and panics on a finding.
//!
//! They are run by libFuzzer (`fuzz/run`), and by `cargo test` over the inputs in `fuzz/seeds`, which include former
//! findings. They therefore use only the public interface and crates that the server or its tests depend on.
//! docs/HOSTILE.md lists what each target checks.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used
)]

mod access;
mod attributes;
mod block;
mod blosc;
mod codec;
mod deflate;
mod fast_path;
mod http2;
mod listing;
mod lz4;
mod request;
mod server;
mod slice;
mod streams;
mod views;

/// A function that tests one input.
pub type Target = fn(&[u8]);

/// All targets, by the name of the directory of their inputs.
pub const TARGETS: &[(&str, Target)] = &[
    ("block", block::run),
    ("deflate", deflate::run),
    ("lz4", lz4::run),
    ("blosc", blosc::run),
    ("streams", streams::run),
    ("attributes", attributes::run),
    ("request", request::run),
    ("views", views::run),
    ("fast_path", fast_path::run),
    ("slice", slice::run),
    ("access", access::run),
    ("http2", http2::run),
    ("listing", listing::run),
];

/// A reader of numbers from an input's bytes. After the end it returns zeros.
pub(crate) struct Numbers<'a>(&'a [u8]);

impl<'a> Numbers<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// Returns a number below `end`, which must not be 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    pub(crate) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}
