//! Lists the entries of a directory, page by page. Each page scans the directory once, or twice if many of its entries
//! turn out not to be listed.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, FileType, Mode, OFlags, openat};
use rustix::io::Errno;

use super::tree::{LocalTree, identity_of};
use crate::store::error::LocalError;
use crate::store::key::Key;
use crate::store::listing::{DirEntry, EntryFilter, FilterDecision, Listing, MAX_OMITTED_NAMES};

/// Number of entries between two calls of [`PageRequest::is_wanted`], which also reports progress. The number is small,
/// because a thread that resolves links may get a core for only a millisecond at a time.
const CANCEL_CHECK_INTERVAL: usize = 16;

/// The part of a directory that is listed.
pub(super) struct PageRequest<'a> {
    /// Name after which the page begins.
    pub(super) after: Option<&'a str>,
    /// Maximum number of entries.
    pub(super) limit: usize,
    /// Filter for the entries.
    pub(super) filter: &'a EntryFilter,
    /// Returns true while the caller is waiting.
    pub(super) is_wanted: &'a dyn Fn() -> bool,
}

impl LocalTree {
    pub(super) fn list(&self, key: &Key, page: &PageRequest<'_>) -> Result<Option<Listing>, LocalError> {
        let root = self.open_root()?;
        let Some(directory) = self.find_visible(&root, key, OFlags::DIRECTORY)? else { return Ok(None) };
        let mut listing = Listing { identity: Some(identity_of(&directory.metadata()?)), ..Listing::default() };
        let select = |name, kind| Ok(candidate(page, name, kind));
        let omit = |name: &CStr| omit(&mut listing, &name.to_string_lossy());
        let (candidates, has_more_candidates) = scan(&directory, page, omit, select)?;
        if listing.omitted_count > 0 {
            let left_out = listing.omitted_count;
            tracing::warn!(directory = %key, left_out, "names that are not UTF-8 or cannot be addressed are not listed");
        }
        let last = candidates.last_key_value().filter(|_| has_more_candidates).map(|(name, _)| name.clone());
        // Resolving a candidate costs system calls, so it ends when the page is full.
        for (n, (name, kind)) in candidates.into_iter().enumerate() {
            if listing.entries.len() > page.limit {
                break;
            }
            check_cancelled(page, n)?;
            let entry = self.resolve_candidate(&root, key, name, kind, page, &mut listing)?;
            listing.entries.extend(entry.map(|(name, is_directory)| DirEntry { name, is_directory }));
        }
        if let Some(last) = last.filter(|_| listing.entries.len() <= page.limit) {
            // Many candidates were not listed. The directory is scanned a second time, and entries after the last
            // candidate are resolved during the scan, so that no third scan is needed.
            let page = PageRequest { after: Some(&last), limit: page.limit - listing.entries.len(), ..*page };
            let select = |name, kind| self.resolve_candidate(&root, key, name, kind, &page, &mut listing);
            let (entries, _) = scan(&directory, &page, |_| (), select)?;
            listing.entries.extend(entries.into_iter().map(|(name, is_directory)| DirEntry { name, is_directory }));
        }
        listing.has_more = listing.entries.len() > page.limit;
        listing.entries.truncate(page.limit);
        Ok(Some(listing))
    }

    /// Returns the name of a candidate and true if it is a directory. Returns `None` if the candidate is not listed.
    fn resolve_candidate(
        &self,
        root: &OwnedFd,
        key: &Key,
        name: String,
        kind: FileType,
        page: &PageRequest<'_>,
        listing: &mut Listing,
    ) -> Result<Option<(String, bool)>, LocalError> {
        let Some(is_directory) = self.classify_entry(root, key, &name, kind)? else {
            omit(listing, &name);
            return Ok(None);
        };
        let entry = DirEntry { name, is_directory };
        let is_kept = match (page.filter)(&entry) {
            FilterDecision::Keep => true,
            FilterDecision::Skip => false,
            FilterDecision::KeepIfContains(object) => {
                match key.child(&entry.name).and_then(|entry_key| entry_key.child(object)) {
                    Ok(object) => self.has_object(root, &object)?,
                    Err(_too_deep) => false,
                }
            }
        };
        Ok(is_kept.then_some((entry.name, is_directory)))
    }

    /// Returns true if an entry is a directory and false if it is a file. Returns `None` for anything else, and for
    /// links that are dangling or not followed.
    ///
    /// # Errors
    /// Returns an error if the kind cannot be determined: an entry is omitted only if it is known to be neither a file
    /// nor a directory.
    fn classify_entry(
        &self,
        root: &OwnedFd,
        key: &Key,
        name: &str,
        kind: FileType,
    ) -> Result<Option<bool>, LocalError> {
        match kind {
            FileType::Directory => Ok(Some(true)),
            FileType::RegularFile => Ok(Some(false)),
            FileType::Symlink | FileType::Unknown => match key.child(name) {
                Ok(entry) => classify_opened(self.open_path(root, &entry, OFlags::empty())),
                Err(_too_deep) => Ok(None),
            },
            FileType::Fifo | FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice => Ok(None),
        }
    }
}

/// Scans a directory. Returns the first entries after `page.after`, in the order of their names, for which `select`
/// returns a value: at most one more than the page holds. The second value is true if there are more such entries.
/// Calls `omit` with each name that is not valid in a key.
fn scan<T>(
    directory: &File,
    page: &PageRequest<'_>,
    mut omit: impl FnMut(&CStr),
    mut select: impl FnMut(String, FileType) -> Result<Option<(String, T)>, LocalError>,
) -> Result<(BTreeMap<String, T>, bool), LocalError> {
    let readable = openat(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    // Only the smallest `limit + 1` names are kept, so memory stays bounded for any directory.
    let mut smallest = BTreeMap::new();
    let mut has_more = false;
    for (n, entry) in Dir::new(readable)?.enumerate() {
        check_cancelled(page, n)?;
        let entry = entry?;
        let name = match entry.file_name().to_str() {
            Ok("." | "..") => continue,
            Ok(name) if Key::is_segment(name) => name,
            _ => {
                omit(entry.file_name());
                continue;
            }
        };
        if page.after.is_some_and(|after| name <= after) {
            continue;
        }
        let is_full = smallest.len() > page.limit;
        if is_full && smallest.last_key_value().is_some_and(|(largest, _): (&String, _)| largest.as_str() <= name) {
            has_more = true;
            continue;
        }
        let Some((name, selected)) = select(name.to_owned(), entry.file_type())? else { continue };
        // A file system may report a name twice while the directory changes. The second report adds no entry, so none
        // is removed.
        if smallest.insert(name, selected).is_none() && is_full {
            smallest.pop_last();
            has_more = true;
        }
    }
    Ok((smallest, has_more))
}

/// Returns an entry unless the filter rejects it. An entry that may be a file or a directory, such as a link, is
/// rejected only if the filter rejects both.
fn candidate(page: &PageRequest<'_>, name: String, kind: FileType) -> Option<(String, FileType)> {
    let is_known = matches!(kind, FileType::Directory | FileType::RegularFile);
    let mut entry = DirEntry { name, is_directory: kind != FileType::RegularFile };
    let mut may_be_listed = (page.filter)(&entry) != FilterDecision::Skip;
    if !may_be_listed && !is_known {
        entry.is_directory = false;
        may_be_listed = (page.filter)(&entry) != FilterDecision::Skip;
    }
    may_be_listed.then_some((entry.name, kind))
}

/// Checks that the caller is still waiting. To be called for the `n`th entry; only one call in
/// [`CANCEL_CHECK_INTERVAL`] checks.
///
/// # Errors
/// Returns `Interrupted` if the caller has gone.
fn check_cancelled(page: &PageRequest<'_>, n: usize) -> Result<(), LocalError> {
    if n % CANCEL_CHECK_INTERVAL == CANCEL_CHECK_INTERVAL - 1 && !(page.is_wanted)() {
        return Err(LocalError::Io(ErrorKind::Interrupted.into()));
    }
    Ok(())
}

/// Classifies an opened entry, as [`LocalTree::classify_entry`] does. If the permission to open the entry is missing,
/// returns false (a file), because an error would fail the listing of all other entries.
fn classify_opened(opened: Result<File, LocalError>) -> Result<Option<bool>, LocalError> {
    match opened.and_then(|file| Ok(file.metadata()?)) {
        Ok(metadata) => Ok((metadata.is_dir() || metadata.is_file()).then(|| metadata.is_dir())),
        Err(error) if error.is_hidden_by_link() => Ok(None),
        Err(error) if error.is_permission_denied() => Ok(Some(false)),
        Err(error) => match error.errno() {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => Ok(None),
            Some(_) | None => Err(error),
        },
    }
}

/// Reports an entry that is not listed.
fn omit(listing: &mut Listing, name: &str) {
    listing.omitted_count += 1;
    if listing.omitted_names.len() < MAX_OMITTED_NAMES {
        listing.omitted_names.push(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SymlinkPolicy;

    #[test]
    fn an_entry_is_omitted_only_if_its_target_is_missing() {
        let kind = |errno: Errno| classify_opened(Err(errno.into()));
        for errno in [Errno::NOENT, Errno::NOTDIR, Errno::LOOP] {
            assert_eq!(kind(errno).unwrap(), None);
        }
        assert_eq!(classify_opened(Err(LocalError::LinkNotFollowed(Key::root()))).unwrap(), None);
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
        let tree = LocalTree::new(root.path(), SymlinkPolicy::Inside);
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
        let error = std::io::Error::from(list(10, &|| false).unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Interrupted, "the caller has gone");
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
