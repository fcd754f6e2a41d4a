//! Pasting of decoded blocks of 64 x 64 x 64 elements into a result, by relative position and element size.
#![expect(clippy::unwrap_used, reason = "made-up data of known size")]

use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use n5_format::{BlockGrid, Coords, GridPosition, Region, SampleLayout, paste, paste_big_endian};

/// Size of a block along every axis, in elements.
const BLOCK: u64 = 64;

/// Size of the dataset along every axis, in elements.
const SIDE: u64 = 256;

const WIDTHS: [usize; 3] = [1, 2, 8];

fn main() {
    divan::main();
}

fn assemble(bencher: Bencher, width: usize, start: [i64; 3], shape: [u64; 3]) {
    assemble_in(SIDE, bencher, width, start, shape);
}

fn assemble_in(side: u64, bencher: Bencher, width: usize, start: [i64; 3], shape: [u64; 3]) {
    let paste =
        |to: &mut [u8], region: &Region, block: &[u8], origin: &[u64], size: &[u64], dimensions: &[u64], width| {
            paste(to, region, block, origin, size, dimensions, width)
        };
    assemble_by(paste, side, bencher, width, start, shape);
}

/// Pastes every block that overlaps the box at `start` of size `shape`, each from a buffer of its own.
fn assemble_by<P>(paste: P, side: u64, bencher: Bencher, width: usize, start: [i64; 3], shape: [u64; 3])
where
    P: Fn(&mut [u8], &Region, &[u8], &[u64], &[u64], &[u64], usize) -> bool,
{
    let grid = BlockGrid::new(Coords::from([side; 3].as_slice()), Coords::from([BLOCK; 3].as_slice())).unwrap();
    let region = Region::new(start.into_iter().collect(), shape.into_iter().collect(), [1, 1, 1].into_iter().collect());
    let region = region.unwrap();
    let block_bytes = usize::try_from(BLOCK.pow(3)).unwrap() * width;
    let blocks: Vec<(GridPosition, Vec<u8>)> =
        grid.covering(&region).map(|position| (position, vec![7; block_bytes])).collect();
    let size = Coords::from([BLOCK; 3].as_slice());
    let bytes = usize::try_from(region.elements().unwrap()).unwrap() * width;
    let mut to = vec![0; bytes];
    bencher.counter(BytesCount::new(bytes)).bench_local(|| {
        for (position, block) in &blocks {
            let origin = grid.origin(position);
            paste(&mut to, &region, black_box(block), &origin, &size, grid.dimensions(), width);
        }
        black_box(&to);
    });
}

#[divan::bench(args = WIDTHS)]
fn on_grid(bencher: Bencher, width: usize) {
    assemble(bencher, width, [64; 3], [128; 3]);
}

#[divan::bench(args = WIDTHS)]
fn on_grid_turned_round(bencher: Bencher, width: usize) {
    let paste =
        |to: &mut [u8], region: &Region, block: &[u8], origin: &[u64], size: &[u64], dimensions: &[u64], width| {
            paste_big_endian(to, region, block, origin, size, dimensions, width)
        };
    assemble_by(paste, SIDE, bencher, width, [64; 3], [128; 3]);
}

#[divan::bench(args = WIDTHS)]
fn off_grid(bencher: Bencher, width: usize) {
    assemble(bencher, width, [13; 3], [128; 3]);
}

#[divan::bench(args = WIDTHS)]
fn plane_xy(bencher: Bencher, width: usize) {
    assemble(bencher, width, [0, 0, 100], [SIDE, SIDE, 1]);
}

#[divan::bench(args = WIDTHS)]
fn plane_xz(bencher: Bencher, width: usize) {
    assemble(bencher, width, [0, 100, 0], [SIDE, 1, SIDE]);
}

#[divan::bench(args = WIDTHS)]
fn plane_yz(bencher: Bencher, width: usize) {
    assemble(bencher, width, [100, 0, 0], [1, SIDE, SIDE]);
}

/// The plane spans 64 blocks, more than a core's private cache holds.
#[divan::bench(args = WIDTHS)]
fn large_plane_yz(bencher: Bencher, width: usize) {
    assemble_in(2 * SIDE, bencher, width, [100, 0, 0], [1, 2 * SIDE, 2 * SIDE]);
}

/// The axes are in the reverse order in the result, as in a stack of images of a dataset with axes z, y, x.
#[divan::bench(args = WIDTHS)]
fn reversed_axes(bencher: Bencher, width: usize) {
    let paste =
        |to: &mut [u8], region: &Region, block: &[u8], origin: &[u64], size: &[u64], dimensions: &[u64], width| {
            let layout = SampleLayout { region, axes: Some(&[2, 1, 0]) };
            paste(to, layout, block, origin, size, dimensions, width)
        };
    assemble_by(paste, SIDE, bencher, width, [64; 3], [128; 3]);
}
