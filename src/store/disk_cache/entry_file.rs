//! The files of the disk cache. A file begins with the bytes of the object, so that the kernel can send them from
//! offset 0. A trailer follows: entity tag, identity of the container, key, and a tail of fixed length.
//!
//! The tail, with little-endian numbers:
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | [`MAGIC`] |
//! | 8 | 8 | length of the object |
//! | 16 | 8 | version |
//! | 24 | 8 | last modification, whole seconds since the Unix epoch |
//! | 32 | 4 | last modification, nanoseconds; [`UNKNOWN_TIME`] if it is unknown |
//! | 36 | 4 | length of the entity tag |
//! | 40 | 4 | length of the identity |
//! | 44 | 4 | length of the key |
//! | 48 | 8 | xxh3 of the object |
//! | 56 | 8 | xxh3 of the trailer up to here |
//!
//! A trailer rather than a header: the bytes have a fixed offset although keys differ in length, nothing is padded, and
//! a file that was cut short has no tail. The checksums also detect files whose data did not reach the disk before a
//! power failure, so no write is flushed with fsync.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use xxhash_rust::xxh3::xxh3_64;

use crate::store::key::Key;
use crate::store::object::ObjectMeta;

/// First bytes of the tail. The last character is the version of the format.
const MAGIC: [u8; 8] = *b"N5CACHE1";

/// Length of the tail.
pub(super) const TAIL_BYTES: usize = 64;

/// Maximum length of a trailer: a key has at most 4,096 bytes.
pub(super) const MAX_TRAILER_BYTES: usize = 8 << 10;

/// Nanoseconds of an unknown time of last modification.
const UNKNOWN_TIME: u32 = u32::MAX;

/// The trailer of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EntryTrailer {
    pub(super) meta: ObjectMeta,
    pub(super) checksum: u64,
}

/// Reason why a file is not the object that was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryFault {
    /// The file was cut short or changed.
    Damaged,
    /// The file has another object, whose name has the same hash.
    OtherObject,
}

/// Returns the trailer of a file for the object at `key`. Returns `None` if it is longer than [`MAX_TRAILER_BYTES`].
pub(super) fn encode_trailer(identity: &str, key: &Key, meta: &ObjectMeta, checksum: u64) -> Option<Vec<u8>> {
    let texts = [&*meta.etag, identity, key.as_str()];
    let mut trailer: Vec<u8> = texts.concat().into_bytes();
    trailer.extend_from_slice(&MAGIC);
    trailer.extend_from_slice(&meta.len.to_le_bytes());
    trailer.extend_from_slice(&meta.version.to_le_bytes());
    let (seconds, nanoseconds) = meta.modified.and_then(to_unix).unwrap_or((0, UNKNOWN_TIME));
    trailer.extend_from_slice(&seconds.to_le_bytes());
    trailer.extend_from_slice(&nanoseconds.to_le_bytes());
    for text in texts {
        trailer.extend_from_slice(&u32::try_from(text.len()).ok()?.to_le_bytes());
    }
    trailer.extend_from_slice(&checksum.to_le_bytes());
    let trailer_checksum = xxh3_64(&trailer);
    trailer.extend_from_slice(&trailer_checksum.to_le_bytes());
    (trailer.len() <= MAX_TRAILER_BYTES).then_some(trailer)
}

/// Returns the length of the trailer of a file of `file_bytes` whose last bytes are `end`.
///
/// # Errors
/// Returns [`EntryFault::Damaged`] if the file does not end with a tail that fits its length.
pub(super) fn trailer_bytes(end: &[u8], file_bytes: u64) -> Result<usize, EntryFault> {
    let tail = end.last_chunk::<TAIL_BYTES>().ok_or(EntryFault::Damaged)?;
    let mut fields = Fields(tail);
    let magic: [u8; 8] = fields.take()?;
    let body_bytes = u64::from_le_bytes(fields.take()?);
    let trailer = file_bytes.checked_sub(body_bytes).and_then(|bytes| usize::try_from(bytes).ok());
    trailer
        .filter(|bytes| magic == MAGIC && (TAIL_BYTES..=MAX_TRAILER_BYTES).contains(bytes))
        .ok_or(EntryFault::Damaged)
}

/// Parses a whole trailer, which must be that of the object at `key`.
///
/// # Errors
/// Returns an [`EntryFault`] if the trailer is damaged or belongs to another object.
pub(super) fn parse_trailer(trailer: &[u8], identity: &str, key: &Key) -> Result<EntryTrailer, EntryFault> {
    let (checked, trailer_checksum) = trailer.split_last_chunk::<8>().ok_or(EntryFault::Damaged)?;
    if xxh3_64(checked) != u64::from_le_bytes(*trailer_checksum) {
        return Err(EntryFault::Damaged);
    }
    let (texts, tail) = trailer.split_last_chunk::<TAIL_BYTES>().ok_or(EntryFault::Damaged)?;
    let mut fields = Fields(tail);
    if fields.take()? != MAGIC {
        return Err(EntryFault::Damaged);
    }
    let len = u64::from_le_bytes(fields.take()?);
    let version = u64::from_le_bytes(fields.take()?);
    let seconds = i64::from_le_bytes(fields.take()?);
    let nanoseconds = u32::from_le_bytes(fields.take()?);
    let etag_bytes = fields.length()?;
    let identity_bytes = fields.length()?;
    let key_bytes = fields.length()?;
    let checksum = u64::from_le_bytes(fields.take()?);
    let (etag, texts) = texts.split_at_checked(etag_bytes).ok_or(EntryFault::Damaged)?;
    let (its_identity, its_key) = texts.split_at_checked(identity_bytes).ok_or(EntryFault::Damaged)?;
    let etag = std::str::from_utf8(etag).ok().filter(|_| its_key.len() == key_bytes).ok_or(EntryFault::Damaged)?;
    if its_identity != identity.as_bytes() || its_key != key.as_str().as_bytes() {
        return Err(EntryFault::OtherObject);
    }
    let modified = if nanoseconds == UNKNOWN_TIME { None } else { from_unix(seconds, nanoseconds) };
    Ok(EntryTrailer { meta: ObjectMeta { len, modified, etag: Arc::from(etag), version }, checksum })
}

/// The fields of a tail that have not been read.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], EntryFault> {
        let (field, rest) = self.0.split_first_chunk().ok_or(EntryFault::Damaged)?;
        self.0 = rest;
        Ok(*field)
    }

    fn length(&mut self) -> Result<usize, EntryFault> {
        usize::try_from(u32::from_le_bytes(self.take()?)).map_err(|_too_long| EntryFault::Damaged)
    }
}

/// Returns a time as whole seconds since the Unix epoch, rounded down, and nanoseconds.
fn to_unix(time: SystemTime) -> Option<(i64, u32)> {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => Some((i64::try_from(after.as_secs()).ok()?, after.subsec_nanos())),
        Err(error) => {
            let before = error.duration();
            let seconds = i64::try_from(before.as_secs()).ok()?.checked_neg()?;
            match before.subsec_nanos() {
                0 => Some((seconds, 0)),
                nanoseconds => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanoseconds)),
            }
        }
    }
}

fn from_unix(seconds: i64, nanoseconds: u32) -> Option<SystemTime> {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let epoch = SystemTime::UNIX_EPOCH;
    let base = if seconds < 0 { epoch.checked_sub(whole) } else { epoch.checked_add(whole) };
    base?.checked_add(Duration::from_nanos(nanoseconds.into()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn metas() -> impl Strategy<Value = ObjectMeta> {
        let times = proptest::option::of((-10_000_000_000_i64..10_000_000_000, 0_u32..1_000_000_000));
        (0..=16_u64 << 20, any::<u64>(), times, "[ -~]{0,80}").prop_map(|(len, version, time, etag)| ObjectMeta {
            len,
            modified: time.and_then(|(seconds, nanoseconds)| from_unix(seconds, nanoseconds)),
            etag: etag.into(),
            version,
        })
    }

    proptest! {
        #[test]
        fn a_trailer_is_parsed_as_it_was_written(
            meta in metas(),
            key in "[a-z]{1,9}(/[0-9ü ]{1,9}){0,6}",
            id in ".{0,60}",
        ) {
            let key = Key::parse(&key).unwrap();
            let trailer = encode_trailer(&id, &key, &meta, 77).unwrap();
            prop_assert_eq!(trailer_bytes(&trailer, meta.len + trailer.len() as u64), Ok(trailer.len()));
            let parsed = parse_trailer(&trailer, &id, &key).unwrap();
            prop_assert_eq!(parsed, EntryTrailer { meta, checksum: 77 });
        }

        #[test]
        fn a_changed_trailer_is_damaged(meta in metas(), at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
            let key = Key::parse("v/s0/1/2/3").unwrap();
            let mut trailer = encode_trailer("s3://bucket", &key, &meta, 77).unwrap();
            let at = at.index(trailer.len());
            trailer[at] ^= flip;
            prop_assert_eq!(parse_trailer(&trailer, "s3://bucket", &key), Err(EntryFault::Damaged));
        }

        #[test]
        fn arbitrary_bytes_are_never_a_trailer(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let key = Key::parse("v").unwrap();
            prop_assert_eq!(trailer_bytes(&bytes, bytes.len() as u64), Err(EntryFault::Damaged));
            prop_assert_eq!(parse_trailer(&bytes, "id", &key), Err(EntryFault::Damaged));
        }
    }

    #[test]
    fn the_trailer_of_another_object_is_recognized() {
        let meta = ObjectMeta { len: 3, modified: None, etag: "\"x\"".into(), version: 1 };
        let [a, b] = ["v/0", "v/1"].map(|key| Key::parse(key).unwrap());
        let trailer = encode_trailer("s3://one", &a, &meta, 1).unwrap();
        assert_eq!(parse_trailer(&trailer, "s3://one", &b), Err(EntryFault::OtherObject));
        assert_eq!(parse_trailer(&trailer, "s3://two", &a), Err(EntryFault::OtherObject));
        // Where one text ends and the next begins matters.
        let shifted = encode_trailer("s3://on", &Key::parse("ev/0").unwrap(), &meta, 1).unwrap();
        assert_eq!(parse_trailer(&shifted, "s3://one", &a), Err(EntryFault::OtherObject));
    }

    #[test]
    fn an_object_with_an_overlong_entity_tag_has_no_trailer() {
        let meta = ObjectMeta { len: 3, modified: None, etag: "x".repeat(9000).into(), version: 1 };
        assert_eq!(encode_trailer("s3://one", &Key::parse("v").unwrap(), &meta, 1), None);
    }
}
