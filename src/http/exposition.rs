//! The text of `/metrics`, of which no more are kept than a few: where many clients have not taken theirs, those who ask within
//! a second have the same.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::admitted::{Admitted, One};

/// As many texts as differ before any is given twice. One of a usual server has a hundred kilobytes.
const SEVERAL: usize = 16;

/// For how long one is given where there are so many.
const SAME: Duration = Duration::from_secs(1);

/// The texts that clients have not taken.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    texts: Admitted,
    last: Mutex<Option<(Instant, Bytes)>>,
}

/// A text, counted until the last client has taken it.
struct Text {
    text: String,
    _one: One,
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl Exposition {
    /// What `render` says now; or, where many texts have not been taken, what it said up to [`SAME`] ago.
    pub(super) fn text(&self, render: impl FnOnce() -> String) -> Bytes {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if self.texts.count() < SEVERAL {
            *last = None;
        } else if let Some((at, text)) = &*last
            && at.elapsed() < SAME
        {
            return text.clone();
        }
        let text = Bytes::from_owner(Text { text: render(), _one: self.texts.begin() });
        if self.texts.count() >= SEVERAL {
            *last = Some((Instant::now(), text.clone()));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_unless_many_are_not_taken() {
        let exposition = Exposition::default();
        let mut number = 0;
        let mut next = || {
            exposition.text(|| {
                number += 1;
                number.to_string()
            })
        };
        for expected in 1..100 {
            assert_eq!(next(), expected.to_string());
        }
        let mut held: Vec<_> = (0..1000).map(|_| next()).collect();
        held.dedup();
        // More where a thousand take longer than a second.
        assert!((SEVERAL..SEVERAL + 20).contains(&held.len()), "{}", held.len());
        held.clear();
        assert_ne!(next(), next());
    }
}
