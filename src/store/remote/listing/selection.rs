//! The entries of a listing: the smallest names that follow a name and pass a filter, however many are offered.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;

use super::transport::{ListingError, ListingTransport};
use crate::store::key::Key;
use crate::store::listing::{DirEntry, EntryFilter, FilterDecision, Listing, MAX_OMITTED_NAMES};

/// Maximum number of directories that wait for a check of what they contain. If more are offered, the same entries must
/// be offered again.
const MAX_UNCHECKED: usize = 4096;

/// Number of requests that are sent at once to check what directories contain.
const CONCURRENT_CHECKS: usize = 32;

/// Maximum number of characters of a name that is reported as omitted.
const MAX_OMITTED_CHARS: usize = 256;

/// The part of a directory that is listed.
#[derive(Clone, Copy)]
pub(super) struct ListingRequest<'a> {
    /// The directory.
    pub(super) directory: &'a Key,
    /// Name after which the listing begins.
    pub(super) after: Option<&'a str>,
    /// Maximum number of entries.
    pub(super) limit: usize,
    /// Filter for the entries.
    pub(super) filter: &'a EntryFilter,
}

/// Collects the entries of a listing. Entries may be offered in any order and repeatedly.
pub(super) struct EntrySelection<'a> {
    request: ListingRequest<'a>,
    /// The smallest names, with true for directories: at most one more than the limit, to know that there are more.
    smallest: BTreeMap<String, bool>,
    /// Directories that are listed if they contain the object that the filter named.
    unchecked: BTreeMap<String, &'static str>,
    /// While entries are offered again: the directories up to this name have been checked.
    checked_until: Option<String>,
    /// True if a directory was dropped because too many wait for their check.
    has_dropped: bool,
    omitted_names: Vec<String>,
    omitted_count: u64,
}

impl<'a> EntrySelection<'a> {
    pub(super) fn new(request: ListingRequest<'a>) -> Self {
        Self {
            request,
            smallest: BTreeMap::new(),
            unchecked: BTreeMap::new(),
            checked_until: None,
            has_dropped: false,
            omitted_names: Vec::new(),
            omitted_count: 0,
        }
    }

    pub(super) fn request(&self) -> ListingRequest<'a> {
        self.request
    }

    /// Offers an entry. If an object and a directory have the same name, the directory is listed.
    pub(super) fn offer(&mut self, name: &str, is_directory: bool) {
        if self.request.directory.child(name).is_err() {
            self.omit(name);
            return;
        }
        if self.request.after.is_some_and(|after| name <= after) || self.is_beyond(name) {
            return;
        }
        let entry = DirEntry { name: name.to_owned(), is_directory };
        match (self.request.filter)(&entry) {
            FilterDecision::Keep => self.keep(entry),
            FilterDecision::KeepIfContains(object) if is_directory => self.add_unchecked(entry.name, object),
            FilterDecision::Skip | FilterDecision::KeepIfContains(_) => {}
        }
    }

    /// Reports an entry that no key can name.
    pub(super) fn omit(&mut self, name: &str) {
        if self.checked_until.is_some() {
            return;
        }
        self.omitted_count += 1;
        if self.omitted_names.len() < MAX_OMITTED_NAMES {
            // An empty name is that between two slashes.
            let name = if name.is_empty() { "/" } else { name };
            self.omitted_names.push(name.chars().take(MAX_OMITTED_CHARS).collect());
        }
    }

    fn keep(&mut self, entry: DirEntry) {
        *self.smallest.entry(entry.name).or_default() |= entry.is_directory;
        if self.smallest.len() > self.request.limit.saturating_add(1) {
            self.smallest.pop_last();
        }
    }

    fn add_unchecked(&mut self, name: String, object: &'static str) {
        if self.checked_until.as_ref().is_some_and(|until| name <= *until) {
            return;
        }
        self.unchecked.insert(name, object);
        if self.unchecked.len() > MAX_UNCHECKED {
            self.unchecked.pop_last();
            self.has_dropped = true;
        }
    }

    /// Returns the largest name that was kept if no entry with a larger name is needed.
    pub(super) fn largest_if_full(&self) -> Option<&str> {
        let is_full = self.smallest.len() > self.request.limit;
        self.smallest.last_key_value().filter(|_| is_full).map(|(name, _)| name.as_str())
    }

    fn is_beyond(&self, name: &str) -> bool {
        self.largest_if_full().is_some_and(|largest| name > largest)
    }

    /// Checks what the offered directories contain. Returns true if the same entries must be offered again, because too
    /// many directories were waiting.
    ///
    /// # Errors
    /// Returns an error if a check fails.
    pub(super) async fn check_directories(&mut self, transport: &dyn ListingTransport) -> Result<bool, ListingError> {
        let mut last_checked = None;
        while let Some((first, _)) = self.unchecked.first_key_value() {
            if self.is_beyond(first) {
                // The dropped directories are beyond, too, because they are larger.
                self.unchecked.clear();
                self.has_dropped = false;
                break;
            }
            let mut batch = Vec::with_capacity(CONCURRENT_CHECKS);
            while batch.len() < CONCURRENT_CHECKS {
                let Some(next) = self.unchecked.pop_first() else { break };
                batch.push(next);
            }
            let directory = self.request.directory;
            let checks = batch.into_iter().map(|(name, object)| async move {
                // A key that becomes too deep names no object.
                let exists = match directory.child(&name).and_then(|directory| directory.child(object)) {
                    Ok(key) => transport.has_object(&key).await?,
                    Err(_too_deep) => false,
                };
                Ok::<_, ListingError>((name, exists))
            });
            for (name, exists) in try_join_all(checks).await? {
                if exists {
                    self.keep(DirEntry { name: name.clone(), is_directory: true });
                }
                last_checked = Some(name);
            }
        }
        let must_repeat = std::mem::take(&mut self.has_dropped);
        self.checked_until = last_checked.filter(|_| must_repeat);
        Ok(must_repeat)
    }

    /// Returns the directories that are not known yet, but sort before the last kept name although a store that sorts
    /// by key lists them after it: `a` with the key `a/` follows `a-b`, because a hyphen sorts before a slash.
    pub(super) fn earlier_directories(&self) -> Vec<String> {
        let Some(largest) = self.largest_if_full() else { return Vec::new() };
        let before_slash = largest.bytes().enumerate().filter(|(_, byte)| *byte < b'/').map(|(at, _)| at);
        let prefixes = before_slash.filter_map(|at| largest.get(..at)).filter(|name| Key::is_segment(name));
        let is_unknown = |name: &&str| {
            self.request.after.is_none_or(|after| *name > after) && self.smallest.get(*name) != Some(&true)
        };
        let is_wanted = |name: &&str| {
            (self.request.filter)(&DirEntry { name: (*name).to_owned(), is_directory: true }) != FilterDecision::Skip
        };
        prefixes.filter(is_unknown).filter(is_wanted).map(str::to_owned).collect()
    }

    /// Returns the listing of the offered entries.
    pub(super) fn finish(mut self) -> Listing {
        let has_more = self.smallest.len() > self.request.limit;
        if has_more {
            self.smallest.pop_last();
        }
        let entries = self.smallest.into_iter().map(|(name, is_directory)| DirEntry { name, is_directory }).collect();
        Listing {
            entries,
            has_more,
            omitted_names: self.omitted_names,
            omitted_count: self.omitted_count,
            identity: None,
        }
    }
}
