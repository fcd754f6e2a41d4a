//! Values of labels that have a fixed set of values.

/// Declares an enum whose variants are the values of a label.
macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the value's text.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}

label!(
    /// Value of the label `cache`.
    CacheLabel {
        /// Decoded blocks.
        Decoded = "decoded",
        /// Files as stored.
        Stored = "stored",
        /// Parsed attributes.
        Attributes = "attributes",
    }
);

label!(
    /// Value of the label `result` of a cache look-up.
    LookupResult {
        /// The entry was cached and current.
        Hit = "hit",
        /// The entry was not cached.
        Miss = "miss",
        /// The entry was cached, but its file had changed.
        Stale = "stale",
        /// The file did not exist.
        Absent = "absent",
    }
);

label!(
    /// Value of the label `budget`.
    BudgetLabel {
        /// `limits.slice_budget`
        Slice = "slice",
        /// `limits.decode_budget`
        Decode = "decode",
        /// `limits.transfer_budget`
        Transfer = "transfer",
        /// Memory for attributes that are being parsed, in addition to their cache.
        Attributes = "attributes",
    }
);

label!(
    /// Value of the label `pool` of memory that all connections share.
    ConnectionPoolLabel {
        /// Memory of this process for HTTP/2 streams and long request heads.
        Memory = "memory",
        /// Kernel memory for data that clients have not yet accepted.
        Sockets = "sockets",
    }
);

label!(
    /// Value of the label `reason` of a rejected request.
    ShedReason {
        /// `limits.concurrent_requests` requests were in progress.
        Requests = "requests",
        /// The client's `clients.concurrent_requests` requests were in progress for `limits.budget_wait`.
        Client = "client",
        /// The request waited `limits.budget_wait` for memory for a slice.
        SliceBudget = "slice_budget",
        /// The request waited `limits.budget_wait` for memory for decoding.
        DecodeBudget = "decode_budget",
        /// The request waited `limits.budget_wait` for memory for stored blocks.
        TransferBudget = "transfer_budget",
        /// The request waited `limits.budget_wait` for memory for parsing attributes.
        AttributesBudget = "attributes_budget",
        /// Storage did not respond while requests for other containers needed the resources that the request held.
        Storage = "storage",
    }
);

label!(
    /// Value of the label `op` of a request to storage.
    StoreOperation {
        /// Reads the size and time of a file.
        Head = "head",
        /// Reads a whole file.
        Get = "get",
        /// Reads a part of a file.
        GetRange = "get_range",
        /// Lists the entries of a directory.
        List = "list",
    }
);

label!(
    /// Value of the label `result` of a TLS handshake.
    HandshakeResult {
        /// The handshake succeeded.
        Done = "done",
        /// The handshake failed, or the client disconnected.
        Failed = "failed",
        /// The handshake took longer than `tls.handshake_timeout`.
        TimedOut = "timed_out",
        /// The client did not speak TLS.
        Plaintext = "plaintext",
    }
);

label!(
    /// Value of the label `queue`.
    QueueLabel {
        /// Waiting for memory of `limits.slice_budget`.
        Slice = "slice",
        /// Waiting for memory of `limits.decode_budget`.
        Decode = "decode",
        /// Waiting for memory of `limits.transfer_budget`.
        Transfer = "transfer",
        /// Waiting for memory for parsing attributes.
        Attributes = "attributes",
        /// Waiting for a core.
        Cpu = "cpu",
        /// Waiting for a result that another request loads or computes.
        Load = "load",
        /// Waiting for another request of the same client to end (`clients.concurrent_requests`).
        Client = "client",
        /// Waiting until the client may receive more bytes (`clients.bytes_per_second`).
        Rate = "rate",
        /// Waiting for an issuer's keys.
        Keys = "keys",
        /// Waiting for a TLS handshake to start (at most 256 run concurrently).
        Handshake = "handshake",
        /// Rejected because of too many requests; the response is delayed.
        Refused = "refused",
        /// Waiting for one of `limits.concurrent_requests`.
        Request = "request",
        /// New connection that waits for another one of its address to end (`clients.connections`).
        Connection = "connection",
        /// Connection whose reading is paused until there is memory in the pool that all connections share.
        ConnectionMemory = "connection_memory",
    }
);

impl QueueLabel {
    /// Returns the queue of a budget.
    pub const fn for_budget(budget: BudgetLabel) -> Self {
        match budget {
            BudgetLabel::Slice => Self::Slice,
            BudgetLabel::Decode => Self::Decode,
            BudgetLabel::Transfer => Self::Transfer,
            BudgetLabel::Attributes => Self::Attributes,
        }
    }
}

label!(
    /// Value of the label `stage` of a request whose client disconnected.
    CancelStage {
        /// The response was being prepared.
        Waiting = "waiting",
        /// The response was being sent.
        Sending = "sending",
    }
);

label!(
    /// Value of the label `reason` of a closed connection.
    CloseReason {
        /// Either side closed the connection between responses.
        Ended = "ended",
        /// No request arrived in time.
        Idle = "idle",
        /// The client accepted no byte of a response for too long.
        SendTimeout = "send_timeout",
        /// Its address had `clients.connections` connections; rejected at once or after waiting.
        Refused = "refused",
        /// The connection was idle and made room for another one of its address (`clients.connections`).
        Evicted = "evicted",
        /// A long request head arrived while the memory pool of all connections had no room for it.
        Memory = "memory",
        /// The connection failed.
        Error = "error",
    }
);
