//! Runs libFuzzer on the target named by the environment variable `N5_FUZZ_TARGET`. A single program contains all
//! targets, because linking it takes no longer than linking one target.
#![no_main]

#[path = "targets/mod.rs"]
mod targets;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<targets::Target> = LazyLock::new(|| {
    let name = std::env::var("N5_FUZZ_TARGET").unwrap_or_default();
    let found = targets::TARGETS.iter().find(|(known, _)| *known == name);
    let known: Vec<&str> = targets::TARGETS.iter().map(|(known, _)| *known).collect();
    found.unwrap_or_else(|| panic!("N5_FUZZ_TARGET is {name:?}; known: {}", known.join(", "))).1
});

fuzz_target!(|data: &[u8]| TARGET(data));
