//! Decoding by this server's codecs, and comparison with a reference.

use std::cell::RefCell;

use bytes::Bytes;
use n5_format::{CancelCheck, CodecError, Codecs, Scratch};

/// Maximum number of bytes that inputs are decoded to.
pub(crate) const MOST_BYTES: usize = 1 << 20;

thread_local! {
    /// Reused for all inputs, as in the server. No bytes of one input may appear in the output of the next.
    static USED: RefCell<(Scratch, Vec<u8>)> = RefCell::default();
}

/// Decodes a payload in all ways that a codec offers, which must agree.
pub(crate) fn decode(name: &str, payload: &[u8], len: usize) -> Result<Vec<u8>, CodecError> {
    let codec = Codecs::built_in().open(name, &serde_json::Map::new()).unwrap();
    let fresh = codec.decode(Bytes::copy_from_slice(payload), len, &mut Scratch::default(), CancelCheck::NEVER);
    let again = USED.with_borrow_mut(|(scratch, output)| {
        let done = codec.decode_into(payload, len, output, scratch, CancelCheck::NEVER);
        assert!(output.capacity() <= MOST_BYTES + payload.len() + (64 << 10), "{name} keeps {}", output.capacity());
        done.map(|()| output.clone())
    });
    let fresh = fresh.map(|bytes| bytes.to_vec());
    assert_eq!(fresh.is_ok(), again.is_ok(), "{name}: {fresh:?} {again:?}");
    if let (Ok(fresh), Ok(again)) = (&fresh, &again) {
        assert_eq!(fresh.len(), len, "{name} decodes to another length without an error");
        assert!(fresh == again, "{name} decodes otherwise into memory that was used");
        assert!(len as u64 <= codec.max_decoded_bytes(payload.len()), "{name} holds more than it says it can");
    }
    if let Some(plain) = codec.uncompressed_slice(payload, len)
        && let Ok(fresh) = &fresh
    {
        assert!(plain == fresh, "{name}: `plain` and `decode` return different bytes");
    }
    fresh
}

/// Result of the reference decoder.
pub(crate) enum Reference {
    /// The payload is valid and decodes to these bytes.
    Sound(Vec<u8>),
    /// The payload is damaged after this many decoded bytes.
    Damaged(usize),
    /// The payload decodes to more than [`MOST_BYTES`], or the reference cannot tell.
    Unknown,
}

/// Checks that a codec decodes to the same bytes as the reference or refuses as the reference does, and accepts no
/// other length.
pub(crate) fn compare(name: &str, payload: &[u8], reference: &Reference) {
    match reference {
        Reference::Sound(bytes) => {
            let ours = decode(name, payload, bytes.len());
            if ours.as_ref().is_err_and(|error| is_bound(error, bytes.len())) {
                return;
            }
            assert_eq!(ours.as_deref(), Ok(&bytes[..]), "{name}");
            assert!(decode(name, payload, bytes.len() + 1).is_err(), "{name} decodes to one more");
            if let Some(fewer) = bytes.len().checked_sub(1) {
                assert!(decode(name, payload, fewer).is_err(), "{name} decodes to one fewer");
            }
        }
        Reference::Damaged(at) => {
            assert!(decode(name, payload, *at).is_err(), "{name} decodes {at} bytes of what is damaged");
        }
        Reference::Unknown => {
            for len in [0, 1, payload.len(), MOST_BYTES] {
                drop(decode(name, payload, len));
            }
        }
    }
}

/// Returns true for a known and intended difference: this server limits members with almost no content (streams,
/// frames, blocks of a frame). It decodes 64 of them, and one more for every KiB of content, or for every 64 bytes with
/// some codecs. References decode any number.
fn is_bound(error: &CodecError, len: usize) -> bool {
    let CodecError::Damaged { reason, .. } = error else { return false };
    let told = reason.strip_prefix("its first ").and_then(|rest| rest.split_once(" members hold only "));
    let Some((members, held)) = told else { return false };
    let held = held.trim_end_matches(" bytes").parse().unwrap_or(usize::MAX);
    held <= len && members.parse::<usize>().is_ok_and(|members| members >= 64 + held / 1024)
}

/// Decodes consecutive streams with `one`, which appends the first stream of its input to its output and returns the
/// rest. Only zeros may stand between and after streams. `begins` returns true if its first argument begins with a
/// stream; its second argument is the number of zeros before that.
pub(crate) fn all_streams(
    payload: &[u8],
    begins: impl Fn(&[u8], usize) -> bool,
    mut one: impl for<'a> FnMut(&'a [u8], &mut Vec<u8>) -> Option<&'a [u8]>,
) -> Reference {
    let (mut output, mut rest) = (Vec::new(), payload);
    if !begins(rest, 0) {
        return Reference::Damaged(0);
    }
    let mut zeros = 0;
    while begins(rest, zeros) {
        let Some(after) = one(rest, &mut output) else {
            let found = output.len().min(MOST_BYTES);
            return if output.len() > MOST_BYTES { Reference::Unknown } else { Reference::Damaged(found) };
        };
        if output.len() > MOST_BYTES {
            return Reference::Unknown;
        }
        zeros = after.iter().take_while(|byte| **byte == 0).count();
        rest = &after[zeros..];
    }
    if rest.is_empty() { Reference::Sound(output) } else { Reference::Damaged(output.len()) }
}
