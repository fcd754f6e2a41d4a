//! `IJMetadata`: the colours, displayed ranges and names of channels in a TIFF, as ImageJ stores them.
//!
//! The data begin with a header: the magic number `IJIJ`, then a type and a number of blocks for each type, all as
//! 32-bit integers in the byte order of the file. The blocks follow in the same order. A second tag lists the length of
//! the header and of each block.
//!
//! Source: ImageJ 1.53t, `ij/io/TiffEncoder.java` and `ij/io/TiffDecoder.java` (`getMetaData`).

use super::encoding::StackChannel;

/// Tag of the lengths, whose values are 32-bit integers.
pub(super) const BYTE_COUNTS_TAG: u16 = 50838;

/// Tag of the data, whose values are bytes.
pub(super) const DATA_TAG: u16 = 50839;

/// Largest number of channels that ImageJ shows in one image.
pub const MAX_STACK_CHANNELS: usize = 7;

/// Largest number of pages with names. In larger stacks, the channels have no names.
const MAX_NAMED_PAGES: u32 = 10_000;

/// Maximum length of a channel's name in UTF-16 code units. The names of all pages are smaller than the directories.
const MAX_NAME_UNITS: usize = 32;

/// Magic number, and types of blocks.
const MAGIC: [u8; 4] = *b"IJIJ";
const LABELS: [u8; 4] = *b"labl";
const RANGES: [u8; 4] = *b"rang";
const LUTS: [u8; 4] = *b"luts";

/// Bytes of a lookup table: 256 values of red, then of green, then of blue.
const LUT_BYTES: u32 = 768;

/// Metadata of a stack with 2 to [`MAX_STACK_CHANNELS`] channels.
#[derive(Debug)]
pub(super) struct ImagejMetadata {
    channels: Vec<StackChannel>,
    /// Names of the channels in UTF-16; empty if the pages have no names.
    names: Vec<Vec<u16>>,
    pages: u32,
    has_ranges: bool,
}

/// Blocks of one type.
struct BlockType {
    kind: [u8; 4],
    /// Number of blocks.
    count: u32,
}

impl ImagejMetadata {
    /// Returns the metadata of a stack of `pages` pages with `channel_count` channels, which are consecutive pages.
    /// Returns `None` if there are not 2 to [`MAX_STACK_CHANNELS`] channels, or if `channels` has another number.
    pub(super) fn of(channels: &[StackChannel], channel_count: u64, pages: u32) -> Option<Self> {
        let is_shown = (2..=MAX_STACK_CHANNELS).contains(&channels.len());
        if !is_shown || channel_count != channels.len() as u64 {
            return None;
        }
        let is_named = pages <= MAX_NAMED_PAGES && channels.iter().any(|channel| !channel.name.is_empty());
        let names = if is_named { channels.iter().map(utf16_name).collect() } else { Vec::new() };
        let has_ranges = channels.iter().all(|channel| channel.window.is_some());
        Some(Self { channels: channels.to_vec(), names, pages, has_ranges })
    }

    /// Returns the types of blocks in the order of the data.
    fn block_types(&self) -> impl Iterator<Item = BlockType> {
        let channel_count = u32::try_from(self.channels.len()).unwrap_or(0);
        let types = [
            (LABELS, if self.names.is_empty() { 0 } else { self.pages }),
            (RANGES, u32::from(self.has_ranges)),
            (LUTS, channel_count),
        ];
        types.into_iter().map(|(kind, count)| BlockType { kind, count }).filter(|block_type| block_type.count > 0)
    }

    /// Returns the length of the header in bytes.
    fn header_bytes(&self) -> u32 {
        self.block_types().fold(4, |bytes: u32, _| bytes.saturating_add(8))
    }

    /// Returns the length of every block in bytes, in the order of the data.
    fn block_bytes(&self) -> impl Iterator<Item = u32> + '_ {
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let label_bytes = self.page_names().map(move |name| length(size_of_val(name)));
        let range_bytes = self.has_ranges.then(|| length(self.channels.len().saturating_mul(16)));
        label_bytes.chain(range_bytes).chain(self.channels.iter().map(|_| LUT_BYTES))
    }

    /// Returns the name of every page; nothing if the pages have no names.
    fn page_names(&self) -> impl Iterator<Item = &[u16]> {
        let pages = usize::try_from(self.pages).unwrap_or(usize::MAX);
        self.names.iter().map(Vec::as_slice).cycle().take(pages)
    }

    /// Returns the number of values of [`BYTE_COUNTS_TAG`].
    pub(super) fn count_of_byte_counts(&self) -> u64 {
        self.block_types().fold(1, |count: u64, block_type| count.saturating_add(block_type.count.into()))
    }

    /// Returns the number of values of [`DATA_TAG`], which is the length of the data in bytes.
    pub(super) fn data_bytes(&self) -> u64 {
        self.block_bytes().fold(self.header_bytes().into(), |sum: u64, bytes| sum.saturating_add(bytes.into()))
    }

    /// Appends the values of [`BYTE_COUNTS_TAG`] in little-endian order.
    pub(super) fn put_byte_counts(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.header_bytes().to_le_bytes());
        self.block_bytes().for_each(|bytes| out.extend_from_slice(&bytes.to_le_bytes()));
    }

    /// Appends the data in little-endian order.
    pub(super) fn put_data(&self, out: &mut Vec<u8>) {
        let put_number = |out: &mut Vec<u8>, name: [u8; 4]| out.extend(name.iter().rev());
        put_number(out, MAGIC);
        for BlockType { kind, count } in self.block_types() {
            put_number(out, kind);
            out.extend_from_slice(&count.to_le_bytes());
        }
        for name in self.page_names() {
            out.extend(name.iter().flat_map(|unit| unit.to_le_bytes()));
        }
        for (low, high) in self.channels.iter().filter(|_| self.has_ranges).filter_map(|channel| channel.window) {
            out.extend_from_slice(&low.to_le_bytes());
            out.extend_from_slice(&high.to_le_bytes());
        }
        for channel in &self.channels {
            // Rounded, so that white is grey levels and half a colour has half of its value.
            let level = |part: u8, grey: u8| {
                let product = u32::from(part).saturating_mul(grey.into());
                u8::try_from(product.saturating_add(127) / 255).unwrap_or(u8::MAX)
            };
            for part in channel.colour {
                out.extend((0..=u8::MAX).map(|grey| level(part, grey)));
            }
        }
    }
}

/// Returns the name of a channel in UTF-16, without control characters and cut to [`MAX_NAME_UNITS`].
fn utf16_name(channel: &StackChannel) -> Vec<u16> {
    let mut name = Vec::new();
    for character in channel.name.chars().filter(|character| !character.is_control()) {
        if name.len().saturating_add(character.len_utf16()) > MAX_NAME_UNITS {
            break;
        }
        name.extend_from_slice(character.encode_utf16(&mut [0; 2]));
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(name: &str, colour: [u8; 3], window: Option<(f64, f64)>) -> StackChannel {
        StackChannel { name: name.to_owned(), colour, window }
    }

    fn encoded(metadata: &ImagejMetadata) -> (Vec<u32>, Vec<u8>) {
        let (mut counts, mut data) = (Vec::new(), Vec::new());
        metadata.put_byte_counts(&mut counts);
        metadata.put_data(&mut data);
        let counts: Vec<u32> = counts.chunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect();
        assert_eq!(counts.len() as u64, metadata.count_of_byte_counts());
        assert_eq!(data.len() as u64, metadata.data_bytes());
        assert_eq!(counts.iter().map(|bytes| u64::from(*bytes)).sum::<u64>(), data.len() as u64);
        (counts, data)
    }

    #[test]
    fn names_ranges_and_colours_are_blocks_in_this_order() {
        let channels =
            [channel("é\n", [0, 0, 255], Some((100.0, 700.5))), channel("", [255, 128, 0], Some((0.0, 1.0)))];
        let (counts, data) = encoded(&ImagejMetadata::of(&channels, 2, 4).unwrap());
        assert_eq!(counts, [28, 2, 0, 2, 0, 32, 768, 768]);
        assert_eq!(data[..28], *b"JIJIlbal\x04\0\0\0gnar\x01\0\0\0stul\x02\0\0\0");
        assert_eq!(data[28..32], [0xe9, 0, 0xe9, 0]);
        let doubles: Vec<f64> =
            data[32..64].chunks(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect();
        assert_eq!(doubles, [100.0, 700.5, 0.0, 1.0]);
        let [blue, orange] = [64, 832].map(|at| &data[at..at + 768]);
        assert_eq!((blue[255], blue[511], blue[512], blue[640], blue[767]), (0, 0, 0, 128, 255));
        assert_eq!((orange[255], orange[256 + 255], orange[256 + 127], orange[767]), (255, 128, 64, 0));
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let channels = [channel("", [255; 3], Some((0.0, 9.0))), channel("", [255; 3], None)];
        assert_eq!(encoded(&ImagejMetadata::of(&channels, 2, 6).unwrap()).0, [12, 768, 768]);
        assert!(ImagejMetadata::of(&channels, 3, 6).is_none());
        assert!(ImagejMetadata::of(&channels[..1], 1, 6).is_none());
        assert!(ImagejMetadata::of(&[(); 8].map(|()| channels[0].clone()), 8, 8).is_none());
    }

    #[test]
    fn names_are_bounded() {
        let channels = [channel(&"😀".repeat(40), [255; 3], None), channel("b", [255; 3], None)];
        let metadata = ImagejMetadata::of(&channels, 2, MAX_NAMED_PAGES).unwrap();
        let (counts, _) = encoded(&metadata);
        assert_eq!((counts[1], counts[2], counts.len()), (64, 2, 1 + 10_000 + 2));
        assert_eq!(encoded(&ImagejMetadata::of(&channels, 2, MAX_NAMED_PAGES + 2).unwrap()).0.len(), 3);
    }
}
