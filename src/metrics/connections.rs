//! Metrics of connections.

use metrics::{Counter, Gauge, counter, gauge};

use super::float::as_f64;
use super::labels::{CloseReason, ConnectionPoolLabel};
use super::names::{
    CONNECTION_POOL_BYTES, CONNECTION_POOL_CAPACITY, CONNECTIONS_ACCEPTED, CONNECTIONS_CLOSED, CONNECTIONS_MAX,
    CONNECTIONS_OPEN,
};

/// Handles to the metrics of connections.
#[derive(Clone)]
pub struct ConnectionMetrics {
    open: Gauge,
    accepted: Counter,
}

/// Guard of an open connection, which is counted until this is dropped.
pub struct OpenConnectionGuard {
    open: Gauge,
    close_reason: CloseReason,
}

impl ConnectionMetrics {
    /// Creates the handles and sets the maximum number of open connections to `max_connections`.
    pub fn new(max_connections: usize) -> Self {
        gauge!(CONNECTIONS_MAX).set(as_f64(max_connections as u64));
        Self { open: gauge!(CONNECTIONS_OPEN), accepted: counter!(CONNECTIONS_ACCEPTED) }
    }

    /// Counts an accepted connection, which stays open until the guard is dropped.
    pub fn record_accepted(&self) -> OpenConnectionGuard {
        self.accepted.increment(1);
        self.open.increment(1.0);
        OpenConnectionGuard { open: self.open.clone(), close_reason: CloseReason::Error }
    }
}

impl OpenConnectionGuard {
    /// Sets the reason for closing the connection; without a call, the reason is an error.
    pub fn set_close_reason(&mut self, reason: CloseReason) {
        self.close_reason = reason;
    }
}

impl Drop for OpenConnectionGuard {
    fn drop(&mut self) {
        self.open.decrement(1.0);
        counter!(CONNECTIONS_CLOSED, "reason" => self.close_reason.name()).increment(1);
    }
}

/// Gauge of the bytes taken from a pool that all connections share.
pub struct PoolGauge(Gauge);

impl PoolGauge {
    /// Creates the gauge of a pool of `capacity_bytes`, of which none are taken.
    pub fn new(pool: ConnectionPoolLabel, capacity_bytes: usize) -> Self {
        gauge!(CONNECTION_POOL_CAPACITY, "pool" => pool.name()).set(as_f64(capacity_bytes as u64));
        let taken = gauge!(CONNECTION_POOL_BYTES, "pool" => pool.name());
        taken.set(0.0);
        Self(taken)
    }

    /// Records that `bytes` were taken.
    pub fn add(&self, bytes: usize) {
        if bytes > 0 {
            self.0.increment(as_f64(bytes as u64));
        }
    }

    /// Records that `bytes` were returned.
    pub fn subtract(&self, bytes: usize) {
        if bytes > 0 {
            self.0.decrement(as_f64(bytes as u64));
        }
    }
}

impl std::fmt::Debug for PoolGauge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolGauge").finish_non_exhaustive()
    }
}
