//! Checked conversion of elements from one type to another.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    clippy::cast_lossless,
    clippy::float_cmp,
    reason = "rounding is intended; an exact comparison detects values that an integer type cannot hold"
)]

use bytes::Bytes;

use crate::DataType;

/// Number of elements that are converted between two checks for values that cannot be represented.
const CHUNK_ELEMENTS: usize = 1024;

/// Error from [`convert`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// The requested type cannot represent a value.
    #[error("element {index} is {value}, which {to} cannot represent exactly")]
    NotRepresentable {
        /// Index of the value among the given elements, in memory order.
        index: usize,
        /// The value as text; exact for integers.
        value: String,
        /// Type of the given elements.
        from: DataType,
        /// Requested type.
        to: DataType,
    },
    /// Elements of this type are not decoded.
    #[error("elements of type {0} cannot be converted")]
    Unsupported(DataType),
    /// The data ends within an element.
    #[error("{bytes} bytes are not a whole number of {data_type} elements")]
    Length {
        /// Number of bytes given.
        bytes: usize,
        /// Type of the given elements.
        data_type: DataType,
    },
    /// Memory for this many bytes of converted elements could not be allocated.
    #[error("cannot allocate {0} bytes for the converted elements")]
    Memory(usize),
}

/// Converts an integer to the integer type `$b`. Returns false if the value is out of range.
macro_rules! integer_to_integer {
    ($value:ident, $b:ty) => {{
        let converted = <$b>::try_from($value);
        (converted.unwrap_or_default(), converted.is_ok())
    }};
}

/// Converts a float to the integer type `$b`. Returns false unless the integer is exactly the value.
macro_rules! float_to_integer {
    ($value:ident, $b:ty) => {{
        let wide = f64::from($value);
        let converted = wide as $b;
        // The bounds are powers of two or 0, so they are exact. Without them, 2^63 would saturate to i64::MAX, which
        // converts back to 2^63 and would pass as exact. NaN is outside all bounds.
        let within = wide >= <$b>::MIN as f64 && wide < (<$b>::MAX / 2 + 1) as f64 * 2.0;
        (converted, within && converted as f64 == wide)
    }};
}

/// Converts elements of the type `$a` with [`convert_elements`]. `$to_integer` is one of the macros above.
///
/// For example, the conversion from float32 to uint8 becomes a call of `convert_elements` with `f32::from_le_bytes`,
/// `|value| float_to_integer!(value, u8)` and `u8::to_le_bytes`.
macro_rules! convert_from {
    ($a:ty, $to_integer:ident, $data:expr, $from:expr, $to:expr) => {{
        let read = <$a>::from_le_bytes;
        macro_rules! convert_to {
            ($b:ty) => {
                convert_elements($data, $from, $to, read, |value| $to_integer!(value, $b), <$b>::to_le_bytes)
            };
        }
        match $to {
            DataType::UInt8 => convert_to!(u8),
            DataType::UInt16 => convert_to!(u16),
            DataType::UInt32 => convert_to!(u32),
            DataType::UInt64 => convert_to!(u64),
            DataType::Int8 => convert_to!(i8),
            DataType::Int16 => convert_to!(i16),
            DataType::Int32 => convert_to!(i32),
            DataType::Int64 => convert_to!(i64),
            DataType::Float32 => {
                convert_elements($data, $from, $to, read, |value| (value as f32, true), f32::to_le_bytes)
            }
            DataType::Float64 => {
                convert_elements($data, $from, $to, read, |value| (value as f64, true), f64::to_le_bytes)
            }
            DataType::Other(_) => Err(ConvertError::Unsupported($to.clone())),
        }
    }};
}

/// Converts little-endian elements of type `from` to little-endian elements of type `to`, in the same order.
///
/// - An integer type must represent every value exactly: in range and, for a float, integral and finite. Negative zero
///   becomes 0.
/// - A floating-point type takes the nearest value, ties to even, as in IEEE 754. Integers may lose low-order digits,
///   float64 values beyond the range of float32 become infinite, and NaN stays NaN.
/// - If the types are the same, nothing is copied.
///
/// # Errors
/// Returns a [`ConvertError`]; if several values cannot be represented, it names the first.
pub fn convert(data: Bytes, from: &DataType, to: &DataType) -> Result<Bytes, ConvertError> {
    if from == to && from.size_bytes().is_some() {
        return Ok(data);
    }
    match from {
        DataType::UInt8 => convert_from!(u8, integer_to_integer, &data, from, to),
        DataType::UInt16 => convert_from!(u16, integer_to_integer, &data, from, to),
        DataType::UInt32 => convert_from!(u32, integer_to_integer, &data, from, to),
        DataType::UInt64 => convert_from!(u64, integer_to_integer, &data, from, to),
        DataType::Int8 => convert_from!(i8, integer_to_integer, &data, from, to),
        DataType::Int16 => convert_from!(i16, integer_to_integer, &data, from, to),
        DataType::Int32 => convert_from!(i32, integer_to_integer, &data, from, to),
        DataType::Int64 => convert_from!(i64, integer_to_integer, &data, from, to),
        DataType::Float32 => convert_from!(f32, float_to_integer, &data, from, to),
        DataType::Float64 => convert_from!(f64, float_to_integer, &data, from, to),
        DataType::Other(_) => Err(ConvertError::Unsupported(from.clone())),
    }
}

/// Converts between one pair of types. `cast` returns the nearest value, and true if that value is acceptable. The loop
/// over each chunk is free of branches, so it compiles to vector instructions.
fn convert_elements<A: Copy + ToString, B, const N: usize, const M: usize>(
    data: &[u8],
    from: &DataType,
    to: &DataType,
    read: impl Fn([u8; N]) -> A,
    cast: impl Fn(A) -> (B, bool),
    write: impl Fn(B) -> [u8; M],
) -> Result<Bytes, ConvertError> {
    let (elements, []) = data.as_chunks::<N>() else {
        return Err(ConvertError::Length { bytes: data.len(), data_type: from.clone() });
    };
    let bytes = elements.len().saturating_mul(M);
    let mut out: Vec<u8> = Vec::new();
    out.try_reserve_exact(bytes).map_err(|_refused| ConvertError::Memory(bytes))?;
    let mut run = [[0; M]; CHUNK_ELEMENTS];
    for (number, chunk) in elements.chunks(CHUNK_ELEMENTS).enumerate() {
        let mut are_all_exact = true;
        for (element, converted) in chunk.iter().zip(&mut run) {
            let (value, is_exact) = cast(read(*element));
            *converted = write(value);
            are_all_exact &= is_exact;
        }
        if !are_all_exact {
            let mut values = chunk.iter().map(|element| read(*element)).enumerate();
            let first = values.find(|(_, value)| !cast(*value).1);
            let (offset, value) = first.map_or((0, String::new()), |(offset, value)| (offset, value.to_string()));
            let index = number.saturating_mul(CHUNK_ELEMENTS).saturating_add(offset);
            return Err(ConvertError::NotRepresentable { index, value, from: from.clone(), to: to.clone() });
        }
        out.extend_from_slice(run.get(..chunk.len()).unwrap_or_default().as_flattened());
    }
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "the reference rounds on purpose, and its integers are wider than any converted type"
    )]

    use proptest::prelude::*;

    use super::*;

    /// A number of any type, stored without loss.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum ReferenceValue {
        Integer(i128),
        Float(f64),
    }

    fn bounds(name: &str) -> (i128, i128) {
        let bits: u32 = name.trim_start_matches(|c: char| c.is_ascii_alphabetic()).parse().unwrap();
        if name.starts_with('u') { (0, (1 << bits) - 1) } else { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) }
    }

    fn read(bytes: &[u8], name: &str) -> ReferenceValue {
        match name {
            "float32" => ReferenceValue::Float(f32::from_le_bytes(bytes.try_into().unwrap()).into()),
            "float64" => ReferenceValue::Float(f64::from_le_bytes(bytes.try_into().unwrap())),
            _ => {
                let fill = if name.starts_with('i') && bytes[bytes.len() - 1] > 127 { 255 } else { 0 };
                let mut wide = [fill; 16];
                wide[..bytes.len()].copy_from_slice(bytes);
                ReferenceValue::Integer(i128::from_le_bytes(wide))
            }
        }
    }

    /// Returns the expected result for one value: its bytes in the new type, or `None` if it must be rejected.
    fn reference(value: ReferenceValue, to: &str) -> Option<Vec<u8>> {
        if to == "float32" {
            let rounded = match value {
                ReferenceValue::Integer(value) => value as f32,
                ReferenceValue::Float(value) => value as f32,
            };
            return Some(rounded.to_le_bytes().to_vec());
        }
        if to == "float64" {
            let rounded = match value {
                ReferenceValue::Integer(value) => value as f64,
                ReferenceValue::Float(value) => value,
            };
            return Some(rounded.to_le_bytes().to_vec());
        }
        let integer = match value {
            ReferenceValue::Integer(value) => value,
            // The value fits an `i128`. Larger values are out of range for every integer type of the format.
            ReferenceValue::Float(value) if value.is_finite() && value.fract() == 0.0 && value.abs() < 1e30 => {
                value as i128
            }
            ReferenceValue::Float(_) => return None,
        };
        let (low, high) = bounds(to);
        let width = DataType::from_name(to).size_bytes().unwrap();
        (low..=high).contains(&integer).then(|| integer.to_le_bytes()[..width].to_vec())
    }

    fn is_nan(bytes: &[u8], name: &str) -> bool {
        matches!(read(bytes, name), ReferenceValue::Float(value) if value.is_nan())
    }

    /// Generates values at the limits of the types, and arbitrary others.
    fn values() -> impl Strategy<Value = Vec<u64>> {
        let edges: Vec<u64> = [0, 7, 8, 15, 16, 24, 31, 32, 52, 53, 62, 63]
            .iter()
            .flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1, (1u64 << bit).wrapping_neg()])
            .collect();
        let floats: Vec<u64> = edges
            .iter()
            .flat_map(|edge| [*edge as f64, -(*edge as f64), *edge as f64 + 0.5])
            .chain([-0.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, 1e-300, 18_446_744_073_709_551_616.0])
            .flat_map(|value| [value.to_bits(), (value as f32).to_bits().into()])
            .collect();
        let bits = prop_oneof![
            prop::sample::select(edges),
            prop::sample::select(floats),
            any::<u64>(),
            any::<u8>().prop_map(u64::from),
            any::<i8>().prop_map(|small| f64::from(small).to_bits()),
            any::<i8>().prop_map(|small| f32::from(small).to_bits().into()),
        ];
        prop::collection::vec(bits, 0..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn every_conversion_matches_the_reference(
            values in values(),
            from in prop::sample::select(DataType::names().collect::<Vec<_>>()),
            to in prop::sample::select(DataType::names().collect::<Vec<_>>()),
        ) {
            let (from_type, to_type) = (DataType::from_name(from), DataType::from_name(to));
            let width = from_type.size_bytes().unwrap();
            let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()[..width].to_vec()).collect();
            let expected: Vec<Option<Vec<u8>>> =
                data.chunks(width).map(|bytes| if from == to { Some(bytes.to_vec()) } else { reference(read(bytes, from), to) }).collect();
            match convert(data.clone().into(), &from_type, &to_type) {
                Ok(converted) => {
                    let size = to_type.size_bytes().unwrap();
                    prop_assert_eq!(converted.len(), expected.len() * size);
                    for (found, expected) in converted.chunks(size).zip(expected) {
                        let expected = expected.unwrap();
                        prop_assert!(found == expected || is_nan(found, to) && is_nan(&expected, to));
                    }
                }
                Err(ConvertError::NotRepresentable { index, value, .. }) => {
                    prop_assert_eq!(Some(index), expected.iter().position(Option::is_none));
                    let text = match read(&data[index * width..][..width], from) {
                        ReferenceValue::Integer(value) => value.to_string(),
                        // A float32 has a shorter text than the same value as float64.
                        ReferenceValue::Float(value) if from == "float32" => (value as f32).to_string(),
                        ReferenceValue::Float(value) => value.to_string(),
                    };
                    prop_assert_eq!(value, text);
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }

    fn to_bytes<const N: usize, A: Copy>(values: &[A], bytes: fn(A) -> [u8; N]) -> Bytes {
        values.iter().flat_map(|value| bytes(*value)).collect::<Vec<u8>>().into()
    }

    #[test]
    fn the_same_type_is_not_copied() {
        for name in DataType::names() {
            let (data, data_type) = (Bytes::from(vec![1u8; 16]), DataType::from_name(name));
            assert_eq!(convert(data.clone(), &data_type, &data_type).unwrap().as_ptr(), data.as_ptr());
        }
    }

    #[test]
    fn the_first_offending_value_is_reported_in_later_chunks_too() {
        let mut values = vec![7u16; 3 * CHUNK_ELEMENTS];
        values[CHUNK_ELEMENTS + 5] = 256;
        values[2 * CHUNK_ELEMENTS] = 300;
        let error = convert(to_bytes(&values, u16::to_le_bytes), &DataType::UInt16, &DataType::UInt8).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("element {} is 256, which uint8 cannot represent exactly", CHUNK_ELEMENTS + 5)
        );
    }

    #[test]
    fn powers_of_two_just_beyond_a_type_are_refused() {
        let two_63 = 9_223_372_036_854_775_808.0;
        for (value, to, fits) in [
            (two_63, DataType::Int64, false),
            (-two_63, DataType::Int64, true),
            (two_63, DataType::UInt64, true),
            (two_63 * 2.0, DataType::UInt64, false),
            (4_294_967_295.0, DataType::UInt32, true),
            (4_294_967_296.0, DataType::UInt32, false),
            (-129.0, DataType::Int8, false),
            (-0.0, DataType::UInt8, true),
            (-0.5, DataType::UInt8, false),
            (f64::NAN, DataType::Int8, false),
        ] {
            assert_eq!(
                convert(to_bytes(&[value], f64::to_le_bytes), &DataType::Float64, &to).is_ok(),
                fits,
                "{value} {to}"
            );
        }
    }

    #[test]
    fn floats_round_and_overflow_to_infinity() {
        let narrow =
            convert(to_bytes(&[0.1, 1e300, -1e300, 1e-300], f64::to_le_bytes), &DataType::Float64, &DataType::Float32)
                .unwrap();
        assert_eq!(narrow, to_bytes(&[0.1, f32::INFINITY, f32::NEG_INFINITY, 0.0], f32::to_le_bytes));
        let odd = (1i64 << 24) + 1;
        let rounded =
            convert(to_bytes(&[odd, i64::MAX], i64::to_le_bytes), &DataType::Int64, &DataType::Float32).unwrap();
        assert_eq!(rounded, to_bytes(&[16_777_216.0, 9_223_372_036_854_775_808.0], f32::to_le_bytes));
    }

    #[test]
    fn types_that_are_not_decoded_and_torn_elements_are_refused() {
        let other = DataType::from_name("string");
        assert_eq!(convert(Bytes::new(), &other, &other), Err(ConvertError::Unsupported(other.clone())));
        assert_eq!(convert(Bytes::new(), &DataType::Int8, &other), Err(ConvertError::Unsupported(other)));
        let torn = convert(vec![0u8; 3].into(), &DataType::UInt16, &DataType::UInt8);
        assert_eq!(torn, Err(ConvertError::Length { bytes: 3, data_type: DataType::UInt16 }));
    }
}
