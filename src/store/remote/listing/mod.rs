//! Listings of directories behind HTTP: prefixes of buckets, and the indexes that HTTP servers make.
//!
//! [`DirectoryLister`] sends its requests through a [`ListingTransport`], which signs them. The listing of a directory
//! is read page by page, and only the entries of the result are kept.

mod bucket;
mod bucket_xml;
mod error_document;
mod html_index;
mod http_root;
mod index_entry;
mod json_index;
mod lister;
mod page_reader;
mod selection;
mod transport;
mod xml;

pub use error_document::{ErrorAnswer, StoreErrorCode};
pub use lister::DirectoryLister;
pub use page_reader::LISTING_BYTES_PER_STORE;
pub use transport::{LISTING_ACCEPT, ListingError, ListingResponse, ListingTransport};
pub(super) use xml::printable;
