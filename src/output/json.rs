//! `json`: nested lists, with the metadata needed to interpret them.

use bytes::Bytes;
use serde::Serialize;
use smallvec::SmallVec;

use super::Format;
use super::encoding::{AxisOrder, EncodeError, EncodeOptions, buffer, element_count};
use n5_format::{Array, DataType};

/// An object with the members `data_type`, `shape`, `order`, `start`, `step` and `data`.
///
/// `data` is nested in the order of `shape`: `data[x][y][z]` with order F, `data[z][y][x]` with order C. For rank 0 it
/// is a bare number. Integers are exact. Floats have the shortest text that reads back as the same value; `"NaN"`,
/// `"Infinity"` and `"-Infinity"` are strings. `start` and `step` contain every axis of the dataset in N5 axis order,
/// including dropped axes.
#[derive(Debug)]
pub(super) struct JsonFormat;

impl Format for JsonFormat {
    fn name(&self) -> &'static str {
        "json"
    }

    fn is_shown_by_browsers(&self) -> bool {
        true
    }

    fn media_type(&self) -> &'static str {
        "application/json"
    }

    fn is_compressible(&self) -> bool {
        true
    }

    fn encoder_bytes(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> u64 {
        let labelled = options.order.label(shape);
        // Two brackets and a comma are counted for each list: one list for the whole array, one for each index of the
        // first axis, and so on.
        let mut list_count = 0u64;
        for depth in 0..labelled.len() {
            list_count = list_count.saturating_add(element_count(labelled.get(..depth).unwrap_or_default()));
        }
        let number_count =
            (shape.len() as u64).saturating_add(options.start.len().saturating_add(options.step.len()) as u64);
        let text_bytes = element_count(shape).saturating_mul(max_text_bytes(data_type).saturating_add(1));
        text_bytes
            .saturating_add(list_count.saturating_mul(3))
            .saturating_add(number_count.saturating_mul(21))
            .saturating_add(128)
    }

    fn encode(&self, array: &Array, options: &EncodeOptions) -> Result<Vec<Bytes>, EncodeError> {
        self.check(array, options)?;
        let mut out = buffer(self.encoder_bytes(&array.shape, &array.data_type, options))?;
        write_document(&mut out, array, options)
            .map_err(|error| EncodeError::Encoder { format: self.name(), reason: error.to_string() })?;
        Ok(vec![out.into()])
    }
}

/// Maximum text length of an element in bytes, including the quotes of non-finite values.
fn max_text_bytes(data_type: &DataType) -> u64 {
    match data_type {
        DataType::UInt8 => 3,
        DataType::Int8 => 4,
        DataType::UInt16 => 5,
        DataType::Int16 => 6,
        DataType::UInt32 => 10,
        DataType::Int32 => 11,
        DataType::UInt64 | DataType::Int64 => 20,
        DataType::Float32 => 16,
        DataType::Float64 | DataType::Other(_) => 24,
    }
}

/// Writes the document directly into one buffer, because a tree of values would take 30 times the memory of the text.
fn write_document(out: &mut Vec<u8>, array: &Array, options: &EncodeOptions) -> serde_json::Result<()> {
    out.extend_from_slice(b"{\"data_type\":");
    append(out, array.data_type.name())?;
    out.extend_from_slice(b",\"shape\":");
    append(out, &options.order.label(&array.shape))?;
    out.extend_from_slice(b",\"order\":");
    append(out, options.order.name())?;
    out.extend_from_slice(b",\"start\":");
    append(out, &options.start)?;
    out.extend_from_slice(b",\"step\":");
    append(out, &options.step)?;
    out.extend_from_slice(b",\"data\":");
    let Some(width) = array.data_type.size_bytes() else { return Ok(()) };
    // Size of each axis, and distance in bytes between neighbouring elements along it.
    let mut axes: SmallVec<[(usize, usize); 6]> = SmallVec::new();
    let mut stride = width;
    for size in &array.shape {
        let count = usize::try_from(*size).unwrap_or(usize::MAX);
        axes.push((count, stride));
        stride = stride.saturating_mul(count);
    }
    if options.order == AxisOrder::C {
        axes.reverse();
    }
    let append_number: fn(&mut Vec<u8>, &[u8]) -> serde_json::Result<()> = match array.data_type {
        DataType::UInt8 => |out, bytes| append_element(out, bytes, u8::from_le_bytes),
        DataType::UInt16 => |out, bytes| append_element(out, bytes, u16::from_le_bytes),
        DataType::UInt32 => |out, bytes| append_element(out, bytes, u32::from_le_bytes),
        DataType::UInt64 => |out, bytes| append_element(out, bytes, u64::from_le_bytes),
        DataType::Int8 => |out, bytes| append_element(out, bytes, i8::from_le_bytes),
        DataType::Int16 => |out, bytes| append_element(out, bytes, i16::from_le_bytes),
        DataType::Int32 => |out, bytes| append_element(out, bytes, i32::from_le_bytes),
        DataType::Int64 => |out, bytes| append_element(out, bytes, i64::from_le_bytes),
        DataType::Float32 => |out, bytes| append_float(out, bytes, f32::from_le_bytes),
        DataType::Float64 | DataType::Other(_) => |out, bytes| append_float(out, bytes, f64::from_le_bytes),
    };
    write_nested(out, &array.data, &axes, append_number)?;
    out.push(b'}');
    Ok(())
}

/// Appends the lists of `axes`, outermost first, each given by its size and the distance between neighbours in bytes.
/// `append_number` appends the element at the start of a slice. The recursion is as deep as the array has axes.
fn write_nested(
    out: &mut Vec<u8>,
    data: &[u8],
    axes: &[(usize, usize)],
    append_number: fn(&mut Vec<u8>, &[u8]) -> serde_json::Result<()>,
) -> serde_json::Result<()> {
    let Some(((count, stride), inner)) = axes.split_first() else { return append_number(out, data) };
    out.push(b'[');
    for n in 0..*count {
        if n > 0 {
            out.push(b',');
        }
        write_nested(out, data.get(n.saturating_mul(*stride)..).unwrap_or_default(), inner, append_number)?;
    }
    out.push(b']');
    Ok(())
}

fn append<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) -> serde_json::Result<()> {
    serde_json::to_writer(out, value)
}

fn append_element<const N: usize, T: Serialize>(
    out: &mut Vec<u8>,
    data: &[u8],
    read: fn([u8; N]) -> T,
) -> serde_json::Result<()> {
    append(out, &data.first_chunk::<N>().map(|bytes| read(*bytes)))
}

/// Appends the shortest text that reads back as the same float. An f32 is not widened to f64 first, because the text
/// would then have more digits than needed.
fn append_float<const N: usize, T: Serialize + Copy + Into<f64>>(
    out: &mut Vec<u8>,
    data: &[u8],
    read: fn([u8; N]) -> T,
) -> serde_json::Result<()> {
    match data.first_chunk().map(|bytes| read(*bytes)) {
        Some(value) if !value.into().is_finite() => append(out, non_finite(value.into())),
        value => append(out, &value),
    }
}

fn non_finite(value: f64) -> &'static str {
    if value.is_nan() {
        "NaN"
    } else if value > 0.0 {
        "Infinity"
    } else {
        "-Infinity"
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn encoded_text(shape: &[u64], data_type: DataType, data: Vec<u8>, order: AxisOrder) -> String {
        let array = Array { shape: shape.into(), data_type, data: data.into() };
        let options = EncodeOptions { order, start: vec![-1, 2], step: vec![1, 3], ..EncodeOptions::default() };
        String::from_utf8(JsonFormat.encode(&array, &options).unwrap().concat()).unwrap()
    }

    fn encoded_data(shape: &[u64], data_type: DataType, data: Vec<u8>, order: AxisOrder) -> Value {
        serde_json::from_str::<Value>(&encoded_text(shape, data_type, data, order)).unwrap()["data"].take()
    }

    #[test]
    fn the_document_has_the_documented_members() {
        let document: Value =
            serde_json::from_str(&encoded_text(&[2, 1], DataType::UInt8, vec![7, 8], AxisOrder::C)).unwrap();
        let expected = json!({"data_type": "uint8", "shape": [1, 2], "order": "C", "start": [-1, 2], "step": [1, 3], "data": [[7, 8]]});
        assert_eq!(document, expected);
    }

    #[test]
    fn lists_are_nested_in_the_order_of_the_shape() {
        // The element at x and y has the value x + 10 y. The axis x is the fastest.
        let values = vec![0, 1, 2, 10, 11, 12];
        assert_eq!(
            encoded_data(&[3, 2], DataType::UInt8, values.clone(), AxisOrder::F),
            json!([[0, 10], [1, 11], [2, 12]])
        );
        assert_eq!(encoded_data(&[3, 2], DataType::UInt8, values, AxisOrder::C), json!([[0, 1, 2], [10, 11, 12]]));
    }

    #[test]
    fn rank_0_is_a_bare_number() {
        assert_eq!(encoded_data(&[], DataType::Int16, vec![0xfe, 0xff], AxisOrder::F), json!(-2));
    }

    #[test]
    fn empty_axes_nest_like_the_shape() {
        assert_eq!(encoded_data(&[2, 0], DataType::UInt8, vec![], AxisOrder::F), json!([[], []]));
        assert_eq!(encoded_data(&[2, 0], DataType::UInt8, vec![], AxisOrder::C), json!([]));
        assert_eq!(encoded_data(&[0], DataType::UInt8, vec![], AxisOrder::F), json!([]));
    }

    #[test]
    fn empty_lists_without_elements_count_in_the_bound() {
        let bound = JsonFormat.encoder_bytes(&[1 << 40, 0], &DataType::UInt8, &EncodeOptions::default());
        assert!(bound > 1 << 41, "{bound}");
    }

    #[test]
    fn extreme_integers_are_exact() {
        let bytes: Vec<u8> = [u64::MAX, (1 << 53) + 1].iter().flat_map(|v| v.to_le_bytes()).collect();
        let text = encoded_text(&[2], DataType::UInt64, bytes, AxisOrder::F);
        assert!(text.ends_with("\"data\":[18446744073709551615,9007199254740993]}"), "{text}");
        let bytes = i64::MIN.to_le_bytes().to_vec();
        assert_eq!(encoded_data(&[1], DataType::Int64, bytes, AxisOrder::F), json!([i64::MIN]));
    }

    #[test]
    fn non_finite_floats_are_strings() {
        let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.1];
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let text = encoded_text(&[4], DataType::Float32, bytes, AxisOrder::F);
        assert!(text.ends_with(r#""data":["NaN","Infinity","-Infinity",0.1]}"#), "{text}");
    }

    proptest! {
        #[test]
        fn floats_round_trip_within_the_text_bound(bits in any::<u64>()) {
            let wide = f64::from_bits(bits);
            let mut out = Vec::new();
            append_float(&mut out, &wide.to_le_bytes(), f64::from_le_bytes).unwrap();
            prop_assert!(out.len() as u64 <= max_text_bytes(&DataType::Float64));
            if wide.is_finite() {
                let parsed: f64 = std::str::from_utf8(&out).unwrap().parse().unwrap();
                prop_assert_eq!(parsed.to_bits(), wide.to_bits());
            }
            let narrow = f32::from_bits(u32::try_from(bits >> 32).unwrap());
            out.clear();
            append_float(&mut out, &narrow.to_le_bytes(), f32::from_le_bytes).unwrap();
            prop_assert!(out.len() as u64 <= max_text_bytes(&DataType::Float32));
            if narrow.is_finite() {
                let parsed: f32 = std::str::from_utf8(&out).unwrap().parse().unwrap();
                prop_assert_eq!(parsed.to_bits(), narrow.to_bits());
            }
        }
    }
}
