//! A directory's entries, page by page, in one scan each.

use std::collections::BinaryHeap;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, Mode, OFlags, openat};
use rustix::io::Errno;

use super::LocalStore;
use super::links::Hidden;
use crate::store::{Entry, Filter, Keep, Key, Listing, MAX_LEFT_OUT};

impl LocalStore {
    pub(super) fn list_now(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        keep: &Filter,
    ) -> io::Result<Option<Listing>> {
        let root = self.root.open()?;
        let directory = match self.open_below(&root, key, OFlags::DIRECTORY) {
            Ok(directory) => directory,
            Err(error) => return self.absent(&root, error, key),
        };
        let mut left_out = LeftOut::default();
        // The smallest `limit + 1` names are kept, so that memory stays bounded in any directory.
        let mut smallest: BinaryHeap<Entry> = BinaryHeap::new();
        let readable = openat(&directory, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        for entry in Dir::new(readable)? {
            let entry = entry?;
            let name = match entry.file_name().to_str() {
                Ok("." | "..") => continue,
                Ok(name) if Key::is_segment(name) => name,
                _ => {
                    left_out.unnamed += 1;
                    left_out.add(entry.file_name());
                    continue;
                }
            };
            if after.is_some_and(|after| name <= after) {
                continue;
            }
            let full = smallest.len() > limit;
            if full && smallest.peek().is_some_and(|largest| largest.name.as_str() <= name) {
                continue;
            }
            let Some(is_directory) = self.entry_kind(&root, key, name, entry.file_type())? else {
                left_out.add(entry.file_name());
                continue;
            };
            let entry = Entry { name: name.to_owned(), is_directory };
            let kept = match keep(&entry) {
                Keep::Yes => true,
                Keep::No => false,
                Keep::IfItHolds(object) => match key.child(name).and_then(|below| below.child(object)) {
                    Ok(object) => self.holds(&root, &object)?,
                    Err(_too_deep) => false,
                },
            };
            if !kept {
                continue;
            }
            smallest.push(entry);
            if full {
                smallest.pop();
            }
        }
        if left_out.unnamed > 0 {
            let left_out = left_out.unnamed;
            tracing::warn!(directory = %key, left_out, "names that are not UTF-8 or cannot be addressed are not listed");
        }
        let mut entries = smallest.into_sorted_vec();
        let more = entries.len() > limit;
        entries.truncate(limit);
        Ok(Some(Listing { entries, more, left_out: left_out.names, left_out_count: left_out.count }))
    }

    /// Whether an entry is a directory; `None` for what is neither that nor a file, and for links that
    /// are not followed or lead nowhere.
    ///
    /// # Errors
    /// When that cannot be told: an entry that is left out must be none.
    fn entry_kind(
        &self,
        root: &OwnedFd,
        key: &Key,
        name: &str,
        kind: rustix::fs::FileType,
    ) -> io::Result<Option<bool>> {
        match kind {
            rustix::fs::FileType::Directory => Ok(Some(true)),
            rustix::fs::FileType::RegularFile => Ok(Some(false)),
            rustix::fs::FileType::Symlink | rustix::fs::FileType::Unknown => match key.child(name) {
                Ok(entry) => kind_of(self.open_below(root, &entry, OFlags::empty())),
                Err(_too_deep) => Ok(None),
            },
            rustix::fs::FileType::Fifo
            | rustix::fs::FileType::Socket
            | rustix::fs::FileType::CharacterDevice
            | rustix::fs::FileType::BlockDevice => Ok(None),
        }
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
    fn add(&mut self, name: &CStr) {
        self.count += 1;
        if self.names.len() < MAX_LEFT_OUT {
            self.names.push(name.to_string_lossy().into_owned());
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
}
