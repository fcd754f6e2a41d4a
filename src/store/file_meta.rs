//! Facts about a file, and what tells its versions apart.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use rustix::fs::{Statx, makedev};
use xxhash_rust::xxh3::xxh3_64;

use super::{Facts, Meta};

/// A file written so recently may be written again within the same tick of the file system's clock,
/// so its time and length do not tell its versions apart yet.
pub(super) const CLOCK_TICK: Duration = Duration::from_millis(20);

/// What a file's entity tag is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EntityTag {
    /// Length and modification time: equal for equal copies on other machines, and for a file that was replaced by one
    /// that has both.
    #[default]
    Mtime,
    /// Change time and inode, too: another for every other file. The change time is told as that of the last modification.
    Inode,
}

/// What a store says of a file.
pub(super) fn meta_of(metadata: &std::fs::Metadata, tag: EntityTag) -> Meta {
    stamp_of_metadata(metadata).facts(tag).into()
}

/// Whether an open file still has the content that it had with the facts `before`: it may have lost its name since.
pub(super) fn has_content_of(now: &std::fs::Metadata, before: &std::fs::Metadata) -> bool {
    let content = |of: &std::fs::Metadata| (of.len(), of.mtime(), of.mtime_nsec());
    content(now) == content(before)
}

/// Whether a file was last written so long ago that it cannot be written again without a trace in what [`meta_of`] says.
pub(super) fn is_settled(metadata: &std::fs::Metadata) -> bool {
    unsettled(nanoseconds(metadata.mtime(), metadata.mtime_nsec())) == 0
}

/// The same of what `statx` says.
pub(super) fn facts_of(file: &Statx, tag: EntityTag) -> Facts {
    stamp_of(file).facts(tag)
}

/// Whether `version` was given to this file, as it is now, when its times already told its versions apart.
pub(super) fn is_version(file: &Statx, version: u64) -> bool {
    stamp_of(file).hash() == version
}

fn stamp_of_metadata(metadata: &std::fs::Metadata) -> Stamp {
    Stamp {
        len: metadata.len(),
        modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
        changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        file: (metadata.dev(), metadata.ino()),
    }
}

fn stamp_of(file: &Statx) -> Stamp {
    Stamp {
        len: file.stx_size,
        modified: nanoseconds(file.stx_mtime.tv_sec, i64::from(file.stx_mtime.tv_nsec)),
        changed: nanoseconds(file.stx_ctime.tv_sec, i64::from(file.stx_ctime.tv_nsec)),
        file: (makedev(file.stx_dev_major, file.stx_dev_minor), file.stx_ino),
    }
}

/// What tells versions of a file apart; times in nanoseconds since 1970.
struct Stamp {
    len: u64,
    modified: i128,
    changed: i128,
    /// Device and inode.
    file: (u64, u64),
}

impl Stamp {
    fn hash(&self) -> u64 {
        let (device, inode) = self.file;
        let facts = [i128::from(self.len), self.modified, i128::from(inode), i128::from(device), self.changed];
        let mut bytes = [0u8; 80];
        for (slot, fact) in bytes.chunks_exact_mut(16).zip(facts) {
            slot.copy_from_slice(&fact.to_le_bytes());
        }
        xxh3_64(&bytes)
    }

    fn facts(&self, tag: EntityTag) -> Facts {
        let Self { len, modified, changed, file: (_, inode) } = *self;
        let changed = (tag == EntityTag::Inode).then_some((changed, inode));
        Facts { len, modified, changed, version: self.hash() ^ unsettled(modified) }
    }
}

impl From<Facts> for Meta {
    fn from(facts: Facts) -> Self {
        let Facts { len, modified, changed, version } = facts;
        let (etag, modified) = match changed {
            None => (format!("\"{len:x}-{modified:x}\""), modified),
            Some((changed, inode)) => (format!("\"{len:x}-{modified:x}-{changed:x}-{inode:x}\""), changed),
        };
        Self { len, modified: time(modified), etag: etag.into(), version }
    }
}

fn nanoseconds(seconds: i64, rest: i64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(rest)
}

fn time(nanoseconds: i128) -> Option<SystemTime> {
    let (seconds, rest) = (nanoseconds.div_euclid(1_000_000_000), nanoseconds.rem_euclid(1_000_000_000));
    let rest = Duration::from_nanos(u64::try_from(rest).ok()?);
    let whole = Duration::from_secs(u64::try_from(seconds.unsigned_abs()).ok()?);
    let epoch = SystemTime::UNIX_EPOCH;
    let second = if seconds < 0 { epoch.checked_sub(whole) } else { epoch.checked_add(whole) };
    second?.checked_add(rest)
}

/// Non-zero and ever different while a file is so fresh that its times cannot tell versions apart.
fn unsettled(modified: i128) -> u64 {
    #[expect(clippy::disallowed_methods, reason = "compared with the file system's own clock")]
    let now = SystemTime::now();
    let age = time(modified).and_then(|modified| now.duration_since(modified).ok());
    let nanoseconds = now.duration_since(SystemTime::UNIX_EPOCH).map_or(1, |now| now.as_nanos());
    match age {
        Some(age) if age < CLOCK_TICK => u64::try_from(nanoseconds).unwrap_or(1) | 1,
        _ => 0,
    }
}
