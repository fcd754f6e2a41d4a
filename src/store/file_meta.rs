//! Metadata of a file, and the facts that tell its versions apart.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use rustix::fs::{Statx, makedev};
use xxhash_rust::xxh3::xxh3_64;

use super::object::{ObjectMeta, RawObjectMeta};
pub use crate::config::EntityTagSource;

/// Age up to which a file may be written again within the same tick of the file system's clock. Until then, its time
/// and length do not tell its versions apart.
pub(super) const CLOCK_TICK: Duration = Duration::from_millis(20);

/// Returns the metadata that a store reports for a file.
pub(super) fn meta_of(metadata: &std::fs::Metadata, tag: EntityTagSource) -> ObjectMeta {
    version_of_metadata(metadata).raw_meta(tag).into()
}

/// Returns true if an open file still has the content that it had with the metadata `before`. It may have been unlinked
/// since.
pub(super) fn has_same_content(now: &std::fs::Metadata, before: &std::fs::Metadata) -> bool {
    let content = |metadata: &std::fs::Metadata| (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
    content(now) == content(before)
}

/// Returns true if the last write to a file is long enough ago that another write would change the result of
/// [`meta_of`].
pub(super) fn is_settled(metadata: &std::fs::Metadata) -> bool {
    racy_nonce(nanoseconds(metadata.mtime(), metadata.mtime_nsec())) == 0
}

/// Returns the facts of a file from the result of `statx`.
pub(super) fn raw_meta_of(file: &Statx, tag: EntityTagSource) -> RawObjectMeta {
    version_of_statx(file).raw_meta(tag)
}

/// Returns true if the file still has this version, and its times told its versions apart when the version was
/// assigned.
pub(super) fn has_version(file: &Statx, version: u64) -> bool {
    version_of_statx(file).hash() == version
}

fn version_of_metadata(metadata: &std::fs::Metadata) -> FileVersion {
    FileVersion {
        len: metadata.len(),
        modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
        changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        file: (metadata.dev(), metadata.ino()),
    }
}

fn version_of_statx(file: &Statx) -> FileVersion {
    FileVersion {
        len: file.stx_size,
        modified: nanoseconds(file.stx_mtime.tv_sec, i64::from(file.stx_mtime.tv_nsec)),
        changed: nanoseconds(file.stx_ctime.tv_sec, i64::from(file.stx_ctime.tv_nsec)),
        file: (makedev(file.stx_dev_major, file.stx_dev_minor), file.stx_ino),
    }
}

/// Facts that tell versions of a file apart. Times are in nanoseconds since 1970.
struct FileVersion {
    len: u64,
    modified: i128,
    changed: i128,
    /// Device and inode.
    file: (u64, u64),
}

impl FileVersion {
    fn hash(&self) -> u64 {
        let (device, inode) = self.file;
        let values = [i128::from(self.len), self.modified, i128::from(inode), i128::from(device), self.changed];
        let mut bytes = [0u8; 80];
        for (slot, value) in bytes.chunks_exact_mut(16).zip(values) {
            slot.copy_from_slice(&value.to_le_bytes());
        }
        xxh3_64(&bytes)
    }

    fn raw_meta(&self, tag: EntityTagSource) -> RawObjectMeta {
        let Self { len, modified, changed, file: (_, inode) } = *self;
        let changed = (tag == EntityTagSource::Inode).then_some((changed, inode));
        RawObjectMeta { len, modified, changed, version: self.hash() ^ racy_nonce(modified) }
    }
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

fn nanoseconds(seconds: i64, nanos: i64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(nanos)
}

fn system_time(nanoseconds: i128) -> Option<SystemTime> {
    let (seconds, nanos) = (nanoseconds.div_euclid(1_000_000_000), nanoseconds.rem_euclid(1_000_000_000));
    let subsecond = Duration::from_nanos(u64::try_from(nanos).ok()?);
    let whole_seconds = Duration::from_secs(u64::try_from(seconds.unsigned_abs()).ok()?);
    let epoch = SystemTime::UNIX_EPOCH;
    let base = if seconds < 0 { epoch.checked_sub(whole_seconds) } else { epoch.checked_add(whole_seconds) };
    base?.checked_add(subsecond)
}

/// Returns a different, non-zero number at every call while a file is too recent for its times to tell its versions
/// apart, and 0 after that.
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
