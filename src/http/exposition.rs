//! The response body of `/metrics`. A body stays in memory until every client has received it. While many bodies are
//! in memory, requests share the latest one instead of rendering another. The more bodies are in memory, the longer the
//! latest one is shared.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::cache::release_with;

/// Maximum number of bodies in memory before the latest one is reused. A body has about 100 kB on a typical server.
const REUSE_THRESHOLD: usize = 16;

/// Additional time that the latest body is reused for each body in memory above [`REUSE_THRESHOLD`]. A slow client may
/// take a quarter of an hour to receive a body. If a new one were rendered every second, hundreds would be in memory.
const REUSE_TIME_STEP: Duration = Duration::from_secs(1);

/// The latest body, and the number of bodies in memory.
#[derive(Debug, Default)]
pub(crate) struct ExpositionCache {
    /// Cloned into every body, so that its reference count tells how many bodies are in memory.
    live_bodies: Arc<()>,
    last: Mutex<Option<(Instant, Bytes)>>,
}

impl ExpositionCache {
    /// Returns the output of `render`, or the latest body if many are in memory.
    pub(crate) fn get_or_render(&self, now: Instant, render: impl FnOnce() -> String) -> Bytes {
        // The body is counted before it is rendered, because several threads may render at once.
        let live_guard = Arc::clone(&self.live_bodies);
        let excess = Arc::strong_count(&self.live_bodies).saturating_sub(1 + REUSE_THRESHOLD);
        {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            if excess == 0 {
                *last = None;
            } else if let Some((rendered_at, text)) = &*last
                && now.duration_since(*rendered_at)
                    < REUSE_TIME_STEP.saturating_mul(u32::try_from(excess).unwrap_or(u32::MAX))
            {
                return text.clone();
            }
        }
        let text = release_with(render(), move |text| drop((text, live_guard)));
        if excess > 0 {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, text.clone()));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates an hour with ten scrapes per second, whose bodies are kept for `hold_seconds`. Returns the largest
    /// number of bodies in memory, and the age in seconds of the oldest body that was returned.
    fn simulate_an_hour(hold_seconds: usize) -> (usize, u64) {
        let exposition = ExpositionCache::default();
        let started = Instant::now();
        let mut held_texts = std::collections::VecDeque::new();
        let mut max_live = 0;
        let mut max_age = 0;
        for tenth in 0..36_000 {
            let text = exposition.get_or_render(started + Duration::from_millis(100 * tenth), || tenth.to_string());
            let rendered_at: u64 = std::str::from_utf8(&text).unwrap().parse().unwrap();
            max_age = max_age.max((tenth - rendered_at) / 10);
            held_texts.push_back(text);
            if held_texts.len() > 10 * hold_seconds {
                held_texts.pop_front();
            }
            max_live = max_live.max(Arc::strong_count(&exposition.live_bodies) - 1);
        }
        held_texts.clear();
        for text in ["first", "second"] {
            assert_eq!(exposition.get_or_render(started, || text.to_owned()), text, "all texts have been received");
        }
        (max_live, max_age)
    }

    #[test]
    fn each_scrape_gets_a_new_text_while_few_are_live() {
        assert_eq!(simulate_an_hour(1), (10, 0));
    }

    #[test]
    fn the_number_of_live_bodies_stays_small_while_clients_are_slow() {
        let (max_live, max_age) = simulate_an_hour(900);
        assert!((REUSE_THRESHOLD..4 * REUSE_THRESHOLD).contains(&max_live), "{max_live} texts");
        assert!((10..60).contains(&max_age), "{max_age} s");
    }
}
