//! Whether anybody still waits for what is decoded, and what a payload may cost for what it yields.

use std::fmt;

use super::CodecError;
use super::stream::damaged;

/// Asked by decoders between members, frames and blocks, and at least once for each MiB of output, except in calls of a
/// library that cannot be interrupted ([`Codec::decode`](super::Codec::decode) says which).
#[derive(Clone, Copy)]
pub struct Watch<'a>(&'a dyn Fn() -> bool);

/// Bytes that are taken in, or put out, between two looks.
pub(super) const LOOK_BYTES: usize = 256 << 10;

/// Members that yield nothing, or little, which a payload may have in all. bgzip ends with an empty one, lz4-java ends each
/// of its streams so, and files that were appended to have a few.
const FREE_MEMBERS: usize = 64;

/// Bytes that every further member has to yield, on average: where its decoder takes memory of the system for it, which
/// costs 20 us, in which the slowest decodes as much; and where it does not.
pub(super) const COSTLY_MEMBER_BYTES: usize = 1 << 10;
pub(super) const CHEAP_MEMBER_BYTES: usize = 64;

impl<'a> Watch<'a> {
    /// Somebody waits to the end.
    pub const ALWAYS: Watch<'static> = Watch(&|| true);

    /// Somebody waits as long as `is_wanted` says so; once it has said no, decoding ends with [`CodecError::Abandoned`].
    pub fn new(is_wanted: &'a dyn Fn() -> bool) -> Self {
        Self(is_wanted)
    }

    pub(super) fn look(&self) -> Result<(), CodecError> {
        if (self.0)() { Ok(()) } else { Err(CodecError::Abandoned) }
    }
}

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// Looks once for [`LOOK_BYTES`], where pieces are small.
pub(super) struct Pace<'a> {
    watch: Watch<'a>,
    bytes: usize,
}

impl<'a> Pace<'a> {
    pub(super) fn new(watch: Watch<'a>) -> Self {
        Self { watch, bytes: 0 }
    }

    /// A piece that takes in and puts out so many bytes is next.
    pub(super) fn advance(&mut self, bytes: usize) -> Result<(), CodecError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes < LOOK_BYTES {
            return Ok(());
        }
        self.bytes = 0;
        self.watch.look()
    }
}

/// The members of one payload (streams, frames, blocks): how many it may have follows from what they yield.
pub(super) struct Members {
    codec: &'static str,
    bytes_each: usize,
    begun: usize,
}

impl Members {
    /// Each has to yield so many bytes, on average.
    pub(super) fn of(codec: &'static str, bytes_each: usize) -> Self {
        Self { codec, bytes_each: bytes_each.max(1), begun: 0 }
    }

    /// One begins after those before it have yielded so many bytes.
    pub(super) fn begin(&mut self, yielded: usize) -> Result<(), CodecError> {
        if self.begun >= FREE_MEMBERS.saturating_add(yielded / self.bytes_each) {
            let begun = self.begun;
            return Err(damaged(self.codec, format_args!("its first {begun} members hold only {yielded} bytes")));
        }
        self.begun += 1;
        Ok(())
    }
}
