//! Opens files by key or by descriptor where one call of the kernel does not suffice.
//!
//! [`resolve_path`] resolves a key component by component, for systems that refuse `openat2` and for links that
//! `openat2` does not resolve.
//!
//! Every component is opened relative to its parent's descriptor, without following links. Replacing a directory by a
//! link therefore cannot lead out of the root. Links are read and resolved here. `..` is resolved with the names on the
//! path so far, never by the file system. A link may leave the root and come back, as an absolute link does. Outside
//! the root, only directories are opened, and only as paths. Every path that fails or ends outside the root is refused
//! in the same way, so no response reveals what exists there.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, fstat, fstatfs, openat, readlinkat};
use rustix::io::Errno;
use rustix::path::DecInt;

use crate::store::error::LocalError;
use crate::store::key::Key;

/// Maximum number of links that one key may lead through, as in the kernel.
const MAX_LINKS: usize = 40;

/// Maximum number of components that are opened for one key. The text of a single link may have two thousand
/// components.
const MAX_STEPS: usize = 4096;

/// Maximum number of components in memory at any time.
const MAX_COMPONENTS: usize = 1024;

/// Flags for opening the components of a path. Links are not followed, and the descriptor only names a file
/// or directory (`O_PATH`): nothing can be read through it.
const PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens the file or directory at `key` below `root`. Returns an `O_PATH` descriptor if the target is a
/// directory or `flags` contains `O_PATH`; otherwise, opens the file for reading. With `O_DIRECTORY`, only a directory
/// is opened.
///
/// # Errors
/// Returns [`LocalError::LinkNotFollowed`], and system errors.
pub(super) fn resolve_path(
    root: &OwnedFd,
    key: &Key,
    follows_links: bool,
    flags: OFlags,
) -> Result<OwnedFd, LocalError> {
    let mut walk = PathResolver {
        root,
        key,
        remaining: Vec::new(),
        names: Vec::new(),
        current: None,
        outside: None,
        links_left: if follows_links { MAX_LINKS } else { 0 },
        follows_links,
        steps_left: MAX_STEPS,
        must_be_directory: flags.contains(OFlags::DIRECTORY),
        file_flags: (!flags.contains(OFlags::PATH)).then_some(flags | OFlags::NOFOLLOW | OFlags::CLOEXEC),
    };
    walk.push_components(key.as_str().as_bytes(), false)?;
    walk.run()
}

/// A component that is still to be opened.
struct PathComponent {
    name: Vec<u8>,
    /// True if the component comes from the text of a link outside the root; false if it comes from the key or from a
    /// link below the root.
    is_from_outside: bool,
}

/// A directory outside the root.
struct OutsideDirectory {
    directory: OwnedFd,
    /// True if the path entered the directory by its name; false if it entered by `..` or the directory is `/`.
    was_entered: bool,
}

struct PathResolver<'a> {
    root: &'a OwnedFd,
    key: &'a Key,
    /// Components that are still to be opened, in reverse order.
    remaining: Vec<PathComponent>,
    /// Names from the root to `current`. None of them is a link.
    names: Vec<Vec<u8>>,
    /// Descriptor of the directory to which `names` lead. `None` if that is the root, or after `..`, when the directory
    /// must be opened again.
    current: Option<OwnedFd>,
    outside: Option<OutsideDirectory>,
    follows_links: bool,
    /// Number of links that may still be followed.
    links_left: usize,
    steps_left: usize,
    must_be_directory: bool,
    /// Flags for opening a file at the end of the path for reading, if it is opened at all.
    file_flags: Option<OFlags>,
}

impl PathResolver<'_> {
    fn run(mut self) -> Result<OwnedFd, LocalError> {
        loop {
            let Some(component) = self.remaining.pop() else {
                if self.outside.is_some() {
                    return Err(self.not_followed());
                }
                match self.current.take() {
                    Some(directory) => return Ok(directory),
                    None if self.names.is_empty() => {
                        return Ok(openat(self.root, ".", PATH_FLAGS | OFlags::DIRECTORY, Mode::empty())?);
                    }
                    // The path ended with `..`.
                    None => {
                        self.must_be_directory = true;
                        self.reopen_from_root();
                        continue;
                    }
                }
            };
            self.steps_left = self.steps_left.checked_sub(1).ok_or(Errno::LOOP)?;
            match (component.name.as_slice(), self.outside.take()) {
                (b".", outside) => self.outside = outside,
                (b"..", None) => self.ascend()?,
                (_, None) => self.descend(component)?,
                (_, Some(outside)) => {
                    self.step_outside(outside, &component).map_err(|error| self.conceal_error(error))?;
                }
            }
        }
    }

    fn not_followed(&self) -> LocalError {
        LocalError::LinkNotFollowed(self.key.clone())
    }

    /// Replaces an error outside the root by [`LocalError::LinkNotFollowed`], so that it reveals nothing. Errors
    /// because the process lacks a resource or was interrupted stay as they are.
    fn conceal_error(&self, error: LocalError) -> LocalError {
        match error.errno() {
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR) => error,
            Some(_) | None => self.not_followed(),
        }
    }

    /// Puts the names on the path so far before the remaining components, so that they are opened again from the root.
    fn reopen_from_root(&mut self) {
        let names = self.names.drain(..).rev();
        self.remaining.extend(names.map(|name| PathComponent { name, is_from_outside: false }));
    }

    fn ascend(&mut self) -> Result<(), LocalError> {
        self.current = None;
        if self.names.pop().is_some() {
            Ok(())
        } else {
            self.leave_root(self.root, "..").map_err(|error| self.conceal_error(error))
        }
    }

    fn descend(&mut self, component: PathComponent) -> Result<(), LocalError> {
        if self.current.is_none() && !self.names.is_empty() {
            self.remaining.push(component);
            self.reopen_from_root();
            return Ok(());
        }
        let parent = self.current.as_ref().unwrap_or(self.root);
        let must_be_directory = self.must_be_directory || !self.remaining.is_empty();
        let (mut entered, link) = open_component(parent, &component.name, must_be_directory)?;
        if let Some(text) = link {
            return self.follow_link(&text, false);
        }
        if let Some(file_flags) = self.file_flags.filter(|_| self.remaining.is_empty())
            && FileType::from_raw_mode(fstat(&entered)?.st_mode).is_file()
        {
            entered = openat(parent, component.name.as_slice(), file_flags, Mode::empty())?;
        }
        self.names.push(component.name);
        self.current = Some(entered);
        Ok(())
    }

    /// Continues outside the root, at `path`.
    fn leave_root(&mut self, base: impl AsFd, path: &str) -> Result<(), LocalError> {
        let directory = openat(base, path, PATH_FLAGS | OFlags::DIRECTORY, Mode::empty())?;
        self.enter_outside(OutsideDirectory { directory, was_entered: false })
    }

    /// Resolves one component outside the root.
    fn step_outside(&mut self, outside: OutsideDirectory, component: &PathComponent) -> Result<(), LocalError> {
        if component.name == b".." {
            // Entering a name and leaving it again would reveal whether it exists.
            if outside.was_entered && !component.is_from_outside {
                return Err(self.not_followed());
            }
            let directory = openat(&outside.directory, "..", PATH_FLAGS | OFlags::DIRECTORY, Mode::empty())?;
            return self.enter_outside(OutsideDirectory { directory, ..outside });
        }
        let (directory, link) = open_component(&outside.directory, &component.name, true)?;
        if let Some(text) = link {
            self.outside = Some(outside);
            return self.follow_link(&text, true);
        }
        self.enter_outside(OutsideDirectory { directory, was_entered: true })
    }

    /// Continues in the directory `outside`. If it is the root, the path is inside again.
    fn enter_outside(&mut self, outside: OutsideDirectory) -> Result<(), LocalError> {
        let stat = fstat(&outside.directory)?;
        let root_stat = fstat(self.root)?;
        let is_root = (stat.st_dev, stat.st_ino) == (root_stat.st_dev, root_stat.st_ino);
        // Links in procfs would reveal which processes exist.
        if !is_root && is_procfs(&outside.directory) {
            return Err(self.not_followed());
        }
        self.outside = (!is_root).then_some(outside);
        Ok(())
    }

    fn follow_link(&mut self, text: &[u8], is_from_outside: bool) -> Result<(), LocalError> {
        if !self.follows_links {
            return Err(self.not_followed());
        }
        self.links_left = self.links_left.checked_sub(1).ok_or(Errno::LOOP)?;
        if text.is_empty() {
            return Err(Errno::NOENT.into());
        }
        self.push_components(text, is_from_outside)?;
        if text.first() == Some(&b'/') {
            self.names.clear();
            self.current = None;
            self.outside = None;
            self.leave_root(CWD, "/").map_err(|error| self.conceal_error(error))?;
        }
        Ok(())
    }

    /// Puts the components of `path` before the remaining ones.
    fn push_components(&mut self, path: &[u8], is_from_outside: bool) -> Result<(), LocalError> {
        // A path that ends with a slash names a directory.
        let end = path.ends_with(b"/").then_some(&b"."[..]);
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).chain(end);
        let start = self.remaining.len();
        self.remaining.extend(names.map(|name| PathComponent { name: name.to_vec(), is_from_outside }));
        if let Some(added) = self.remaining.get_mut(start..) {
            added.reverse();
        }
        if self.remaining.len().saturating_add(self.names.len()) > MAX_COMPONENTS {
            Err(Errno::LOOP.into())
        } else {
            Ok(())
        }
    }
}

/// Opens `name` in the directory `parent` with [`PATH_FLAGS`]. If `name` is a link, also returns the text of the link.
/// With `must_be_directory`, returns an error if `name` is neither a directory nor a link.
fn open_component(parent: &OwnedFd, name: &[u8], must_be_directory: bool) -> Result<(OwnedFd, Option<Vec<u8>>), Errno> {
    if must_be_directory {
        // Triggers an automount.
        match openat(parent, name, PATH_FLAGS | OFlags::DIRECTORY, Mode::empty()) {
            Ok(entered) => return Ok((entered, None)),
            // Not a directory, or a link.
            Err(Errno::NOTDIR | Errno::LOOP) => {}
            Err(other) => return Err(other),
        }
    }
    let entered = openat(parent, name, PATH_FLAGS, Mode::empty())?;
    let kind = FileType::from_raw_mode(fstat(&entered)?.st_mode);
    if kind.is_symlink() {
        let text = readlinkat(&entered, "", Vec::new())?.into_bytes();
        Ok((entered, Some(text)))
    } else if must_be_directory && !kind.is_dir() {
        Err(Errno::NOTDIR)
    } else {
        Ok((entered, None))
    }
}

/// Opens a regular file for reading through a descriptor that names it (`O_PATH`). The caller has checked the type of
/// the file through this descriptor, since opening a FIFO or a device has side effects. The name itself could lead to
/// another file by now. Returns `None` if `/proc` is missing; the file can then only be opened by name.
pub(super) fn reopen(path_fd: impl AsFd) -> Option<Result<OwnedFd, Errno>> {
    let descriptors = proc_self_fd()?;
    // With `NONBLOCK`, the call fails instead of waiting if another process has a lease on the file.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Some(openat(descriptors, DecInt::from_fd(path_fd), flags, Mode::empty()).map_err(|errno| match errno {
        // The file existed, so none of these errors means that it is missing.
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Errno::AGAIN,
        other => other,
    }))
}

/// Opens the directory that [`reopen`] needs, so that it is available even when descriptors run out.
pub(super) fn open_proc_in_advance() {
    proc_self_fd();
}

/// Returns `/proc/self/fd`, which is opened once.
fn proc_self_fd() -> Option<&'static OwnedFd> {
    static DESCRIPTORS: OnceLock<Option<OwnedFd>> = OnceLock::new();
    DESCRIPTORS
        .get_or_init(|| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let opened = openat(CWD, "/proc/self/fd", flags, Mode::empty()).ok()?;
            is_procfs(&opened).then_some(opened)
        })
        .as_ref()
}

/// Returns true if the descriptor refers to a file on procfs.
pub(super) fn is_procfs(opened: impl AsFd) -> bool {
    fstatfs(opened).is_ok_and(|stats| stats.f_type == PROC_SUPER_MAGIC)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;

    /// Opens files by name, as on a system without /proc.
    #[test]
    fn only_a_file_is_opened_for_reading() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("a")).unwrap();
        #[expect(clippy::disallowed_methods, reason = "a test needs a file")]
        std::fs::write(directory.path().join("a/0"), "inside").unwrap();
        std::os::unix::fs::symlink("a/0", directory.path().join("link")).unwrap();
        let fifo = directory.path().join("a/fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let root = openat(CWD, directory.path(), PATH_FLAGS | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let open = |key: &str| resolve_path(&root, &Key::parse(key).unwrap(), true, OFlags::RDONLY | OFlags::NONBLOCK);
        for key in ["a/0", "link"] {
            let mut text = String::new();
            File::from(open(key).unwrap()).read_to_string(&mut text).unwrap();
            assert_eq!(text, "inside");
        }
        for key in ["a/fifo", "a"] {
            let file = File::from(open(key).unwrap());
            assert_eq!(Errno::from_io_error(&(&file).read(&mut [0]).unwrap_err()), Some(Errno::BADF), "{key}");
        }
        assert_eq!(open("a/1").unwrap_err().errno(), Some(Errno::NOENT));
        assert_eq!(open("a/0/1").unwrap_err().errno(), Some(Errno::NOTDIR));
    }
}
