//! `raw`: the elements and nothing else.

use bytes::Bytes;

use super::encoding::{EncodeError, EncodeOptions, Endian};
use super::{Format, StreamedFormat};
use n5_format::{Array, DataType};

/// The elements, first axis fastest, in the requested byte order.
#[derive(Debug)]
pub(super) struct RawFormat;

impl Format for RawFormat {
    fn name(&self) -> &'static str {
        "raw"
    }

    fn media_type(&self) -> &'static str {
        "application/octet-stream"
    }

    fn is_compressible(&self) -> bool {
        true
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["endian"]
    }

    /// Returns the size of the byte-swapped elements, which may need their own buffer: the buffer of a cached block is
    /// shared, and a buffer with a memory permit cannot become mutable again.
    fn encoder_bytes(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> u64 {
        options.endian.swapped_bytes(shape, data_type)
    }

    fn encode(&self, array: &Array, options: &EncodeOptions) -> Result<Vec<Bytes>, EncodeError> {
        self.encode_whole(array, options)
    }

    fn as_streamed(&self) -> Option<&dyn StreamedFormat> {
        Some(self)
    }
}

impl StreamedFormat for RawFormat {
    fn header(&self, _: &[u64], _: &DataType, _: &EncodeOptions) -> Option<Bytes> {
        Some(Bytes::new())
    }

    fn byte_order(&self, options: &EncodeOptions) -> Endian {
        options.endian
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_endian_data_is_not_copied() {
        let array = Array { shape: [2].as_slice().into(), data_type: DataType::UInt16, data: vec![1, 2, 3, 4].into() };
        let parts = RawFormat.encode(&array, &EncodeOptions::default()).unwrap();
        assert_eq!(parts.len(), 1);
        assert_eq!(parts[0].as_ptr(), array.data.as_ptr());
    }

    #[test]
    fn big_endian_reverses_every_width() {
        let data: Vec<u8> = (0..16).collect();
        for (name, width) in [("int8", 1), ("uint16", 2), ("float32", 4), ("int64", 8)] {
            let expected: Vec<u8> = data.chunks(width).flat_map(|e| e.iter().rev().copied()).collect();
            let band = Endian::Big.arrange(data.clone().into(), &DataType::from_name(name));
            assert_eq!(band, expected, "{name}");
        }
    }

    #[test]
    fn an_unshared_band_is_swapped_in_place() {
        let band = Bytes::from(vec![1, 2, 3, 4]);
        let pointer = band.as_ptr();
        assert_eq!(Endian::Big.arrange(band, &DataType::UInt16).as_ptr(), pointer);
    }

    #[test]
    fn a_shared_band_is_not_modified() {
        let cached = Bytes::from(vec![1, 2, 3, 4]);
        assert_eq!(Endian::Big.arrange(cached.clone(), &DataType::UInt32), &[4, 3, 2, 1][..]);
        assert_eq!(cached, &[1, 2, 3, 4][..]);
    }
}
