//! Where bytes live: keys in, objects out. Knows nothing of N5 or of attributes.

mod at_once;
mod file_meta;
mod glance;
mod hops;
mod key;
mod listings;
mod local;
mod memory;
mod reopen;
mod root;
mod sendable;
mod unopened;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;

pub use file_meta::EntityTag;
pub use hops::most_threads;
pub use key::{Key, KeyError};
pub use local::{LocalStore, SymlinkPolicy};
pub use memory::MemoryStore;
pub use sendable::Sendable;
pub use unopened::Unopened;

/// Read access to a tree of objects.
///
/// A missing object is `None`, not an error; a directory is not an object. Every call ends within the
/// store's own deadline.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// Short name of the kind of store, a metric label.
    fn backend(&self) -> &'static str;

    /// Facts about an object without its bytes.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot say whether the object exists: also behind a link that is not followed, or
    /// that leads nowhere.
    async fn head(&self, key: &Key) -> Result<Option<Meta>, StoreError>;

    /// [`Self::head`] of many objects, in their order; cheaper than one by one where a call costs a hop.
    ///
    /// # Errors
    /// As [`Self::head`], for the first object that fails.
    async fn head_many(&self, keys: Vec<Key>) -> Result<Vec<Option<Meta>>, StoreError> {
        let mut metas = Vec::with_capacity(keys.len());
        for key in &keys {
            metas.push(self.head(key).await?);
        }
        Ok(metas)
    }

    /// What the store can say of `key` at once, without waiting for a disk or a network: never blocks, so that it may
    /// be asked where nothing may wait.
    fn glance(&self, _key: &Key) -> Glance {
        Glance::Unknown
    }

    /// Whether the object at `key`, which [`Self::glance`] saw with that version a moment ago, still has it; `false` also
    /// where that would have to wait.
    fn is_unchanged(&self, _key: &Key, _version: u64) -> bool {
        false
    }

    /// An object: its bytes where `inline` allows as many when it is opened, else a handle to read them from.
    ///
    /// # Errors
    /// [`StoreError`] when the object cannot be read.
    async fn get(&self, key: &Key, inline: &Inline) -> Result<Option<Object>, StoreError>;

    /// What reads objects without waiting for anything, for the next few milliseconds: what is the same for all of them is
    /// done once. `None` where it would or might wait: then [`Self::get`] tells. A store that cannot know always waits.
    fn at_once(&self) -> Option<Box<dyn ReadAtOnce>> {
        None
    }

    /// An object of at most `most_bytes` to be sent by the kernel itself, from memory that it has already; `None` where
    /// that is not possible, or there is no object.
    fn open_at_once(&self, key: &Key, most_bytes: u64) -> Option<Sendable> {
        let _ = (key, most_bytes);
        None
    }

    /// Whether `key` is a directory; one behind a link that is not followed is none.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot say.
    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError>;

    /// The entries of a directory that `keep` wants and that follow the name `after`, at most `limit` of
    /// them, sorted by the bytes of their names; `None` where [`Self::is_directory`] is false.
    ///
    /// What no key can name, or what a key could not open, is left out, and [`Listing::left_out`] tells.
    ///
    /// # Errors
    /// [`StoreError`] when the directory cannot be read.
    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        keep: Filter,
    ) -> Result<Option<Listing>, StoreError>;

    /// Returns true if [`Self::list`] costs no more than a few reads of blocks. Then directories are listed to count the blocks
    /// of large slices; otherwise all blocks count as existing.
    fn lists_cheaply(&self) -> bool {
        false
    }

    /// Something that is the same for two keys that lead to the same directory, as symbolic links make them; `None`
    /// where there is no such directory, or where a directory has one key only.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot say.
    async fn identity(&self, _key: &Key) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    /// Calls that wait now.
    fn load(&self) -> Load {
        Load::default()
    }

    /// Whether the store can be read at all, for readiness.
    ///
    /// # Errors
    /// [`StoreError`] says why not.
    async fn probe(&self) -> Result<(), StoreError>;
}

/// Facts about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Length in bytes.
    pub len: u64,
    /// Last modification, where the store knows it.
    pub modified: Option<SystemTime>,
    /// Strong, quoted entity tag, equal for equal copies of the object on other machines where the
    /// store can tell.
    pub etag: Arc<str>,
    /// Changes whenever the object is replaced or written, as far as the store can tell.
    pub version: u64,
}

/// What [`Store::glance`] sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Glance {
    /// It would have to wait: ask [`Store::head`].
    Unknown,
    /// There is nothing of that name, no directory either.
    Missing,
    /// There is something, but no object.
    NoObject,
    /// An object.
    Object(Facts),
}

/// What [`Meta`] is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Length in bytes.
    pub len: u64,
    /// Last modification, in nanoseconds since 1970.
    pub modified: i128,
    /// Change time and inode, where the entity tag has them.
    pub changed: Option<(i128, u64)>,
    /// As [`Meta::version`].
    pub version: u64,
}

/// How many bytes of an object [`Store::get`] reads at once. Whoever called it may forbid that while the call waits: then
/// there is no memory for them any more. Clones are the same.
#[derive(Debug, Clone)]
pub struct Inline(Arc<AtomicU64>);

impl Inline {
    /// At most so many bytes.
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(AtomicU64::new(bytes)))
    }

    /// How many bytes may be read now.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// From now on nothing is read.
    pub fn forbid(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// An object found by [`Store::get`].
#[derive(Debug)]
pub struct Object {
    /// Facts.
    pub meta: Meta,
    /// Bytes, or the way to them.
    pub data: Data,
}

/// The bytes of an object.
#[derive(Debug)]
pub enum Data {
    /// All of them.
    Whole(Bytes),
    /// An open object to read them from.
    Open(Arc<dyn ReadAt>),
}

/// An open object: the same bytes at every call, also when its key is replaced meanwhile.
#[async_trait]
pub trait ReadAt: fmt::Debug + Send + Sync {
    /// The bytes of `range`, which lies within the object.
    ///
    /// # Errors
    /// [`StoreError::Short`] when the object has become shorter, and as [`Store::get`].
    async fn read_at(&self, range: Range<u64>) -> Result<Bytes, StoreError>;
}

/// Objects that can be read without waiting.
pub trait ReadAtOnce: fmt::Debug + Send {
    /// An object of at most `most_bytes`, its bytes in place of what `room` held; `Some(None)` where there is none. `None`
    /// where reading it would or might wait, or fails.
    fn get(&mut self, key: &Key, most_bytes: u64, room: &mut Vec<u8>) -> Option<Option<Meta>>;
}

/// A page of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Entries, sorted by the bytes of their names.
    pub entries: Vec<Entry>,
    /// Whether more entries follow.
    pub more: bool,
    /// Names that are left out, at most [`MAX_LEFT_OUT`] of them, as text: what no key can name, links that are not
    /// followed or lead nowhere, what is neither file nor directory. Those that no key can name are told on every page.
    pub left_out: Vec<String>,
    /// How many names are left out, those in [`Self::left_out`] among them; where `more` follow, some of them may be
    /// counted on the next page, too.
    pub left_out_count: u64,
}

/// Most names that [`Listing::left_out`] holds.
pub const MAX_LEFT_OUT: usize = 16;

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its name, a key segment.
    pub name: String,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// Which entries [`Store::list`] keeps. It is asked while the directory is scanned, so that what it drops
/// costs neither memory nor another scan.
pub type Filter = Arc<dyn Fn(&Entry) -> Keep + Send + Sync>;

/// What a [`Filter`] says of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// It is listed.
    Yes,
    /// It is not.
    No,
    /// It is listed when it is a directory with an object of this name directly below.
    IfItHolds(&'static str),
}

impl Keep {
    /// The filter that keeps everything.
    pub fn all() -> Filter {
        Arc::new(|_| Self::Yes)
    }
}

/// Calls of a store that wait for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Those that have begun.
    pub running: usize,
    /// Those that have not.
    pub queued: usize,
    /// Whether none has ended for so long that further ones fail at once, but for one now and then.
    pub is_stalled: bool,
    /// For how long none has ended, while some run that somebody may still wait for.
    pub silent: Duration,
    /// For how long that one of these has run which runs longest.
    pub longest: Duration,
}

impl Load {
    /// So long without an answer is silence.
    const SILENCE: Duration = Duration::from_secs(1);

    /// Returns true if the store has answered no request for so long that nothing should be held for it.
    pub fn is_silent(&self) -> bool {
        self.silent >= Self::SILENCE
    }
}

/// Why a store did not answer. All may pass by themselves, but for those that [`Self::hides`] tells.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The operating system or a server refused.
    #[error("{action} {key:?}: {cause}")]
    Io {
        /// What was tried ("read", "list").
        action: &'static str,
        /// On what.
        key: Key,
        /// The reason given.
        cause: Arc<std::io::Error>,
    },
    /// An object became shorter while it was read.
    #[error("{0:?} became shorter while it was read")]
    Short(Key),
    /// An object was written whenever it was read.
    #[error("{0:?} is being written")]
    Torn(Key),
    /// What holds all objects is not there; the text says what and why.
    #[error("{0}")]
    Gone(String),
    /// A symbolic link on the way there is not followed.
    #[error("a symbolic link on the way to {0:?} is not followed; the setting is `symlinks`")]
    NotFollowed(Key),
    /// A symbolic link, there or on the way, has a target that is not there: what it stands for cannot be seen.
    #[error("{0:?} is a link that leads nowhere, or behind one")]
    LeadsNowhere(Key),
    /// No answer within the store's deadline.
    #[error("{0} {1:?}: no answer in time")]
    Timeout(&'static str, Key),
    /// Nobody had an answer for so long that the store was not asked.
    #[error("{0} {1:?}: not tried, the storage has answered nobody for a while")]
    Stalled(&'static str, Key),
    /// Others have waited for the very same for so long that the store was not asked.
    #[error("{0} {1:?}: not tried, others have waited for the same in vain")]
    Overdue(&'static str, Key),
    /// So many wait for the store that it was not asked.
    #[error("{0} {1:?}: not tried, too many wait for the storage already")]
    Crowded(&'static str, Key),
    /// It kept a request waiting that held memory which requests of other containers needed.
    #[error("{0:?}: given up, the storage kept it waiting and others needed the memory that it held")]
    GaveWay(Key),
}

impl StoreError {
    /// What kind of failure it is, a metric label.
    pub fn kind(&self) -> &'static str {
        use rustix::io::Errno;
        match self {
            Self::Io { cause, .. } => match Errno::from_io_error(cause) {
                Some(Errno::ACCESS | Errno::PERM) => "permission",
                Some(Errno::STALE) => "stale",
                Some(Errno::MFILE | Errno::NFILE) => "descriptors",
                // What the symbolic links' policy refuses, the system does not know.
                None if cause.kind() == std::io::ErrorKind::PermissionDenied => "permission",
                Some(_) | None => "io",
            },
            Self::Short(_) | Self::Torn(_) => "torn",
            Self::Gone(_) => "gone",
            Self::NotFollowed(_) | Self::LeadsNowhere(_) => "link",
            Self::Timeout(..) => "timeout",
            Self::Stalled(..) | Self::Overdue(..) | Self::GaveWay(_) => "stalled",
            Self::Crowded(..) => "crowded",
        }
    }

    /// Whether the object is one that this process cannot see until somebody changes that: reading again is in vain, and
    /// that nothing is there is not known.
    pub fn hides(&self) -> bool {
        matches!(self, Self::NotFollowed(_) | Self::LeadsNowhere(_)) || self.kind() == "permission"
    }

    /// Every [`Self::kind`].
    pub const KINDS: &[&str] =
        &["io", "permission", "stale", "descriptors", "torn", "gone", "link", "timeout", "stalled", "crowded"];
}
