//! Code shared by the image formats: it computes an image's width and height from an array's shape, and maps elements
//! to grey values through a window.

use super::encoding::EncodeOptions;
use n5_format::DataType;

/// Returns the width and height in pixels of an array shown as one image. The first axis longer than 1 runs to the
/// right, the second one down. `max_side` is the format's maximum number of pixels per side.
///
/// # Errors
/// Returns a text for the client: why the array cannot be shown as one image, and what to request instead.
pub(super) fn plane_size(format: &str, shape: &[u64], max_side: u64) -> Result<(u32, u32), String> {
    match long_axes(format, shape, max_side)?.as_slice() {
        [] => Ok((1, 1)),
        [width] => Ok((*width, 1)),
        [width, height] => Ok((*width, *height)),
        _ => Err(format!(
            "{format} needs a plane with at most two axes longer than 1, but the shape is {shape:?}; \
             reduce the other axes to 1 with start and size"
        )),
    }
}

/// Returns the sizes of the axes longer than 1, in N5 axis order.
///
/// # Errors
/// Returns the same errors as [`plane_size`], except that any number of axes is allowed.
pub(super) fn long_axes(format: &str, shape: &[u64], max_side: u64) -> Result<Vec<u32>, String> {
    if shape.contains(&0) {
        return Err(format!("the region {shape:?} is empty, but {format} needs at least one element"));
    }
    let long_sizes = shape.iter().copied().filter(|size| *size > 1);
    let sides: Option<Vec<u32>> =
        long_sizes.map(|size| u32::try_from(size).ok().filter(|_| size <= max_side)).collect();
    sides.ok_or_else(|| {
        format!(
            "{format} allows at most {max_side} pixels per side, but the shape is {shape:?}; request a smaller region"
        )
    })
}

/// Checks that elements can be shown as grey values: through a window, or unchanged if their type is in
/// `unchanged_types`.
///
/// # Errors
/// Returns a text for the client: why the elements cannot be shown, and what to request instead.
pub(super) fn check_window(
    format: &str,
    unchanged_types: &[DataType],
    data_type: &DataType,
    options: &EncodeOptions,
) -> Result<(), String> {
    match options.window {
        None if unchanged_types.contains(data_type) => Ok(()),
        None => {
            let names: Vec<&str> = unchanged_types.iter().map(DataType::name).collect();
            Err(format!(
                "{format} shows only {} unchanged; for {data_type} give window=lo,hi, the values of black and white",
                names.join(" and ")
            ))
        }
        Some((lo, hi)) if !lo.is_finite() || !hi.is_finite() || lo.to_bits() == hi.to_bits() || lo - hi == 0.0 => {
            Err(format!("window={lo},{hi} has no width; give two different finite numbers"))
        }
        Some(_) => Ok(()),
    }
}

/// Appends the grey values of a row of elements.
#[expect(clippy::cast_precision_loss, reason = "53 bits are far more precise than a 256th of the window")]
pub(super) fn append_windowed(row: &mut Vec<u8>, elements: &[u8], data_type: &DataType, window: (f64, f64)) {
    match data_type {
        DataType::UInt8 => append_grey(row, elements, window, |e: [u8; 1]| u8::from_le_bytes(e).into()),
        DataType::UInt16 => append_grey(row, elements, window, |e: [u8; 2]| u16::from_le_bytes(e).into()),
        DataType::UInt32 => append_grey(row, elements, window, |e: [u8; 4]| u32::from_le_bytes(e).into()),
        DataType::UInt64 => append_grey(row, elements, window, |e: [u8; 8]| u64::from_le_bytes(e) as f64),
        DataType::Int8 => append_grey(row, elements, window, |e: [u8; 1]| i8::from_le_bytes(e).into()),
        DataType::Int16 => append_grey(row, elements, window, |e: [u8; 2]| i16::from_le_bytes(e).into()),
        DataType::Int32 => append_grey(row, elements, window, |e: [u8; 4]| i32::from_le_bytes(e).into()),
        DataType::Int64 => append_grey(row, elements, window, |e: [u8; 8]| i64::from_le_bytes(e) as f64),
        DataType::Float32 => append_grey(row, elements, window, |e: [u8; 4]| f32::from_le_bytes(e).into()),
        DataType::Float64 => append_grey(row, elements, window, f64::from_le_bytes),
        DataType::Other(_) => {}
    }
}

fn append_grey<const N: usize>(row: &mut Vec<u8>, elements: &[u8], window: (f64, f64), read: impl Fn([u8; N]) -> f64) {
    row.extend(elements.as_chunks::<N>().0.iter().map(|e| grey(read(*e), window)));
}

/// Maps `value` to 0 at `lo` and below, to 255 at `hi` and above, and linearly between. `lo > hi` inverts the image.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0..=255, NaN becomes 0")]
fn grey(value: f64, (lo, hi): (f64, f64)) -> u8 {
    let mut fraction = (value - lo) / (hi - lo);
    if (hi - lo).is_infinite() {
        fraction = (value / 2.0 - lo / 2.0) / (hi / 2.0 - lo / 2.0);
    }
    (fraction * 255.0).round().clamp(0.0, 255.0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_the_window_are_cut_off_and_nan_is_black() {
        let values = [f64::NEG_INFINITY, -1.0, 0.0, 0.5, 1.0, 2.0, f64::INFINITY, f64::NAN];
        let expected = [0, 0, 0, 128, 255, 255, 255, 0];
        assert_eq!(values.map(|v| grey(v, (0.0, 1.0))), expected);
    }

    #[test]
    fn a_descending_window_inverts_the_image() {
        assert_eq!([-1.0, 0.0, 0.2, 1.0, 9.0, f64::NAN].map(|v| grey(v, (1.0, 0.0))), [255, 255, 204, 0, 0, 0]);
    }

    #[test]
    fn windows_of_extreme_width_are_linear() {
        assert_eq!([f64::MIN, 0.0, f64::MAX].map(|v| grey(v, (f64::MIN, f64::MAX))), [0, 128, 255]);
        assert_eq!([0.0, 5e-324].map(|v| grey(v, (0.0, 5e-324))), [0, 255]);
    }
}
