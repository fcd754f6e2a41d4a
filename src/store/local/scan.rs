//! Lists the entries of a directory, page by page. Each page scans the directory once, or twice if many entries turn
//! out not to be listed.

use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, FileType, Mode, OFlags, openat};
use rustix::io::Errno;

use super::errors::LinkError;
use super::tree::LocalTree;
use crate::store::{DirEntry, EntryFilter, FilterDecision, Key, Listing, MAX_OMITTED_NAMES};

/// Number of entries between two calls of `is_wanted`, which also reports progress. It is small because a thread that
/// resolves links may get a core for only a millisecond at a time.
const CANCEL_CHECK_INTERVAL: usize = 16;

/// The part of a directory that is listed.
pub(super) struct PageRequest<'a> {
    /// Name after which the page begins.
    pub(super) after: Option<&'a str>,
    /// Maximum number of entries.
    pub(super) limit: usize,
    /// Filter that the entries must pass.
    pub(super) filter: &'a EntryFilter,
    /// Returns true while the caller waits.
    pub(super) is_wanted: &'a dyn Fn() -> bool,
}

/// An entry that may be listed, as far as its directory tells. Only the first candidates by name are resolved.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct EntryCandidate {
    name: String,
    kind: DirEntryKind,
}

/// Kind of an entry, as far as its directory tells.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DirEntryKind {
    Directory,
    File,
    /// A link, or an entry whose kind must be looked up.
    Unknown,
    /// Neither file nor directory.
    Other,
}

/// Result of [`LocalTree::scan`].
struct ScanResult {
    /// Candidates, sorted by name.
    candidates: Vec<EntryCandidate>,
    /// True if there are more candidates.
    has_more: bool,
}

impl LocalTree {
    pub(super) fn list(&self, key: &Key, page: &PageRequest<'_>) -> io::Result<Option<Listing>> {
        let root = self.root.open()?;
        let directory = match self.open_path(&root, key, OFlags::DIRECTORY) {
            Ok(directory) => directory,
            Err(error) => return self.none_if_missing_or_unfollowed(&root, error, key),
        };
        let mut omitted = OmittedNames::default();
        let scanned = Self::scan(&directory, page, &mut omitted)?;
        if omitted.unaddressable > 0 {
            let left_out = omitted.unaddressable;
            tracing::warn!(directory = %key, left_out, "names that are not UTF-8 or cannot be addressed are not listed");
        }
        let mut entries = Vec::new();
        // Candidates are resolved one by one until the page is full.
        for (n, candidate) in scanned.candidates.iter().enumerate() {
            if entries.len() > page.limit {
                break;
            }
            check_cancelled(page, n)?;
            entries.extend(self.resolve_candidate(&root, key, candidate, page, &mut omitted)?);
        }
        if let Some(last) = scanned.candidates.last().filter(|_| scanned.has_more && entries.len() <= page.limit) {
            // Many candidates were not listed. The directory is read a second time, and entries after the last
            // candidate are resolved as they are read. No number of unlisted entries causes further reads.
            let remaining_page = PageRequest { after: Some(&last.name), limit: page.limit - entries.len(), ..*page };
            entries.extend(self.scan_and_resolve(&root, &directory, key, &remaining_page, &mut omitted)?);
        }
        let has_more = entries.len() > page.limit;
        entries.truncate(page.limit);
        Ok(Some(Listing { entries, has_more, omitted_names: omitted.names, omitted_count: omitted.count }))
    }

    /// Returns the first entries by name that may be listed, up to one more than the page holds. Does not resolve them.
    fn scan(directory: &File, page: &PageRequest<'_>, omitted: &mut OmittedNames) -> io::Result<ScanResult> {
        // Only the smallest `limit + 1` names are kept, so memory stays bounded for any directory.
        let mut smallest: BinaryHeap<EntryCandidate> = BinaryHeap::new();
        let mut has_more = false;
        for (n, entry) in read_entries(directory)?.enumerate() {
            check_cancelled(page, n)?;
            let entry = entry?;
            let name = match entry.file_name().to_str() {
                Ok("." | "..") => continue,
                Ok(name) if Key::is_segment(name) => name,
                _ => {
                    omitted.unaddressable += 1;
                    omitted.add(&entry.file_name().to_string_lossy());
                    continue;
                }
            };
            if page.after.is_some_and(|after| name <= after) {
                continue;
            }
            let is_full = smallest.len() > page.limit;
            if is_full && smallest.peek().is_some_and(|largest| largest.name.as_str() <= name) {
                has_more = true;
                continue;
            }
            let kind = kind_from_file_type(entry.file_type());
            let mut entry = DirEntry { name: name.to_owned(), is_directory: kind != DirEntryKind::File };
            let mut may_be_listed = (page.filter)(&entry) != FilterDecision::Skip;
            if !may_be_listed && matches!(kind, DirEntryKind::Unknown | DirEntryKind::Other) {
                entry.is_directory = false;
                may_be_listed = (page.filter)(&entry) != FilterDecision::Skip;
            }
            if !may_be_listed {
                continue;
            }
            smallest.push(EntryCandidate { name: entry.name, kind });
            if is_full {
                smallest.pop();
                has_more = true;
            }
        }
        Ok(ScanResult { candidates: smallest.into_sorted_vec(), has_more })
    }

    /// Returns the first entries by name that are listed, up to one more than the page holds. Resolves each entry that
    /// may be among them when it is read.
    fn scan_and_resolve(
        &self,
        root: &OwnedFd,
        directory: &File,
        key: &Key,
        page: &PageRequest<'_>,
        omitted: &mut OmittedNames,
    ) -> io::Result<Vec<DirEntry>> {
        let mut smallest: BinaryHeap<DirEntry> = BinaryHeap::new();
        for (n, entry) in read_entries(directory)?.enumerate() {
            check_cancelled(page, n)?;
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let is_after = page.after.is_none_or(|after| name > after);
            if name == "." || name == ".." || !is_after || !Key::is_segment(name) {
                continue;
            }
            let is_full = smallest.len() > page.limit;
            if is_full && smallest.peek().is_some_and(|largest| largest.name.as_str() <= name) {
                continue;
            }
            let candidate = EntryCandidate { name: name.to_owned(), kind: kind_from_file_type(entry.file_type()) };
            let Some(entry) = self.resolve_candidate(root, key, &candidate, page, omitted)? else { continue };
            smallest.push(entry);
            if is_full {
                smallest.pop();
            }
        }
        Ok(smallest.into_sorted_vec())
    }

    /// Returns the entry of a candidate, if it is listed.
    fn resolve_candidate(
        &self,
        root: &OwnedFd,
        key: &Key,
        candidate: &EntryCandidate,
        page: &PageRequest<'_>,
        omitted: &mut OmittedNames,
    ) -> io::Result<Option<DirEntry>> {
        let name = &candidate.name;
        let Some(is_directory) = self.classify_entry(root, key, name, candidate.kind)? else {
            omitted.add(name);
            return Ok(None);
        };
        let entry = DirEntry { name: name.clone(), is_directory };
        let is_kept = match (page.filter)(&entry) {
            FilterDecision::Keep => true,
            FilterDecision::Skip => false,
            FilterDecision::KeepIfContains(object) => {
                match key.child(name).and_then(|entry_key| entry_key.child(object)) {
                    Ok(object) => self.has_object(root, &object)?,
                    Err(_too_deep) => false,
                }
            }
        };
        Ok(is_kept.then_some(entry))
    }

    /// Returns true if an entry is a directory and false if it is a file. Returns `None` for anything else, and for
    /// links that are dangling or not followed.
    ///
    /// # Errors
    /// If the kind cannot be determined. Only an entry that is known to be neither may be omitted.
    fn classify_entry(&self, root: &OwnedFd, key: &Key, name: &str, kind: DirEntryKind) -> io::Result<Option<bool>> {
        match kind {
            DirEntryKind::Directory => Ok(Some(true)),
            DirEntryKind::File => Ok(Some(false)),
            DirEntryKind::Unknown => match key.child(name) {
                Ok(entry) => classify_opened(self.open_path(root, &entry, OFlags::empty())),
                Err(_too_deep) => Ok(None),
            },
            DirEntryKind::Other => Ok(None),
        }
    }
}

/// Reads the entries of a directory from the beginning.
fn read_entries(directory: &File) -> io::Result<Dir> {
    let readable = openat(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(Dir::new(readable)?)
}

/// Checks that the caller still waits, once every [`CANCEL_CHECK_INTERVAL`] entries.
///
/// # Errors
/// `Interrupted` if the caller has gone.
fn check_cancelled(page: &PageRequest<'_>, n: usize) -> io::Result<()> {
    if n % CANCEL_CHECK_INTERVAL == CANCEL_CHECK_INTERVAL - 1 && !(page.is_wanted)() {
        Err(ErrorKind::Interrupted.into())
    } else {
        Ok(())
    }
}

fn kind_from_file_type(file_type: FileType) -> DirEntryKind {
    match file_type {
        FileType::Directory => DirEntryKind::Directory,
        FileType::RegularFile => DirEntryKind::File,
        FileType::Symlink | FileType::Unknown => DirEntryKind::Unknown,
        FileType::Fifo | FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice => DirEntryKind::Other,
    }
}

/// [`LocalTree::classify_entry`] of the result of opening an entry. An entry that may not be opened is listed as a
/// file, so that one such entry does not hide all others.
fn classify_opened(opened: io::Result<File>) -> io::Result<Option<bool>> {
    match opened.and_then(|file| file.metadata()) {
        Ok(metadata) => Ok((metadata.is_dir() || metadata.is_file()).then(|| metadata.is_dir())),
        Err(error) if LinkError::from_io_error(&error).is_some() => Ok(None),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(Some(false)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => Ok(None),
            Some(_) | None => Err(error),
        },
    }
}

/// Entries that a scan omitted.
#[derive(Default)]
struct OmittedNames {
    names: Vec<String>,
    /// Number of omitted entries, including those beyond `names`.
    count: u64,
    /// Number of names that no key can have.
    unaddressable: u64,
}

impl OmittedNames {
    fn add(&mut self, name: &str) {
        self.count += 1;
        if self.names.len() < MAX_OMITTED_NAMES {
            self.names.push(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_omitted_only_if_its_target_is_missing() {
        let kind = |errno: Errno| classify_opened(Err(errno.into()));
        for errno in [Errno::NOENT, Errno::NOTDIR, Errno::LOOP] {
            assert_eq!(kind(errno).unwrap(), None);
        }
        assert_eq!(classify_opened(Err(super::super::errors::not_followed_error(&Key::root()))).unwrap(), None);
        for fault in [Errno::IO, Errno::STALE, Errno::MFILE, Errno::NFILE, Errno::TIMEDOUT] {
            assert!(kind(fault).is_err(), "{fault}");
        }
        assert_eq!(kind(Errno::ACCESS).unwrap(), Some(false), "other entries are still listed");
    }

    /// Creates a tree with `count` links to a directory. They dangle until the directory is created.
    fn directory_of_links(count: usize) -> (tempfile::TempDir, LocalTree) {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("big")).unwrap();
        for n in 0..count {
            std::os::unix::fs::symlink("../target", root.path().join(format!("big/{n:05}"))).unwrap();
        }
        let tree = LocalTree::for_tests(root.path());
        (root, tree)
    }

    #[test]
    fn only_links_that_the_page_needs_are_resolved() {
        let (root, tree) = directory_of_links(600);
        let list = |limit, is_wanted: &dyn Fn() -> bool| {
            let page = PageRequest { after: None, limit, filter: &FilterDecision::keep_all(), is_wanted };
            tree.list(&Key::parse("big").unwrap(), &page)
        };
        // All links dangle: each is reported once.
        let empty = list(10, &|| true).unwrap().unwrap();
        assert_eq!((empty.entries.len(), empty.has_more, empty.omitted_count), (0, false, 600));
        assert_eq!(list(10, &|| false).unwrap_err().kind(), ErrorKind::Interrupted, "the caller has gone");
        std::fs::create_dir(root.path().join("target")).unwrap();
        let break_link = |name: &str| {
            std::fs::remove_file(root.path().join("big").join(name)).unwrap();
            std::os::unix::fs::symlink("../nothing", root.path().join("big").join(name)).unwrap();
        };
        for name in ["00003", "00007", "00500"] {
            break_link(name);
        }
        let names = |listing: &Listing| listing.entries.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>();
        let first_page = list(4, &|| true).unwrap().unwrap();
        assert_eq!(names(&first_page), ["00000", "00001", "00002", "00004"]);
        // Entries beyond the page were not resolved.
        assert_eq!((first_page.has_more, first_page.omitted_names), (true, vec!["00003".to_owned()]));
        let full_listing = list(600, &|| true).unwrap().unwrap();
        assert_eq!((full_listing.entries.len(), full_listing.has_more, full_listing.omitted_count), (597, false, 3));
        assert!(full_listing.entries.iter().all(|entry| entry.is_directory));
    }
}
