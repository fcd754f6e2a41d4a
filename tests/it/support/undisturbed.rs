//! Clients with deadlines, on a machine that may stall them.

use std::cell::Cell;
use std::time::{Duration, Instant};

const ATTEMPTS: usize = 10;

/// Records if the client missed a deadline, by its own clock.
#[derive(Default)]
pub struct Times {
    is_late: Cell<bool>,
}

impl Times {
    /// Begins a step that may take `allowed` until it is dropped. Steps may be nested.
    pub fn step(&self, allowed: Duration) -> Step<'_> {
        Step { times: self, begun: Instant::now(), allowed }
    }
}

#[must_use]
pub struct Step<'a> {
    times: &'a Times,
    begun: Instant,
    allowed: Duration,
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if self.begun.elapsed() > self.allowed {
            self.times.is_late.set(true);
        }
    }
}

/// Returns the result of `attempt`. A failure after the client was late says nothing about the server, so the attempt
/// is repeated. A failure of a client that was in time is an error. Success counts even if the client was late, because
/// lateness only makes the test harder.
pub async fn undisturbed<T>(attempt: impl AsyncFn(&Times) -> Result<T, String>) -> T {
    let mut faults = Vec::new();
    while faults.len() < ATTEMPTS {
        let times = Times::default();
        match attempt(&times).await {
            Ok(done) => return done,
            Err(fault) if times.is_late.get() => faults.push(fault),
            Err(fault) => panic!("{fault}"),
        }
    }
    panic!("the client was late {ATTEMPTS} times: {faults:?}");
}
