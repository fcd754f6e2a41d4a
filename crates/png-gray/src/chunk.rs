//! Chunks of a PNG file, and the compressed stream that they hold.

use libdeflater::Adler32;

use crate::deflate::{BLOCK_BYTES, DeflateEncoder};

/// Size of a chunk besides its data, in bytes.
pub(crate) const CHUNK_OVERHEAD_BYTES: usize = 12;

/// Writes compressed data into chunks. Source: PNG specification §10.1, RFC 1950.
pub(crate) struct IdatStream<'a> {
    pub(crate) out: &'a mut Vec<u8>,
    /// True until the zlib header before the blocks is written.
    needs_zlib_header: bool,
    /// True if the stream ends with its own checksum.
    ends_with_checksum: bool,
    blocks: DeflateEncoder,
    checksum: Adler32,
    checked_bytes: u64,
}

impl<'a> IdatStream<'a> {
    /// Begins a piece of the stream: the first one, the only one, or another.
    pub(crate) fn new(out: &'a mut Vec<u8>, is_first: bool, is_only: bool) -> Self {
        Self {
            out,
            needs_zlib_header: is_first,
            ends_with_checksum: is_only,
            blocks: DeflateEncoder::default(),
            checksum: Adler32::new(),
            checked_bytes: 0,
        }
    }

    /// Appends `bytes`. If `is_last`, the stream ends after them.
    pub(crate) fn append(&mut self, bytes: &[u8], is_last: bool) {
        let mut blocks = bytes.chunks(BLOCK_BYTES).peekable();
        while let Some(block) = blocks.next() {
            self.checksum.update(block);
            let is_last = is_last && blocks.peek().is_none();
            write_chunk(self.out, *b"IDAT", |out| {
                if std::mem::take(&mut self.needs_zlib_header) {
                    // Deflate, window of 32 KiB, fast compression.
                    out.extend_from_slice(&[0x78, 0x01]);
                }
                self.blocks.write_block(out, block, is_last);
                if is_last && self.ends_with_checksum {
                    out.extend_from_slice(&self.checksum.sum().to_be_bytes());
                }
            });
        }
        self.checked_bytes = self.checked_bytes.saturating_add(bytes.len() as u64);
    }

    /// Aligns the stream to a byte, so that the next piece begins with a whole byte.
    pub(crate) fn sync_flush(&mut self) {
        write_chunk(self.out, *b"IDAT", |out| self.blocks.write_block(out, &[], false));
    }

    /// Returns the checksum of the appended bytes, and their number.
    pub(crate) fn checksum(&self) -> (u32, u64) {
        (self.checksum.sum(), self.checked_bytes)
    }
}

/// Returns the checksum of two concatenated texts, each given by its checksum and length. Source: RFC 1950 §8.2.
pub(crate) fn adler32_combine((first, first_bytes): (u32, u64), (second, second_bytes): (u32, u64)) -> (u32, u64) {
    const BASE: u64 = 65_521;
    let low = |sum: u32| u64::from(sum & 0xffff);
    let high = |sum: u32| u64::from(sum >> 16);
    let sum = |terms: &[u64]| terms.iter().fold(0u64, |sum, term| sum.wrapping_add(*term) % BASE);
    // The byte sum of the first text counts once for each byte of the second. The initial value 1 of the sum does not.
    let carried = (second_bytes % BASE).wrapping_mul(low(first).wrapping_add(BASE - 1) % BASE);
    let (low, high) = (sum(&[low(first), low(second), BASE - 1]), sum(&[high(first), high(second), carried]));
    (u32::try_from(high << 16 | low).unwrap_or(0), first_bytes.saturating_add(second_bytes))
}

/// Appends a chunk with the data that `write` appends. Source: PNG specification §5.3.
pub(crate) fn write_chunk(out: &mut Vec<u8>, kind: [u8; 4], write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&kind);
    write(out);
    let length = out.len().saturating_sub(start).saturating_sub(8);
    let length = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    let (before, checked) = out.split_at_mut_checked(start.saturating_add(4)).unwrap_or_default();
    if let Some(length_field) = before.last_chunk_mut() {
        *length_field = length;
    }
    let checksum = libdeflater::crc32(checked);
    out.extend_from_slice(&checksum.to_be_bytes());
}
