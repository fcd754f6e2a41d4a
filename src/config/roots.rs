//! Containers on the command line: parses `NAME=ROOT`, and names the containers that have no name there.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::root_address::RootAddress;

/// Splits `ROOT` or `NAME=ROOT` into the name of the container, which may be empty, and the text of its address. The
/// whole text is an address if the part before the first `=` contains a slash or is not UTF-8, or if `is_directory`
/// returns true for the text.
pub fn split_root(text: &OsStr, is_directory: impl Fn(&Path) -> bool) -> (String, OsString) {
    // The directory after the name need not be UTF-8.
    let mut parts = text.as_bytes().splitn(2, |byte| *byte == b'=');
    let name = parts.next().and_then(|name| std::str::from_utf8(name).ok()).filter(|name| !name.contains('/'));
    match (name, parts.next()) {
        (Some(name), Some(path)) if !is_directory(Path::new(text)) => {
            (name.to_owned(), OsStr::from_bytes(path).to_owned())
        }
        _ => (String::new(), text.to_owned()),
    }
}

/// Returns the names of the containers in `roots`: names as [`split_root`] returns them, and addresses.
///
/// A single container without a name stays without one: it is served at the root. One of several containers gets the name
/// of its directory, without `.n5`. It gets the full name of the directory if another container has the short name, or if
/// the short name is one of the `reserved` words.
pub(super) fn container_names(roots: &[(String, RootAddress)], reserved: &[&str]) -> Vec<String> {
    if let [(name, _)] = roots {
        return vec![name.clone()];
    }
    let candidates: Vec<(String, String)> = roots.iter().map(|(name, root)| candidate_names(name, root)).collect();
    let is_usable = |name: &str| {
        let is_unique = candidates.iter().filter(|(short_name, _)| short_name == name).count() == 1;
        is_unique && !name.is_empty() && !reserved.contains(&name)
    };
    candidates.iter().map(|(short, full)| if is_usable(short) { short.clone() } else { full.clone() }).collect()
}

/// Returns the short name of one of several containers, and its full name: both are `name`, unless that is empty.
fn candidate_names(name: &str, root: &RootAddress) -> (String, String) {
    if !name.is_empty() {
        return (name.to_owned(), name.to_owned());
    }
    (short_name(root), full_name(root))
}

/// Returns the name of a container's directory, or the last part of its address, without `.n5`; empty if it has none or
/// the name is not UTF-8.
pub fn short_name(root: &RootAddress) -> String {
    let full = full_name(root);
    full.strip_suffix(".n5").map_or_else(|| full.clone(), str::to_owned)
}

/// Returns the name of a container's directory, or the last part of its address.
fn full_name(root: &RootAddress) -> String {
    match root {
        RootAddress::Local(path) => directory_name(path),
        RootAddress::Remote(root) => root.name().to_owned(),
    }
}

/// Returns the name of a directory; empty if it has none or the name is not UTF-8.
fn directory_name(path: &Path) -> String {
    // `.` and `..` have no name, but the directories that they stand for have one.
    let resolved = if path.file_name().is_none() { path.canonicalize().ok() } else { None };
    resolved.as_deref().unwrap_or(path).file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(text: &str, directory: &str) -> (String, String) {
        let (name, path) = split_root(OsStr::new(text), |path| path == Path::new(directory));
        (name, path.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_root_may_have_a_name() {
        assert_eq!(root("/data/a.n5", ""), (String::new(), "/data/a.n5".into()));
        assert_eq!(root("em=/data/a.n5", ""), ("em".into(), "/data/a.n5".into()));
        assert_eq!(root("em=/data/a=b", ""), ("em".into(), "/data/a=b".into()));
        assert_eq!(root("em=s3://b/a=b", ""), ("em".into(), "s3://b/a=b".into()));
        assert_eq!(root("s3://b/a=b", ""), (String::new(), "s3://b/a=b".into()));
        assert_eq!(root("n5:s3://b/a=b", ""), (String::new(), "n5:s3://b/a=b".into()));
    }

    #[test]
    fn a_path_with_an_equals_sign_is_a_path_if_it_exists_or_contains_a_slash() {
        assert_eq!(root("run=7", "run=7"), (String::new(), "run=7".into()));
        assert_eq!(root("./run=7", ""), (String::new(), "./run=7".into()));
        assert_eq!(root("run=7", ""), ("run".into(), "7".into()));
    }

    #[test]
    fn a_directory_with_a_name_need_not_be_utf_8() {
        let directory = OsStr::from_bytes(b"/data/\xff.n5");
        assert_eq!(split_root(OsStr::from_bytes(b"em=/data/\xff.n5"), |_| false), ("em".into(), directory.into()));
        assert_eq!(split_root(directory, |_| false), (String::new(), directory.into()));
        let odd = OsStr::from_bytes(b"\xff=em.n5");
        assert_eq!(split_root(odd, |_| false), (String::new(), odd.into()));
    }

    fn names(roots: &[&str]) -> Vec<String> {
        let parse = |text: &&str| {
            let (name, address) = split_root(OsStr::new(text), |_| false);
            (name, RootAddress::parse(&address).unwrap())
        };
        container_names(&roots.iter().map(parse).collect::<Vec<_>>(), &["slice"])
    }

    #[test]
    fn containers_are_named_after_their_directories() {
        assert_eq!(names(&["/data/em.n5"]), [""]);
        assert_eq!(names(&["/data/em.n5", "seg.n5/", "raw.v1", "x=/data/y.n5"]), ["em", "seg", "raw.v1", "x"]);
        assert_eq!(names(&["s3://b/c/em.n5", "x=s3://b/c", "gs://bucket"]), ["em", "x", "bucket"]);
    }

    #[test]
    fn a_short_name_that_is_taken_or_reserved_is_not_used() {
        assert_eq!(names(&["/1/em.n5", "/1/em", "slice.n5"]), ["em.n5", "em", "slice.n5"]);
        assert_eq!(names(&["em=/1/a.n5", "/2/em.n5"]), ["em", "em.n5"]);
    }
}
