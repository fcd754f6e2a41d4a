//! Limits of requests that the fast path, the HTTP library and the memory accounting share.

/// Maximum length of a request head, in bytes. The longest possible path (64 KiB) fits together with its headers, and
/// connections that send no more than a head stay cheap.
pub(super) const MAX_HEAD_BYTES: usize = 96 << 10;

/// Number of times that a head is held: as received, as parsed, and as repeated by a problem response.
pub(super) const HEAD_COPIES: usize = 3;

/// Maximum number of fields of a request, the same as hyper's for HTTP/1.
pub(super) const MAX_FIELDS: usize = 100;

/// Maximum number of cookie fields that do not count towards [`MAX_FIELDS`].
pub(super) const MAX_UNCOUNTED_COOKIES: usize = 200;

/// Maximum number of concurrent HTTP/2 streams of one connection; viewers request 100 blocks at once.
pub(super) const MAX_STREAMS: u32 = 128;
