//! `raw`: the elements and nothing else.

use bytes::Bytes;

use super::{EncodeError, Endian, Format, Options, accepts_common, check, elements};
use crate::n5::{Array, DataType};

/// The elements, first axis fastest, in the byte order asked for.
#[derive(Debug)]
pub(super) struct Raw;

impl Format for Raw {
    fn name(&self) -> &'static str {
        "raw"
    }

    fn media_type(&self) -> &'static str {
        "application/octet-stream"
    }

    fn accepts(&self, _: &[u64], data_type: &DataType, options: &Options) -> Result<(), String> {
        accepts_common(self, data_type, options)
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["endian"]
    }

    /// Swapped elements may need a buffer of their own: those of a cached block are shared, and an
    /// allocation that carries a permit cannot be taken back.
    fn extra_bytes(&self, shape: &[u64], data_type: &DataType, options: &Options) -> u64 {
        match swapped_width(data_type, options.endian) {
            Some(width) => elements(shape).saturating_mul(width as u64),
            None => 0,
        }
    }

    fn header(&self, _: &[u64], _: &DataType, _: &Options) -> Option<Bytes> {
        Some(Bytes::new())
    }

    fn changes_bands(&self, data_type: &DataType, options: &Options) -> bool {
        swapped_width(data_type, options.endian).is_some()
    }

    fn finish_band(&self, band: Bytes, data_type: &DataType, options: &Options) -> Bytes {
        match swapped_width(data_type, options.endian) {
            Some(width) => swapped(band, width),
            None => band,
        }
    }

    fn encode(&self, array: &Array, options: &Options) -> Result<Vec<Bytes>, EncodeError> {
        check(self, array, options)?;
        Ok(vec![self.finish_band(array.data.clone(), &array.data_type, options)])
    }
}

/// Width of the elements whose bytes have to be reversed; `None` where they go out as they are.
pub(super) fn swapped_width(data_type: &DataType, endian: Endian) -> Option<usize> {
    data_type.size_bytes().filter(|width| *width > 1 && endian == Endian::Big)
}

/// The elements with their bytes reversed, in place where nobody else holds them.
pub(super) fn swapped(band: Bytes, width: usize) -> Bytes {
    match band.try_into_mut() {
        Ok(mut own) => {
            swap(&mut own, width);
            own.freeze()
        }
        Err(shared) => {
            let mut own = shared.to_vec();
            swap(&mut own, width);
            own.into()
        }
    }
}

fn swap(data: &mut [u8], width: usize) {
    // Constant widths become byte-swap instructions.
    match width {
        2 => data.as_chunks_mut::<2>().0.iter_mut().for_each(|element| element.reverse()),
        4 => data.as_chunks_mut::<4>().0.iter_mut().for_each(|element| element.reverse()),
        8 => data.as_chunks_mut::<8>().0.iter_mut().for_each(|element| element.reverse()),
        _ => debug_assert!(width == 1, "no element is {width} bytes wide"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BIG: fn() -> Options = || Options { endian: Endian::Big, ..Options::default() };

    #[test]
    fn little_endian_data_is_the_arrays_own() {
        let array = Array { shape: [2].as_slice().into(), data_type: DataType::UInt16, data: vec![1, 2, 3, 4].into() };
        let parts = Raw.encode(&array, &Options::default()).unwrap();
        assert_eq!(parts.len(), 1);
        assert_eq!(parts[0].as_ptr(), array.data.as_ptr());
    }

    #[test]
    fn big_endian_reverses_every_width() {
        let data: Vec<u8> = (0..16).collect();
        for (name, width) in [("int8", 1), ("uint16", 2), ("float32", 4), ("int64", 8)] {
            let expected: Vec<u8> = data.chunks(width).flat_map(|e| e.iter().rev().copied()).collect();
            let band = Raw.finish_band(data.clone().into(), &DataType::from_name(name), &BIG());
            assert_eq!(band, expected, "{name}");
        }
    }

    #[test]
    fn an_unshared_band_is_swapped_in_place() {
        let band = Bytes::from(vec![1, 2, 3, 4]);
        let at = band.as_ptr();
        assert_eq!(Raw.finish_band(band, &DataType::UInt16, &BIG()).as_ptr(), at);
    }

    #[test]
    fn a_shared_band_is_left_alone() {
        let cached = Bytes::from(vec![1, 2, 3, 4]);
        assert_eq!(Raw.finish_band(cached.clone(), &DataType::UInt32, &BIG()), &[4, 3, 2, 1][..]);
        assert_eq!(cached, &[1, 2, 3, 4][..]);
    }
}
