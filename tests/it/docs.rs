//! The documents agree with the code: lists, tables, links, and every command with its output.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use n5_format::{Codecs, DataType};
use n5_server::config::{Config, ConfigSources, DEFAULTS, MemorySizes};
use n5_server::demo;
use n5_server::http::problem::PROBLEM_TYPES;
use n5_server::http::route::endpoints;
use n5_server::output;
use n5_server::server::Server;
use n5_server::telemetry::metrics;
use n5_server::verify::FINDING_KINDS as KINDS_FOUND;
use tokio::sync::oneshot;

use crate::support::writer::N5;
use crate::support::{Client, skip_without};

const DOCUMENTS: [&str; 23] = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "crates/n5-format/README.md",
    "crates/n5-metadata/README.md",
    "crates/png-gray/README.md",
    "docs/ACCESS.md",
    "docs/API.md",
    "docs/ARCHITECTURE.md",
    "docs/CLIENTS.md",
    "docs/CONFIGURATION.md",
    "docs/DEPENDENCIES.md",
    "docs/DEPLOYMENT.md",
    "docs/EVERYDAY.md",
    "docs/FAULTS.md",
    "docs/HOSTILE.md",
    "docs/METRICS.md",
    "docs/OPERATIONS.md",
    "docs/PERFORMANCE.md",
    "docs/PROBLEMS.md",
    "docs/SCALING.md",
    "docs/STORES.md",
    "docs/VERIFY.md",
];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the words in backticks outside of code blocks.
fn quoted(text: &str) -> BTreeSet<&str> {
    let mut in_block = false;
    let lines = text.lines().filter(|line| {
        let fence = line.starts_with("```");
        in_block ^= fence;
        !in_block && !fence
    });
    lines.flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

/// Returns the cells of each row of the tables whose first row begins with `heading`.
fn rows<'a>(text: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let cells: Vec<&str> = line.strip_prefix('|').map_or(Vec::new(), |row| row.split('|').map(str::trim).collect());
        match cells.first() {
            None => inside = false,
            Some(first) if *first == heading => inside = true,
            Some(first) if inside && !first.starts_with("---") => found.push(cells),
            Some(_) => {}
        }
    }
    found
}

#[test]
fn every_route_is_documented() {
    let document = read("docs/API.md");
    let named = quoted(&document);
    for (word, _) in endpoints() {
        let names_route = |text: &&str| {
            let rest = text.strip_prefix('/').and_then(|text| text.strip_prefix(word));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        assert!(named.iter().any(names_route), "docs/API.md does not name the route /{word}");
    }
}

#[test]
fn every_metric_is_documented_with_its_type_labels_and_meaning() {
    let document = read("docs/METRICS.md");
    let rows = rows(&document, "metric");
    for metric in metrics::METRICS {
        let row = rows.iter().find(|cells| quoted(cells[0]).contains(metric.name));
        let row = row.unwrap_or_else(|| panic!("docs/METRICS.md has no row for {}", metric.name));
        assert_eq!(row[1], format!("{:?}", metric.kind).to_lowercase(), "{}", metric.name);
        assert_eq!(row[3].replace('`', ""), metric.help, "{}", metric.name);
        for label in metric.labels {
            assert!(quoted(row[2]).contains(label), "the row of {} lacks the label {label}", metric.name);
        }
    }
    let known: BTreeSet<&str> = metrics::METRICS.iter().map(|metric| metric.name).collect();
    let documented: BTreeSet<&str> = rows.iter().flat_map(|cells| quoted(cells[0])).collect();
    assert_eq!(documented, known);
}

#[test]
fn every_setting_is_documented_and_every_documented_one_exists() {
    let mut keys: BTreeSet<String> = default_settings().into_keys().collect();
    // The only section without defaults is commented out.
    let (_, commented) = DEFAULTS.split_once("#[[containers]]").unwrap();
    let mut section = "containers";
    for line in commented.lines().filter_map(|line| line.strip_prefix('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
        }
        if let Some((key, _)) = line.split_once(" = ").filter(|(key, _)| !key.contains(' ')) {
            keys.insert(format!("{section}.{key}"));
        }
    }
    assert!(keys.contains("containers.symlinks") && keys.contains("containers.store.region"), "{keys:?}");
    let document = read("docs/CONFIGURATION.md");
    let documented: BTreeSet<String> =
        rows(&document, "key").iter().flat_map(|cells| quoted(cells[0])).map(str::to_owned).collect();
    assert_eq!(documented, keys);
}

/// Returns the settings of `default.toml` by their keys, such as `container_defaults.store.region`.
fn default_settings() -> BTreeMap<String, toml::Value> {
    fn flatten(prefix: &str, table: toml::Table, settings: &mut BTreeMap<String, toml::Value>) {
        for (key, value) in table {
            if let toml::Value::Table(inner) = value {
                flatten(&format!("{prefix}{key}."), inner, settings);
            } else {
                settings.insert(format!("{prefix}{key}"), value);
            }
        }
    }
    let mut settings = BTreeMap::new();
    flatten("", DEFAULTS.parse().unwrap(), &mut settings);
    settings
}

#[test]
fn every_documented_default_is_the_default() {
    let document = read("docs/CONFIGURATION.md");
    let defaults = default_settings();
    for cells in rows(&document, "key") {
        let key = cells[0].trim_matches('`');
        let (section, _) = key.split_once('.').unwrap();
        // The settings of one container have the defaults of `container_defaults`, or none.
        if section == "containers" {
            continue;
        }
        let documented: toml::Table = format!("value = {}", cells[1].trim_matches('`')).parse().unwrap();
        assert_eq!(documented["value"], defaults[key], "{key}");
    }
}

#[test]
fn every_kind_of_problem_has_a_section_and_a_row_with_its_status() {
    let (problems, api) = (read("docs/PROBLEMS.md"), read("docs/API.md"));
    let sections: BTreeSet<&str> = problems.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let rows = rows(&api, "kind");
    for kind in PROBLEM_TYPES {
        assert!(sections.contains(kind.name), "docs/PROBLEMS.md has no section {}", kind.name);
        let row = rows.iter().find(|cells| quoted(cells[0]).contains(kind.name));
        let status = row.unwrap_or_else(|| panic!("docs/API.md has no row for {}", kind.name))[1];
        assert_eq!(status, kind.status.as_str(), "{}", kind.name);
    }
}

#[test]
fn every_finding_of_verify_is_documented_with_its_severity_and_advice() {
    let document = read("docs/VERIFY.md");
    let rows = rows(&document, "finding");
    assert_eq!(rows.len(), KINDS_FOUND.len());
    for (kind, cells) in KINDS_FOUND.iter().zip(rows) {
        assert_eq!(cells[0], format!("`{}`", kind.name));
        assert_eq!((cells[1], cells[3]), (kind.severity.name(), kind.advice), "{}", kind.name);
    }
}

#[test]
fn every_codec_data_type_and_format_is_documented() {
    let document = read("docs/API.md");
    let (compressions, formats) = (rows(&document, "`compression`"), rows(&document, "`format`"));
    for codec in Codecs::built_in().names() {
        assert!(compressions.iter().any(|cells| quoted(cells[0]).contains(codec)), "{codec}");
    }
    for format in output::FORMATS {
        let row = formats.iter().find(|cells| quoted(cells[0]).contains(format.name()));
        assert_eq!(quoted(row.unwrap_or_else(|| panic!("{}", format.name()))[1]), [format.media_type()].into());
    }
    for name in DataType::names() {
        assert!(quoted(&document).contains(name), "{name}");
    }
}

#[tokio::test]
async fn every_parameter_of_a_slice_is_documented() {
    let n5 = N5::new();
    let reply = Client::of(n5.root()).get("/slice/a?bogus=1").await.json();
    let document = read("docs/API.md");
    for parameter in reply["known"].as_array().unwrap() {
        assert!(quoted(&document).contains(parameter.as_str().unwrap()), "{parameter}");
    }
}

#[test]
fn the_announced_memory_grows_with_the_disk_threads_of_the_containers() {
    let mut config = Config::default();
    assert_eq!(config.disk_threads(), 64);
    let memory = config.memory_bound_bytes();
    let container: n5_server::config::ContainerConfig = toml::from_str("root = \"/data\"").unwrap();
    for count in 1..=100 {
        config.containers.push(container.clone());
        assert_eq!(config.disk_threads(), (64 * count).min(4 * count + 180), "{count}");
    }
    assert_eq!((config.disk_threads(), config.memory_bound_bytes() - memory), (580, (580 - 64) << 17));
}

#[test]
fn the_documented_memory_for_viewers_matches_the_announced_memory() {
    /// Memory of the program itself, which the server does not announce.
    const REST_MIB: u64 = 64;
    let operations = read("docs/OPERATIONS.md");
    let rows = rows(&operations, "viewers");
    assert_eq!(rows.len(), 3);
    for row in rows {
        let mut config = Config::default();
        config.server.threads = 2;
        config.server.max_connections = row[1].parse().unwrap();
        config.limits.concurrent_requests = row[1].parse().unwrap();
        let (number, unit) = row[2].split_once(' ').unwrap();
        config.cache.decoded = Some(number.parse::<u64>().unwrap() << if unit == "GiB" { 30 } else { 20 });
        let announced = [config.memory_bound_bytes(), config.max_connections_bytes(), config.sockets_bytes()];
        let sum = announced.iter().map(|bytes| bytes >> 20).sum::<u64>() + REST_MIB;
        assert_eq!(row[3], format!("{sum} MiB"), "{} viewers", row[0]);
    }
}

#[test]
fn the_documented_shares_of_the_memory_limit_are_those_of_the_server() {
    let mut config = Config::default();
    config.server.threads = 2;
    let operations = read("docs/OPERATIONS.md");
    let rows = rows(&operations, "`memory.limit`");
    assert_eq!(rows.len(), 4);
    for row in rows {
        let limit = if row[0] == "least" { "least".to_owned() } else { row[0].replace(' ', "") };
        config.memory.limit = limit.parse().unwrap();
        let MemorySizes { decoded_cache, stored_cache, slice_budget, decode_budget, transfer_budget } =
            config.memory_sizes();
        let sizes = [decoded_cache, stored_cache, slice_budget, decode_budget, transfer_budget];
        assert_eq!(row[1..=5], sizes.map(|size| format!("{} MiB", size >> 20)), "{limit}");
    }
}

#[test]
fn the_documented_import_table_matches_the_architecture_test() {
    let words =
        |text: &str, quote: char| -> Vec<String> { text.split(quote).skip(1).step_by(2).map(str::to_owned).collect() };
    let document = read("docs/ARCHITECTURE.md");
    let table = document.split("<!-- imports -->").nth(1).unwrap().split("<!-- end of imports -->").next().unwrap();
    let documented: BTreeMap<String, BTreeSet<String>> = rows(table, "module")
        .into_iter()
        .map(|cells| (words(cells[0], '`').remove(0), words(cells[1], '`').into_iter().collect()))
        .collect();
    let source = read("tests/it/architecture.rs");
    let table = source.split("const IMPORTS").nth(1).unwrap().split("\n];").next().unwrap();
    let actual: BTreeMap<String, BTreeSet<String>> = table
        .split(']')
        .filter(|row| row.contains('"'))
        .map(|row| {
            let mut words = words(row, '"').into_iter();
            (words.next().unwrap(), words.collect())
        })
        .collect();
    assert!(actual.len() > 10, "{actual:?}");
    assert_eq!(documented, actual);
}

#[test]
fn every_direct_dependency_has_a_documented_reason() {
    let document = read("docs/DEPENDENCIES.md");
    let mut names = BTreeSet::new();
    for cells in rows(&document, "crate") {
        names.extend(cells[0].split([',', '=', ' ', '(', ')']).filter(|name| !name.is_empty()).map(str::to_owned));
    }
    for manifest in ["Cargo.toml", "crates/n5-format/Cargo.toml", "crates/n5-metadata/Cargo.toml"] {
        let manifest: toml::Table = read(manifest).parse().unwrap();
        let sections = ["dependencies", "dev-dependencies"].map(|section| manifest[section].as_table().unwrap());
        let dependencies = sections.into_iter().flat_map(|section| section.keys());
        for name in dependencies.filter(|name| !["n5-format", "n5-metadata"].contains(&name.as_str())) {
            assert!(names.contains(name), "docs/DEPENDENCIES.md has no row for {name}");
        }
    }
}

#[test]
fn the_readme_is_short() {
    let words = read("README.md").split_whitespace().count();
    assert!(words <= 1500, "{words} words");
}

/// Returns the anchor of a heading on GitHub.
fn anchor(heading: &str) -> String {
    let kept = |letter: &char| letter.is_alphanumeric() || *letter == ' ' || *letter == '-' || *letter == '_';
    heading.to_lowercase().chars().filter(kept).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

#[test]
fn every_relative_link_has_a_target() {
    for document in DOCUMENTS {
        let text = read(document);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (target, fragment) = link.split_once('#').unwrap_or((link, ""));
            if target.contains("://") {
                continue;
            }
            let at = if target.is_empty() { path(document) } else { path(document).parent().unwrap().join(target) };
            assert!(at.exists(), "{document} links to {target}, which does not exist");
            if !fragment.is_empty() {
                let linked = fs::read_to_string(&at).unwrap();
                let headings = linked.lines().filter_map(|line| line.strip_prefix('#'));
                let mut anchors = headings.map(|heading| anchor(heading.trim_start_matches('#').trim()));
                assert!(anchors.any(|anchor| anchor == fragment), "{document} links to {link}, which is no heading");
            }
        }
    }
}

/// Returns the commands of the `console` blocks, each with its output.
fn commands(text: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match (line.strip_prefix("```"), line.strip_prefix("$ ")) {
            (Some(language), _) => inside = language == "console",
            (None, Some(command)) if inside => found.push((command.to_owned(), String::new())),
            (None, None) if inside => {
                let (_, printed) = found.last_mut().unwrap();
                printed.push_str(line.trim_end());
                printed.push('\n');
            }
            (None, _) => {}
        }
    }
    found
}

/// Runs a command and returns its standard output, without carriage returns and blanks at the ends of lines.
fn printed(command: &str, directory: &Path) -> String {
    let output = Command::new("sh").args(["-c", command]).current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{command}: {}", output.status);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().flat_map(|line| [line.trim_end(), "\n"]).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_prints_what_the_documents_show() {
    if Command::new("curl").arg("--version").output().is_err() {
        return skip_without("curl");
    }
    let config =
        Config::load(&ConfigSources { listen: Some("127.0.0.1:0".to_owned()), ..ConfigSources::default() }).unwrap();
    let server = Server::bind(config, String::new).await.unwrap();
    let address = server.address().unwrap().to_string();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.run(async { drop(stopped.await) }));
    let checks = tokio::task::spawn_blocking(move || {
        let directory = tempfile::TempDir::new().unwrap();
        let in_readme = commands(&read("README.md")).len();
        assert!(in_readme >= 5, "{in_readme}");
        let commands: Vec<_> = DOCUMENTS.iter().flat_map(|document| commands(&read(document))).collect();
        assert!(commands.len() > 15, "{}", commands.len());
        for (command, expected) in commands {
            let real = command.replace("127.0.0.1:8080", &address);
            assert_ne!(real, command, "it contacts no server");
            assert_eq!(printed(&real, directory.path()), expected, "{command}");
        }
        let tour = demo::tour(&format!("http://{address}/"));
        for command in tour.lines().map(str::trim).filter(|line| line.starts_with("curl ")) {
            let (all, response) =
                (printed(&format!("{command} -f"), directory.path()), directory.path().join("em.png"));
            assert!(!all.is_empty() || response.exists(), "{command}");
        }
    });
    checks.await.unwrap();
    drop(stop);
    serving.await.unwrap();
}
