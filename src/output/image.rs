//! What the image formats share: which shapes are planes, and how a window makes elements grey.

use super::Options;
use crate::n5::DataType;

/// Width and height in pixels of what is shown as one image: of the axes longer than 1 the first goes to the
/// right and the second down. `max_side` is the most pixels that the format has along a side.
///
/// # Errors
/// Why the shape is no such image, and what to do, as text for the client.
pub(super) fn plane(format: &str, shape: &[u64], max_side: u64) -> Result<(u32, u32), String> {
    match sides(format, shape, max_side)?.as_slice() {
        [] => Ok((1, 1)),
        [width] => Ok((*width, 1)),
        [width, height] => Ok((*width, *height)),
        _ => Err(format!(
            "{format} shows a plane, at most two axes longer than 1, the shape is {shape:?}; \
             make the others 1 with start and size"
        )),
    }
}

/// Sizes of the axes longer than 1, in N5 axis order.
///
/// # Errors
/// As [`plane`], except that any number of axes will do.
pub(super) fn sides(format: &str, shape: &[u64], max_side: u64) -> Result<Vec<u32>, String> {
    if shape.contains(&0) {
        return Err(format!("the region {shape:?} is empty, {format} needs at least one element"));
    }
    let long = shape.iter().copied().filter(|size| *size > 1);
    let sides: Option<Vec<u32>> = long.map(|size| u32::try_from(size).ok().filter(|_| size <= max_side)).collect();
    sides.ok_or_else(|| {
        format!("{format} has at most {max_side} pixels a side, the shape is {shape:?}; ask for a part of it")
    })
}

/// Whether elements can be shown as grey values: by a window, or as they are where they are of a type in `as_is`.
///
/// # Errors
/// Why not, and what to do, as text for the client.
pub(super) fn window_shows(
    format: &str,
    as_is: &[DataType],
    data_type: &DataType,
    options: &Options,
) -> Result<(), String> {
    match options.window {
        None if as_is.contains(data_type) => Ok(()),
        None => {
            let names: Vec<&str> = as_is.iter().map(DataType::name).collect();
            Err(format!(
                "{format} shows {} as they are; for {data_type} give window=lo,hi, the values of black and white",
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
#[expect(clippy::cast_precision_loss, reason = "a 256th of the window is far above the 53 bits kept")]
pub(super) fn windowed(row: &mut Vec<u8>, elements: &[u8], data_type: &DataType, window: (f64, f64)) {
    match data_type {
        DataType::UInt8 => greys(row, elements, window, |e: [u8; 1]| u8::from_le_bytes(e).into()),
        DataType::UInt16 => greys(row, elements, window, |e: [u8; 2]| u16::from_le_bytes(e).into()),
        DataType::UInt32 => greys(row, elements, window, |e: [u8; 4]| u32::from_le_bytes(e).into()),
        DataType::UInt64 => greys(row, elements, window, |e: [u8; 8]| u64::from_le_bytes(e) as f64),
        DataType::Int8 => greys(row, elements, window, |e: [u8; 1]| i8::from_le_bytes(e).into()),
        DataType::Int16 => greys(row, elements, window, |e: [u8; 2]| i16::from_le_bytes(e).into()),
        DataType::Int32 => greys(row, elements, window, |e: [u8; 4]| i32::from_le_bytes(e).into()),
        DataType::Int64 => greys(row, elements, window, |e: [u8; 8]| i64::from_le_bytes(e) as f64),
        DataType::Float32 => greys(row, elements, window, |e: [u8; 4]| f32::from_le_bytes(e).into()),
        DataType::Float64 => greys(row, elements, window, f64::from_le_bytes),
        DataType::Other(_) => {}
    }
}

fn greys<const N: usize>(row: &mut Vec<u8>, elements: &[u8], window: (f64, f64), read: impl Fn([u8; N]) -> f64) {
    row.extend(elements.as_chunks::<N>().0.iter().map(|e| grey(read(*e), window)));
}

/// 0 at `lo` and below, 255 at `hi` and above, linear between; `lo > hi` runs the other way.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0..=255, NaN becomes 0")]
fn grey(value: f64, (lo, hi): (f64, f64)) -> u8 {
    let mut share = (value - lo) / (hi - lo);
    if (hi - lo).is_infinite() {
        share = (value / 2.0 - lo / 2.0) / (hi / 2.0 - lo / 2.0);
    }
    (share * 255.0).round().clamp(0.0, 255.0) as u8
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
    fn a_falling_window_inverts() {
        assert_eq!([-1.0, 0.0, 0.2, 1.0, 9.0, f64::NAN].map(|v| grey(v, (1.0, 0.0))), [255, 255, 204, 0, 0, 0]);
    }

    #[test]
    fn windows_as_wide_or_as_narrow_as_floats_go_are_linear() {
        assert_eq!([f64::MIN, 0.0, f64::MAX].map(|v| grey(v, (f64::MIN, f64::MAX))), [0, 128, 255]);
        assert_eq!([0.0, 5e-324].map(|v| grey(v, (0.0, 5e-324))), [0, 255]);
    }
}
