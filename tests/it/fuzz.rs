//! Runs the fuzz targets over the inputs in `fuzz/seeds` and a few mutations of each. `fuzz/run` does the same with
//! millions of inputs.

#[path = "../../fuzz/targets/mod.rs"]
mod targets;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use targets::TARGETS;

/// Number of mutations of each seed.
const MUTATIONS: u32 = 8;

fn seeds(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target)
}

/// A deterministic xorshift generator of random numbers.
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end.max(1)
    }

    /// Returns a mutation of `seed`, with some bytes changed, removed or repeated.
    fn mutate(&mut self, seed: &[u8]) -> Vec<u8> {
        let mut input = seed.to_vec();
        for _ in 0..=self.below(4) {
            let (at, length) = (self.below(input.len()), self.below(8));
            let end = (at + length).min(input.len());
            match self.below(5) {
                0 => drop(input.drain(at..end)),
                1 => {
                    let again = input[at..end].to_vec();
                    input.splice(at..at, again);
                }
                2 => input.truncate(at),
                _ if input.is_empty() => input.push(0),
                3 => input[at] = [0, 1, 0x7f, 0x80, 0xff, b'/', b'"', b'9'][self.below(8)],
                _ => input[at] ^= 1 << self.below(8),
            }
        }
        input
    }
}

/// Runs a target over all of its seeds and some mutations of each.
fn run_target(name: &str) {
    let target = TARGETS.iter().find(|(known, _)| *known == name).unwrap().1;
    let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
    let entries = fs::read_dir(seeds(name)).unwrap_or_else(|error| panic!("fuzz/seeds/{name}: {error}"));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{name} has {} seeds", files.len());
    for file in files {
        let seed = fs::read(&file).unwrap();
        let found = std::panic::catch_unwind(|| target(&seed));
        assert!(found.is_ok(), "{}", file.display());
        for _ in 0..MUTATIONS {
            let input = random.mutate(&seed);
            let found = std::panic::catch_unwind(|| target(&input));
            assert!(found.is_ok(), "mutation of {}: {}", file.display(), input.escape_ascii());
        }
    }
}

macro_rules! targets {
    ($($name:ident),+ $(,)?) => {
        $(#[test]
        fn $name() {
            run_target(stringify!($name));
        })+

        #[test]
        fn every_target_has_its_test() {
            let known: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!(known, [$(stringify!($name)),+]);
        }
    };
}

targets!(block, deflate, lz4, blosc, streams, attributes, request, views, fast_path, slice, access, http2, listing);

#[test]
fn fuzzing_uses_the_crate_versions_of_the_server() {
    let packages = |path: &str| {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        let mut versions: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut name = String::new();
        for line in text.lines() {
            let value = |key: &str| Some(line.strip_prefix(key)?.trim_matches('"').to_owned());
            if let Some(found) = value("name = ") {
                name = found;
            } else if let Some(found) = value("version = ") {
                versions.entry(name.clone()).or_default().push(found);
            }
        }
        versions
    };
    let (served, fuzzed) = (packages("Cargo.lock"), packages("fuzz/Cargo.lock"));
    let shared: Vec<_> =
        fuzzed.iter().filter_map(|(name, versions)| Some((name, versions, served.get(name)?))).collect();
    assert!(shared.len() > 100, "{}", shared.len());
    for (name, fuzzed, served) in shared {
        // The server's lock file may hold further versions that only tests need.
        let is_served = |version: &String| served.contains(version);
        assert!(fuzzed.iter().all(is_served), "{name}: {fuzzed:?} is fuzzed, {served:?} is served");
    }
}
