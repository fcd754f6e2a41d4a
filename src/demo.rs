//! The demo container that the binary carries.

use bytes::Bytes;

use crate::store::{Key, MemoryStore};

#[derive(rust_embed::Embed)]
#[folder = "demo/demo.n5/"]
struct Files;

/// When the demo data was made, in seconds after 1970: the same in every build, as its entity tags are.
const MADE_SECONDS: u64 = 1_795_132_800;

/// The container.
pub fn store() -> MemoryStore {
    let objects = Files::iter().filter_map(|path| {
        let key = Key::from_segments(path.split('/')).ok()?;
        Some((key, Bytes::from(Files::get(&path)?.data.into_owned())))
    });
    MemoryStore::new(objects, MADE_SECONDS)
}

/// What to try first, as text for a terminal.
pub fn tour(url: &str) -> String {
    format!("try:\n  curl -s {url}info/volume/em/s0\n")
}
