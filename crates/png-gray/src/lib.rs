//! A fast encoder of lossless PNG images: grey with 8 or 16 bits per pixel, or colour with 8 bits per channel.
//!
//! It is made for images from instruments such as microscopes. Such images are noisy, so a search for repetitions would
//! find little. Rows are filtered, and each part of about 60 KB gets its own Huffman codes. An image can be encoded in
//! pieces, in parallel. Elements can be converted to pixels during the encoding, so that no second image is held in
//! memory.
//!
//! [`encode`] encodes a whole image:
//!
//! ```
//! use png_gray::{BitDepth, encode};
//!
//! let pixels: Vec<u8> = (0..64 * 32).map(|n| (n % 64) as u8).collect();
//! let file = encode(64, 32, BitDepth::Eight, &pixels)?;
//! assert!(file.starts_with(b"\x89PNG\r\n\x1a\n") && file.len() < pixels.len() / 4);
//! # Ok::<(), png_gray::PngError>(())
//! ```
//!
//! [`ImageLayout`] encodes an image in pieces. The number of pieces depends only on the size of the image, so the bytes
//! are the same on every machine:
//!
//! ```
//! use png_gray::{BitDepth, ImageLayout, Pixels, trailer};
//!
//! let elements: Vec<u16> = (0..1024 * 1024).map(|n| n as u16).collect();
//! let layout = ImageLayout::new(1024, 1024, BitDepth::Sixteen).expect("the image is not empty");
//! // Each piece can be encoded in a thread of its own.
//! let convert = |rows: std::ops::Range<u32>, out: &mut Vec<u8>| {
//!     let elements = &elements[rows.start as usize * 1024..rows.end as usize * 1024];
//!     out.extend(elements.iter().flat_map(|element| element.to_be_bytes()));
//! };
//! let mut file = Vec::new();
//! let mut checksums = Vec::new();
//! for number in 0..layout.piece_count() {
//!     checksums.push(layout.encode_piece(number, Pixels::Converted(&convert), &mut file)?);
//! }
//! file.extend(trailer(&checksums));
//! # Ok::<(), png_gray::PngError>(())
//! ```
//!
//! Source: PNG specification, third edition, <https://www.w3.org/TR/png-3/>; RFC 1950; RFC 1951.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod deflate;
mod filter;
mod huffman;
mod layout;

pub use layout::{BitDepth, ImageLayout, MAX_SIDE, PieceChecksum, Pixels, PngError, trailer};

/// Encodes an image. `pixels` holds its rows from top to bottom, without gaps. Pixels of 16 bits have the high byte
/// first.
///
/// # Errors
/// [`PngError`] if a side is 0 or exceeds [`MAX_SIDE`], if the length of `pixels` does not match the size of the image,
/// or if there is no memory.
pub fn encode(width: u32, height: u32, depth: BitDepth, pixels: &[u8]) -> Result<Vec<u8>, PngError> {
    let layout = ImageLayout::new(width, height, depth).ok_or(PngError::Size { width, height })?;
    let mut file = Vec::new();
    let mut checksums = Vec::new();
    for number in 0..layout.piece_count() {
        checksums.push(layout.encode_piece(number, Pixels::Stored(pixels), &mut file)?);
    }
    file.extend_from_slice(&trailer(&checksums));
    Ok(file)
}

#[cfg(test)]
mod tests {
    use png::ColorType;
    use proptest::prelude::*;

    use super::*;

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

    fn picture(name: &str, width: u32, height: u32, depth: BitDepth) -> Vec<u8> {
        let pixel_at = PICTURES.iter().find(|(picture_name, _)| *picture_name == name).unwrap().1;
        let positions = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
        let skipped_bytes = usize::from(depth == BitDepth::Eight);
        let pixels = positions.zip(noise(7)).map(|((x, y), n)| pixel_at(x, y, n).to_be_bytes());
        pixels.flat_map(|pixel| pixel.into_iter().skip(skipped_bytes)).collect()
    }

    /// Returns the same picture encoded by the crate png, with fast compression.
    fn reference_file(width: u32, height: u32, depth: BitDepth, pixels: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, width, height);
        encoder.set_color(ColorType::Grayscale);
        encoder.set_compression(png::Compression::Fast);
        let is_wide = depth == BitDepth::Sixteen;
        encoder.set_depth(if is_wide { png::BitDepth::Sixteen } else { png::BitDepth::Eight });
        encoder.write_header().unwrap().write_image_data(pixels).unwrap();
        file
    }

    /// Encodes and decodes an image. Returns the length of the file and the bytes of the pixels.
    fn round_trip(width: u32, height: u32, depth: BitDepth, pixels: &[u8]) -> (usize, Vec<u8>) {
        let file = encode(width, height, depth, pixels).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(&file)).read_info().unwrap();
        let mut decoded = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut decoded).unwrap();
        let bits = if depth == BitDepth::Sixteen { png::BitDepth::Sixteen } else { png::BitDepth::Eight };
        assert_eq!((info.color_type, info.bit_depth), (ColorType::Grayscale, bits));
        assert_eq!((info.width, info.height), (width, height));
        (file.len(), decoded)
    }

    #[test]
    fn every_picture_round_trips_and_is_no_larger_than_from_the_png_crate() {
        for (name, _) in PICTURES {
            for depth in [BitDepth::Eight, BitDepth::Sixteen] {
                for (width, height) in [(512, 512), (1, 700), (700, 1), (1, 1), (70_000, 3), (37, 2000)] {
                    let pixels = picture(name, width, height, depth);
                    let (our_bytes, decoded) = round_trip(width, height, depth, &pixels);
                    let reference_bytes = reference_file(width, height, depth, &pixels).len();
                    let description =
                        format!("{name} {depth:?} {width}x{height}: {our_bytes}, the crate's {reference_bytes}");
                    assert!(decoded == pixels, "{description}");
                    // The allowance for additional chunks matters only for small pictures.
                    assert!(our_bytes * 20 <= reference_bytes * 21 + 20 * 40, "{description}");
                }
            }
        }
    }

    #[test]
    fn zeros_compress_to_less_than_a_600th() {
        let file = encode(4096, 4096, BitDepth::Eight, &vec![0; 4096 * 4096]).unwrap();
        assert!(file.len() < 4096 * 4096 / 600, "{}", file.len());
    }

    #[test]
    fn the_smallest_file_has_the_expected_bytes() {
        let expected = [
            b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x01\0\0\0\x01\x08\0\0\0\0\x3a\x7e\x9b\x55".as_slice(),
            // A stored block of two bytes: 0 for the filter and 9 for the pixel.
            b"\0\0\0\x0dIDAT\x78\x01\x01\x02\0\xfd\xff\0\x09\0\x0b\0\x0a",
        ];
        let file = encode(1, 1, BitDepth::Eight, &[9]).unwrap();
        assert_eq!(file[..expected.concat().len()], expected.concat());
        assert_eq!(file[file.len() - 12..], *b"\0\0\0\0IEND\xae\x42\x60\x82");
        assert_eq!(file.len(), 70);
    }

    #[test]
    fn converted_pixels_give_the_same_bytes_in_pieces_of_bounded_size() {
        let elements: Vec<u16> = noise(3).take(700 * 900).collect();
        let pixels: Vec<u8> = elements.iter().flat_map(|element| element.to_be_bytes()).collect();
        let convert = |rows: std::ops::Range<u32>, out: &mut Vec<u8>| {
            let elements = &elements[rows.start as usize * 700..rows.end as usize * 700];
            out.extend(elements.iter().flat_map(|element| element.to_be_bytes()));
        };
        let layout = ImageLayout::new(700, 900, BitDepth::Sixteen).unwrap();
        assert_eq!(layout.piece_count(), 4);
        let mut file = Vec::new();
        let mut checksums = Vec::new();
        for number in 0..4 {
            let mut piece = Vec::new();
            checksums.push(layout.encode_piece(number, Pixels::Converted(&convert), &mut piece).unwrap());
            assert!(piece.len() as u64 <= layout.max_piece_bytes());
            file.extend(piece);
        }
        file.extend(trailer(&checksums));
        assert_eq!(file, encode(700, 900, BitDepth::Sixteen, &pixels).unwrap());
    }

    #[test]
    fn a_colour_image_round_trips_in_pieces() {
        for (width, height) in [(1, 1), (3, 5), (300, 700)] {
            let layout = ImageLayout::rgb(width, height).unwrap();
            let pixels: Vec<u8> =
                noise(5).take((width * height * 3) as usize).map(|n| n.to_le_bytes()[0] >> (n % 8)).collect();
            let mut file = Vec::new();
            let mut checksums = Vec::new();
            for number in 0..layout.piece_count() {
                checksums.push(layout.encode_piece(number, Pixels::Stored(&pixels), &mut file).unwrap());
            }
            file.extend(trailer(&checksums));
            let mut reader = png::Decoder::new(std::io::Cursor::new(&file)).read_info().unwrap();
            let mut decoded = vec![0; reader.output_buffer_size().unwrap()];
            let info = reader.next_frame(&mut decoded).unwrap();
            assert_eq!((info.color_type, info.width, info.height), (ColorType::Rgb, width, height));
            assert_eq!(decoded, pixels);
        }
        assert_eq!(ImageLayout::rgb(0, 1), None);
    }

    #[test]
    fn what_is_no_image_is_an_error() {
        assert_eq!(encode(0, 1, BitDepth::Eight, &[]), Err(PngError::Size { width: 0, height: 1 }));
        assert_eq!(ImageLayout::new(1, 1 << 31, BitDepth::Eight), None);
        let error = encode(2, 2, BitDepth::Sixteen, &[0; 7]).unwrap_err();
        assert_eq!(error, PngError::Length { expected: 8, found: 7 });
        assert_eq!(error.to_string(), "the pixels have 7 bytes, but the image requires 8");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn images_round_trip(
            (width, height) in prop_oneof![(1u32..20, 1u32..20), (1u32..900, 1u32..600), (1u32..9, 1u32..90_000)],
            runs in prop::collection::vec((0usize..4, 1usize..9000, any::<u8>()), 1..60),
            is_wide in any::<bool>(),
        ) {
            let depth = if is_wide { BitDepth::Sixteen } else { BitDepth::Eight };
            let bytes = width as usize * height as usize * if is_wide { 2 } else { 1 };
            let mut noise = noise(bytes.try_into().unwrap());
            let mut pixels = Vec::new();
            for (kind, length, byte) in runs.iter().cycle() {
                match kind {
                    0 => pixels.extend(std::iter::repeat_n(*byte, *length)),
                    1 => pixels.extend(noise.by_ref().take(*length).map(|n| n.to_le_bytes()[0])),
                    2 => pixels.extend((0..*length).map(|n| byte.wrapping_add((n / 5).to_le_bytes()[0]))),
                    _ => pixels.extend(noise.by_ref().take(*length).map(|n| if n < 9000 { *byte } else { 1 })),
                }
                if pixels.len() >= bytes {
                    break;
                }
            }
            pixels.truncate(bytes);
            let (len, decoded) = round_trip(width, height, depth, &pixels);
            prop_assert!(decoded == pixels);
            let layout = ImageLayout::new(width, height, depth).unwrap();
            prop_assert!(len as u64 <= layout.max_piece_bytes() * layout.piece_count() as u64);
        }
    }
}
