//! The interface between a lister and the client of a store, and the errors of listings.

use async_trait::async_trait;
use bytes::Bytes;

use super::error_document::ErrorAnswer;
use crate::store::error::StoreError;
use crate::store::key::Key;

/// Value of the header `Accept` for requests to HTTP servers. Caddy answers it with JSON.
pub const LISTING_ACCEPT: &str = "application/json, text/html;q=0.9, application/xml;q=0.8, */*;q=0.1";

/// A client that sends the requests of listings to one store.
#[async_trait]
pub trait ListingTransport: Send + Sync {
    /// Sends a GET request, signed if the store needs that, and returns the response of any status. Does not follow
    /// redirects.
    ///
    /// The target is percent-encoded. For a bucket, it is a query that begins with `?`, to be appended to the URL of the
    /// bucket. For an HTTP server, it is a path that begins with `/` and its query, to be appended to the origin.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if there is no response, or if the body ends early.
    async fn get(&self, target: &str, max_bytes: usize) -> Result<ListingResponse, StoreError>;

    /// Returns true if there is an object at `key`.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the store cannot tell.
    async fn has_object(&self, key: &Key) -> Result<bool, StoreError>;
}

/// A response to a request of a listing.
#[derive(Debug, Clone)]
pub struct ListingResponse {
    /// HTTP status.
    pub status: u16,
    /// Beginning of the body, with at most the requested number of bytes.
    pub body: Bytes,
    /// True if the body has more bytes.
    pub is_cut: bool,
}

/// Reason why a directory could not be listed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ListingError {
    /// A request got no response.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store answered with an error.
    #[error("{0}")]
    Refused(ErrorAnswer),
    /// The response is not a listing that this server understands. The reason is one line.
    #[error("list {0:?}: the response is not understood: {1}")]
    Malformed(Key, String),
    /// The HTTP server makes no listings. Its objects can still be read.
    #[error("list {0:?}: the server has no listing of this directory: {1}; objects in it can be read by their paths")]
    CannotList(Key, String),
}
