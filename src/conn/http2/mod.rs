//! Limits of HTTP/2 connections: the frames that hyper gets, the memory that these frames cost, and the time for which
//! a client may not read its responses. `memory` also accounts for long HTTP/1 heads.

pub(super) mod admission;
mod frames;
mod hpack;
pub(super) mod memory;
pub(super) mod watchdog;
