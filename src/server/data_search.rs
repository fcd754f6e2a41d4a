//! The search for N5 data at startup, so that a server that was given the wrong directory says so.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::store::{DirEntry, FilterDecision, Key, Store, StoreError};

/// Name of the file with the attributes of a group or dataset.
const ATTRIBUTES: &str = "attributes.json";

/// Maximum number of directories in which data are searched for.
const MAX_DIRECTORIES: usize = 1000;

/// Maximum number of directories that are kept of each directory.
const MAX_NAMES: usize = 1000;

/// Time limit for the search in all containers, because the server does not accept requests before it ends.
pub(super) const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);

/// Files that describe a group or an array of Zarr.
const ZARR_METADATA: [&str; 3] = ["zarr.json", ".zgroup", ".zarray"];

/// Searches `store` for the attributes of a group or dataset, nearest directories first. Returns a sentence if there
/// are none in the first directories, and `None` if there are.
///
/// # Errors
/// Returns an error if the store fails. It is then unknown whether there are data.
pub(super) async fn missing_data(store: &dyn Store) -> Result<Option<String>, StoreError> {
    let mut queue = VecDeque::from([Key::root()]);
    let mut searched_count = 0;
    let mut has_entries = false;
    let mut zarr_store = None;
    while let Some(key) = queue.pop_front() {
        if searched_count == MAX_DIRECTORIES {
            let text = format!("none of its first {MAX_DIRECTORIES} directories has the attributes.json of N5");
            return Ok(Some(sentence(&text, zarr_store.as_ref())));
        }
        searched_count += 1;
        if let Ok(attributes) = key.child(ATTRIBUTES)
            && hidden_as_none(store.head(&attributes).await)?.is_some()
        {
            return Ok(None);
        }
        let seen = Arc::<SeenEntries>::default();
        let filter_seen = Arc::clone(&seen);
        let filter = Arc::new(move |entry: &DirEntry| filter_seen.see(entry));
        let Some(listing) = hidden_as_none(store.list(&key, None, MAX_NAMES, filter).await)? else { continue };
        has_entries |= seen.any.load(Ordering::Relaxed);
        if seen.zarr.load(Ordering::Relaxed) {
            // Nothing below belongs to N5, and there may be very many chunks.
            zarr_store.get_or_insert(key);
            continue;
        }
        let room = (MAX_DIRECTORIES + 1).saturating_sub(searched_count + queue.len());
        queue.extend(listing.entries.iter().take(room).filter_map(|entry| key.child(&entry.name).ok()));
    }
    let text = match searched_count {
        _ if !has_entries => "the directory is empty; if it is a mount point, mount its storage".to_owned(),
        1 => "it has no directories and no attributes.json of N5".to_owned(),
        _ => format!("none of its {searched_count} directories has the attributes.json of N5"),
    };
    Ok(Some(sentence(&text, zarr_store.as_ref())))
}

/// Returns `None` in place of the error of an object that the server is not able or not allowed to read.
fn hidden_as_none<T>(result: Result<Option<T>, StoreError>) -> Result<Option<T>, StoreError> {
    match result {
        Err(error) if error.hides_object() => Ok(None),
        result => result,
    }
}

fn sentence(reason: &str, zarr_store: Option<&Key>) -> String {
    let zarr = zarr_store.map_or_else(String::new, |key| {
        format!("; {key} is a Zarr store, which n5-server does not read and any static file server can serve")
    });
    format!(
        "{reason}{zarr}. Give the directory of an N5 container, or one with several: n5-server /data/volume.n5. Data that \
         are added later are served without a restart"
    )
}

/// What has been seen in a directory.
#[derive(Debug, Default)]
struct SeenEntries {
    any: AtomicBool,
    zarr: AtomicBool,
}

impl SeenEntries {
    /// Records an entry. Keeps directories.
    fn see(&self, entry: &DirEntry) -> FilterDecision {
        self.any.store(true, Ordering::Relaxed);
        if entry.is_directory {
            return FilterDecision::Keep;
        }
        if ZARR_METADATA.contains(&entry.name.as_str()) {
            self.zarr.store(true, Ordering::Relaxed);
        }
        FilterDecision::Skip
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::store::MemoryStore;

    /// Returns the sentence for a store that has files with these names.
    async fn sentence_for(files: &[&str]) -> Option<String> {
        let objects = files.iter().map(|name| (Key::parse(name).unwrap(), Bytes::new()));
        missing_data(&MemoryStore::new(objects, 0)).await.unwrap()
    }

    #[tokio::test]
    async fn attributes_in_any_directory_are_data() {
        for files in [
            &["attributes.json"][..],
            &["a.png", "lab/run/em.n5/attributes.json"],
            &["z/.zgroup", "em/attributes.json"],
        ] {
            assert_eq!(sentence_for(files).await, None, "{files:?}");
        }
    }

    #[tokio::test]
    async fn a_directory_without_data_is_described() {
        for (files, text) in [
            (&[][..], "the directory is empty; if it is a mount point, mount its storage. Give"),
            (&["a.png"], "it has no directories and no attributes.json of N5."),
            (&["a.png", "x/b.png", "x/y/c.png"], "none of its 3 directories has the attributes.json of N5."),
            (
                &["s/my.zarr/.zgroup", "s/my.zarr/a/.zarray"],
                "the attributes.json of N5; s/my.zarr is a Zarr store, which",
            ),
            (
                &["my.zarr/zarr.json", "b/c/d"],
                "none of its 4 directories has the attributes.json of N5; my.zarr is a Zarr",
            ),
        ] {
            let sentence = sentence_for(files).await.unwrap();
            assert!(sentence.contains(text), "{files:?}: {sentence}");
        }
    }

    #[tokio::test]
    async fn the_search_is_bounded() {
        let many: Vec<String> = (0..=MAX_DIRECTORIES).map(|n| format!("d{n}/e/attributes.json")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let sentence = sentence_for(&many).await.unwrap();
        assert!(sentence.starts_with("none of its first 1000 directories"), "{sentence}");
    }
}
