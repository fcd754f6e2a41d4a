//! Small files that are read again when they change, so that secrets can be replaced while the server is running.

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// Interval at which the files are polled.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Number of failed polls after which a lasting failure is logged again.
const POLLS_PER_ERROR_LOG: u32 = 60;

/// `O_NONBLOCK` in the type that `OpenOptionsExt::custom_flags` takes.
const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();

/// Maximum size of a file in bytes. The fixed memory of the process covers the parsed content and, while a changed file
/// is read, its new content.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Parsed content of files. A thread keeps it up to date and ends when this value is dropped.
#[derive(Debug)]
pub struct WatchedFiles<T> {
    current: Arc<RwLock<Arc<T>>>,
    _stop_sender: Sender<()>,
}

impl<T: Send + Sync + 'static> WatchedFiles<T> {
    /// Returns the current content of the files, or the last valid content.
    pub fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the files now, and reads all of them again whenever one changes. `what` describes the files in the log.
    ///
    /// `on_failure` is called at each poll that finds the files invalid, except the first of several in a row. A poll
    /// may find a file half written, or only some of several files replaced. Therefore a failure counts only if two
    /// consecutive polls find it.
    ///
    /// # Errors
    /// Returns a message if a file cannot be read or parsed now. After later failures, the last valid content stays in
    /// force.
    pub fn open<const FILES: usize>(
        paths: [&Path; FILES],
        what: &'static str,
        on_failure: fn(),
        parse: impl Fn([&str; FILES]) -> Result<T, String> + Send + 'static,
    ) -> Result<Self, String> {
        let display_names = paths.map(|path| path.display().to_string()).join(", ");
        let texts = read_all(paths)?;
        let parsed = parse(texts.each_ref().map(String::as_str)).map_err(|why| format!("{display_names}: {why}"))?;
        let current = Arc::new(RwLock::new(Arc::new(parsed)));
        let (stop_sender, stop_receiver) = channel();
        let shared = Arc::clone(&current);
        let paths = paths.map(PathBuf::from);
        let watch = move || {
            let mut known_texts = texts;
            let mut failures = 0_u32;
            while stop_receiver.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let change = match read_all(paths.each_ref().map(PathBuf::as_path)) {
                    Ok(texts) if texts == known_texts => None,
                    Ok(texts) => Some(parse(texts.each_ref().map(String::as_str)).map(|parsed| (texts, parsed))),
                    Err(why) => Some(Err(why)),
                };
                match change {
                    None => failures = 0,
                    Some(Ok((texts, parsed))) => {
                        (known_texts, failures) = (texts, 0);
                        *shared.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(parsed);
                        tracing::info!(file = display_names, what, "file has changed and was read again");
                    }
                    Some(Err(why)) => {
                        if failures > 0 {
                            on_failure();
                        }
                        if failures % POLLS_PER_ERROR_LOG == 1 {
                            tracing::error!(
                                file = display_names,
                                what,
                                why,
                                "file cannot be used: its previous content stays in force"
                            );
                        }
                        failures = failures.wrapping_add(1);
                    }
                }
            }
        };
        let started = std::thread::Builder::new().name(format!("watch-{what}")).spawn(watch);
        started.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self { current, _stop_sender: stop_sender })
    }
}

/// Reads small files as text. An error names the file that cannot be read.
fn read_all<const FILES: usize>(paths: [&Path; FILES]) -> Result<[String; FILES], String> {
    let mut texts = [const { String::new() }; FILES];
    for (text, path) in texts.iter_mut().zip(paths) {
        *text = read_small_file(path).map_err(|why| format!("{}: {why}", path.display()))?;
    }
    Ok(texts)
}

/// Reads a small file that does not belong to a container.
///
/// # Errors
/// Returns a message if the file cannot be read, is not text, or has more than 4 MiB.
pub fn read_small_file(path: &Path) -> Result<String, String> {
    // A named pipe would block the reader until a process opens it for writing.
    let file = std::fs::OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path);
    let file = file.map_err(|error| format!("cannot be read: {error}"))?;
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err("is not a regular file".to_owned());
    }
    let mut text = String::new();
    let bytes = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|e| format!("cannot be read: {e}"))?;
    if bytes as u64 > MAX_FILE_BYTES {
        return Err(format!("has more than {MAX_FILE_BYTES} bytes"));
    }
    Ok(text)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a file is written to be read")]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Polls until `condition` returns true, for a bounded time.
    fn becomes_true(condition: impl Fn() -> bool) -> bool {
        (0..600).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            condition()
        })
    }

    #[test]
    fn a_changed_file_is_loaded_and_a_broken_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let parse_failures = Arc::new(AtomicU32::new(0));
        let failure_counter = Arc::clone(&parse_failures);
        let parse_number = move |[text]: [&str; 1]| {
            text.trim().parse::<u32>().map_err(|error| {
                failure_counter.fetch_add(1, Ordering::Relaxed);
                error.to_string()
            })
        };
        std::fs::write(&path, "1").unwrap();
        let watched = WatchedFiles::open([&path], "tokens", || (), parse_number).unwrap();
        assert_eq!(*watched.current(), 1);
        // The new text has the same length and time as the previous one, so only the text itself differs.
        std::fs::write(&path, "2").unwrap();
        assert!(becomes_true(|| *watched.current() == 2));
        std::fs::write(&path, "x").unwrap();
        assert!(becomes_true(|| parse_failures.load(Ordering::Relaxed) >= 2));
        assert_eq!(*watched.current(), 2);
        std::fs::write(&path, "3").unwrap();
        assert!(becomes_true(|| *watched.current() == 3));
    }

    #[test]
    fn an_initially_broken_file_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let parse = |_: [&str; 1]| Err::<(), _>("bad".to_owned());
        assert!(WatchedFiles::open([&path], "tokens", || (), parse).unwrap_err().contains("file: cannot be read"));
        std::fs::write(&path, "x").unwrap();
        assert!(WatchedFiles::open([&path], "tokens", || (), parse).unwrap_err().ends_with("file: bad"));
    }
}
