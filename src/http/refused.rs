//! Requests that are refused because there are too many: their answers come a little later, so that whoever asks again at
//! once, however often, leaves the cores to the others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::problem::Problem;

/// How much later. A connection has four refusals a second, or as many streams as it may have; short beside the second
/// of `Retry-After`.
const HELD: Duration = Duration::from_millis(250);

/// How many are held back.
#[derive(Debug, Default)]
pub(super) struct Refused(AtomicUsize);

impl Refused {
    /// Requests that only wait to be refused, and take nobody's place.
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits where the problem is that there are too many requests.
    pub(super) async fn hold(&self, problem: Option<&Problem>) {
        if problem.is_some_and(Problem::is_of_load) {
            self.0.fetch_add(1, Ordering::Relaxed);
            let _held = Held(&self.0);
            tokio::time::sleep(HELD).await;
        }
    }
}

/// One of them; its client may go before it is answered.
struct Held<'a>(&'a AtomicUsize);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
