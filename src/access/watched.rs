//! A small file that is read again when it changes: secrets are exchanged while the server runs.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::metrics;

/// How often the file is looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// Failures are said again after so many looks.
const REPEATED: u32 = 60;

/// Longer files are refused.
const FILE_BYTES: u64 = 16 << 20;

/// What a file says, kept up to date by a thread that ends with this.
pub(super) struct Watched<T> {
    current: Arc<RwLock<Arc<T>>>,
    _until_dropped: Sender<()>,
}

impl<T: fmt::Debug> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watched").field(&self.current()).finish()
    }
}

impl<T> Watched<T> {
    /// What the file says now.
    pub(super) fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T: Send + Sync + 'static> Watched<T> {
    /// Reads the file now, and again whenever it says something else. `what` it is, for metrics and the log.
    ///
    /// # Errors
    /// In words, when the file cannot be read or understood now. Later, what was understood last stays in force.
    pub(super) fn open(
        path: &Path,
        what: &'static str,
        parse: impl Fn(&str) -> Result<T, String> + Send + 'static,
    ) -> Result<Self, String> {
        let wrong = |why: String| format!("{}: {why}", path.display());
        let text = read(path).map_err(wrong)?;
        let current = Arc::new(RwLock::new(Arc::new(parse(&text).map_err(wrong)?)));
        let (until_dropped, dropped) = channel();
        let (shared, path) = (Arc::clone(&current), PathBuf::from(path));
        let watch = move || {
            let (mut known, mut failures) = (text, 0_u32);
            while dropped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let news = match read(&path) {
                    Ok(text) if text == known => None,
                    Ok(text) => Some(parse(&text).map(|parsed| (text, parsed))),
                    Err(why) => Some(Err(why)),
                };
                match news {
                    None => failures = 0,
                    Some(Ok((text, parsed))) => {
                        (known, failures) = (text, 0);
                        *shared.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(parsed);
                        tracing::info!(file = %path.display(), what, "read again: it has changed");
                    }
                    Some(Err(why)) => {
                        metrics::access_reload_failed(what);
                        if failures.is_multiple_of(REPEATED) {
                            let file = path.display();
                            tracing::error!(%file, what, why, "cannot be used: what it said before stays in force");
                        }
                        failures = failures.wrapping_add(1);
                    }
                }
            }
        };
        let started = std::thread::Builder::new().name(format!("watch-{what}")).spawn(watch);
        started.map_err(|error| format!("no thread can be started: {error}"))?;
        Ok(Self { current, _until_dropped: until_dropped })
    }
}

/// The text of a small file, which is no container's.
#[expect(clippy::disallowed_methods, reason = "secrets and certificates are files beside the configuration")]
pub(super) fn read(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let mut text = String::new();
    let bytes = file.take(FILE_BYTES + 1).read_to_string(&mut text).map_err(|e| format!("cannot be read: {e}"))?;
    if bytes as u64 > FILE_BYTES {
        return Err(format!("has more than {FILE_BYTES} bytes"));
    }
    Ok(text)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a file is written to be read")]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Looks until `is_so`, for a bounded time.
    fn comes_true(is_so: impl Fn() -> bool) -> bool {
        (0..600).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            is_so()
        })
    }

    #[test]
    fn a_change_is_taken_over_and_a_broken_file_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let refused = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&refused);
        let number = move |text: &str| {
            text.trim().parse::<u32>().map_err(|error| {
                counted.fetch_add(1, Ordering::Relaxed);
                error.to_string()
            })
        };
        std::fs::write(&path, "1").unwrap();
        let watched = Watched::open(&path, "tokens", number).unwrap();
        assert_eq!(*watched.current(), 1);
        // As long and as old as the one before: it is the text that counts.
        std::fs::write(&path, "2").unwrap();
        assert!(comes_true(|| *watched.current() == 2));
        std::fs::write(&path, "x").unwrap();
        assert!(comes_true(|| refused.load(Ordering::Relaxed) >= 2));
        assert_eq!(*watched.current(), 2);
        std::fs::write(&path, "3").unwrap();
        assert!(comes_true(|| *watched.current() == 3));
    }

    #[test]
    fn a_file_that_is_broken_at_the_start_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let parse = |_: &str| Err::<(), _>("bad".to_owned());
        assert!(Watched::open(&path, "tokens", parse).unwrap_err().contains("file: cannot be read"));
        std::fs::write(&path, "x").unwrap();
        assert!(Watched::open(&path, "tokens", parse).unwrap_err().ends_with("file: bad"));
    }
}
