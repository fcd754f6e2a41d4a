//! The check of a container's directory before it is opened: says what a path is if it cannot be an N5 container.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

/// First bytes of an HDF5 file. Source: HDF5 File Format Specification, III.A.
const HDF5_SIGNATURE: &[u8; 8] = b"\x89HDF\r\n\x1a\n";

/// Files that describe a group or array of Zarr. Source: Zarr 2 and 3 specifications.
const ZARR_METADATA: [&str; 3] = ["zarr.json", ".zgroup", ".zarray"];

/// Name of the file with the attributes of a group.
const ATTRIBUTES: &str = "attributes.json";

/// Maximum number of entries of a Zarr store that are searched for N5 attributes.
const MAX_PROBED_ENTRIES: usize = 1000;

/// Checks that an N5 container can be at `path`. Blocks on the disk.
///
/// # Errors
/// Returns what is there instead, and what to do.
#[expect(clippy::disallowed_methods, reason = "no store is open yet")]
pub(crate) fn check_directory(path: &Path) -> Result<(), String> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err("there is no such directory".to_owned());
        }
        // Opening the directory reports the error.
        Err(_) => return Ok(()),
    };
    if metadata.is_file() {
        let name = path.file_name().unwrap_or_default();
        return Err(if name == ATTRIBUTES {
            "it is a file of a container; give the directory that contains the whole container".to_owned()
        } else if is_hdf5(path) {
            "it is an HDF5 file, and only N5 containers can be served; save its datasets as N5 first, for example in Fiji \
             (File > Save As > HDF5/N5/Zarr/OME-NGFF)"
                .to_owned()
        } else {
            "it is a file; give the directory of an N5 container".to_owned()
        });
    }
    let zarr_file = ZARR_METADATA.iter().find(|name| path.join(name).exists());
    match zarr_file.filter(|_| !has_n5_attributes(path)) {
        Some(name) => Err(format!(
            "it is a Zarr store, because it has {name}, and only N5 containers can be served; programs that read Zarr over \
             HTTP need no conversion: any static file server can serve it"
        )),
        None => Ok(()),
    }
}

/// Returns true if the directory at `path`, or one of the first directories in it, has N5 attributes.
fn has_n5_attributes(path: &Path) -> bool {
    #[expect(clippy::disallowed_methods, reason = "no store is open yet")]
    let entries = fs::read_dir(path);
    path.join(ATTRIBUTES).exists()
        || entries.is_ok_and(|entries| {
            entries.take(MAX_PROBED_ENTRIES).flatten().any(|entry| entry.path().join(ATTRIBUTES).exists())
        })
}

/// Returns true if the directory at `path` has no entries. Blocks on the disk.
pub(crate) fn is_empty_directory(path: &Path) -> bool {
    #[expect(clippy::disallowed_methods, reason = "the question is not about a container")]
    let entries = fs::read_dir(path);
    entries.is_ok_and(|mut entries| entries.next().is_none())
}

fn is_hdf5(path: &Path) -> bool {
    let mut start = [0; HDF5_SIGNATURE.len()];
    #[expect(clippy::disallowed_methods, reason = "the file is not part of a container")]
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *HDF5_SIGNATURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test needs files")]
    fn the_error_says_what_the_path_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("volume.h5"), b"\x89HDF\r\n\x1a\nand more").unwrap();
        fs::write(path("note.txt"), b"\x89HD").unwrap();
        fs::create_dir(path("volume.zarr")).unwrap();
        fs::write(path("volume.zarr/.zgroup"), b"{}").unwrap();
        fs::create_dir(path("empty")).unwrap();
        for (name, words) in [
            ("absent", "no such directory"),
            ("volume.h5", "HDF5 file"),
            ("note.txt", "it is a file;"),
            ("volume.zarr", "Zarr store, because it has .zgroup"),
        ] {
            let error = check_directory(&path(name)).unwrap_err();
            assert!(error.contains(words), "{name}: {error}");
        }
        assert_eq!(check_directory(&path("empty")), Ok(()));
        assert!(is_empty_directory(&path("empty")) && !is_empty_directory(&path("volume.zarr")));
        fs::create_dir(path("volume.zarr/em.n5")).unwrap();
        fs::write(path("volume.zarr/em.n5/attributes.json"), b"{}").unwrap();
        assert_eq!(check_directory(&path("volume.zarr")), Ok(()), "it contains an N5 group");
        fs::remove_dir_all(path("volume.zarr/em.n5")).unwrap();
        fs::write(path("volume.zarr/attributes.json"), b"{}").unwrap();
        assert_eq!(check_directory(&path("volume.zarr")), Ok(()), "an N5 group, too");
    }
}
