//! Quality of service: the limits that a request passes, and what the client of a refused request sees.
//!
//! A request passes these limits in order:
//!
//! 1. Its client, which is the caller that a token names or else an address, has at most `clients.concurrent_requests`
//!    requests at once. A further request waits for one of them to end. It is refused with 429 after
//!    `limits.budget_wait`, or at once if too many requests of the same client wait already: a quarter of
//!    `limits.concurrent_requests`.
//! 2. At most `limits.concurrent_requests` requests are in flight, and slightly more for clients that have few. A
//!    further request waits until it is its client's turn, and is refused with 503 after `limits.budget_wait`.
//! 3. If the storage of one of several containers does not respond, at most a part of the requests in flight may wait
//!    for that storage. The excess is refused with 503, beginning with the clients that have most waiting requests.
//! 4. A slice that does not fit into the slice budget, in a format that is not streamed, is refused with 413 and the
//!    shape of a piece that fits. Other requests wait for their memory, and are refused with 503 after
//!    `limits.budget_wait`.
//! 5. The bytes of a response are sent no faster than `clients.bytes_per_second`. No request is refused for that.
//!
//! Between the waits, requests work in time slices of a millisecond, which clients get in turn. Every 429 and 503 has
//! `Retry-After`. All except those of (3) are sent between a quarter of a second and four seconds late, so that clients
//! that retry at once leave the cores to other clients. A request holds its place in (1) until its response has been
//! sent. It holds its place in (2) until a small response is made, or a large one has been sent.

pub(crate) mod client_limits;
pub(crate) mod fair_polling;
pub(crate) mod in_flight;
pub(crate) mod stalled_store_limit;
