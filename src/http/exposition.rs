//! The text of `/metrics`, of which few are kept: where clients have not taken many of them, those who ask have the last one, for
//! the longer the more there are.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

/// As many texts as differ before any is given twice. One of a usual server has a hundred kilobytes.
const SEVERAL: usize = 16;

/// For how long one is given, times how many more there are: a client may keep its own for a quarter of an hour, and with one
/// more each second there would be hundreds.
const SAME: Duration = Duration::from_secs(1);

/// The texts that clients have not taken.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    texts: Arc<()>,
    last: Mutex<Option<(Instant, Bytes)>>,
}

/// A text, counted until the last client has taken it.
struct Text {
    text: String,
    _one: Arc<()>,
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl Exposition {
    /// What `render` says `now`; or, where many texts have not been taken, what it said last.
    pub(super) fn text(&self, now: Instant, render: impl FnOnce() -> String) -> Bytes {
        // Counted before it is made, which several threads may do at once: the lock is not for that long.
        let one = Arc::clone(&self.texts);
        let besides = Arc::strong_count(&self.texts).saturating_sub(1 + SEVERAL);
        {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            if besides == 0 {
                *last = None;
            } else if let Some((at, text)) = &*last
                && now.duration_since(*at) < SAME.saturating_mul(u32::try_from(besides).unwrap_or(u32::MAX))
            {
                return text.clone();
            }
        }
        let text = Bytes::from_owner(Text { text: render(), _one: one });
        if besides > 0 {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, text.clone()));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An hour of ten scrapes a second, each of whose texts is kept for so many seconds: the most texts that there are at once,
    /// and how old in seconds the oldest is that is given.
    fn of_an_hour(kept: usize) -> (usize, u64) {
        let (exposition, begun) = (Exposition::default(), Instant::now());
        let (mut held, mut most, mut oldest) = (std::collections::VecDeque::new(), 0, 0);
        for tenth in 0..36_000 {
            let text = exposition.text(begun + Duration::from_millis(100 * tenth), || tenth.to_string());
            let made: u64 = std::str::from_utf8(&text).unwrap().parse().unwrap();
            oldest = oldest.max((tenth - made) / 10);
            held.push_back(text);
            if held.len() > 10 * kept {
                held.pop_front();
            }
            most = most.max(Arc::strong_count(&exposition.texts) - 1);
        }
        held.clear();
        for text in ["first", "second"] {
            assert_eq!(exposition.text(begun, || text.to_owned()), text, "all have been taken");
        }
        (most, oldest)
    }

    #[test]
    fn each_has_its_own_unless_many_are_not_taken() {
        assert_eq!(of_an_hour(1), (10, 0));
    }

    #[test]
    fn few_are_kept_however_long_clients_do_not_take_theirs() {
        let (most, oldest) = of_an_hour(900);
        assert!((SEVERAL..4 * SEVERAL).contains(&most), "{most} texts");
        assert!((10..60).contains(&oldest), "{oldest} s");
    }
}
