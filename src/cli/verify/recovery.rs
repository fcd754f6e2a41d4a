//! Recovers an interrupted run from its report. The lines are counted again, and a checkpoint is accepted only if it
//! agrees with them. Everything after the last valid checkpoint is cut off and verified again.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

use serde::Deserialize;
use serde_json::json;
use xxhash_rust::xxh3::Xxh3;

use super::report_header::ReportHeader;
use crate::store::Key;
use crate::verify::{Checkpoint, DatasetTally, FindingKind, PreviousRun, Totals};

/// Maximum length of a line in bytes. This program writes no longer ones.
pub(super) const MAX_LINE_BYTES: u64 = 4 << 20;

/// Maximum bytes of finished datasets that are held to resume a report: those of some hundred thousand datasets.
const MAX_REPLAY_BYTES: u64 = 128 << 20;

/// Returns true if this is the first line of a report.
pub(super) fn is_header(line: &[u8]) -> bool {
    serde_json::from_slice::<ReportLine<'_>>(line).is_ok_and(|line| line.record == "run")
}

/// The part of a report that can be resumed.
#[derive(Debug, Default)]
pub(super) struct RecoveredReport {
    /// The previous run, with the length and checksum of the valid part of its report. `None` if the run cannot be
    /// resumed: no checkpoint is valid, or the run was completed.
    pub(super) previous: Option<(PreviousRun, u64, ReportChecksum)>,
    /// Why the rest of the report is rejected.
    pub(super) fault: Option<String>,
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

/// Kind of a line.
enum ReportLineKind {
    /// A checkpoint with a correct checksum.
    Checkpoint(Checkpoint),
    /// The summary of a completed run.
    End,
    Other,
}

/// Contents of a report up to the current line.
#[derive(Default)]
struct ReportReplay {
    findings: Totals,
    finished: Vec<DatasetTally>,
    changed: Vec<String>,
    /// Approximate bytes of `finished` and `changed`.
    held_bytes: u64,
    /// Covers all lines.
    checksum: ReportChecksum,
}

impl ReportReplay {
    /// Replays a line that is not the first.
    ///
    /// # Errors
    /// Describes why this program cannot have written the line.
    fn replay_line(&mut self, text: &[u8]) -> Result<ReportLineKind, String> {
        let line: ReportLine<'_> =
            serde_json::from_slice(text).map_err(|error| format!("not a line of a report: {error}"))?;
        let mut line_kind = ReportLineKind::Other;
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
                if line.sum.as_deref() != Some(self.checksum.with_checkpoint(&checkpoint).as_str()) {
                    return Err("a checkpoint whose checksum does not match the lines before it".to_owned());
                }
                line_kind = ReportLineKind::Checkpoint(checkpoint);
            }
            "summary" if line.complete == Some(true) => line_kind = ReportLineKind::End,
            "summary" => {}
            other => return Err(format!("an unknown record {other:?}")),
        }
        self.checksum.update(text);
        Ok(line_kind)
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

/// Checksum of all lines so far. It detects torn or mixed lines, but no forgery: anyone can compute it.
#[derive(Clone, Default)]
pub(super) struct ReportChecksum(Xxh3);

impl fmt::Debug for ReportChecksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0.digest128())
    }
}

impl ReportChecksum {
    pub(super) fn update(&mut self, line: &[u8]) {
        self.0.update(line);
    }

    /// Returns the checksum that `checkpoint` must have. It covers all lines before it and the checkpoint itself.
    pub(super) fn with_checkpoint(&self, checkpoint: &Checkpoint) -> String {
        let mut sum = self.clone();
        sum.update(json!(checkpoint).to_string().as_bytes());
        format!("{sum:?}")
    }
}

/// Recovers the run of a report, up to its last valid checkpoint.
///
/// # Errors
/// Describes why the report cannot be read or belongs to another job.
pub(super) fn recover(file: &File, header: &ReportHeader) -> Result<RecoveredReport, String> {
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
            // The last line may be torn.
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
                Ok(ReportLineKind::Checkpoint(checkpoint)) => {
                    let counts = (replay.finished.len(), replay.changed.len(), replay.findings.clone());
                    last_checkpoint =
                        Some((checkpoint, counts, offset.saturating_add(len as u64), replay.checksum.clone()));
                }
                Ok(ReportLineKind::End) => return Ok(RecoveredReport::default()),
                Ok(ReportLineKind::Other) => {}
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
    let Some((checkpoint, (finished, changed, findings), len, sum)) = last_checkpoint else {
        return Ok(RecoveredReport { previous: None, fault });
    };
    replay.finished.truncate(finished);
    replay.changed.truncate(changed);
    if let Some(why) = checkpoint.inconsistency(&roots, &findings, &replay.finished) {
        return Ok(RecoveredReport { previous: None, fault: Some(format!("has an invalid last checkpoint: {why}")) });
    }
    let (finished, changed) = (replay.finished, replay.changed.into_iter().collect());
    Ok(RecoveredReport {
        previous: Some((PreviousRun { checkpoint, finished_datasets: finished, reported_changed: changed }, len, sum)),
        fault,
    })
}

/// Parses the first line of a report.
fn parse_header(text: &[u8]) -> Option<ReportHeader> {
    is_header(text).then(|| serde_json::from_slice(text).ok())?
}
