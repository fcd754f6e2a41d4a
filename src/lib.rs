//! n5-server: serves N5 containers over HTTP, their metadata, their blocks as stored, and arbitrary regions assembled
//! from decoded blocks.
//!
//! The design and its reasons are in `docs/ARCHITECTURE.md`, the contract is in `docs/API.md` and `openapi.yaml`.
//!
//! # One request
//!
//! `GET /slice/a/b/s0?start=0,0,100&stop=256,256,101&format=npy`
//!
//! 1. [`http::router`] has one handler. [`RequestTarget::parse`](http::route::RequestTarget::parse) splits the raw
//!    path, then decodes each segment once; the first segment names the endpoint.
//! 2. The query is parsed and [`output::negotiate`] chooses the format, both before anything is read.
//! 3. [`Container::dataset_and_axes`](container::Container::dataset_and_axes) returns the attributes.
//! 4. [`SlicePlanner`](read::SlicePlanner) decides whether the slice is sent whole or in bands, or refused with 413. If
//!    it can, it decides from sizes alone.
//! 5. [`SliceReader::read_pieces`](read::SliceReader::read_pieces) takes a permit of the slice budget, looks up the
//!    blocks, loads those that are not cached (store, then [`Block::decode_with`](n5_format::Block::decode_with) on the
//!    [`CpuPool`](runtime::cpu_pool::CpuPool)) and [`paste`](n5_format::paste)s each block when it is ready.
//! 6. [`StreamedFormat::header`](output::StreamedFormat::header) makes the bytes before the elements, and the response
//!    is sent. If the elements must be converted or encoded,
//!    [`SliceReader::read_whole`](read::SliceReader::read_whole) and [`Format::encode`](output::Format::encode) take
//!    the places of these two.
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
//! | missing block, hole | a block that was never written; its elements are 0 |
//!
//! Terms of the server, for a first reading:
//!
//! | term | meaning |
//! |---|---|
//! | mount | a container as it is served: with a name and options |
//! | view | a presentation of a container in another format, such as Zarr or Neuroglancer precomputed |
//! | chunk | the unit of a view: a region of a dataset in the view's encoding |
//! | slice | a region in the encoding that a client asks for |
//! | array | a decoded result: little-endian elements, first axis fastest |
//! | version | a hash of a file's metadata, which changes when the file does |
//! | entity tag | the version of a response, by which clients and proxies revalidate it |
//! | response | status, headers and body as they are sent; to answer a request is to send one |
//! | fast path, reply | responses without the HTTP library, from memory or the page cache; a reply is one of them |
//! | peer | the other end of a connection: a client or a proxy |
//! | caller | whom the token of a request names |
//! | client | the party to which requests, memory and cores are charged: a caller, or else an address |
//!
//! Admission:
//!
//! | term | meaning |
//! |---|---|
//! | admission | the decision to begin a request, to let it wait or to refuse it |
//! | refuse | to answer with an error because of a rule or a limit |
//! | reject | to refuse because there are too many requests; metrics count such requests as shed |
//! | visibility | the part of a container that a caller may see |
//! | flow | the requests of a client that wait in one fair queue |
//! | slot | one of a fixed number of places: of requests in flight, or of entries in a small table |
//! | lease | a part of a core that a job holds, and may yield to other jobs |
//! | charge | to count bytes or time as used by a client |
//!
//! Memory:
//!
//! | term | meaning |
//! |---|---|
//! | budget | a bounded amount of memory |
//! | permit | a part of a budget, which is taken before memory is allocated and travels with the bytes |
//! | own | bytes own a permit if freeing their memory gives the permit back |
//! | grant | units of a budget or of a core's time that a fair queue gives to a waiting request |
//! | canvas, slab | the result of a read while blocks are pasted into it, cut into slabs along one axis |
//! | band | a part of a slice that is too large to be assembled in memory as a whole |
//!
//! Caching:
//!
//! | term | meaning |
//! |---|---|
//! | dependency | an object, with its version, from which a cached result was made |
//! | validated | compared with the store, and found to be current at that time |
//! | freshness | the age that a cached entry may have before it is compared with the store (revalidated) |
//! | fresh since | a time: an entry that was last validated before it is stale |
//! | single flight | one load for all requests that want the same key at the same time; they are its waiters |
//! | page cache | the kernel's cache of files; reads from it do not block |
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
//!                                          └──► runtime, telemetry         cores and turns of clients; logs, metrics
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
pub mod output;
pub mod read;
pub mod runtime;
pub mod server;
pub mod store;
pub mod telemetry;
pub mod verify;
pub mod view;
