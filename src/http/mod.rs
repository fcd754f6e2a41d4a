//! The HTTP side: routes, query syntax, status codes.

pub mod slice_query;

mod select;
