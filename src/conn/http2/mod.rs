//! Limits of HTTP/2 connections: the frames that hyper is given, the memory that they cost, and clients that do not read
//! their responses. `memory` also counts long HTTP/1 heads, for which hyper takes memory in the same way.

pub(super) mod admission;
mod frames;
mod hpack;
pub(super) mod memory;
pub(super) mod watchdog;
