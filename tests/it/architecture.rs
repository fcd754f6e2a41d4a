//! Who may import whom. A module imports only from rows below its own; the table is the design. The libraries of
//! `crates/` stand in it under the names by which the server imports them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Module, and the modules of this crate that it may name.
const IMPORTS: &[(&str, &[&str])] = &[
    ("watched_files", &[]),
    ("access", &["config", "metrics", "watched_files"]),
    ("n5", &[]),
    ("metadata", &["n5"]),
    ("log_throttle", &[]),
    ("store", &["allocator", "fair_queue", "log_throttle", "metrics", "trace"]),
    ("demo", &["store"]),
    ("trace", &["metrics"]),
    ("fair_queue", &[]),
    ("cpu_pool", &["allocator", "fair_queue", "metrics", "trace"]),
    ("allocator", &[]),
    ("metrics", &[]),
    ("cache", &["allocator", "n5", "log_throttle", "store", "fair_queue", "cpu_pool", "metrics", "trace"]),
    ("container", &["cache", "n5", "store", "fair_queue", "cpu_pool", "metrics"]),
    ("read", &["cache", "container", "n5", "store", "fair_queue", "cpu_pool", "metrics", "trace"]),
    ("output", &["n5"]),
    ("view", &["n5", "metadata", "store", "cache", "container", "read"]),
    (
        "http",
        &[
            "access",
            "config",
            "n5",
            "metadata",
            "log_throttle",
            "store",
            "fair_queue",
            "cpu_pool",
            "metrics",
            "trace",
            "cache",
            "container",
            "read",
            "output",
            "view",
        ],
    ),
    ("fastpath", &["metrics", "trace", "store", "cache", "container", "view", "http"]),
    ("verify", &["n5", "metadata", "store", "cache", "container", "read", "view"]),
    ("config", &[]),
    ("telemetry", &["config", "metrics", "log_throttle"]),
    ("off_thread", &[]),
    (
        "conn",
        &[
            "watched_files",
            "allocator",
            "fair_queue",
            "config",
            "http",
            "fastpath",
            "log_throttle",
            "off_thread",
            "store",
            "metrics",
        ],
    ),
    (
        "server",
        &[
            "access",
            "allocator",
            "cpu_pool",
            "config",
            "conn",
            "telemetry",
            "cache",
            "container",
            "http",
            "off_thread",
            "store",
            "demo",
            "metrics",
        ],
    ),
    (
        "cli",
        &["access", "config", "telemetry", "container", "http", "store", "metrics", "n5", "trace", "verify", "server"],
    ),
];

/// Row of the table, and the package of which it is the name in the server.
const CRATES: &[(&str, &str)] = &[("n5", "n5-format"), ("metadata", "n5-metadata")];

fn sources(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| sources(&path)).filter(|path| path.extension().is_some_and(|e| e == "rs")).collect()
}

/// All files of a module: `module.rs`, and those below `module/`.
fn files_of(module: &str) -> Vec<PathBuf> {
    let folder = source_of("lib").with_file_name(module);
    let mut files = sources(&source_of(module));
    if folder.is_dir() && source_of(module) != folder {
        files.extend(sources(&folder));
    }
    files
}

fn source_of(module: &str) -> PathBuf {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let file = src.join(format!("{module}.rs"));
    if file.exists() { file } else { src.join(module) }
}

/// Names that follow `crate::`, groups in braces taken apart.
fn imported(text: &str) -> BTreeSet<String> {
    let word =
        |text: &str| text.trim_start().split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap().to_owned();
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => found.insert(word(rest)),
            Some(group) => {
                let mut depth = 0;
                let mut item = true;
                for (i, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => item = true,
                        c if item && !c.is_whitespace() => {
                            found.insert(word(&group[i..]));
                            item = false;
                        }
                        _ => {}
                    }
                }
                true
            }
        };
    }
    found
}

#[test]
fn modules_import_only_what_lies_below_them() {
    for (module, allowed) in IMPORTS.iter().filter(|row| !CRATES.iter().any(|(name, _)| *name == row.0)) {
        for path in files_of(module) {
            let text = fs::read_to_string(&path).unwrap();
            for name in imported(&text) {
                let lawful = name == *module || allowed.contains(&name.as_str());
                assert!(lawful, "{} imports crate::{name}; {module} may import {allowed:?}", path.display());
            }
        }
    }
}

#[test]
fn every_module_has_its_row() {
    let text = fs::read_to_string(source_of("lib")).unwrap();
    let declared = text.lines().filter_map(|line| {
        let name = line.strip_prefix("pub mod ").or_else(|| line.strip_prefix("pub use ")?.split(" as ").nth(1))?;
        name.strip_suffix(';')
    });
    assert_eq!(declared.collect::<BTreeSet<_>>(), IMPORTS.iter().map(|row| row.0).collect());
}

#[test]
fn crates_depend_only_on_what_lies_below_them() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders: BTreeSet<String> = fs::read_dir(workspace.join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(folders, CRATES.iter().map(|(_, package)| (*package).to_owned()).collect());
    for (module, package) in CRATES {
        let manifest = fs::read_to_string(workspace.join("crates").join(package).join("Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let allowed = IMPORTS.iter().find(|row| row.0 == *module).unwrap().1;
        for dependency in manifest["dependencies"].as_table().unwrap().keys().filter(|name| name.starts_with("n5")) {
            let row = CRATES.iter().find(|(_, package)| package == dependency);
            assert!(row.is_some_and(|(name, _)| allowed.contains(name)), "{package} depends on {dependency}");
        }
    }
}

#[test]
fn imports_are_found_however_they_are_written() {
    let text = "use n5_format::Block; use crate::{cpu::Cpu, store::{self, Key},\n metrics}; crate::http::x()";
    let expected: BTreeSet<String> = ["n5", "cpu", "store", "metrics", "http"].map(str::to_owned).into();
    assert_eq!(imported(text), expected);
}

#[test]
fn data_is_never_copied_on_its_way_out() {
    for module in ["cache", "container", "read", "http"] {
        for path in sources(&source_of(module)) {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            for forbidden in ["copy_from_slice", "BytesMut"] {
                assert!(!code.contains(forbidden), "{} uses {forbidden}", path.display());
            }
        }
    }
}
