//! Why a connection of HTTP/2 is ended before its client wants it to be.

/// A reason to end a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A header list of more fields than the library counts in good time.
    Fields,
    /// A frame that only servers send.
    Forbidden,
    /// There is no memory for the table of header fields.
    Table,
    /// It has waited too long for memory while it held some and had no open stream.
    Blocked,
}

impl Refusal {
    /// Returns true if the client may have done nothing wrong. It is told which requests it can repeat, and keeps its last answer.
    pub(super) const fn is_for_memory(self) -> bool {
        matches!(self, Self::Table | Self::Blocked)
    }

    /// The text for the log.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::Fields => "the client sends too many header fields in one request",
            Self::Forbidden => "the client sends a frame that only servers may send",
            Self::Table => "there is no memory for the client's table of header fields",
            Self::Blocked => "no memory for the next request came free, and the connection holds some that others need",
        }
    }
}
