//! Behaviour of the whole program; one binary, so that it links once.
#![expect(clippy::unwrap_used, reason = "tests may say what must hold, their helpers too")]
#![expect(clippy::disallowed_methods, reason = "tests write files and start the program")]

mod config;
