//! Compares this crate with the crate png, one thread each, on raw images.
//!
//! `cargo run --release --example compare -- FILE WIDTH HEIGHT BITS …` prints time, size and speed of each way to
//! encode. A file holds the pixels from top to bottom; those of 16 bits are little-endian.
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "reads images and prints a table")]

use std::error::Error;
use std::time::{Duration, Instant};

use png::{ColorType, Compression, Filter};
use png_gray::BitDepth;

/// Number of runs, of which the fastest counts.
const RUNS: usize = 40;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let images = arguments.as_chunks::<4>().0;
    if images.is_empty() {
        return Err("give FILE WIDTH HEIGHT BITS for each image".into());
    }
    for [file, width, height, bits] in images {
        let (width, height) = (width.parse()?, height.parse()?);
        let mut pixels = std::fs::read(file)?;
        let is_wide = bits == "16";
        if is_wide {
            pixels.as_chunks_mut::<2>().0.iter_mut().for_each(|pixel| pixel.reverse());
        }
        println!("{file}: {width} x {height}, {bits} bits, {} bytes", pixels.len());
        let depth = if is_wide { BitDepth::Sixteen } else { BitDepth::Eight };
        report("png-gray", || Ok(png_gray::encode(width, height, depth, &pixels)?))?;
        let compressions =
            [("fastest", Compression::Fastest), ("fast", Compression::Fast), ("balanced", Compression::Balanced)];
        let filters = [
            ("none", Filter::NoFilter),
            ("sub", Filter::Sub),
            ("up", Filter::Up),
            ("paeth", Filter::Paeth),
            ("adaptive", Filter::Adaptive),
        ];
        for (compression_name, compression) in compressions {
            for (filter_name, filter) in filters {
                report(&format!("png {compression_name} {filter_name}"), || {
                    let mut file = Vec::new();
                    let mut encoder = png::Encoder::new(&mut file, width, height);
                    encoder.set_color(ColorType::Grayscale);
                    encoder.set_depth(if is_wide { png::BitDepth::Sixteen } else { png::BitDepth::Eight });
                    encoder.set_compression(compression);
                    encoder.set_filter(filter);
                    encoder.write_header()?.write_image_data(&pixels)?;
                    Ok(file)
                })?;
            }
        }
    }
    Ok(())
}

/// Prints the fastest of some runs, and the size.
fn report(name: &str, encode: impl Fn() -> Result<Vec<u8>, Box<dyn Error>>) -> Result<(), Box<dyn Error>> {
    let (mut fastest, mut bytes) = (Duration::MAX, 0);
    for _ in 0..RUNS {
        let started = Instant::now();
        bytes = encode()?.len();
        fastest = fastest.min(started.elapsed());
    }
    println!("  {name:24} {:8.3} ms {bytes:9} bytes", fastest.as_secs_f64() * 1e3);
    Ok(())
}
