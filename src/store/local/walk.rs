//! A key resolved component by component, for where `openat2` is refused and for links that it does not resolve.
//!
//! Every component is opened relative to its parent's descriptor and without following it, so that no swap of a directory
//! for a link leads out of the root. Links are read and resolved here. `..` is taken from the names walked, never from the
//! file system. A link may leave the root and come back (an absolute one does): on the way outside, nothing is opened but
//! directories, as paths, and whatever fails or ends there is refused alike, so that no answer tells what is there.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat, readlinkat};
use rustix::io::Errno;

use crate::store::Key;
use crate::store::reopen::is_proc;

/// Links that one key may lead over, as in the kernel.
const MAX_LINKS: usize = 40;

/// Components that are opened for one key: a path in a link may hold two thousand.
const MAX_STEPS: usize = 4096;

/// Components that are held at once.
const MAX_PARTS: usize = 1024;

/// Flags of every descriptor here: it names something, and opens nothing.
const PATH: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Why a key leads to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// A link is not followed: the policy follows none, or its target is not below the root.
    NotFollowed,
    /// The system says why.
    Errno(Errno),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// Opens what `key` names below `root`: as a path, or for reading where that is a file and `flags` lack `O_PATH`; only a
/// directory where they have `O_DIRECTORY`.
///
/// # Errors
/// [`Stop`].
pub(super) fn walk(root: &OwnedFd, key: &Key, follows_links: bool, flags: OFlags) -> Result<OwnedFd, Stop> {
    let mut walk = Walk {
        root,
        left: Vec::new(),
        names: Vec::new(),
        at: None,
        outside: None,
        links: if follows_links { MAX_LINKS } else { 0 },
        follows_links,
        steps: MAX_STEPS,
        directory: flags.contains(OFlags::DIRECTORY),
        reading: (!flags.contains(OFlags::PATH)).then_some(flags | OFlags::NOFOLLOW | OFlags::CLOEXEC),
    };
    walk.push(key.as_str().as_bytes(), Origin::Inside)?;
    walk.run()
}

/// Who wrote a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The key, or a link below the root.
    Inside,
    /// A link elsewhere.
    Outside,
}

/// A component that is yet to be opened.
struct Part {
    name: Vec<u8>,
    origin: Origin,
}

/// A directory that is not below the root.
struct Outside {
    at: OwnedFd,
    /// Whether a name has led there, and not only the way up from the root or from `/`.
    was_entered: bool,
}

struct Walk<'a> {
    root: &'a OwnedFd,
    /// The next one is the last.
    left: Vec<Part>,
    /// From the root to `at`; none of them is a link.
    names: Vec<Vec<u8>>,
    /// What `names` lead to; `None` for the root, and where it has to be opened again.
    at: Option<OwnedFd>,
    outside: Option<Outside>,
    follows_links: bool,
    /// How many more.
    links: usize,
    steps: usize,
    directory: bool,
    /// How a file at the end is opened.
    reading: Option<OFlags>,
}

enum Entered {
    Link(Vec<u8>),
    Other(OwnedFd),
}

impl Walk<'_> {
    fn run(mut self) -> Result<OwnedFd, Stop> {
        loop {
            let Some(part) = self.left.pop() else {
                if self.outside.is_some() {
                    return Err(Stop::NotFollowed);
                }
                match self.at.take() {
                    Some(at) => return Ok(at),
                    None if self.names.is_empty() => {
                        return Ok(openat(self.root, ".", PATH | OFlags::DIRECTORY, Mode::empty())?);
                    }
                    // It ended with `..`.
                    None => {
                        self.directory = true;
                        self.again();
                        continue;
                    }
                }
            };
            self.steps = self.steps.checked_sub(1).ok_or(Errno::LOOP)?;
            match (part.name.as_slice(), self.outside.take()) {
                (b".", outside) => self.outside = outside,
                (b"..", None) => self.up()?,
                (_, None) => self.down(part)?,
                (_, Some(outside)) => self.beside(outside, &part).map_err(hidden)?,
            }
        }
    }

    /// Has the names walked opened again.
    fn again(&mut self) {
        let names = self.names.drain(..).rev();
        self.left.extend(names.map(|name| Part { name, origin: Origin::Inside }));
    }

    fn up(&mut self) -> Result<(), Stop> {
        self.at = None;
        if self.names.pop().is_some() { Ok(()) } else { self.leave(self.root, "..").map_err(hidden) }
    }

    fn down(&mut self, part: Part) -> Result<(), Stop> {
        if self.at.is_none() && !self.names.is_empty() {
            self.left.push(part);
            self.again();
            return Ok(());
        }
        let (at, directory) = (self.at.as_ref().unwrap_or(self.root), self.directory || !self.left.is_empty());
        match enter(at, &part.name, directory)? {
            Entered::Link(text) => self.link(&text, Origin::Inside),
            Entered::Other(mut entered) => {
                if let Some(reading) = self.reading.filter(|_| self.left.is_empty())
                    && FileType::from_raw_mode(fstat(&entered)?.st_mode).is_file()
                {
                    entered = openat(at, part.name.as_slice(), reading, Mode::empty())?;
                }
                self.names.push(part.name);
                self.at = Some(entered);
                Ok(())
            }
        }
    }

    /// Goes on outside the root, from `path`.
    fn leave(&mut self, at: impl AsFd, path: &str) -> Result<(), Stop> {
        let at = openat(at, path, PATH | OFlags::DIRECTORY, Mode::empty())?;
        self.arrive(Outside { at, was_entered: false })
    }

    /// One step outside the root.
    fn beside(&mut self, outside: Outside, part: &Part) -> Result<(), Stop> {
        if part.name == b".." {
            // A name that is entered and left again would tell whether it exists.
            if outside.was_entered && part.origin == Origin::Inside {
                return Err(Stop::NotFollowed);
            }
            let at = openat(&outside.at, "..", PATH | OFlags::DIRECTORY, Mode::empty())?;
            return self.arrive(Outside { at, ..outside });
        }
        match enter(&outside.at, &part.name, true)? {
            Entered::Link(text) => {
                self.outside = Some(outside);
                self.link(&text, Origin::Outside)
            }
            Entered::Other(at) => self.arrive(Outside { at, was_entered: true }),
        }
    }

    /// Whether that is the root decides how it goes on.
    fn arrive(&mut self, outside: Outside) -> Result<(), Stop> {
        let (there, root) = (fstat(&outside.at)?, fstat(self.root)?);
        let is_root = (there.st_dev, there.st_ino) == (root.st_dev, root.st_ino);
        // Links of processes would tell which there are.
        if !is_root && is_proc(&outside.at) {
            return Err(Stop::NotFollowed);
        }
        self.outside = (!is_root).then_some(outside);
        Ok(())
    }

    fn link(&mut self, text: &[u8], origin: Origin) -> Result<(), Stop> {
        if !self.follows_links {
            return Err(Stop::NotFollowed);
        }
        self.links = self.links.checked_sub(1).ok_or(Errno::LOOP)?;
        if text.is_empty() {
            return Err(Errno::NOENT.into());
        }
        self.push(text, origin)?;
        if text.first() == Some(&b'/') {
            self.names.clear();
            self.at = None;
            self.outside = None;
            self.leave(CWD, "/").map_err(hidden)?;
        }
        Ok(())
    }

    /// Puts the components of `path` before those that are left.
    fn push(&mut self, path: &[u8], origin: Origin) -> Result<(), Stop> {
        // What ends with a slash is a directory.
        let end = path.ends_with(b"/").then_some(&b"."[..]);
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).chain(end);
        let before = self.left.len();
        self.left.extend(names.map(|name| Part { name: name.to_vec(), origin }));
        if let Some(new) = self.left.get_mut(before..) {
            new.reverse();
        }
        if self.left.len().saturating_add(self.names.len()) > MAX_PARTS { Err(Errno::LOOP.into()) } else { Ok(()) }
    }
}

/// What is at `name` in the directory `at`, nothing followed; of what is no link, where `directory`, only a directory.
fn enter(at: &OwnedFd, name: &[u8], directory: bool) -> Result<Entered, Stop> {
    if directory {
        // Mounts what is mounted when it is asked for.
        match openat(at, name, PATH | OFlags::DIRECTORY, Mode::empty()) {
            Ok(entered) => return Ok(Entered::Other(entered)),
            // No directory, or a link.
            Err(Errno::NOTDIR | Errno::LOOP) => {}
            Err(other) => return Err(other.into()),
        }
    }
    let entered = openat(at, name, PATH, Mode::empty())?;
    let kind = FileType::from_raw_mode(fstat(&entered)?.st_mode);
    if kind.is_symlink() {
        Ok(Entered::Link(readlinkat(&entered, "", Vec::new())?.into_bytes()))
    } else if directory && !kind.is_dir() {
        Err(Errno::NOTDIR.into())
    } else {
        Ok(Entered::Other(entered))
    }
}

/// What is said of something outside the root: nothing but that the process is short of something.
fn hidden(stop: Stop) -> Stop {
    match stop {
        Stop::Errno(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR) => stop,
        Stop::Errno(_) | Stop::NotFollowed => Stop::NotFollowed,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;

    /// As without /proc, where a name opens a file.
    #[test]
    fn only_a_file_is_opened_for_reading() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("a")).unwrap();
        #[expect(clippy::disallowed_methods, reason = "a test needs a file")]
        std::fs::write(directory.path().join("a/0"), "inside").unwrap();
        std::os::unix::fs::symlink("a/0", directory.path().join("link")).unwrap();
        let fifo = directory.path().join("a/fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let root = openat(CWD, directory.path(), PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let open = |key: &str| walk(&root, &Key::parse(key).unwrap(), true, OFlags::RDONLY | OFlags::NONBLOCK);
        for key in ["a/0", "link"] {
            let mut text = String::new();
            File::from(open(key).unwrap()).read_to_string(&mut text).unwrap();
            assert_eq!(text, "inside");
        }
        for key in ["a/fifo", "a"] {
            let named = File::from(open(key).unwrap());
            assert_eq!(Errno::from_io_error(&(&named).read(&mut [0]).unwrap_err()), Some(Errno::BADF), "{key}");
        }
        assert_eq!(open("a/1").unwrap_err(), Stop::Errno(Errno::NOENT));
        assert_eq!(open("a/0/1").unwrap_err(), Stop::Errno(Errno::NOTDIR));
    }
}
