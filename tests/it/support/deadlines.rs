//! Clients with deadlines, on a machine that may stall them.

use std::cell::Cell;
use std::time::{Duration, Instant};

const ATTEMPTS: usize = 10;

/// Records whether the client missed a deadline, measured by the client itself.
#[derive(Default)]
pub struct DeadlineWatch {
    is_late: Cell<bool>,
}

impl DeadlineWatch {
    /// Begins a step that may take `allowed` until it is dropped. Steps may be nested.
    pub fn step(&self, allowed: Duration) -> TimedStep<'_> {
        TimedStep { deadlines: self, started: Instant::now(), allowed }
    }
}

#[must_use]
pub struct TimedStep<'a> {
    deadlines: &'a DeadlineWatch,
    started: Instant,
    allowed: Duration,
}

impl Drop for TimedStep<'_> {
    fn drop(&mut self) {
        if self.started.elapsed() > self.allowed {
            self.deadlines.is_late.set(true);
        }
    }
}

/// Returns the result of `attempt`. A failure after the client was late says nothing about the server, so the attempt
/// is repeated. A failure of a client that was in time is an error. Success counts even if the client was late, because
/// lateness only makes the test harder.
pub async fn retry_if_late<T>(attempt: impl AsyncFn(&DeadlineWatch) -> Result<T, String>) -> T {
    let mut faults = Vec::new();
    while faults.len() < ATTEMPTS {
        let deadlines = DeadlineWatch::default();
        match attempt(&deadlines).await {
            Ok(done) => return done,
            Err(fault) if deadlines.is_late.get() => faults.push(fault),
            Err(fault) => panic!("{fault}"),
        }
    }
    panic!("the client was late {ATTEMPTS} times: {faults:?}");
}
