//! Decoding by this server's codecs, and how it is compared with a reference.

use std::cell::RefCell;

use bytes::Bytes;
use n5_server::n5::{CODECS, CodecError, Scratch, Watch};

/// Most bytes that inputs are decoded to.
pub(crate) const MOST_BYTES: usize = 1 << 20;

thread_local! {
    /// Used by one input after the other, as the server does: nothing of one may show in the next.
    static USED: RefCell<(Scratch, Vec<u8>)> = RefCell::default();
}

/// Decodes by all ways there are, which must agree.
pub(crate) fn decode(name: &str, payload: &[u8], len: usize) -> Result<Vec<u8>, CodecError> {
    let codec = CODECS.iter().find(|(known, _)| *known == name).unwrap().1(&serde_json::Map::new());
    let fresh = codec.decode(Bytes::copy_from_slice(payload), len, &mut Scratch::default(), Watch::ALWAYS);
    let again = USED.with_borrow_mut(|(scratch, output)| {
        let done = codec.decode_into(payload, len, output, scratch, Watch::ALWAYS);
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
    if let Some(plain) = codec.plain(payload, len)
        && let Ok(fresh) = &fresh
    {
        assert!(plain == fresh, "{name} takes other bytes for its elements");
    }
    fresh
}

/// What the reference says of a payload.
pub(crate) enum Reference {
    /// It is sound, and decodes to this.
    Sound(Vec<u8>),
    /// It is damaged, after so many bytes.
    Damaged(usize),
    /// It decodes to more than is tried here, or the reference does not know.
    Unknown,
}

/// Holds a codec to its reference: the same bytes or both refuse, and no other length.
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

/// A known and wanted difference: of members that hold next to nothing (streams, frames, blocks of a frame) this server
/// decodes 64, and one more for every KiB, or 64 bytes, of what they hold. References decode any number.
fn is_bound(error: &CodecError, len: usize) -> bool {
    let CodecError::Damaged { reason, .. } = error else { return false };
    let told = reason.strip_prefix("its first ").and_then(|rest| rest.split_once(" members hold only "));
    let Some((members, held)) = told else { return false };
    let held = held.trim_end_matches(" bytes").parse().unwrap_or(usize::MAX);
    held <= len && members.parse::<usize>().is_ok_and(|members| members >= 64 + held / 1024)
}

/// Decodes one stream after the other with `one`, which appends the first stream of its input to its output and returns
/// what follows; zeros in between and after, and nothing else. `begins` tells whether another stream follows what is behind
/// so many zeros.
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
