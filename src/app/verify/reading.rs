//! What a report of an earlier run is worth: its lines are counted again, and a checkpoint is believed as far as they bear
//! it out. What follows the last one that holds is cut off and found again.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

use serde::Deserialize;
use serde_json::json;
use xxhash_rust::xxh3::Xxh3;

use super::report::Header;
use crate::store::Key;
use crate::verify::{Checkpoint, DatasetTally, Earlier, Kind, Recount};

/// Longer lines are none of ours.
pub(super) const MAX_LINE: u64 = 4 << 20;

/// Bytes of finished datasets that are held to go on with a report: those of some hundred thousand.
const MAX_HELD: u64 = 128 << 20;

/// Whether this is the first line of a report.
pub(super) fn is_run(line: &[u8]) -> bool {
    serde_json::from_slice::<Line<'_>>(line).is_ok_and(|line| line.record == "run")
}

/// What can be gone on with of a report.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// What its run has left, and the length of what counts of it; `None` where there is nothing to go on from: no
    /// checkpoint that holds, or an end.
    pub(super) earlier: Option<(Earlier, u64, Sum)>,
    /// Why what follows is not believed.
    pub(super) fault: Option<String>,
}

/// A line of a report: what is needed of it.
#[derive(Deserialize)]
struct Line<'a> {
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
}

/// The sum that a checkpoint has.
#[derive(Deserialize)]
struct Summed<'a> {
    #[serde(borrow)]
    sum: Cow<'a, str>,
}

/// What a line is.
enum Taken {
    /// A checkpoint with the right sum.
    Checkpoint(Checkpoint),
    /// The end of a run that was completed.
    End,
    Other,
}

/// What a report says, up to the line that is read now.
#[derive(Default)]
struct Reading {
    findings: Recount,
    finished: Vec<DatasetTally>,
    changed: Vec<String>,
    /// Bytes of these two, about.
    held_bytes: u64,
    /// Of all lines.
    sum: Sum,
}

impl Reading {
    /// Takes a line that is not the first.
    ///
    /// # Errors
    /// Why this program has not written it, in words.
    fn take(&mut self, text: &[u8]) -> Result<Taken, String> {
        let line: Line<'_> = serde_json::from_slice(text).map_err(|error| format!("no line of a report: {error}"))?;
        let mut taken = Taken::Other;
        match &*line.record {
            "dataset" => {
                let tally: DatasetTally = serde_json::from_slice(text).map_err(|error| error.to_string())?;
                self.hold(text.len())?;
                self.finished.push(tally);
            }
            "finding" => {
                let (kind, severity) = (line.kind.unwrap_or_default(), line.severity.unwrap_or_default());
                if !self.findings.count(&kind, &severity) {
                    return Err(format!("a finding of an unknown kind, {kind:?}"));
                }
                if kind == Kind::ChangedSince.row().name {
                    self.hold(text.len())?;
                    self.changed.extend(line.key);
                }
            }
            "checkpoint" => {
                let Summed { sum } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
                let checkpoint: Checkpoint = serde_json::from_slice(text).map_err(|error| error.to_string())?;
                if sum != self.sum.with(&checkpoint) {
                    return Err("a checkpoint whose sum is not that of the lines before it".to_owned());
                }
                taken = Taken::Checkpoint(checkpoint);
            }
            "summary" if line.complete == Some(true) => taken = Taken::End,
            "summary" => {}
            other => return Err(format!("a record {other:?}")),
        }
        self.sum.add(text);
        Ok(taken)
    }

    /// Whether there is room for a line of that length.
    fn hold(&mut self, bytes: usize) -> Result<(), String> {
        self.held_bytes = self.held_bytes.saturating_add(bytes as u64);
        if self.held_bytes > MAX_HELD { Err("more datasets than can be held".to_owned()) } else { Ok(()) }
    }
}

/// The sum of all lines so far. It tells what was torn or mixed up; whoever writes a report on purpose can make it, too.
#[derive(Clone, Default)]
pub(super) struct Sum(Xxh3);

impl fmt::Debug for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0.digest128())
    }
}

impl Sum {
    pub(super) fn add(&mut self, line: &[u8]) {
        self.0.update(line);
    }

    /// As a checkpoint that follows has it, which is a part of it.
    pub(super) fn with(&self, checkpoint: &Checkpoint) -> String {
        let mut sum = self.clone();
        sum.add(json!(checkpoint).to_string().as_bytes());
        format!("{sum:?}")
    }
}

/// What can be gone on with of a report: up to the last checkpoint that holds.
///
/// # Errors
/// Why it is none of this job, in words.
pub(super) fn read(file: &File, header: &Header) -> Result<Kept, String> {
    let roots: Vec<Key> = header
        .roots
        .iter()
        .map(|key| if key.is_empty() { Ok(Key::root()) } else { Key::parse(key) })
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    let mut reading = Reading::default();
    let (mut reader, mut offset, mut text) = (BufReader::new(file), 0_u64, Vec::new());
    let (mut kept, mut fault) = (None, None);
    loop {
        text.clear();
        let len = io::Read::take(&mut reader, MAX_LINE)
            .read_until(b'\n', &mut text)
            .map_err(|error| format!("cannot be read: {error}"))?;
        if text.last() != Some(&b'\n') {
            if offset == 0 && !text.is_empty() {
                return Err(
                    "is no report of verify, or one that was torn in its first line: give it another name".to_owned()
                );
            }
            // The last line may be torn.
            if text.len() as u64 == MAX_LINE {
                fault = Some("a line without an end".to_owned());
            }
            break;
        }
        if offset == 0 {
            match first(&text).map(|of| header.differs(&of)) {
                Some(None) => reading.sum.add(&text),
                Some(Some(why)) => return Err(why),
                None => return Err("is no report of verify: give it another name".to_owned()),
            }
        } else {
            match reading.take(&text) {
                Ok(Taken::Checkpoint(checkpoint)) => {
                    let counts = (reading.finished.len(), reading.changed.len(), reading.findings.clone());
                    kept = Some((checkpoint, counts, offset.saturating_add(len as u64), reading.sum.clone()));
                }
                Ok(Taken::End) => return Ok(Kept::default()),
                Ok(Taken::Other) => {}
                Err(why) => {
                    fault = Some(why);
                    break;
                }
            }
        }
        offset = offset.saturating_add(len as u64);
    }
    let fault = fault.map(|why| format!("holds at byte {offset} what this program has not written there ({why})"));
    let Some((checkpoint, (finished, changed, findings), len, sum)) = kept else {
        return Ok(Kept { earlier: None, fault });
    };
    reading.finished.truncate(finished);
    reading.changed.truncate(changed);
    if let Some(why) = checkpoint.fault(&roots, &findings, &reading.finished) {
        return Ok(Kept { earlier: None, fault: Some(format!("has a last checkpoint that cannot be: {why}")) });
    }
    let (finished, changed) = (reading.finished, reading.changed.into_iter().collect());
    Ok(Kept { earlier: Some((Earlier { checkpoint, finished, changed }, len, sum)), fault })
}

/// The header that the first line is.
fn first(text: &[u8]) -> Option<Header> {
    is_run(text).then(|| serde_json::from_slice(text).ok())?
}
