//! n5-server: serves N5 containers over HTTP, their metadata, their blocks as stored, and arbitrary regions assembled
//! from decoded blocks.
//!
//! `docs/ARCHITECTURE.md` follows three requests through the code and gives the reasons for its design. The HTTP
//! contract is in `docs/API.md` and `openapi.yaml`. A request enters at [`fastpath::try_answer`] or
//! [`http::router`]; regions are planned by [`read::SlicePlanner`] and read by [`read::SliceReader`].
//!
//! # Glossary
//!
//! These words have a narrower sense in this code than usual. Any further term is explained at its type.
//! Container, group, dataset and block are terms of N5.
//!
//! Data:
//!
//! | term | meaning |
//! |---|---|
//! | container | the root of an N5 hierarchy |
//! | group | a directory of a container |
//! | dataset | a group with array attributes: `dimensions`, `blockSize`, `dataType`, `compression` |
//! | block | the stored unit: one file with one box of elements |
//! | missing block, hole | a block that was never written; its elements are 0 |
//! | region | samples of a dataset: start, shape and step along every axis, in N5 axis order |
//! | slice | a region in the encoding that a client asks for |
//! | view | a presentation of a container in another format, such as Zarr or Neuroglancer precomputed |
//! | chunk | the unit of a view: a region of a dataset in the view's encoding |
//! | version | a hash of a file's metadata, which changes when the file does |
//!
//! Requests:
//!
//! | term | meaning |
//! |---|---|
//! | mount | a container as it is served, with a name and options |
//! | peer | the other end of a connection: a client or a proxy |
//! | caller | whom the token of a request names |
//! | client | the party to which requests, memory and cores are charged: a caller, or else an address |
//! | fast path | the code that answers requests without the HTTP library, from memory or the kernel's page cache |
//! | reply | a response of the fast path |
//! | admission | the decision to begin a request, to let it wait or to refuse it |
//! | refuse | to answer with an error because of a rule or a limit |
//! | reject | to refuse because there are too many requests; metrics count such requests as shed |
//! | flow | the requests of a client that wait in one fair queue |
//! | slot | one of a fixed number of places: of requests in flight, or of entries in a small table |
//! | hedge | a second, equal request that is sent because the first one is slow |
//! | throttle | to refuse requests because there are too many in a time; a store answers 429 or 503 |
//! | lease | a part of a core that a job holds, and may yield to other jobs |
//!
//! Memory and caches:
//!
//! | term | meaning |
//! |---|---|
//! | budget | a bounded amount of memory |
//! | permit | a part of a budget, which is taken before memory is allocated and travels with the bytes |
//! | own | bytes own a permit if freeing their memory gives the permit back |
//! | grant | units of a budget or of a core's time that a fair queue gives to a waiting request |
//! | band | a part of a slice; a slice that would take too much of the budget is read and sent band by band |
//! | slab | a part of a slice in a buffer of its own, which is sent as one piece |
//! | canvas | the slabs into which the blocks of a slice are pasted |
//! | flight | a load in progress, which all requests for the same key share (single flight) |
//! | validated | compared with the store, and found to be current at that time |
//! | fresh | validated recently enough for the request |
//!
//! Verbs: *parse* text or bytes into a value, *decode* compressed bytes, *get* from the store, *load* a stored block
//! and decode it, *read* through the cache, *fetch* over a network, *paste* a box of elements, *encode* an array into a
//! format.
//!
//! # Layers
//!
//! ```text
//! main ──► cli ──► server ──► conn ──► fastpath      commands, start-up, connections, replies that need no waiting
//!                                          │
//!                                        http        paths, queries, admission, statuses, headers
//!                                          ├──► view ──► n5_metadata       other programs' formats of a container
//!                                          ├──► output ──► png_gray        array → bytes of a media type
//!                                        read        regions: plan, gather, sample, derive
//!                                          │
//!                                      container     groups, datasets, listings, visibility
//!                                          │
//!                                        cache       objects, blocks, budgets; decoding by n5_format
//!                                          ├──► store, n5_format           keys and bytes; the format
//!                                          ├──► runtime, telemetry         cores and turns of clients; logs, metrics
//!                                          └──► http_client              requests to other servers
//! ```
//!
//! A module imports only from rows below its own; `tests/it/architecture.rs` holds the table.

pub mod access;
pub mod cache;
pub mod cli;
pub mod config;
pub mod conn;
pub mod container;
pub mod demo;
pub mod fastpath;
pub mod http;
pub mod http_client;
pub mod output;
pub mod read;
pub mod runtime;
pub mod server;
pub mod store;
pub mod telemetry;
pub mod verify;
pub mod view;
