//! `raw`: the elements and nothing else.

use bytes::Bytes;

use super::Format;
use super::encoding::{EncodeOptions, Endian, element_count};
use n5_format::{DataType, to_big_endian};

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
    fn extra_bytes(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> u64 {
        swapped_bytes(shape, data_type, options.endian)
    }

    fn header(&self, _: &[u64], _: &DataType, _: &EncodeOptions) -> Option<Bytes> {
        Some(Bytes::new())
    }

    fn changes_bands(&self, data_type: &DataType, options: &EncodeOptions) -> bool {
        width_to_swap(data_type, options.endian).is_some()
    }

    fn finish_band(&self, band: Bytes, data_type: &DataType, options: &EncodeOptions) -> Bytes {
        in_byte_order(band, data_type, options.endian)
    }
}

/// Returns the size of the elements in bytes if their bytes must be reversed, otherwise 0.
pub(super) fn swapped_bytes(shape: &[u64], data_type: &DataType, endian: Endian) -> u64 {
    width_to_swap(data_type, endian).map_or(0, |width| element_count(shape).saturating_mul(width as u64))
}

/// Returns little-endian elements in the given byte order.
pub(super) fn in_byte_order(elements: Bytes, data_type: &DataType, endian: Endian) -> Bytes {
    match width_to_swap(data_type, endian) {
        Some(width) => to_big_endian(elements, width),
        None => elements,
    }
}

/// Returns the width of the elements if their bytes must be reversed; `None` if they are sent unchanged.
pub(super) fn width_to_swap(data_type: &DataType, endian: Endian) -> Option<usize> {
    data_type.size_bytes().filter(|width| *width > 1 && endian == Endian::Big)
}

#[cfg(test)]
mod tests {
    use super::*;
    use n5_format::Array;

    const BIG_ENDIAN: fn() -> EncodeOptions = || EncodeOptions { endian: Endian::Big, ..EncodeOptions::default() };

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
            let band = RawFormat.finish_band(data.clone().into(), &DataType::from_name(name), &BIG_ENDIAN());
            assert_eq!(band, expected, "{name}");
        }
    }

    #[test]
    fn an_unshared_band_is_swapped_in_place() {
        let band = Bytes::from(vec![1, 2, 3, 4]);
        let pointer = band.as_ptr();
        assert_eq!(RawFormat.finish_band(band, &DataType::UInt16, &BIG_ENDIAN()).as_ptr(), pointer);
    }

    #[test]
    fn a_shared_band_is_not_modified() {
        let cached = Bytes::from(vec![1, 2, 3, 4]);
        assert_eq!(RawFormat.finish_band(cached.clone(), &DataType::UInt32, &BIG_ENDIAN()), &[4, 3, 2, 1][..]);
        assert_eq!(cached, &[1, 2, 3, 4][..]);
    }
}
