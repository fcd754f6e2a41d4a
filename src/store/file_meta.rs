//! Facts about a file, and what tells its versions apart.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use xxhash_rust::xxh3::xxh3_64;

use super::Meta;

/// A file written so recently may be written again within the same tick of the file system's clock,
/// so its time and length do not tell its versions apart yet.
const CLOCK_TICK: Duration = Duration::from_millis(20);

/// What a store says of a file.
pub(super) fn meta_of(metadata: &std::fs::Metadata) -> Meta {
    let nanoseconds = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
    let len = metadata.len();
    let facts = [
        i128::from(len),
        nanoseconds,
        i128::from(metadata.ino()),
        i128::from(metadata.dev()),
        i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec()),
    ];
    let mut bytes = [0u8; 80];
    for (slot, fact) in bytes.chunks_exact_mut(16).zip(facts) {
        slot.copy_from_slice(&fact.to_le_bytes());
    }
    Meta {
        len,
        modified: metadata.modified().ok(),
        etag: Arc::from(format!("\"{len:x}-{nanoseconds:x}\"")),
        version: xxh3_64(&bytes) ^ unsettled(metadata),
    }
}

/// Non-zero and ever different while a file is so fresh that its times cannot tell versions apart.
fn unsettled(metadata: &std::fs::Metadata) -> u64 {
    #[expect(clippy::disallowed_methods, reason = "compared with the file system's own clock")]
    let now = SystemTime::now();
    let age = metadata.modified().ok().and_then(|modified| now.duration_since(modified).ok());
    let nanoseconds = now.duration_since(SystemTime::UNIX_EPOCH).map_or(1, |now| now.as_nanos());
    match age {
        Some(age) if age < CLOCK_TICK => u64::try_from(nanoseconds).unwrap_or(1) | 1,
        _ => 0,
    }
}
