//! n5-server: serves N5 containers over HTTP, their metadata, their blocks as stored, and arbitrary regions assembled
//! from decoded blocks.
//!
//! The design and its reasons are in `docs/ARCHITECTURE.md`, the contract in `README.md` and `openapi.yaml`.
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | container | the root of an N5 hierarchy |
//! | group | a directory of it |
//! | dataset | a group with array attributes: `dimensions`, `blockSize`, `dataType`, `compression` |
//! | block | N5's stored unit: one file, one box of elements |
//! | grid position | index of a block along every axis |
//! | region | samples of a dataset: start, shape and step along every axis, N5 axis order |
//! | header, payload | the two parts of a stored block |
//! | array | a decoded result: little-endian elements, first axis fastest |
//! | hole | a block that was never written; its elements are 0 |
//! | band | a part of a slice that is too large to be assembled at once |
//! | budget | a bounded amount of memory, lent out in shares that travel with the bytes |
//!
//! Verbs: *parse* text or bytes to a value, *decode* compressed to plain, *get* from the store, *load* store to decoded
//! block, *read* through the cache, *paste* copy a box, *encode* array to format.
//!
//! # Layers
//!
//! ```text
//! main ──► app ──► config, telemetry, demo           the edge of the process (also allocator, healthcheck)
//!           │
//!          http                                      paths, queries, statuses, headers
//!           ├──────────► output                      array → bytes of a media type
//!           ├──────────► metadata                    what attributes mean
//!       container                                    the only module that knows both halves
//!           ├──────────► n5                          bytes, but not where they live
//!           ├──────────► store                       keys, but not what they mean
//!           └──────────► cpu, metrics
//! ```
//!
//! A module imports only from rows below its own; `tests/it/architecture.rs` holds the table.
//!
//! # One request
//!
//! `GET /slice/a/b/s0?start=0,0,100&stop=256,256,101&format=npy`
//!
//! 1. [`http::router`] has one handler, within layers that give every request an id and every answer its headers. The
//!    handler sets a deadline and makes an [`Access`](container::Access), which says how old cached entries may be.
//! 2. [`Target::parse`](http::target::Target::parse) splits the raw path, then decodes each segment once; the first
//!    one names the view.
//! 3. The query is parsed and [`output::negotiate`] picks the format, both before anything is read.
//! 4. [`Container::dataset`](container::Container::dataset) finds the attributes, parsed once per version of the file.
//! 5. [`Container::plan_slice`](container::Container::plan_slice) decides from sizes alone: whole, in bands, or 413.
//! 6. [`Container::read_slice`](container::Container::read_slice) takes a share of the slice budget, looks the blocks up,
//!    loads what is missing (store, then [`Block::decode`](n5::Block::decode) on the [`cpu::Cpu`] lane) and
//!    [`paste`](n5::paste)s what is ready.
//! 7. [`Format::encode`](output::Format::encode) puts a header before the elements; the answer leaves.

pub mod access;
pub mod allocator;
pub mod app;
pub mod config;
pub mod container;
pub mod cpu;
pub mod demo;
pub mod fair;
pub mod healthcheck;
pub mod http;
pub mod metadata;
pub mod metrics;
pub mod n5;
pub mod output;
pub mod seldom;
pub mod store;
pub mod telemetry;
pub mod trace;
pub mod verify;
pub mod view;
pub mod watched;
