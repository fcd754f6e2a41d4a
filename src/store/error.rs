//! Why a store did not answer.

use std::sync::Arc;

use super::key::Key;

/// Why a store did not answer. Errors are transient unless [`Self::hides_object`] returns true.
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
        cause: Arc<std::io::Error>,
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
    /// The store has answered no call for so long that this one was not tried.
    #[error("{0} {1:?}: not tried, the storage has not responded for a while")]
    Stalled(&'static str, Key),
    /// Other calls have waited for the same operation for so long that this one was not tried.
    #[error("{0} {1:?}: not tried, earlier calls for the same operation got no answer")]
    KeyStalled(&'static str, Key),
    /// So many calls wait for the store that this one was not tried.
    #[error("{0} {1:?}: not tried, too many calls are waiting for the storage")]
    Overloaded(&'static str, Key),
    /// The request was given up: the storage kept it waiting while it held memory that requests of other containers
    /// needed.
    #[error("{0:?}: aborted, the storage kept the request waiting and other requests needed the memory that it held")]
    Preempted(Key),
}

impl StoreError {
    /// Returns the kind of failure, used as a metric label.
    pub fn kind(&self) -> &'static str {
        use rustix::io::Errno;
        match self {
            Self::Io { cause, .. } => match Errno::from_io_error(cause) {
                Some(Errno::ACCESS | Errno::PERM) => "permission",
                Some(Errno::STALE) => "stale",
                Some(Errno::MFILE | Errno::NFILE) => "descriptors",
                // A refusal by the symlink policy has no error number.
                None if cause.kind() == std::io::ErrorKind::PermissionDenied => "permission",
                Some(_) | None => "io",
            },
            Self::Truncated(_) | Self::Torn(_) => "torn",
            Self::RootMissing(_) => "gone",
            Self::LinkNotFollowed(_) | Self::DanglingLink(_) => "link",
            Self::Timeout(..) => "timeout",
            Self::Stalled(..) | Self::KeyStalled(..) | Self::Preempted(_) => "stalled",
            Self::Overloaded(..) => "crowded",
        }
    }

    /// Returns true if the object is hidden from this process until someone changes that. Retrying is useless. The
    /// object may exist.
    pub fn hides_object(&self) -> bool {
        matches!(self, Self::LinkNotFollowed(_) | Self::DanglingLink(_)) || self.kind() == "permission"
    }

    /// All values of [`Self::kind`].
    pub const KINDS: &[&str] =
        &["io", "permission", "stale", "descriptors", "torn", "gone", "link", "timeout", "stalled", "crowded"];
}
