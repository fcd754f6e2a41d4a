//! `npy`: NumPy's file format, from which `numpy.load` restores shape, type and order.

use bytes::Bytes;

use super::encoding::{AxisOrder, EncodeError, EncodeOptions};
use super::{Format, StreamedFormat};
use n5_format::{Array, DataType};

/// A NumPy header, then the elements.
///
/// Once loaded, `a[x, y, z]` is N5's element x, y, z with [`AxisOrder::F`], and `a[z, y, x]` with [`AxisOrder::C`].
/// Source: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.
#[derive(Debug)]
pub(super) struct NpyFormat;

/// Multiple to which the header's length is padded, which aligns the elements.
const ALIGNMENT: usize = 64;

impl Format for NpyFormat {
    fn name(&self) -> &'static str {
        "npy"
    }

    fn media_type(&self) -> &'static str {
        "application/x-npy"
    }

    fn encoder_bytes(&self, _: &[u64], _: &DataType, _: &EncodeOptions) -> u64 {
        0
    }

    fn encode(&self, array: &Array, options: &EncodeOptions) -> Result<Vec<Bytes>, EncodeError> {
        self.encode_whole(array, options)
    }

    fn as_streamed(&self) -> Option<&dyn StreamedFormat> {
        Some(self)
    }
}

impl StreamedFormat for NpyFormat {
    fn header(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> Option<Bytes> {
        let dictionary = format!(
            "{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}",
            data_type.numpy_typestr()?,
            if options.order == AxisOrder::F { "True" } else { "False" },
            tuple(&options.order.label(shape)),
        );
        // Magic, version and length take 10 bytes in version 1.0, and 12 in version 2.0, whose length has 32 bits.
        let padded_length = |prefix: usize| {
            let total =
                prefix.saturating_add(dictionary.len()).saturating_add(1).checked_next_multiple_of(ALIGNMENT)?;
            Some((total, total.checked_sub(prefix)?))
        };
        let (total, length) = padded_length(10)?;
        let mut header = b"\x93NUMPY".to_vec();
        let total = if let Ok(length) = u16::try_from(length) {
            header.extend_from_slice(&[1, 0]);
            header.extend_from_slice(&length.to_le_bytes());
            total
        } else {
            let (total, length) = padded_length(12)?;
            header.extend_from_slice(&[2, 0]);
            header.extend_from_slice(&u32::try_from(length).ok()?.to_le_bytes());
            total
        };
        header.extend_from_slice(dictionary.as_bytes());
        header.resize(total.saturating_sub(1), b' ');
        header.push(b'\n');
        Some(header.into())
    }
}

/// Formats a Python tuple: `()`, `(3,)`, `(3, 4)`.
fn tuple(numbers: &[u64]) -> String {
    let texts: Vec<String> = numbers.iter().map(u64::to_string).collect();
    format!("({}{})", texts.join(", "), if numbers.len() == 1 { "," } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(shape: &[u64], data_type: &DataType, order: AxisOrder) -> Bytes {
        NpyFormat.header(shape, data_type, &EncodeOptions { order, ..EncodeOptions::default() }).unwrap()
    }

    #[test]
    fn the_header_equals_that_of_numpy() {
        // numpy.save writes the same bytes for numpy.zeros((3, 4), '<u2', order='F'), except for padding that allows
        // for growth.
        let bytes = header(&[3, 4], &DataType::UInt16, AxisOrder::F);
        assert_eq!(&bytes[..8], b"\x93NUMPY\x01\0");
        assert_eq!(usize::from(u16::from_le_bytes([bytes[8], bytes[9]])), bytes.len() - 10);
        let text = std::str::from_utf8(&bytes[10..]).unwrap();
        assert_eq!(text.trim_end(), "{'descr': '<u2', 'fortran_order': True, 'shape': (3, 4), }");
        assert!(text.ends_with('\n'));
    }

    #[test]
    fn c_order_reverses_the_shape() {
        let bytes = header(&[3, 4, 5], &DataType::Int8, AxisOrder::C);
        let text = String::from_utf8_lossy(&bytes[10..]).into_owned();
        assert_eq!(text.trim_end(), "{'descr': '|i1', 'fortran_order': False, 'shape': (5, 4, 3), }");
    }

    #[test]
    fn short_tuples_have_python_syntax() {
        assert_eq!(tuple(&[]), "()");
        assert_eq!(tuple(&[3]), "(3,)");
    }

    #[test]
    fn elements_begin_at_a_multiple_of_64_for_every_rank() {
        for rank in 0..=32 {
            let bytes = header(&vec![u64::MAX; rank], &DataType::Float64, AxisOrder::C);
            assert_eq!(bytes.len() % 64, 0, "rank {rank}");
            assert_eq!(bytes[6], 1);
        }
    }

    #[test]
    fn a_header_beyond_16_bits_is_version_2() {
        let bytes = header(&vec![1; 30_000], &DataType::UInt8, AxisOrder::F);
        assert_eq!(&bytes[6..8], &[2, 0]);
        let length = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        assert_eq!(length as usize, bytes.len() - 12);
        assert_eq!(bytes.len() % 64, 0);
    }

    #[test]
    fn the_elements_are_not_copied() {
        let array = Array { shape: [2].as_slice().into(), data_type: DataType::Int16, data: vec![1, 2, 3, 4].into() };
        let parts = NpyFormat.encode(&array, &EncodeOptions::default()).unwrap();
        assert_eq!(parts[1].as_ptr(), array.data.as_ptr());
    }
}
