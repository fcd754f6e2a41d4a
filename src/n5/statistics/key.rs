//! Elements as numbers that sort as they do.

use crate::n5::DataType;

/// One element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// Of an unsigned type.
    Unsigned(u64),
    /// Of a signed type.
    Signed(i64),
    /// Of a floating-point type, finite.
    Float(f64),
}

impl Number {
    /// The nearest floating-point number.
    #[expect(clippy::cast_precision_loss, reason = "the nearest is what is asked for")]
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Unsigned(number) => number as f64,
            Self::Signed(number) => number as f64,
            Self::Float(number) => number,
        }
    }
}

/// How an element becomes a key and back.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Of that many bytes.
    Unsigned(usize),
    /// Of that many bytes.
    Signed(usize),
    Float32,
    Float64,
}

/// The key of an element, where it is finite.
pub(super) enum Key {
    Finite(u64),
    Nan,
    Infinite,
}

impl Kind {
    /// `None` for a type that is not decoded.
    pub(super) fn of(data_type: &DataType) -> Option<Self> {
        let width = data_type.size_bytes()?;
        Some(match data_type {
            DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => Self::Unsigned(width),
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => Self::Signed(width),
            DataType::Float32 => Self::Float32,
            DataType::Float64 => Self::Float64,
            DataType::Other(_) => return None,
        })
    }

    /// Bytes of an element.
    pub(super) fn width(self) -> usize {
        match self {
            Self::Unsigned(width) | Self::Signed(width) => width,
            Self::Float32 => 4,
            Self::Float64 => 8,
        }
    }

    /// Whether there are no more than 2^16 different elements.
    pub(super) fn is_counted(self) -> bool {
        self.width() <= 2
    }

    /// The key of a little-endian element of more than 16 bits.
    pub(super) fn key(self, item: &[u8]) -> Key {
        let mut wide = [0; 8];
        wide.iter_mut().zip(item).for_each(|(to, from)| *to = *from);
        let bits = u64::from_le_bytes(wide);
        match self {
            Self::Unsigned(_) => Key::Finite(bits),
            Self::Signed(width) => Key::Finite(bits ^ Self::sign(width)),
            Self::Float32 | Self::Float64 => {
                let width = self.width();
                let exponent = if width == 4 { 0x7f80_0000 } else { 0x7ff0_0000_0000_0000 };
                if bits & exponent == exponent {
                    let fraction = if width == 4 { 0x007f_ffff } else { 0x000f_ffff_ffff_ffff };
                    return if bits & fraction == 0 { Key::Infinite } else { Key::Nan };
                }
                // Negative zero is zero.
                let bits = if bits == Self::sign(width) { 0 } else { bits };
                // Of negative numbers all bits are turned, so that the least comes first.
                let all = u64::MAX >> (64 - 8 * width);
                Key::Finite(if bits & Self::sign(width) == 0 { bits | Self::sign(width) } else { !bits & all })
            }
        }
    }

    /// The element of a key.
    pub(super) fn number(self, key: u64) -> Number {
        match self {
            Self::Unsigned(_) => Number::Unsigned(key),
            // The key is the element's distance from the least of its type.
            Self::Signed(width) => {
                let least = -(1_i128 << (8 * width - 1));
                Number::Signed(i64::try_from(i128::from(key) + least).unwrap_or(i64::MAX))
            }
            Self::Float32 | Self::Float64 => {
                let width = self.width();
                let all = u64::MAX >> (64 - 8 * width);
                let bits = if key & Self::sign(width) == 0 { !key & all } else { key ^ Self::sign(width) };
                Number::Float(match u32::try_from(bits) {
                    Ok(bits) if width == 4 => f64::from(f32::from_bits(bits)),
                    _ => f64::from_bits(bits),
                })
            }
        }
    }

    fn sign(width: usize) -> u64 {
        1 << (8 * width - 1)
    }
}
