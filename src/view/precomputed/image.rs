//! Chunks as PNG and JPEG images: the rows of all slices one below the other, with one component for each channel.

use bytes::Bytes;
use jpeg_encoder::SamplingFactor;
use png::{BitDepth, ColorType, Compression};

/// Longest side of an image: the limit of JPEG, which is below the limit of libpng, one million.
const MAX_SIDE: u64 = 65_535;

/// Returns the width and height of a chunk's image, or `None` if no image can hold the chunk.
///
/// An image is valid if its rows, one after the other, are the voxels of the chunk. It is usually x wide and y·z high.
/// If that is too high, each row holds several lines of the chunk.
///
/// Source: `volume.rst`, "2-d image format encodings".
pub(super) fn image_size(shape: [u64; 3]) -> Option<(u16, u16)> {
    let [x, y, z] = shape;
    let lines = y.checked_mul(z)?;
    let min_lines_per_row = lines.div_ceil(MAX_SIDE).max(1);
    let max_lines_per_row = MAX_SIDE.checked_div(x)?;
    let lines_per_row =
        (min_lines_per_row..=max_lines_per_row).find(|lines_per_row| lines.checked_rem(*lines_per_row) == Some(0))?;
    let width = x.checked_mul(lines_per_row)?;
    let height = lines.checked_div(lines_per_row)?;
    Some((u16::try_from(width).ok()?, u16::try_from(height).ok()?))
}

/// Returns an upper bound of the memory in bytes for encoding `elements` elements of 1 or 2 bytes as PNG or JPEG.
///
/// Noise takes about one and a half bytes per element in a JPEG of the highest quality, and at worst 12 bits per byte
/// in a PNG. A vector that grows is up to twice as long as its content. The components are interleaved in a copy.
pub(super) fn encoder_bytes(elements: u64, width: usize) -> u64 {
    let bytes = elements.saturating_mul(width as u64);
    // JPEG rounds sides up to a multiple of 8, and both encoders buffer a few rows.
    bytes.saturating_mul(5).saturating_add(MAX_SIDE.saturating_mul(64))
}

/// Returns the components of each pixel side by side, in PNG's byte order.
fn interleaved(data: &[u8], element_bytes: usize, channels: usize) -> Vec<u8> {
    let mut pixels = vec![0; data.len()];
    let channel_bytes = data.len().checked_div(channels).unwrap_or(0).max(1);
    for (number, channel) in data.chunks_exact(channel_bytes).enumerate() {
        let targets = pixels.chunks_exact_mut(element_bytes).skip(number).step_by(channels);
        for (target, source) in targets.zip(channel.chunks_exact(element_bytes)) {
            target.iter_mut().zip(source.iter().rev()).for_each(|(to, from)| *to = *from);
        }
    }
    pixels
}

/// Encodes an image of this width and height as PNG. `data` holds little-endian elements of 1 or 2 bytes, one channel
/// after the other.
pub(super) fn png(
    data: &[u8],
    element_bytes: usize,
    channels: usize,
    (width, height): (u16, u16),
) -> Result<Bytes, String> {
    let color = match channels {
        1 => ColorType::Grayscale,
        2 => ColorType::GrayscaleAlpha,
        3 => ColorType::Rgb,
        4 => ColorType::Rgba,
        other => return Err(format!("a PNG has 1 to 4 channels, not {other}")),
    };
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width.into(), height.into());
    encoder.set_color(color);
    encoder.set_depth(if element_bytes == 2 { BitDepth::Sixteen } else { BitDepth::Eight });
    encoder.set_compression(Compression::Fast);
    let encode = |encoder: png::Encoder<'_, &mut Vec<u8>>| {
        let mut writer = encoder.write_header()?;
        match (channels, element_bytes) {
            (1, 1) => writer.write_image_data(data)?,
            _ => writer.write_image_data(&interleaved(data, element_bytes, channels))?,
        }
        writer.finish()
    };
    encode(encoder).map_err(|error| format!("the PNG encoder failed: {error}"))?;
    out.shrink_to_fit();
    Ok(out.into())
}

/// Like [`png()`], but encodes as JPEG, without subsampling of any component.
pub(super) fn jpeg(
    data: &[u8],
    element_bytes: usize,
    channels: usize,
    (width, height): (u16, u16),
    quality: u8,
) -> Result<Bytes, String> {
    let mut out = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut out, quality);
    encoder.set_sampling_factor(SamplingFactor::R_4_4_4);
    let encoded = match channels {
        1 => encoder.encode(data, width, height, jpeg_encoder::ColorType::Luma),
        3 => encoder.encode(&interleaved(data, element_bytes, channels), width, height, jpeg_encoder::ColorType::Rgb),
        other => return Err(format!("a JPEG has 1 or 3 channels, not {other}")),
    };
    encoded.map_err(|error| format!("the JPEG encoder failed: {error}"))?;
    out.shrink_to_fit();
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(file: &Bytes) -> (png::OutputInfo, Vec<u8>) {
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        (info, pixels)
    }

    #[test]
    fn an_image_is_as_wide_as_x_or_a_multiple_of_it() {
        assert_eq!(image_size([64, 64, 64]), Some((64, 4096)));
        assert_eq!(image_size([1, 1, 1]), Some((1, 1)));
        assert_eq!(image_size([512, 512, 512]), Some((4096, 32_768)));
        assert_eq!(image_size([65_535, 65_535, 1]), Some((65_535, 65_535)));
    }

    #[test]
    fn shapes_that_no_image_holds_have_no_size() {
        assert_eq!(image_size([65_536, 1, 1]), None);
        assert_eq!(image_size([1, 65_537, 1]), None, "a prime");
        assert_eq!(image_size([65_535, 65_535, 2]), None);
        assert_eq!(image_size([1, u64::MAX, u64::MAX]), None);
    }

    #[test]
    fn png_holds_channels_as_components_and_the_high_byte_first() {
        let data: Vec<u8> = [0x0102u16, 0x0304, 0x0506, 0x0708].iter().flat_map(|v| v.to_le_bytes()).collect();
        let two_channels = png(&data, 2, 2, (2, 1)).unwrap();
        let (info, pixels) = decoded(&two_channels);
        assert_eq!((info.color_type, info.bit_depth), (ColorType::GrayscaleAlpha, BitDepth::Sixteen));
        assert_eq!(pixels, [1, 2, 5, 6, 3, 4, 7, 8]);
        let three_channels = png(&[1, 2, 3, 4, 5, 6], 1, 3, (1, 2)).unwrap();
        assert_eq!(decoded(&three_channels).1, [1, 3, 5, 2, 4, 6]);
        let one_channel = png(&data, 2, 1, (2, 2)).unwrap();
        assert_eq!(decoded(&one_channel).1, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn a_jpeg_has_the_given_size_and_components() {
        for (channels, data) in [(1, vec![7; 12]), (3, vec![7; 36])] {
            let file = jpeg(&data, 1, channels, (3, 4), 90).unwrap();
            let frame = file.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
            let (height, width) = ([file[frame + 5], file[frame + 6]], [file[frame + 7], file[frame + 8]]);
            assert_eq!((height, width, usize::from(file[frame + 9])), ([0, 4], [0, 3], channels));
            assert!(file.starts_with(&[0xff, 0xd8]) && file.ends_with(&[0xff, 0xd9]));
        }
    }

    #[test]
    fn noise_stays_within_the_bound() {
        let mut state = 1u32;
        let data: Vec<u8> = (0..48 * 48 * 3)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state.to_be_bytes()[0]
            })
            .collect();
        for file in [png(&data, 1, 3, (48, 48)).unwrap(), jpeg(&data, 1, 3, (48, 48), 100).unwrap()] {
            assert!(file.len() < 2 * data.len(), "{}", file.len());
        }
    }
}
