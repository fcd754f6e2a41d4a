//! `png`: lossless grey images of 8 or 16 bits.
//!
//! The file is written here in parts. Some rows at a time are put into PNG's byte order, filtered and compressed while
//! they are in the core's cache. No second image is held in memory.

mod deflate;
mod filter;
mod huffman;

use bytes::Bytes;
use libdeflater::Adler32;

use self::deflate::{BLOCK_BYTES, BLOCK_EXTRA_BYTES, DeflateEncoder};
use self::filter::PixelRows;
use super::Format;
use super::encoded::{EncodeError, EncodedPiece, buffer, buffer_from};
use super::image::{append_windowed, check_window, plane_size};
use super::options::EncodeOptions;
use crate::n5::{Array, DataType};

/// A plane or a line as a grey image.
///
/// The first axis longer than 1 runs to the right and the second one down, regardless of the requested order. uint8 and
/// uint16 are shown unchanged unless a window is given. A window makes an image of 8 bits: its first value is black,
/// its second white, and values between them are mapped linearly. Values beyond the window are clipped; NaN is black.
#[derive(Debug)]
pub(super) struct PngFormat;

/// Maximum number of pixels per side. Source: PNG specification §11.2.1 (four-byte integers end at 2^31 - 1).
const MAX_SIDE: u64 = (1 << 31) - 1;

/// Signature, first chunk, the bytes before and after the compressed data, and slack for writing whole words.
const FIXED_BYTES: u64 = 128;

/// Minimum number of pixel bytes per piece; fewer are not worth a job of their own.
const MIN_PIECE_BYTES: u64 = 128 << 10;
/// Maximum number of pieces.
const MAX_PIECES: u64 = 4;

/// Size of a chunk besides its data, in bytes.
const CHUNK_OVERHEAD_BYTES: usize = 12;

impl Format for PngFormat {
    fn name(&self) -> &'static str {
        "png"
    }

    fn media_type(&self) -> &'static str {
        "image/png"
    }

    fn supports(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> Result<(), String> {
        plane_size(self.name(), shape, MAX_SIDE)?;
        check_window(self.name(), &[DataType::UInt8, DataType::UInt16], data_type, options)
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["window"]
    }

    fn extra_bytes(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> u64 {
        let layout = PngLayout::of(shape, PixelConversion::of(data_type, options));
        layout.piece_bytes().saturating_add(layout.scratch_bytes()).saturating_mul(layout.pieces)
    }

    fn encode(&self, array: &Array, options: &EncodeOptions) -> Result<Vec<Bytes>, EncodeError> {
        let piece_numbers = 0..self.piece_count(&array.shape, &array.data_type, options);
        let pieces: Vec<EncodedPiece> =
            piece_numbers.map(|n| self.encode_piece(n, &|_| Vec::new(), array, options)).collect::<Result<_, _>>()?;
        let trailer = self.trailer(&pieces);
        Ok(pieces.into_iter().map(|piece| piece.bytes).chain([trailer]).collect())
    }

    fn piece_count(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> usize {
        usize::try_from(PngLayout::of(shape, PixelConversion::of(data_type, options)).pieces).unwrap_or(1)
    }

    fn encode_piece(
        &self,
        number: usize,
        take_buffer: &dyn Fn(usize) -> Vec<u8>,
        array: &Array,
        options: &EncodeOptions,
    ) -> Result<EncodedPiece, EncodeError> {
        self.check(array, options)?;
        let (width, height) = plane_size(self.name(), &array.shape, MAX_SIDE).map_err(EncodeError::Refused)?;
        let conversion = PixelConversion::of(&array.data_type, options);
        let layout = PngLayout::of(&array.shape, conversion);
        let mut out = buffer_from(take_buffer, layout.piece_bytes())?;
        if number == 0 {
            out.extend_from_slice(b"\x89PNG\r\n\x1a\n");
            write_chunk(&mut out, *b"IHDR", |out| {
                out.extend_from_slice(&width.to_be_bytes());
                out.extend_from_slice(&height.to_be_bytes());
                // Bit depth and greyscale; then the only compression and filter methods, and no interlacing.
                let bits = if conversion.pixel_bytes() == 2 { 16 } else { 8 };
                out.extend_from_slice(&[bits, 0, 0, 0, 0]);
            });
        }
        let (checksum, checked_bytes) = encode_rows(&mut out, array, conversion, layout, number as u64)?;
        Ok(EncodedPiece { bytes: out.into(), checksum, checked_bytes })
    }

    fn trailer(&self, pieces: &[EncodedPiece]) -> Bytes {
        let sums = pieces.iter().map(|piece| (piece.checksum, piece.checked_bytes));
        let (checksum, _) = sums.fold((1, 0), adler32_combine);
        let mut out = Vec::with_capacity(64);
        if pieces.len() > 1 {
            write_chunk(&mut out, *b"IDAT", |out| out.extend_from_slice(&checksum.to_be_bytes()));
        }
        write_chunk(&mut out, *b"IEND", |_| {});
        out.into()
    }
}

/// Conversion of elements to pixels.
#[derive(Debug, Clone, Copy)]
enum PixelConversion {
    /// Elements are copied unchanged.
    Copied,
    /// Elements are written with the high byte first.
    ByteSwapped,
    /// Elements are mapped to grey values by a window.
    Windowed((f64, f64)),
}

impl PixelConversion {
    /// Returns the conversion for a data type that the format accepts.
    fn of(data_type: &DataType, options: &EncodeOptions) -> Self {
        match options.window {
            Some(window) => Self::Windowed(window),
            None if *data_type == DataType::UInt16 => Self::ByteSwapped,
            None => Self::Copied,
        }
    }

    /// Size of a pixel in bytes.
    fn pixel_bytes(self) -> usize {
        if matches!(self, Self::ByteSwapped) { 2 } else { 1 }
    }

    /// Converts `elements` to pixels and appends them.
    fn append(self, out: &mut Vec<u8>, elements: &[u8], data_type: &DataType) {
        match self {
            Self::Copied => out.extend_from_slice(elements),
            Self::ByteSwapped => {
                out.extend(elements.as_chunks().0.iter().flat_map(|e| u16::from_le_bytes(*e).to_be_bytes()));
            }
            Self::Windowed(window) => append_windowed(out, elements, data_type, window),
        }
    }
}

/// Sizes of an image, of its pieces, and of the parts of a piece.
#[derive(Debug, Clone, Copy)]
struct PngLayout {
    /// Bytes per row, without the filter byte.
    row_bytes: u64,
    /// Number of pieces, which are encoded in parallel.
    pieces: u64,
    /// Rows per piece; the last piece may have fewer.
    rows_per_piece: u64,
    /// Rows per part. All rows of a part have the same filter, and are in one block if they are short enough.
    rows_per_part: u64,
    is_converted: bool,
}

impl PngLayout {
    fn of(shape: &[u64], conversion: PixelConversion) -> Self {
        let mut long_sizes = shape.iter().copied().filter(|size| *size > 1);
        let row_bytes = long_sizes.next().unwrap_or(1).saturating_mul(conversion.pixel_bytes() as u64);
        let height = long_sizes.fold(1u64, u64::saturating_mul);
        let pieces = row_bytes.saturating_mul(height).checked_div(MIN_PIECE_BYTES).unwrap_or(1);
        let pieces = pieces.clamp(1, MAX_PIECES.min(height.max(1)));
        let rows_per_piece = height.div_ceil(pieces.max(1)).max(1);
        let pieces = height.div_ceil(rows_per_piece).max(1);
        let max_rows = (BLOCK_BYTES as u64).checked_div(row_bytes.saturating_add(1)).unwrap_or(1).max(1);
        let rows_per_part = rows_per_piece.div_ceil(rows_per_piece.div_ceil(max_rows).max(1));
        Self {
            row_bytes,
            pieces,
            rows_per_piece,
            rows_per_part,
            is_converted: !matches!(conversion, PixelConversion::Copied),
        }
    }

    /// Maximum size of a piece in bytes: no block is larger than in stored form.
    fn piece_bytes(self) -> u64 {
        let filtered_row_bytes = self.row_bytes.saturating_add(1);
        let blocks = filtered_row_bytes.saturating_mul(self.rows_per_part).div_ceil(BLOCK_BYTES as u64);
        let blocks = blocks.saturating_mul(self.rows_per_piece.div_ceil(self.rows_per_part.max(1)));
        let overhead_bytes = blocks.saturating_mul((CHUNK_OVERHEAD_BYTES + BLOCK_EXTRA_BYTES) as u64);
        filtered_row_bytes
            .saturating_mul(self.rows_per_piece)
            .saturating_add(overhead_bytes)
            .saturating_add(FIXED_BYTES)
    }

    /// Memory for one filtered part, and for one part of converted pixels with the row above it if elements are
    /// converted.
    fn scratch_bytes(self) -> u64 {
        let converted_bytes = self.row_bytes.saturating_mul(self.rows_per_part.saturating_add(1));
        let filtered_bytes = self.row_bytes.saturating_add(1).saturating_mul(self.rows_per_part);
        filtered_bytes.saturating_add(if self.is_converted { converted_bytes } else { 0 })
    }
}

/// Appends the chunks of one piece of the image. Returns its checksum and the number of bytes that it covers.
fn encode_rows(
    out: &mut Vec<u8>,
    array: &Array,
    conversion: PixelConversion,
    layout: PngLayout,
    number: u64,
) -> Result<(u32, u64), EncodeError> {
    let to_usize = |count: u64| usize::try_from(count).ok().ok_or(EncodeError::Memory(count));
    let row_bytes = to_usize(layout.row_bytes)?;
    let pixel_bytes = conversion.pixel_bytes();
    // `bytes_of_rows` is the size of a number of rows of elements in bytes.
    let element_bytes = array.data_type.size_bytes().unwrap_or(1);
    let element_row_bytes = row_bytes.checked_div(pixel_bytes).unwrap_or(0).saturating_mul(element_bytes).max(1);
    let bytes_of_rows = |rows: u64| Ok::<_, EncodeError>(to_usize(rows)?.saturating_mul(element_row_bytes));
    let first_row = number.saturating_mul(layout.rows_per_piece);
    let (before, remaining) = array.data.split_at_checked(bytes_of_rows(first_row)?).unwrap_or((&array.data, &[]));
    let (elements, after) =
        remaining.split_at_checked(bytes_of_rows(layout.rows_per_piece)?).unwrap_or((remaining, &[]));
    let mut filtered = buffer(layout.row_bytes.saturating_add(1).saturating_mul(layout.rows_per_part))?;
    // If elements are converted: the last row of the previous part, then the current part.
    let mut converted = buffer(if layout.is_converted { layout.scratch_bytes() } else { 0 })?;
    let last_row_start = |elements: &'_ [u8]| elements.len().checked_sub(element_row_bytes);
    let mut above = last_row_start(before).and_then(|last| before.get(last..));
    if let (Some(elements), true) = (above, layout.is_converted) {
        conversion.append(&mut converted, elements, &array.data_type);
    }
    let (is_first_piece, is_only_piece) = (number == 0, layout.pieces == 1);
    let mut stream = IdatStream {
        out,
        needs_zlib_header: is_first_piece,
        ends_with_checksum: is_only_piece,
        blocks: DeflateEncoder::default(),
        checksum: Adler32::new(),
        checked_bytes: 0,
    };
    let mut parts = elements.chunks(bytes_of_rows(layout.rows_per_part)?.max(1)).peekable();
    while let Some(elements) = parts.next() {
        let mut rows = PixelRows { bytes: elements, above, row_bytes, pixel_bytes };
        if layout.is_converted {
            converted.drain(..converted.len().saturating_sub(row_bytes));
            let start = converted.len();
            conversion.append(&mut converted, elements, &array.data_type);
            let (above, pixels) = converted.split_at_checked(start).unwrap_or_default();
            rows = PixelRows { bytes: pixels, above: (!above.is_empty()).then_some(above), ..rows };
        } else {
            above = last_row_start(elements).and_then(|last| elements.get(last..));
        }
        filtered.clear();
        rows.write_filtered(&mut filtered, rows.best_filter());
        stream.append(&filtered, after.is_empty() && parts.peek().is_none());
    }
    stream.sync_flush(after.is_empty());
    Ok((stream.checksum.sum(), stream.checked_bytes))
}

/// Writes compressed data into chunks. Source: PNG specification §10.1, RFC 1950.
struct IdatStream<'a> {
    out: &'a mut Vec<u8>,
    /// True until the zlib header before the blocks is written.
    needs_zlib_header: bool,
    /// True if the stream ends with its own checksum.
    ends_with_checksum: bool,
    blocks: DeflateEncoder,
    checksum: Adler32,
    checked_bytes: u64,
}

impl IdatStream<'_> {
    fn append(&mut self, bytes: &[u8], is_last: bool) {
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
    fn sync_flush(&mut self, is_last: bool) {
        if !is_last {
            write_chunk(self.out, *b"IDAT", |out| self.blocks.write_block(out, &[], false));
        }
    }
}

/// Returns the checksum of two concatenated texts, each given by its checksum and length. Source: RFC 1950 §8.2.
fn adler32_combine((first, first_bytes): (u32, u64), (second, second_bytes): (u32, u64)) -> (u32, u64) {
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

#[cfg(test)]
mod tests {
    use png::{BitDepth, ColorType};
    use proptest::prelude::*;

    use super::*;

    fn options(window: Option<(f64, f64)>) -> EncodeOptions {
        EncodeOptions { window, ..EncodeOptions::default() }
    }

    /// Encodes and decodes an array. Returns width, height, bit depth and the bytes of the pixels.
    fn encode_and_decode(
        shape: &[u64],
        data_type: DataType,
        data: Vec<u8>,
        window: Option<(f64, f64)>,
    ) -> (u32, u32, BitDepth, Vec<u8>) {
        let array = Array { shape: shape.into(), data_type, data: data.into() };
        let file = PngFormat.encode(&array, &options(window)).unwrap().concat();
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!(info.color_type, ColorType::Grayscale);
        (info.width, info.height, info.bit_depth, pixels)
    }

    fn refusal(shape: &[u64], data_type: &DataType, window: Option<(f64, f64)>) -> String {
        PngFormat.accepts(shape, data_type, &options(window)).unwrap_err()
    }

    #[test]
    fn the_first_long_axis_goes_right_and_the_second_down() {
        let data: Vec<u8> = (0..6).collect();
        for shape in [&[3, 2][..], &[1, 3, 1, 2], &[3, 1, 2, 1]] {
            assert_eq!(
                encode_and_decode(shape, DataType::UInt8, data.clone(), None),
                (3, 2, BitDepth::Eight, data.clone())
            );
        }
    }

    #[test]
    fn a_line_is_one_pixel_high_and_an_element_one_pixel() {
        assert_eq!(
            encode_and_decode(&[1, 3], DataType::UInt8, vec![1, 2, 3], None),
            (3, 1, BitDepth::Eight, vec![1, 2, 3])
        );
        assert_eq!(encode_and_decode(&[], DataType::UInt8, vec![9], None), (1, 1, BitDepth::Eight, vec![9]));
    }

    #[test]
    fn uint16_keeps_16_bits() {
        let data: Vec<u8> = [0u16, 258, 65535].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(encode_and_decode(&[3], DataType::UInt16, data, None).2, BitDepth::Sixteen);
        let data: Vec<u8> = [0u16, 258, 65535].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(encode_and_decode(&[3], DataType::UInt16, data, None).3, [0, 0, 1, 2, 255, 255]);
    }

    #[test]
    fn a_window_maps_every_type_to_8_bits() {
        for name in DataType::names() {
            let data_type = DataType::from_name(name);
            let width = data_type.size_bytes().unwrap();
            let data: Vec<u8> = [0.0f64, 50.0, 100.0]
                .iter()
                .flat_map(|v| match name {
                    "float32" => {
                        f32::from(u8::try_from(v.to_string().parse::<u16>().unwrap()).unwrap()).to_le_bytes().to_vec()
                    }
                    "float64" => v.to_le_bytes().to_vec(),
                    _ => v.to_string().parse::<u64>().unwrap().to_le_bytes()[..width].to_vec(),
                })
                .collect();
            assert_eq!(encode_and_decode(&[3], data_type, data, Some((0.0, 100.0))).3, [0, 128, 255], "{name}");
        }
    }

    #[test]
    fn other_types_are_refused_with_a_remedy() {
        for name in ["int8", "int16", "int32", "int64", "uint32", "uint64", "float32", "float64"] {
            assert!(refusal(&[2, 2], &DataType::from_name(name), None).contains("window=lo,hi"), "{name}");
        }
    }

    #[test]
    fn shapes_that_are_not_planes_are_refused() {
        assert!(refusal(&[2, 2, 2], &DataType::UInt8, None).contains("two axes"));
        assert!(refusal(&[2, 0], &DataType::UInt8, None).contains("empty"));
        assert!(refusal(&[1 << 31, 2], &DataType::UInt8, None).contains("2147483647"));
        assert_eq!(PngFormat.accepts(&[(1 << 31) - 1, 1], &DataType::UInt8, &options(None)), Ok(()));
    }

    #[test]
    fn a_window_without_width_is_refused() {
        for window in [(1.0, 1.0), (0.0, -0.0), (f64::NAN, 1.0), (0.0, f64::INFINITY)] {
            assert!(refusal(&[2, 2], &DataType::UInt8, Some(window)).contains("no width"), "{window:?}");
        }
    }

    /// Returns pseudorandom values from 0 to 65535.
    fn noise(seed: u32) -> impl Iterator<Item = u16> {
        let mut state = seed.wrapping_mul(2_654_435_761) | 1;
        std::iter::repeat_with(move || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            u16::try_from(state >> 16).unwrap()
        })
    }

    /// A picture like those that clients request: its name, and a function of the position and of noise.
    type Picture = (&'static str, fn(u32, u32, u16) -> u16);

    const PICTURES: [Picture; 9] = [
        ("zeros", |_, _, _| 0),
        ("one value", |_, _, _| 0x4242),
        ("noise", |_, _, n| n),
        ("camera", |_, _, n| 0x80 + (0..4).map(|k| n >> (4 * k) & 15).sum::<u16>()),
        ("gradient", |x, y, _| u16::try_from((x * 3 + y * 5) / 7 % 65_536).unwrap()),
        ("gradient with noise", |x, y, n| u16::try_from((x.wrapping_mul(x) / 64 + y * 20) % 60_000).unwrap() + (n & 3)),
        ("labels", |x, y, _| [7, 260, 0, 513][(x / 37 + y / 23 * 3) as usize % 4]),
        ("stripes", |x, _, _| if x / 9 % 2 == 0 { 0xffff } else { 0 }),
        ("sparse", |x, _, n| if n < 300 { n } else { u16::try_from(x / 5000).unwrap() }),
    ];

    fn picture(name: &str, width: u64, height: u64, data_type: &DataType) -> Vec<u8> {
        let pixel_at = PICTURES.iter().find(|(picture_name, _)| *picture_name == name).unwrap().1;
        let positions =
            (0..u32::try_from(height).unwrap()).flat_map(|y| (0..u32::try_from(width).unwrap()).map(move |x| (x, y)));
        let bytes = data_type.size_bytes().unwrap();
        positions.zip(noise(7)).flat_map(|((x, y), n)| pixel_at(x, y, n).to_le_bytes()[..bytes].to_vec()).collect()
    }

    fn byte_swapped(data: &[u8]) -> Vec<u8> {
        data.as_chunks::<2>().0.iter().flat_map(|[low, high]| [*high, *low]).collect()
    }

    /// Returns the same picture encoded by the crate png, with fast compression.
    fn reference_file(width: u64, height: u64, data_type: &DataType, data: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, width.try_into().unwrap(), height.try_into().unwrap());
        encoder.set_color(ColorType::Grayscale);
        encoder.set_compression(png::Compression::Fast);
        let is_wide = *data_type == DataType::UInt16;
        encoder.set_depth(if is_wide { BitDepth::Sixteen } else { BitDepth::Eight });
        let data = if is_wide { byte_swapped(data) } else { data.to_vec() };
        encoder.write_header().unwrap().write_image_data(&data).unwrap();
        file
    }

    fn file(shape: &[u64], data_type: &DataType, data: Vec<u8>) -> Vec<u8> {
        let array = Array { shape: shape.into(), data_type: data_type.clone(), data: data.into() };
        PngFormat.encode(&array, &options(None)).unwrap().concat()
    }

    #[test]
    fn every_picture_round_trips_and_is_no_larger_than_from_the_png_crate() {
        for (name, _) in PICTURES {
            for data_type in [DataType::UInt8, DataType::UInt16] {
                for (width, height) in [(512, 512), (1, 700), (700, 1), (1, 1), (70_000, 3), (37, 2000)] {
                    let data = picture(name, width, height, &data_type);
                    let our_bytes = file(&[width, height], &data_type, data.clone()).len();
                    let reference_bytes = reference_file(width, height, &data_type, &data).len();
                    let description =
                        format!("{name} {data_type} {width}x{height}: {our_bytes}, the crate's {reference_bytes}");
                    let pixels = encode_and_decode(&[width, height], data_type.clone(), data.clone(), None).3;
                    let data = if data_type == DataType::UInt16 { byte_swapped(&data) } else { data };
                    assert!(pixels == data, "{description}");
                    // The allowance for additional chunks matters only for small pictures.
                    assert!(our_bytes * 20 <= reference_bytes * 21 + 20 * 40, "{description}");
                }
            }
        }
    }

    #[test]
    fn zeros_compress_to_less_than_a_600th() {
        let file = file(&[4096, 4096], &DataType::UInt8, vec![0; 4096 * 4096]);
        assert!(file.len() < 4096 * 4096 / 600, "{}", file.len());
    }

    #[test]
    fn the_smallest_file_has_the_expected_bytes() {
        let expected = [
            b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x01\0\0\0\x01\x08\0\0\0\0\x3a\x7e\x9b\x55".as_slice(),
            // A stored block: 0 for the filter and 9 for the pixel.
            b"\0\0\0\x0dIDAT\x78\x01\x01\x02\0\xfd\xff\0\x09\0\x0b\0\x0a",
        ];
        let file = file(&[], &DataType::UInt8, vec![9]);
        assert_eq!(file[..expected.concat().len()], expected.concat());
        assert_eq!(file[file.len() - 12..], *b"\0\0\0\0IEND\xae\x42\x60\x82");
        assert_eq!(file.len(), 70);
    }

    #[test]
    fn pieces_form_the_whole_encoding() {
        let data: Vec<u8> = noise(3).take(700 * 900).map(|n| n.to_le_bytes()[0]).collect();
        let array = Array { shape: [700, 900].as_slice().into(), data_type: DataType::UInt8, data: data.into() };
        let count = PngFormat.piece_count(&array.shape, &array.data_type, &options(None));
        assert_eq!(count, 4);
        let used_buffer = |bytes| vec![7; bytes];
        let pieces: Vec<EncodedPiece> =
            (0..count).map(|n| PngFormat.encode_piece(n, &used_buffer, &array, &options(None)).unwrap()).collect();
        let trailer = PngFormat.trailer(&pieces);
        let parts: Vec<Bytes> = pieces.into_iter().map(|piece| piece.bytes).chain([trailer]).collect();
        assert_eq!(parts.concat(), PngFormat.encode(&array, &options(None)).unwrap().concat());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn images_round_trip(
            (width, height) in prop_oneof![(1u64..20, 1u64..20), (1u64..900, 1u64..600), (1u64..9, 1u64..90_000)],
            pieces in prop::collection::vec((0usize..4, 1usize..9000, any::<u8>()), 1..60),
            is_wide in any::<bool>(),
        ) {
            let data_type = if is_wide { DataType::UInt16 } else { DataType::UInt8 };
            let bytes = usize::try_from(width * height).unwrap() * data_type.size_bytes().unwrap();
            let mut noise = noise(bytes.try_into().unwrap());
            let mut data = Vec::new();
            for (kind, length, byte) in pieces.iter().cycle() {
                match kind {
                    0 => data.extend(std::iter::repeat_n(*byte, *length)),
                    1 => data.extend(noise.by_ref().take(*length).map(|n| n.to_le_bytes()[0])),
                    2 => data.extend((0..*length).map(|n| byte.wrapping_add((n / 5).to_le_bytes()[0]))),
                    _ => data.extend(noise.by_ref().take(*length).map(|n| if n < 9000 { *byte } else { 1 })),
                }
                if data.len() >= bytes {
                    break;
                }
            }
            data.truncate(bytes);
            let (w, h, _, pixels) = encode_and_decode(&[width, height], data_type.clone(), data.clone(), None);
            prop_assert_eq!((w, h), if width == 1 { (u32::try_from(height).unwrap(), 1) } else {
                (u32::try_from(width).unwrap(), u32::try_from(height).unwrap())
            });
            let data = if is_wide { byte_swapped(&data) } else { data };
            prop_assert!(pixels == data);
            let array = Array { shape: [width, height].as_slice().into(), data_type: data_type.clone(), data: Bytes::new() };
            let bound = PngFormat.extra_bytes(&array.shape, &data_type, &options(None));
            prop_assert!(file(&[width, height], &data_type, vec![0x5a; bytes]).len() as u64 <= bound);
        }
    }
}
