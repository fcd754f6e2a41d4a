//! The files below a root: looks up names within the bounds of the symlink policy. Blocks on the disk.
//!
//! While the root is missing, the objects below it are unreachable and must not be reported as missing. Nor must an
//! object that a symbolic link hides.

use std::fs::{File, Metadata};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags, openat, openat2, statx,
};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::open_file::read_whole;
use super::resolve::{reopen, resolve_path};
use crate::config::SymlinkPolicy;
use crate::store::error::LocalError;
use crate::store::file_meta::{
    CLOCK_TICK, EntityTagSource, file_type, has_same_content, is_settled, raw_meta_of, stat_file,
};
use crate::store::key::Key;
use crate::store::object::{InlineLimit, ObjectMeta, RawObjectMeta};
use crate::telemetry::log_throttle::LogThrottle;

/// Maximum number of attempts to read a file that is written during the read.
const MAX_READ_ATTEMPTS: usize = 4;

/// Flags to open the root as a path.
const ROOT_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The files below a root directory. Every call looks up the root again, so a remounted or replaced root is found.
#[derive(Debug, Clone)]
pub(super) struct LocalTree {
    /// Path of the root, without symbolic links in it.
    pub(super) root: Arc<Path>,
    /// True if the root was a mount point at startup. After an unmount, an empty directory remains, whose objects must
    /// not be reported as missing.
    pub(super) is_mount: bool,
    pub(super) symlinks: SymlinkPolicy,
    /// True if `openat2` is available. Otherwise [`resolve_path`] resolves names.
    pub(super) has_openat2: bool,
    pub(super) tag: EntityTagSource,
}

/// The root directory.
impl LocalTree {
    pub(super) fn new(root: &Path, symlinks: SymlinkPolicy) -> Self {
        let is_mount = statx_at(CWD, root, AtFlags::empty()).is_ok_and(|stat| is_mount_root(&stat));
        Self { root: root.into(), is_mount, symlinks, has_openat2: true, tag: EntityTagSource::default() }
    }

    /// Opens the root directory.
    ///
    /// # Errors
    /// Returns [`LocalError::RootMissing`], and any other error of the system.
    pub(super) fn open_root(&self) -> Result<OwnedFd, LocalError> {
        openat(CWD, &*self.root, ROOT_FLAGS, Mode::empty()).map_err(|errno| self.root_error(errno))
    }

    /// Like [`Self::open_root`], but fails with `EAGAIN` if the kernel would have to read a part of the path from disk.
    pub(super) fn open_root_nonblocking(&self) -> Result<OwnedFd, Errno> {
        openat2(CWD, &*self.root, ROOT_FLAGS, Mode::empty(), ResolveFlags::CACHED)
    }

    /// Returns the error of `openat2` if it fails although `openat` succeeds, as on an old kernel or in a sandbox.
    ///
    /// # Errors
    /// Returns [`LocalError::RootMissing`], and any other error of the system.
    pub(super) fn openat2_refusal(&self) -> Result<Option<Errno>, LocalError> {
        let root = self.open_root()?;
        let opened = openat2(&root, ".", ROOT_FLAGS, Mode::empty(), ResolveFlags::BENEATH);
        Ok(opened.err().filter(|_| openat(&root, ".", ROOT_FLAGS, Mode::empty()).is_ok()))
    }

    /// Returns true if a root opened by [`Self::open_root_nonblocking`] is still a mount point, or was none at startup.
    pub(super) fn is_still_mounted(&self, root: &OwnedFd) -> bool {
        !self.is_mount || statx_at(root, Path::new(""), AtFlags::NO_AUTOMOUNT).is_ok_and(|stat| is_mount_root(&stat))
    }

    /// Returns true if the root is present, as far as the kernel knows without reading a disk. Costs one system call.
    pub(super) fn is_root_present(&self) -> bool {
        statx_at(CWD, &self.root, AtFlags::NO_AUTOMOUNT).is_ok_and(|stat| self.is_served_root(&stat))
    }

    /// Checks that the root is present.
    ///
    /// # Errors
    /// Returns [`LocalError::RootMissing`], and any other error of the system.
    fn check_root(&self) -> Result<(), LocalError> {
        // Without `NO_AUTOMOUNT`, as this may trigger an automount.
        match statx_at(CWD, &self.root, AtFlags::empty()) {
            Ok(stat) if self.is_served_root(&stat) => Ok(()),
            Ok(_) => Err(self.root_missing("nothing is mounted there any more")),
            Err(errno) => Err(self.root_error(errno)),
        }
    }

    fn is_served_root(&self, stat: &Statx) -> bool {
        file_type(stat).is_dir() && (!self.is_mount || is_mount_root(stat))
    }

    fn root_error(&self, errno: Errno) -> LocalError {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP => self.root_missing(&std::io::Error::from(errno).to_string()),
            other => other.into(),
        }
    }

    fn root_missing(&self, reason: &str) -> LocalError {
        LocalError::RootMissing(format!("the container's directory is missing: {}: {reason}", self.root.display()))
    }
}

fn statx_at(directory: impl AsFd, path: &Path, extra_flags: AtFlags) -> Result<Statx, Errno> {
    let flags = if path.as_os_str().is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::empty() };
    statx(directory, path, flags | AtFlags::STATX_DONT_SYNC | extra_flags, StatxFlags::TYPE)
}

fn is_mount_root(stat: &Statx) -> bool {
    stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
}

/// Looking up names.
impl LocalTree {
    /// Opens the file or directory at `key` within the bounds of the symlink policy. The descriptor only names it
    /// (`O_PATH`): its metadata can be read, its content cannot.
    pub(super) fn open_path(&self, root: &OwnedFd, key: &Key, flags: OFlags) -> Result<File, LocalError> {
        self.open_with_flags(root, key, OFlags::PATH | flags).map(File::from)
    }

    fn open_with_flags(&self, root: &OwnedFd, key: &Key, flags: OFlags) -> Result<OwnedFd, LocalError> {
        let flags = flags | OFlags::CLOEXEC;
        let path = if key.is_root() { "." } else { key.as_str() };
        let resolve = match self.symlinks {
            SymlinkPolicy::Follow => return Ok(openat(root, path, flags, Mode::empty())?),
            SymlinkPolicy::Inside => ResolveFlags::BENEATH,
            SymlinkPolicy::Deny => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        };
        let opened =
            if self.has_openat2 { openat2(root, path, flags, Mode::empty(), resolve) } else { Err(Errno::NOSYS) };
        match opened {
            Ok(file) => Ok(file),
            Err(Errno::LOOP) if self.symlinks == SymlinkPolicy::Deny => Err(LocalError::LinkNotFollowed(key.clone())),
            // The kernel or a sandbox lacks openat2. Or BENEATH failed: it refuses all absolute links, even those that
            // lead back inside, and gives up on a race.
            Err(Errno::NOSYS | Errno::PERM | Errno::XDEV | Errno::AGAIN) => {
                resolve_path(root, key, self.symlinks == SymlinkPolicy::Inside, flags)
            }
            Err(other) => Err(other.into()),
        }
    }

    /// Opens the file at `key` for reading. Returns `None` if it is not a regular file, which is then not opened.
    fn open_file(&self, root: &OwnedFd, key: &Key) -> Result<Option<(File, RawObjectMeta)>, LocalError> {
        let path_file = self.open_path(root, key, OFlags::empty())?;
        let stat = stat_file(&path_file)?;
        if !file_type(&stat).is_file() {
            return Ok(None);
        }
        let meta = raw_meta_of(&stat, self.tag);
        if let Some(opened) = reopen(&path_file) {
            return Ok(Some((opened?.into(), meta)));
        }
        // The name may lead to another file by now.
        let opened = File::from(self.open_with_flags(root, key, OFlags::RDONLY | OFlags::NONBLOCK)?);
        let file_id = |stat: &Statx| (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
        if file_id(&stat_file(&opened)?) == file_id(&stat) { Ok(Some((opened, meta))) } else { Err(LocalError::Torn) }
    }

    /// Returns `None` if `error` proves that nothing exists at `key`: the root is present, and no link hides an object.
    /// Other errors, such as a missing permission, prove nothing and are returned.
    ///
    /// # Errors
    /// Returns all other errors, and [`LocalError::DanglingLink`] and [`LocalError::RootMissing`].
    fn none_if_missing<T>(&self, root: &OwnedFd, error: LocalError, key: &Key) -> Result<Option<T>, LocalError> {
        static NOT_FOLLOWED_LOG: LogThrottle = LogThrottle::new();
        let is_dangling = match error.errno() {
            Some(Errno::NOENT | Errno::NOTDIR) => self.is_behind_dangling_link(root, key)?,
            // A loop of links.
            Some(Errno::LOOP) => true,
            Some(
                Errno::ISDIR | Errno::NAMETOOLONG | Errno::INVAL
                // A socket, or a device without a driver.
                | Errno::NXIO | Errno::NODEV,
            ) => false,
            _ if matches!(error, LocalError::LinkNotFollowed(_)) => {
                if let Some(suppressed) = NOT_FOLLOWED_LOG.allow() {
                    tracing::warn!(%key, suppressed, "symbolic link not followed; the setting is `symlinks`");
                }
                self.check_root()?;
                return Err(error);
            }
            _ => return Err(error),
        };
        self.check_root()?;
        if is_dangling { Err(LocalError::DanglingLink(key.clone())) } else { Ok(None) }
    }

    /// Opens the file or directory at `key` as [`Self::open_path`] does, or returns `None` if it does not exist.
    fn find(&self, root: &OwnedFd, key: &Key, flags: OFlags) -> Result<Option<File>, LocalError> {
        self.open_path(root, key, flags).map(Some).or_else(|error| self.none_if_missing(root, error, key))
    }

    /// Like [`Self::find`], but also returns `None` behind a link that is not followed. Must not be used where a
    /// missing block is read as zeros.
    pub(super) fn find_visible(&self, root: &OwnedFd, key: &Key, flags: OFlags) -> Result<Option<File>, LocalError> {
        match self.find(root, key, flags) {
            Err(LocalError::LinkNotFollowed(_)) => Ok(None),
            found => found,
        }
    }

    /// Returns true if `key`, which was not found, is a dangling link or lies behind one. Costs one system call if
    /// there is no link on the path.
    fn is_behind_dangling_link(&self, root: &OwnedFd, key: &Key) -> Result<bool, LocalError> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let mut prefix = key.clone();
        while let (Some(parent), Some(name)) = (prefix.parent(), prefix.name()) {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let opened = if self.has_openat2 {
                openat2(root, prefix.as_str(), flags, Mode::empty(), resolve).map_err(LocalError::from)
            } else {
                resolve_path(root, &prefix, false, flags)
            };
            match opened {
                // The path contains a link.
                Err(LocalError::LinkNotFollowed(_)) => {}
                // The existing part of the path contains no link. Or the missing part has appeared by now.
                Ok(_) => return Ok(false),
                Err(error) => match error.errno() {
                    Some(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
                    // The path contains a link, or the kernel or a sandbox does not tell.
                    Some(Errno::LOOP | Errno::AGAIN | Errno::NOSYS | Errno::PERM) => {}
                    Some(_) | None => return Err(error),
                },
            }
            match self.open_path(root, &parent, OFlags::empty()) {
                Ok(parent) => {
                    return match openat(&parent, name, flags | OFlags::NOFOLLOW, Mode::empty()) {
                        Ok(entry) => Ok(File::from(entry).metadata()?.is_symlink()),
                        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
                        Err(other) => Err(other.into()),
                    };
                }
                Err(error) => match error.errno() {
                    Some(Errno::NOENT | Errno::NOTDIR) => {}
                    Some(Errno::LOOP) => return Ok(true),
                    Some(_) | None => return Err(error),
                },
            }
            prefix = parent;
        }
        Ok(false)
    }
}

/// Reading files and their metadata.
impl LocalTree {
    pub(super) fn head_many(&self, keys: &[Key]) -> Result<Vec<Option<ObjectMeta>>, LocalError> {
        let root = self.open_root()?;
        keys.iter().map(|key| self.head_below(&root, key)).collect()
    }

    pub(super) fn probe(&self) -> Result<(), LocalError> {
        // Opened for reading: with `O_PATH`, the kernel would not ask a file system such as FUSE, and autofs would
        // mount nothing. Some file systems still answer from memory, so the disk pool also watches for calls that hang.
        openat(&self.open_root()?, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        self.check_root()
    }

    pub(super) fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, LocalError> {
        self.head_below(&self.open_root()?, key)
    }

    fn head_below(&self, root: &OwnedFd, key: &Key) -> Result<Option<ObjectMeta>, LocalError> {
        let Some(file) = self.find(root, key, OFlags::empty())? else { return Ok(None) };
        let stat = stat_file(file)?;
        Ok(file_type(&stat).is_file().then(|| raw_meta_of(&stat, self.tag).into()))
    }

    /// Returns the metadata of the file at `key` with its bytes, or with the open file if the bytes exceed `inline`.
    #[expect(clippy::type_complexity, reason = "the only function with this result")]
    pub(super) fn get(
        &self,
        key: &Key,
        inline: &InlineLimit,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Option<(RawObjectMeta, Result<Bytes, File>)>, LocalError> {
        let root = self.open_root()?;
        // A file that is being written is read again a clock tick later, when its versions have different times.
        for _ in 0..MAX_READ_ATTEMPTS {
            let opened = self.open_file(&root, key).or_else(|error| self.none_if_missing(&root, error, key))?;
            let Some((mut file, meta)) = opened else { return Ok(None) };
            // The caller may revoke the limit or go away during the read.
            let may_read = || meta.len <= inline.bytes() && is_wanted();
            if let Some(bytes) = read_whole(&mut file, meta.len, may_read)? {
                let is_same = bytes.len() as u64 == meta.len && has_same_content(&stat_file(&file)?, &meta);
                if is_same && is_settled(&meta) {
                    return Ok(Some((meta, Ok(bytes.into()))));
                }
            } else if is_settled(&meta) {
                // Only for a settled file: otherwise the caller could not detect that the file is written again.
                return Ok(Some((meta, Err(file))));
            }
            std::thread::sleep(CLOCK_TICK);
        }
        Err(LocalError::Torn)
    }

    pub(super) fn metadata(&self, key: &Key) -> Result<Option<Metadata>, LocalError> {
        let file = self.find(&self.open_root()?, key, OFlags::empty())?;
        Ok(file.map(|file| file.metadata()).transpose()?)
    }

    pub(super) fn open_for_reading(&self, key: &Key) -> Result<Option<File>, LocalError> {
        let root = self.open_root()?;
        let opened = self.open_file(&root, key).or_else(|error| self.none_if_missing(&root, error, key))?;
        Ok(opened.map(|(file, _)| file))
    }

    /// Returns true if the object exists. Returns false if it cannot be read or a link hides it, because an error would
    /// fail the listing of all other directories.
    pub(super) fn has_object(&self, root: &OwnedFd, object: &Key) -> Result<bool, LocalError> {
        match self.head_below(root, object) {
            Err(error) if error.is_permission_denied() || error.is_hidden_by_link() => Ok(false),
            result => Ok(result?.is_some()),
        }
    }

    pub(super) fn identity(&self, key: &Key) -> Result<Option<u64>, LocalError> {
        let Some(directory) = self.find_visible(&self.open_root()?, key, OFlags::DIRECTORY)? else { return Ok(None) };
        Ok(Some(identity_of(&directory.metadata()?)))
    }

    pub(super) fn is_directory(&self, key: &Key) -> Result<bool, LocalError> {
        let Some(file) = self.find_visible(&self.open_root()?, key, OFlags::empty())? else { return Ok(false) };
        Ok(file.metadata()?.is_dir())
    }
}

/// Returns a number that identifies a file or directory, whatever path leads to it.
pub(super) fn identity_of(metadata: &Metadata) -> u64 {
    xxh3_64(&[metadata.dev().to_le_bytes(), metadata.ino().to_le_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    /// `O_PATH` needs permission to search a directory, but not to read it.
    #[test]
    fn a_probe_opens_the_root_for_reading() {
        let root = tempfile::tempdir().unwrap();
        let tree = LocalTree::new(root.path(), SymlinkPolicy::Inside);
        tree.probe().unwrap();
        let set_mode = |mode| {
            std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set_mode(0o111);
        let result = std::thread::scope(|scope| {
            // Root may read everything, but a thread can drop this capability for itself.
            let probe = || {
                let dropped = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
                let mut sets = capabilities(None).unwrap();
                sets.effective -= dropped;
                set_capabilities(None, sets).unwrap();
                tree.probe()
            };
            scope.spawn(probe).join().unwrap()
        });
        set_mode(0o755);
        assert!(result.unwrap_err().is_permission_denied());
    }
}
