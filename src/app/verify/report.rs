//! The report: a JSON object a line, appended as it is found. Checkpoints stand among the findings, so that what is after
//! the last of them can be cut off and found again.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::reading::{Kept, MAX_LINE, Sum, is_run, read};
use crate::config::{ContainerConfig, Symlinks};
use crate::store::Key;
use crate::verify::{Earlier, Event, Totals};

/// Version of the form of reports.
const VERSION: u64 = 1;

/// After that time there is a checkpoint: the most that is done again after an interruption. Not more often, since
/// everything waits until one is on the disk.
const INTERVAL: Duration = Duration::from_secs(1);

/// The first line of a report: what it is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    version: u64,
    root: String,
    pub(super) roots: Vec<String>,
    missing: bool,
    /// The program's version, and what else decides what is found.
    server: String,
    symlinks: String,
    decode_budget: u64,
}

impl Header {
    /// A report of these groups and datasets of the container in `place`; `decode_budget` is in bytes.
    #[expect(clippy::disallowed_methods, reason = "the same container by whatever path")]
    pub(super) fn new(
        place: &ContainerConfig,
        roots: &[Key],
        missing: bool,
        decode_budget: u64,
    ) -> anyhow::Result<Self> {
        let root = &place.root;
        let root = std::fs::canonicalize(root).with_context(|| format!("{}: cannot be read", root.display()))?;
        let roots = roots.iter().map(|key| key.as_str().to_owned()).collect();
        let symlinks = match place.symlinks {
            Symlinks::Inside => "inside",
            Symlinks::Deny => "deny",
            Symlinks::Follow => "follow",
        };
        Ok(Self {
            version: VERSION,
            root: root.to_string_lossy().into_owned(),
            roots,
            missing,
            server: env!("CARGO_PKG_VERSION").to_owned(),
            symlinks: symlinks.to_owned(),
            decode_budget,
        })
    }

    /// Why a run cannot go on with what `earlier` has found; `None` where it can.
    pub(super) fn differs(&self, earlier: &Self) -> Option<String> {
        let say = |what: &str, then: &dyn std::fmt::Display, now: &dyn std::fmt::Display| {
            Some(format!("was written with {what} {then}, and this run has {now}: give it another name"))
        };
        if self == earlier {
            None
        } else if self.server != earlier.server {
            say("n5-server", &earlier.server, &self.server)
        } else if self.symlinks != earlier.symlinks {
            say("container_defaults.symlinks =", &earlier.symlinks, &self.symlinks)
        } else if self.decode_budget != earlier.decode_budget {
            say("limits.decode_budget =", &earlier.decode_budget, &self.decode_budget)
        } else {
            Some("is of another container, or of another job: give it another name".to_owned())
        }
    }
}

/// A report that is being written.
#[derive(Debug)]
pub(super) struct Report {
    file: File,
    /// When there was a checkpoint; the first file gives the first.
    kept: Option<Instant>,
    /// Of all lines.
    sum: Sum,
}

/// A report to be written, and what it holds already.
#[derive(Debug, Default)]
pub(super) struct Begun {
    pub(super) report: Option<Report>,
    pub(super) earlier: Option<Earlier>,
    /// Why the report is not gone on with to its end, or at all.
    pub(super) fault: Option<String>,
}

impl Report {
    /// Opens the report at `path`, with `resume` where its run stopped if that was the same job and had not ended.
    ///
    /// # Errors
    /// In words: it cannot be opened, is inside the container, is being written, or is the report of another job.
    pub(super) fn begin(path: &Path, header: &Header, resume: bool) -> Result<Begun, String> {
        let shown = path.display();
        let of = |error: io::Error| format!("the report {shown}: {error}");
        let mut file = open(path, header)?;
        file.try_lock().map_err(|error| format!("the report {shown} is being written by another run: {error}"))?;
        let read = if resume {
            read(&file, header).map_err(|why| format!("the report {shown} {why}"))?
        } else {
            let is_ours = first_line(&file).map_err(of)?.is_none_or(|line| is_run(&line));
            if !is_ours {
                return Err(format!("{shown} is no report of verify, and is not overwritten: give another name"));
            }
            Kept::default()
        };
        let Kept { earlier, fault } = read;
        let fault = fault.map(|why| {
            let then = if earlier.is_some() {
                "what follows the last checkpoint before is done again"
            } else {
                "the run begins anew"
            };
            format!("the report {shown} {why}: {then}")
        });
        let (earlier, len, sum) =
            earlier.map_or((None, 0, Sum::default()), |(earlier, len, sum)| (Some(earlier), len, sum));
        file.set_len(len).and_then(|()| file.seek(SeekFrom::End(0))).map_err(of)?;
        let mut report = Self { file, kept: None, sum };
        if earlier.is_none() {
            #[expect(clippy::disallowed_methods, reason = "the report says when it was begun")]
            let started = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
            let mut line = json!({ "started": started });
            merge(&mut line, header);
            report.line("run", &line).map_err(of)?;
            // Without this line nobody would take the file for a report again.
            report.file.sync_data().map_err(of)?;
        }
        Ok(Begun { report: Some(report), earlier, fault })
    }

    pub(super) fn wants_checkpoint(&self) -> bool {
        self.kept.is_none_or(|kept| kept.elapsed() >= INTERVAL)
    }

    pub(super) fn take(&mut self, event: &Event<'_>) -> io::Result<()> {
        match event {
            Event::Found(finding) => self.line("finding", &json!(finding)),
            Event::Done(tally) => self.line("dataset", &json!(tally)),
            Event::Checkpoint(checkpoint) => {
                // What has been found must be on the disk before it is passed over.
                let mut line = json!({ "sum": self.sum.with(checkpoint) });
                merge(&mut line, checkpoint);
                self.line("checkpoint", &line)?;
                self.file.sync_data()?;
                self.kept = Some(Instant::now());
                Ok(())
            }
            Event::Passed(_) => Ok(()),
        }
    }

    /// The last line.
    pub(super) fn end(&mut self, totals: &Totals, complete: bool) -> io::Result<()> {
        let mut line = json!({ "complete": complete });
        merge(&mut line, totals);
        self.line("summary", &line)?;
        self.file.sync_data()
    }

    /// Writes a line in one call, so that whoever follows the file sees whole ones.
    fn line(&mut self, record: &str, members: &Value) -> io::Result<()> {
        let mut line = json!({ "record": record });
        merge(&mut line, members);
        let mut text = line.to_string();
        text.push('\n');
        self.sum.add(text.as_bytes());
        self.file.write_all(text.as_bytes())
    }
}

fn merge(line: &mut Value, further: &impl Serialize) {
    if let (Some(line), Ok(Value::Object(further))) = (line.as_object_mut(), serde_json::to_value(further)) {
        line.extend(further);
    }
}

/// Opens the file for a report at `path`, made where there is none; nothing of it is changed.
///
/// # Errors
/// In words: it cannot be opened, is no file of its own, or is inside the container.
fn open(path: &Path, header: &Header) -> Result<File, String> {
    let shown = path.display();
    let of = |error: io::Error| format!("the report {shown}: {error}");
    let inside = || format!("the report {shown} would be inside the container, in which nothing is written");
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    #[expect(clippy::disallowed_methods, reason = "a report must not be inside the container")]
    let parent = std::fs::canonicalize(parent).map_err(|error| format!("the directory of {shown}: {error}"))?;
    if parent.starts_with(&header.root) {
        return Err(inside());
    }
    let name = path.file_name().ok_or_else(|| format!("the report {shown} has no name"))?;
    // A link could lead anywhere, also into the container.
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
            return Err(format!("the report {shown} is a symbolic link, which is not followed: name the file"));
        }
        Err(error) => return Err(of(error)),
    };
    let metadata = file.metadata().map_err(of)?;
    if !metadata.is_file() || metadata.nlink() > 1 {
        return Err(format!("the report {shown} is no file, or one of several names (hard links): give another name"));
    }
    // The directory may have been replaced since it was looked at.
    let at = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if at.is_ok_and(|at| at.starts_with(&header.root)) {
        return Err(inside());
    }
    Ok(file)
}

/// The first line of a file; `None` where it is empty.
fn first_line(file: &File) -> io::Result<Option<Vec<u8>>> {
    let (mut reader, mut text) = (BufReader::new(file), Vec::new());
    let len = io::Read::take(&mut reader, MAX_LINE).read_until(b'\n', &mut text)?;
    Ok((len > 0).then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::Checkpoint;

    #[test]
    fn files_alone_want_no_checkpoint() {
        let mut report = Report { file: tempfile::tempfile().unwrap(), kept: None, sum: Sum::default() };
        assert!(report.wants_checkpoint());
        report.take(&Event::Checkpoint(&Checkpoint::default())).unwrap();
        for _ in 0..10_000 {
            report.take(&Event::Passed(&Totals::default())).unwrap();
        }
        // Unless the machine has taken as long.
        assert!(!report.wants_checkpoint() || report.kept.is_some_and(|kept| kept.elapsed() >= INTERVAL));
    }
}
