//! Events of a run, and the receiver of them.

use std::io;

use super::finding::Finding;
use super::tally::{Checkpoint, DatasetTally, Totals};

/// An event of a run.
#[derive(Debug)]
pub enum VerifyEvent<'a> {
    /// A finding.
    Finding(&'a Finding),
    /// A dataset has been walked completely.
    DatasetDone(&'a DatasetTally),
    /// A file has been passed.
    Progress(&'a Totals),
    /// A run that resumes here later reports everything that follows, and nothing else.
    Checkpoint(&'a Checkpoint),
}

/// Receiver of the events of a run.
pub trait EventSink {
    /// Records an event.
    ///
    /// # Errors
    /// When the event cannot be recorded. The run then ends.
    fn record(&mut self, event: VerifyEvent<'_>) -> io::Result<()>;

    /// Returns true if it is time for a checkpoint.
    fn wants_checkpoint(&self) -> bool;
}
