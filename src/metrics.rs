//! stub
#![allow(missing_docs)]
use std::time::Duration;
pub fn budget_used(_: &'static str, _: f64) {}
pub fn cache_request(_: &'static str, _: &'static str, _: u64) {}
pub fn cache_bytes(_: &'static str, _: u64) {}
pub fn store_request(_: &'static str, _: &'static str, _: Duration) {}
pub fn store_read_bytes(_: u64) {}
pub fn decoded(_: &str, _: Duration, _: u64) {}
pub fn decode_error(_: &str) {}

pub struct InFlight;
pub fn request_started() -> InFlight { InFlight }
pub fn request(_: &str, _: &str, _: u16, _: Duration, _: u64) {}
pub fn shed(_: &'static str) {}
pub fn broken_answer() {}
