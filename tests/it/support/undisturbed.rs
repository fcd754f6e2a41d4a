//! Clients that have to be in time, on a machine that may stand still meanwhile.

use std::cell::Cell;
use std::time::{Duration, Instant};

const ATTEMPTS: usize = 10;

/// Whether a client kept its times, by its own clock.
#[derive(Default)]
pub struct Times {
    is_late: Cell<bool>,
}

impl Times {
    /// What is done until the step is dropped may take so long. Steps may lie within others.
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

/// What an attempt comes to. Being late only makes it harder; but one that fails after the client was late says nothing
/// of the server, and another is made. One that fails although the client was in time is a fault.
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
