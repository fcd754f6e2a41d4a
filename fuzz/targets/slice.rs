//! Slices of small containers against a lookup of each element in a model.

use axum::http::StatusCode;
use bytes::Bytes;
use n5_format::{BlockEncoding, encode_block};
use serde_json::json;

use super::Numbers;
use super::server::{Response, Server};

/// Names of axes, of which a model takes as many as it needs.
const AXES: [&str; 5] = ["x", "y", "c", "z", "t"];

/// Windows of pictures: the values of black and white.
const WINDOWS: [(f64, f64); 6] =
    [(0.0, 255.0), (100.0, 1.0), (-1.5, 0.25), (f64::MIN, f64::MAX), (0.0, 5e-324), (-1e18, 1e19)];

/// A data type.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Kind {
    name: &'static str,
    /// Bytes per element.
    width: usize,
    class: Class,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Class {
    Unsigned,
    Signed,
    Float,
}

const fn kind(name: &'static str, width: usize, class: Class) -> Kind {
    Kind { name, width, class }
}

const TYPES: [Kind; 10] = [
    kind("uint8", 1, Class::Unsigned),
    kind("int8", 1, Class::Signed),
    kind("uint16", 2, Class::Unsigned),
    kind("int16", 2, Class::Signed),
    kind("uint32", 4, Class::Unsigned),
    kind("int32", 4, Class::Signed),
    kind("uint64", 8, Class::Unsigned),
    kind("int64", 8, Class::Signed),
    kind("float32", 4, Class::Float),
    kind("float64", 8, Class::Float),
];

/// Values at the limits of types and of exact representation.
const LIMITS: [f64; 16] = [
    0.0,
    -0.0,
    -1.0,
    0.5,
    127.0,
    128.0,
    255.0,
    256.0,
    65_535.0,
    16_777_217.0,
    2_147_483_648.0,
    -9_223_372_036_854_775_808.0,
    18_446_744_073_709_551_616.0,
    f64::INFINITY,
    f64::NAN,
    1e300,
];

/// The value of an element.
#[derive(Debug, Clone, Copy)]
enum Number {
    Integer(i128),
    Float(f64),
}

impl Kind {
    /// Returns the value of an element with these bits.
    fn number(self, bits: u64) -> Number {
        let unused = 64 - 8 * self.width as u32;
        match (self.class, self.width) {
            (Class::Unsigned, _) => Number::Integer((bits << unused >> unused).into()),
            (Class::Signed, _) => Number::Integer((((bits << unused) as i64) >> unused).into()),
            (Class::Float, 4) => Number::Float(f32::from_bits(bits as u32).into()),
            (Class::Float, _) => Number::Float(f64::from_bits(bits)),
        }
    }

    /// Returns the bits of a number in this type. Floating-point types round; integer types return `None` for a number
    /// that they cannot represent.
    fn bits(self, number: Number) -> Option<u64> {
        if self.class == Class::Float {
            return Some(match (self.width, number) {
                (4, Number::Integer(n)) => (n as f32).to_bits().into(),
                (4, Number::Float(x)) => (x as f32).to_bits().into(),
                (_, Number::Integer(n)) => (n as f64).to_bits(),
                (_, Number::Float(x)) => x.to_bits(),
            });
        }
        let whole = match number {
            Number::Integer(n) => n,
            Number::Float(x) if x.fract() == 0.0 => x as i128,
            Number::Float(_) => return None,
        };
        let bits = 8 * self.width as u32;
        let (least, end) = match self.class {
            Class::Signed => (-(1i128 << (bits - 1)), 1i128 << (bits - 1)),
            Class::Unsigned | Class::Float => (0, 1i128 << bits),
        };
        (least..end).contains(&whole).then_some(whole as u64)
    }

    fn bytes(self, bits: u64) -> Vec<u8> {
        bits.to_le_bytes()[..self.width].to_vec()
    }

    /// Returns the bits of an arbitrary element, with a preference for the limits of the type.
    fn any(self, hash: u64, choice: u8) -> u64 {
        match choice % 4 {
            0 => self.bits(Number::Integer((hash % 100 + 1).into())).unwrap_or_default(),
            1 => hash,
            2 => match self.bits(Number::Float(LIMITS[hash as usize % LIMITS.len()])) {
                Some(bits) => bits,
                // All bits, all but the sign bit, or only the sign bit.
                None => [u64::MAX, u64::MAX >> (65 - 8 * self.width), 1 << (8 * self.width - 1)][hash as usize % 3],
            },
            _ => self.any(hash >> 8, (hash % 3) as u8),
        }
    }
}

/// A dataset and the elements of its blocks.
struct Model {
    dimensions: Vec<u64>,
    blocks: Vec<u64>,
    /// Size of each stored block by grid position, first axis fastest; `None` for a hole.
    stored: Vec<Option<Vec<u64>>>,
    kind: Kind,
    seed: u8,
}

/// The requested samples along every axis: the first one, their number, and their distance.
struct Wanted {
    start: Vec<i64>,
    shape: Vec<u64>,
    step: Vec<u64>,
}

pub(crate) fn run(data: &[u8]) {
    let mut numbers = Numbers::new(data);
    let kind = numbers.of(&TYPES);
    let encoding = numbers.of(&BlockEncoding::ALL);
    let rank = numbers.below(5);
    let model = Model::new(&mut numbers, rank, kind);
    let server = model.server(encoding);
    for _ in 0..3 {
        match numbers.byte() {
            192.. => pictured(&mut numbers, &model, &server),
            choice if choice & 1 == 0 => boxed(&mut numbers, &model, &server),
            _ => indexed(&mut numbers, &model, &server),
        }
    }
}

impl Model {
    fn new(numbers: &mut Numbers<'_>, rank: usize, kind: Kind) -> Self {
        let dimensions: Vec<u64> = (0..rank).map(|_| numbers.below(9) as u64).collect();
        let blocks: Vec<u64> = (0..rank).map(|_| numbers.below(5) as u64 + 1).collect();
        let seed = numbers.byte();
        let grid: Vec<u64> = dimensions.iter().zip(&blocks).map(|(d, b)| d.div_ceil(*b)).collect();
        let stored = indices(&grid).map(|position| {
            let kind = numbers.byte();
            let size = (0..rank).map(|axis| match kind % 4 {
                // Cropped, as Java writes it; full, as TensorStore does; or any size up to that.
                1 => blocks[axis].min(dimensions[axis] - position[axis] * blocks[axis]),
                2 => blocks[axis],
                _ => (u64::from(kind >> 2) + axis as u64) % blocks[axis] + 1,
            });
            (kind & 3 > 0).then(|| size.collect())
        });
        let stored = stored.collect();
        Self { dimensions, blocks, stored, kind, seed }
    }

    /// Returns the names of the axes, which differ. Half of the models have none.
    fn axes(&self) -> Option<Vec<&'static str>> {
        let (first, is_reversed) = (usize::from(self.seed >> 2) % AXES.len(), self.seed & 0x40 > 0);
        let mut names: Vec<&str> = AXES.iter().cycle().skip(first).take(self.dimensions.len()).copied().collect();
        if is_reversed {
            names.reverse();
        }
        (self.seed & 0x80 > 0).then_some(names)
    }

    /// Returns the bits stored for `index`, which may be in the padding of a block.
    fn written(&self, index: &[u64]) -> u64 {
        let mut hash = u64::from(self.seed);
        for i in index {
            hash = (hash ^ (*i + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 29;
        }
        self.kind.any(hash, self.seed)
    }

    /// Returns the bits that a reader sees at `index`.
    fn value(&self, index: &[i64]) -> u64 {
        let inside = index.iter().zip(&self.dimensions).all(|(i, d)| u64::try_from(*i).is_ok_and(|i| i < *d));
        if !inside {
            return 0;
        }
        let index: Vec<u64> = index.iter().map(|i| i.unsigned_abs()).collect();
        let mut linear = 0;
        for axis in (0..index.len()).rev() {
            linear = linear * self.dimensions[axis].div_ceil(self.blocks[axis]) + index[axis] / self.blocks[axis];
        }
        let held = self.stored[linear as usize]
            .as_ref()
            .is_some_and(|size| index.iter().zip(&self.blocks).zip(size).all(|((i, block), size)| i % block < *size));
        if held { self.written(&index) } else { 0 }
    }

    fn server(&self, encoding: BlockEncoding) -> Server {
        let Kind { name, width, .. } = self.kind;
        let mut attributes = json!({"dimensions": self.dimensions, "blockSize": self.blocks, "dataType": name,
            "compression": encoding.compression_attribute()});
        if let Some(axes) = self.axes() {
            attributes["axes"] = json!(axes);
        }
        let grid: Vec<u64> = self.dimensions.iter().zip(&self.blocks).map(|(d, b)| d.div_ceil(*b)).collect();
        let mut objects = vec![("v/attributes.json".to_owned(), Bytes::from(attributes.to_string()))];
        for (position, size) in indices(&grid).zip(&self.stored) {
            let Some(size) = size else { continue };
            let data: Vec<u8> = indices(size)
                .flat_map(|within| {
                    let index: Vec<u64> = (0..within.len()).map(|a| position[a] * self.blocks[a] + within[a]).collect();
                    self.kind.bytes(self.written(&index))
                })
                .collect();
            let path = if position.is_empty() { "/0".to_owned() } else { joined(&position, "/", "/") };
            let block = encode_block(size, width, data.into(), encoding).unwrap();
            objects.push((format!("v{path}"), block));
        }
        Server::of(objects.iter().map(|(path, bytes)| (path.as_str(), bytes.clone())))
    }

    /// Looks up each element of the expected response to `wanted`, as `kind`. Returns `None` if an element cannot be
    /// represented.
    fn elements(&self, wanted: &Wanted, kind: Kind) -> Option<Vec<u8>> {
        let mut elements = Vec::new();
        for k in indices(&wanted.shape) {
            let at: Vec<i64> = (0..k.len()).map(|a| wanted.start[a] + (k[a] * wanted.step[a]) as i64).collect();
            let bits = self.value(&at);
            let bits = if kind == self.kind { bits } else { kind.bits(self.kind.number(bits))? };
            elements.extend(kind.bytes(bits));
        }
        Some(elements)
    }
}

/// Requests a slice by `start`, `size` or `stop`, `step` and `outside`.
fn boxed(numbers: &mut Numbers<'_>, model: &Model, server: &Server) {
    let rank = model.dimensions.len();
    let start: Vec<i64> = (0..rank).map(|_| numbers.below(16) as i64 - 4).collect();
    let size: Vec<u64> = (0..rank).map(|_| numbers.below(12) as u64).collect();
    let step: Vec<u64> = (0..rank).map(|_| numbers.below(4) as u64 + 1).collect();
    let outside = numbers.of(&["error", "zero", "clip"]);
    let converted = numbers.of(&TYPES);
    let (convert, big, c_order) = (numbers.below(4) == 0, numbers.byte() & 1 == 1, numbers.byte() & 1 == 1);
    let stop: Vec<i64> = start.iter().zip(&size).map(|(start, size)| start + *size as i64).collect();
    let end = if numbers.byte() & 1 == 0 {
        format!("size={}", joined(&size, "", ","))
    } else {
        format!("stop={}", joined(&stop, "", ","))
    };
    let mut path =
        format!("/slice/v?start={}&{end}&step={}&outside={outside}", joined(&start, "", ","), joined(&step, "", ","));
    let kind = if convert { converted } else { model.kind };
    if convert {
        path += "&dtype=";
        path += converted.name;
    }
    path += if big { "&endian=big" } else { "" };
    path += if c_order { "&order=C" } else { "" };
    let response = server.get(&path);
    let shape: Vec<u64> = size.iter().zip(&step).map(|(size, step)| size.div_ceil(*step)).collect();
    let leaves = (0..rank).any(|a| start[a] < 0 || stop[a] > model.dimensions[a] as i64);
    let negative = start.iter().chain(&stop).any(|n| *n < 0);
    // A region that leaves the dataset, or a negative end where none is allowed.
    let may_be_refused = leaves && outside == "error" || negative && end_is_refused(&stop, outside);
    if may_be_refused && response.status != 200 {
        return;
    }
    assert!(outside != "error" || !leaves || shape.contains(&0), "{path} leaves the dataset");
    let wanted = match outside {
        "clip" => clipped(model, &start, &stop, &step),
        _ => Wanted { start, shape, step },
    };
    let Some(mut expected) = model.elements(&wanted, kind) else {
        assert_eq!(response.status, 422, "{path} cannot be converted: {response:?}");
        return;
    };
    if big {
        expected.chunks_mut(kind.width).for_each(<[u8]>::reverse);
    }
    let mut response = response;
    if kind != model.kind && kind.class == Class::Float {
        response.body = with_nan_as(&expected, &response.body, kind.width, big);
    }
    check(&response, &path, &wanted.shape, &expected, c_order);
}

/// Returns `body` with each NaN replaced by the expected NaN, because a conversion may produce any NaN.
fn with_nan_as(expected: &[u8], body: &[u8], width: usize, big: bool) -> Bytes {
    let is_nan = |bytes: &[u8]| {
        let mut bits = [0; 8];
        bits[..width].copy_from_slice(bytes);
        if big {
            bits[..width].reverse();
        }
        let bits = u64::from_le_bytes(bits);
        if width == 4 { f32::from_bits(bits as u32).is_nan() } else { f64::from_bits(bits).is_nan() }
    };
    let mut body = body.to_vec();
    for (found, wanted) in body.chunks_exact_mut(width).zip(expected.chunks_exact(width)) {
        if is_nan(found) && is_nan(wanted) {
            found.copy_from_slice(wanted);
        }
    }
    body.into()
}

fn end_is_refused(stop: &[i64], outside: &str) -> bool {
    outside == "error" && stop.iter().any(|n| *n < 0)
}

/// Returns the samples of a region that are inside the dataset.
fn clipped(model: &Model, start: &[i64], stop: &[i64], step: &[u64]) -> Wanted {
    let mut wanted = Wanted { start: Vec::new(), shape: Vec::new(), step: step.to_vec() };
    for axis in 0..start.len() {
        let samples = (start[axis]..stop[axis]).step_by(step[axis] as usize);
        let inside: Vec<i64> = samples.filter(|i| (0..model.dimensions[axis] as i64).contains(i)).collect();
        wanted.start.push(inside.first().copied().unwrap_or(0));
        wanted.shape.push(inside.len() as u64);
    }
    wanted
}

/// Requests a slice by `select`, with the semantics of NumPy.
fn indexed(numbers: &mut Numbers<'_>, model: &Model, server: &Server) {
    let mut items = Vec::new();
    let mut wanted = Wanted { start: Vec::new(), shape: Vec::new(), step: Vec::new() };
    let (mut shape, mut is_beyond) = (Vec::new(), false);
    for size in &model.dimensions {
        let (kind, first, second) = (numbers.below(4), numbers.below(24) as i64 - 12, numbers.below(24) as i64 - 12);
        let step = numbers.below(4) as u64 + 1;
        let size = *size as i64;
        let (item, samples): (String, Vec<i64>) = match kind {
            0 => {
                let at = if first < 0 { first + size } else { first };
                is_beyond |= !(0..size).contains(&at);
                (first.to_string(), vec![at])
            }
            1 => (":".to_owned(), (0..size).collect()),
            _ => {
                let place = |n: i64| (if n < 0 { n + size } else { n }).clamp(0, size);
                let (low, high) = (place(first), place(second));
                (format!("{first}:{second}:{step}"), (low..high.max(low)).step_by(step as usize).collect())
            }
        };
        items.push(item);
        wanted.start.push(samples.first().copied().unwrap_or(0));
        wanted.shape.push(samples.len() as u64);
        wanted.step.push(samples.get(1).map_or(1, |next| (next - samples[0]) as u64));
        if kind != 0 {
            shape.push(samples.len() as u64);
        }
    }
    let path = format!("/slice/v?select={}", items.join(","));
    let response = server.get(&path);
    if response.status != 200 {
        assert!(is_beyond || items.is_empty(), "{path}: {response:?}");
        return;
    }
    assert!(!is_beyond, "{path} has a position that is not there");
    let expected = model.elements(&wanted, model.kind).expect("as it is");
    check(&response, &path, &shape, &expected, false);
}

/// A channel of a picture: its index, colour and window.
type Channel = (u64, [u8; 3], (f64, f64));

/// Requests a plane as a picture, in grey or with the channels in colours, and a region as a stack.
fn pictured(numbers: &mut Numbers<'_>, model: &Model, server: &Server) {
    let rank = model.dimensions.len();
    if rank == 0 || model.dimensions.contains(&0) {
        return;
    }
    let axes = model.axes();
    let place_of = |name: &str| axes.as_ref().and_then(|axes| axes.iter().position(|axis| *axis == name));
    let channel_axis = place_of("c");
    let shown = [numbers.below(rank), numbers.below(rank)];
    let mut origin: Vec<i64> = model.dimensions.iter().map(|size| numbers.below(*size as usize) as i64).collect();
    let is_whole = |axis: usize| shown.contains(&axis) || Some(axis) == channel_axis;
    let items: Vec<String> = (0..rank)
        .map(|axis| if is_whole(axis) { ":".to_owned() } else { format!("{0}:{1}", origin[axis], origin[axis] + 1) })
        .collect();
    (0..rank).filter(|axis| is_whole(*axis)).for_each(|axis| origin[axis] = 0);
    let region = format!("/slice/v?select={}", items.join(","));
    let shape: Vec<u64> = (0..rank).map(|axis| if is_whole(axis) { model.dimensions[axis] } else { 1 }).collect();
    let long_axes: Vec<usize> = (0..rank).filter(|axis| shape[*axis] > 1 && Some(*axis) != channel_axis).collect();

    // A dataset is the only level of itself.
    let (direct, level) =
        (server.get(&region), server.get(&format!("{region}&level=auto&pixels={}", 1 + numbers.below(200))));
    assert!(direct.status == StatusCode::OK && level.status == StatusCode::OK, "{region} {direct:?} {level:?}");
    assert_eq!(direct.body, level.body, "{region}");
    stacked(model, server, &region, (&origin, &shape));

    let value = |pixel: &[u64], channel: Option<u64>| {
        let mut index = origin.clone();
        long_axes.iter().zip(pixel).for_each(|(axis, at)| index[*axis] = *at as i64);
        if let (Some(axis), Some(channel)) = (channel_axis, channel) {
            index[axis] = channel as i64;
        }
        match model.kind.number(model.value(&index)) {
            Number::Integer(number) => number as f64,
            Number::Float(number) => number,
        }
    };
    let size = [0, 1].map(|n| long_axes.get(n).map_or(1, |axis| shape[*axis]));
    let pixels = indices(&size);
    if let Some(axis) = channel_axis {
        let count = shape[axis];
        let mut channels: Vec<Channel> = Vec::new();
        for _ in 0..=numbers.below(8) {
            let channel = numbers.below(count as usize) as u64;
            let colour = [numbers.byte(), numbers.byte(), numbers.byte()];
            if channels.iter().all(|(other, ..)| *other != channel) {
                channels.push((channel, colour, numbers.of(&WINDOWS)));
            }
        }
        let list = |text: &dyn Fn(&Channel) -> String, between: &str| {
            channels.iter().map(text).collect::<Vec<_>>().join(between)
        };
        let path = format!(
            "{region}&format=png&channels={}&colors={}&window={}",
            list(&|(channel, ..)| channel.to_string(), ","),
            list(&|(_, [red, green, blue], _)| format!("{red:02x}{green:02x}{blue:02x}"), ","),
            list(&|(_, _, (low, high))| format!("{low:e},{high:e}"), ";"),
        );
        let expected = pixels.flat_map(|pixel| {
            [0, 1, 2].map(|part| {
                let sums = channels.iter().map(|(channel, colour, window)| {
                    u32::from(grey(value(&pixel, Some(*channel)), *window)) * u32::from(colour[part])
                });
                u8::try_from((sums.sum::<u32>() + 127) / 255).unwrap_or(u8::MAX)
            })
        });
        check_picture(&server.get(&path), &path, size, &expected.collect::<Vec<_>>());
        let automatic = format!("{region}&format=png&channels={}&window=auto", channels[0].0);
        assert_eq!(server.get(&automatic).status, StatusCode::OK, "{automatic}");
        return;
    }
    let window = numbers.of(&WINDOWS);
    let path = format!("{region}&format=png&window={:e},{:e}", window.0, window.1);
    let expected: Vec<u8> = pixels.map(|pixel| grey(value(&pixel, None), window)).collect();
    check_picture(&server.get(&path), &path, size, &expected);
    let automatic = format!("{region}&format=jpeg&quality=50&window=auto");
    assert_eq!(server.get(&automatic).status, StatusCode::OK, "{automatic}");
}

/// Requests a region as a stack. If both axes of a page are named, its elements must be in the order of ImageJ.
fn stacked(model: &Model, server: &Server, region: &str, (origin, shape): (&[i64], &[u64])) {
    let path = format!("{region}&format=tiff");
    let response = server.get(&path);
    let names = model.axes().unwrap_or_default();
    let place_of = |name: &&str| names.iter().position(|axis| axis == name).filter(|axis| shape[*axis] > 1);
    let order: Vec<usize> = ["x", "y", "c", "z", "t"].iter().filter_map(place_of).collect();
    assert_eq!(response.status, StatusCode::OK, "{path} {response:?}");
    if order.len() < 2 || names[order[0]] != "x" || names[order[1]] != "y" {
        return;
    }
    let sizes: Vec<u64> = order.iter().map(|axis| shape[*axis]).collect();
    let expected: Vec<u8> = indices(&sizes)
        .flat_map(|at| {
            let mut index = origin.to_vec();
            order.iter().zip(&at).for_each(|(axis, at)| index[*axis] += *at as i64);
            model.kind.bytes(model.value(&index))
        })
        .collect();
    assert!(response.body.ends_with(&expected), "{path} ends in {:?} in place of {expected:?}", response.body);
}

/// Returns the grey value of an element: 0 at the first value of the window, 255 at the second.
fn grey(value: f64, (low, high): (f64, f64)) -> u8 {
    // Half of the numbers, because the difference of two numbers may exceed the range of `f64`.
    let is_wide = (high - low).is_infinite();
    let [value, low, high] = [value, low, high].map(|number| if is_wide { number / 2.0 } else { number });
    ((value - low) / (high - low) * 255.0).round().clamp(0.0, 255.0) as u8
}

fn check_picture(response: &Response, path: &str, size: [u64; 2], expected: &[u8]) {
    assert_eq!(response.status, StatusCode::OK, "{path}: {response:?}");
    let mut reader = png::Decoder::new(std::io::Cursor::new(&response.body)).read_info().expect("a PNG");
    let mut pixels = vec![0; reader.output_buffer_size().expect("a small picture")];
    let info = reader.next_frame(&mut pixels).expect("pixels");
    assert_eq!([u64::from(info.width), u64::from(info.height)], size, "{path}");
    assert!(pixels == expected, "{path} shows {pixels:?} in place of {expected:?}");
}

fn check(response: &Response, path: &str, shape: &[u64], expected: &[u8], c_order: bool) {
    assert_eq!(response.status, StatusCode::OK, "{path}: {response:?}");
    assert!(response.body == expected, "{path} answers {:?} in place of {expected:?}", response.body);
    let mut shape = shape.to_vec();
    if c_order {
        shape.reverse();
    }
    assert_eq!(response.header("n5-shape"), Some(joined(&shape, "", ",").as_str()), "{path}");
}

/// Returns all indices below `shape`, first axis fastest.
fn indices(shape: &[u64]) -> impl Iterator<Item = Vec<u64>> {
    let total: u64 = shape.iter().product();
    (0..total).map(move |mut linear| {
        let next = |n: &u64| {
            let i = linear % n;
            linear /= n;
            i
        };
        shape.iter().map(next).collect()
    })
}

fn joined<T: ToString>(numbers: &[T], before: &str, between: &str) -> String {
    before.to_owned() + &numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
}
