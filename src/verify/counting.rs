//! Counts what comes of the walk, in its order, and passes it on to whoever listens.

use std::io;
use std::sync::Arc;

use super::finding::{Finding, Kind};
use super::gaps::Hole;
use super::tally::{DatasetTally, Totals};
use super::walk::Item;
use super::{Checkpoint, Event, Listener};
use crate::container::Dataset;
use crate::n5::GridPosition;

/// Boxes of missing blocks that are told of one dataset; of further ones the number of blocks.
const MAX_RANGES: u64 = 1000;

/// What an item has come to.
pub(super) enum Resolved {
    Item(Item),
    Block(Arc<Dataset>, GridPosition, Verdict),
}

/// What is known of a block.
pub(super) enum Verdict {
    /// It decodes.
    Sound { stored_bytes: u64, decoded_bytes: u64, finding: Option<Finding> },
    /// It was not decoded; nothing is said where that is its dataset's fault.
    Unverified(Option<Finding>),
}

/// What has been counted, and who is told.
pub(super) struct Counting<'a> {
    at: Checkpoint,
    /// Datasets of an earlier run that were not finished.
    unfinished: Vec<DatasetTally>,
    /// Whether what was taken last is a place to go on from.
    is_place: bool,
    missing: bool,
    listener: &'a mut dyn Listener,
}

impl<'a> Counting<'a> {
    /// Counts on from a checkpoint.
    pub(super) fn new(mut at: Checkpoint, missing: bool, listener: &'a mut dyn Listener) -> Self {
        let unfinished = std::mem::take(&mut at.open);
        Self { at, unfinished, is_place: false, missing, listener }
    }

    pub(super) fn totals(self) -> Totals {
        self.at.totals
    }

    pub(super) fn found(&mut self, finding: &Finding) -> io::Result<()> {
        self.at.totals.count(finding.kind, finding.severity);
        self.listener.take(Event::Found(finding))
    }

    /// Tells where the run stands, where that is a place to go on from.
    pub(super) fn checkpoint(&mut self) -> io::Result<()> {
        if self.is_place { self.listener.take(Event::Checkpoint(&self.at)) } else { Ok(()) }
    }

    pub(super) fn take(&mut self, result: Resolved) -> io::Result<()> {
        self.is_place = false;
        match result {
            Resolved::Item(item) => self.item(item)?,
            Resolved::Block(dataset, position, verdict) => {
                self.block(verdict)?;
                dataset.block_key(&position).as_str().clone_into(&mut self.at.after);
                self.is_place = true;
            }
        }
        if self.is_place {
            self.listener.take(Event::Passed(&self.at.totals))?;
            if self.listener.wants_checkpoint() {
                self.checkpoint()?;
            }
        }
        Ok(())
    }

    fn item(&mut self, item: Item) -> io::Result<()> {
        match item {
            Item::Start(number) => self.at.root = number,
            Item::Group => increase(&mut self.at.totals.groups),
            Item::Open { dataset, resumed } => {
                let begun = self.unfinished.iter().position(|tally| resumed && tally.dataset == dataset.key.as_str());
                if !resumed {
                    increase(&mut self.at.totals.datasets);
                }
                let tally = begun.map_or_else(|| DatasetTally::of(&dataset), |at| self.unfinished.swap_remove(at));
                self.at.open.push(tally);
            }
            Item::Close => {
                if let Some(tally) = self.at.open.pop() {
                    self.close(tally)?;
                }
            }
            Item::Found(finding) => {
                // What the walk cannot read in a grid may hold blocks.
                if let Some(tally) = self.at.open.last_mut()
                    && [Kind::UnreadableDirectory, Kind::UnreadableFile]
                        .map(|kind| kind.row().name)
                        .contains(&finding.kind)
                {
                    increase(&mut tally.unreadable);
                }
                self.found(&finding)?;
            }
            Item::Missing(hole) => self.hole(&hole)?,
            Item::Scattered(blocks) => {
                if let Some(tally) = self.at.open.last_mut() {
                    tally.untold = tally.untold.saturating_add(blocks);
                }
            }
            // Resolved before.
            Item::Block(..) => {}
            Item::Passed(key) => {
                key.as_str().clone_into(&mut self.at.after);
                self.is_place = true;
            }
        }
        Ok(())
    }

    fn block(&mut self, verdict: Verdict) -> io::Result<()> {
        let Checkpoint { totals, open, .. } = &mut self.at;
        let mut tally = open.last_mut();
        increase(&mut totals.blocks);
        if let Some(tally) = &mut tally {
            increase(&mut tally.blocks);
        }
        let finding = match verdict {
            Verdict::Sound { stored_bytes, decoded_bytes, finding } => {
                totals.stored_bytes = totals.stored_bytes.saturating_add(stored_bytes);
                totals.decoded_bytes = totals.decoded_bytes.saturating_add(decoded_bytes);
                if let Some(tally) = tally {
                    tally.stored_bytes = tally.stored_bytes.saturating_add(stored_bytes);
                }
                finding
            }
            Verdict::Unverified(finding) => {
                increase(&mut totals.unverified);
                if let Some(tally) = tally {
                    increase(&mut tally.unverified);
                }
                finding
            }
        };
        finding.map_or(Ok(()), |finding| self.found(&finding))
    }

    fn hole(&mut self, hole: &Hole) -> io::Result<()> {
        let Some(tally) = self.at.open.last_mut() else { return Ok(()) };
        if tally.ranges >= MAX_RANGES {
            tally.untold = tally.untold.saturating_add(hole.blocks());
            return Ok(());
        }
        increase(&mut tally.ranges);
        let key = tally.dataset.clone();
        let (first, last) = (hole.first.to_vec(), hole.last.to_vec());
        let message = match hole.blocks() {
            1 => format!("the block {first:?} is not stored"),
            blocks => format!("the {blocks} blocks {first:?} to {last:?} are not stored"),
        };
        let finding = Finding::new(Kind::MissingRange, &key, message).of(&key);
        self.found(&Finding { range: Some([first, last]), ..finding })
    }

    fn close(&mut self, mut tally: DatasetTally) -> io::Result<()> {
        tally.missing = tally.grid_blocks.saturating_sub(tally.blocks);
        self.at.totals.missing = self.at.totals.missing.saturating_add(tally.missing);
        let DatasetTally { dataset, missing, grid_blocks, untold, unreadable, .. } = &tally;
        if self.missing && *untold > 0 {
            let message = format!("further blocks are not stored, in more places than are listed; {missing} in all");
            self.found(&Finding::new(Kind::MissingRange, dataset, message).of(dataset))?;
        } else if !self.missing && *missing > 0 {
            let message = if *unreadable > 0 {
                format!("{missing} of {grid_blocks} blocks were not found, but a part of the dataset could not be read")
            } else {
                format!("{missing} of {grid_blocks} blocks are not stored and read as zeros")
            };
            self.found(&Finding::new(Kind::MissingBlocks, dataset, message).of(dataset))?;
        }
        self.listener.take(Event::Done(&tally))
    }
}

/// Counts one more, from whatever a report says that there were.
fn increase(count: &mut u64) {
    *count = count.saturating_add(1);
}
