//! The ten element types as numbers: bytes, text, and checked conversion between each two of them.
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    clippy::cast_lossless,
    clippy::float_cmp,
    reason = "rounding is intended; an exact comparison detects values that an integer type cannot hold"
)]

/// A number of `N` bytes.
pub(crate) trait Element<const N: usize>: Copy {
    fn read(bytes: [u8; N]) -> Self;
    fn bytes(self) -> [u8; N];
    fn text(self) -> String;
}

/// Conversion to type `B`: the nearest value, and true if that value is acceptable.
pub(crate) trait CheckedCast<B>: Copy {
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
