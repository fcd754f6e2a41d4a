//! Errors of blocking calls, carried inside [`io::Error`], and their conversion.

use std::io;
use std::sync::Arc;

use super::root::RootMissing;
use crate::store::error::StoreError;
use crate::store::key::Key;

/// A file was written during every attempt to read it.
#[derive(Debug, thiserror::Error)]
#[error("the file is being written")]
pub(super) struct ConcurrentWrite;

/// A symbolic link that hides what is at a key.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum LinkError {
    /// The policy does not follow the link.
    #[error("a symbolic link on the way to {0:?} is not followed")]
    NotFollowed(Key),
    /// The target does not exist: it was not fetched yet, or its volume is not mounted.
    #[error("{0:?} is a dangling symbolic link, or lies behind one")]
    Dangling(Key),
}

impl LinkError {
    /// Returns the link error that `error` contains, if any.
    pub(super) fn from_io_error(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<&LinkError> for StoreError {
    fn from(error: &LinkError) -> Self {
        match error {
            LinkError::NotFollowed(key) => Self::LinkNotFollowed(key.clone()),
            LinkError::Dangling(key) => Self::DanglingLink(key.clone()),
        }
    }
}

/// Returns the error for a key behind a link that the policy does not follow.
pub(super) fn not_followed_error(key: &Key) -> io::Error {
    io::Error::other(LinkError::NotFollowed(key.clone()))
}

/// Converts the error of a blocking call: of `action` on the object or directory at `key`.
pub(super) fn store_error(action: &'static str, key: &Key, cause: io::Error) -> StoreError {
    if let Some(link_error) = LinkError::from_io_error(&cause) {
        return link_error.into();
    }
    let kind_of =
        |cause: &io::Error| cause.get_ref().map(|inner| (inner.is::<RootMissing>(), inner.is::<ConcurrentWrite>()));
    match kind_of(&cause) {
        Some((true, _)) => StoreError::RootMissing(cause.to_string()),
        Some((_, true)) => StoreError::Torn(key.clone()),
        Some(_) | None => StoreError::Io { action, key: key.clone(), cause: Arc::new(cause) },
    }
}
