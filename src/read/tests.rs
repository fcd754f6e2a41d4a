//! Containers for the tests of this folder.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::container::{Container, Resources, Settings};
use crate::store::{Key, MemoryStore};

fn settings(max_slice_bytes: u64, slice_budget: u64) -> Settings {
    Settings { max_slice_bytes, slice_budget, ..Settings::small() }
}

/// Creates a container of one dataset without blocks.
pub(super) fn container(max_slice_bytes: u64, slice_budget: u64, attributes: &'static str) -> Container {
    let object = (Key::parse("v/attributes.json").unwrap(), Bytes::from_static(attributes.as_bytes()));
    Container::new(Arc::new(MemoryStore::new([object], 0)), Resources::new(settings(max_slice_bytes, slice_budget)))
}

/// Creates a container with 16 blocks of 64 KiB of zeros, none of them cached. All of them may be decoded at once.
pub(super) fn container_with_blocks(budget_wait: Duration) -> Container {
    let settings = Settings {
        decoded_cache: 0,
        stored_cache: 0,
        decode_budget: 16 << 20,
        budget_wait,
        ..settings(1 << 30, 1 << 20)
    };
    let attributes =
        r#"{"dimensions":[256,4096],"blockSize":[256,256],"dataType":"uint8","compression":{"type":"gzip"}}"#;
    let mut objects = vec![(Key::parse("v/attributes.json").unwrap(), Bytes::from_static(attributes.as_bytes()))];
    let mut block = vec![0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 1, 0];
    let mut gzip = flate2::write::GzEncoder::new(&mut block, flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &vec![0; 1 << 16]).unwrap();
    gzip.finish().unwrap();
    let block = Bytes::from(block);
    objects.extend((0..16).map(|n| (Key::parse(&format!("v/0/{n}")).unwrap(), block.clone())));
    Container::new(Arc::new(MemoryStore::new(objects, 0)), Resources::new(settings))
}
