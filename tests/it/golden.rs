//! Blocks written by other programs decode to what those programs stored. Hostile blocks are refused.
#![expect(clippy::disallowed_methods, clippy::unwrap_used, reason = "fixtures are files that must be there")]

use std::fs;
use std::path::{Path, PathBuf};

use n5_format::{AttributesDocument, Block, DatasetAttributes, Region, paste};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support::corpus;

/// Decoding limit, larger than any fixture needs.
const LIMIT_BYTES: u64 = 256 << 20;

fn fixtures(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(kind)
}

fn folders(parent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).unwrap();
    let mut folders: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).filter(|p| p.is_dir()).collect();
    folders.sort();
    folders
}

fn json(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

fn attributes(dataset: &Path) -> Result<DatasetAttributes, String> {
    let bytes = fs::read(dataset.join("attributes.json")).map_err(|e| e.to_string())?;
    let document = AttributesDocument::parse(&bytes).map_err(|e| e.to_string())?;
    DatasetAttributes::parse(document).map_err(|e| e.to_string())
}

/// Reads the whole array, little-endian, first axis fastest. Also returns the number of existing blocks.
fn read_all(dataset: &Path) -> Result<(Vec<u8>, usize), String> {
    let attributes = attributes(dataset)?;
    let grid = attributes.grid();
    let width = attributes.data_type().size_bytes().ok_or("no numbers")?;
    let region = Region::whole(grid.dimensions());
    let elements = usize::try_from(region.elements().ok_or("too large")?).unwrap();
    let mut array = vec![0; elements * width];
    let mut blocks = 0;
    for position in grid.covering(&region) {
        let mut file = dataset.to_owned();
        if position.is_empty() {
            file.push("0");
        }
        file.extend(position.iter().map(u64::to_string));
        let Ok(stored) = fs::read(&file) else { continue };
        let block = Block::decode(stored.into(), &attributes, &position, LIMIT_BYTES)
            .map_err(|error| format!("block {position:?}: {error}"))?;
        let origin = grid.origin(&position);
        paste(&mut array, &region, &block.data, &origin, &block.size, grid.dimensions(), width);
        blocks += 1;
    }
    Ok((array, blocks))
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[test]
fn blocks_written_by_every_program_decode_to_the_stored_elements() {
    let folders = folders(&fixtures("golden"));
    assert!(folders.len() > 60, "only {} fixtures", folders.len());
    for folder in folders {
        let expected = json(&folder.join("truth.json"));
        let (array, blocks) = read_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        assert!(blocks > 0, "{} has no blocks", folder.display());
        assert_eq!(expected["bytes"], array.len(), "{}", folder.display());
        assert_eq!(expected["sha256"], sha256(&array), "{}", folder.display());
    }
}

#[test]
fn hostile_blocks_are_refused_with_the_expected_error() {
    let folders = folders(&fixtures("hostile"));
    assert!(folders.len() > 20, "only {} fixtures", folders.len());
    for folder in folders {
        let attributes = attributes(&folder).unwrap();
        let position: Vec<u64> = attributes.dimensions().iter().map(|_| 0).collect();
        let file: PathBuf = attributes.dimensions().iter().map(|_| "0").collect();
        let stored = fs::read(folder.join(file)).unwrap();
        let expected = fs::read_to_string(folder.join("expected.txt")).unwrap();
        let error = Block::decode(stored.into(), &attributes, &position, LIMIT_BYTES)
            .map(|block| block.size)
            .expect_err(&folder.display().to_string())
            .to_string();
        assert!(error.contains(expected.trim()), "{}: {error:?} lacks {expected:?}", folder.display());
    }
}

/// Needs the corpus of 543 datasets by other programs, in the folder named by N5_CORPUS or beside the repository.
#[test]
fn every_dataset_of_the_corpus_decodes_to_the_expected_elements() {
    let Some(corpus) = corpus() else { return };
    let manifest = json(&corpus.join("manifest.json"));
    let datasets = manifest["datasets"].as_array().unwrap();
    let (mut equal, mut blocks, mut failures) = (0, 0, Vec::new());
    for dataset in datasets {
        let path = dataset["path"].as_str().unwrap();
        match read_all(&corpus.join(path)) {
            Ok((array, found)) if dataset["sha256"] == sha256(&array) => {
                equal += 1;
                blocks += found;
            }
            Ok(_) => failures.push(format!("{path}: other data")),
            Err(error) => failures.push(format!("{path}: {error}")),
        }
    }
    eprintln!("{equal} of {} datasets equal, {blocks} blocks", datasets.len());
    assert!(failures.is_empty() && equal > 0, "{}", failures.join("\n"));
}
