//! Metrics of connections.

use metrics::{Counter, Gauge, counter, gauge};

use super::names::{
    CONNECTION_POOL_BYTES, CONNECTION_POOL_CAPACITY, CONNECTIONS_ACCEPTED, CONNECTIONS_CLOSED, CONNECTIONS_MOST,
    CONNECTIONS_OPEN,
};
use super::{Closed, ConnectionPool, as_f64};

/// Counts connections.
#[derive(Clone)]
pub struct Connections {
    open: Gauge,
    accepted: Counter,
}

/// An open connection, counted until dropped.
pub struct Connection {
    open: Gauge,
    closed: Closed,
}

impl Connections {
    /// Of which there are at most so many at once.
    pub fn new(most: usize) -> Self {
        gauge!(CONNECTIONS_MOST).set(as_f64(most as u64));
        Self { open: gauge!(CONNECTIONS_OPEN), accepted: counter!(CONNECTIONS_ACCEPTED) }
    }

    /// One was accepted.
    pub fn open(&self) -> Connection {
        self.accepted.increment(1);
        self.open.increment(1.0);
        Connection { open: self.open.clone(), closed: Closed::Error }
    }
}

impl Connection {
    /// Says why it ends; without this, by an error.
    pub fn close(&mut self, reason: Closed) {
        self.closed = reason;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.decrement(1.0);
        counter!(CONNECTIONS_CLOSED, "reason" => self.closed.name()).increment(1);
    }
}

/// How much of a pool that all connections share is taken.
pub struct PoolBytes(Gauge);

impl PoolBytes {
    /// A pool of so many bytes, of which none are taken.
    pub fn new(pool: ConnectionPool, capacity_bytes: usize) -> Self {
        gauge!(CONNECTION_POOL_CAPACITY, "pool" => pool.name()).set(as_f64(capacity_bytes as u64));
        let taken = gauge!(CONNECTION_POOL_BYTES, "pool" => pool.name());
        taken.set(0.0);
        Self(taken)
    }

    /// So many bytes were taken.
    pub fn add(&self, bytes: usize) {
        if bytes > 0 {
            self.0.increment(as_f64(bytes as u64));
        }
    }

    /// So many bytes were given back.
    pub fn subtract(&self, bytes: usize) {
        if bytes > 0 {
            self.0.decrement(as_f64(bytes as u64));
        }
    }
}

impl std::fmt::Debug for PoolBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolBytes").finish_non_exhaustive()
    }
}
