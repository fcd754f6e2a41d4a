//! Counts the results of the walk, in its order, and passes them to the event sink.

use std::io;

use super::entries::block_count;
use super::event::{Checkpoint, DatasetTally, EventSink, Totals, VerifyEvent};
use super::finding::{Finding, FindingKind};
use super::walk_item::WalkItem;
use n5_format::Coords;

/// Maximum number of missing ranges that are reported for one dataset. Blocks in any other missing range are only
/// counted.
const MAX_RANGES: u64 = 1000;

/// The counts of a run, and the sink of its events.
pub(super) struct ResultAggregator<'a> {
    checkpoint: Checkpoint,
    /// Datasets that a previous run began and did not finish.
    unfinished: Vec<DatasetTally>,
    /// True if a run can resume after the last recorded item.
    can_checkpoint: bool,
    report_missing: bool,
    sink: &'a mut dyn EventSink,
}

impl<'a> ResultAggregator<'a> {
    /// Creates an aggregator that continues the counts of `checkpoint`.
    pub(super) fn new(mut checkpoint: Checkpoint, report_missing: bool, sink: &'a mut dyn EventSink) -> Self {
        let unfinished = std::mem::take(&mut checkpoint.open);
        Self { checkpoint, unfinished, can_checkpoint: false, report_missing, sink }
    }

    pub(super) fn totals(self) -> Totals {
        self.checkpoint.totals
    }

    pub(super) fn record_finding(&mut self, finding: &Finding) -> io::Result<()> {
        self.checkpoint.totals.count(finding.kind, finding.severity);
        self.sink.record(VerifyEvent::Finding(finding))
    }

    /// Emits a checkpoint if a run can resume from the current position.
    pub(super) fn emit_checkpoint(&mut self) -> io::Result<()> {
        if self.can_checkpoint { self.sink.record(VerifyEvent::Checkpoint(&self.checkpoint)) } else { Ok(()) }
    }

    pub(super) fn record(&mut self, item: WalkItem) -> io::Result<()> {
        self.can_checkpoint = false;
        self.record_item(item)?;
        if self.can_checkpoint {
            self.sink.record(VerifyEvent::Progress(&self.checkpoint.totals))?;
            if self.sink.wants_checkpoint() {
                self.emit_checkpoint()?;
            }
        }
        Ok(())
    }

    fn record_item(&mut self, item: WalkItem) -> io::Result<()> {
        match item {
            WalkItem::RootStart(number) => self.checkpoint.root = number,
            WalkItem::Group => increase(&mut self.checkpoint.totals.groups),
            WalkItem::DatasetStart { dataset, resumed } => {
                let unfinished_index =
                    self.unfinished.iter().position(|tally| resumed && tally.dataset == dataset.key.as_str());
                if !resumed {
                    increase(&mut self.checkpoint.totals.datasets);
                }
                let tally = unfinished_index
                    .map_or_else(|| DatasetTally::of(&dataset), |index| self.unfinished.swap_remove(index));
                self.checkpoint.open.push(tally);
            }
            WalkItem::DatasetEnd => {
                if let Some(tally) = self.checkpoint.open.pop() {
                    self.finish_dataset(tally)?;
                }
            }
            WalkItem::Finding(finding) => {
                // The unreadable directory or file may hold blocks, which are then not really missing.
                if let Some(tally) = self.checkpoint.open.last_mut()
                    && [FindingKind::UnreadableDirectory, FindingKind::UnreadableFile]
                        .map(|kind| kind.descriptor().name)
                        .contains(&finding.kind)
                {
                    increase(&mut tally.unreadable);
                }
                self.record_finding(&finding)?;
            }
            WalkItem::MissingRange(range) => self.record_missing_range(&range)?,
            WalkItem::ScatteredMissing(blocks) => {
                if let Some(tally) = self.checkpoint.open.last_mut() {
                    tally.untold = tally.untold.saturating_add(blocks);
                }
            }
            // Does not occur, because the aggregator receives blocks only after their verification.
            WalkItem::Block(..) => {}
            WalkItem::VerifiedBlock { dataset, position, lengths, finding } => {
                self.record_block(lengths);
                if let Some(finding) = finding {
                    self.record_finding(&finding)?;
                }
                dataset.block_key(&position).as_str().clone_into(&mut self.checkpoint.after);
                self.can_checkpoint = true;
            }
            WalkItem::FileVisited(key) => {
                key.as_str().clone_into(&mut self.checkpoint.after);
                self.can_checkpoint = true;
            }
        }
        Ok(())
    }

    fn record_block(&mut self, lengths: Option<(u64, u64)>) {
        let Checkpoint { totals, open, .. } = &mut self.checkpoint;
        let mut tally = open.last_mut();
        increase(&mut totals.blocks);
        if let Some(tally) = &mut tally {
            increase(&mut tally.blocks);
        }
        if let Some((stored_bytes, decoded_bytes)) = lengths {
            totals.stored_bytes = totals.stored_bytes.saturating_add(stored_bytes);
            totals.decoded_bytes = totals.decoded_bytes.saturating_add(decoded_bytes);
            if let Some(tally) = tally {
                tally.stored_bytes = tally.stored_bytes.saturating_add(stored_bytes);
            }
        } else {
            increase(&mut totals.unverified);
            if let Some(tally) = tally {
                increase(&mut tally.unverified);
            }
        }
    }

    fn record_missing_range(&mut self, range: &[Coords; 2]) -> io::Result<()> {
        let Some(tally) = self.checkpoint.open.last_mut() else { return Ok(()) };
        if tally.ranges >= MAX_RANGES {
            tally.untold = tally.untold.saturating_add(block_count(range));
            return Ok(());
        }
        increase(&mut tally.ranges);
        let key = tally.dataset.clone();
        let [first, last] = range.each_ref().map(|position| position.to_vec());
        let message = match block_count(range) {
            1 => format!("the block {first:?} is not stored"),
            blocks => format!("the {blocks} blocks {first:?} to {last:?} are not stored"),
        };
        let finding = Finding::new(FindingKind::MissingRange, &key, message).in_dataset(&key);
        self.record_finding(&Finding { range: Some([first, last]), ..finding })
    }

    fn finish_dataset(&mut self, mut tally: DatasetTally) -> io::Result<()> {
        tally.missing = tally.grid_blocks.saturating_sub(tally.blocks);
        self.checkpoint.totals.missing = self.checkpoint.totals.missing.saturating_add(tally.missing);
        let DatasetTally { dataset, missing, grid_blocks, untold, unreadable, .. } = &tally;
        if self.report_missing && *untold > 0 {
            let message =
                format!("more ranges of blocks are not stored than are listed; {missing} blocks are missing in total");
            self.record_finding(&Finding::new(FindingKind::MissingRange, dataset, message).in_dataset(dataset))?;
        } else if !self.report_missing && *missing > 0 {
            let message = if *unreadable > 0 {
                format!("{missing} of {grid_blocks} blocks were not found, but a part of the dataset could not be read")
            } else {
                format!("{missing} of {grid_blocks} blocks are not stored and read as zeros")
            };
            self.record_finding(&Finding::new(FindingKind::MissingBlocks, dataset, message).in_dataset(dataset))?;
        }
        self.sink.record(VerifyEvent::DatasetDone(&tally))
    }
}

/// Adds one to a count. Saturates, because a count of a resumed run comes from a report and can be any number.
fn increase(count: &mut u64) {
    *count = count.saturating_add(1);
}
