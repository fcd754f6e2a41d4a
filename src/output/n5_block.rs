//! `n5`: the region as one uncompressed block, in N5's storage format.

use bytes::Bytes;

use super::encoding::{EncodeError, EncodeOptions, Endian};
use super::{Format, StreamedFormat};
use n5_format::{Array, DataType, block_header};

/// A block header of mode 0 and the elements, most significant byte first. A dataset whose `blockSize` is the shape and
/// whose compression is `raw` stores the same bytes at its first grid position.
///
/// The header contains the shape in N5 axis order, regardless of the requested order. Source: N5 specification 4.0.0 §3
/// (block header), compression `raw`.
#[derive(Debug)]
pub(super) struct N5BlockFormat;

impl Format for N5BlockFormat {
    fn name(&self) -> &'static str {
        "n5"
    }

    fn media_type(&self) -> &'static str {
        "application/x-n5-block"
    }

    fn supports(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> Result<(), String> {
        match self.header_bytes(shape, data_type, options) {
            Some(_) => Ok(()),
            None => Err(format!(
                "a block has at most 65535 axes of at most 4294967295 elements, but the shape is {shape:?}; request less"
            )),
        }
    }

    /// Returns the size of the swapped elements plus that of a header with a hundred axes.
    fn encoder_bytes(&self, shape: &[u64], data_type: &DataType, _: &EncodeOptions) -> u64 {
        match Endian::Big.swapped_width(data_type) {
            Some(_) => Endian::Big.swapped_bytes(shape, data_type).saturating_add(512),
            None => 0,
        }
    }

    fn encode(&self, array: &Array, options: &EncodeOptions) -> Result<Vec<Bytes>, EncodeError> {
        self.encode_whole(array, options)
    }

    fn as_streamed(&self) -> Option<&dyn StreamedFormat> {
        Some(self)
    }
}

impl StreamedFormat for N5BlockFormat {
    fn header(&self, shape: &[u64], _: &DataType, _: &EncodeOptions) -> Option<Bytes> {
        block_header(shape).map(Bytes::from)
    }

    fn byte_order(&self, _: &EncodeOptions) -> Endian {
        Endian::Big
    }
}

#[cfg(test)]
mod tests {
    use super::super::check_supported;
    use super::super::encoding::element_count;
    use super::*;
    use n5_format::{AttributesDocument, Block, DatasetAttributes};

    #[test]
    fn a_block_is_read_back_by_the_decoder() {
        for (shape, text) in [(&[][..], ""), (&[3], "3"), (&[2, 3, 1], "2,3,1")] {
            for name in DataType::names() {
                let data_type = DataType::from_name(name);
                let bytes = usize::try_from(element_count(shape)).unwrap() * data_type.size_bytes().unwrap();
                let data: Bytes = (1..=u8::try_from(bytes).unwrap()).collect::<Vec<u8>>().into();
                let array = Array { shape: shape.into(), data_type, data: data.clone() };
                let block = N5BlockFormat.encode(&array, &EncodeOptions::default()).unwrap().concat();
                let attributes = format!(
                    r#"{{"dimensions":[{text}],"blockSize":[{text}],"dataType":"{name}","compression":{{"type":"raw"}}}}"#
                );
                let document = AttributesDocument::parse(attributes.as_bytes()).unwrap();
                let attributes = DatasetAttributes::parse(document).unwrap();
                let position: Vec<u64> = shape.iter().map(|_| 0).collect();
                let decoded = Block::decode(block.into(), &attributes, &position, 1 << 20).unwrap();
                assert_eq!((decoded.data, decoded.size.as_slice()), (data, shape), "{name} {shape:?}");
            }
        }
    }

    #[test]
    fn the_header_is_big_endian_and_first_axis_first() {
        let array =
            Array { shape: [2, 1].as_slice().into(), data_type: DataType::UInt16, data: vec![1, 2, 3, 4].into() };
        let options = EncodeOptions { order: crate::output::AxisOrder::C, ..EncodeOptions::default() };
        let block = N5BlockFormat.encode(&array, &options).unwrap().concat();
        assert_eq!(block, [0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 1, 2, 1, 4, 3]);
    }

    #[test]
    fn an_axis_beyond_32_bits_is_refused() {
        let refusal =
            check_supported(&N5BlockFormat, &[1 << 32, 0], &DataType::UInt8, &EncodeOptions::default()).unwrap_err();
        assert!(refusal.contains("4294967295"), "{refusal}");
        assert_eq!(
            check_supported(&N5BlockFormat, &[(1 << 32) - 1], &DataType::UInt8, &EncodeOptions::default()),
            Ok(())
        );
    }
}
