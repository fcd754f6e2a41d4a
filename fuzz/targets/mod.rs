//! What is done with hostile input: a function for each kind, which takes any bytes and panics on a finding.
//!
//! They are driven twice: by libFuzzer (`fuzz/run`), and by `cargo test` over the inputs in `fuzz/seeds`, those that once
//! were findings included. So they use nothing but the public interface, and the crates that the server or its tests
//! depend on. docs/HOSTILE.md says what each holds.
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
mod http2;
mod lane;
mod lz4;
mod request;
mod server;
mod slice;
mod streams;
mod views;

/// What is done with one input.
pub type Target = fn(&[u8]);

/// Every target, by the name of its directory of inputs.
pub const TARGETS: &[(&str, Target)] = &[
    ("block", block::run),
    ("deflate", deflate::run),
    ("lz4", lz4::run),
    ("blosc", blosc::run),
    ("streams", streams::run),
    ("attributes", attributes::run),
    ("request", request::run),
    ("views", views::run),
    ("lane", lane::run),
    ("slice", slice::run),
    ("access", access::run),
    ("http2", http2::run),
];

/// Numbers made of an input's bytes; zeros after its end.
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

    /// A number below `end`, which is not 0.
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
