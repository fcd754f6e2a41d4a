//! Encoding of decoded elements as a stored block.

use bytes::{BufMut, Bytes, BytesMut};

use crate::compression::wrong_length;
use crate::grid::product;
use crate::{BlockEncoding, CodecError};

/// Converts little-endian elements of `width` bytes to big-endian, the byte order of the format. Works in place if the
/// buffer is not shared.
pub fn to_big_endian(data: Bytes, width: usize) -> Bytes {
    swap_bytes(data, width)
}

/// Encodes a stored block of mode 0: the header, then the elements in `encoding`.
///
/// `size` is in elements, N5 axis order. `data` is little-endian, first axis fastest, with `width` bytes per element.
/// `width` is 1, 2, 4 or 8. Source: N5 specification 4.0.0 §9.
///
/// # Errors
/// [`CodecError`] if `data` is not `product(size)` elements, a size exceeds 32 bits or the encoder fails.
pub fn encode_block(size: &[u64], width: usize, data: Bytes, encoding: BlockEncoding) -> Result<Bytes, CodecError> {
    let header = block_header(size)
        .ok_or_else(|| CodecError::Damaged { codec: encoding.name(), reason: format!("{size:?} exceeds 32 bits") })?;
    let bytes = product(size).and_then(|elements| usize::try_from(elements).ok()?.checked_mul(width));
    if bytes != Some(data.len()) {
        return Err(wrong_length(bytes.unwrap_or(usize::MAX), data.len()));
    }
    let mut block = Vec::with_capacity(header.len() + if encoding == BlockEncoding::Raw { data.len() } else { 0 });
    block.extend(header);
    encoding.encode(&to_big_endian(data, width), width, &mut block)?;
    block.shrink_to_fit();
    Ok(block.into())
}

/// Returns the header of a stored block of mode 0; `None` if a size exceeds 32 bits.
pub fn block_header(size: &[u64]) -> Option<Vec<u8>> {
    let mut header = Vec::with_capacity(4 + 4 * size.len());
    header.put_u16(0);
    header.put_u16(u16::try_from(size.len()).ok()?);
    for n in size {
        header.put_u32(u32::try_from(*n).ok()?);
    }
    Some(header)
}

/// Swaps the byte order of elements of `width` bytes, in place if the buffer is not shared.
pub(crate) fn swap_bytes(data: Bytes, width: usize) -> Bytes {
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
    use super::*;
    use crate::{AttributesDocument, Block, DatasetAttributes};

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
        assert_eq!(short, Err(CodecError::WrongLength { expected: 4, found: "3 bytes".to_owned() }));
    }
}
