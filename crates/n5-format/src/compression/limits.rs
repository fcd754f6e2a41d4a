//! Cancellation checks during decoding, and limits for payloads that cost much and yield little.

use std::fmt;

use super::error::{CodecError, damaged};

/// A cancellation check that decoders poll between members, frames and blocks, and at least once per MiB of output.
/// Calls of a library that cannot be interrupted are excepted; [`Codec::decode`](crate::Codec::decode) lists them.
#[derive(Clone, Copy)]
pub struct CancelCheck<'a>(&'a dyn Fn() -> bool);

/// Bytes read or written between two cancellation checks.
pub(super) const CANCEL_CHECK_BYTES: usize = 256 << 10;

/// Number of members with little or no output that every payload may have. bgzip and lz4-java end each stream with an
/// empty member, and files that were appended to have a few.
const FREE_MEMBERS: usize = 64;

/// Bytes that every further member must yield on average if its decoder takes memory from the system for it. That costs
/// 20 us, in which the slowest decoder decodes as much.
pub(super) const MIN_BYTES_PER_COSTLY_MEMBER: usize = 1 << 10;
/// Bytes that every further member must yield on average if its decoder takes no memory from the system.
pub(super) const MIN_BYTES_PER_CHEAP_MEMBER: usize = 64;

impl<'a> CancelCheck<'a> {
    /// A check that never cancels.
    pub const NEVER: CancelCheck<'static> = CancelCheck(&|| true);

    /// Creates a check that cancels once `should_continue` returns false. Decoding then ends with
    /// [`CodecError::Cancelled`].
    pub fn new(should_continue: &'a dyn Fn() -> bool) -> Self {
        Self(should_continue)
    }

    /// Polls the check.
    ///
    /// # Errors
    /// [`CodecError::Cancelled`] if decoding is to end.
    pub fn check(&self) -> Result<(), CodecError> {
        if (self.0)() { Ok(()) } else { Err(CodecError::Cancelled) }
    }
}

impl fmt::Debug for CancelCheck<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CancelCheck")
    }
}

/// Polls a [`CancelCheck`] once per [`CANCEL_CHECK_BYTES`], for decoders that work in small pieces.
pub(super) struct PeriodicCancelCheck<'a> {
    cancel_check: CancelCheck<'a>,
    bytes: usize,
}

impl<'a> PeriodicCancelCheck<'a> {
    pub(super) fn new(cancel_check: CancelCheck<'a>) -> Self {
        Self { cancel_check, bytes: 0 }
    }

    /// Counts the next piece, which reads and writes `bytes` bytes in total, and polls the check if it is due.
    pub(super) fn advance(&mut self, bytes: usize) -> Result<(), CodecError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes < CANCEL_CHECK_BYTES {
            return Ok(());
        }
        self.bytes = 0;
        self.cancel_check.check()
    }
}

/// Limits the number of members (streams, frames, blocks) of one payload by the bytes that they yield.
pub(super) struct MemberLimit {
    codec: &'static str,
    min_bytes_each: usize,
    started: usize,
}

impl MemberLimit {
    /// Creates a limit for which each member must yield `min_bytes_each` bytes on average.
    pub(super) fn new(codec: &'static str, min_bytes_each: usize) -> Self {
        Self { codec, min_bytes_each: min_bytes_each.max(1), started: 0 }
    }

    /// Counts the next member. `yielded` is the number of bytes that the members before it have decoded to.
    pub(super) fn begin_member(&mut self, yielded: usize) -> Result<(), CodecError> {
        if self.started >= FREE_MEMBERS.saturating_add(yielded / self.min_bytes_each) {
            let started = self.started;
            return Err(damaged(self.codec, format_args!("its first {started} members hold only {yielded} bytes")));
        }
        self.started += 1;
        Ok(())
    }
}
