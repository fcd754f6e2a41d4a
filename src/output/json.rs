//! `json`: nested lists with what is needed to read them.

use bytes::Bytes;
use serde::Serialize;
use smallvec::SmallVec;

use super::{EncodeError, Format, Options, accepts_common, buffer, check, elements};
use crate::n5::{Array, DataType};

/// `{"data_type", "shape", "order", "start", "step", "data"}`.
///
/// `data` is nested in the order of `shape`: `data[x][y][z]` with order F, `data[z][y][x]` with C; of rank 0
/// it is the bare number. Integers are exact, floats the shortest text that reads back as the same value,
/// `"NaN"`, `"Infinity"` and `"-Infinity"` strings. `start` and `step` have every axis of the dataset, in N5
/// order, dropped ones too.
#[derive(Debug)]
pub(super) struct Json;

impl Format for Json {
    fn name(&self) -> &'static str {
        "json"
    }

    fn media_type(&self) -> &'static str {
        "application/json"
    }

    fn accepts(&self, _: &[u64], data_type: &DataType, options: &Options) -> Result<(), String> {
        accepts_common(self, data_type, options)
    }

    fn extra_bytes(&self, shape: &[u64], data_type: &DataType, options: &Options) -> u64 {
        let labelled = options.order.label(shape);
        // Two brackets and a comma for each list: one list in all, one for each index of the first axis, ...
        let mut lists = 0u64;
        for depth in 0..labelled.len() {
            lists = lists.saturating_add(elements(labelled.get(..depth).unwrap_or_default()));
        }
        let numbers =
            (shape.len() as u64).saturating_add(options.start.len().saturating_add(options.step.len()) as u64);
        let text = elements(shape).saturating_mul(longest_text(data_type).saturating_add(1));
        text.saturating_add(lists.saturating_mul(3)).saturating_add(numbers.saturating_mul(21)).saturating_add(128)
    }

    fn header(&self, _: &[u64], _: &DataType, _: &Options) -> Option<Bytes> {
        None
    }

    fn encode(&self, array: &Array, options: &Options) -> Result<Vec<Bytes>, EncodeError> {
        check(self, array, options)?;
        let mut out = buffer(self.extra_bytes(&array.shape, &array.data_type, options))?;
        document(&mut out, array, options)
            .map_err(|error| EncodeError::Encoder { format: self.name(), reason: error.to_string() })?;
        Ok(vec![out.into()])
    }
}

/// Bytes of the longest number of a type, quotes of non-finite ones included.
fn longest_text(data_type: &DataType) -> u64 {
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

/// Everything is appended to one buffer: a tree of values would take 30 times the memory of the text.
fn document(out: &mut Vec<u8>, array: &Array, options: &Options) -> serde_json::Result<()> {
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
    let mut axes: SmallVec<[Axis; 6]> = SmallVec::new();
    let mut stride = width;
    for size in &array.shape {
        let count = usize::try_from(*size).unwrap_or(usize::MAX);
        axes.push(Axis { count, stride });
        stride = stride.saturating_mul(count);
    }
    if options.order == super::Order::C {
        axes.reverse();
    }
    let number: Number = match array.data_type {
        DataType::UInt8 => |out, bytes| element(out, bytes, u8::from_le_bytes),
        DataType::UInt16 => |out, bytes| element(out, bytes, u16::from_le_bytes),
        DataType::UInt32 => |out, bytes| element(out, bytes, u32::from_le_bytes),
        DataType::UInt64 => |out, bytes| element(out, bytes, u64::from_le_bytes),
        DataType::Int8 => |out, bytes| element(out, bytes, i8::from_le_bytes),
        DataType::Int16 => |out, bytes| element(out, bytes, i16::from_le_bytes),
        DataType::Int32 => |out, bytes| element(out, bytes, i32::from_le_bytes),
        DataType::Int64 => |out, bytes| element(out, bytes, i64::from_le_bytes),
        DataType::Float32 => float32,
        DataType::Float64 | DataType::Other(_) => float64,
    };
    nested(out, &array.data, &axes, number)?;
    out.push(b'}');
    Ok(())
}

/// An axis of the nested lists: its size, and the distance of neighbours in bytes.
#[derive(Debug, Clone, Copy)]
struct Axis {
    count: usize,
    stride: usize,
}

/// Appends the number that a slice of the array begins with.
type Number = fn(&mut Vec<u8>, &[u8]) -> serde_json::Result<()>;

/// The lists of `axes`, outermost first; as deep as the array has axes.
fn nested(out: &mut Vec<u8>, data: &[u8], axes: &[Axis], number: Number) -> serde_json::Result<()> {
    let Some((outer, inner)) = axes.split_first() else { return number(out, data) };
    out.push(b'[');
    for n in 0..outer.count {
        if n > 0 {
            out.push(b',');
        }
        nested(out, data.get(n.saturating_mul(outer.stride)..).unwrap_or_default(), inner, number)?;
    }
    out.push(b']');
    Ok(())
}

fn append<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) -> serde_json::Result<()> {
    serde_json::to_writer(out, value)
}

fn element<const N: usize, T: Serialize>(
    out: &mut Vec<u8>,
    data: &[u8],
    read: fn([u8; N]) -> T,
) -> serde_json::Result<()> {
    append(out, &data.first_chunk::<N>().map(|bytes| read(*bytes)))
}

fn float32(out: &mut Vec<u8>, data: &[u8]) -> serde_json::Result<()> {
    match data.first_chunk().map(|bytes| f32::from_le_bytes(*bytes)) {
        Some(value) if !value.is_finite() => append(out, non_finite(value.into())),
        // As f32: the text of the widened value would be longer than what tells neighbours apart.
        value => append(out, &value),
    }
}

fn float64(out: &mut Vec<u8>, data: &[u8]) -> serde_json::Result<()> {
    match data.first_chunk().map(|bytes| f64::from_le_bytes(*bytes)) {
        Some(value) if !value.is_finite() => append(out, non_finite(value)),
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
    use crate::output::Order;

    fn text(shape: &[u64], data_type: DataType, data: Vec<u8>, order: Order) -> String {
        let array = Array { shape: shape.into(), data_type, data: data.into() };
        let options = Options { order, start: vec![-1, 2], step: vec![1, 3], ..Options::default() };
        String::from_utf8(Json.encode(&array, &options).unwrap().concat()).unwrap()
    }

    fn data(shape: &[u64], data_type: DataType, data: Vec<u8>, order: Order) -> Value {
        serde_json::from_str::<Value>(&text(shape, data_type, data, order)).unwrap()["data"].take()
    }

    #[test]
    fn the_members_are_those_of_the_contract() {
        let document: Value = serde_json::from_str(&text(&[2, 1], DataType::UInt8, vec![7, 8], Order::C)).unwrap();
        let expected = json!({"data_type": "uint8", "shape": [1, 2], "order": "C", "start": [-1, 2], "step": [1, 3], "data": [[7, 8]]});
        assert_eq!(document, expected);
    }

    #[test]
    fn lists_are_nested_in_the_order_of_the_shape() {
        // Value = x + 10 y, x fastest.
        let values = vec![0, 1, 2, 10, 11, 12];
        assert_eq!(data(&[3, 2], DataType::UInt8, values.clone(), Order::F), json!([[0, 10], [1, 11], [2, 12]]));
        assert_eq!(data(&[3, 2], DataType::UInt8, values, Order::C), json!([[0, 1, 2], [10, 11, 12]]));
    }

    #[test]
    fn rank_0_is_a_bare_number() {
        assert_eq!(data(&[], DataType::Int16, vec![0xfe, 0xff], Order::F), json!(-2));
    }

    #[test]
    fn empty_axes_nest_like_the_shape() {
        assert_eq!(data(&[2, 0], DataType::UInt8, vec![], Order::F), json!([[], []]));
        assert_eq!(data(&[2, 0], DataType::UInt8, vec![], Order::C), json!([]));
        assert_eq!(data(&[0], DataType::UInt8, vec![], Order::F), json!([]));
    }

    #[test]
    fn empty_lists_without_elements_count_in_the_bound() {
        let bound = Json.extra_bytes(&[1 << 40, 0], &DataType::UInt8, &Options::default());
        assert!(bound > 1 << 41, "{bound}");
    }

    #[test]
    fn extreme_integers_are_exact() {
        let bytes: Vec<u8> = [u64::MAX, (1 << 53) + 1].iter().flat_map(|v| v.to_le_bytes()).collect();
        let text = text(&[2], DataType::UInt64, bytes, Order::F);
        assert!(text.ends_with("\"data\":[18446744073709551615,9007199254740993]}"), "{text}");
        let bytes = i64::MIN.to_le_bytes().to_vec();
        assert_eq!(data(&[1], DataType::Int64, bytes, Order::F), json!([i64::MIN]));
    }

    #[test]
    fn non_finite_floats_are_strings() {
        let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.1];
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let text = text(&[4], DataType::Float32, bytes, Order::F);
        assert!(text.ends_with(r#""data":["NaN","Infinity","-Infinity",0.1]}"#), "{text}");
    }

    proptest! {
        #[test]
        fn floats_come_back_and_stay_within_the_longest_text(bits in any::<u64>()) {
            let wide = f64::from_bits(bits);
            let mut out = Vec::new();
            float64(&mut out, &wide.to_le_bytes()).unwrap();
            prop_assert!(out.len() as u64 <= longest_text(&DataType::Float64));
            if wide.is_finite() {
                let back: f64 = std::str::from_utf8(&out).unwrap().parse().unwrap();
                prop_assert_eq!(back.to_bits(), wide.to_bits());
            }
            let narrow = f32::from_bits(u32::try_from(bits >> 32).unwrap());
            out.clear();
            float32(&mut out, &narrow.to_le_bytes()).unwrap();
            prop_assert!(out.len() as u64 <= longest_text(&DataType::Float32));
            if narrow.is_finite() {
                let back: f32 = std::str::from_utf8(&out).unwrap().parse().unwrap();
                prop_assert_eq!(back.to_bits(), narrow.to_bits());
            }
        }
    }
}
