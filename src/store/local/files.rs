//! Reads files and their metadata. Blocks on the disk.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags, openat};
use xxhash_rust::xxh3::xxh3_64;

use super::errors::{ConcurrentWrite, LinkError};
use super::open_file::read_whole;
use super::tree::LocalTree;
use crate::store::file_meta::{CLOCK_TICK, has_same_content, is_settled, meta_of};
use crate::store::key::Key;
use crate::store::object::{InlineLimit, ObjectMeta};

/// Maximum number of attempts to read a file that is written meanwhile.
const MAX_READ_ATTEMPTS: usize = 4;

/// Metadata of a file, and either its bytes or the open file.
type FileContent = (ObjectMeta, Result<Bytes, (File, Metadata)>);

impl LocalTree {
    pub(super) fn head_many(&self, keys: &[Key]) -> io::Result<Vec<Option<ObjectMeta>>> {
        let root = self.root.open()?;
        keys.iter().map(|key| self.head_below(&root, key)).collect()
    }

    pub(super) fn probe(&self) -> io::Result<()> {
        // Opened for reading: with `O_PATH`, a file system such as FUSE is not asked, and autofs mounts nothing. Other
        // file systems may still answer from memory, so calls that hang are observed too.
        openat(&self.root.open()?, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        self.root.none_if_present::<()>().map(drop)
    }

    pub(super) fn head_below(&self, root: &OwnedFd, key: &Key) -> io::Result<Option<ObjectMeta>> {
        match self.open_path(root, key, OFlags::empty()) {
            Ok(file) => {
                let metadata = file.metadata()?;
                Ok(metadata.is_file().then(|| meta_of(&metadata, self.tag)))
            }
            Err(error) => self.none_if_missing(root, error, key),
        }
    }

    pub(super) fn get(
        &self,
        key: &Key,
        inline: &InlineLimit,
        is_wanted: impl Fn() -> bool,
    ) -> io::Result<Option<FileContent>> {
        let root = self.root.open()?;
        // A file that is being written is read again a clock tick later, when its times tell its versions apart.
        for _ in 0..MAX_READ_ATTEMPTS {
            let (mut file, metadata) = match self.open_file(&root, key) {
                Ok(Some(opened)) => opened,
                Ok(None) => return Ok(None),
                Err(error) => return self.none_if_missing(&root, error, key),
            };
            let meta = meta_of(&metadata, self.tag);
            // The caller may release the memory meanwhile.
            let may_read = || meta.len <= inline.bytes() && is_wanted();
            if let Some(bytes) = read_whole(&mut file, meta.len, may_read)? {
                let after = file.metadata()?;
                if bytes.len() as u64 == meta.len && has_same_content(&after, &metadata) && is_settled(&after) {
                    return Ok(Some((meta, Ok(bytes.into()))));
                }
            } else if is_settled(&metadata) {
                // Parts of a file that is not settled could not be told from parts of its next version.
                return Ok(Some((meta, Err((file, metadata)))));
            }
            std::thread::sleep(CLOCK_TICK);
        }
        Err(io::Error::other(ConcurrentWrite))
    }

    pub(super) fn metadata(&self, key: &Key) -> io::Result<Option<Metadata>> {
        let root = self.root.open()?;
        match self.open_path(&root, key, OFlags::empty()) {
            Ok(file) => Ok(Some(file.metadata()?)),
            Err(error) => self.none_if_missing(&root, error, key),
        }
    }

    pub(super) fn open_for_reading(&self, key: &Key) -> io::Result<Option<File>> {
        let root = self.root.open()?;
        match self.open_file(&root, key) {
            Ok(opened) => Ok(opened.map(|(file, _)| file)),
            Err(error) => self.none_if_missing(&root, error, key),
        }
    }

    /// Returns true if the object exists. Returns false if it is unreadable or behind a link that hides it, so that one
    /// such directory does not hide all others.
    pub(super) fn has_object(&self, root: &OwnedFd, object: &Key) -> io::Result<bool> {
        match self.head_below(root, object) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied || LinkError::from_io_error(&error).is_some() => {
                Ok(false)
            }
            result => Ok(result?.is_some()),
        }
    }

    pub(super) fn identity(&self, key: &Key) -> io::Result<Option<u64>> {
        let root = self.root.open()?;
        match self.open_path(&root, key, OFlags::DIRECTORY) {
            Ok(directory) => {
                let metadata = directory.metadata()?;
                Ok(Some(xxh3_64(&[metadata.dev().to_le_bytes(), metadata.ino().to_le_bytes()].concat())))
            }
            Err(error) => self.none_if_missing_or_unfollowed(&root, error, key),
        }
    }

    pub(super) fn is_directory(&self, key: &Key) -> io::Result<bool> {
        let root = self.root.open()?;
        match self.open_path(&root, key, OFlags::empty()) {
            Ok(file) => Ok(file.metadata()?.is_dir()),
            Err(error) => {
                self.none_if_missing_or_unfollowed(&root, error, key).map(|present: Option<()>| present.is_some())
            }
        }
    }
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
        let tree = LocalTree::for_tests(root.path());
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
        assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
}
