//! What people see: findings on standard output, progress on standard error where that is a terminal.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};

use super::super::visible::visible;
use crate::verify::{Checkpoint, Event, Finding, KINDS, Severity, Totals};

/// Findings of one kind that are shown for one dataset or group; the report has all.
const SHOWN: u64 = 20;

/// How often progress is drawn.
const FRAME: Duration = Duration::from_millis(100);

const STYLE: &str = "{percent:>3}% [{bar:30}] {human_pos}/{human_len} blocks  {msg}  {eta} left";

#[derive(Debug)]
pub(super) struct Terminal {
    /// The least severity that is shown, where not all is.
    quiet: Option<Severity>,
    bar: Option<ProgressBar>,
    drawn: Instant,
    begun: Instant,
    /// What had been counted before this process began.
    before: Totals,
    /// Findings of each kind in the dataset or group that is being walked.
    shown: BTreeMap<(String, &'static str), u64>,
    held_back: u64,
}

impl Terminal {
    pub(super) fn new(quiet: Option<Severity>) -> Self {
        let bar = (quiet.is_none() && io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template(STYLE).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(0).with_style(style)
        });
        let now = Instant::now();
        Self { quiet, bar, drawn: now, begun: now, before: Totals::default(), shown: BTreeMap::new(), held_back: 0 }
    }

    pub(super) fn shows_progress(&self) -> bool {
        self.bar.is_some()
    }

    /// How many blocks there may be.
    pub(super) fn expect(&self, blocks: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(blocks);
            bar.tick();
        }
    }

    /// The run goes on where another has stopped.
    pub(super) fn resumed(&mut self, checkpoint: &Checkpoint) {
        self.before = checkpoint.totals.clone();
        if self.quiet.is_none() {
            self.say(&format!("resumed after {:?}", checkpoint.after));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.before.blocks.saturating_add(self.before.missing));
            bar.reset_eta();
        }
    }

    /// Not all of the report is gone on with.
    pub(super) fn doubted(&self, why: &str) {
        self.say(&visible(why));
    }

    pub(super) fn take(&mut self, event: &Event<'_>) {
        match event {
            Event::Found(finding) => self.found(finding),
            Event::Passed(totals) => self.progress(totals),
            Event::Done(_) => self.shown.clear(),
            Event::Checkpoint(_) => {}
        }
    }

    fn found(&mut self, finding: &Finding) {
        if self.quiet.is_some_and(|least| finding.severity < least) {
            return;
        }
        let whose = finding.dataset.clone().unwrap_or_default();
        let count = self.shown.entry((whose, finding.kind)).or_default();
        *count += 1;
        if *count > SHOWN {
            self.held_back += 1;
            return;
        }
        let key = if finding.key.is_empty() { "/" } else { &finding.key };
        let Finding { severity, kind, message, .. } = finding;
        let (key, message) = (visible(key), visible(message));
        self.say(&format!("{:<7}  {kind:<19}  {key}: {message}", severity.name()));
    }

    fn progress(&mut self, totals: &Totals) {
        let Some(bar) = self.bar.as_ref().filter(|_| self.drawn.elapsed() >= FRAME) else { return };
        self.drawn = Instant::now();
        let seconds = self.begun.elapsed().as_secs().max(1);
        let rate = totals.decoded_bytes.saturating_sub(self.before.decoded_bytes) / seconds;
        let position = totals.blocks.saturating_add(totals.missing);
        if bar.length().is_some_and(|length| position > length) {
            bar.set_length(position);
        }
        bar.set_message(format!("{}  {}/s", HumanBytes(totals.decoded_bytes), HumanBytes(rate)));
        bar.set_position(position);
    }

    /// The run ends because the storage does not answer.
    pub(super) fn given_up(&self, after: Duration, why: &str) {
        self.say(&format!("given up: the storage has not answered for {}: {why}", humantime::format_duration(after)));
    }

    /// The last lines.
    pub(super) fn end(&mut self, totals: &Totals, complete: bool, found: bool, report: Option<&Path>) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if self.quiet.is_some() && !found && complete {
            return;
        }
        if self.held_back > 0 {
            let all = report
                .map_or_else(|| "--report FILE keeps all".to_owned(), |path| format!("{} has all", path.display()));
            self.say(&format!("... and {} more of kinds shown {SHOWN} times: {all}", HumanCount(self.held_back)));
        }
        let mut text = String::new();
        for row in KINDS {
            if let Some(count) =
                totals.kinds.get(row.name).filter(|_| self.quiet.is_none_or(|least| row.severity >= least))
            {
                let _ = write!(text, "\n{count:>7}  {:<19}  {}", row.name, row.advice);
            }
        }
        if !text.is_empty() {
            self.say(&format!("\n  count  kind                 what to do{text}\n"));
        }
        let Totals { groups, datasets, blocks, missing, unverified, .. } = totals;
        let (stored, decoded) = (HumanBytes(totals.stored_bytes), HumanBytes(totals.decoded_bytes));
        self.say(&format!(
            "{} datasets in {} groups: {} blocks stored ({stored}, decoded {decoded}), {} of them not decoded, {} missing",
            HumanCount(*datasets),
            HumanCount(*groups),
            HumanCount(*blocks),
            HumanCount(*unverified),
            HumanCount(*missing),
        ));
        let seconds = self.begun.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = blocks.saturating_sub(self.before.blocks) as f64 / seconds.max(0.001);
        self.say(&format!("{seconds:.1} s, {rate:.0} blocks/s"));
        let Totals { errors, warnings, notes, .. } = totals;
        let plural = |count: &u64, word| format!("{count} {word}{}", if *count == 1 { "" } else { "s" });
        let counted = [plural(errors, "error"), plural(warnings, "warning"), plural(notes, "note")].join(", ");
        match (complete, report) {
            (true, _) => self.say(&counted),
            (false, Some(report)) => {
                self.say(&format!("interrupted; so far {counted}. --report {} --resume goes on", report.display()));
            }
            (false, None) => {
                self.say(&format!("interrupted; so far {counted}. With --report FILE it could be resumed"));
            }
        }
    }

    /// Prints a line above the progress. Nobody may be reading; the report has it, too.
    fn say(&self, line: &str) {
        let print = || drop(writeln!(io::stdout().lock(), "{line}"));
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}
