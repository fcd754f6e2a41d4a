//! Requests to object stores and HTTP servers: paced, hedged, retried, checked and counted.

mod answer;
mod bucket;
mod checked_body;
mod concurrency_limit;
mod counters;
mod failure;
mod latency_histogram;
mod ratio_budget;
mod registry;
mod retry;
mod service;

pub(super) use answer::{content_length, error_answer};
#[cfg(test)]
pub(super) use bucket::UpstreamBucket;
pub(super) use bucket::UpstreamContext;
pub(super) use checked_body::HeldPermit;
#[cfg(test)]
pub(super) use counters::UpstreamCounters;
pub(super) use counters::UpstreamOperation;
pub(super) use failure::{FailureKind, UpstreamFailure};
pub use registry::{log_upstream_costs, record_upstream_metrics};
pub(super) use registry::{register, shared_bucket};
pub(super) use retry::RetryCount;
pub(super) use service::{UpstreamService, UpstreamSettings};

#[cfg(test)]
mod tests;
