//! `gzip` and `zlib` against zlib in C, one member at a time. flate2 is built with zlib-rs here, as in the server.

use std::io::{BufRead, Read};
use std::mem::MaybeUninit;

use libz_sys::{Z_FINISH, Z_OK, Z_STREAM_END, inflate, inflateEnd, inflateInit2_, z_stream, zlibVersion};
use n5_format::BlockEncoding;

use super::codec::{MOST_BYTES, Reference, all_streams, compare, decode};

/// `windowBits` of zlib: the largest window, plus 16 for gzip.
const ZLIB: i32 = 15;
const GZIP: i32 = 15 + 16;

pub(crate) fn run(data: &[u8]) {
    compare("gzip", data, &reference(data));
    let encoded = BlockEncoding::Gzip.encode_to_bytes(data.to_vec().into(), 1).unwrap();
    assert!(BlockEncoding::Gzip.is_one_stream(&encoded, data.len()));
    assert_eq!(decode("gzip", &encoded, data.len()).as_deref(), Ok(data));
    assert!(matches!(reference(&encoded), Reference::Sound(plain) if plain == data), "zlib reads it otherwise");
}

fn reference(payload: &[u8]) -> Reference {
    let is_gzip = |bytes: &[u8]| bytes.starts_with(&[0x1f, 0x8b]);
    let is_zlib = |bytes: &[u8]| match bytes {
        [first, second, ..] => first & 15 == 8 && (u32::from(*first) * 256 + u32::from(*second)) % 31 == 0,
        _ => false,
    };
    if is_gzip(payload) {
        return all_streams(payload, |rest, _| is_gzip(rest), |input, output| member(GZIP, input, output));
    }
    all_streams(payload, |rest, _| is_zlib(rest), |input, output| member(ZLIB, input, output))
}

/// Decodes one member and appends it to `output`, which gets at most one byte more than [`MOST_BYTES`]. If the
/// member is damaged, appends the bytes before the fault. Returns the rest of the input after a valid member.
#[expect(unsafe_code, reason = "the reference is a C library")]
fn member<'a>(window_bits: i32, input: &'a [u8], output: &mut Vec<u8>) -> Option<&'a [u8]> {
    let begun = output.len();
    output.resize(MOST_BYTES + 1, 0);
    let room = &mut output[begun..];
    let mut stream = MaybeUninit::<z_stream>::zeroed();
    let state = stream.as_mut_ptr();
    // SAFETY: for a zeroed stream, zlib uses its own allocator. Both buffers have the lengths given and outlive the
    // stream, which is ended once.
    let (done, read, written) = unsafe {
        (*state).next_in = input.as_ptr().cast_mut();
        (*state).avail_in = input.len() as u32;
        (*state).next_out = room.as_mut_ptr();
        (*state).avail_out = room.len() as u32;
        assert_eq!(inflateInit2_(state, window_bits, zlibVersion(), size_of::<z_stream>() as i32), Z_OK);
        let done = inflate(state, Z_FINISH);
        let (read, written) = (input.len() - (*state).avail_in as usize, room.len() - (*state).avail_out as usize);
        inflateEnd(state);
        (done, read, written)
    };
    output.truncate(begun + written);
    (done == Z_STREAM_END).then(|| &input[read..])
}

/// Reads to the end, or until `output` has one byte more than [`MOST_BYTES`].
pub(crate) fn read(decoder: &mut impl Read, output: &mut Vec<u8>) -> Option<()> {
    let room = (MOST_BYTES + 1).saturating_sub(output.len()) as u64;
    let read = decoder.take(room).read_to_end(output).ok()?;
    ((read as u64) < room).then_some(())
}

/// Like [`read`], for a decoder that must see the end of its input. Returns the rest of the input.
pub(crate) fn read_all<'a, D: Read>(
    mut decoder: D,
    output: &mut Vec<u8>,
    rest: impl FnOnce(D) -> &'a [u8],
) -> Option<&'a [u8]> {
    read(&mut decoder, output)?;
    let mut rest = rest(decoder);
    rest.fill_buf().ok()?;
    Some(rest)
}
