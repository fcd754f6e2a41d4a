//! Metadata of files, and the hashes that serve as their versions.

use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, StatxTimestamp, makedev, statx};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::object::{ObjectMeta, RawObjectMeta};
pub use crate::config::EntityTagSource;

/// Maximum duration of a tick of a file system's clock. A file that was written more recently may be written again
/// within the same tick. Its two versions could then have the same times and length.
pub(super) const CLOCK_TICK: Duration = Duration::from_millis(20);

/// Returns the system's metadata of an open file.
pub(super) fn stat_file(file: impl AsFd) -> Result<Statx, Errno> {
    statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

pub(super) fn file_type(stat: &Statx) -> FileType {
    FileType::from_raw_mode(stat.stx_mode.into())
}

/// Returns the metadata of a file, from which a store makes an [`ObjectMeta`].
pub(super) fn raw_meta_of(stat: &Statx, tag: EntityTagSource) -> RawObjectMeta {
    let modified = nanoseconds(stat.stx_mtime);
    let changed = (tag == EntityTagSource::Inode).then(|| (nanoseconds(stat.stx_ctime), stat.stx_ino));
    RawObjectMeta { len: stat.stx_size, modified, changed, version: version_hash(stat) ^ racy_nonce(modified) }
}

/// Returns true if a file still has the content that it had when it was opened. It may have been unlinked since.
pub(super) fn has_same_content(now: &Statx, at_open: &RawObjectMeta) -> bool {
    (now.stx_size, nanoseconds(now.stx_mtime)) == (at_open.len, at_open.modified)
}

/// Returns true if the last write to a file is so long ago that another write will change the file's times, and thereby
/// the result of [`raw_meta_of`].
pub(super) fn is_settled(meta: &RawObjectMeta) -> bool {
    racy_nonce(meta.modified) == 0
}

/// Returns true if the file still has this version. Returns false for every version that was assigned within a
/// [`CLOCK_TICK`] after a write.
pub(super) fn has_version(stat: &Statx, version: u64) -> bool {
    version_hash(stat) == version
}

/// Returns a hash of the metadata that distinguish the versions of a file.
fn version_hash(stat: &Statx) -> u64 {
    let modified = nanoseconds(stat.stx_mtime);
    let changed = nanoseconds(stat.stx_ctime);
    let device = makedev(stat.stx_dev_major, stat.stx_dev_minor);
    let values = [stat.stx_size.into(), modified, stat.stx_ino.into(), device.into(), changed];
    let mut bytes = [0u8; 80];
    for (slot, value) in bytes.chunks_exact_mut(16).zip(values) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
    xxh3_64(&bytes)
}

impl From<RawObjectMeta> for ObjectMeta {
    fn from(raw_meta: RawObjectMeta) -> Self {
        let RawObjectMeta { len, modified, changed, version } = raw_meta;
        let (etag, modified) = match changed {
            None => (format!("\"{len:x}-{modified:x}\""), modified),
            Some((changed, inode)) => (format!("\"{len:x}-{modified:x}-{changed:x}-{inode:x}\""), changed),
        };
        Self { len, modified: system_time(modified), etag: etag.into(), version }
    }
}

/// Returns a time in nanoseconds since the Unix epoch.
fn nanoseconds(time: StatxTimestamp) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

fn system_time(nanoseconds: i128) -> Option<SystemTime> {
    let seconds = nanoseconds.div_euclid(1_000_000_000);
    let nanos = nanoseconds.rem_euclid(1_000_000_000);
    let subsecond = Duration::from_nanos(u64::try_from(nanos).ok()?);
    let whole_seconds = Duration::from_secs(u64::try_from(seconds.unsigned_abs()).ok()?);
    let epoch = SystemTime::UNIX_EPOCH;
    let base = if seconds < 0 { epoch.checked_sub(whole_seconds) } else { epoch.checked_add(whole_seconds) };
    base?.checked_add(subsecond)
}

/// Returns 0, or a non-zero number that differs from call to call if the file was written within the last
/// [`CLOCK_TICK`]. Combined with it, the versions of such a file are never equal.
fn racy_nonce(modified: i128) -> u64 {
    #[expect(clippy::disallowed_methods, reason = "compared with the file system's own clock")]
    let now = SystemTime::now();
    let age = system_time(modified).and_then(|modified| now.duration_since(modified).ok());
    let nanoseconds = now.duration_since(SystemTime::UNIX_EPOCH).map_or(1, |now| now.as_nanos());
    match age {
        Some(age) if age < CLOCK_TICK => u64::try_from(nanoseconds).unwrap_or(1) | 1,
        _ => 0,
    }
}
