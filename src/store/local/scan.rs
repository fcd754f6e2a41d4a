//! A directory's entries, page by page, in one scan each.

use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, FileType, Mode, OFlags, openat};
use rustix::io::Errno;

use super::LocalStore;
use super::links::Hidden;
use crate::store::{Entry, Filter, Keep, Key, Listing, MAX_LEFT_OUT};

/// Entries between two calls of `is_wanted`, which also report progress. The number is small, as a thread that resolves links may
/// have a core for only a millisecond at a time.
const STEP: usize = 16;

/// Which entries of a directory are listed.
pub(super) struct Page<'a> {
    /// Those after this name.
    pub(super) after: Option<&'a str>,
    /// So many at most.
    pub(super) limit: usize,
    /// And of these those that it wants.
    pub(super) keep: &'a Filter,
    /// Whether anybody still waits for them.
    pub(super) is_wanted: &'a dyn Fn() -> bool,
}

/// An entry that may be listed, as far as its directory tells; the first ones by their names are looked at.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    name: String,
    kind: Kind,
}

/// What a directory tells of an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Directory,
    File,
    /// A link, or something that has to be looked at.
    Unknown,
    /// Neither file nor directory.
    Other,
}

/// What [`LocalStore::scan`] finds.
struct Found {
    /// In the order of their names.
    candidates: Vec<Candidate>,
    /// Whether there are more of them.
    more: bool,
}

impl LocalStore {
    pub(super) fn list_now(&self, key: &Key, page: &Page<'_>) -> io::Result<Option<Listing>> {
        let root = self.root.open()?;
        let directory = match self.open_below(&root, key, OFlags::DIRECTORY) {
            Ok(directory) => directory,
            Err(error) => return self.absent(&root, error, key),
        };
        let mut left_out = LeftOut::default();
        let found = Self::scan(&directory, page, &mut left_out)?;
        if left_out.unnamed > 0 {
            let left_out = left_out.unnamed;
            tracing::warn!(directory = %key, left_out, "names that are not UTF-8 or cannot be addressed are not listed");
        }
        let mut entries = Vec::new();
        // Links are looked at one by one, until the page is full.
        for (n, candidate) in found.candidates.iter().enumerate() {
            if entries.len() > page.limit {
                break;
            }
            may_go_on(page, n)?;
            entries.extend(self.look(&root, key, candidate, page, &mut left_out)?);
        }
        if let Some(last) = found.candidates.last().filter(|_| found.more && entries.len() <= page.limit) {
            // Many were none. What follows them is looked at while the directory is read once more, so that no number of such
            // entries has it read more often.
            let rest = Page { after: Some(&last.name), limit: page.limit - entries.len(), ..*page };
            entries.extend(self.scan_and_look(&root, &directory, key, &rest, &mut left_out)?);
        }
        let more = entries.len() > page.limit;
        entries.truncate(page.limit);
        Ok(Some(Listing { entries, more, left_out: left_out.names, left_out_count: left_out.count }))
    }

    /// The first entries of a directory, by their names, that may be listed: one more than a page has. None is looked at.
    fn scan(directory: &File, page: &Page<'_>, left_out: &mut LeftOut) -> io::Result<Found> {
        // The smallest `limit + 1` names are kept, so that memory stays bounded in any directory.
        let mut smallest: BinaryHeap<Candidate> = BinaryHeap::new();
        let mut more = false;
        for (n, entry) in read(directory)?.enumerate() {
            may_go_on(page, n)?;
            let entry = entry?;
            let name = match entry.file_name().to_str() {
                Ok("." | "..") => continue,
                Ok(name) if Key::is_segment(name) => name,
                _ => {
                    left_out.unnamed += 1;
                    left_out.add(&entry.file_name().to_string_lossy());
                    continue;
                }
            };
            if page.after.is_some_and(|after| name <= after) {
                continue;
            }
            let full = smallest.len() > page.limit;
            if full && smallest.peek().is_some_and(|largest| largest.name.as_str() <= name) {
                more = true;
                continue;
            }
            let kind = kind_told(entry.file_type());
            let mut entry = Entry { name: name.to_owned(), is_directory: kind != Kind::File };
            let mut may_be_listed = (page.keep)(&entry) != Keep::No;
            if !may_be_listed && matches!(kind, Kind::Unknown | Kind::Other) {
                entry.is_directory = false;
                may_be_listed = (page.keep)(&entry) != Keep::No;
            }
            if !may_be_listed {
                continue;
            }
            smallest.push(Candidate { name: entry.name, kind });
            if full {
                smallest.pop();
                more = true;
            }
        }
        Ok(Found { candidates: smallest.into_sorted_vec(), more })
    }

    /// The first entries that are listed, one more than a page has. Each is looked at that may be among them when it is read.
    fn scan_and_look(
        &self,
        root: &OwnedFd,
        directory: &File,
        key: &Key,
        page: &Page<'_>,
        left_out: &mut LeftOut,
    ) -> io::Result<Vec<Entry>> {
        let mut smallest: BinaryHeap<Entry> = BinaryHeap::new();
        for (n, entry) in read(directory)?.enumerate() {
            may_go_on(page, n)?;
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let is_after = page.after.is_none_or(|after| name > after);
            if name == "." || name == ".." || !is_after || !Key::is_segment(name) {
                continue;
            }
            let full = smallest.len() > page.limit;
            if full && smallest.peek().is_some_and(|largest| largest.name.as_str() <= name) {
                continue;
            }
            let candidate = Candidate { name: name.to_owned(), kind: kind_told(entry.file_type()) };
            let Some(entry) = self.look(root, key, &candidate, page, left_out)? else { continue };
            smallest.push(entry);
            if full {
                smallest.pop();
            }
        }
        Ok(smallest.into_sorted_vec())
    }

    /// The entry that a candidate is, if it is listed.
    fn look(
        &self,
        root: &OwnedFd,
        key: &Key,
        candidate: &Candidate,
        page: &Page<'_>,
        left_out: &mut LeftOut,
    ) -> io::Result<Option<Entry>> {
        let name = &candidate.name;
        let Some(is_directory) = self.entry_kind(root, key, name, candidate.kind)? else {
            left_out.add(name);
            return Ok(None);
        };
        let entry = Entry { name: name.clone(), is_directory };
        let is_kept = match (page.keep)(&entry) {
            Keep::Yes => true,
            Keep::No => false,
            Keep::IfItHolds(object) => match key.child(name).and_then(|below| below.child(object)) {
                Ok(object) => self.holds(root, &object)?,
                Err(_too_deep) => false,
            },
        };
        Ok(is_kept.then_some(entry))
    }

    /// Whether an entry is a directory; `None` for what is neither that nor a file, and for links that
    /// are not followed or lead nowhere.
    ///
    /// # Errors
    /// When that cannot be told: an entry that is left out must be none.
    fn entry_kind(&self, root: &OwnedFd, key: &Key, name: &str, kind: Kind) -> io::Result<Option<bool>> {
        match kind {
            Kind::Directory => Ok(Some(true)),
            Kind::File => Ok(Some(false)),
            Kind::Unknown => match key.child(name) {
                Ok(entry) => kind_of(self.open_below(root, &entry, OFlags::empty())),
                Err(_too_deep) => Ok(None),
            },
            Kind::Other => Ok(None),
        }
    }
}

/// The entries of a directory, from the first one on.
fn read(directory: &File) -> io::Result<Dir> {
    let readable = openat(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(Dir::new(readable)?)
}

/// # Errors
/// `Interrupted` when nobody waits any more; looked at now and then only.
fn may_go_on(page: &Page<'_>, n: usize) -> io::Result<()> {
    if n % STEP == STEP - 1 && !(page.is_wanted)() { Err(ErrorKind::Interrupted.into()) } else { Ok(()) }
}

fn kind_told(told: FileType) -> Kind {
    match told {
        FileType::Directory => Kind::Directory,
        FileType::RegularFile => Kind::File,
        FileType::Symlink | FileType::Unknown => Kind::Unknown,
        FileType::Fifo | FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice => Kind::Other,
    }
}

/// [`LocalStore::entry_kind`] of what was to be opened. What may not be looked at is listed, as if it were a file: one
/// such entry does not hide all others.
fn kind_of(opened: io::Result<File>) -> io::Result<Option<bool>> {
    match opened.and_then(|file| file.metadata()) {
        Ok(metadata) => Ok((metadata.is_dir() || metadata.is_file()).then(|| metadata.is_dir())),
        Err(error) if Hidden::of(&error).is_some() => Ok(None),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(Some(false)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG) => Ok(None),
            Some(_) | None => Err(error),
        },
    }
}

/// What a scan of a directory left out.
#[derive(Default)]
struct LeftOut {
    names: Vec<String>,
    /// How many they are, also beyond those.
    count: u64,
    /// How many names no key can have.
    unnamed: u64,
}

impl LeftOut {
    fn add(&mut self, name: &str) {
        self.count += 1;
        if self.names.len() < MAX_LEFT_OUT {
            self.names.push(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_left_out_only_if_it_leads_nowhere() {
        let kind = |errno: Errno| kind_of(Err(errno.into()));
        for nothing in [Errno::NOENT, Errno::NOTDIR, Errno::LOOP] {
            assert_eq!(kind(nothing).unwrap(), None);
        }
        assert_eq!(kind_of(Err(super::super::links::refused(&Key::root()))).unwrap(), None);
        for fault in [Errno::IO, Errno::STALE, Errno::MFILE, Errno::NFILE, Errno::TIMEDOUT] {
            assert!(kind(fault).is_err(), "{fault}");
        }
        assert_eq!(kind(Errno::ACCESS).unwrap(), Some(false), "others are seen");
    }

    /// A tree with `count` links to a directory, or to nothing where that is not there.
    fn linked(count: usize) -> (tempfile::TempDir, LocalStore) {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("big")).unwrap();
        for n in 0..count {
            std::os::unix::fs::symlink("../target", root.path().join(format!("big/{n:05}"))).unwrap();
        }
        let symlinks = super::super::SymlinkPolicy::Inside;
        let store = LocalStore::open(root.path(), symlinks, std::time::Duration::from_secs(60)).unwrap();
        (root, store)
    }

    #[test]
    fn links_are_looked_at_as_far_as_the_page_needs_them() {
        let (root, store) = linked(600);
        let list = |limit, is_wanted: &dyn Fn() -> bool| {
            let page = Page { after: None, limit, keep: &Keep::all(), is_wanted };
            store.list_now(&Key::parse("big").unwrap(), &page)
        };
        // None of them leads anywhere: all are told, each once.
        let none = list(10, &|| true).unwrap().unwrap();
        assert_eq!((none.entries.len(), none.more, none.left_out_count), (0, false, 600));
        assert_eq!(list(10, &|| false).unwrap_err().kind(), ErrorKind::Interrupted, "nobody waits");
        std::fs::create_dir(root.path().join("target")).unwrap();
        let lost = |name: &str| {
            std::fs::remove_file(root.path().join("big").join(name)).unwrap();
            std::os::unix::fs::symlink("../nothing", root.path().join("big").join(name)).unwrap();
        };
        for name in ["00003", "00007", "00500"] {
            lost(name);
        }
        let names = |listing: &Listing| listing.entries.iter().map(|entry| entry.name.clone()).collect::<Vec<_>>();
        let some = list(4, &|| true).unwrap().unwrap();
        assert_eq!(names(&some), ["00000", "00001", "00002", "00004"]);
        // Those behind the page were not looked at.
        assert_eq!((some.more, some.left_out), (true, vec!["00003".to_owned()]));
        let all = list(600, &|| true).unwrap().unwrap();
        assert_eq!((all.entries.len(), all.more, all.left_out_count), (597, false, 3));
        assert!(all.entries.iter().all(|entry| entry.is_directory));
    }
}
