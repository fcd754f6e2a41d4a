//! Errors of stores.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::key::Key;

/// Reason why a call of a store failed. Errors are transient unless [`Self::hides_object`] returns true.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The operating system or a server returned an error.
    #[error("{action} {key:?}: {cause}")]
    Io {
        /// The attempted action, such as "read" or "list".
        action: &'static str,
        /// Key of the object or directory.
        key: Key,
        /// Cause of the failure.
        cause: Arc<io::Error>,
    },
    /// The object became shorter while it was read.
    #[error("{0:?} became shorter while it was read")]
    Truncated(Key),
    /// The object was written during every attempt to read it.
    #[error("{0:?} is being written")]
    Torn(Key),
    /// The root of the store is missing. The text says which one and why.
    #[error("{0}")]
    RootMissing(String),
    /// A symbolic link on the path is not followed.
    #[error("a symbolic link on the way to {0:?} is not followed; the setting is `symlinks`")]
    LinkNotFollowed(Key),
    /// The target of a symbolic link, at the key or on the path to it, does not exist, so the object cannot be seen.
    #[error("{0:?} is a dangling symbolic link, or lies behind one")]
    DanglingLink(Key),
    /// The store did not answer within its deadline.
    #[error("{0} {1:?}: no answer in time")]
    Timeout(&'static str, Key),
    /// The call was not tried, because no call to the store has returned within the stall time.
    #[error("{0} {1:?}: not tried, the storage has not responded for a while")]
    Stalled(&'static str, Key),
    /// The call was not tried, because earlier calls for the same operation have not returned within the stall time.
    #[error("{0} {1:?}: not tried, earlier calls for the same operation got no answer")]
    KeyStalled(&'static str, Key),
    /// The call was not tried, because the queue of waiting calls is full.
    #[error("{0} {1:?}: not tried, too many calls are waiting for the storage")]
    Overloaded(&'static str, Key),
    /// The store asks its clients to send fewer requests, and to wait for this time.
    #[error("{0} {1:?}: the store asks for fewer requests, and for a pause of {2:?}")]
    Throttled(&'static str, Key, Duration),
    /// The store refuses the server's requests, for example because its credentials have expired.
    #[error("{action} {key:?}: {reason}")]
    Denied {
        /// The attempted action, such as "read" or "list".
        action: &'static str,
        /// Key of the object or directory.
        key: Key,
        /// Reason that the store gives, and a remedy. It contains no secret.
        reason: String,
    },
    /// The store cannot list its directories. Its objects can be read.
    #[error("list {0:?}: the store has no listing of this directory: {1}")]
    CannotList(Key, String),
    /// The request was aborted: it held memory that requests of other containers needed while the storage kept it
    /// waiting.
    #[error("{0:?}: aborted, the storage kept the request waiting and other requests needed the memory that it held")]
    Preempted(Key),
}

impl StoreError {
    /// Returns the kind of failure, used as a metric label.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Io { cause, .. } => match Errno::from_io_error(cause) {
                Some(Errno::ACCESS | Errno::PERM) => "permission",
                Some(Errno::STALE) => "stale",
                Some(Errno::MFILE | Errno::NFILE) => "descriptors",
                // A refusal by the symlink policy has no error number.
                None if cause.kind() == io::ErrorKind::PermissionDenied => "permission",
                Some(_) | None => "io",
            },
            Self::Truncated(_) | Self::Torn(_) => "torn",
            Self::RootMissing(_) => "gone",
            Self::LinkNotFollowed(_) | Self::DanglingLink(_) => "link",
            Self::Timeout(..) => "timeout",
            Self::Stalled(..) | Self::KeyStalled(..) | Self::Preempted(_) => "stalled",
            Self::Overloaded(..) => "crowded",
            Self::Throttled(..) => "throttled",
            Self::Denied { .. } => "denied",
            Self::CannotList(..) => "unlisted",
        }
    }

    /// Returns true if a symbolic link or a missing permission hides the object, which may exist. Retries fail until
    /// someone changes the link or the permission.
    pub fn hides_object(&self) -> bool {
        matches!(self, Self::LinkNotFollowed(_) | Self::DanglingLink(_)) || self.kind() == "permission"
    }

    /// All values of [`Self::kind`].
    pub const KINDS: &[&str] = &[
        "io",
        "permission",
        "stale",
        "descriptors",
        "torn",
        "gone",
        "link",
        "timeout",
        "stalled",
        "crowded",
        "throttled",
        "denied",
        "unlisted",
    ];
}

/// Reason why a call that may block on a disk failed. [`Self::of_call`] turns it into a [`StoreError`].
#[derive(Debug, thiserror::Error)]
pub(super) enum LocalError {
    /// The system returned an error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file was written during every attempt to read it.
    #[error("the file is being written")]
    Torn,
    /// The root is missing. Objects below it must not be reported as missing.
    #[error("{0}")]
    RootMissing(String),
    /// A symbolic link is not followed: the policy follows none, or the target is outside the root.
    #[error("a symbolic link on the way to {0:?} is not followed")]
    LinkNotFollowed(Key),
    /// The target of a symbolic link does not exist, for example because its volume is not mounted.
    #[error("{0:?} is a dangling symbolic link, or lies behind one")]
    DanglingLink(Key),
    /// The call took longer than the deadline.
    #[error("no answer in time")]
    Timeout,
    /// The call was not tried, because no call has returned within the stall time.
    #[error("the storage has not responded for a while")]
    Stalled,
    /// The call was not tried, because earlier calls for the same operation have not returned within the stall time.
    #[error("earlier calls for the same operation got no answer")]
    OperationStalled,
    /// The queue is full.
    #[error("too many calls are waiting for the storage")]
    QueueFull,
}

impl LocalError {
    /// Returns the error number, if the system returned one.
    pub(super) fn errno(&self) -> Option<Errno> {
        if let Self::Io(cause) = self { Errno::from_io_error(cause) } else { None }
    }

    /// Returns true if a symbolic link hides an object or directory.
    pub(super) fn is_hidden_by_link(&self) -> bool {
        matches!(self, Self::LinkNotFollowed(_) | Self::DanglingLink(_))
    }

    /// Returns true if the process lacks permission.
    pub(super) fn is_permission_denied(&self) -> bool {
        matches!(self, Self::Io(cause) if cause.kind() == io::ErrorKind::PermissionDenied)
    }

    /// Returns the [`StoreError`] for the failure of `action` on the object or directory at `key`. Errors that already
    /// name a path, or do not depend on one, keep their text.
    pub(super) fn of_call(self, action: &'static str, key: &Key) -> StoreError {
        let key = key.clone();
        match self {
            Self::Io(cause) => StoreError::Io { action, key, cause: Arc::new(cause) },
            Self::Torn => StoreError::Torn(key),
            Self::RootMissing(reason) => StoreError::RootMissing(reason),
            Self::LinkNotFollowed(hidden) => StoreError::LinkNotFollowed(hidden),
            Self::DanglingLink(hidden) => StoreError::DanglingLink(hidden),
            Self::Timeout => StoreError::Timeout(action, key),
            Self::Stalled => StoreError::Stalled(action, key),
            Self::OperationStalled => StoreError::KeyStalled(action, key),
            Self::QueueFull => StoreError::Overloaded(action, key),
        }
    }
}

impl From<Errno> for LocalError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl From<LocalError> for io::Error {
    fn from(error: LocalError) -> Self {
        match error {
            LocalError::Io(cause) => cause,
            LocalError::Timeout | LocalError::Stalled | LocalError::OperationStalled | LocalError::QueueFull => {
                io::ErrorKind::TimedOut.into()
            }
            other @ (LocalError::Torn
            | LocalError::RootMissing(_)
            | LocalError::LinkNotFollowed(_)
            | LocalError::DanglingLink(_)) => Self::other(other),
        }
    }
}
