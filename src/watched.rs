//! Small files that are read again when they change: secrets are exchanged while the server runs.

use std::fmt;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_secs(1);

/// Failures are said again after so many looks.
const REPEATED: u32 = 60;

/// `O_NONBLOCK`.
const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();

/// Longer files are refused: what is made of one, and of the next while it is read, is in what the process has for itself.
const FILE_BYTES: u64 = 4 << 20;

/// What files say, kept up to date by a thread that ends with this.
pub struct Watched<T> {
    current: Arc<RwLock<Arc<T>>>,
    _until_dropped: Sender<()>,
}

impl<T: fmt::Debug> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watched").field(&self.current()).finish()
    }
}

impl<T> Watched<T> {
    /// What the files say now, or said when they last could be used.
    pub fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T: Send + Sync + 'static> Watched<T> {
    /// Reads the files now, and all of them again whenever one says something else. `what` they are, for the log; `failed` is
    /// called at each look that finds them of no use. Files that belong together are exchanged one after the other, and one
    /// may be found half written: only what two looks in a row have found is a fault.
    ///
    /// # Errors
    /// In words, when a file cannot be read, or they cannot be understood, now. Later, what was understood last stays in force.
    pub fn open<const FILES: usize>(
        paths: [&Path; FILES],
        what: &'static str,
        failed: fn(),
        parse: impl Fn([&str; FILES]) -> Result<T, String> + Send + 'static,
    ) -> Result<Self, String> {
        let shown = paths.map(|path| path.display().to_string()).join(", ");
        let texts = read_all(paths)?;
        let parsed = parse(texts.each_ref().map(String::as_str)).map_err(|why| format!("{shown}: {why}"))?;
        let current = Arc::new(RwLock::new(Arc::new(parsed)));
        let (until_dropped, dropped) = channel();
        let (shared, paths) = (Arc::clone(&current), paths.map(PathBuf::from));
        let watch = move || {
            let (mut known, mut failures) = (texts, 0_u32);
            while dropped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let news = match read_all(paths.each_ref().map(PathBuf::as_path)) {
                    Ok(texts) if texts == known => None,
                    Ok(texts) => Some(parse(texts.each_ref().map(String::as_str)).map(|parsed| (texts, parsed))),
                    Err(why) => Some(Err(why)),
                };
                match news {
                    None => failures = 0,
                    Some(Ok((texts, parsed))) => {
                        (known, failures) = (texts, 0);
                        *shared.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(parsed);
                        tracing::info!(file = shown, what, "read again: it has changed");
                    }
                    Some(Err(why)) => {
                        if failures > 0 {
                            failed();
                        }
                        if failures % REPEATED == 1 {
                            tracing::error!(
                                file = shown,
                                what,
                                why,
                                "cannot be used: what it said before stays in force"
                            );
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

/// The texts of small files; an error names the one that cannot be read.
fn read_all<const FILES: usize>(paths: [&Path; FILES]) -> Result<[String; FILES], String> {
    let mut texts = [const { String::new() }; FILES];
    for (text, path) in texts.iter_mut().zip(paths) {
        *text = read(path).map_err(|why| format!("{}: {why}", path.display()))?;
    }
    Ok(texts)
}

/// The text of a small file, which is no container's.
///
/// # Errors
/// In words: it cannot be read, is no text, or has more than 4 MiB.
pub fn read(path: &Path) -> Result<String, String> {
    // A named pipe would keep the reader until somebody writes.
    let file = std::fs::OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path);
    let file = file.map_err(|error| format!("cannot be read: {error}"))?;
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err("is no regular file".to_owned());
    }
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
        let number = move |[text]: [&str; 1]| {
            text.trim().parse::<u32>().map_err(|error| {
                counted.fetch_add(1, Ordering::Relaxed);
                error.to_string()
            })
        };
        std::fs::write(&path, "1").unwrap();
        let watched = Watched::open([&path], "tokens", || (), number).unwrap();
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
        let parse = |_: [&str; 1]| Err::<(), _>("bad".to_owned());
        assert!(Watched::open([&path], "tokens", || (), parse).unwrap_err().contains("file: cannot be read"));
        std::fs::write(&path, "x").unwrap();
        assert!(Watched::open([&path], "tokens", || (), parse).unwrap_err().ends_with("file: bad"));
    }
}
