//! `n5-server verify`: opens the container, follows the run, writes the report, and returns the exit status.

mod recovery;
mod report;
mod report_lines;
mod terminal;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};

use self::report::ReportWriter;
use self::report_lines::ReportHeader;
use self::terminal::Terminal;
use super::arguments::VerifyArgs;
use super::process::{escape_control_chars, shutdown_signal};
use crate::config::{Config, ContainerConfig, EntityTagSource};
use crate::container::{Container, Resources, Settings};
use crate::server::open_store;
use crate::store::Key;
use crate::verify::{EventSink, Verifier, VerifyEvent, VerifyOutcome, check_root};

/// Exit status if there are findings of the severity that `--deny` names, or worse.
const EXIT_FINDINGS: u8 = 1;
/// Exit status if the run was stopped before its end or the storage did not answer.
const EXIT_INTERRUPTED: u8 = 3;
/// Exit status if there was no dataset to verify.
const EXIT_NOTHING: u8 = 4;

/// Size of the cache of attributes, in bytes; blocks are not cached.
const STORED_CACHE_BYTES: u64 = 8 << 20;

/// Maximum time to wait for a permit of a budget. It can be long, because no client waits and every permit is returned.
const BUDGET_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Longest time without a response from the storage. A file server restarts in less; after that, an operator has to
/// look at it.
const STORAGE_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Verifies a container and returns the exit status.
///
/// # Errors
/// Returns an error if the container cannot be verified: there is no such container or dataset, or the report cannot be
/// written.
pub(super) async fn verify(config: &Config, args: &VerifyArgs) -> anyhow::Result<u8> {
    let [container_config] = config.containers.as_slice() else { bail!("verify takes one container") };
    // The default entity tags are the same on every machine, so that a run can resume the report of another machine.
    let container_config = &ContainerConfig { entity_tag: EntityTagSource::default(), ..container_config.clone() };
    let store = open_store(container_config, config).await?;
    let settings = Settings::new(config);
    let cores = args.threads.map_or(settings.cores, usize::from);
    let settings =
        Settings { decoded_cache: 0, stored_cache: STORED_CACHE_BYTES, budget_wait: BUDGET_WAIT, cores, ..settings };
    let container = Container::new(Arc::clone(&store), Resources::new(settings)).configured(config, container_config);
    let roots = parse_roots(&container, &args.datasets).await?;
    let header =
        ReportHeader::new(container_config, &roots, args.missing, container.resources().settings().decode_budget)?;
    let report = args.report.as_deref().map(|path| ReportWriter::open(path, &header, args.resume));
    let mut report = report.transpose().map_err(anyhow::Error::msg)?;
    let previous = report.as_mut().and_then(|report| report.previous.take());
    let verifier = Verifier { container, store, roots, report_missing: args.missing, stall_timeout: STORAGE_TIMEOUT };
    let mut terminal = Terminal::new(args.quiet.then_some(args.deny));
    if terminal.shows_progress() {
        terminal.set_expected_blocks(verifier.estimate_blocks().await);
    }
    if let Some(fault) = report.as_ref().and_then(|report| report.fault.as_ref()) {
        terminal.print_line(&escape_control_chars(fault));
    }
    if let Some(previous) = &previous {
        terminal.resumed(&previous.checkpoint);
    }
    let mut outputs = VerifyOutputs { report, terminal };
    let outcome =
        verifier.run(previous, &mut outputs, shutdown_signal()?).await.context("the findings cannot be recorded")?;
    let VerifyOutputs { report, mut terminal } = outputs;
    let (totals, complete) = match outcome {
        VerifyOutcome::Complete(totals) => (totals, true),
        VerifyOutcome::Stopped(totals) => (totals, false),
        VerifyOutcome::StorageStalled(totals, why) => {
            let stalled_for = humantime::format_duration(STORAGE_TIMEOUT);
            terminal.print_line(&format!("given up: the storage has not answered for {stalled_for}: {why}"));
            (totals, false)
        }
    };
    if let Some(mut report) = report {
        report.finish(&totals, complete).context("the report cannot be written")?;
    }
    if complete && totals.datasets == 0 {
        let root = container_config.root.to_string();
        let place = if args.datasets.is_empty() { root } else { args.datasets.join(", ") };
        terminal.print_line(&format!(
            "no block was verified: there is no dataset in {}; is this the right directory, and is its storage mounted?",
            escape_control_chars(&place)
        ));
    }
    let has_findings = totals.worst_severity().is_some_and(|worst| worst >= args.deny);
    terminal.end(&totals, complete, has_findings, args.report.as_deref());
    Ok(match (complete, has_findings) {
        (false, _) => EXIT_INTERRUPTED,
        (true, true) => EXIT_FINDINGS,
        (true, false) if totals.datasets == 0 => EXIT_NOTHING,
        (true, false) => 0,
    })
}

/// Returns the groups and datasets in `names`, without duplicates and without those below another one. Returns the root
/// if `names` is empty.
async fn parse_roots(container: &Container, names: &[String]) -> anyhow::Result<Vec<Key>> {
    let mut keys = Vec::new();
    for name in names {
        let name = name.trim_matches('/');
        let key = if name.is_empty() { Key::root() } else { Key::parse(name)? };
        check_root(container, &key).await.map_err(anyhow::Error::msg)?;
        keys.push(key);
    }
    if keys.is_empty() {
        return Ok(vec![Key::root()]);
    }
    keys.sort();
    keys.dedup();
    let all_keys = keys.clone();
    keys.retain(|key| {
        let mut ancestors = std::iter::successors(key.parent(), Key::parent);
        !ancestors.any(|above| all_keys.contains(&above))
    });
    Ok(keys)
}

/// The receivers of a run's events.
struct VerifyOutputs {
    report: Option<ReportWriter>,
    terminal: Terminal,
}

impl EventSink for VerifyOutputs {
    fn record(&mut self, event: VerifyEvent<'_>) -> std::io::Result<()> {
        if let Some(report) = &mut self.report {
            report.record(&event)?;
        }
        self.terminal.show(&event);
        Ok(())
    }

    fn wants_checkpoint(&self) -> bool {
        self.report.as_ref().is_some_and(ReportWriter::wants_checkpoint)
    }
}
