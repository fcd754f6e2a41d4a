use proptest::prelude::*;

use super::*;

/// Start, shape and step of the region, and the kept axes.
type ResolvedSelection = (Vec<i64>, Vec<u64>, Vec<u64>, Vec<usize>);

fn query(text: &str) -> SliceQuery {
    SliceQuery::parse(Some(text)).unwrap()
}

fn resolve_query(text: &str, dimensions: &[u64]) -> ResolvedSelection {
    let selection = query(text).select(dimensions).unwrap();
    let region = &selection.region;
    (region.start().to_vec(), region.shape().to_vec(), region.step().to_vec(), selection.kept_axes.to_vec())
}

/// Returns the start and the number of samples along the only axis of a dataset of 10 elements.
fn resolve_1d(text: &str) -> (i64, u64) {
    let (start, shape, _, _) = resolve_query(text, &[10]);
    (start[0], shape[0])
}

fn syntax_error(text: &str) -> (String, String) {
    let problem = SliceQuery::parse(Some(text)).unwrap_err();
    let (name, detail, members) = problem.content();
    assert_eq!(name, "invalid-parameter", "{text}");
    (members["parameter"].as_str().unwrap().to_owned(), detail.to_owned())
}

fn out_of_bounds(text: &str, dimensions: &[u64]) -> String {
    let problem = query(text).select(dimensions).unwrap_err();
    let (name, detail, members) = problem.content();
    assert_eq!((name, &members["dimensions"]), ("out-of-bounds", &serde_json::json!(dimensions)), "{text}");
    detail.to_owned()
}

#[test]
fn without_parameters_the_whole_dataset_is_selected() {
    for text in [None, Some(""), Some("&&"), Some("token=secret")] {
        let selection = SliceQuery::parse(text).unwrap().select(&[3, 4]).unwrap();
        assert_eq!(selection.region, Region::whole(&[3, 4]));
        assert_eq!(selection.shape().as_slice(), [3, 4]);
    }
}

#[test]
fn start_stop_size_and_step_combine() {
    assert_eq!(resolve_query("start=1,2&stop=3,4", &[5, 5]), (vec![1, 2], vec![2, 2], vec![1, 1], vec![0, 1]));
    assert_eq!(resolve_query("start=1,2&size=3,1", &[5, 5]), (vec![1, 2], vec![3, 1], vec![1, 1], vec![0, 1]));
    assert_eq!(resolve_query("step=2,9", &[5, 5]), (vec![0, 0], vec![3, 1], vec![2, 9], vec![0, 1]));
    assert_eq!(resolve_1d("stop=4"), (0, 4));
    assert_eq!(resolve_1d("size=4"), (0, 4));
    assert_eq!(resolve_1d("start=4"), (4, 6));
    assert_eq!(resolve_1d("start=1&size=8&step=3"), (1, 3));
    assert_eq!(resolve_1d("start=1&stop=8&step=3"), (1, 3));
    assert_eq!(resolve_1d("start=007"), (7, 3));
}

#[test]
fn empty_regions_are_legal() {
    assert_eq!(resolve_1d("start=10"), (10, 0));
    assert_eq!(resolve_1d("start=3&stop=3"), (3, 0));
    assert_eq!(resolve_1d("size=0"), (0, 0));
    assert_eq!(resolve_query("", &[0, 3]).1, [0, 3]);
}

#[test]
fn rank_0_has_empty_lists_and_one_element() {
    for text in ["", "start=", "start=&stop=&step=", "size=", "select=", "select=...", "select=[]", "outside=zero"] {
        let selection = query(text).select(&[]).unwrap();
        assert_eq!((selection.region.rank(), selection.region.elements()), (0, Some(1)), "{text}");
    }
    assert!(out_of_bounds("start=0", &[]).contains("1 numbers"));
}

#[test]
fn another_rank_is_out_of_bounds() {
    for text in ["start=1", "stop=1,2,3", "size=", "step=1", "select=0,0,0"] {
        assert!(out_of_bounds(text, &[5, 5]).contains("2 axes"), "{text}");
    }
}

#[test]
fn leaving_the_dataset_is_an_error_by_default() {
    for text in ["stop=11", "start=11", "start=11&stop=11", "start=5&size=6", "outside=error&stop=11"] {
        assert!(out_of_bounds(text, &[10]).contains("axis 0"), "{text}");
    }
    let detail = out_of_bounds("start=0,3&stop=5,8", &[5, 7]);
    assert!(detail.starts_with("along axis 1 the region 3..8 leaves the dataset, which has 0..7"), "{detail}");
    assert!(syntax_error("start=-1").1.contains("outside=clip"));
    assert_eq!(syntax_error("stop=-1").0, "stop");
}

#[test]
fn clipping_keeps_the_samples_that_exist() {
    let cases = [
        ("start=-3&stop=5", (0, 5)),
        ("start=8&stop=20", (8, 2)),
        ("start=-3&stop=20", (0, 10)),
        ("start=-5&stop=20&step=3", (1, 3)),
        ("start=-6&stop=20&step=3", (0, 4)),
        ("start=-3&size=5", (0, 2)),
        ("start=-9&stop=-3", (0, 0)),
        ("start=-9&stop=-3&step=20", (10, 0)),
        ("start=15&stop=20", (10, 0)),
        ("start=15", (10, 0)),
        ("stop=20", (0, 10)),
    ];
    for (text, expected) in cases {
        assert_eq!(resolve_1d(&format!("outside=clip&{text}")), expected, "{text}");
    }
}

#[test]
fn zero_filling_keeps_the_requested_region() {
    let cases = [
        ("start=-3&stop=5", (-3, 8)),
        ("start=8&size=5", (8, 5)),
        ("start=-4&stop=-1&step=2", (-4, 2)),
        ("start=15", (15, 0)),
    ];
    for (text, expected) in cases {
        assert_eq!(resolve_1d(&format!("outside=zero&{text}")), expected, "{text}");
    }
}

#[test]
fn a_region_that_ends_before_it_starts_is_refused() {
    for text in
        ["start=5&stop=4", "outside=clip&start=5&stop=4", "outside=zero&start=-1&stop=-2", "outside=clip&stop=-1"]
    {
        let error = query(text).select(&[10]).unwrap_err();
        let (name, _, members) = error.content();
        assert_eq!((name, members["parameter"].as_str()), ("invalid-parameter", Some("stop")), "{text}: {error:?}");
    }
}

#[test]
fn extreme_numbers_neither_overflow_nor_wrap() {
    let max = i64::MAX;
    let dimensions = [i64::MAX.unsigned_abs()];
    let select = |text: &str| query(text).select(&dimensions).map(|s| (s.region.start()[0], s.region.shape()[0]));
    assert_eq!(select("").unwrap(), (0, dimensions[0]));
    assert_eq!(select(&format!("start={max}")).unwrap(), (max, 0));
    assert_eq!(select(&format!("outside=zero&start=-{max}&stop={max}")).unwrap(), (-max, u64::MAX - 1));
    assert_eq!(select(&format!("outside=clip&start=-{max}&stop={max}&step={max}")).unwrap(), (0, 1));
    assert_eq!(select(&format!("outside=clip&start=-1&size={max}&step={max}")).unwrap(), (max - 1, 0));
    assert_eq!(select(&format!("outside=clip&start={max}&size={max}")).unwrap(), (max, 0));
    for text in [format!("start={max}&size=1"), format!("outside=zero&start={max}&size={max}")] {
        assert_eq!(select(&text).unwrap_err().content().0, "out-of-bounds", "{text}");
    }
}

#[test]
fn numbers_are_plain_decimal() {
    let texts =
        ["1.0", "+1", "1e3", " 1", "1 ", "0x1", "1,,2", ",", "1,", "-", "--1", "9223372036854775808", "\u{0661}", "a"];
    for text in texts {
        for name in ["start", "stop", "size", "step"] {
            assert_eq!(syntax_error(&format!("outside=zero&{name}={text}")).0, name, "{name}={text}");
        }
    }
    for text in ["size=-1", "step=-1", "step=0", "step=1,0", "outside=clip&step=-1", "outside=zero&size=-1"] {
        syntax_error(text);
    }
}

#[test]
fn unknown_and_repeated_parameters_are_named_with_the_known_ones() {
    let error = SliceQuery::parse(Some("strat=1,2,3")).unwrap_err();
    let (_, detail, members) = error.content();
    assert_eq!(members["parameter"], "strat");
    assert_eq!(members["known"], serde_json::json!(PARAMETERS));
    assert!(detail.contains("\"strat\"") && detail.contains("start, stop, size"), "{detail}");
    for text in ["Start=1", "=1", "start%20=1", "start[]=1"] {
        syntax_error(text);
    }
    assert!(syntax_error("start=1&start=1").1.contains("more than once"));
    assert!(syntax_error("order=F&%6Frder=F").1.contains("more than once"));
    assert_eq!(resolve_1d("token=a&token=b%zz&size=3"), (0, 3));
}

#[test]
fn parameters_that_exclude_each_other_are_refused() {
    assert!(syntax_error("stop=1&size=1").1.contains("exclude"));
    for other in ["start=1", "stop=1", "size=1", "step=1", "outside=clip", "outside=error"] {
        assert!(syntax_error(&format!("select=0&{other}")).1.contains("exclude"), "{other}");
    }
}

#[test]
fn values_are_percent_decoded_once_and_plus_is_plus() {
    assert_eq!(resolve_query("start=1%2C2&stop=3%2c4", &[5, 5]).0, [1, 2]);
    assert_eq!(resolve_query("select=0:2%2C1", &[5, 5]).3, [0]);
    assert_eq!(resolve_query("select=%5B0%3A2%2C%201%5D", &[5, 5]).3, [0]);
    for text in [
        "start=%31%252C2",
        "start=1%zz",
        "start=1%",
        "start=1%2",
        "start=%ff",
        "sta%zzrt=1",
        "select=0,+1",
        "start=%2B1",
    ] {
        syntax_error(text);
    }
}

#[test]
fn select_follows_numpy_and_drops_integer_axes() {
    assert_eq!(resolve_query("select=1:9:3,-1", &[10, 4]), (vec![1, 3], vec![3, 1], vec![3, 1], vec![0]));
    assert_eq!(query("select=1:9:3,-1").select(&[10, 4]).unwrap().shape().as_slice(), [3]);
    assert_eq!(resolve_1d("select=0:1000"), (0, 10));
    assert!(out_of_bounds("select=:,4", &[10, 4]).contains("position 4 along axis 1, which has 4"));
    assert!(syntax_error("select=::-1").1.contains("forward"));
    assert_eq!(query("select=").select(&[2]).unwrap_err().content().0, "invalid-parameter");
}

#[test]
fn presentation_parameters_are_read() {
    let q = query("order=C&endian=big&format=png&window=-1.5,2e3");
    assert_eq!(
        (q.order, q.endian, q.format.as_deref(), q.windows),
        (AxisOrder::C, Endian::Big, Some("png"), Some(vec![WindowChoice::Fixed(-1.5, 2000.0)]))
    );
    let q = query("");
    assert_eq!((q.order, q.endian, q.format, q.windows), (AxisOrder::F, Endian::Little, None, None));
    for text in ["order=c", "order=", "endian=Big", "outside=wrap"] {
        let error = SliceQuery::parse(Some(text)).unwrap_err();
        assert!(error.content().2["known"].as_array().is_some_and(|known| !known.is_empty()), "{text}");
    }
    for text in [
        "",
        "1",
        "1,1",
        "0,-0",
        "1,2,3",
        "nan,1",
        "0,inf",
        "0,infinity",
        "0,1e999",
        "a,b",
        "1, 2",
        "Auto",
        "auto;",
        ";auto",
        "1;2",
        "auto;auto;auto;auto;auto;auto;auto;auto;auto",
    ] {
        assert_eq!(syntax_error(&format!("window={text}")).0, "window", "{text}");
    }
}

#[test]
fn options_contain_start_and_step_of_every_axis() {
    let q = query("select=1:9:3,-1&order=C");
    let options = q.options(&q.select(&[10, 4]).unwrap());
    assert_eq!((options.start, options.step, options.order), (vec![1, 3], vec![3, 1], AxisOrder::C));
}

#[test]
fn long_values_are_not_repeated_in_full() {
    for text in [
        format!("{}=1", "x".repeat(9000)),
        format!("order={}", "x".repeat(9000)),
        format!("start={}", "x".repeat(9000)),
    ] {
        let error = SliceQuery::parse(Some(&text)).unwrap_err();
        let content = format!("{:?}", error.content());
        assert!(content.len() < 800 && !content.contains(&"x".repeat(41)), "{error:?}");
    }
}

fn axis() -> impl Strategy<Value = (u64, i64, u64, u64)> {
    (0u64..12, -15i64..15, 0u64..20, 1u64..5)
}

proptest! {
    #[test]
    fn the_region_holds_exactly_the_requested_positions(
        axes in prop::collection::vec(axis(), 1..4),
        outside in prop::sample::select(vec!["error", "clip", "zero"]),
        as_size in any::<bool>(),
    ) {
        type Number<'a> = &'a dyn Fn(&(u64, i64, u64, u64)) -> String;
        let list = |f: Number| axes.iter().map(f).collect::<Vec<_>>().join(",");
        let stop = |a: &(u64, i64, u64, u64)| a.1 + i64::try_from(a.2).unwrap();
        let end = if as_size { format!("size={}", list(&|a| a.2.to_string())) } else { format!("stop={}", list(&|a| stop(a).to_string())) };
        let text = format!("outside={outside}&start={}&{end}&step={}", list(&|a| a.1.to_string()), list(&|a| a.3.to_string()));
        let dimensions: Vec<u64> = axes.iter().map(|a| a.0).collect();
        let inside = |n: i64, size: u64| n >= 0 && n.unsigned_abs() <= size;
        let all_inside = axes.iter().all(|a| inside(a.1, a.0) && inside(stop(a), a.0));
        let result = SliceQuery::parse(Some(&text)).and_then(|q| q.select(&dimensions));
        if outside == "error" && !all_inside {
            prop_assert!(result.is_err(), "{}", text);
            return Ok(());
        }
        let region = result.unwrap().region;
        for (n, a) in axes.iter().enumerate() {
            let mut expected: Vec<i64> = (a.1..stop(a)).step_by(usize::try_from(a.3).unwrap()).collect();
            if outside == "clip" {
                expected.retain(|i| *i >= 0 && i.unsigned_abs() < a.0);
            }
            let positions: Vec<i64> =
                (0..region.shape()[n]).map(|k| region.start()[n] + i64::try_from(k * region.step()[n]).unwrap()).collect();
            prop_assert_eq!(positions, expected, "axis {} of {}", n, &text);
            if outside == "clip" {
                prop_assert!(inside(region.start()[n], a.0));
            }
        }
    }

    #[test]
    fn no_query_panics(
        text in r"((start|stop|size|step|select|outside|order|window|format|level|pixels|channels|colors|x)=[-0-9,:;.%a-fotuz]{0,12}&?){0,4}|\PC{0,40}",
        dimensions in prop::collection::vec(0..=i64::MAX.unsigned_abs(), 0..4),
    ) {
        if let Ok(query) = SliceQuery::parse(Some(&text)) {
            let _ = query.select(&dimensions);
        }
    }
}

#[test]
fn unknown_element_types_and_qualities_are_refused() {
    assert_eq!(query("dtype=float32").data_type, Some(DataType::Float32));
    assert_eq!(query("").data_type, None);
    for name in ["float16", "UINT8", "", "string"] {
        let (parameter, detail) = syntax_error(&format!("dtype={name}"));
        assert!(parameter == "dtype" && detail.contains("uint8, uint16"), "{detail}");
    }
    assert_eq!((query("quality=1").quality, query("quality=100").quality), (Some(1), Some(100)));
    for text in ["0", "101", "-1", "+5", "9.5", "", "300"] {
        assert_eq!(syntax_error(&format!("quality={text}")).0, "quality", "{text}");
    }
}

#[test]
fn the_parameters_of_pictures_are_read() {
    let q = query("window=0,1;auto;2,1&channels=2,0,5&colors=red,00FF00,%230000ff");
    let windows = vec![WindowChoice::Fixed(0.0, 1.0), WindowChoice::Auto, WindowChoice::Fixed(2.0, 1.0)];
    assert_eq!((q.windows, q.channels), (Some(windows), Some(vec![2, 0, 5])));
    assert_eq!(q.colours, Some(vec![[255, 0, 0], [0, 255, 0], [0, 0, 255]]));
    for text in ["", "0,0", "-1", "a", "0,1,2,3,4,5,6,7,8"] {
        assert_eq!(syntax_error(&format!("channels={text}")).0, "channels", "{text}");
    }
    for text in ["", "red,", "ff00", "purple?"] {
        assert!(syntax_error(&format!("colors={text}")).1.contains("magenta"), "{text}");
    }
}

#[test]
fn a_level_is_automatic_or_named() {
    assert_eq!(query("level=auto").level, Some(LevelChoice::Auto(DEFAULT_PIXELS)));
    assert_eq!(query("level=auto&pixels=512").level, Some(LevelChoice::Auto(512)));
    assert_eq!(query("level=s1").level, Some(LevelChoice::Named("s1".into())));
    for text in ["pixels=512", "level=s1&pixels=512", "level=auto&pixels=0", "level=auto&pixels=+1"] {
        assert_eq!(syntax_error(text).0, "pixels", "{text}");
    }
    assert_eq!(syntax_error("level=").0, "level");
}

#[test]
fn a_region_in_voxels_of_the_finest_level_is_scaled() {
    let resolve = |text: &str| {
        let selection = query(text).select_in_level(&[100, 99], &[25, 33], &[4.0, 3.0]).unwrap();
        let region = selection.region;
        (region.start().to_vec(), region.shape().to_vec(), region.step().to_vec())
    };
    assert_eq!(resolve(""), (vec![0, 0], vec![25, 33], vec![1, 1]));
    assert_eq!(resolve("start=10,10&stop=13,11"), (vec![2, 3], vec![2, 1], vec![1, 1]));
    assert_eq!(resolve("step=2,5"), (vec![0, 0], vec![13, 7], vec![2, 5]));
    assert_eq!(resolve("select=99,::5"), (vec![24, 0], vec![1, 7], vec![1, 5]));
    assert_eq!(resolve("start=-9,0&outside=zero"), (vec![-3, 0], vec![28, 33], vec![1, 1]));
    assert_eq!(resolve("start=-9,0&outside=clip"), (vec![0, 0], vec![25, 33], vec![1, 1]));
    assert_eq!(resolve("start=5,5&stop=5,5").1, [0, 0]);
    // The dimensions are those of the finest level.
    let problem = query("stop=101,99").select_in_level(&[100, 99], &[25, 33], &[4.0, 3.0]).unwrap_err();
    assert_eq!(problem.content().0, "out-of-bounds");
    // A level that was cut off at the end still has a sample there.
    let selection = query("select=98").select_in_level(&[99], &[24], &[4.0]).unwrap();
    assert_eq!((selection.region.start()[0], selection.region.shape()[0]), (23, 1));
}
