//! Stored blocks: parsing their headers, decoding them to little-endian elements, and encoding them.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::compression::wrong_length;
use crate::grid::product;
use crate::{BlockEncoding, CancelCheck, Codec, CodecError, Coords, DatasetAttributes, Scratch};

/// Mode of a stored block, given by the first word of its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockMode {
    /// Mode 0: the number of elements is the product of the block's size.
    Default,
    /// Mode 1: the header gives the number of elements.
    VarLength,
    /// Mode 2: the block is a single serialised object, without a size.
    Object,
}

/// Header of a stored block, before its payload.
///
/// All integers are big-endian: a u16 mode, a u16 number of axes, a u32 size per axis, and for mode 1 a u32 number of
/// elements. For mode 2, only the u16 mode and a u32 number of bytes.
/// Source: N5 specification 4.0.0 §9; mode 2 from Java N5's `codec/N5BlockCodecs.java`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockHeader {
    /// Mode of the block.
    pub mode: BlockMode,
    /// Size of the block in elements, N5 axis order; empty for [`BlockMode::Object`].
    pub size: Coords,
    /// Number of elements, or of bytes for [`BlockMode::Object`]. `None` if the number exceeds a `u64`.
    pub elements: Option<u64>,
    /// Length of the header in bytes. The payload follows the header.
    pub len: usize,
}

/// A decoded block.
#[derive(Debug, Clone)]
pub struct Block {
    /// Size in elements, N5 axis order. It is smaller than `blockSize` if the block is cropped at the edge or partly
    /// written.
    pub size: Coords,
    /// Little-endian elements, first axis fastest: `product(size)` times the element size in bytes.
    pub data: Bytes,
}

/// Error from decoding a stored block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The file ends within its header.
    #[error("{bytes} bytes are too few for a block header of {needed} bytes")]
    ShortHeader {
        /// Length of the file in bytes.
        bytes: usize,
        /// Length of the header in bytes.
        needed: usize,
    },
    /// The header's first word is not a mode of the format.
    #[error("unknown block mode {0}")]
    UnknownMode(u16),
    /// The header and the dataset differ in the number of axes.
    #[error("the block header has {found} axes, the dataset has {expected}")]
    Rank {
        /// Number of axes in the header.
        found: usize,
        /// Number of axes of the dataset.
        expected: usize,
    },
    /// The block is larger than `blockSize` along some axis.
    #[error("block {size:?} exceeds blockSize {block_size:?}")]
    TooLargeForGrid {
        /// Size according to the header.
        size: Vec<u64>,
        /// Block size of the dataset.
        block_size: Vec<u64>,
    },
    /// The header claims more bytes than the payload can hold with this compression.
    #[error("{payload_bytes} bytes of {compression} cannot hold the {claimed_bytes} bytes that the header promises")]
    Implausible {
        /// Number of bytes after the header.
        payload_bytes: usize,
        /// Number of bytes that the header claims.
        claimed_bytes: u64,
        /// Name of the compression.
        compression: String,
    },
    /// The payload is damaged or has the wrong length.
    #[error(transparent)]
    Payload(#[from] CodecError),
    /// The block is valid, but this build cannot decode it.
    #[error("{0}")]
    Unsupported(String),
    /// Decoding would exceed the memory limit of a block.
    #[error("decoding needs {needed_bytes} bytes, at most {limit_bytes} are allowed")]
    OverLimit {
        /// Number of bytes needed: result and scratch memory.
        needed_bytes: u64,
        /// Number of bytes allowed.
        limit_bytes: u64,
    },
}

impl BlockError {
    /// Returns true if the file may have been read while it was being written, so that reading it again may help.
    pub fn may_be_torn(&self) -> bool {
        !matches!(self, Self::Unsupported(_) | Self::OverLimit { .. } | Self::Payload(CodecError::Cancelled))
    }

    /// Returns true if decoding was cancelled. The error then says nothing about the block.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Payload(CodecError::Cancelled))
    }
}

impl BlockHeader {
    /// Parses the header of a block file.
    ///
    /// # Errors
    /// Returns [`BlockError::ShortHeader`] or [`BlockError::UnknownMode`].
    pub fn parse(stored: &[u8]) -> Result<Self, BlockError> {
        let short_header = |needed| BlockError::ShortHeader { bytes: stored.len(), needed };
        let mut rest = stored;
        let mode = match rest.try_get_u16().or(Err(short_header(4)))? {
            0 => BlockMode::Default,
            1 => BlockMode::VarLength,
            2 => BlockMode::Object,
            other => return Err(BlockError::UnknownMode(other)),
        };
        if mode == BlockMode::Object {
            let bytes = rest.try_get_u32().or(Err(short_header(6)))?;
            return Ok(Self { mode, size: Coords::new(), elements: Some(bytes.into()), len: 6 });
        }
        let rank = usize::from(rest.try_get_u16().or(Err(short_header(4)))?);
        let len = 4 + 4 * rank + if mode == BlockMode::VarLength { 4 } else { 0 };
        if stored.len() < len {
            return Err(short_header(len));
        }
        let mut size = Coords::with_capacity(rank);
        for _ in 0..rank {
            size.push(rest.try_get_u32().or(Err(short_header(len)))?.into());
        }
        let elements = match mode {
            BlockMode::VarLength => Some(rest.try_get_u32().or(Err(short_header(len)))?.into()),
            BlockMode::Default | BlockMode::Object => product(&size),
        };
        Ok(Self { mode, size, elements, len })
    }

    /// Returns the maximum length of a header in bytes, for a dataset with `rank` axes. [`Self::of_raw_block`] needs no
    /// more bytes than these from the beginning of a file.
    pub fn max_len(rank: usize) -> u64 {
        (rank as u64).saturating_mul(8).saturating_add(8)
    }

    /// Returns the header of the uncompressed block at `position`, whose file has `stored_bytes` bytes and begins with
    /// `prefix`. The elements follow the header, big-endian, first axis fastest. Returns `None` if the dataset's blocks
    /// are compressed.
    ///
    /// # Errors
    /// See [`Block::decode`], except that there is no memory limit. The file must have exactly the length that the
    /// header claims.
    pub fn of_raw_block(
        prefix: &[u8],
        stored_bytes: u64,
        attributes: &DatasetAttributes,
        position: &[u64],
    ) -> Result<Option<Self>, BlockError> {
        let stored_bytes = usize::try_from(stored_bytes).unwrap_or(usize::MAX);
        let BlockDecoder { header, codec, decoded_bytes, .. } =
            BlockDecoder::from_prefix(prefix, stored_bytes, attributes, position)?;
        if !codec.is_uncompressed() {
            return Ok(None);
        }
        let payload_bytes = stored_bytes.saturating_sub(header.len);
        if payload_bytes != decoded_bytes {
            return Err(wrong_length(decoded_bytes, payload_bytes).into());
        }
        Ok(Some(header))
    }

    /// Parses the header of the block at `position` of a dataset, including the forms that predate the format.
    ///
    /// - Releases 1.0.0 to 1.1.3 wrote a u32 number of axes, which parses the same as the current form.
    /// - Code of March 2017 wrote a u32 number of axes and u64 sizes.
    /// - The README of 2017 describes a header of sizes alone, 4 bytes per axis.
    ///
    /// The last two forms are accepted only if the current form does not fit the dataset and the old form gives exactly
    /// the size expected at `position`.
    ///
    /// `stored` may be just the beginning of the file, if it has at least the length of the longest of these headers.
    fn parse_with_legacy(stored: &[u8], attributes: &DatasetAttributes, position: &[u64]) -> Result<Self, BlockError> {
        let rank = attributes.rank();
        let header = Self::parse(stored);
        let is_plausible = header.as_ref().is_ok_and(|header| {
            let is_nonempty = rank == 0 || header.size.first() != Some(&0);
            header.mode == BlockMode::Object || (header.size.len() == rank && is_nonempty)
        });
        if is_plausible || rank == 0 {
            return header;
        }
        let grid = attributes.grid();
        let with_expected_size = |size: Coords, len| {
            let is_expected = size == *grid.block_size() || size == grid.clipped_size(position);
            is_expected.then(|| Self { mode: BlockMode::Default, elements: product(&size), size, len })
        };
        let (word, mut rest) = stored.split_at_checked(4).unwrap_or_default();
        if word == u32::try_from(rank).unwrap_or(u32::MAX).to_be_bytes()
            && rest.len() >= 8 * rank
            && let Some(header) = with_expected_size((0..rank).map(|_| rest.get_u64()).collect(), 4 + 8 * rank)
        {
            return Ok(header);
        }
        let mut rest = stored;
        if stored.len() >= 4 * rank
            && header.as_ref().map_or(true, |header| header.size.len() != rank)
            && let Some(header) = with_expected_size((0..rank).map(|_| rest.get_u32().into()).collect(), 4 * rank)
        {
            return Ok(header);
        }
        header
    }

    /// Checks that the block holds elements of the dataset, and as many as its size requires.
    ///
    /// # Errors
    /// Returns [`BlockError::Unsupported`], [`BlockError::Rank`] or [`BlockError::TooLargeForGrid`].
    fn check_elements(&self, attributes: &DatasetAttributes) -> Result<(), BlockError> {
        if self.mode == BlockMode::Object {
            return Err(BlockError::Unsupported("a block of mode 2 (object) has no elements".to_owned()));
        }
        if self.size.len() != attributes.rank() {
            return Err(BlockError::Rank { found: self.size.len(), expected: attributes.rank() });
        }
        if self.size.iter().zip(attributes.block_size()).any(|(size, max_size)| size > max_size) {
            return Err(BlockError::TooLargeForGrid {
                size: self.size.to_vec(),
                block_size: attributes.block_size().to_vec(),
            });
        }
        if self.elements != product(&self.size) {
            return Err(BlockError::Unsupported(format!(
                "a block of mode 1 holds {} elements for a size of {:?}",
                self.elements.unwrap_or(u64::MAX),
                self.size
            )));
        }
        Ok(())
    }
}

impl Block {
    /// Returns an upper bound of the memory in bytes for decoding a block of this dataset whose file has `stored_bytes`
    /// bytes: the result and the codec's scratch memory. Returns 0 if blocks of the dataset cannot be decoded.
    pub fn max_decode_memory_bytes(attributes: &DatasetAttributes, stored_bytes: u64) -> u64 {
        let Some(codec) = attributes.compression().codec() else { return 0 };
        let Some(width) = attributes.data_type().size_bytes() else { return 0 };
        let block_bytes = product(attributes.block_size()).unwrap_or(u64::MAX).saturating_mul(width as u64);
        let max_decoded_bytes = codec.max_decoded_bytes(usize::try_from(stored_bytes).unwrap_or(usize::MAX));
        let decoded = block_bytes.min(max_decoded_bytes);
        let scratch = codec.scratch_bytes(&[], usize::try_from(decoded).unwrap_or(usize::MAX)) as u64;
        decoded.saturating_add(scratch)
    }

    /// Decodes the stored block at `position` of a dataset. [`BlockDecoder`] also reuses buffers and can be cancelled.
    ///
    /// A block may be smaller than `blockSize` (cropped at the edge, or partly written) and may carry padding beyond
    /// `dimensions`. The result has the size that the header gives. It shares the buffer of `stored` if the elements
    /// need no change.
    ///
    /// # Errors
    /// See [`BlockDecoder::new`] and [`BlockDecoder::decode`].
    pub fn decode(
        stored: Bytes,
        attributes: &DatasetAttributes,
        position: &[u64],
        limit_bytes: u64,
    ) -> Result<Self, BlockError> {
        let decoder = BlockDecoder::new(stored, attributes, position, limit_bytes)?;
        decoder.decode(|_| Vec::new(), &mut Scratch::default(), CancelCheck::NEVER)
    }
}

/// A stored block whose header has been checked, ready to be decoded.
#[derive(Debug)]
pub struct BlockDecoder<'a, B> {
    /// The header, then the payload.
    stored: B,
    header: BlockHeader,
    codec: &'a dyn Codec,
    /// Size of an element in bytes.
    width: usize,
    /// Size of all elements in bytes.
    decoded_bytes: usize,
    /// Memory that decoding takes, in bytes. The codec's scratch memory is missing in a decoder of a prefix.
    memory_bytes: u64,
}

impl<'a, B: AsRef<[u8]>> BlockDecoder<'a, B> {
    /// Creates the decoder of the block at `position` of a dataset. `stored` is the content of the block's file, such
    /// as [`Bytes`] or `&[u8]`. No memory is allocated for the elements.
    ///
    /// Performs every check that is possible without decoding.
    ///
    /// # Errors
    /// Returns a [`BlockError`] if the header is damaged, does not fit the dataset or claims more than the payload can
    /// hold; [`BlockError::Unsupported`] if this build cannot decode the block; [`BlockError::OverLimit`] if decoding
    /// takes more than `limit_bytes`.
    pub fn new(
        stored: B,
        attributes: &'a DatasetAttributes,
        position: &[u64],
        limit_bytes: u64,
    ) -> Result<Self, BlockError> {
        let stored_bytes = stored.as_ref().len();
        let mut decoder = Self::from_prefix(stored, stored_bytes, attributes, position)?;
        let scratch_bytes = decoder.codec.scratch_bytes(decoder.payload(), decoder.decoded_bytes) as u64;
        let needed_bytes = decoder.memory_bytes.saturating_add(scratch_bytes);
        decoder.memory_bytes = needed_bytes;
        if needed_bytes > limit_bytes { Err(BlockError::OverLimit { needed_bytes, limit_bytes }) } else { Ok(decoder) }
    }

    /// Creates the decoder of a block whose file has `stored_bytes` bytes and begins with `prefix`, without the codec's
    /// scratch memory. It can decode the block only if `prefix` is the whole file.
    fn from_prefix(
        prefix: B,
        stored_bytes: usize,
        attributes: &'a DatasetAttributes,
        position: &[u64],
    ) -> Result<Self, BlockError> {
        let compression = attributes.compression();
        let data_type = attributes.data_type();
        let not_decoded = |what, name| BlockError::Unsupported(format!("{what} {name:?} is not decoded"));
        let width = data_type.size_bytes().ok_or_else(|| not_decoded("data type", data_type.name()))?;
        let codec = compression.codec().ok_or_else(|| not_decoded("compression", compression.name()))?;
        let header = BlockHeader::parse_with_legacy(prefix.as_ref(), attributes, position)?;
        header.check_elements(attributes)?;
        let claimed_bytes = header.elements.unwrap_or(u64::MAX).saturating_mul(width as u64);
        let payload_bytes = stored_bytes.saturating_sub(header.len);
        if claimed_bytes > codec.max_decoded_bytes(payload_bytes) {
            let compression = compression.name().to_owned();
            return Err(BlockError::Implausible { payload_bytes, claimed_bytes, compression });
        }
        let decoded_bytes = usize::try_from(claimed_bytes)
            .or(Err(BlockError::OverLimit { needed_bytes: claimed_bytes, limit_bytes: usize::MAX as u64 }))?;
        Ok(Self { stored: prefix, header, codec, width, decoded_bytes, memory_bytes: claimed_bytes })
    }

    /// Returns the number of bytes that decoding takes: the result and the codec's scratch memory.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    fn payload(&self) -> &[u8] {
        self.stored.as_ref().get(self.header.len..).unwrap_or_default()
    }

    /// Returns true if there is nothing to decode. A block without elements may have an empty payload, which is not a
    /// valid stream.
    fn is_empty(&self) -> bool {
        self.decoded_bytes == 0 && self.payload().is_empty()
    }

    fn check_length(&self, data: &[u8]) -> Result<(), CodecError> {
        let found = data.len();
        if found == self.decoded_bytes { Ok(()) } else { Err(wrong_length(self.decoded_bytes, found)) }
    }
}

impl BlockDecoder<'_, Bytes> {
    /// Decodes the block. The result shares the buffer of the stored block if the elements need no change.
    ///
    /// If the block is compressed, `take_buffer` is called with the size of the elements in bytes. The result takes
    /// over the buffer that the function returns, whatever its content, if its capacity is exactly that size. A buffer
    /// of another capacity is not used.
    ///
    /// # Errors
    /// Returns [`BlockError::Payload`] if the payload is damaged or decodes to another length than the header claims,
    /// with [`CodecError::Cancelled`] if `cancel_check` cancels.
    pub fn decode(
        mut self,
        take_buffer: impl FnOnce(usize) -> Vec<u8>,
        scratch: &mut Scratch,
        cancel_check: CancelCheck<'_>,
    ) -> Result<Block, BlockError> {
        let is_empty = self.is_empty();
        // Taken, because the only reference to the elements lets them be byte-swapped in place.
        let mut payload = std::mem::take(&mut self.stored);
        payload.advance(self.header.len);
        let data = if is_empty {
            Bytes::new()
        } else if self.codec.is_uncompressed() {
            self.codec.decode(payload, self.decoded_bytes, scratch, cancel_check)?
        } else {
            let mut output = take_buffer(self.decoded_bytes);
            if output.capacity() != self.decoded_bytes {
                output = Vec::new();
            }
            self.codec.decode_into(&payload, self.decoded_bytes, &mut output, scratch, cancel_check)?;
            output.into()
        };
        self.check_length(&data)?;
        Ok(Block { size: self.header.size, data: swap_byte_order(data, self.width) })
    }
}

impl<'s> BlockDecoder<'_, &'s [u8]> {
    /// Decompresses a block whose elements are pasted immediately, so that `output` can be reused for the next block.
    /// Returns the size of the block in elements, and the elements, big-endian as stored: in `output`, or in the stored
    /// block if they are uncompressed. [`paste_big_endian`](crate::paste_big_endian) takes them in this form.
    ///
    /// # Errors
    /// See [`Self::decode`](BlockDecoder::decode).
    pub fn decompress(
        self,
        output: &'s mut Vec<u8>,
        scratch: &mut Scratch,
        cancel_check: CancelCheck<'_>,
    ) -> Result<(Coords, &'s [u8]), BlockError> {
        let payload = self.stored.get(self.header.len..).unwrap_or_default();
        let data = if let Some(plain) = self.codec.uncompressed_slice(payload, self.decoded_bytes) {
            plain
        } else if self.is_empty() {
            payload
        } else {
            self.codec.decode_into(payload, self.decoded_bytes, output, scratch, cancel_check)?;
            output.as_slice()
        };
        self.check_length(data)?;
        Ok((self.header.size, data))
    }
}

/// Encodes a stored block of mode 0: the header, then the elements in `encoding`.
///
/// `size` is in elements, N5 axis order. `data` is little-endian, first axis fastest, with `width` bytes per element.
/// `width` is 1, 2, 4 or 8. Source: N5 specification 4.0.0 §9.
///
/// # Errors
/// Returns [`CodecError::Encode`] if `data` is not `product(size)` elements, a size exceeds 32 bits or the encoder
/// fails.
pub fn encode_block(size: &[u64], width: usize, data: Bytes, encoding: BlockEncoding) -> Result<Bytes, CodecError> {
    let header = block_header(size)
        .ok_or_else(|| CodecError::Encode { reason: format!("the size {size:?} exceeds 32 bits") })?;
    let bytes = product(size).and_then(|elements| usize::try_from(elements).ok()?.checked_mul(width));
    if bytes != Some(data.len()) {
        let found = data.len();
        let reason = format!("{found} bytes are not {size:?} elements of {width} bytes");
        return Err(CodecError::Encode { reason });
    }
    let mut block = Vec::with_capacity(header.len() + if encoding == BlockEncoding::Raw { data.len() } else { 0 });
    block.extend(header);
    encoding.encode(&swap_byte_order(data, width), width, &mut block)?;
    block.shrink_to_fit();
    Ok(block.into())
}

/// Returns the header of a stored block of mode 0, or `None` if a size exceeds 32 bits. `size` is in elements, N5 axis
/// order.
pub fn block_header(size: &[u64]) -> Option<Vec<u8>> {
    let mut header = Vec::with_capacity(4 + 4 * size.len());
    header.put_u16(0);
    header.put_u16(u16::try_from(size.len()).ok()?);
    for axis_size in size {
        header.put_u32(u32::try_from(*axis_size).ok()?);
    }
    Some(header)
}

/// Reverses the bytes of each element of `width` bytes: from little-endian to big-endian, the byte order of the format,
/// or vice versa. Works in place if the buffer is not shared.
pub fn swap_byte_order(data: Bytes, width: usize) -> Bytes {
    if width == 1 || data.is_empty() {
        return data;
    }
    let mut data = data.try_into_mut().unwrap_or_else(|shared| BytesMut::from(shared.as_ref()));
    match width {
        2 => swap::<2>(&mut data),
        4 => swap::<4>(&mut data),
        _ => swap::<8>(&mut data),
    }
    data.freeze()
}

fn swap<const WIDTH: usize>(data: &mut [u8]) {
    for element in data.as_chunks_mut::<WIDTH>().0 {
        element.reverse();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::AttributesDocument;

    fn attributes(dimensions: &[u64], block_size: &[u64], data_type: &str, compression: &str) -> DatasetAttributes {
        let text = format!(
            r#"{{"dimensions":{dimensions:?},"blockSize":{block_size:?},"dataType":"{data_type}","compression":{{"type":"{compression}"}}}}"#
        );
        DatasetAttributes::parse(AttributesDocument::parse(text.as_bytes()).unwrap()).unwrap()
    }

    /// Parses hexadecimal digits to bytes; skips spaces.
    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)?.try_into().ok()).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    fn decode(
        stored: &str,
        attributes: &DatasetAttributes,
        position: &[u64],
    ) -> Result<(Vec<u64>, Vec<u8>), BlockError> {
        decode_bytes(hex(stored), attributes, position)
    }

    fn decode_bytes(
        stored: Vec<u8>,
        attributes: &DatasetAttributes,
        position: &[u64],
    ) -> Result<(Vec<u64>, Vec<u8>), BlockError> {
        let block = Block::decode(stored.into(), attributes, position, 1 << 24)?;
        Ok((block.size.to_vec(), block.data.to_vec()))
    }

    const LITTLE_1_TO_6: [u8; 12] = [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0];

    #[test]
    fn the_same_block_decodes_from_every_encoding_of_every_program() {
        for (compression, payload) in [
            ("raw", "000100020003000400050006"),
            ("gzip", "1f8b08000000000000ff 6360646062606660616065600300 aaea6dbf 0c000000"),
            ("gzip", "1f8b0800000000000000 6360646062606660616065600300 aaea6dbf 0c000000"),
            ("gzip", "789c 636064606260666061606560030000670016"),
            ("zlib", "789c 636064606260666061606560030000670016"),
            ("bzip2", "425a6839314159265359023e0dd200000040007f002000310c010d31a87394337c5dc914e1424008f83748"),
            ("bzip2", "425a6839314159265359023e0dd200000040007f002000221a63508600e72866f8bb9229c2848011f06e90"),
            (
                "xz",
                "fd377a585a000004e6d6b4460200210116000000742fe5a301000b000100020003000400050006000d0309ca34ec15a7\
                 0001240ca618d8d81fb6f37d010000000004595a",
            ),
            (
                "lz4",
                "4c5a34426c6f636b 16 0c000000 0c000000 90258b06 000100020003000400050006 \
                 4c5a34426c6f636b 16 00000000 00000000 00000000",
            ),
            ("lz4", "04224d186440a70c0000800001000200030004000500060000000041373308"),
            ("lz4", "c0000100020003000400050006"),
            ("lz4", "0c000000 c0000100020003000400050006"),
            ("zstd", "28b52ffd200c610000000100020003000400050006"),
            ("zstd", "28b52ffd0000610000000100020003000400050006"),
            ("blosc", "020133010c0000000c0000001c000000 000100020003000400050006"),
            ("blosc", "020133020c0000000c0000001c000000 000100020003000400050006"),
        ] {
            let attributes = attributes(&[1, 2, 3], &[1, 2, 3], "uint16", compression);
            let stored = format!("00000003 00000001 00000002 00000003 {payload}");
            let expected = Ok((vec![1, 2, 3], LITTLE_1_TO_6.to_vec()));
            assert_eq!(decode(&stored, &attributes, &[0, 0, 0]), expected, "{compression} {payload}");
        }
    }

    #[test]
    fn several_frames_of_java_lz4_are_one_block() {
        let stored = "00000001 00000096 4c5a34426c6f636b 20 0b000000 40000000 3136410d 1f070100275007070707 07 \
             4c5a34426c6f636b 20 0b000000 40000000 3136410d 1f070100275007070707 07 \
             4c5a34426c6f636b 10 16000000 16000000 9981810a 808182838485868788898a8b8c8d8e8f909192939495 \
             4c5a34426c6f636b 10 00000000 00000000 00000000";
        let (size, data) = decode(stored, &attributes(&[150], &[150], "uint8", "lz4"), &[0]).unwrap();
        assert_eq!((size, &data[..128]), (vec![150], &[7; 128][..]));
        assert!(data[128..].iter().copied().eq(0x80..=0x95));
    }

    #[test]
    fn rank_0_is_one_element() {
        let scalar = attributes(&[], &[], "uint16", "raw");
        assert_eq!(decode("0000 0000 0007", &scalar, &[]), Ok((vec![], vec![7, 0])));
    }

    #[test]
    fn elements_of_every_width_are_byte_swapped() {
        for (data_type, width) in [("int8", 1), ("int16", 2), ("float32", 4), ("uint64", 8)] {
            let big: Vec<u8> = (0..2 * width).collect();
            let mut little = big.clone();
            little.chunks_mut(usize::from(width)).for_each(<[u8]>::reverse);
            let stored = [hex("00000001 00000002"), big].concat();
            let attributes = attributes(&[2], &[2], data_type, "raw");
            assert_eq!(decode_bytes(stored, &attributes, &[0]), Ok((vec![2], little)), "{data_type}");
        }
    }

    #[test]
    fn a_block_that_needs_no_change_shares_the_stored_bytes() {
        let wide = attributes(&[1], &[1], "uint16", "raw");
        let attributes = attributes(&[2], &[2], "uint8", "raw");
        let stored = Bytes::from(hex("00000001 00000002 0102"));
        let block = Block::decode(stored.clone(), &attributes, &[0], 2).unwrap();
        assert_eq!(block.data.as_ptr(), stored[8..].as_ptr());
        // Shared stored bytes are copied rather than byte-swapped in place.
        let stored = Bytes::from(hex("00000001 00000001 0102"));
        let block = Block::decode(stored.clone(), &wide, &[0], 2).unwrap();
        assert_eq!((&block.data[..], &stored[8..]), (&[2, 1][..], &[1, 2][..]));
    }

    #[test]
    fn mode_1_is_decoded_when_its_count_is_the_product() {
        let attributes = attributes(&[5, 1], &[5, 1], "uint16", "raw");
        let counted = "0001 0002 00000002 00000001 00000002 0009 0008";
        assert_eq!(decode(counted, &attributes, &[0, 0]), Ok((vec![2, 1], vec![9, 0, 8, 0])));
        let fewer = decode("0001 0002 00000005 00000001 00000003 0009 0008 0007", &attributes, &[0, 0]);
        assert!(matches!(fewer, Err(BlockError::Unsupported(text)) if text.contains("3 elements")));
    }

    #[test]
    fn non_numeric_blocks_are_unsupported_not_damaged() {
        let text = "0001 0001 00000003 00000007 61 00 00 c3a963 00";
        let object = "0002 00000009 aced0005 74 0002 6869";
        for (stored, data_type, compression) in [
            (text, "string", "raw"),
            (object, "object", "raw"),
            (object, "uint8", "raw"),
            ("00000001 00000003 010203", "uint8", "jpeg"),
            ("00000001 00000003 010203", "bool", "raw"),
        ] {
            let result = decode(stored, &attributes(&[3], &[3], data_type, compression), &[0]);
            assert!(matches!(result, Err(BlockError::Unsupported(_))), "{data_type} {compression}: {result:?}");
        }
    }

    #[test]
    fn mismatching_headers_are_reported_precisely() {
        let attributes = attributes(&[7, 5], &[5, 4], "uint16", "raw");
        let error = |stored: &str| decode(stored, &attributes, &[0, 0]).unwrap_err();
        assert_eq!(error(""), BlockError::ShortHeader { bytes: 0, needed: 4 });
        assert_eq!(error("0000 0002 00000005 0000"), BlockError::ShortHeader { bytes: 10, needed: 12 });
        assert_eq!(error("0001 0002 00000005 00000004 00"), BlockError::ShortHeader { bytes: 13, needed: 16 });
        assert_eq!(error("0002 0000"), BlockError::ShortHeader { bytes: 4, needed: 6 });
        assert_eq!(error("0007 0002 00000005 00000004"), BlockError::UnknownMode(7));
        assert_eq!(error("0000 0001 00000005 00"), BlockError::Rank { found: 1, expected: 2 });
        let larger = BlockError::TooLargeForGrid { size: vec![5, 5], block_size: vec![5, 4] };
        assert_eq!(error("0000 0002 00000005 00000005"), larger);
    }

    #[test]
    fn legacy_headers_are_read() {
        let attributes = attributes(&[7, 5], &[5, 4], "uint8", "raw");
        let payload = "01020304 05060708 090a0b0c 0d0e0f10 11121314";
        // Releases 1.0.0 to 1.1.3 wrote a u32 number of axes, which gives the same bytes as the current form.
        let expected = decode(&format!("00000002 00000005 00000004 {payload}"), &attributes, &[0, 0]).unwrap();
        assert_eq!(expected.0, [5, 4]);
        let wide = format!("00000002 0000000000000005 0000000000000004 {payload}");
        assert_eq!(decode(&wide, &attributes, &[0, 0]).as_ref(), Ok(&expected));
        let bare = format!("00000005 00000004 {payload}");
        assert_eq!(decode(&bare, &attributes, &[0, 0]).as_ref(), Ok(&expected));
        let corner = Ok((vec![2, 1], vec![8, 9]));
        assert_eq!(decode("00000002 0000000000000002 0000000000000001 0809", &attributes, &[1, 1]), corner);
        assert_eq!(decode("00000002 00000001 0809", &attributes, &[1, 1]), corner);
        // A header of sizes alone is rejected if the size is not the one that the grid requires at this position.
        assert!(decode("00000002 00000001 0809", &attributes, &[0, 0]).is_err());
    }

    #[test]
    fn cropped_padded_and_small_blocks_keep_their_own_size() {
        let attributes = attributes(&[7, 5], &[5, 4], "uint8", "raw");
        let cropped = decode("00000002 00000002 00000001 0102", &attributes, &[1, 1]);
        assert_eq!(cropped, Ok((vec![2, 1], vec![1, 2])));
        let padded = decode_bytes([hex("00000002 00000005 00000004"), vec![3; 20]].concat(), &attributes, &[1, 1]);
        assert_eq!(padded, Ok((vec![5, 4], vec![3; 20])));
        let interior = decode("00000002 00000003 00000002 010203040506", &attributes, &[0, 0]);
        assert_eq!(interior, Ok((vec![3, 2], vec![1, 2, 3, 4, 5, 6])));
    }

    #[test]
    fn a_size_of_zero_is_a_block_without_elements() {
        for compression in ["raw", "gzip", "bzip2", "xz", "lz4", "blosc", "zstd"] {
            let attributes = attributes(&[7, 5], &[5, 4], "uint16", compression);
            for size in ["00000000 00000004", "00000005 00000000", "00000000 00000000"] {
                let empty = decode(&format!("00000002 {size}"), &attributes, &[0, 0]).unwrap();
                assert!(empty.1.is_empty(), "{compression} {size}");
            }
            let junk = decode("00000002 00000000 00000004 ffff", &attributes, &[0, 0]);
            assert!(matches!(junk, Err(BlockError::Payload(_))), "{compression}: {junk:?}");
        }
    }

    #[test]
    fn a_header_that_claims_more_than_the_payload_can_hold_is_refused_before_decoding() {
        let side = 1 << 31;
        for compression in ["raw", "gzip", "xz", "lz4", "blosc", "zstd"] {
            let attributes = attributes(&[side], &[side], "uint8", compression);
            let stored = [hex("00000001 80000000"), vec![0x42; 100]].concat();
            let result = decode_bytes(stored, &attributes, &[0]);
            assert!(matches!(result, Err(BlockError::Implausible { .. })), "{compression}: {result:?}");
        }
        let max_extent = u64::from(u32::MAX);
        let attributes = attributes(&[max_extent; 4], &[max_extent; 4], "float64", "bzip2");
        let stored = [hex("00000004"), vec![0xff; 16], vec![0x42; 100]].concat();
        assert!(matches!(decode_bytes(stored, &attributes, &[0; 4]), Err(BlockError::Implausible { .. })));
    }

    #[test]
    fn the_limit_counts_the_result_and_the_scratch_memory() {
        let attributes = attributes(&[1000], &[1000], "uint8", "bzip2");
        let stored = Bytes::from([hex("00000001 000003e8"), vec![0; 50]].concat());
        let needed = BlockDecoder::new(&stored, &attributes, &[0], u64::MAX).unwrap().memory_bytes();
        assert!(needed > 1000 + (3 << 20), "{needed}");
        let decode_error = |limit| Block::decode(stored.clone(), &attributes, &[0], limit).unwrap_err();
        assert_eq!(decode_error(needed - 1), BlockError::OverLimit { needed_bytes: needed, limit_bytes: needed - 1 });
        assert!(matches!(decode_error(needed), BlockError::Payload(_)));
    }

    proptest! {
        #[test]
        fn any_stored_bytes_are_a_block_or_an_error(
            bytes in prop::collection::vec(prop_oneof![Just(0u8), 0u8..8, any::<u8>()], 0..80),
            compression in prop::sample::select(vec!["raw", "gzip", "bzip2", "xz", "lz4", "blosc", "zstd"]),
        ) {
            let attributes = attributes(&[7, 5], &[5, 4], "uint32", compression);
            if let Ok((size, data)) = decode_bytes(bytes, &attributes, &[1, 1]) {
                prop_assert_eq!(product(&size).unwrap() * 4, data.len() as u64);
            }
        }
    }

    #[test]
    fn an_encoded_block_decodes_to_the_same() {
        for encoding in BlockEncoding::ALL {
            for (data_type, width) in [("uint8", 1), ("int16", 2), ("float32", 4), ("uint64", 8)] {
                let text = serde_json::json!({"dimensions": [7, 5], "blockSize": [5, 4], "dataType": data_type,
                    "compression": encoding.compression_attribute()});
                let attributes =
                    DatasetAttributes::parse(AttributesDocument::parse(text.to_string().as_bytes()).unwrap());
                let data: Bytes = (0..=255u8).cycle().take(2 * 4 * width).collect::<Vec<_>>().into();
                let stored = encode_block(&[2, 4], width, data.clone(), encoding).unwrap();
                let block = Block::decode(stored, &attributes.unwrap(), &[1, 0], 1 << 20).unwrap();
                assert_eq!((block.size.as_slice(), block.data), ([2, 4].as_slice(), data), "{encoding:?}");
            }
        }
    }

    #[test]
    fn the_example_of_the_specification_is_encoded_exactly() {
        // Specification 4.0.0 §9: uint16 1 to 6 in a block of size 1 x 2 x 3.
        let data: Vec<u8> = (1..=6u16).flat_map(u16::to_le_bytes).collect();
        let stored = encode_block(&[1, 2, 3], 2, data.into(), BlockEncoding::Raw).unwrap();
        let expected = b"\0\0\0\x03\0\0\0\x01\0\0\0\x02\0\0\0\x03\0\x01\0\x02\0\x03\0\x04\0\x05\0\x06";
        assert_eq!(stored.as_ref(), expected);
        assert!(encode_block(&[1 << 32], 1, Bytes::new(), BlockEncoding::Raw).is_err());
        let short = encode_block(&[2], 2, Bytes::from_static(&[1, 2, 3]), BlockEncoding::Raw);
        assert_eq!(short, Err(CodecError::Encode { reason: "3 bytes are not [2] elements of 2 bytes".to_owned() }));
    }

    #[test]
    fn only_a_compressed_block_takes_a_buffer_and_only_one_of_its_size() {
        let attributes = |compression: &str| {
            let text = format!(
                r#"{{"dimensions":[4],"blockSize":[4],"dataType":"uint16","compression":{{"type":"{compression}"}}}}"#
            );
            DatasetAttributes::parse(AttributesDocument::parse(text.as_bytes()).unwrap()).unwrap()
        };
        let data = Bytes::from_static(&[1, 0, 2, 0, 3, 0, 4, 0]);
        let mut scratch = Scratch::default();
        let (raw, gzip) = (BlockEncoding::Raw, BlockEncoding::Gzip);
        for (encoding, capacity, is_reused) in [(raw, 8, false), (gzip, 8, true), (gzip, 9, false)] {
            let compression = encoding.name();
            let attributes = attributes(compression);
            let stored = encode_block(&[4], 2, data.clone(), encoding).unwrap();
            let buffer = vec![0xff; capacity];
            let address = buffer.as_ptr();
            let decoder = BlockDecoder::new(stored.clone(), &attributes, &[0], 1 << 20).unwrap();
            let decoded = decoder.decode(
                |bytes| {
                    assert_eq!(bytes, 8);
                    buffer
                },
                &mut scratch,
                CancelCheck::NEVER,
            );
            let decoded = decoded.unwrap();
            assert_eq!(decoded.data, data, "{compression}");
            assert_eq!(decoded.data.as_ptr() == address, is_reused, "{compression}, {capacity}");
            // The same scratch memory serves the other way to decode.
            let decoder = BlockDecoder::new(&*stored, &attributes, &[0], 1 << 20).unwrap();
            let mut output = Vec::new();
            let (_, elements) = decoder.decompress(&mut output, &mut scratch, CancelCheck::NEVER).unwrap();
            assert_eq!(elements, [0, 1, 0, 2, 0, 3, 0, 4], "{compression}");
        }
    }
}
