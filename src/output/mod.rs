//! Output formats: a decoded array as bytes of a media type. Imports `n5` only; no async.
