//! HTTP/2 before and behind hyper: the frames that it is given, the memory that they cost, and clients that take no
//! answers.

pub(super) mod admission;
mod frames;
mod hpack;
pub(super) mod memory;
pub(super) mod watchdog;
