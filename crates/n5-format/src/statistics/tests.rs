use smallvec::smallvec;

use super::*;

/// Returns the statistics of one run of elements, with the percentages 0, 50 and 100 and four bins.
fn of(data_type: &str, data: &[u8]) -> Statistics {
    let data_type = DataType::from_name(data_type);
    let elements = data.len() / data_type.size_bytes().unwrap();
    let mut accumulator = StatisticsAccumulator::new(&data_type, elements as u64, 1 << 20).unwrap();
    assert_eq!(accumulator.push_block(data, &smallvec![elements as u64], &smallvec![u64::MAX]), elements as u64);
    accumulator.finish(4, &[0.0, 50.0, 100.0])
}

macro_rules! check {
    ($($name:literal $type:ty: $number:ident as $wide:ty, $list:expr;)*) => {$({
        let list: Vec<$type> = $list;
        let data: Vec<u8> = list.iter().flat_map(|n| n.to_le_bytes()).collect();
        let summary = of($name, &data);
        let mut sorted = list.clone();
        sorted.sort_by(|a, b| a.partial_cmp(b).unwrap());
        let number = |n: $type| ElementValue::$number(<$wide>::from(n));
        let (first, last) = (sorted[0], sorted[sorted.len() - 1]);
        assert_eq!((summary.min, summary.max), (Some(number(first)), Some(number(last))), $name);
        let middle = sorted[(sorted.len() - 1) / 2];
        assert_eq!(summary.percentiles, Some(vec![number(first), number(middle), number(last)]), $name);
        assert_eq!(summary.histogram.unwrap().iter().sum::<u64>(), list.len() as u64, $name);
        assert_eq!(summary.zeros, list.iter().filter(|n| n.to_le_bytes().iter().all(|byte| *byte == 0)).count() as u64, $name);
        sorted.dedup();
        assert_eq!(summary.distinct, sorted.len() as u64, $name);
    })*};
}

#[test]
fn every_type_keeps_its_order_and_its_values() {
    check! {
        "uint8" u8: Unsigned as u64, vec![3, 255, 0, 7, 7];
        "uint16" u16: Unsigned as u64, vec![3, 65535, 0, 256, 255];
        "uint32" u32: Unsigned as u64, vec![3, u32::MAX, 0, 1 << 16, 5];
        "uint64" u64: Unsigned as u64, vec![u64::MAX, u64::MAX - 1, (1 << 53) + 1, 0, 9];
        "int8" i8: Signed as i64, vec![-128, 127, 0, -1, 1];
        "int16" i16: Signed as i64, vec![i16::MIN, i16::MAX, 0, -1, 1];
        "int32" i32: Signed as i64, vec![i32::MIN, i32::MAX, 0, -1, 1];
        "int64" i64: Signed as i64, vec![i64::MIN, i64::MAX, 0, -1, i64::MIN + 1];
        "float32" f32: Float as f64, vec![-1.5, f32::MAX, 0.0, 1e-45, f32::MIN];
        "float64" f64: Float as f64, vec![-1.5, f64::MAX, 0.0, 5e-324, -5e-324];
    }
}

#[test]
fn non_finite_elements_are_counted_separately() {
    let data: Vec<u8> =
        [f32::NAN, f32::INFINITY, -f32::INFINITY, 2.0, -0.0, 0.0].iter().flat_map(|n| n.to_le_bytes()).collect();
    let summary = of("float32", &data);
    assert_eq!((summary.elements, summary.nan, summary.infinite, summary.zeros), (6, 1, 2, 2));
    assert_eq!((summary.min, summary.max), (Some(ElementValue::Float(0.0)), Some(ElementValue::Float(2.0))));
    assert_eq!((summary.distinct, summary.histogram.unwrap()), (2, vec![2, 0, 0, 1]));
    let all_nan = of("float64", &f64::NAN.to_le_bytes());
    assert_eq!((all_nan.nan, all_nan.min, all_nan.mean, all_nan.histogram), (1, None, None, None));
    assert_eq!(of("uint8", &[]).percentiles, None);
}

#[test]
fn means_are_exact_where_integers_would_overflow_and_none_where_floats_do() {
    let data: Vec<u8> = [u64::MAX, u64::MAX, 1, 1].iter().flat_map(|n| n.to_le_bytes()).collect();
    assert_eq!(of("uint64", &data).mean, Some(9_223_372_036_854_775_808.0));
    let data: Vec<u8> = [f64::MAX, f64::MAX].iter().flat_map(|n| n.to_le_bytes()).collect();
    assert_eq!((of("float64", &data).mean, of("float64", &data).max), (None, Some(ElementValue::Float(f64::MAX))));
}

#[test]
fn the_greatest_element_belongs_to_the_last_bin() {
    assert_eq!(of("uint8", &[0, 1, 2, 3, 4]).histogram.unwrap(), [1, 1, 1, 2]);
    assert_eq!(of("int8", &[0x80, 0x7f, 0]).histogram.unwrap(), [1, 0, 1, 1]);
    assert_eq!(of("uint8", &[9, 9]).histogram.unwrap(), [2, 0, 0, 0]);
    let widest: Vec<u8> = [f64::MIN, 0.0, f64::MAX].iter().flat_map(|n| n.to_le_bytes()).collect();
    assert_eq!(of("float64", &widest).histogram.unwrap(), [1, 0, 1, 1]);
}

#[test]
fn padding_beyond_the_dataset_does_not_count() {
    // The elements of a block of 3 by 2 by 2. Those outside its first 2 by 2 by 1 elements are 99.
    let data = [1, 2, 99, 3, 4, 99, 99, 99, 99, 99, 99, 99];
    for (clip, expected) in [([2, 2, 1], 4), ([3, 1, 2], 6), ([3, 2, 2], 12), ([9, 9, 9], 12), ([0, 2, 2], 0)] {
        let mut accumulator = StatisticsAccumulator::new(&DataType::UInt8, 12, 100).unwrap();
        let pushed = accumulator.push_block(&data, &smallvec![3, 2, 2], &clip.into_iter().collect());
        let summary = accumulator.finish(1, &[]);
        assert_eq!((pushed, summary.elements), (expected, expected), "{clip:?}");
        if clip == [2, 2, 1] {
            assert_eq!((summary.max, summary.mean), (Some(ElementValue::Unsigned(4)), Some(2.5)));
        }
    }
    let mut scalar = StatisticsAccumulator::new(&DataType::UInt8, 1, 100).unwrap();
    assert_eq!(scalar.push_block(&[7], &smallvec![], &smallvec![]), 1);
    assert_eq!(scalar.finish(1, &[]).min, Some(ElementValue::Unsigned(7)));
}

#[test]
fn too_many_elements_are_sampled_evenly() {
    let mut accumulator = StatisticsAccumulator::new(&DataType::UInt32, 1000, 100).unwrap();
    assert!(!accumulator.is_exhaustive());
    let data: Vec<u8> = (0_u32..1000).flat_map(u32::to_le_bytes).collect();
    for part in data.chunks(4 * 7) {
        accumulator.push_block(part, &smallvec![part.len() as u64 / 4], &smallvec![1000]);
    }
    let summary = accumulator.finish(10, &[50.0]);
    assert_eq!((summary.elements, summary.distinct), (100, 100));
    assert_eq!((summary.min, summary.max), (Some(ElementValue::Unsigned(0)), Some(ElementValue::Unsigned(990))));
    assert_eq!(summary.histogram.unwrap(), [10; 10]);
}

#[test]
fn missing_blocks_alone_are_zeros() {
    let summary = Statistics::of_zeros(&DataType::Int16, 12, 2, &[50.0]).unwrap();
    assert_eq!((summary.elements, summary.zeros, summary.min), (0, 12, Some(ElementValue::Signed(0))));
    assert_eq!(
        (summary.histogram.unwrap(), summary.percentiles.unwrap()),
        (vec![12, 0], vec![ElementValue::Signed(0)])
    );
    assert!(Statistics::of_zeros(&DataType::Other("x".into()), 1, 1, &[]).is_none());
}

#[test]
fn an_automatic_window_has_a_width() {
    let window = |values: &[f64]| {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let count = values.len() as u64;
        let mut accumulator = StatisticsAccumulator::new(&DataType::Float64, count, values.len()).unwrap();
        accumulator.push_block(&data, &[count].as_slice().into(), &[count].as_slice().into());
        accumulator.finish(1, &Statistics::WINDOW_PERCENTAGES).auto_window()
    };
    let mut values: Vec<f64> = (0..2000).map(f64::from).collect();
    values.extend([1e30, f64::NAN, f64::INFINITY]);
    assert_eq!(window(&values), (20.0, 1998.0));
    assert_eq!(window(&[5.0; 4]), (0.0, 5.0));
    assert_eq!(window(&[-5.0; 4]), (-5.0, 0.0));
    assert_eq!(window(&[0.0; 4]), (0.0, 1.0));
    assert_eq!(window(&[f64::NAN, f64::NEG_INFINITY]), (0.0, 1.0));
    // The percentiles are equal, but an element differs.
    let mut sparse = vec![0.0; 2000];
    sparse.push(7.0);
    assert_eq!(window(&sparse), (0.0, 7.0));
    assert_eq!(window(&[f64::MIN, f64::MAX]), (f64::MIN, f64::MAX));
}
