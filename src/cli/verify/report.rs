//! Writer of a report: one JSON object per line, appended as findings are made. The report contains checkpoints, so
//! that everything after the last one can be cut off and verified again.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3;

use super::recovery::{RecoveredReport, checkpoint_sum, recover};
use super::report_lines::{MAX_LINE_BYTES, ReportHeader, is_header};
use crate::verify::{PreviousRun, Totals, VerifyEvent};

/// Interval between checkpoints. After an interruption, at most this much work is repeated. Shorter intervals would
/// slow down the run, which waits until each checkpoint is on the disk.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

/// Writes a report.
pub(super) struct ReportWriter {
    file: File,
    /// Time of the last checkpoint. `None` at the start, so that a checkpoint follows the first file.
    last_checkpoint: Option<Instant>,
    /// Checksum of all lines. It detects torn or mixed lines, but not forgery, because anyone can compute it.
    checksum: Xxh3,
    /// State of the run that the report continues. `None` if there is no such run, or when the state has been taken.
    pub(super) previous: Option<PreviousRun>,
    /// Reason why the report is resumed only in part, or not at all.
    pub(super) fault: Option<String>,
}

impl ReportWriter {
    /// Opens the report at `path`. If `resume` is true, continues where its run stopped, provided that this was the
    /// same job and was not completed.
    ///
    /// # Errors
    /// Returns a message if the report cannot be opened, is inside the container, is being written, or is about another
    /// job.
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

/// Opens the file for a report at `path`, or creates it. The content of an existing file remains.
///
/// # Errors
/// Returns a message if the file cannot be opened, is not a regular file with a single name, or is inside the
/// container.
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

/// Returns the first line of a file, or `None` if the file is empty.
fn first_line(file: &File) -> io::Result<Option<Vec<u8>>> {
    let mut text = Vec::new();
    let len = BufReader::new(io::Read::take(file, MAX_LINE_BYTES)).read_until(b'\n', &mut text)?;
    Ok((len > 0).then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::Checkpoint;

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
