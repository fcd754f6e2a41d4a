//! Blocks that a writer replaces while an answer is made of them, band by band: the answer has one version of each.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::support::program::Program;
use crate::support::writer::N5;

/// Much more than the kernel holds of an answer that is not taken.
const BYTES: usize = 32 << 20;

/// Bands of at most 3 MiB, and no block is kept between them.
const TIGHT: &str = "[cache]\ndecoded = 0\nstored = 0\n[limits]\nslice_budget = '4MiB'\ndecode_budget = '128MiB'\n";

const RAW: &str = "raw";
const GZIP: &str = "gzip";

/// A block of all of a dataset, each element of which is `value`, comes in place of the one before.
fn put(root: &Path, compression: &str, value: u8) {
    let mut bytes = vec![0, 0, 0, 2, 0, 0, 16, 0, 0, 0, 32, 0];
    let elements = vec![value; BYTES];
    if compression == GZIP {
        let mut gzip = GzEncoder::new(&mut bytes, Compression::fast());
        gzip.write_all(&elements).unwrap();
        gzip.finish().unwrap();
    } else {
        bytes.extend(elements);
    }
    let directory = root.join(compression).join("0");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("new"), bytes).unwrap();
    fs::rename(directory.join("new"), directory.join("0")).unwrap();
}

/// What a client gets that begins to read before `change` is done, and takes the rest after it.
fn taken(program: &Program, compression: &str, change: impl FnOnce()) -> Vec<u8> {
    let mut connection = program.connect();
    connection.ask(&format!("/slice/{compression}?format=raw"));
    let head = connection.head().unwrap();
    assert_eq!((head.status, head.length()), (200, BYTES), "{compression}: {}", head.head);
    let mut bytes = connection.read(1 << 10);
    change();
    // Where the connection is broken off, what came before is there.
    let _ = connection.body(BYTES - bytes.len()).read_to_end(&mut bytes);
    bytes
}

#[test]
fn a_block_that_is_replaced_between_two_bands_ends_the_answer() {
    let n5 = N5::new();
    for compression in [RAW, GZIP] {
        let attributes = serde_json::json!({
            "dimensions": [4096, 8192], "blockSize": [4096, 8192], "dataType": "uint8",
            "compression": { "type": compression },
        });
        n5.file(&format!("{compression}/attributes.json"), attributes.to_string());
    }
    let program = Program::start(&format!("{TIGHT}[[containers]]\nroot = \"{}\"\n", n5.root().display()));
    for compression in [RAW, GZIP] {
        let block = n5.root().join(compression).join("0/0");
        let is_one = |bytes: &[u8], value: u8| bytes.iter().all(|byte| *byte == value);
        // A fresh file, of which nothing changes, and one that gets another name and mode, are sent whole.
        put(n5.root(), compression, 1);
        let bytes = taken(&program, compression, || ());
        assert!(bytes.len() == BYTES && is_one(&bytes, 1), "{compression}: {} bytes", bytes.len());
        let backup = n5.root().join(format!("{compression} of before"));
        let bytes = taken(&program, compression, || fs::hard_link(&block, backup).unwrap());
        assert!(bytes.len() == BYTES && is_one(&bytes, 1), "{compression}: {} bytes", bytes.len());
        let changes: [(&dyn Fn(), u8); 3] = [
            (&|| put(n5.root(), compression, 2), 1),
            (&|| fs::remove_file(&block).unwrap(), 2),
            // Before, there is a hole.
            (&|| put(n5.root(), compression, 3), 0),
        ];
        for (change, before) in changes {
            let bytes = taken(&program, compression, change);
            assert!(is_one(&bytes, before), "{compression}, {before}: bytes of two versions");
            assert!(bytes.len() < BYTES, "{compression}, {before}: as if nothing had changed");
        }
        let bytes = taken(&program, compression, || ());
        assert!(bytes.len() == BYTES && is_one(&bytes, 3), "{compression}: {} bytes", bytes.len());
    }
    assert!(program.logged("answer broken off").contains("is being written"));
    assert_eq!(program.metric("n5_broken_answers_total"), Some(6.0));
}
