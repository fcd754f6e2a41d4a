//! n5-server: serves N5 containers over HTTP, their metadata, their blocks as stored, and arbitrary regions assembled
//! from decoded blocks.
//!
//! The design and its reasons are in `docs/ARCHITECTURE.md`, the contract is in `docs/API.md` and `openapi.yaml`.
//!
//! # Glossary
//!
//! Terms of N5:
//!
//! | term | meaning |
//! |---|---|
//! | container | the root of an N5 hierarchy |
//! | group | a directory of a container |
//! | dataset | a group with array attributes: `dimensions`, `blockSize`, `dataType`, `compression` |
//! | block | the stored unit: one file with one box of elements |
//! | grid position | the index of a block along every axis |
//! | region | samples of a dataset: start, shape and step along every axis, in N5 axis order |
//! | header, payload | the two parts of a stored block |
//! | missing block | a block that was never written; its elements are 0 |
//!
//! Terms of the server:
//!
//! | term | meaning |
//! |---|---|
//! | array | a decoded result: little-endian elements, first axis fastest |
//! | band | a part of a slice that is too large to be assembled in memory as a whole |
//! | budget | a bounded amount of memory |
//! | permit | a part of a budget, which is taken before memory is allocated and travels with the bytes |
//! | single flight | one load for all requests that want the same key at the same time; they are its waiters |
//! | freshness | the age that a cached entry may have before it is compared with the store (revalidated) |
//! | page cache | the kernel's cache of files; reads from it do not block |
//! | fast path | answers that are sent without the HTTP library, from memory or the page cache |
//! | admission | the decision to begin a request, to let it wait or to refuse it |
//! | flow, client | the parties among which the fair queue divides memory and cores |
//! | visibility | the part of a container that a caller may see |
//! | view | a presentation of a container in another format, such as Zarr or Neuroglancer precomputed |
//!
//! Verbs: *parse* text or bytes into a value, *decode* compressed bytes, *get* from the store, *load* a stored block and
//! decode it, *read* through the cache, *paste* a box of elements, *encode* an array into a format.
//!
//! # Layers
//!
//! ```text
//! main ──► cli ──► server ──► conn ──► fastpath      commands, start-up, connections, answers that need no waiting
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
//!                                          └──► runtime, telemetry         cores and turns of clients; logs, metrics
//! ```
//!
//! A module imports only from rows below its own; `tests/it/architecture.rs` holds the table.
//!
//! # One request
//!
//! `GET /slice/a/b/s0?start=0,0,100&stop=256,256,101&format=npy`
//!
//! 1. [`http::router`] has one handler, inside layers that give every request an id and every response its headers. The
//!    handler sets a deadline and creates a [`Freshness`](crate::cache::Freshness).
//! 2. [`RequestTarget::parse`](http::route::RequestTarget::parse) splits the raw path, then decodes each segment once;
//!    the first segment names the endpoint.
//! 3. The query is parsed and [`output::negotiate`] chooses the format, both before anything is read.
//! 4. [`Container::dataset`](container::Container::dataset) returns the attributes, which are parsed once per version of
//!    the file.
//! 5. [`read::plan_slice`] decides from sizes alone: as a whole, in bands, or 413.
//! 6. [`read::read_slice`] takes a permit of the slice budget, looks up the blocks,
//!    loads those that are missing (store, then [`Block::decode`](n5_format::Block::decode) on the
//!    [`CpuPool`](runtime::cpu_pool::CpuPool)) and [`paste`](n5_format::paste)s each block when it is ready.
//! 7. [`Format::encode`](output::Format::encode) puts a header before the elements, and the response is sent.

pub mod access;
pub mod cache;
pub mod cli;
pub mod config;
pub mod conn;
pub mod container;
pub mod demo;
pub mod fastpath;
pub mod http;
pub mod output;
pub mod read;
pub mod runtime;
pub mod server;
pub mod store;
pub mod telemetry;
pub mod verify;
pub mod view;
