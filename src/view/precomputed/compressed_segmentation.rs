//! The encoding `compressed_segmentation`: a table of the values in each small box, and an index into it per voxel.
//!
//! Source: Neuroglancer `src/sliceview/compressed_segmentation/README.md`.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use bytes::Bytes;

/// Shape of a box in voxels.
pub(super) const BLOCK_SHAPE: [u64; 3] = [8, 8, 8];

/// Side length of a box in voxels.
const BLOCK_SIDE: usize = 8;
/// Number of voxels in a box, including those beyond the chunk.
const BLOCK_VOXELS: usize = BLOCK_SIDE * BLOCK_SIDE * BLOCK_SIDE;
/// Largest offset of a table. Offsets have 24 bits.
const MAX_TABLE_OFFSET: u32 = (1 << 24) - 1;

/// Returns an upper bound of the memory in bytes for encoding a chunk of this shape, whose elements have `width` bytes.
pub(super) fn encoder_bytes(shape: [u64; 3], channels: u64, width: usize) -> u64 {
    let side = BLOCK_SIDE as u64;
    let voxels = shape.iter().copied().fold(channels, u64::saturating_mul);
    let boxes = shape.iter().map(|size| size.div_ceil(side)).fold(channels, u64::saturating_mul);
    let max_values = shape.iter().map(|size| (*size).min(side)).fold(1, u64::saturating_mul);
    let bits = u64::from(index_bits(usize::try_from(max_values).unwrap_or(BLOCK_VOXELS)));
    let bytes_per_box = bits.saturating_mul(BLOCK_VOXELS as u64 / 8).saturating_add(8);
    let table_bytes = voxels.saturating_mul(width as u64);
    boxes
        .saturating_mul(bytes_per_box)
        .saturating_add(table_bytes)
        .saturating_add(channels.saturating_mul(4))
        .saturating_add(64)
}

/// Encodes a chunk of this shape and number of channels. `data` is little-endian, with the first axis fastest and
/// channels last. Its elements have 4 or 8 bytes.
///
/// # Errors
/// Returns a message for the client if the chunk is too large for the format.
pub(super) fn encode(data: &[u8], shape: [usize; 3], channels: usize, width: usize) -> Result<Bytes, String> {
    match width {
        4 => encode_as(data.as_chunks::<4>().0, shape, channels),
        8 => encode_as(data.as_chunks::<8>().0, shape, channels),
        other => Err(format!("compressed_segmentation requires elements of 4 or 8 bytes, not {other}")),
    }
}

fn encode_as<const WIDTH: usize>(data: &[[u8; WIDTH]], shape: [usize; 3], channels: usize) -> Result<Bytes, String> {
    let extents = shape.map(|size| size as u64);
    let bound = encoder_bytes(extents, channels as u64, WIDTH);
    let mut out = Vec::with_capacity(usize::try_from(bound).map_err(|_too_large| too_large(shape))?);
    out.resize(channels.saturating_mul(4), 0);
    let elements = shape.iter().product::<usize>().max(1);
    for (number, channel) in data.chunks(elements).take(channels).enumerate() {
        let begin = offset_words(&out, 0, shape)?;
        if let Some(header) = out.as_chunks_mut::<4>().0.get_mut(number) {
            *header = begin.to_le_bytes();
        }
        encode_channel(channel, shape, &mut out)?;
    }
    out.shrink_to_fit();
    Ok(out.into())
}

/// Appends one channel: a header for each box, then the packed indices and the tables of the boxes, first axis fastest.
fn encode_channel<const WIDTH: usize>(
    data: &[[u8; WIDTH]],
    shape: [usize; 3],
    out: &mut Vec<u8>,
) -> Result<(), String> {
    let start = out.len();
    let boxes = shape.map(|size| size.div_ceil(BLOCK_SIDE));
    out.resize(start.saturating_add(boxes.iter().product::<usize>().saturating_mul(8)), 0);
    let mut voxels = Vec::with_capacity(BLOCK_VOXELS);
    let mut table = Vec::with_capacity(BLOCK_VOXELS);
    let mut last_table: (Vec<u64>, u32) = (Vec::new(), 0);
    let mut header = start;
    let origins = |axis: usize| (0..shape.get(axis).copied().unwrap_or(0)).step_by(BLOCK_SIDE);
    for z in origins(2) {
        for y in origins(1) {
            for x in origins(0) {
                gather(data, shape, [x, y, z], &mut voxels);
                table.clear();
                table.extend(voxels.iter().map(|(value, _)| *value));
                table.dedup();
                table.sort_unstable();
                table.dedup();
                let bits = index_bits(table.len());
                let values_offset = offset_words(out, start, shape)?;
                pack_indices(&voxels, &table, bits, out);
                // A table that equals the previous one is shared: neighbouring boxes often have the same values, most
                // often a single one.
                if last_table.0 != table || last_table.1 == 0 {
                    last_table = (table.clone(), offset_words(out, start, shape)?);
                    let entries = table.iter().flat_map(|value| value.to_le_bytes().into_iter().take(WIDTH));
                    out.extend(entries);
                }
                if last_table.1 > MAX_TABLE_OFFSET {
                    return Err(too_large(shape));
                }
                let end = header.saturating_add(8);
                if let Some(slot) = out.get_mut(header..end).and_then(|slot| slot.first_chunk_mut::<8>()) {
                    *slot = (u64::from(last_table.1) | u64::from(bits) << 24 | u64::from(values_offset) << 32)
                        .to_le_bytes();
                }
                header = end;
            }
        }
    }
    Ok(())
}

/// Collects the voxels of the box at `x`, `y`, `z` that lie in the chunk, each with its index in the box.
fn gather<const WIDTH: usize>(
    data: &[[u8; WIDTH]],
    [width, height, depth]: [usize; 3],
    [x, y, z]: [usize; 3],
    voxels: &mut Vec<(u64, usize)>,
) {
    voxels.clear();
    let run_length = width.saturating_sub(x).min(BLOCK_SIDE);
    for (slice, z) in (z..depth).take(BLOCK_SIDE).enumerate() {
        for (line, y) in (y..height).take(BLOCK_SIDE).enumerate() {
            let start = z.saturating_mul(height).saturating_add(y).saturating_mul(width).saturating_add(x);
            let run = data.get(start..start.saturating_add(run_length)).unwrap_or_default();
            let voxel_index = slice.saturating_mul(BLOCK_SIDE).saturating_add(line).saturating_mul(BLOCK_SIDE);
            voxels.extend(run.iter().zip(voxel_index..).map(|(element, voxel_index)| (value(element), voxel_index)));
        }
    }
}

fn value<const WIDTH: usize>(element: &[u8; WIDTH]) -> u64 {
    element.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Appends the table index of each voxel in `bits` bits. The index is 0 for voxels beyond the chunk.
fn pack_indices(voxels: &[(u64, usize)], table: &[u64], bits: u8, out: &mut Vec<u8>) {
    if bits == 0 {
        return;
    }
    let bits = usize::from(bits);
    let mut packed = [0u32; BLOCK_VOXELS / 2];
    let mut previous: Option<(u64, u32)> = None;
    for (value, voxel_index) in voxels {
        let index = match previous {
            Some((previous_value, index)) if previous_value == *value => index,
            _ => u32::try_from(table.binary_search(value).unwrap_or(0)).unwrap_or(0),
        };
        previous = Some((*value, index));
        let bit = voxel_index.saturating_mul(bits);
        if let Some(word) = packed.get_mut(bit / 32) {
            *word |= index << (bit % 32);
        }
    }
    let word_count = BLOCK_VOXELS.saturating_mul(bits) / 32;
    out.extend(packed.iter().take(word_count).flat_map(|word| word.to_le_bytes()));
}

/// Returns the number of bits that an index into a table of `values` values takes. A box has at most 512 values.
fn index_bits(values: usize) -> u8 {
    match values {
        0 | 1 => 0,
        2 => 1,
        3..=4 => 2,
        5..=16 => 4,
        17..=256 => 8,
        _ => 16,
    }
}

/// Returns the number of 32-bit words in `out` after `start`.
fn offset_words(out: &[u8], start: usize, shape: [usize; 3]) -> Result<u32, String> {
    u32::try_from(out.len().saturating_sub(start) / 4).map_err(|_too_large| too_large(shape))
}

fn too_large(shape: [usize; 3]) -> String {
    format!(
        "a chunk of {shape:?} voxels with so many values is too large for compressed_segmentation; use encoding=raw"
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Decodes the elements to 64-bit numbers, as the specification says.
    fn decode(file: &[u8], shape: [usize; 3], channels: usize, width: usize) -> Vec<u64> {
        let word = |at: usize| u32::from_le_bytes(file[4 * at..4 * at + 4].try_into().unwrap());
        let mut values = Vec::new();
        let grid = shape.map(|size| size.div_ceil(8));
        for channel in 0..channels {
            let base = word(channel) as usize;
            if channel == 0 {
                assert_eq!(base, channels);
            }
            for z in 0..shape[2] {
                for y in 0..shape[1] {
                    for x in 0..shape[0] {
                        let header = base + 2 * (x / 8 + grid[0] * (y / 8 + grid[1] * (z / 8)));
                        let (table, bits) = ((word(header) & 0xff_ffff) as usize, (word(header) >> 24) as usize);
                        assert!([0, 1, 2, 4, 8, 16].contains(&bits));
                        let bit_offset = (x % 8 + 8 * (y % 8 + 8 * (z % 8))) * bits;
                        let index = if bits == 0 {
                            0
                        } else {
                            let packed = word(base + word(header + 1) as usize + bit_offset / 32);
                            (packed >> (bit_offset % 32)) as usize & ((1 << bits) - 1)
                        };
                        let entry = base + table + index * (width / 4);
                        let high = if width == 8 { u64::from(word(entry + 1)) << 32 } else { 0 };
                        values.push(u64::from(word(entry)) | high);
                    }
                }
            }
        }
        values
    }

    fn bytes(values: &[u64], width: usize) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()[..width].to_vec()).collect()
    }

    fn check_round_trip(values: &[u64], shape: [usize; 3], channels: usize, width: usize) -> usize {
        let file = encode(&bytes(values, width), shape, channels, width).unwrap();
        assert_eq!(decode(&file, shape, channels, width), values, "{shape:?} {channels} {width}");
        let bound = encoder_bytes(shape.map(|size| size as u64), channels as u64, width);
        assert!(file.len() as u64 <= bound, "{} > {bound} for {shape:?}", file.len());
        file.len()
    }

    #[test]
    fn one_value_takes_a_header_for_each_box_and_one_table() {
        assert_eq!(check_round_trip(&vec![7; 4096], [16, 16, 16], 1, 8), 4 + 8 * 8 + 8);
        assert_eq!(check_round_trip(&[0; 24], [2, 3, 4], 1, 4), 4 + 8 + 4);
    }

    #[test]
    fn the_bytes_are_those_of_the_specification() {
        // Two distinct 32-bit values need indices of 1 bit, which take 16 words. The table follows the indices.
        let file = encode(&bytes(&[9, 5, 9], 4), [3, 1, 1], 1, 4).unwrap();
        let word = |at: usize| u32::from_le_bytes(file[4 * at..4 * at + 4].try_into().unwrap());
        assert_eq!((word(0), word(1), word(2), word(3)), (1, 0x0100_0012, 2, 0b101));
        assert_eq!((word(19), word(20), file.len()), (5, 9, 21 * 4));
    }

    #[test]
    fn every_number_of_bits_round_trips() {
        for distinct in [1, 2, 3, 4, 5, 16, 17, 256, 257, 512] {
            let values: Vec<u64> = (0..512).map(|n| (n % distinct) << 33 | 1).collect();
            check_round_trip(&values, [8, 8, 8], 1, 8);
        }
    }

    proptest! {
        #[test]
        fn chunks_round_trip(
            shape in [1usize..20, 1usize..20, 1usize..12],
            channels in 1usize..4,
            is_wide: bool,
            value_count in prop::sample::select(vec![1u64, 2, 3, 7, 100, 1 << 20, u64::MAX]),
            seed: u64,
        ) {
            let width = if is_wide { 8 } else { 4 };
            let mut state = seed;
            let values: Vec<u64> = (0..shape.iter().product::<usize>() * channels).map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let value = state.rotate_right(11) % value_count;
                if is_wide { value } else { value & 0xffff_ffff }
            }).collect();
            check_round_trip(&values, shape, channels, width);
        }
    }
}
