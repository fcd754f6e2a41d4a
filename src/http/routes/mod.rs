//! The routes: one file for each kind of resource. The function `handle` of a file handles requests for its resource.

pub(crate) mod info;
pub(crate) mod listing;
pub(crate) mod operations;
pub(crate) mod page;
pub(crate) mod recursive_info;
pub(crate) mod slice;
pub(crate) mod stats;
pub(crate) mod stored;
pub(crate) mod thumbnail;
pub(crate) mod view;
pub(crate) mod viewer;
