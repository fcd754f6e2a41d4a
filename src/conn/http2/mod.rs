//! Limits of HTTP/2 connections: the frames that hyper gets, and the time for which a client may not read its
//! responses.

pub(super) mod admission;
mod frames;
mod hpack;
pub(super) mod watchdog;
