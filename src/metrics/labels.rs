//! What labels can say, as far as that is a fixed set.

/// Declares an enum whose variants are the values of a label.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The label's text.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}

label!(
    /// Label `cache`.
    Cache {
        /// Decoded blocks.
        Decoded = "decoded",
        /// Files as stored.
        Stored = "stored",
        /// Parsed attributes.
        Attributes = "attributes",
    }
);

label!(
    /// Label `result` of a look-up in a cache.
    Lookup {
        /// Cached and current.
        Hit = "hit",
        /// Not cached.
        Miss = "miss",
        /// Cached, but the file changed.
        Stale = "stale",
        /// The file does not exist.
        Absent = "absent",
    }
);

label!(
    /// Label `budget`.
    Budget {
        /// `limits.slice_budget`
        Slice = "slice",
        /// `limits.decode_budget`
        Decode = "decode",
        /// `limits.transfer_budget`
        Transfer = "transfer",
        /// Attributes being parsed, beyond their cache.
        Attributes = "attributes",
    }
);

label!(
    /// Label `pool` of memory that all connections share.
    ConnectionPool {
        /// Of this process, for streams of HTTP/2 and long heads.
        Memory = "memory",
        /// Of the kernel, for what clients have not taken yet.
        Sockets = "sockets",
    }
);

label!(
    /// Label `reason` of a refused request.
    Shed {
        /// `limits.concurrent_requests` were being answered.
        Requests = "requests",
        /// `clients.concurrent_requests` of one client were being answered for `limits.budget_wait`.
        Client = "client",
        /// Waited `limits.budget_wait` for memory for a slice.
        SliceBudget = "slice_budget",
        /// Waited `limits.budget_wait` for memory for decoding.
        DecodeBudget = "decode_budget",
        /// Waited `limits.budget_wait` for memory for stored blocks.
        TransferBudget = "transfer_budget",
        /// Waited `limits.budget_wait` for memory for parsing attributes.
        AttributesBudget = "attributes_budget",
        /// Kept waiting by storage while other containers' requests needed what they held.
        Storage = "storage",
    }
);

label!(
    /// Label `op` of a request to storage.
    StoreOperation {
        /// Size and time of a file.
        Head = "head",
        /// A whole file.
        Get = "get",
        /// A part of a file.
        GetRange = "get_range",
        /// The entries of a directory.
        List = "list",
    }
);

label!(
    /// Label `result` of a TLS handshake.
    Handshake {
        /// The connection is encrypted.
        Done = "done",
        /// No agreement, or the client has gone.
        Failed = "failed",
        /// Not done within `tls.handshake_timeout`.
        TimedOut = "timed_out",
        /// The client does not speak TLS.
        Plaintext = "plaintext",
    }
);

label!(
    /// Label `queue`.
    Queue {
        /// For a share of `limits.slice_budget`.
        Slice = "slice",
        /// For a share of `limits.decode_budget`.
        Decode = "decode",
        /// For a share of `limits.transfer_budget`.
        Transfer = "transfer",
        /// For memory for parsing attributes.
        Attributes = "attributes",
        /// For a core.
        Cpu = "cpu",
        /// For what another request loads or makes.
        Load = "load",
        /// For another request of the same client to end (`clients.concurrent_requests`).
        Client = "client",
        /// Until a client may have more bytes (`clients.bytes_per_second`).
        Rate = "rate",
        /// For an issuer's keys.
        Keys = "keys",
        /// For a TLS handshake (there are at most 256 at once).
        Handshake = "handshake",
        /// To be told that there are too many requests.
        Refused = "refused",
        /// For one of `limits.concurrent_requests`.
        Request = "request",
        /// A new connection, for another of its address to end (`clients.connections`).
        Connection = "connection",
        /// A connection that is not read further, for memory that all connections share.
        ConnectionMemory = "connection_memory",
    }
);

impl Queue {
    /// That for a budget.
    pub const fn of(budget: Budget) -> Self {
        match budget {
            Budget::Slice => Self::Slice,
            Budget::Decode => Self::Decode,
            Budget::Transfer => Self::Transfer,
            Budget::Attributes => Self::Attributes,
        }
    }
}

label!(
    /// Label `stage` of a request whose client went away.
    Cancelled {
        /// The answer was being made.
        Waiting = "waiting",
        /// It was being sent.
        Sending = "sending",
    }
);

label!(
    /// Label `reason` of a closed connection.
    Closed {
        /// By either side, between answers.
        Ended = "ended",
        /// No request came in time.
        Idle = "idle",
        /// The client took nothing of an answer for too long.
        SendTimeout = "send_timeout",
        /// At once or after it waited: its address had `clients.connections`.
        Refused = "refused",
        /// Idle, to make place for another of its address (`clients.connections`).
        Evicted = "evicted",
        /// A long head came while connections had no memory for it.
        Memory = "memory",
        /// It broke.
        Error = "error",
    }
);
