//! Terminal output: findings on standard output, and progress on standard error if that is a terminal.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};

use super::super::process::escape_control_chars;
use crate::verify::{Checkpoint, FINDING_KINDS, Finding, Severity, Totals, VerifyEvent};

/// Maximum number of findings of one kind that are shown for one dataset or group. The report has all of them.
const MAX_SHOWN_PER_KIND: u64 = 20;

/// Minimum interval between two updates of the progress bar.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

const PROGRESS_TEMPLATE: &str = "{percent:>3}% [{bar:30}] {human_pos}/{human_len} blocks  {msg}  {eta} left";

#[derive(Debug)]
pub(super) struct Terminal {
    /// Lowest severity that is shown. `None` shows all findings.
    min_severity: Option<Severity>,
    bar: Option<ProgressBar>,
    last_drawn: Instant,
    started: Instant,
    /// Totals of the run before it was resumed.
    resumed_totals: Totals,
    /// Findings of each kind in the dataset or group that is being walked.
    shown_counts: BTreeMap<(String, &'static str), u64>,
    suppressed: u64,
}

impl Terminal {
    pub(super) fn new(min_severity: Option<Severity>) -> Self {
        let bar = (min_severity.is_none() && io::stderr().is_terminal()).then(|| {
            let style =
                ProgressStyle::with_template(PROGRESS_TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(0).with_style(style)
        });
        let now = Instant::now();
        Self {
            min_severity,
            bar,
            last_drawn: now,
            started: now,
            resumed_totals: Totals::default(),
            shown_counts: BTreeMap::new(),
            suppressed: 0,
        }
    }

    pub(super) fn shows_progress(&self) -> bool {
        self.bar.is_some()
    }

    /// Sets the estimated number of blocks.
    pub(super) fn set_expected_blocks(&self, blocks: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(blocks);
            bar.tick();
        }
    }

    /// Prints that the run continues where an earlier run stopped, and counts the blocks of that run as done.
    pub(super) fn resumed(&mut self, checkpoint: &Checkpoint) {
        self.resumed_totals = checkpoint.totals.clone();
        if self.min_severity.is_none() {
            self.print_line(&format!("resumed after {:?}", checkpoint.after));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.resumed_totals.blocks.saturating_add(self.resumed_totals.missing));
            bar.reset_eta();
        }
    }

    pub(super) fn show(&mut self, event: &VerifyEvent<'_>) {
        match event {
            VerifyEvent::Finding(finding) => self.show_finding(finding),
            VerifyEvent::Progress(totals) => self.progress(totals),
            VerifyEvent::DatasetDone(_) => self.shown_counts.clear(),
            VerifyEvent::Checkpoint(_) => {}
        }
    }

    fn show_finding(&mut self, finding: &Finding) {
        if self.min_severity.is_some_and(|min_severity| finding.severity < min_severity) {
            return;
        }
        let dataset = finding.dataset.clone().unwrap_or_default();
        let count = self.shown_counts.entry((dataset, finding.kind)).or_default();
        *count += 1;
        if *count > MAX_SHOWN_PER_KIND {
            self.suppressed += 1;
            return;
        }
        let key = if finding.key.is_empty() { "/" } else { &finding.key };
        let key = escape_control_chars(key);
        let message = escape_control_chars(&finding.message);
        self.print_line(&format!("{:<7}  {:<19}  {key}: {message}", finding.severity.name(), finding.kind));
    }

    fn progress(&mut self, totals: &Totals) {
        let Some(bar) = self.bar.as_ref().filter(|_| self.last_drawn.elapsed() >= REDRAW_INTERVAL) else { return };
        self.last_drawn = Instant::now();
        let seconds = self.started.elapsed().as_secs().max(1);
        let rate = totals.decoded_bytes.saturating_sub(self.resumed_totals.decoded_bytes) / seconds;
        let position = totals.blocks.saturating_add(totals.missing);
        if bar.length().is_some_and(|length| position > length) {
            bar.set_length(position);
        }
        bar.set_message(format!("{}  {}/s", HumanBytes(totals.decoded_bytes), HumanBytes(rate)));
        bar.set_position(position);
    }

    /// Prints the summary.
    pub(super) fn end(&mut self, totals: &Totals, complete: bool, has_findings: bool, report: Option<&Path>) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if self.min_severity.is_some() && !has_findings && complete {
            return;
        }
        if self.suppressed > 0 {
            let all_hint = report
                .map_or_else(|| "--report FILE keeps all".to_owned(), |path| format!("{} has all", path.display()));
            self.print_line(&format!(
                "... and {} more findings of kinds shown {MAX_SHOWN_PER_KIND} times: {all_hint}",
                HumanCount(self.suppressed)
            ));
        }
        self.print_advice(totals);
        self.print_counts(totals);
        let counts = [(totals.errors, "error"), (totals.warnings, "warning"), (totals.notes, "note")]
            .map(|(count, word)| format!("{count} {word}{}", if count == 1 { "" } else { "s" }))
            .join(", ");
        self.print_line(&match (complete, report) {
            (true, _) => counts,
            (false, Some(report)) => {
                format!("interrupted; so far {counts}. Continue with --report {} --resume", report.display())
            }
            (false, None) => format!("interrupted; so far {counts}. A run with --report FILE can be resumed"),
        });
    }

    /// Prints the number of findings of each kind, with the advice on what to do.
    fn print_advice(&self, totals: &Totals) {
        let mut text = String::new();
        for row in FINDING_KINDS {
            let is_shown = self.min_severity.is_none_or(|min_severity| row.severity >= min_severity);
            if let Some(count) = totals.kinds.get(row.name).filter(|_| is_shown) {
                let _ = write!(text, "\n{count:>7}  {:<19}  {}", row.name, row.advice);
            }
        }
        if !text.is_empty() {
            self.print_line(&format!("\n  count  kind                 what to do{text}\n"));
        }
    }

    /// Prints the numbers of datasets, groups and blocks, and the time.
    fn print_counts(&self, totals: &Totals) {
        self.print_line(&format!(
            "{} in {}: {} stored ({}, decoded {}), {} of them not decoded, {} missing",
            counted(totals.datasets, "dataset"),
            counted(totals.groups, "group"),
            counted(totals.blocks, "block"),
            HumanBytes(totals.stored_bytes),
            HumanBytes(totals.decoded_bytes),
            HumanCount(totals.unverified),
            HumanCount(totals.missing),
        ));
        let seconds = self.started.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "an approximate rate for display")]
        let rate = totals.blocks.saturating_sub(self.resumed_totals.blocks) as f64 / seconds.max(0.001);
        self.print_line(&format!("{seconds:.1} s, {rate:.0} blocks/s"));
    }

    /// Prints a line above the progress bar. Write errors are ignored: standard output may be closed, and the report
    /// has all findings.
    pub(super) fn print_line(&self, line: &str) {
        let print = || drop(writeln!(io::stdout().lock(), "{line}"));
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

/// Returns a count with its noun, such as `1 block` or `2 blocks`.
fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", HumanCount(count), if count == 1 { "" } else { "s" })
}
