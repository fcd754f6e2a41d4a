//! Stores behind a network.

mod listing;

pub use listing::{
    DirectoryLister, ErrorAnswer, LISTING_ACCEPT, LISTING_BYTES_PER_STORE, ListingError, ListingResponse,
    ListingTransport, StoreErrorCode,
};
