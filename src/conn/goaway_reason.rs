//! Reasons for which the server ends an HTTP/2 connection that its client keeps open.

/// Reason to end a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoawayReason {
    /// A header list has more fields than hyper can count in reasonable time.
    TooManyFields,
    /// The client sent a frame that only servers may send.
    ForbiddenFrame,
    /// There is no memory for the HPACK table.
    NoTableMemory,
    /// The connection has waited too long for memory, while it held some and had no open stream.
    BlockedTooLong,
}

impl GoawayReason {
    /// Returns true if memory is short and the client may have done nothing wrong. Such a client is told which requests
    /// it can repeat, and its last answer is still sent.
    pub(super) const fn is_memory_shortage(self) -> bool {
        matches!(self, Self::NoTableMemory | Self::BlockedTooLong)
    }

    /// Returns the text for the log.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::TooManyFields => "the client sends too many header fields in one request",
            Self::ForbiddenFrame => "the client sends a frame that only servers may send",
            Self::NoTableMemory => "there is no memory for the client's HPACK table",
            Self::BlockedTooLong => {
                "no memory became free for the next request, and the connection holds memory that others need"
            }
        }
    }
}
