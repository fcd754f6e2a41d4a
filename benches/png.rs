//! PNG encoding of planes of 512 x 512 pixels with various contents.
#![expect(clippy::unwrap_used, reason = "made-up data of known size")]

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use n5_format::{Array, Coords, DataType};
use n5_server::output::{EncodeOptions, FORMATS};

const SIDE: u32 = 512;

const PICTURES: [&str; 5] = ["camera", "noise", "gradient", "labels", "zeros"];

fn main() {
    divan::main();
}

/// Returns a generator of random 32-bit numbers.
fn noise() -> impl FnMut() -> u32 {
    let mut state = 1u32;
    move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    }
}

/// Returns the elements of a picture, little-endian, `width` bytes each.
fn picture(name: &str, width: usize) -> Vec<u8> {
    let mut noise = noise();
    let pixel = |x: u32, y: u32| -> u32 {
        match name {
            // The sum of twelve uniform numbers below 42 has a standard deviation of 42.
            "camera" => (0..12).map(|_| noise() % 42).sum::<u32>() / 2 + 4,
            "noise" => noise(),
            "gradient" => (x * x / 512 + y) / 8 + noise() % 2,
            "labels" => [3, 200, 77, 0, 91][((x + y / 3) / 61 + y / 43 * 3) as usize % 5],
            _ => 0,
        }
    };
    let places = (0..SIDE).flat_map(|y| (0..SIDE).map(move |x| (x, y)));
    let mut pixel = pixel;
    places.flat_map(|(x, y)| pixel(x, y).to_le_bytes()[..width].to_vec()).collect()
}

fn encode(bencher: Bencher, name: &str, data_type: DataType) {
    let shape = Coords::from([u64::from(SIDE); 2].as_slice());
    let data = picture(name, data_type.size_bytes().unwrap());
    let bytes = data.len();
    let array = Array { shape, data_type, data: data.into() };
    let png = FORMATS.iter().find(|format| format.name() == "png").unwrap();
    let options = EncodeOptions::default();
    bencher.counter(BytesCount::new(bytes)).bench_local(|| png.encode(black_box(&array), &options).unwrap());
}

#[divan::bench(args = PICTURES)]
fn uint8(bencher: Bencher, name: &str) {
    encode(bencher, name, DataType::UInt8);
}

#[divan::bench(args = PICTURES)]
fn uint16(bencher: Bencher, name: &str) {
    encode(bencher, name, DataType::UInt16);
}
