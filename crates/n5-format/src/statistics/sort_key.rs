//! Elements encoded as integer keys that sort in the same order.

use crate::DataType;

/// Value of an element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ElementValue {
    /// Value of an unsigned type.
    Unsigned(u64),
    /// Value of a signed type.
    Signed(i64),
    /// Finite value of a floating-point type.
    Float(f64),
}

impl ElementValue {
    /// Returns the nearest `f64`.
    #[expect(clippy::cast_precision_loss, reason = "rounding to the nearest value is intended")]
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Unsigned(number) => number as f64,
            Self::Signed(number) => number as f64,
            Self::Float(number) => number,
        }
    }
}

/// Encoding of the elements of a type as sort keys.
#[derive(Debug, Clone, Copy)]
pub(super) enum KeyEncoding {
    /// Number of bytes of an element.
    Unsigned(usize),
    /// Number of bytes of an element.
    Signed(usize),
    Float32,
    Float64,
}

/// The sort key of an element, if it is finite.
pub(super) enum SortKey {
    Finite(u64),
    Nan,
    Infinite,
}

impl KeyEncoding {
    /// Returns the encoding for a data type; `None` for a type that is not decoded.
    pub(super) fn for_type(data_type: &DataType) -> Option<Self> {
        let width = data_type.size_bytes()?;
        Some(match data_type {
            DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => Self::Unsigned(width),
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => Self::Signed(width),
            DataType::Float32 => Self::Float32,
            DataType::Float64 => Self::Float64,
            DataType::Other(_) => return None,
        })
    }

    /// Number of bytes of an element.
    pub(super) fn width(self) -> usize {
        match self {
            Self::Unsigned(width) | Self::Signed(width) => width,
            Self::Float32 => 4,
            Self::Float64 => 8,
        }
    }

    /// Returns true if the type has at most 2^16 distinct values, so that they are counted by value.
    pub(super) fn counts_by_value(self) -> bool {
        self.width() <= 2
    }

    /// Returns the key of a little-endian element of more than 16 bits.
    pub(super) fn encode(self, item: &[u8]) -> SortKey {
        let mut wide = [0; 8];
        wide.iter_mut().zip(item).for_each(|(to, from)| *to = *from);
        let bits = u64::from_le_bytes(wide);
        match self {
            Self::Unsigned(_) => SortKey::Finite(bits),
            Self::Signed(width) => SortKey::Finite(bits ^ Self::sign_bit(width)),
            Self::Float32 | Self::Float64 => {
                let width = self.width();
                let exponent = if width == 4 { 0x7f80_0000 } else { 0x7ff0_0000_0000_0000 };
                if bits & exponent == exponent {
                    let fraction = if width == 4 { 0x007f_ffff } else { 0x000f_ffff_ffff_ffff };
                    return if bits & fraction == 0 { SortKey::Infinite } else { SortKey::Nan };
                }
                // Negative zero becomes zero.
                let bits = if bits == Self::sign_bit(width) { 0 } else { bits };
                // All bits of negative numbers are inverted, so that the smallest number sorts first.
                let width_mask = u64::MAX >> (64 - 8 * width);
                SortKey::Finite(if bits & Self::sign_bit(width) == 0 {
                    bits | Self::sign_bit(width)
                } else {
                    !bits & width_mask
                })
            }
        }
    }

    /// Returns the element of a key.
    pub(super) fn decode(self, key: u64) -> ElementValue {
        match self {
            Self::Unsigned(_) => ElementValue::Unsigned(key),
            // The key is the distance from the smallest value of the type.
            Self::Signed(width) => {
                let min = -(1_i128 << (8 * width - 1));
                ElementValue::Signed(i64::try_from(i128::from(key) + min).unwrap_or(i64::MAX))
            }
            Self::Float32 | Self::Float64 => {
                let width = self.width();
                let width_mask = u64::MAX >> (64 - 8 * width);
                let bits =
                    if key & Self::sign_bit(width) == 0 { !key & width_mask } else { key ^ Self::sign_bit(width) };
                ElementValue::Float(match u32::try_from(bits) {
                    Ok(bits) if width == 4 => f64::from(f32::from_bits(bits)),
                    _ => f64::from_bits(bits),
                })
            }
        }
    }

    fn sign_bit(width: usize) -> u64 {
        1 << (8 * width - 1)
    }
}
