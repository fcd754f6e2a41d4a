//! Recovery of an interrupted run from its report. The lines are counted again, and a checkpoint is accepted only if it
//! agrees with the lines before it.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

use serde_json::json;
use xxhash_rust::xxh3::Xxh3;

use super::report_lines::{MAX_LINE_BYTES, ReportHeader, ReportLine, parse_header};
use crate::store::Key;
use crate::verify::{Checkpoint, DatasetTally, FindingKind, PreviousRun, Totals};

/// Maximum memory in bytes for the finished datasets of a report. It suffices for some hundred thousand datasets.
const MAX_REPLAY_BYTES: u64 = 128 << 20;

/// The part of a report that can be resumed.
#[derive(Default)]
pub(super) struct RecoveredReport {
    /// State of the run. `None` if the run cannot be resumed: no checkpoint is valid, or the run was completed.
    pub(super) previous: Option<PreviousRun>,
    /// Length in bytes of the part of the report that belongs to `previous`.
    pub(super) len: u64,
    /// Checksum of this part.
    pub(super) checksum: Xxh3,
    /// Reason why the rest of the report is rejected.
    pub(super) fault: Option<String>,
}

/// Recovers the run of a report, up to its last valid checkpoint.
///
/// # Errors
/// Returns a message if the report cannot be read or belongs to another job.
pub(super) fn recover(file: &File, header: &ReportHeader) -> Result<RecoveredReport, String> {
    let parse_root = |key: &String| if key.is_empty() { Ok(Key::root()) } else { Key::parse(key) };
    let roots: Result<Vec<Key>, _> = header.roots.iter().map(parse_root).collect();
    let roots = roots.map_err(|error| error.to_string())?;
    let mut replay = ReportReplay::default();
    let mut reader = BufReader::new(file);
    let mut text = Vec::new();
    let fault = loop {
        text.clear();
        io::Read::take(&mut reader, MAX_LINE_BYTES)
            .read_until(b'\n', &mut text)
            .map_err(|error| format!("cannot be read: {error}"))?;
        let is_first = replay.len == 0;
        if text.last() != Some(&b'\n') {
            if is_first && !text.is_empty() {
                return Err(
                    "is not a report of verify, or its first line is incomplete: choose another name".to_owned()
                );
            }
            // The last line may be torn, that is, written only in part.
            break (text.len() as u64 == MAX_LINE_BYTES).then(|| "a line without an end".to_owned());
        }
        if is_first {
            let recorded = parse_header(&text).ok_or("is not a report of verify: choose another name")?;
            if let Some(why) = header.resume_mismatch(&recorded) {
                return Err(why);
            }
            replay.add_line(&text);
        } else if let Err(why) = replay.replay_line(&text) {
            break Some(why);
        }
        if replay.is_complete {
            return Ok(RecoveredReport::default());
        }
    };
    Ok(replay.finish(&roots, fault))
}

/// Contents of a report up to the current line.
#[derive(Default)]
struct ReportReplay {
    findings: Totals,
    finished: Vec<DatasetTally>,
    changed: Vec<String>,
    /// Approximate bytes of `finished` and `changed`.
    held_bytes: u64,
    /// Length of all lines in bytes.
    len: u64,
    /// Checksum of all lines.
    checksum: Xxh3,
    last_checkpoint: Option<ReplayedCheckpoint>,
    /// True after the summary of a completed run.
    is_complete: bool,
}

/// A checkpoint whose checksum is correct, with the contents of the report up to the checkpoint.
struct ReplayedCheckpoint {
    checkpoint: Checkpoint,
    findings: Totals,
    finished_count: usize,
    changed_count: usize,
    len: u64,
    checksum: Xxh3,
}

impl ReportReplay {
    /// Replays a line that is not the first.
    ///
    /// # Errors
    /// Returns the reason why this program cannot have written the line.
    fn replay_line(&mut self, text: &[u8]) -> Result<(), String> {
        let line: ReportLine<'_> =
            serde_json::from_slice(text).map_err(|error| format!("not a line of a report: {error}"))?;
        match &*line.record {
            "dataset" => {
                let tally: DatasetTally = serde_json::from_slice(text).map_err(|error| error.to_string())?;
                self.reserve(text.len())?;
                self.finished.push(tally);
            }
            "finding" => {
                let kind = line.kind.unwrap_or_default();
                if !self.findings.count_named(&kind, &line.severity.unwrap_or_default()) {
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
                self.add_line(text);
                self.last_checkpoint = Some(ReplayedCheckpoint {
                    checkpoint,
                    findings: self.findings.clone(),
                    finished_count: self.finished.len(),
                    changed_count: self.changed.len(),
                    len: self.len,
                    checksum: self.checksum.clone(),
                });
                return Ok(());
            }
            "summary" => self.is_complete = line.complete == Some(true),
            other => return Err(format!("an unknown record {other:?}")),
        }
        self.add_line(text);
        Ok(())
    }

    fn add_line(&mut self, text: &[u8]) {
        self.len = self.len.saturating_add(text.len() as u64);
        self.checksum.update(text);
    }

    /// Counts the memory for a line of `bytes` bytes.
    fn reserve(&mut self, bytes: usize) -> Result<(), String> {
        self.held_bytes = self.held_bytes.saturating_add(bytes as u64);
        if self.held_bytes > MAX_REPLAY_BYTES {
            Err("more datasets than can be held in memory".to_owned())
        } else {
            Ok(())
        }
    }

    /// Returns the part of the report up to the last checkpoint, if this checkpoint agrees with the lines before it.
    /// `fault` is the reason why the replay stopped before the end of the report.
    fn finish(mut self, roots: &[Key], fault: Option<String>) -> RecoveredReport {
        let offset = self.len;
        let fault = fault
            .map(|why| format!("contains something at byte {offset} that this program has not written there ({why})"));
        let Some(last) = self.last_checkpoint else {
            return RecoveredReport { fault, ..RecoveredReport::default() };
        };
        self.finished.truncate(last.finished_count);
        self.changed.truncate(last.changed_count);
        if let Some(why) = last.checkpoint.inconsistency(roots, &last.findings, &self.finished) {
            let fault = Some(format!("has an invalid last checkpoint: {why}"));
            return RecoveredReport { fault, ..RecoveredReport::default() };
        }
        let previous = PreviousRun {
            checkpoint: last.checkpoint,
            finished_datasets: self.finished,
            reported_changed: self.changed.into_iter().collect(),
        };
        RecoveredReport { previous: Some(previous), len: last.len, checksum: last.checksum, fault }
    }
}

/// Returns the checksum that `checkpoint` must have. It covers the checkpoint and all lines before it, whose checksum
/// is `lines`.
pub(super) fn checkpoint_sum(lines: &Xxh3, checkpoint: &Checkpoint) -> String {
    let mut sum = lines.clone();
    sum.update(json!(checkpoint).to_string().as_bytes());
    format!("{:032x}", sum.digest128())
}
