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

/// Converts little-endian elements of type `from` to little-endian elements of type `to`, in the same order.
///
/// - An integer type must represent every value exactly: in range and, for a float, integral and finite. Negative zero
///   becomes 0.
/// - A floating-point type takes the nearest value, ties to even, as in IEEE 754. Integers may lose low-order digits,
///   float64 values beyond the range of float32 become infinite, and NaN stays NaN.
/// - If the types are the same, nothing is copied.
///
/// # Errors
/// [`ConvertError`]; if several values cannot be represented, it names the first.
pub fn convert(data: Bytes, from: &DataType, to: &DataType) -> Result<Bytes, ConvertError> {
    if from == to && from.size_bytes().is_some() {
        return Ok(data);
    }
    match from {
        DataType::UInt8 => convert_from::<1, u8>(&data, from, to),
        DataType::UInt16 => convert_from::<2, u16>(&data, from, to),
        DataType::UInt32 => convert_from::<4, u32>(&data, from, to),
        DataType::UInt64 => convert_from::<8, u64>(&data, from, to),
        DataType::Int8 => convert_from::<1, i8>(&data, from, to),
        DataType::Int16 => convert_from::<2, i16>(&data, from, to),
        DataType::Int32 => convert_from::<4, i32>(&data, from, to),
        DataType::Int64 => convert_from::<8, i64>(&data, from, to),
        DataType::Float32 => convert_from::<4, f32>(&data, from, to),
        DataType::Float64 => convert_from::<8, f64>(&data, from, to),
        DataType::Other(_) => Err(ConvertError::Unsupported(from.clone())),
    }
}

fn convert_from<const N: usize, A>(data: &[u8], from: &DataType, to: &DataType) -> Result<Bytes, ConvertError>
where
    A: Element<N>
        + CheckedCast<u8>
        + CheckedCast<u16>
        + CheckedCast<u32>
        + CheckedCast<u64>
        + CheckedCast<i8>
        + CheckedCast<i16>
        + CheckedCast<i32>
        + CheckedCast<i64>
        + CheckedCast<f32>
        + CheckedCast<f64>,
{
    match to {
        DataType::UInt8 => convert_elements::<N, 1, A, u8>(data, from, to),
        DataType::UInt16 => convert_elements::<N, 2, A, u16>(data, from, to),
        DataType::UInt32 => convert_elements::<N, 4, A, u32>(data, from, to),
        DataType::UInt64 => convert_elements::<N, 8, A, u64>(data, from, to),
        DataType::Int8 => convert_elements::<N, 1, A, i8>(data, from, to),
        DataType::Int16 => convert_elements::<N, 2, A, i16>(data, from, to),
        DataType::Int32 => convert_elements::<N, 4, A, i32>(data, from, to),
        DataType::Int64 => convert_elements::<N, 8, A, i64>(data, from, to),
        DataType::Float32 => convert_elements::<N, 4, A, f32>(data, from, to),
        DataType::Float64 => convert_elements::<N, 8, A, f64>(data, from, to),
        DataType::Other(_) => Err(ConvertError::Unsupported(to.clone())),
    }
}

/// Converts between one pair of types. The loop over each chunk is free of branches, so it compiles to vector
/// instructions.
fn convert_elements<const N: usize, const M: usize, A: Element<N> + CheckedCast<B>, B: Element<M>>(
    data: &[u8],
    from: &DataType,
    to: &DataType,
) -> Result<Bytes, ConvertError> {
    let (elements, []) = data.as_chunks::<N>() else {
        return Err(ConvertError::Length { bytes: data.len(), data_type: from.clone() });
    };
    let bytes = elements.len().saturating_mul(M);
    let mut out: Vec<u8> = Vec::new();
    out.try_reserve_exact(bytes).map_err(|_refused| ConvertError::Memory(bytes))?;
    let mut run = [[0; M]; CHUNK_ELEMENTS];
    for (n, chunk) in elements.chunks(CHUNK_ELEMENTS).enumerate() {
        let mut are_all_exact = true;
        for (element, converted) in chunk.iter().zip(&mut run) {
            let (value, is_exact) = A::read(*element).checked_cast();
            *converted = value.bytes();
            are_all_exact &= is_exact;
        }
        if !are_all_exact {
            let values = chunk.iter().map(|element| A::read(*element));
            let first = values.enumerate().find(|(_, value)| !value.checked_cast().1);
            let (k, value) = first.map_or((0, String::new()), |(k, value)| (k, value.text()));
            let index = n.saturating_mul(CHUNK_ELEMENTS).saturating_add(k);
            return Err(ConvertError::NotRepresentable { index, value, from: from.clone(), to: to.clone() });
        }
        out.extend_from_slice(run.get(..chunk.len()).unwrap_or_default().as_flattened());
    }
    Ok(out.into())
}

/// A number of `N` bytes.
trait Element<const N: usize>: Copy {
    fn read(bytes: [u8; N]) -> Self;
    fn bytes(self) -> [u8; N];
    fn text(self) -> String;
}

/// Conversion to type `B`: the nearest value, and true if that value is acceptable.
trait CheckedCast<B>: Copy {
    fn checked_cast(self) -> (B, bool);
}

/// Converts an integer to an integer type. The flag is false if the value is out of range.
fn integer<A, B: TryFrom<A> + Default>(value: A) -> (B, bool) {
    let converted = B::try_from(value);
    let is_exact = converted.is_ok();
    (converted.unwrap_or_default(), is_exact)
}

macro_rules! elements {
    ($($t:ty, $size:literal;)*) => {
        $(
            impl Element<$size> for $t {
                #[inline]
                fn read(bytes: [u8; $size]) -> Self {
                    Self::from_le_bytes(bytes)
                }
                #[inline]
                fn bytes(self) -> [u8; $size] {
                    self.to_le_bytes()
                }
                fn text(self) -> String {
                    self.to_string()
                }
            }
        )*
    };
}

elements! { u8, 1; u16, 2; u32, 4; u64, 8; i8, 1; i16, 2; i32, 4; i64, 8; f32, 4; f64, 8; }

/// Implements `CheckedCast` from each type in the brackets to each type after the arrow.
macro_rules! casts {
    ($way:ident: [$($a:ty),*] => $to:tt) => { $(casts!($way: $a => $to);)* };
    ($way:ident: $a:ty => [$($b:ty),*]) => {
        $(
            impl CheckedCast<$b> for $a {
                #[inline]
                fn checked_cast(self) -> ($b, bool) {
                    casts!(@$way self, $b)
                }
            }
        )*
    };
    (@integer $value:expr, $b:ty) => { integer($value) };
    (@rounded $value:expr, $b:ty) => { ($value as $b, true) };
    (@checked $value:expr, $b:ty) => {{
        let wide = f64::from($value);
        let converted = wide as $b;
        // The bounds are powers of two or 0, so they are exact. Without them, 2^63 would saturate to i64::MAX,
        // which converts back to 2^63 and would pass as exact. NaN is outside all bounds.
        let within = wide >= <$b>::MIN as f64 && wide < (<$b>::MAX / 2 + 1) as f64 * 2.0;
        (converted, within && converted as f64 == wide)
    }};
}

casts!(integer: [u8, u16, u32, u64, i8, i16, i32, i64] => [u8, u16, u32, u64, i8, i16, i32, i64]);
casts!(rounded: [u8, u16, u32, u64, i8, i16, i32, i64, f32, f64] => [f32, f64]);
casts!(checked: [f32, f64] => [u8, u16, u32, u64, i8, i16, i32, i64]);

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
            // No integer type here reaches 2^100.
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
                        // The shortest text of a float32 is shorter than that of the same value as float64.
                        ReferenceValue::Float(value) if from == "float32" => (value as f32).to_string(),
                        ReferenceValue::Float(value) => value.to_string(),
                    };
                    prop_assert_eq!(value, text);
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }

    fn to_bytes<const N: usize, A: Element<N>>(values: &[A]) -> Bytes {
        values.iter().flat_map(|value| value.bytes()).collect::<Vec<u8>>().into()
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
        let error = convert(to_bytes(&values), &DataType::UInt16, &DataType::UInt8).unwrap_err();
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
            assert_eq!(convert(to_bytes(&[value]), &DataType::Float64, &to).is_ok(), fits, "{value} {to}");
        }
    }

    #[test]
    fn floats_round_and_overflow_to_infinity() {
        let narrow = convert(to_bytes(&[0.1, 1e300, -1e300, 1e-300]), &DataType::Float64, &DataType::Float32).unwrap();
        assert_eq!(narrow, to_bytes(&[0.1f32, f32::INFINITY, f32::NEG_INFINITY, 0.0]));
        let odd = (1i64 << 24) + 1;
        let rounded = convert(to_bytes(&[odd, i64::MAX]), &DataType::Int64, &DataType::Float32).unwrap();
        assert_eq!(rounded, to_bytes(&[16_777_216f32, 9_223_372_036_854_775_808.0]));
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
