//! Layout of an image: its pieces and their parts. A piece is encoded as chunks of a PNG file.

use std::fmt;
use std::ops::Range;

use libdeflater::Adler32;

use crate::deflate::{BLOCK_BYTES, BLOCK_EXTRA_BYTES, write_block};
use crate::filter::PixelRows;

/// Maximum number of pixels per side. Source: PNG specification §11.2.1 (four-byte integers end at 2^31 - 1).
pub const MAX_SIDE: u32 = (1 << 31) - 1;

/// Bytes that a piece may take in addition to its blocks: the signature, the first chunk, the bytes before and after
/// the compressed data, and slack for writing whole words.
const FIXED_BYTES: u64 = 128;

/// Minimum number of pixel bytes per piece. A smaller piece is not worth a job.
const MIN_PIECE_BYTES: u64 = 128 << 10;

/// Maximum number of pieces.
const MAX_PIECES: u64 = 4;

/// Number of bits of a pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BitDepth {
    /// 8 bits per pixel.
    Eight,
    /// 16 bits per pixel, the high byte first.
    Sixteen,
}

/// Pixels of an image, from top to bottom.
#[derive(Clone, Copy)]
pub enum Pixels<'a> {
    /// All rows, without gaps.
    Stored(&'a [u8]),
    /// A function that appends the pixels of rows to a buffer. It is called for some rows at a time.
    Converted(&'a dyn Fn(Range<u32>, &mut Vec<u8>)),
}

impl fmt::Debug for Pixels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stored(bytes) => f.debug_tuple("Stored").field(&bytes.len()).finish(),
            Self::Converted(_) => f.write_str("Converted"),
        }
    }
}

/// Checksum of a piece. [`trailer`] computes the checksum of the image from those of all pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceChecksum {
    /// Adler-32 of the filtered rows.
    pub adler32: u32,
    /// Number of bytes that the checksum covers.
    pub bytes: u64,
}

/// Reason why an image cannot be encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PngError {
    /// A side is 0 or exceeds [`MAX_SIDE`].
    Size {
        /// Pixels per row.
        width: u32,
        /// Number of rows.
        height: u32,
    },
    /// The length of the pixels does not match the size of the image.
    Length {
        /// Length of the image in bytes.
        expected: u64,
        /// Length of the pixels in bytes.
        found: usize,
    },
    /// Memory of this many bytes is not available.
    Memory(u64),
}

impl fmt::Display for PngError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { width, height } => {
                write!(f, "the image has {width} by {height} pixels; each side must be from 1 to {MAX_SIDE}")
            }
            Self::Length { expected, found } => {
                write!(f, "the pixels have {found} bytes, but the image requires {expected}")
            }
            Self::Memory(bytes) => write!(f, "no memory for {bytes} bytes"),
        }
    }
}

impl std::error::Error for PngError {}

/// Size of an image, of its pieces, and of the parts of a piece.
///
/// - Both sides are from 1 to [`MAX_SIDE`].
/// - The number of pieces depends only on the size of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageLayout {
    width: u32,
    height: u32,
    depth: BitDepth,
    /// True if a pixel is red, green and blue, and not a grey value.
    is_rgb: bool,
    /// Number of pieces, which can be encoded in parallel.
    pieces: u64,
    /// Rows per piece; the last piece may have fewer.
    rows_per_piece: u64,
    /// Rows per part. All rows of a part have the same filter, and are in one block if they are short enough.
    rows_per_part: u64,
}

impl ImageLayout {
    /// Returns the layout of a grey image, or `None` if a side is 0 or exceeds [`MAX_SIDE`].
    pub fn new(width: u32, height: u32, depth: BitDepth) -> Option<Self> {
        Self::with_colour(width, height, depth, false)
    }

    /// Returns the layout of a colour image, whose pixels are three bytes: red, green and blue. Returns `None` if a side
    /// is 0 or exceeds [`MAX_SIDE`].
    pub fn rgb(width: u32, height: u32) -> Option<Self> {
        Self::with_colour(width, height, BitDepth::Eight, true)
    }

    fn with_colour(width: u32, height: u32, depth: BitDepth, is_rgb: bool) -> Option<Self> {
        if !(1..=MAX_SIDE).contains(&width) || !(1..=MAX_SIDE).contains(&height) {
            return None;
        }
        let rows = u64::from(height);
        let whole = Self { width, height, depth, is_rgb, pieces: 1, rows_per_piece: rows, rows_per_part: rows };
        let row_bytes = whole.row_bytes();
        let pieces = row_bytes.saturating_mul(rows).checked_div(MIN_PIECE_BYTES).unwrap_or(1);
        let rows_per_piece = rows.div_ceil(pieces.clamp(1, MAX_PIECES.min(rows)));
        let max_rows_per_part = (BLOCK_BYTES as u64).checked_div(row_bytes.saturating_add(1)).unwrap_or(1).max(1);
        let parts = rows_per_piece.div_ceil(max_rows_per_part).max(1);
        Some(Self {
            pieces: rows.div_ceil(rows_per_piece),
            rows_per_piece,
            rows_per_part: rows_per_piece.div_ceil(parts),
            ..whole
        })
    }

    /// Returns the number of pixels per row.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Returns the number of rows.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Returns the number of pieces.
    pub fn piece_count(&self) -> usize {
        usize::try_from(self.pieces).unwrap_or(1)
    }

    /// Returns an upper bound of the bytes that [`Self::encode_piece`] appends: no block is larger than in stored form.
    pub fn max_piece_bytes(&self) -> u64 {
        let filtered_row_bytes = self.row_bytes().saturating_add(1);
        let blocks = filtered_row_bytes.saturating_mul(self.rows_per_part).div_ceil(BLOCK_BYTES as u64);
        let blocks = blocks.saturating_mul(self.rows_per_piece.div_ceil(self.rows_per_part.max(1)));
        let overhead_bytes = blocks.saturating_mul((CHUNK_OVERHEAD_BYTES + BLOCK_EXTRA_BYTES) as u64);
        filtered_row_bytes
            .saturating_mul(self.rows_per_piece)
            .saturating_add(overhead_bytes)
            .saturating_add(FIXED_BYTES)
    }

    /// Returns the bytes that [`Self::encode_piece`] allocates in addition to its output: a filtered part and, if
    /// pixels are converted, a part of pixels with the row above it.
    pub fn scratch_bytes(&self, is_converted: bool) -> u64 {
        self.filtered_bytes().saturating_add(if is_converted { self.converted_bytes() } else { 0 })
    }

    /// Appends the piece `number`, counted from 0, to `out`. Reserves [`Self::max_piece_bytes`] first.
    ///
    /// # Errors
    /// [`PngError::Length`] and [`PngError::Memory`].
    pub fn encode_piece(
        &self,
        number: usize,
        pixels: Pixels<'_>,
        out: &mut Vec<u8>,
    ) -> Result<PieceChecksum, PngError> {
        if let Pixels::Stored(bytes) = pixels {
            let expected = self.row_bytes().saturating_mul(self.height.into());
            if bytes.len() as u64 != expected {
                return Err(PngError::Length { expected, found: bytes.len() });
            }
        }
        reserve(out, self.max_piece_bytes())?;
        if number == 0 {
            self.write_header(out);
        }
        let row_at = |row: u64| u32::try_from(row.min(self.height.into())).unwrap_or(self.height);
        let first_row = row_at((number as u64).saturating_mul(self.rows_per_piece));
        let end_row = row_at(u64::from(first_row).saturating_add(self.rows_per_piece));
        let is_last_piece = end_row == self.height;
        let mut filtered = Vec::new();
        reserve(&mut filtered, self.filtered_bytes())?;
        let mut parts = PieceParts::new(self, pixels, first_row)?;
        let mut stream = IdatStream::new(out, number == 0, self.pieces == 1);
        let mut row = first_row;
        while row < end_row {
            let next_row = row_at(u64::from(row).saturating_add(self.rows_per_part)).min(end_row);
            let rows = parts.rows(row..next_row);
            filtered.clear();
            rows.write_filtered(&mut filtered, rows.best_filter());
            stream.append(&filtered, is_last_piece && next_row == end_row);
            row = next_row;
        }
        if !is_last_piece {
            stream.sync_flush();
        }
        let (adler32, bytes) = stream.checksum();
        Ok(PieceChecksum { adler32, bytes })
    }

    fn write_header(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\x89PNG\r\n\x1a\n");
        write_chunk(out, *b"IHDR", |out| {
            out.extend_from_slice(&self.width.to_be_bytes());
            out.extend_from_slice(&self.height.to_be_bytes());
            // These bytes say: bit depth, colour type, the only compression and filter methods, and no interlacing.
            let bits = if self.depth == BitDepth::Sixteen { 16 } else { 8 };
            out.extend_from_slice(&[bits, if self.is_rgb { 2 } else { 0 }, 0, 0, 0]);
        });
    }

    fn pixel_bytes(&self) -> usize {
        if self.is_rgb { 3 } else { self.depth.pixel_bytes() }
    }

    /// Bytes per row, without the filter byte.
    fn row_bytes(&self) -> u64 {
        u64::from(self.width).saturating_mul(self.pixel_bytes() as u64)
    }

    /// Size of a filtered part in bytes.
    fn filtered_bytes(&self) -> u64 {
        self.row_bytes().saturating_add(1).saturating_mul(self.rows_per_part)
    }

    /// Size of a part of converted pixels and the row above it, in bytes.
    fn converted_bytes(&self) -> u64 {
        self.row_bytes().saturating_mul(self.rows_per_part.saturating_add(1))
    }
}

/// Source of the pixels of a piece, part by part.
struct PieceParts<'a> {
    pixels: Pixels<'a>,
    row_bytes: usize,
    pixel_bytes: usize,
    /// If pixels are converted: the last row of the previous part, then the current part. Otherwise empty.
    converted: Vec<u8>,
}

impl<'a> PieceParts<'a> {
    fn new(layout: &ImageLayout, pixels: Pixels<'a>, first_row: u32) -> Result<Self, PngError> {
        let mut converted = Vec::new();
        if let Pixels::Converted(convert) = pixels {
            reserve(&mut converted, layout.converted_bytes())?;
            if first_row > 0 {
                convert(first_row.saturating_sub(1)..first_row, &mut converted);
            }
        }
        let row_bytes = to_usize(layout.row_bytes())?;
        Ok(Self { pixels, row_bytes, pixel_bytes: layout.pixel_bytes(), converted })
    }

    /// Returns the next part, whose rows are `range`.
    fn rows(&mut self, range: Range<u32>) -> PixelRows<'_> {
        let (above, bytes) = match self.pixels {
            Pixels::Stored(bytes) => {
                let offset = |row: u32| (row as usize).saturating_mul(self.row_bytes);
                let above = range.start.checked_sub(1).and_then(|above| bytes.get(offset(above)..offset(range.start)));
                (above, bytes.get(offset(range.start)..offset(range.end)).unwrap_or_default())
            }
            Pixels::Converted(convert) => {
                self.converted.drain(..self.converted.len().saturating_sub(self.row_bytes));
                let start = self.converted.len();
                convert(range, &mut self.converted);
                let (above, bytes) = self.converted.split_at_checked(start).unwrap_or_default();
                ((!above.is_empty()).then_some(above), bytes)
            }
        };
        PixelRows { bytes, above, row_bytes: self.row_bytes, pixel_bytes: self.pixel_bytes }
    }
}

/// Returns the few bytes that follow all pieces of an image. `checksums` are those of the pieces in order.
pub fn trailer(checksums: &[PieceChecksum]) -> Vec<u8> {
    let sums = checksums.iter().map(|checksum| (checksum.adler32, checksum.bytes));
    let (checksum, _) = sums.fold((1, 0), adler32_combine);
    let mut out = Vec::with_capacity(64);
    // The stream of a single piece already ends with the checksum.
    if checksums.len() > 1 {
        write_chunk(&mut out, *b"IDAT", |out| out.extend_from_slice(&checksum.to_be_bytes()));
    }
    write_chunk(&mut out, *b"IEND", |_| {});
    out
}

impl BitDepth {
    fn pixel_bytes(self) -> usize {
        match self {
            Self::Eight => 1,
            Self::Sixteen => 2,
        }
    }
}

fn to_usize(bytes: u64) -> Result<usize, PngError> {
    usize::try_from(bytes).ok().ok_or(PngError::Memory(bytes))
}

/// Reserves capacity for `bytes` more bytes at once, because a buffer that grows copies the data and briefly holds them
/// twice. Pages that are never written take no memory.
fn reserve(buffer: &mut Vec<u8>, bytes: u64) -> Result<(), PngError> {
    buffer.try_reserve_exact(to_usize(bytes)?).ok().ok_or(PngError::Memory(bytes))
}

/// Size of a chunk in addition to its data, in bytes.
const CHUNK_OVERHEAD_BYTES: usize = 12;

/// Writes compressed data into chunks. Source: PNG specification §10.1, RFC 1950.
struct IdatStream<'a> {
    out: &'a mut Vec<u8>,
    /// True until the zlib header before the blocks is written.
    needs_zlib_header: bool,
    /// True if the stream ends with its own checksum.
    ends_with_checksum: bool,
    /// Bits of the incomplete last byte, and their number.
    pending_bits: (u64, u32),
    checksum: Adler32,
    checked_bytes: u64,
}

impl<'a> IdatStream<'a> {
    /// Begins the first, the only or a further piece of the stream.
    fn new(out: &'a mut Vec<u8>, is_first: bool, is_only: bool) -> Self {
        Self {
            out,
            needs_zlib_header: is_first,
            ends_with_checksum: is_only,
            pending_bits: (0, 0),
            checksum: Adler32::new(),
            checked_bytes: 0,
        }
    }

    /// Appends `bytes`. If `is_last`, the stream ends after them.
    fn append(&mut self, bytes: &[u8], is_last: bool) {
        let mut blocks = bytes.chunks(BLOCK_BYTES).peekable();
        while let Some(block) = blocks.next() {
            self.checksum.update(block);
            let is_last = is_last && blocks.peek().is_none();
            write_chunk(self.out, *b"IDAT", |out| {
                if std::mem::take(&mut self.needs_zlib_header) {
                    // Header of a zlib stream: deflate, window of 32 KiB, fast compression.
                    out.extend_from_slice(&[0x78, 0x01]);
                }
                self.pending_bits = write_block(out, self.pending_bits, block, is_last);
                if is_last && self.ends_with_checksum {
                    out.extend_from_slice(&self.checksum.sum().to_be_bytes());
                }
            });
        }
        self.checked_bytes = self.checked_bytes.saturating_add(bytes.len() as u64);
    }

    /// Aligns the stream to a byte, so that the next piece begins with a whole byte.
    fn sync_flush(&mut self) {
        write_chunk(self.out, *b"IDAT", |out| self.pending_bits = write_block(out, self.pending_bits, &[], false));
    }

    /// Returns the checksum of the appended bytes, and their number.
    fn checksum(&self) -> (u32, u64) {
        (self.checksum.sum(), self.checked_bytes)
    }
}

/// Returns the Adler-32 checksum of the concatenation of two byte sequences, each given by its checksum and length.
/// Source: RFC 1950 §8.2.
fn adler32_combine((first, first_bytes): (u32, u64), (second, second_bytes): (u32, u64)) -> (u32, u64) {
    const BASE: u64 = 65_521;
    let low = |sum: u32| u64::from(sum & 0xffff);
    let high = |sum: u32| u64::from(sum >> 16);
    let sum = |terms: &[u64]| terms.iter().fold(0u64, |sum, term| sum.wrapping_add(*term) % BASE);
    // The second sum of Adler-32 counts the byte sum of the first text once for each byte of the second text, but not
    // the initial value 1 of the byte sum.
    let carried = (second_bytes % BASE).wrapping_mul(low(first).wrapping_add(BASE - 1) % BASE);
    let low_sum = sum(&[low(first), low(second), BASE - 1]);
    let high_sum = sum(&[high(first), high(second), carried]);
    (u32::try_from(high_sum << 16 | low_sum).unwrap_or(0), first_bytes.saturating_add(second_bytes))
}

/// Appends a chunk with the data that `write` appends. Source: PNG specification §5.3.
fn write_chunk(out: &mut Vec<u8>, kind: [u8; 4], write: impl FnOnce(&mut Vec<u8>)) {
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
