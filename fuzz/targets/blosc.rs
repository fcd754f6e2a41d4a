//! `blosc` against c-blosc. If the first byte of the input is even, the rest is a compressed buffer. Otherwise the rest
//! is parameters and data, which are compressed and then damaged.

use std::ffi::{CStr, c_int};

use blosc_src::{blosc_compress_ctx, blosc_decompress_ctx};
use n5_format::BlockEncoding;

use super::Numbers;
use super::codec::{MOST_BYTES, decode};

const INNER: [&CStr; 4] = [c"blosclz", c"lz4", c"zlib", c"zstd"];
const SNAPPY: u8 = 2;
const ZLIB: u8 = 3;

pub(crate) fn run(data: &[u8]) {
    let mut numbers = Numbers::new(data);
    if numbers.byte() & 1 == 0 {
        decoded_alike(numbers.rest());
        return;
    }
    let (inner, shuffle, item_size) = (numbers.of(&INNER), numbers.below(3), numbers.below(32) + 1);
    let (block_size, repeats) = (numbers.below(256) * 16, numbers.below(8) + 1);
    let damage = [(numbers.byte(), numbers.byte()), (numbers.byte(), numbers.byte())];
    let plain = numbers.rest().repeat(repeats);
    let mut buffer = compress(&plain, inner, shuffle, item_size, block_size);
    assert_eq!(decode("blosc", &buffer, plain.len()).as_deref(), Ok(&plain[..]));
    // The damage is within the first 256 bytes: the header, the block starts and the first parts are the critical ones.
    for (at, byte) in damage {
        let at = usize::from(at) % buffer.len();
        buffer[at] ^= byte;
    }
    decoded_alike(&buffer);
    let encoded = BlockEncoding::Blosc.encode_to_bytes(plain.clone().into(), item_size).unwrap();
    assert!(BlockEncoding::Blosc.is_one_stream(&encoded, plain.len()));
    assert_eq!(decode("blosc", &encoded, plain.len()).as_deref(), Ok(&plain[..]));
}

/// Checks that c-blosc decodes an accepted buffer to the same bytes. This server refuses more buffers, because c-blosc
/// trusts its input.
fn decoded_alike(buffer: &[u8]) {
    let Some(len) = buffer.get(4..8).map(|size| u32::from_le_bytes(size.try_into().unwrap()) as usize) else {
        assert!(decode("blosc", buffer, 0).is_err());
        return;
    };
    if len > MOST_BYTES {
        assert!(decode("blosc", buffer, MOST_BYTES).is_err());
        return;
    }
    assert!(decode("blosc", buffer, len + 1).is_err());
    let Ok(ours) = decode("blosc", buffer, len) else { return };
    // c-blosc is built without snappy here. A buffer that is stored uncompressed needs no inner codec.
    if buffer[2] >> 5 == SNAPPY && buffer[2] & 2 == 0 {
        return;
    }
    if len == 0 {
        return;
    }
    match decompress(buffer, len) {
        Some(theirs) => assert!(theirs == ours, "c-blosc decodes to something else"),
        // A known and intended difference: in a Huffman code with one symbol, half of the codes have no meaning. zlib
        // refuses them; libdeflate reads the symbol, and its output has the checksum of the stream.
        None => assert_eq!(buffer[2] >> 5, ZLIB, "c-blosc refuses it"),
    }
}

#[expect(unsafe_code, reason = "the reference is a C library")]
fn decompress(buffer: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut output = vec![0u8; len];
    // SAFETY: the codec under test has accepted the buffer, so its sizes are within it; `output` has `len` bytes.
    let written = unsafe { blosc_decompress_ctx(buffer.as_ptr().cast(), output.as_mut_ptr().cast(), len, 1) };
    (usize::try_from(written) == Ok(len)).then_some(output)
}

#[expect(unsafe_code, reason = "the reference is a C library")]
fn compress(plain: &[u8], inner: &CStr, shuffle: usize, item_size: usize, block_size: usize) -> Vec<u8> {
    let mut output = vec![0u8; plain.len() + 16];
    // SAFETY: both buffers have the lengths given, and the name is NUL-terminated.
    let written = unsafe {
        blosc_compress_ctx(
            5,
            shuffle as c_int,
            item_size,
            plain.len(),
            plain.as_ptr().cast(),
            output.as_mut_ptr().cast(),
            output.len(),
            inner.as_ptr(),
            block_size,
            1,
        )
    };
    output.truncate(usize::try_from(written).expect("c-blosc has room for any input"));
    output
}
