//! `n5-server verify` and `inspect` as users run them: every kind of damage, interruptions, memory, exit statuses.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use flate2::Compression;
use flate2::write::GzEncoder;
use n5_server::container::{Container, Resources};
use n5_server::store::{EntryFilter, InlineLimit, Key, Listing, MemoryStore, Object, ObjectMeta, Store, StoreError};
use n5_server::verify::{
    Checkpoint, EventSink, FINDING_KINDS, PreviousRun, Totals, Verifier, VerifyEvent, VerifyOutcome,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::faulty::{Fault, Faulty};
use crate::support::writer::{N5, encode};
use crate::support::{Client, corpus, settings, skip_without, wait_until};

/// Timeout of a run, long enough on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_n5-server"));
    // The same budgets on every machine.
    command.args(arguments).env("N5_MEMORY__LIMIT", "least").stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Returns every line of a report. Panics unless all are JSON.
fn lines(report: &Path) -> Vec<Value> {
    let text = fs::read_to_string(report).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Returns the findings, datasets and the summary, which do not depend on how often a run was interrupted.
fn results(report: &Path) -> Vec<Value> {
    let kept = lines(report).into_iter().filter(|line| line["record"] != "checkpoint" && line["record"] != "run");
    kept.collect()
}

/// Verifies a container. Returns the exit status, the kinds found for each key, and the lines of the report.
fn verify(root: &Path, further: &[&str]) -> (i32, BTreeMap<String, BTreeSet<String>>, Vec<Value>) {
    let folder = TempDir::new().unwrap();
    let report = folder.path().join("report.jsonl");
    let mut arguments = vec!["verify", root.to_str().unwrap(), "--report", report.to_str().unwrap()];
    arguments.extend(further);
    let output = run(&arguments);
    let lines = lines(&report);
    assert_eq!(lines.last().unwrap()["record"], "summary", "{}", output_text(&output));
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line["record"] == "finding") {
        assert!(!line["message"].as_str().unwrap().is_empty() && !line["advice"].as_str().unwrap().is_empty());
        let row = FINDING_KINDS.iter().find(|row| line["kind"] == row.name).unwrap();
        assert_eq!(line["severity"], row.severity.name());
        let kinds = found.entry(line["key"].as_str().unwrap().to_owned()).or_default();
        kinds.insert(line["kind"].as_str().unwrap().to_owned());
    }
    (output.status.code().unwrap(), found, lines)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Creates an undamaged container of one dataset, `a`, of 3 x 2 blocks.
fn intact_container() -> N5 {
    let n5 = N5::new();
    n5.dataset("a", &[14, 7], &[5, 4], "gzip").fill(|_| true, |_| false);
    n5
}

#[test]
fn an_intact_container_has_no_errors_and_complete_counts() {
    let (status, found, lines) = verify(intact_container().root(), &[]);
    let errors: Vec<_> = lines.iter().filter(|line| line["severity"] == "error").collect();
    assert_eq!((status, errors.len()), (0, 0), "{found:?}");
    let summary = lines.last().unwrap();
    for (member, expected) in
        [("complete", json!(true)), ("groups", json!(1)), ("datasets", json!(1)), ("blocks", json!(6))]
    {
        assert_eq!(summary[member], expected, "{summary}");
    }
    assert_eq!(summary["decoded_bytes"], 14 * 7 * 2);
    let dataset = lines.iter().find(|line| line["record"] == "dataset").unwrap();
    assert_eq!(
        (&dataset["dataset"], &dataset["grid_blocks"], &dataset["missing"]),
        (&json!("a"), &json!(6), &json!(0))
    );
}

#[test]
fn each_kind_of_block_damage_is_detected() {
    let n5 = intact_container();
    let good = fs::read(n5.root().join("a/0/0")).unwrap();
    let header = &good[..12];
    let elements: Vec<u8> = (0..40).collect();
    let mut flipped = good.clone();
    let crc = flipped.len() - 8;
    flipped[crc] ^= 1;
    let with = |header: &[u8], payload: &[u8]| [header, &gzip(payload)].concat();
    let mut varlength = vec![0, 1, 0, 2, 0, 0, 0, 5, 0, 0, 0, 4, 0, 0, 0, 20];
    varlength.extend(gzip(&elements));
    for (kind, bytes) in [
        ("empty-block", Vec::new()),
        ("truncated-block", good[..5].to_vec()),
        ("corrupt-block", flipped),
        ("corrupt-block", good[..good.len() - 9].to_vec()),
        ("wrong-length", with(header, &elements[..38])),
        ("wrong-length", with(header, &[&elements[..], &[1]].concat())),
        ("trailing-bytes", [&good[..], b"xyz"].concat()),
        ("oversized-block", encode(&[6, 4], &[0; 24], true)),
        ("wrong-rank", encode(&[20], &[0; 20], true)),
        ("unknown-mode", [&[0, 7], &good[2..]].concat()),
        ("undecodable-block", [&[0, 2, 0, 0, 0, 40][..], &elements].concat()),
        ("small-block", encode(&[5, 3], &[7; 15], true)),
        ("varlength-block", varlength),
    ] {
        n5.file("a/0/0", bytes);
        let (_, mut found, lines) = verify(n5.root(), &[]);
        found.retain(|key, _| key == "a/0/0");
        assert_eq!(found, [("a/0/0".to_owned(), [kind.to_owned()].into())].into(), "{kind}");
        let line = lines.iter().find(|line| line["kind"] == kind).unwrap();
        assert_eq!((&line["dataset"], &line["position"]), (&json!("a"), &json!([0, 0])));
    }
}

#[test]
fn each_kind_of_hierarchy_fault_is_detected() {
    let n5 = intact_container();
    let array = |further: Value| {
        let mut all = json!({"dimensions": [8], "blockSize": [4], "dataType": "uint8", "compression": {"type": "raw"}});
        all.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        all.to_string()
    };
    n5.file("a/9/0", encode(&[5, 4], &[0; 20], true));
    fs::remove_file(n5.root().join("a/1/0")).unwrap();
    n5.file("a/1/0/notes.txt", "x");
    n5.file("a/7", "x");
    n5.file("a/readme.txt", "x");
    n5.file("a/0/.1.partial", "x");
    n5.file("broken/attributes.json", "{");
    n5.file("list/attributes.json", "[]");
    n5.file("unusable/attributes.json", array(json!({"blockSize": [0]})));
    n5.file("half/attributes.json", r#"{"dimensions": [4], "dataType": "uint8"}"#);
    fs::create_dir_all(n5.root().join("folder/attributes.json")).unwrap();
    n5.file("jpeg/attributes.json", array(json!({"compression": {"type": "jpeg"}})));
    n5.file("jpeg/0", "x");
    n5.file("text/attributes.json", array(json!({"dataType": "string"})));
    n5.file("legacy/attributes.json", array(json!({"compression": null, "compressionType": "gzip"})));
    n5.file("pyramid/attributes.json", r#"{"downsamplingFactors": [[1], [2]]}"#);
    n5.file("pyramid/s0/attributes.json", array(json!({"dimensions": [80]})));
    n5.file("pyramid/s1/attributes.json", array(json!({"dimensions": [80]})));
    std::os::unix::fs::symlink("..", n5.root().join("list/up")).unwrap();
    std::os::unix::fs::symlink("/", n5.root().join("list/out")).unwrap();
    let (status, found, lines) = verify(n5.root(), &[]);
    assert_eq!(status, 1);
    for (key, kind) in [
        ("a/9/0", "outside-grid"),
        ("a/1/0", "directory-at-block"),
        ("a/1/0/notes.txt", "stray-file"),
        ("a/7", "misplaced-file"),
        ("a/readme.txt", "stray-file"),
        ("a/0/.1.partial", "temporary-file"),
        ("a", "missing-blocks"),
        ("broken", "broken-attributes"),
        ("list", "broken-attributes"),
        ("unusable", "unusable-attributes"),
        ("half", "unusable-attributes"),
        ("folder/attributes.json", "broken-attributes"),
        ("jpeg", "unknown-compression"),
        ("text", "unknown-data-type"),
        ("legacy", "unusual-attributes"),
        ("legacy", "refused-by-client"),
        ("pyramid", "inconsistent-level"),
        ("list/up", "link-loop"),
        ("list", "unlisted-name"),
    ] {
        assert!(found.get(key).is_some_and(|kinds| kinds.contains(kind)), "{key} {kind}: {:?}", found.get(key));
    }
    assert_eq!(lines.last().unwrap()["unverified"], 1, "the block of jpeg");
    n5.file("large/attributes.json", array(json!({"about": "x".repeat(2000)})));
    let (_, found, _) = verify(n5.root(), &["--set", "limits.attributes=1KiB"]);
    assert!(found["large"].contains("oversized-attributes"), "{found:?}");
}

/// If one task walked all levels, they would overflow its stack.
#[test]
fn directories_up_to_the_maximum_depth_are_walked_in_name_order() {
    let n5 = intact_container();
    let below = |levels| ["deep"].iter().chain(&vec!["x"; levels]).copied().collect::<Vec<_>>().join("/");
    // The directories of the blocks are on both sides of a level at which another task begins.
    let nested = format!("{}/a", below(29));
    n5.dataset(&nested, &[14, 7], &[5, 4], "gzip").fill(|position| position[0] != 1, |_| false);
    fs::create_dir_all(n5.root().join(below(299))).unwrap();
    let (status, found, lines) = verify(n5.root(), &[]);
    let too_deep: Vec<_> = found.iter().filter(|(_, kinds)| kinds.contains("unreadable-directory")).collect();
    let [(key, _)] = too_deep[..] else { panic!("{found:?}") };
    assert_eq!((status, key), (1, &below(255)));
    assert_eq!(lines.last().unwrap()["blocks"], 6 + 4);
    let datasets: Vec<_> = lines.iter().filter(|line| line["record"] == "dataset").collect();
    let counts: Vec<_> = datasets.iter().map(|line| (&line["dataset"], &line["missing"])).collect();
    assert_eq!(counts, [(&json!("a"), &json!(0)), (&json!(nested), &json!(2))]);
}

#[test]
fn attributes_among_blocks_do_not_hide_blocks() {
    let n5 = intact_container();
    let whole = fs::read(n5.root().join("a/0/0")).unwrap();
    n5.file("a/0/0", &whole[..whole.len() / 2]);
    for (attributes, key, kind) in [
        ("{}", "a/0/attributes.json", "stray-file"),
        ("{", "a/0", "broken-attributes"),
        (
            r#"{"dimensions":[8],"blockSize":[0],"dataType":"uint8","compression":{"type":"raw"}}"#,
            "a/0",
            "unusable-attributes",
        ),
    ] {
        n5.file("a/0/attributes.json", attributes);
        for further in [&[][..], &["--missing"]] {
            let (status, found, lines) = verify(n5.root(), further);
            assert_eq!(status, 1, "{attributes}");
            assert!(found.get("a/0/0").is_some_and(|kinds| kinds.contains("corrupt-block")), "{attributes}: {found:?}");
            assert!(found.get(key).is_some_and(|kinds| kinds.contains(kind)), "{attributes}: {found:?}");
            let summary = lines.last().unwrap();
            assert_eq!((&summary["blocks"], &summary["missing"]), (&json!(6), &json!(0)), "{attributes}");
            assert!(!found.values().flatten().any(|kind| kind == "missing-range"), "{attributes}: {found:?}");
        }
    }
}

#[test]
fn unlisted_names_where_blocks_may_be_are_errors() {
    let link = |n5: &N5, at: &str| {
        drop(fs::remove_file(n5.root().join(at)));
        drop(fs::remove_dir_all(n5.root().join(at)));
        std::os::unix::fs::symlink("nowhere", n5.root().join(at)).unwrap();
    };
    let n5 = intact_container();
    for (at, key) in [("a/0/0", "a/0/0"), ("a/1", "a/1"), ("b", "")] {
        link(&n5, at);
        let (status, found, lines) = verify(n5.root(), &["--missing"]);
        assert_eq!(status, 1, "{found:?}");
        let kind = if at == "b" { "unlisted-name" } else { "unreadable-file" };
        assert!(found.get(key).is_some_and(|kinds| kinds.contains(kind)), "{at}: {found:?}");
        assert!(!lines.iter().any(|line| line["kind"] == "missing-range"), "{at}: {found:?}");
    }
    let n5 = intact_container();
    link(&n5, "a/attributes.json");
    let (status, found, _) = verify(n5.root(), &[]);
    assert!(status == 1 && found["a/attributes.json"].contains("unreadable-file"), "{found:?}");
    // A listing reports at most 16 of the names that it omits. The unreported ones may be names of blocks.
    let n5 = intact_container();
    for n in 0..40 {
        link(&n5, &format!("a/0/x{n}"));
        link(&n5, &format!("x{n}"));
    }
    let (status, found, lines) = verify(n5.root(), &[]);
    assert_eq!(status, 1, "{found:?}");
    for (key, kind) in [("a/0", "unreadable-file"), ("", "unlisted-name")] {
        let counted = |line: &&Value| line["message"].as_str().is_some_and(|text| text.starts_with("24 or more"));
        let line = lines.iter().filter(counted).find(|line| line["key"] == key).unwrap();
        assert_eq!(line["kind"], kind);
    }
}

#[test]
fn missing_blocks_are_counted_or_listed_as_boxes() {
    let n5 = N5::new();
    let gone = |at: &[u64]| at[0] == 2 || (at[0] == 0 && (1..3).contains(&at[1]));
    n5.dataset("a", &[20, 16], &[5, 4], "raw").fill(|at| !gone(at), |_| false);
    let (status, found, lines) = verify(n5.root(), &[]);
    assert_eq!((status, lines.last().unwrap()["missing"].clone()), (0, json!(6)));
    assert!(found["a"].contains("missing-blocks"));
    let (status, found, lines) = verify(n5.root(), &["--missing"]);
    assert_eq!(status, 1);
    assert!(!found["a"].contains("missing-blocks"));
    let ranges: Vec<&Value> = lines.iter().map(|line| &line["range"]).filter(|range| !range.is_null()).collect();
    assert_eq!(ranges, [&json!([[0, 1], [0, 2]]), &json!([[2, 0], [2, 3]])]);
}

#[test]
fn exit_statuses_suit_cron() {
    let n5 = intact_container();
    let root = n5.root().to_str().unwrap();
    let status = |arguments: &[&str]| {
        let output = run(arguments);
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(status(&["verify", "-q", root]), (0, String::new()));
    // Some client refuses this dataset. That is only a warning, as no data are lost.
    let (code, text) = status(&["verify", "-q", root, "--deny", "warnings"]);
    assert!(code == 1 && text.contains("refused-by-client"), "{text}");
    n5.file("a/0/0", "");
    let (code, text) = status(&["verify", "-q", root]);
    assert!(code == 1 && text.contains("empty-block") && !text.contains("refused-by-client"), "{text}");
    assert_eq!(status(&["verify", root, "b"]).0, 2);
    assert_eq!(status(&["verify", root, "a/0"]).0, 2);
    assert_eq!(status(&["verify", "/nowhere"]).0, 2);
    assert_eq!(status(&["verify", root, "--resume"]).0, 2);
    assert_eq!(status(&["verify", root, "--set", "limits.bogus=1"]).0, 2);
    assert_eq!(status(&["verify", root, "--report", &format!("{root}/a/report")]).0, 2);
    assert_eq!(fs::read_dir(n5.root().join("a")).unwrap().count(), 4, "nothing is written into the container");
    let folder = TempDir::new().unwrap();
    let other = folder.path().join("other");
    fs::write(&other, "something\n").unwrap();
    let (code, _) = status(&["verify", root, "--report", other.to_str().unwrap(), "--resume"]);
    assert_eq!((code, fs::read_to_string(&other).unwrap().as_str()), (2, "something\n"));
}

#[test]
fn a_report_never_overwrites_another_file() {
    let n5 = intact_container();
    let root = n5.root().to_str().unwrap();
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let status = |report: &Path, further: &[&str]| {
        let arguments = [&["verify", root, "--report", report.to_str().unwrap()], further].concat();
        run(&arguments).status.code().unwrap()
    };
    let block = n5.root().join("a/0/0");
    let bytes = fs::read(&block).unwrap();
    std::os::unix::fs::symlink(&block, path("link")).unwrap();
    std::os::unix::fs::symlink(n5.root().join("new"), path("dangling")).unwrap();
    std::os::unix::fs::symlink(n5.root(), path("directory")).unwrap();
    fs::hard_link(&block, path("hard")).unwrap();
    n5.file("a/2/0", "");
    fs::hard_link(n5.root().join("a/2/0"), path("empty-hard")).unwrap();
    fs::write(path("text"), "something\n").unwrap();
    fs::write(path("line"), "something").unwrap();
    fs::write(path("json"), "{\"record\":\"finding\"}\n").unwrap();
    for name in ["link", "dangling", "directory/new", "hard", "empty-hard", "text", "line", "json"] {
        let before = fs::read(path(name)).ok();
        for further in [&[][..], &["--resume"]] {
            assert_eq!(status(&path(name), further), 2, "{name} {further:?}");
            assert_eq!(fs::read(path(name)).ok(), before, "{name} {further:?}");
        }
    }
    assert!(fs::read(&block).unwrap() == bytes && !n5.root().join("new").exists());
    fs::write(path("empty"), "").unwrap();
    for name in ["empty", "empty", "fresh", "fresh"] {
        assert_eq!(status(&path(name), &[]), 1, "{name}");
        assert_eq!(lines(&path(name)).last().unwrap()["complete"], true);
    }
}

#[test]
fn a_block_beyond_the_budget_is_reported_with_a_sufficient_budget() {
    let n5 = N5::new();
    let attributes =
        r#"{"dimensions":[3000000],"blockSize":[3000000],"dataType":"uint8","compression":{"type":"gzip"}}"#;
    n5.file("a/attributes.json", attributes);
    let header = [&[0, 0, 0, 1][..], &3_000_000_u32.to_be_bytes()].concat();
    n5.file("a/0", [header, gzip(&vec![7; 3_000_000])].concat());
    let (status, found, lines) = verify(n5.root(), &["--set", "limits.decode_budget=2MiB"]);
    assert_eq!(status, 1);
    assert!(found["a/0"].contains("unverified-block"), "{found:?}");
    let line = lines.iter().find(|line| line["kind"] == "unverified-block").unwrap();
    let advice = line["advice"].as_str().unwrap();
    let more = advice.rsplit(' ').next().unwrap();
    assert!(more.starts_with("limits.decode_budget="), "{advice}");
    let (status, found, _) = verify(n5.root(), &["--set", more]);
    assert!(status == 0 && !found.contains_key("a/0"), "{found:?}");
}

/// Waits until the report has more than `before` checkpoints. Returns false if the run ends first.
fn wait_for_checkpoint(child: &mut Child, report: &Path, before: usize) -> bool {
    let started = Instant::now();
    while started.elapsed() < TIMEOUT {
        let text = fs::read_to_string(report).unwrap_or_default();
        if text.matches(r#""record":"checkpoint""#).count() > before {
            return true;
        }
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::yield_now();
    }
    panic!("no checkpoint");
}

/// Creates a damaged container, and the report of an uninterrupted run.
fn damaged_container() -> (N5, TempDir, PathBuf) {
    let n5 = N5::new();
    for name in ["a", "b", "c/d"] {
        let dataset = n5.dataset(name, &[200, 120], &[5, 4], "gzip");
        dataset.fill(|at| at[0] != 5 && at[1] != 7, |_| false);
        n5.file(&format!("{name}/11/3"), "");
        n5.file(&format!("{name}/20/12"), encode(&[6, 4], &[0; 24], true));
        n5.file(&format!("{name}/30/x.tmp"), "");
    }
    let folder = TempDir::new().unwrap();
    let report = folder.path().join("undisturbed");
    let output = run(&["verify", n5.root().to_str().unwrap(), "--missing", "--report", report.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
    (n5, folder, report)
}

#[test]
fn a_killed_run_resumes_where_it_stopped() {
    let (n5, folder, undisturbed) = damaged_container();
    let report = folder.path().join("killed");
    let arguments =
        ["verify", n5.root().to_str().unwrap(), "--missing", "--report", report.to_str().unwrap(), "--resume"];
    let mut child = command(&arguments).stdout(Stdio::null()).spawn().unwrap();
    wait_for_checkpoint(&mut child, &report, 0);
    child.kill().unwrap();
    child.wait().unwrap();
    let before = fs::read_to_string(&report).unwrap().matches(r#""record":"checkpoint""#).count();
    let mut child = command(&arguments).stdout(Stdio::null()).spawn().unwrap();
    if wait_for_checkpoint(&mut child, &report, before) {
        let terminated = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        assert!(terminated.success());
        let status = child.wait().unwrap().code();
        // The run may have ended before the signal.
        assert!(matches!(status, Some(1 | 3)), "{status:?}");
        assert_eq!(lines(&report).last().unwrap()["complete"], json!(status == Some(1)));
    }
    let output = run(&arguments);
    assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
    assert_eq!(results(&report), results(&undisturbed));
}

#[test]
fn a_report_truncated_anywhere_is_completed() {
    let (n5, folder, undisturbed) = damaged_container();
    let whole = fs::read(&undisturbed).unwrap();
    let report = folder.path().join("cut");
    let arguments =
        ["verify", n5.root().to_str().unwrap(), "--missing", "--report", report.to_str().unwrap(), "--resume"];
    for part in [0, 3, 40, 55, 70, 85, 99] {
        fs::write(&report, &whole[..whole.len() * part / 100]).unwrap();
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(1), "{part}: {}", output_text(&output));
        assert_eq!(results(&report), results(&undisturbed), "{part}");
    }
}

#[test]
fn a_report_of_another_version_or_other_limits_is_not_resumed() {
    let (n5, folder, undisturbed) = damaged_container();
    let whole = fs::read_to_string(&undisturbed).unwrap();
    let (first, rest) = whole.split_once('\n').unwrap();
    let report = folder.path().join("other");
    let mut header: Value = serde_json::from_str(first).unwrap();
    assert_eq!((&header["symlinks"], &header["server"]), (&json!("inside"), &json!(env!("CARGO_PKG_VERSION"))));
    header["server"] = json!("0.0.1");
    let other = format!("{header}\n{rest}");
    let root = n5.root().to_str().unwrap();
    for (text, setting, words) in [
        (other.as_str(), None, "n5-server 0.0.1"),
        (&whole, Some("limits.decode_budget=123MiB"), "limits.decode_budget = "),
        (&whole, Some("container_defaults.symlinks=deny"), "container_defaults.symlinks = inside"),
    ] {
        fs::write(&report, text).unwrap();
        let mut arguments = vec!["verify", root, "--missing", "--report", report.to_str().unwrap(), "--resume"];
        arguments.extend(setting.iter().flat_map(|setting| ["--set", setting]));
        let output = run(&arguments);
        assert!(
            output.status.code() == Some(2) && output_text(&output).contains(words),
            "{words}: {}",
            output_text(&output)
        );
        assert_eq!(fs::read_to_string(&report).unwrap(), text);
    }
}

#[test]
fn an_edited_report_is_resumed_only_as_far_as_it_is_intact() {
    let (n5, folder, _) = damaged_container();
    n5.dataset("z", &[200, 120], &[2, 4], "gzip").fill(|_| true, |_| false);
    let report = folder.path().join("changed");
    let root = n5.root().to_str().unwrap();
    let arguments = ["verify", root, "--missing", "--report", report.to_str().unwrap(), "--resume"];
    assert_eq!(run(&arguments).status.code(), Some(1));
    let whole = results(&report);
    // Cuts a report off after its last checkpoint, as if the run had been stopped there.
    let cut = |text: &str| {
        let at = text.rfind(r#""record":"checkpoint""#).unwrap();
        text[..=at + text[at..].find('\n').unwrap()].to_owned()
    };
    let is_far = |text: &str| text.contains(r#""kind":"empty-block""#) && text.contains(r#""record":"dataset""#);
    let stopped = (0..20).find_map(|_| {
        fs::write(&report, "").unwrap();
        let mut child = command(&arguments).stdout(Stdio::null()).spawn().unwrap();
        while child.try_wait().unwrap().is_none() {
            if is_far(&fs::read_to_string(&report).unwrap()) {
                assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
                child.wait().unwrap();
            }
        }
        Some(cut(&fs::read_to_string(&report).unwrap())).filter(|text| is_far(text))
    });
    let stopped = stopped.unwrap();
    let line_with = |text: &str| {
        let line = stopped.lines().rfind(|line| line.contains(text)).unwrap();
        (line.to_owned(), serde_json::from_str::<Value>(line).unwrap())
    };
    let (checkpoint, _) = line_with(r#""record":"checkpoint""#);
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut line: Value = serde_json::from_str(&checkpoint).unwrap();
        change(&mut line);
        stopped.replace(&checkpoint, &line.to_string())
    };
    let (finding, _) = line_with(r#""kind":"empty-block""#);
    let long = format!("{{\"record\":\"finding\",\"message\":\"{}", "x".repeat(9 << 20));
    let cases: Vec<(&str, String)> = vec![
        ("skips", changed(&|line| line["after"] = json!("zzz"))),
        ("skips all", changed(&|line| line["root"] = json!(7))),
        ("forgets", changed(&|line| line["totals"]["errors"] = json!(0))),
        ("overflows", changed(&|line| line["totals"]["groups"] = json!(u64::MAX))),
        ("forgets a finding", stopped.replace(&format!("{finding}\n"), "")),
        ("says a finding twice", stopped.replace(&finding, &format!("{finding}\n{finding}"))),
        ("is garbled", stopped.replace(&finding, &finding.replace(':', ";"))),
        ("has no sum", changed(&|line| drop(line.as_object_mut().unwrap().remove("sum")))),
        ("has a line without an end", format!("{}{long}", stopped.replace(&checkpoint, "{}"))),
        ("has another record", stopped.replace(&finding, "{\"record\":\"spam\"}")),
    ];
    for (what, text) in cases {
        fs::write(&report, text).unwrap();
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(1), "{what}: {}", output_text(&output));
        assert!(output_text(&output).contains("that this program has not written"), "{what}: {}", output_text(&output));
        assert_eq!(results(&report), whole, "{what}");
    }
    fs::write(&report, &stopped).unwrap();
    let output = run(&arguments);
    assert!(
        output_text(&output).contains("resumed after") && !output_text(&output).contains("has not written"),
        "an unchanged report is not resumed"
    );
    // A resumed report can be resumed again.
    fs::write(&report, cut(&fs::read_to_string(&report).unwrap())).unwrap();
    let output = run(&arguments);
    assert!(
        output_text(&output).contains("resumed after") && !output_text(&output).contains("has not written"),
        "{}",
        output_text(&output)
    );
    assert_eq!(results(&report), whole);
}

#[test]
fn attributes_changed_since_the_last_run_are_reported_once() {
    let (n5, folder, undisturbed) = damaged_container();
    let whole = fs::read_to_string(&undisturbed).unwrap();
    let (before, _) = whole.rsplit_once(r#""record":"checkpoint""#).unwrap();
    let at = before.len() + whole[before.len()..].find('\n').unwrap() + 1;
    let report = folder.path().join("changed");
    fs::write(&report, &whole[..at]).unwrap();
    let attributes = fs::read_to_string(n5.root().join("a/attributes.json")).unwrap();
    n5.file("a/attributes.json", attributes.replace("uint16", "int16 ").replace("int16 \"", "int16\""));
    let arguments =
        ["verify", n5.root().to_str().unwrap(), "--missing", "--report", report.to_str().unwrap(), "--resume"];
    run(&arguments);
    let changed = |report: &Path| -> Vec<Value> {
        results(report)
            .into_iter()
            .filter(|line| line["kind"] == "changed-since")
            .map(|line| line["key"].clone())
            .collect()
    };
    assert_eq!(changed(&report), [json!("a")]);
}

#[test]
fn verify_uses_only_the_memory_of_its_budgets() {
    let n5 = N5::new();
    // 100 blocks of 8 MiB, each a few KiB when stored.
    let attributes =
        r#"{"dimensions":[838860800],"blockSize":[8388608],"dataType":"uint8","compression":{"type":"gzip"}}"#;
    n5.file("a/attributes.json", attributes);
    let block = [&[0, 0, 0, 1][..], &8_388_608_u32.to_be_bytes(), &gzip(&vec![7; 8 << 20])].concat();
    for n in 0..100 {
        n5.file(&format!("a/{n}"), &block);
    }
    let root = n5.root().to_str().unwrap();
    let mut child =
        command(&["verify", root, "--set", "limits.decode_budget=32MiB"]).stdout(Stdio::null()).spawn().unwrap();
    let mut most_kib = 0_u64;
    let started = Instant::now();
    let status = loop {
        let text = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = line.and_then(|line| line.trim().split(' ').next()?.parse().ok());
        most_kib = most_kib.max(peak.unwrap_or(0));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(started.elapsed() < TIMEOUT);
        std::thread::yield_now();
    };
    assert_eq!(status.code(), Some(0));
    // The bound covers the budgets, twice the size of the program, and the threads.
    assert!((1024..128 << 10).contains(&most_kib), "{most_kib} KiB");
}

#[test]
fn progress_is_shown_on_a_terminal_but_not_in_a_pipe() {
    let n5 = intact_container();
    let root = n5.root().to_str().unwrap();
    let piped = run(&["verify", root]);
    assert!(piped.stderr.is_empty(), "{}", output_text(&piped));
    let line = format!("{} verify {root}", env!("CARGO_BIN_EXE_n5-server"));
    let Ok(drawn) = Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output() else {
        return skip_without("script");
    };
    let text = String::from_utf8_lossy(&drawn.stdout).into_owned();
    assert!(text.contains("0/6 blocks") && text.contains("1 dataset in 1 group: 6 blocks"), "{text:?}");
}

#[test]
fn the_corpus_of_other_programs_has_no_errors() {
    let Some(corpus) = corpus() else { return };
    let manifest = fs::read_to_string(corpus.join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    let valid: BTreeSet<&str> = manifest["datasets"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|dataset| dataset["expect"] == "equal")
        .map(|dataset| dataset["path"].as_str().unwrap())
        .collect();
    let (_, found, lines) = verify(&corpus, &["--set", "limits.decode_budget=512MiB"]);
    assert!(valid.len() > 300 && lines.last().unwrap()["datasets"].as_u64().unwrap() >= valid.len() as u64);
    let errors: Vec<&str> =
        FINDING_KINDS.iter().filter(|row| row.severity.name() == "error").map(|row| row.name).collect();
    for (key, kinds) in found {
        let dataset = valid.iter().find(|path| key == **path || key.starts_with(&format!("{path}/")));
        let wrong: Vec<&String> = kinds.iter().filter(|kind| errors.contains(&kind.as_str())).collect();
        assert!(dataset.is_none() || wrong.is_empty(), "{key}: {wrong:?}");
    }
}

/// A store in which some directories and files cannot be read.
#[derive(Debug)]
struct UnreadableStore(MemoryStore);

fn refuse(key: &Key) -> StoreError {
    let cause = Arc::new(std::io::Error::from_raw_os_error(5));
    StoreError::Io { action: "read", key: key.clone(), cause }
}

#[async_trait]
impl Store for UnreadableStore {
    fn backend(&self) -> &'static str {
        "failing"
    }

    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        self.0.head(key).await
    }

    async fn get(&self, key: &Key, inline: &InlineLimit) -> Result<Option<Object>, StoreError> {
        match key.as_str() {
            // A local store returns the same error if permission is denied.
            "a/1" | "closed/attributes.json" => Ok(None),
            "a/0" | "b/0/attributes.json" => Err(refuse(key)),
            _ => self.0.get(key, inline).await,
        }
    }

    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError> {
        self.0.is_directory(key).await
    }

    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        keep: EntryFilter,
    ) -> Result<Option<Listing>, StoreError> {
        match key.as_str() {
            "ill" | "c/0" => Err(refuse(key)),
            "shut" => Ok(None),
            _ => self.0.list(key, after, limit, keep).await,
        }
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.0.probe().await
    }
}

/// Findings as key and kind, the last checkpoint, and the messages of the findings.
#[derive(Default)]
struct RecordedFindings(Vec<(String, &'static str)>, Option<Checkpoint>, Vec<String>);

impl EventSink for RecordedFindings {
    fn record(&mut self, event: VerifyEvent<'_>) -> std::io::Result<()> {
        if let VerifyEvent::Finding(finding) = event {
            self.0.push((finding.key.clone(), finding.kind));
            self.2.push(finding.message.clone());
        } else if let VerifyEvent::Checkpoint(checkpoint) = event {
            self.1 = Some(checkpoint.clone());
        }
        Ok(())
    }

    fn wants_checkpoint(&self) -> bool {
        false
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_objects_are_reported_and_the_rest_is_verified() {
    let attributes = r#"{"dimensions":[12],"blockSize":[4],"dataType":"uint8","compression":{"type":"raw"}}"#;
    let block: &[u8] = &[0, 0, 0, 1, 0, 0, 0, 4, 1, 2, 3, 4];
    let flat = r#"{"dimensions":[4,1],"blockSize":[4,1],"dataType":"uint8","compression":{"type":"raw"}}"#;
    let flat_block: &[u8] = &[0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 1, 1, 2, 3, 4];
    let objects = [
        ("attributes.json", br#"{"n5":"4.0.0"}"#.as_slice()),
        ("a/attributes.json", attributes.as_bytes()),
        ("a/0", block),
        ("a/1", block),
        ("a/2", block),
        ("b/attributes.json", flat.as_bytes()),
        ("b/0/0", flat_block),
        ("c/attributes.json", flat.as_bytes()),
        ("c/0/0", flat_block),
        ("closed/attributes.json", attributes.as_bytes()),
        ("ill/x", b""),
        ("shut/x", b""),
    ];
    let objects = objects.map(|(key, bytes)| (Key::parse(key).unwrap(), bytes.to_vec().into()));
    let store: Arc<dyn Store> = Arc::new(UnreadableStore(MemoryStore::new(objects, 0)));
    let container = Container::new(Arc::clone(&store), Resources::new(settings()));
    let job =
        Verifier { container, store, roots: vec![Key::root()], report_missing: false, stall_timeout: Duration::ZERO };
    let mut recorded = RecordedFindings::default();
    let VerifyOutcome::Complete(totals) = job.run(None, &mut recorded, std::future::pending()).await.unwrap() else {
        panic!("stopped")
    };
    assert_eq!((totals.blocks, totals.unverified, totals.stored_bytes), (4, 2, 28));
    for expected in [
        ("a/0", "unreadable-file"),
        ("a/1", "unreadable-file"),
        ("b/0", "unreadable-file"),
        ("closed/attributes.json", "unreadable-file"),
        ("ill", "unreadable-directory"),
        ("c/0", "unreadable-directory"),
        ("c", "missing-blocks"),
        ("shut", "unreadable-directory"),
    ] {
        assert!(
            recorded.0.iter().any(|(key, kind)| (key.as_str(), *kind) == expected),
            "{expected:?}: {:?}",
            recorded.0
        );
    }
    // Messages do not claim that unreadable blocks read as zeros.
    assert!(!recorded.2.iter().any(|message| message.contains("zeros")), "{:?}", recorded.2);
}

impl RecordedFindings {
    fn has(&self, key: &str, kind: &str) -> bool {
        self.0.iter().any(|(at, what)| at == key && *what == kind)
    }

    fn has_any(&self, kind: &str) -> bool {
        self.0.iter().any(|(_, what)| *what == kind)
    }
}

/// Creates an undamaged dataset, `a`, of 3 blocks, in a store that can be made to fail.
fn faulty_store() -> Arc<Faulty> {
    let attributes = r#"{"dimensions":[12],"blockSize":[4],"dataType":"uint8","compression":{"type":"raw"}}"#;
    let block: &[u8] = &[0, 0, 0, 1, 0, 0, 0, 4, 1, 2, 3, 4];
    let objects = [("a/attributes.json", attributes.as_bytes()), ("a/0", block), ("a/1", block), ("a/2", block)];
    let objects = objects.map(|(key, bytes)| (Key::parse(key).unwrap(), bytes.to_vec().into()));
    Faulty::new(Arc::new(MemoryStore::new(objects, 0)))
}

fn job(store: &Arc<Faulty>, patience: Duration) -> Verifier {
    let store: Arc<dyn Store> = Arc::<Faulty>::clone(store);
    let container = Container::new(Arc::clone(&store), Resources::new(settings()));
    Verifier { container, store, roots: vec![Key::root()], report_missing: false, stall_timeout: patience }
}

async fn run_verify(
    store: &Arc<Faulty>,
    patience: Duration,
    earlier: Option<Checkpoint>,
) -> (VerifyOutcome, RecordedFindings) {
    let mut recorded = RecordedFindings::default();
    let earlier = earlier.map(|checkpoint| PreviousRun { checkpoint, ..PreviousRun::default() });
    let running = job(store, patience).run(earlier, &mut recorded, std::future::pending());
    let ended = tokio::time::timeout(TIMEOUT, running).await.expect("the run never ends").unwrap();
    (ended, recorded)
}

fn complete(ended: VerifyOutcome) -> Totals {
    let VerifyOutcome::Complete(totals) = ended else { panic!("{ended:?}") };
    totals
}

/// Returns the checkpoint of a run after the first block of `a`.
async fn checkpoint_within_a(store: &Arc<Faulty>) -> Checkpoint {
    struct First(Option<Checkpoint>);
    impl EventSink for First {
        fn record(&mut self, event: VerifyEvent<'_>) -> std::io::Result<()> {
            if let VerifyEvent::Checkpoint(checkpoint) = event
                && checkpoint.after == "a/0"
            {
                self.0 = Some(checkpoint.clone());
            }
            Ok(())
        }

        fn wants_checkpoint(&self) -> bool {
            true
        }
    }
    let mut first = First(None);
    job(store, Duration::ZERO).run(None, &mut first, std::future::pending()).await.unwrap();
    first.0.unwrap()
}

/// Returns transient faults: they end when the storage as a whole recovers.
fn transient_faults() -> [Fault; 4] {
    [
        Fault::Fails(StoreError::Stalled("read", Key::root())),
        Fault::Fails(StoreError::Timeout("read", Key::root())),
        Fault::Fails(StoreError::RootMissing("it is not there".to_owned())),
        Fault::Errno(24),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transient_storage_fault_causes_no_findings() {
    let store = faulty_store();
    let (ended, undisturbed) = run_verify(&store, TIMEOUT, None).await;
    let expected = complete(ended);
    assert_eq!((expected.blocks, expected.unverified), (3, 0));
    let checkpoint = checkpoint_within_a(&store).await;
    for fault in transient_faults() {
        for earlier in [None, Some(checkpoint.clone())] {
            // The first access to every key fails.
            let failed_keys = Mutex::new(BTreeSet::new());
            store.begin(move |key| failed_keys.lock().unwrap().insert(key.as_str().to_owned()), fault.clone());
            let (ended, recorded) = run_verify(&store, TIMEOUT, earlier.clone()).await;
            assert!(store.injected() > 3);
            assert_eq!(complete(ended), expected);
            assert!(earlier.is_some() || recorded.0 == undisturbed.0, "{:?}", recorded.0);
            assert!(!recorded.has_any("changed-since") && !recorded.has_any("unreadable-file"), "{:?}", recorded.0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_storage_ends_the_run_but_a_single_unreadable_file_is_reported() {
    let store = faulty_store();
    let expected = complete(run_verify(&store, TIMEOUT, None).await.0);
    for fault in transient_faults() {
        let is_gone = AtomicBool::new(false);
        let hits = move |key: &Key| {
            is_gone.fetch_or(key.as_str() == "a/2", Ordering::SeqCst);
            is_gone.load(Ordering::SeqCst) && matches!(key.as_str(), "" | "a/2")
        };
        store.begin(hits, fault.clone());
        let (ended, recorded) = run_verify(&store, Duration::ZERO, None).await;
        assert!(matches!(&ended, VerifyOutcome::StorageStalled(_, why) if !why.is_empty()), "{ended:?}");
        assert!(!recorded.has_any("unreadable-file"), "{:?}", recorded.0);
        store.end();
        // The run can be resumed from its last checkpoint.
        assert_eq!(complete(run_verify(&store, TIMEOUT, recorded.1).await.0), expected);
        store.begin(|key| key.as_str() == "a/2", fault);
        let (ended, recorded) = run_verify(&store, Duration::ZERO, None).await;
        assert_eq!(complete(ended).unverified, 1);
        assert!(recorded.has("a/2", "unreadable-file"), "{:?}", recorded.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_attributes_do_not_count_as_changed_and_the_run_can_be_stopped() {
    let store = faulty_store();
    let checkpoint = checkpoint_within_a(&store).await;
    store.begin(|key| key.as_str() == "a/attributes.json", Fault::Errno(5));
    let (_, recorded) = run_verify(&store, TIMEOUT, Some(checkpoint.clone())).await;
    assert!(recorded.has("a", "unreadable-file") && !recorded.has_any("changed-since"), "{:?}", recorded.0);
    store.begin(|key| key.as_str() == "a/attributes.json", Fault::Hangs);
    let earlier = PreviousRun { checkpoint, ..PreviousRun::default() };
    let mut recorded = RecordedFindings::default();
    let stop = async { assert!(wait_until(async || store.hanging() > 0).await, "no request hangs in the store") };
    let stopping = job(&store, TIMEOUT).run(Some(earlier), &mut recorded, stop);
    let ended = tokio::time::timeout(TIMEOUT, stopping).await.expect("the run does not stop").unwrap();
    assert!(matches!(ended, VerifyOutcome::Stopped(_)), "{ended:?}");
}

#[tokio::test]
async fn inspect_prints_the_same_as_info() {
    let n5 = intact_container();
    let root = n5.root().to_str().unwrap();
    let tree = run(&["inspect", root]);
    assert_eq!(tree.status.code(), Some(0), "{}", output_text(&tree));
    assert!(output_text(&tree).contains("uint16 14 x 7  gzip"), "{}", output_text(&tree));
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/demo.n5");
    let demo_tree = output_text(&run(&["inspect", demo]));
    assert!(demo_tree.ends_with("total\n  6 groups, 21 datasets, 19.05 MiB when decoded\n"), "{demo_tree}");
    let text = output_text(&run(&["inspect", root, "a"]));
    for words in ["a: dataset", "5 x 4 in a grid of 3 x 2: 6", "Neuroglancer, TensorStore", "refused by"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let printed = run(&["inspect", root, "a", "--json"]);
    let mut printed: Value = serde_json::from_slice(&printed.stdout).unwrap();
    let mut answered = Client::of(n5.root()).get("/info/a").await.json();
    // These members contain the server's address.
    for document in [&mut printed, &mut answered] {
        document["urls"].take();
        document["tensorstore"]["spec"].take();
    }
    assert_eq!(printed, answered);
    let missing = run(&["inspect", root, "nothing"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(output_text(&missing).contains("nothing"), "{}", output_text(&missing));
    let within = output_text(&run(&["inspect", &format!("{root}/a")]));
    assert!(within.contains(": dataset"), "{within}");
}

#[test]
fn only_the_named_group_is_verified() {
    let n5 = N5::new();
    n5.dataset("bad", &[4], &[4], "raw");
    n5.file("bad/0", [0, 0, 0]);
    n5.dataset("em/s0", &[4], &[4], "raw").fill(|_| true, |_| false);
    n5.dataset("em/s1", &[4], &[4], "raw").fill(|_| true, |_| false);
    let root = n5.root().to_str().unwrap();
    for (arguments, status, datasets) in [
        (vec!["verify", root, "em"], 0, "2 datasets"),
        (vec!["verify", root, "em/s1", "em/s0"], 0, "2 datasets"),
        (vec!["verify", root, "em/s1"], 0, "1 dataset"),
        (vec!["verify", root], 1, "3 datasets"),
        (vec!["verify", root, "bad"], 1, "1 dataset"),
    ] {
        let output = run(&arguments);
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
        assert!(text.contains(datasets), "{arguments:?}: {text}");
    }
}

#[test]
fn a_large_tree_is_cut_off_and_says_so() {
    let folder = TempDir::new().unwrap();
    for number in 0..510 {
        fs::create_dir(folder.path().join(format!("g{number:03}"))).unwrap();
    }
    let text = output_text(&run(&["inspect", folder.path().to_str().unwrap()]));
    assert!(text.contains("g499/") && !text.contains("g500/"), "{text}");
    assert!(text.contains("... and more: name a group to see what is below it"), "{text}");
    assert!(text.contains("total of what is shown\n  500 groups, 0 datasets"), "{text}");
}

#[test]
fn a_misspelled_compression_is_recognised() {
    for (name, suggestion) in
        [("gzp", Some("gzip")), ("GZIP", Some("gzip")), ("zstandard", None), ("blsoc", Some("blosc")), ("jpeg", None)]
    {
        let folder = TempDir::new().unwrap();
        let attributes =
            json!({"dimensions": [4], "blockSize": [4], "dataType": "uint8", "compression": {"type": name}});
        fs::write(folder.path().join("attributes.json"), attributes.to_string()).unwrap();
        let text = output_text(&run(&["verify", folder.path().to_str().unwrap()]));
        assert!(text.contains(&format!("compression {name:?} is not supported")), "{text}");
        let words = suggestion.map(|known| format!("did the writer mean {known:?}?"));
        assert_eq!(text.contains("did the writer mean"), words.is_some(), "{text}");
        assert!(words.is_none_or(|words| text.contains(&words)), "{text}");
    }
}

#[tokio::test]
async fn an_invalid_voxel_size_is_explained_once_everywhere() {
    let n5 = N5::new();
    let advice = "write a list of 2 numbers greater than 0, one per axis, or leave it out";
    for (resolution, fault) in [
        (json!([0, 4]), "0 is not greater than 0, so the voxel size along axis 1 is unknown"),
        (json!([-4, 4]), "-4 is not greater than 0, so the voxel size along axis 1 is unknown"),
        (json!([4]), "it has 1 number for 2 axes, so the voxel size is unknown"),
        (json!(["4", "4"]), "\"4\" and \"4\" are not numbers, so the voxel size is unknown"),
    ] {
        let attributes = json!({"dimensions": [4, 4], "blockSize": [4, 4], "dataType": "uint8", "compression": {"type": "raw"},
            "units": ["nm", "nm"], "resolution": resolution});
        n5.file("a/attributes.json", attributes.to_string());
        n5.file("a/0/0", [&[0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 4][..], &[1; 16]].concat());
        let client = Client::of(n5.root());
        let sentence = format!("resolution {resolution} is wrong: {fault}; {advice}");
        let info = client.get("/info/a").await.json();
        let said = info["problems"].as_array().unwrap().iter().filter(|text| text.as_str().unwrap().contains(fault));
        assert_eq!(said.collect::<Vec<_>>(), [&json!(sentence)], "{info}");
        let known = if fault.contains("along") { json!([null, 4.0]) } else { json!(null) };
        assert_eq!(info["resolution"], known, "{resolution}");
        let root = n5.root().to_str().unwrap();
        for command in ["verify", "inspect"] {
            let text =
                output_text(&run(&if command == "verify" { vec![command, root] } else { vec![command, root, "a"] }));
            assert_eq!(text.matches(fault).count(), 1, "{text}");
        }
        // No view says that the unknown size is 1 nm.
        let zarr3 = client.get("/zarr3/a/zarr.json").await.json();
        let unit = if known.is_null() { json!(null) } else { json!(["4 nm", null]) };
        assert_eq!(zarr3["dimension_units"], json!(null), "not a member of the array");
        assert_eq!(zarr3["attributes"].get("dimension_units").unwrap_or(&json!(null)), &unit, "{zarr3}");
        let served = client.get("/as/raw/a/attributes.json").await.json();
        let expected =
            if known.is_null() { [json!(null), json!(null)] } else { [json!(["", "nm"]), json!([1.0, 4.0])] };
        assert_eq!([served["units"].clone(), served["resolution"].clone()], expected, "{served}");
    }
}

#[test]
fn control_characters_in_attributes_are_escaped() {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("a")).unwrap();
    let attributes = json!({ "dimensions": [4], "blockSize": [4], "dataType": "uint8", "units": ["\u{9b}31mµm"],
                             "compression": { "type": "odd\u{1b}]0;title\u{7}\nerror    forged" } });
    fs::write(folder.path().join("a/attributes.json"), attributes.to_string()).unwrap();
    let root = folder.path().to_str().unwrap();
    for arguments in [vec!["inspect", root], vec!["inspect", root, "a"], vec!["verify", root]] {
        let text = output_text(&run(&arguments));
        assert!(text.contains("odd\\u{1b}]0;title\\u{7}\\nerror    forged"), "{text:?}");
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        assert!(!text.lines().any(|line| line.starts_with("error    forged")), "{text}");
    }
}

/// A store that lists after varying delays, and counts concurrent calls.
#[derive(Debug)]
struct DelayedStore {
    inner: MemoryStore,
    asked: AtomicUsize,
    waiting: AtomicUsize,
    most_waiting: AtomicUsize,
}

impl DelayedStore {
    async fn wait_unevenly(&self) {
        let waiting = self.waiting.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_waiting.fetch_max(waiting, Ordering::SeqCst);
        let number = self.asked.fetch_add(1, Ordering::SeqCst) as u64;
        tokio::time::sleep(Duration::from_micros(number * 7919 % 3000)).await;
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Store for DelayedStore {
    fn backend(&self) -> &'static str {
        "uneven"
    }

    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        self.inner.head(key).await
    }

    async fn get(&self, key: &Key, inline: &InlineLimit) -> Result<Option<Object>, StoreError> {
        self.inner.get(key, inline).await
    }

    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError> {
        self.inner.is_directory(key).await
    }

    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        keep: EntryFilter,
    ) -> Result<Option<Listing>, StoreError> {
        self.wait_unevenly().await;
        self.inner.list(key, after, limit, keep).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.inner.probe().await
    }
}

/// All findings and datasets in their order, and all checkpoints.
#[derive(Default)]
struct RecordedEvents(Vec<String>, Vec<Checkpoint>);

impl EventSink for RecordedEvents {
    fn record(&mut self, event: VerifyEvent<'_>) -> std::io::Result<()> {
        match event {
            VerifyEvent::Finding(finding) => {
                self.0.push(format!("{} {} {:?}", finding.kind, finding.key, finding.range));
            }
            VerifyEvent::DatasetDone(tally) => self.0.push(format!("{tally:?}")),
            VerifyEvent::Progress(_) => {}
            VerifyEvent::Checkpoint(checkpoint) => self.1.push(checkpoint.clone()),
        }
        Ok(())
    }

    fn wants_checkpoint(&self) -> bool {
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrently_walked_directories_are_reported_in_name_order() {
    let grid = r#"{"dimensions":[6,5,40],"blockSize":[1,1,1],"dataType":"uint8","compression":{"type":"raw"}}"#;
    let block: &[u8] = &[0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 9];
    let mut objects = vec![("attributes.json".to_owned(), br#"{"n5":"4.0.0"}"#.as_slice())];
    for dataset in ["a", "b/c", "b/d/e"] {
        objects.push((format!("{dataset}/attributes.json"), grid.as_bytes()));
        for (x, y) in (0..6).flat_map(|x| (0..5).map(move |y| (x, y))).filter(|(x, y)| (x + y) % 4 != 3) {
            // Some directories have more entries than a prefetched one may buffer, and some files are no blocks.
            objects.extend((0..40).filter(|z| z % 7 != x).map(|z| (format!("{dataset}/{x}/{y}/{z}"), block)));
            objects.push((format!("{dataset}/{x}/{y}/notes"), b"x"));
        }
        objects.extend((0..300).map(|n| (format!("{dataset}/3/x/stray{n}"), b"x".as_slice())));
    }
    let objects: Vec<_> = objects.into_iter().map(|(key, bytes)| (Key::parse(&key).unwrap(), bytes.into())).collect();
    let uneven = || DelayedStore {
        inner: MemoryStore::new(objects.clone(), 0),
        asked: AtomicUsize::new(0),
        waiting: AtomicUsize::new(0),
        most_waiting: AtomicUsize::new(0),
    };
    let run = async |store: Arc<dyn Store>, checkpoint: Option<Checkpoint>| {
        let mut recorded = RecordedEvents::default();
        let container = Container::new(Arc::clone(&store), Resources::new(settings()));
        let job = Verifier { container, store, roots: vec![Key::root()], report_missing: true, stall_timeout: TIMEOUT };
        let earlier = checkpoint.map(|checkpoint| PreviousRun { checkpoint, ..PreviousRun::default() });
        let totals = complete(job.run(earlier, &mut recorded, std::future::pending()).await.unwrap());
        (totals, recorded)
    };
    let (expected, in_order) = run(Arc::new(MemoryStore::new(objects.clone(), 0)), None).await;
    assert_eq!((expected.datasets, expected.unverified), (3, 0));
    let files: Vec<&str> = in_order.1.iter().map(|checkpoint| checkpoint.after.as_str()).collect();
    let by_segments = |key: &&str| key.split('/').map(str::to_owned).collect::<Vec<_>>();
    assert!(files.len() > 2000 && files.is_sorted_by_key(by_segments), "{} files", files.len());
    let store = Arc::new(uneven());
    let (totals, slowly) = run(Arc::<DelayedStore>::clone(&store), None).await;
    assert!(totals == expected && slowly.0 == in_order.0 && slowly.1 == in_order.1);
    // The walk prefetches at most eight directories on each of five levels, in addition to the current one.
    let most = store.most_waiting.load(Ordering::SeqCst);
    assert!((4..=5 * 8 + 1).contains(&most), "{most} at once");
    // A run can be resumed from any checkpoint.
    for checkpoint in in_order.1.iter().step_by(401) {
        let (totals, rest) = run(Arc::new(uneven()), Some(checkpoint.clone())).await;
        assert!(totals == expected && in_order.0.ends_with(&rest.0), "from {}", checkpoint.after);
    }
}
