//! Local files as far as the kernel holds them in memory. Never waits for a disk.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat2, statfs, statx};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::page_cache_reader::{PageCacheReader, is_certainly_missing};
use super::tree::{LocalTree, SymlinkPolicy};
use crate::store::disk_pool::DiskPool;
use crate::store::file_meta::{has_version, raw_meta_of};
use crate::store::key::Key;
use crate::store::page_cache::{CachedStat, NonblockingReader, PageCache};
use crate::store::sendfile::SendfileSource;

/// Length up to which a path is built without an allocation.
const PATH_BYTES: usize = 256;

/// `statfs` magic numbers of file systems without a server behind them: cached metadata is never older than the disk's.
const LOCAL_FILESYSTEM_MAGICS: &[u64] = &[
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
    0xf2f5_2010, // f2fs
    0x2fc1_2fc1, // zfs
    0x794c_7630, // overlayfs
];

/// The files below a root, as far as the kernel has them in memory.
#[derive(Debug, Clone)]
pub(super) struct LocalPageCache {
    tree: LocalTree,
    /// Device of the root.
    device: (u32, u32),
    /// Reads what the page cache has lost when it is sent.
    disk_pool: DiskPool,
}

impl LocalPageCache {
    /// Returns the page cache of `tree`. Returns `None` without `openat2`, or if the root is not on a local file
    /// system: on others, opening a file may involve a server, and the kernel's copy may be older than the file.
    pub(super) fn new(tree: &LocalTree, disk_pool: &DiskPool) -> Option<Self> {
        let root = tree.root.path();
        let kind = u64::try_from(statfs(root).ok()?.f_type).ok()?;
        let stat = statx(CWD, root, AtFlags::empty(), StatxFlags::BASIC_STATS).ok()?;
        let cache = Self { tree: tree.clone(), device: device_of(&stat), disk_pool: disk_pool.clone() };
        (tree.has_openat2 && LOCAL_FILESYSTEM_MAGICS.contains(&kind)).then_some(cache)
    }

    /// Returns the page cache of the same files with other settings.
    pub(super) fn with_tree(&self, tree: &LocalTree, disk_pool: &DiskPool) -> Self {
        Self { tree: tree.clone(), device: self.device, disk_pool: disk_pool.clone() }
    }
}

impl PageCache for LocalPageCache {
    /// A key that leads through a symbolic link is unknown, unless all links are followed.
    ///
    /// Costs one path lookup in the kernel's cache (`RESOLVE_CACHED`, Linux 5.12) and one `statx`: 0.8 us,
    /// compared with 10 to 90 us for a switch to a thread that may block. A missing file costs another `statx`, of the
    /// root.
    fn stat(&self, key: &Key) -> CachedStat {
        let path = path_below(self.tree.root.path(), key);
        let follows_links = self.tree.symlinks == SymlinkPolicy::Follow;
        let links = if follows_links { ResolveFlags::empty() } else { ResolveFlags::NO_SYMLINKS };
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = match openat2(CWD, path.as_slice(), flags, Mode::empty(), ResolveFlags::CACHED | links) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR)
                if (!follows_links || is_certainly_missing(CWD, path.as_slice())) && self.tree.root.is_present() =>
            {
                return CachedStat::Missing;
            }
            Err(_would_wait_or_unusual) => return CachedStat::Unknown,
        };
        match statx(&file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS) {
            // Another file system may be mounted below the root.
            Ok(stat) if device_of(&stat) != self.device => CachedStat::Unknown,
            Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.stx_mode.into()).is_file() => {
                CachedStat::Object(raw_meta_of(&stat, self.tree.tag))
            }
            Ok(_) => CachedStat::NotAnObject,
            Err(_) => CachedStat::Unknown,
        }
    }

    /// A bare `statx` takes 0.35 us, less than half the time of [`Self::stat`]. It follows links and could block. But
    /// the kernel still has in memory what it looked up a moment ago. A version includes device and inode, so no other
    /// file can pass for the one that was allowed then.
    fn is_unchanged(&self, key: &Key, version: u64) -> bool {
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        statx(CWD, path_below(self.tree.root.path(), key).as_slice(), flags, StatxFlags::BASIC_STATS)
            .is_ok_and(|stat| device_of(&stat) == self.device && has_version(&stat, version))
    }

    fn reader(&self) -> Option<Box<dyn NonblockingReader>> {
        Some(Box::new(PageCacheReader::new(&self.tree)?))
    }

    fn open_for_sendfile(&self, key: &Key, max_bytes: u64) -> Option<SendfileSource> {
        let (file, metadata) = PageCacheReader::new(&self.tree)?.open(key).ok()?;
        SendfileSource::new(file, metadata, self.tree.tag, max_bytes, &self.disk_pool)
    }
}

/// Returns the path of `key` for a system call.
fn path_below(root: &Path, key: &Key) -> SmallVec<[u8; PATH_BYTES]> {
    let mut path = SmallVec::from_slice(root.as_os_str().as_encoded_bytes());
    path.push(b'/');
    path.extend_from_slice(key.as_str().as_bytes());
    path
}

fn device_of(stat: &Statx) -> (u32, u32) {
    (stat.stx_dev_major, stat.stx_dev_minor)
}
