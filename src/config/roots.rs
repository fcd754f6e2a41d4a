//! Containers on the command line: parses `NAME=ROOT`, and names the containers that have no name there.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Parses `ROOT` or `NAME=ROOT` into the name of the container, which may be empty, and its directory. The whole text
/// is a path if the part before the first `=` contains a slash or is not UTF-8, or if `is_directory` returns true for the
/// text.
pub fn parse_root(text: &OsStr, is_directory: impl Fn(&Path) -> bool) -> (String, PathBuf) {
    // The directory after the name need not be UTF-8.
    let mut parts = text.as_bytes().splitn(2, |byte| *byte == b'=');
    let name = parts.next().and_then(|name| std::str::from_utf8(name).ok()).filter(|name| !name.contains('/'));
    match (name, parts.next()) {
        (Some(name), Some(path)) if !is_directory(Path::new(text)) => {
            (name.to_owned(), PathBuf::from(OsStr::from_bytes(path)))
        }
        _ => (String::new(), PathBuf::from(text)),
    }
}

/// Returns the names of the containers in `roots`: names and directories, as [`parse_root`] returns them.
///
/// A single container without a name stays without one: it is served at the root. One of several containers gets the name
/// of its directory, without `.n5`. It gets the full name of the directory if another container has the short name, or if
/// the short name is one of the `reserved` words.
pub(super) fn container_names(roots: &[(String, PathBuf)], reserved: &[&str]) -> Vec<String> {
    if let [(name, _)] = roots {
        return vec![name.clone()];
    }
    let candidates: Vec<(String, String)> = roots.iter().map(|(name, path)| candidate_names(name, path)).collect();
    let is_usable = |name: &str| {
        let is_unique = candidates.iter().filter(|(short_name, _)| short_name == name).count() == 1;
        is_unique && !name.is_empty() && !reserved.contains(&name)
    };
    candidates.iter().map(|(short, full)| if is_usable(short) { short.clone() } else { full.clone() }).collect()
}

/// Returns the short name of one of several containers, and its full name: both are `name`, unless that is empty.
fn candidate_names(name: &str, path: &Path) -> (String, String) {
    if !name.is_empty() {
        return (name.to_owned(), name.to_owned());
    }
    (short_name(path), directory_name(path))
}

/// Returns the name of a container's directory without `.n5`; empty if it has none or the name is not UTF-8.
pub fn short_name(path: &Path) -> String {
    let full = directory_name(path);
    full.strip_suffix(".n5").map_or_else(|| full.clone(), str::to_owned)
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
        let (name, path) = parse_root(OsStr::new(text), |path| path == Path::new(directory));
        (name, path.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_root_may_have_a_name() {
        assert_eq!(root("/data/a.n5", ""), (String::new(), "/data/a.n5".into()));
        assert_eq!(root("em=/data/a.n5", ""), ("em".into(), "/data/a.n5".into()));
        assert_eq!(root("em=/data/a=b", ""), ("em".into(), "/data/a=b".into()));
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
        assert_eq!(parse_root(OsStr::from_bytes(b"em=/data/\xff.n5"), |_| false), ("em".into(), directory.into()));
        assert_eq!(parse_root(directory, |_| false), (String::new(), directory.into()));
        let odd = OsStr::from_bytes(b"\xff=em.n5");
        assert_eq!(parse_root(odd, |_| false), (String::new(), odd.into()));
    }

    fn names(roots: &[&str]) -> Vec<String> {
        let roots: Vec<_> = roots.iter().map(|text| parse_root(OsStr::new(text), |_| false)).collect();
        container_names(&roots, &["slice"])
    }

    #[test]
    fn containers_are_named_after_their_directories() {
        assert_eq!(names(&["/data/em.n5"]), [""]);
        assert_eq!(names(&["/data/em.n5", "seg.n5/", "raw.v1", "x=/data/y.n5"]), ["em", "seg", "raw.v1", "x"]);
    }

    #[test]
    fn a_short_name_that_is_taken_or_reserved_is_not_used() {
        assert_eq!(names(&["/1/em.n5", "/1/em", "slice.n5"]), ["em.n5", "em", "slice.n5"]);
        assert_eq!(names(&["em=/1/a.n5", "/2/em.n5"]), ["em", "em.n5"]);
    }
}
