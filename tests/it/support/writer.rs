//! Writes N5 containers, following only the specification.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;

/// A container in a temporary directory that is removed on drop.
pub struct N5 {
    dir: TempDir,
}

/// A dataset of `uint16`. Each element is its linear index modulo 65,535, plus one.
pub struct Dataset {
    pub path: PathBuf,
    pub dimensions: Vec<u64>,
    pub block_size: Vec<u64>,
    pub gzip: bool,
}

impl N5 {
    /// Creates a container with a root group and nothing else.
    pub fn new() -> Self {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("attributes.json"), r#"{"n5":"2.0.0"}"#).unwrap();
        Self { dir }
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a file and creates its parent directories.
    pub fn file(&self, path: &str, bytes: impl AsRef<[u8]>) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// Writes the attributes of a dataset. Its blocks are not stored until [`Dataset::fill`] writes them.
    pub fn dataset(&self, path: &str, dimensions: &[u64], block_size: &[u64], compression: &str) -> Dataset {
        let attributes = serde_json::json!({
            "dimensions": dimensions, "blockSize": block_size, "dataType": "uint16",
            "compression": { "type": compression },
        });
        self.file(&format!("{path}/attributes.json"), attributes.to_string());
        Dataset {
            path: self.dir.path().join(path),
            dimensions: dimensions.to_vec(),
            block_size: block_size.to_vec(),
            gzip: compression == "gzip",
        }
    }
}

impl Dataset {
    /// Returns the value of the element at `index`; 0 outside the dataset.
    pub fn value(&self, index: &[i64]) -> u16 {
        let mut linear = 0i64;
        for (coordinate, dimension) in index.iter().zip(&self.dimensions).rev() {
            let dimension = i64::try_from(*dimension).unwrap();
            if !(0..dimension).contains(coordinate) {
                return 0;
            }
            linear = linear * dimension + coordinate;
        }
        u16::try_from(linear % 65_535 + 1).unwrap()
    }

    /// Writes every block that `keep` accepts. Blocks at the edge that `padded` accepts have full size.
    pub fn fill(&self, keep: impl Fn(&[u64]) -> bool, padded: impl Fn(&[u64]) -> bool) {
        let grid: Vec<u64> = self.dimensions.iter().zip(&self.block_size).map(|(d, b)| d.div_ceil(*b)).collect();
        for position in all_indices(&grid) {
            if keep(&position) {
                self.write_block(&position, padded(&position));
            }
        }
    }

    /// Returns the file of a block.
    pub fn block_path(&self, position: &[u64]) -> PathBuf {
        position.iter().fold(self.path.clone(), |path, n| path.join(n.to_string()))
    }

    /// Writes a block. At the edge it is cropped unless `padded`.
    pub fn write_block(&self, position: &[u64], padded: bool) {
        let origin: Vec<u64> = position.iter().zip(&self.block_size).map(|(p, b)| p * b).collect();
        let size: Vec<u64> = (0..origin.len())
            .map(|axis| {
                let full = self.block_size[axis];
                let rest = self.dimensions[axis] - origin[axis];
                if padded { full } else { full.min(rest) }
            })
            .collect();
        let mut elements = Vec::new();
        for index in all_indices(&size) {
            let coordinates: Vec<i64> =
                index.iter().zip(&origin).map(|(offset, start)| i64::try_from(offset + start).unwrap()).collect();
            let outside =
                coordinates.iter().zip(&self.dimensions).any(|(coordinate, size)| coordinate.unsigned_abs() >= *size);
            // Padding is not zero, so that a test sees padding in a response.
            elements.push(if outside { 0xdead } else { self.value(&coordinates) });
        }
        let path = self.block_path(position);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, encode(&size, &elements, self.gzip)).unwrap();
    }
}

/// Encodes a block file.
pub fn encode(size: &[u64], elements: &[u16], gzip: bool) -> Vec<u8> {
    let mut block = vec![0, 0];
    block.extend(u16::try_from(size.len()).unwrap().to_be_bytes());
    for n in size {
        block.extend(u32::try_from(*n).unwrap().to_be_bytes());
    }
    let payload: Vec<u8> = elements.iter().flat_map(|e| e.to_be_bytes()).collect();
    if gzip {
        let mut encoder = GzEncoder::new(block, Compression::fast());
        encoder.write_all(&payload).unwrap();
        return encoder.finish().unwrap();
    }
    block.extend(payload);
    block
}

/// Returns all indices below `shape`, first axis fastest.
pub fn all_indices(shape: &[u64]) -> Vec<Vec<u64>> {
    let total: u64 = shape.iter().product();
    (0..total)
        .map(|mut linear| {
            shape
                .iter()
                .map(|size| {
                    let index = linear % size;
                    linear /= size;
                    index
                })
                .collect()
        })
        .collect()
}
