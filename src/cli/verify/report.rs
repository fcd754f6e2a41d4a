//! The report: one JSON object per line, appended as findings are made. It contains checkpoints, so that everything
//! after the last one can be cut off and verified again.
//!
//! An interrupted run is recovered from its report. The lines are counted again, and a checkpoint is accepted only if
//! it agrees with them.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3;

use crate::config::ContainerConfig;
use crate::store::Key;
use crate::verify::{Checkpoint, DatasetTally, FindingKind, PreviousRun, Totals, VerifyEvent};

/// Interval of checkpoints, and thus the most work that is repeated after an interruption. It is not shorter because
/// the run waits until each checkpoint is on the disk.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum length of a line in bytes. This program writes no longer ones.
const MAX_LINE_BYTES: u64 = 4 << 20;

/// Maximum bytes of finished datasets that are held to resume a report: those of some hundred thousand datasets.
const MAX_REPLAY_BYTES: u64 = 128 << 20;

/// Version of the report format.
const REPORT_VERSION: u64 = 1;

/// The first line of a report, which identifies its job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ReportHeader {
    version: u64,
    root: String,
    roots: Vec<String>,
    missing: bool,
    /// Version of the program. Like the two settings below, it affects the findings.
    server: String,
    symlinks: String,
    decode_budget: u64,
}

impl ReportHeader {
    /// Returns the header of a report on these groups and datasets of the container at `container`; `decode_budget` is
    /// in bytes.
    #[expect(clippy::disallowed_methods, reason = "one container may have several paths")]
    pub(super) fn new(
        container: &ContainerConfig,
        roots: &[Key],
        missing: bool,
        decode_budget: u64,
    ) -> anyhow::Result<Self> {
        let root = &container.root;
        let root = std::fs::canonicalize(root).with_context(|| format!("{}: cannot be read", root.display()))?;
        let roots = roots.iter().map(|key| key.as_str().to_owned()).collect();
        Ok(Self {
            version: REPORT_VERSION,
            root: root.to_string_lossy().into_owned(),
            roots,
            missing,
            server: env!("CARGO_PKG_VERSION").to_owned(),
            symlinks: container.symlinks.name().to_owned(),
            decode_budget,
        })
    }

    /// Returns why a run cannot continue the report with the header `earlier`; `None` if it can.
    fn resume_mismatch(&self, earlier: &Self) -> Option<String> {
        let mismatch =
            |setting: &str, previous_value: &dyn std::fmt::Display, current_value: &dyn std::fmt::Display| {
                Some(format!(
                    "was written with {setting} {previous_value}, but this run has {current_value}: choose another name"
                ))
            };
        if self == earlier {
            None
        } else if self.server != earlier.server {
            mismatch("n5-server", &earlier.server, &self.server)
        } else if self.symlinks != earlier.symlinks {
            mismatch("container_defaults.symlinks =", &earlier.symlinks, &self.symlinks)
        } else if self.decode_budget != earlier.decode_budget {
            mismatch("limits.decode_budget =", &earlier.decode_budget, &self.decode_budget)
        } else {
            Some("belongs to another container or another job: choose another name".to_owned())
        }
    }
}

/// Writes a report.
pub(super) struct ReportWriter {
    file: File,
    /// Time of the last checkpoint. `None` at the start, so that the first file causes one.
    last_checkpoint: Option<Instant>,
    /// Checksum of all lines. It detects torn or mixed lines, but not forgery, because anyone can compute it.
    checksum: Xxh3,
    /// State of the run that the report continues; `None` once it has been taken.
    pub(super) previous: Option<PreviousRun>,
    /// Reason why the report is resumed only in part, or not at all.
    pub(super) fault: Option<String>,
}

impl ReportWriter {
    /// Opens the report at `path`. With `resume`, continues where its run stopped, if that was the same job and was not
    /// completed.
    ///
    /// # Errors
    /// A message if the report cannot be opened, is inside the container, is being written, or is about another job.
    pub(super) fn open(path: &Path, header: &ReportHeader, resume: bool) -> Result<Self, String> {
        let display_path = path.display();
        let to_message = |error: io::Error| format!("the report {display_path}: {error}");
        let mut file = open_file(path, header)?;
        file.try_lock()
            .map_err(|error| format!("the report {display_path} is being written by another run: {error}"))?;
        let recovered = if resume {
            recover(&file, header).map_err(|why| format!("the report {display_path} {why}"))?
        } else {
            let is_report = first_line(&file).map_err(to_message)?.is_none_or(|line| is_header(&line));
            if !is_report {
                return Err(format!(
                    "{display_path} is not a report of verify and is not overwritten: choose another name"
                ));
            }
            RecoveredReport::default()
        };
        let RecoveredReport { previous, len, checksum, fault } = recovered;
        let fault = fault.map(|why| {
            let consequence = if previous.is_some() {
                "everything after the last checkpoint before it is verified again"
            } else {
                "the run begins anew"
            };
            format!("the report {display_path} {why}: {consequence}")
        });
        file.set_len(len).and_then(|()| file.seek(SeekFrom::End(0))).map_err(to_message)?;
        let mut report = Self { file, last_checkpoint: None, checksum, previous, fault };
        if report.previous.is_none() {
            #[expect(clippy::disallowed_methods, reason = "the report states when its run was started")]
            let started = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
            report.write_line(json!({ "record": "run", "started": started }), header).map_err(to_message)?;
            // Without this line, a later run would not recognize the file as a report.
            report.file.sync_data().map_err(to_message)?;
        }
        Ok(report)
    }

    pub(super) fn wants_checkpoint(&self) -> bool {
        self.last_checkpoint.is_none_or(|last| last.elapsed() >= CHECKPOINT_INTERVAL)
    }

    pub(super) fn record(&mut self, event: &VerifyEvent<'_>) -> io::Result<()> {
        match event {
            VerifyEvent::Finding(finding) => self.write_line(json!({ "record": "finding" }), finding),
            VerifyEvent::DatasetDone(tally) => self.write_line(json!({ "record": "dataset" }), tally),
            VerifyEvent::Checkpoint(checkpoint) => {
                // Findings must be on the disk before a checkpoint lets a later run skip them.
                let sum = checkpoint_sum(&self.checksum, checkpoint);
                self.write_line(json!({ "record": "checkpoint", "sum": sum }), checkpoint)?;
                self.file.sync_data()?;
                self.last_checkpoint = Some(Instant::now());
                Ok(())
            }
            VerifyEvent::Progress(_) => Ok(()),
        }
    }

    /// Writes the last line.
    pub(super) fn finish(&mut self, totals: &Totals, complete: bool) -> io::Result<()> {
        self.write_line(json!({ "record": "summary", "complete": complete }), totals)?;
        self.file.sync_data()
    }

    /// Writes `line` and further members in one call, so that a program that follows the file sees only complete lines.
    fn write_line(&mut self, mut line: Value, members: &impl Serialize) -> io::Result<()> {
        if let (Some(line), Ok(Value::Object(members))) = (line.as_object_mut(), serde_json::to_value(members)) {
            line.extend(members);
        }
        let mut text = line.to_string();
        text.push('\n');
        self.checksum.update(text.as_bytes());
        self.file.write_all(text.as_bytes())
    }
}

/// Opens the file for a report at `path`, creating it if it does not exist. Changes nothing in an existing file.
///
/// # Errors
/// A message if the file cannot be opened, is not a regular file of a single name, or is inside the container.
fn open_file(path: &Path, header: &ReportHeader) -> Result<File, String> {
    let display_path = path.display();
    let to_message = |error: io::Error| format!("the report {display_path}: {error}");
    let inside_error =
        || format!("the report {display_path} would be inside the container, to which nothing is written");
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    #[expect(clippy::disallowed_methods, reason = "a report must not be inside the container")]
    let parent = std::fs::canonicalize(parent).map_err(|error| format!("the directory of {display_path}: {error}"))?;
    if parent.starts_with(&header.root) {
        return Err(inside_error());
    }
    let name = path.file_name().ok_or_else(|| format!("the report {display_path} has no name"))?;
    // A symbolic link could lead anywhere, including into the container.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags)
        .open(parent.join(name));
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Err(format!(
                "the report {display_path} is a symbolic link, which is not followed: name the file itself"
            ));
        }
        Err(error) => return Err(to_message(error)),
    };
    let metadata = file.metadata().map_err(to_message)?;
    if !metadata.is_file() || metadata.nlink() > 1 {
        return Err(format!(
            "the report {display_path} is not a regular file, or has several names (hard links): choose another name"
        ));
    }
    // The directory may have been replaced since it was checked.
    let target = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if target.is_ok_and(|at| at.starts_with(&header.root)) {
        return Err(inside_error());
    }
    Ok(file)
}

/// Returns the first line of a file; `None` if the file is empty.
fn first_line(file: &File) -> io::Result<Option<Vec<u8>>> {
    let (mut reader, mut text) = (BufReader::new(file), Vec::new());
    let len = io::Read::take(&mut reader, MAX_LINE_BYTES).read_until(b'\n', &mut text)?;
    Ok((len > 0).then_some(text))
}

/// Returns true if this is the first line of a report.
fn is_header(line: &[u8]) -> bool {
    serde_json::from_slice::<ReportLine<'_>>(line).is_ok_and(|line| line.record == "run")
}

/// The part of a report that can be resumed.
#[derive(Default)]
struct RecoveredReport {
    /// `None` if the run cannot be resumed: no checkpoint is valid, or the run was completed.
    previous: Option<PreviousRun>,
    /// Length and checksum of the part of the report that belongs to `previous`.
    len: u64,
    checksum: Xxh3,
    /// Reason why the rest of the report is rejected.
    fault: Option<String>,
}

/// The members of a report's line that are used here.
#[derive(Deserialize)]
struct ReportLine<'a> {
    #[serde(borrow)]
    record: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    severity: Option<Cow<'a, str>>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    complete: Option<bool>,
    /// The checksum of a checkpoint.
    #[serde(borrow, default)]
    sum: Option<Cow<'a, str>>,
}

/// Contents of a report up to the current line.
#[derive(Default)]
struct ReportReplay {
    findings: Totals,
    finished: Vec<DatasetTally>,
    changed: Vec<String>,
    /// Approximate bytes of `finished` and `changed`.
    held_bytes: u64,
    /// Checksum of all lines up to the current one.
    checksum: Xxh3,
    /// True after the summary of a completed run.
    is_complete: bool,
}

impl ReportReplay {
    /// Replays a line that is not the first. Returns a checkpoint whose checksum is correct.
    ///
    /// # Errors
    /// The reason why this program cannot have written the line.
    fn replay_line(&mut self, text: &[u8]) -> Result<Option<Checkpoint>, String> {
        let line: ReportLine<'_> =
            serde_json::from_slice(text).map_err(|error| format!("not a line of a report: {error}"))?;
        let mut valid_checkpoint = None;
        match &*line.record {
            "dataset" => {
                let tally: DatasetTally = serde_json::from_slice(text).map_err(|error| error.to_string())?;
                self.reserve(text.len())?;
                self.finished.push(tally);
            }
            "finding" => {
                let (kind, severity) = (line.kind.unwrap_or_default(), line.severity.unwrap_or_default());
                if !self.findings.count_named(&kind, &severity) {
                    return Err(format!("a finding of an unknown kind, {kind:?}"));
                }
                if kind == FindingKind::ChangedSince.descriptor().name {
                    self.reserve(text.len())?;
                    self.changed.extend(line.key);
                }
            }
            "checkpoint" => {
                let checkpoint: Checkpoint = serde_json::from_slice(text).map_err(|error| error.to_string())?;
                if line.sum.as_deref() != Some(checkpoint_sum(&self.checksum, &checkpoint).as_str()) {
                    return Err("a checkpoint whose checksum does not match the lines before it".to_owned());
                }
                valid_checkpoint = Some(checkpoint);
            }
            "summary" => self.is_complete = line.complete == Some(true),
            other => return Err(format!("an unknown record {other:?}")),
        }
        self.checksum.update(text);
        Ok(valid_checkpoint)
    }

    /// Reserves memory for a line of that length.
    fn reserve(&mut self, bytes: usize) -> Result<(), String> {
        self.held_bytes = self.held_bytes.saturating_add(bytes as u64);
        if self.held_bytes > MAX_REPLAY_BYTES {
            Err("more datasets than can be held in memory".to_owned())
        } else {
            Ok(())
        }
    }
}

/// Returns the checksum that `checkpoint` must have. It covers all lines before it, with the checksum `lines`, and the
/// checkpoint itself.
fn checkpoint_sum(lines: &Xxh3, checkpoint: &Checkpoint) -> String {
    let mut sum = lines.clone();
    sum.update(json!(checkpoint).to_string().as_bytes());
    format!("{:032x}", sum.digest128())
}

/// Recovers the run of a report, up to its last valid checkpoint.
///
/// # Errors
/// A message if the report cannot be read or belongs to another job.
fn recover(file: &File, header: &ReportHeader) -> Result<RecoveredReport, String> {
    let roots: Vec<Key> = header
        .roots
        .iter()
        .map(|key| if key.is_empty() { Ok(Key::root()) } else { Key::parse(key) })
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    let mut replay = ReportReplay::default();
    let (mut reader, mut offset, mut text) = (BufReader::new(file), 0_u64, Vec::new());
    let (mut last_checkpoint, mut fault) = (None, None);
    loop {
        text.clear();
        let len = io::Read::take(&mut reader, MAX_LINE_BYTES)
            .read_until(b'\n', &mut text)
            .map_err(|error| format!("cannot be read: {error}"))?;
        if text.last() != Some(&b'\n') {
            if offset == 0 && !text.is_empty() {
                return Err(
                    "is not a report of verify, or its first line is incomplete: choose another name".to_owned()
                );
            }
            // The last line may be torn, that is, written only in part.
            if text.len() as u64 == MAX_LINE_BYTES {
                fault = Some("a line without an end".to_owned());
            }
            break;
        }
        if offset == 0 {
            match parse_header(&text).map(|recorded| header.resume_mismatch(&recorded)) {
                Some(None) => replay.checksum.update(&text),
                Some(Some(why)) => return Err(why),
                None => return Err("is not a report of verify: choose another name".to_owned()),
            }
        } else {
            match replay.replay_line(&text) {
                Ok(Some(checkpoint)) => {
                    let counts = (replay.finished.len(), replay.changed.len(), replay.findings.clone());
                    last_checkpoint =
                        Some((checkpoint, counts, offset.saturating_add(len as u64), replay.checksum.clone()));
                }
                Ok(None) if replay.is_complete => return Ok(RecoveredReport::default()),
                Ok(None) => {}
                Err(why) => {
                    fault = Some(why);
                    break;
                }
            }
        }
        offset = offset.saturating_add(len as u64);
    }
    let fault =
        fault.map(|why| format!("contains something at byte {offset} that this program has not written there ({why})"));
    let Some((checkpoint, (finished, changed, findings), len, checksum)) = last_checkpoint else {
        return Ok(RecoveredReport { fault, ..RecoveredReport::default() });
    };
    replay.finished.truncate(finished);
    replay.changed.truncate(changed);
    if let Some(why) = checkpoint.inconsistency(&roots, &findings, &replay.finished) {
        let fault = Some(format!("has an invalid last checkpoint: {why}"));
        return Ok(RecoveredReport { fault, ..RecoveredReport::default() });
    }
    let (finished_datasets, reported_changed) = (replay.finished, replay.changed.into_iter().collect());
    let previous = Some(PreviousRun { checkpoint, finished_datasets, reported_changed });
    Ok(RecoveredReport { previous, len, checksum, fault })
}

/// Parses the first line of a report.
fn parse_header(text: &[u8]) -> Option<ReportHeader> {
    is_header(text).then(|| serde_json::from_slice(text).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_alone_requires_no_checkpoint() {
        let mut report = ReportWriter {
            file: tempfile::tempfile().unwrap(),
            last_checkpoint: None,
            checksum: Xxh3::new(),
            previous: None,
            fault: None,
        };
        assert!(report.wants_checkpoint());
        report.record(&VerifyEvent::Checkpoint(&Checkpoint::default())).unwrap();
        for _ in 0..10_000 {
            report.record(&VerifyEvent::Progress(&Totals::default())).unwrap();
        }
        // On a slow machine, the interval may already have passed.
        assert!(
            !report.wants_checkpoint()
                || report.last_checkpoint.is_some_and(|last| last.elapsed() >= CHECKPOINT_INTERVAL)
        );
    }
}
