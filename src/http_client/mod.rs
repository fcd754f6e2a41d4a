//! The HTTP client of the whole program: HTTP/1.1 with TLS, for object stores, the keys of issuers, and traces.
//!
//! It follows no redirects by itself, and connects to no address on the local link unless it is told to: the metadata
//! services of clouds, which give away credentials, are at such addresses.

mod blocking;
mod client;
mod connector;
mod resolver;
mod tls;

pub use blocking::BlockingHttpClient;
pub use client::{HttpClient, HttpClientError, HttpClientOptions, describe_error};
pub use resolver::{is_link_local, is_loopback_host};
