//! `n5-server verify`: the container opened, the run watched, the report written; the exit status.

mod reading;
mod report;
mod terminal;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};

use self::report::{Begun, Header, Report};
use self::terminal::Terminal;
use super::mounts::store;
use super::{settings, signal};
use crate::config::{Config, ContainerConfig, Deny, EntityTag, Verify};
use crate::container::{Container, Resources, Settings};
use crate::store::Key;
use crate::verify::{Ended, Event, Job, Listener, Severity, control_root};

/// Something was found.
const FOUND: u8 = 1;
/// It was stopped before its end, or the storage did not answer.
const INTERRUPTED: u8 = 3;

/// For attributes; blocks are not cached.
const STORED_CACHE: u64 = 8 << 20;

/// Nobody waits for an answer: a share of a budget comes when those before have theirs.
const PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// Longer than a server of files takes to start again; then somebody has to look at it.
const STORAGE_PATIENCE: Duration = Duration::from_secs(5 * 60);

/// Verifies a container; the exit status.
///
/// # Errors
/// When it cannot be run: no such container or dataset, a report that cannot be written.
pub fn verify(config: &Config, wanted: &Verify) -> anyhow::Result<u8> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime cannot be started")?;
    let ended = runtime.block_on(run(config, wanted));
    // A read that hangs in the storage must not keep the process.
    runtime.shutdown_background();
    ended
}

async fn run(config: &Config, wanted: &Verify) -> anyhow::Result<u8> {
    let [place] = config.containers.as_slice() else { bail!("verify takes one container") };
    // A run may go on with the report of one on another machine.
    let place = &ContainerConfig { entity_tag: EntityTag::default(), ..place.clone() };
    let store = store(place, config)?;
    let settings = settings(config);
    let cores = wanted.threads.map_or(settings.cores, usize::from);
    let settings = Settings { decoded_cache: 0, stored_cache: STORED_CACHE, budget_wait: PATIENCE, cores, ..settings };
    let container = Container::new(Arc::clone(&store), Resources::new(settings));
    let roots = roots(&container, &wanted.datasets).await?;
    let header = Header::new(place, &roots, wanted.missing, container.resources().settings().decode_budget)?;
    let Begun { report, earlier, fault } = match &wanted.report {
        Some(path) => Report::begin(path, &header, wanted.resume).map_err(anyhow::Error::msg)?,
        None => Begun::default(),
    };
    let job = Job { container, store, roots, missing: wanted.missing, patience: STORAGE_PATIENCE };
    let deny = match wanted.deny {
        Deny::Errors => Severity::Error,
        Deny::Warnings => Severity::Warning,
        Deny::Notes => Severity::Note,
    };
    let mut terminal = Terminal::new(wanted.quiet.then_some(deny));
    if terminal.shows_progress() {
        terminal.expect(job.survey().await);
    }
    if let Some(fault) = &fault {
        terminal.doubted(fault);
    }
    if let Some(earlier) = &earlier {
        terminal.resumed(&earlier.checkpoint);
    }
    let mut watchers = Watchers { report, terminal };
    let ended = job.run(earlier, &mut watchers, signal()?).await.context("the run cannot be told")?;
    let Watchers { report, mut terminal } = watchers;
    let (totals, complete) = match ended {
        Ended::Complete(totals) => (totals, true),
        Ended::Stopped(totals) => (totals, false),
        Ended::GivenUp(totals, why) => {
            terminal.given_up(STORAGE_PATIENCE, &why);
            (totals, false)
        }
    };
    if let Some(mut report) = report {
        report.end(&totals, complete).context("the report cannot be written")?;
    }
    let found = totals.worst().is_some_and(|worst| worst >= deny);
    terminal.end(&totals, complete, found, wanted.report.as_deref());
    Ok(match (complete, found) {
        (false, _) => INTERRUPTED,
        (true, true) => FOUND,
        (true, false) => 0,
    })
}

/// The groups and datasets named, each once and none within another; all of it where none is named.
async fn roots(container: &Container, names: &[String]) -> anyhow::Result<Vec<Key>> {
    let mut keys = Vec::new();
    for name in names {
        let name = name.trim_matches('/');
        let key = if name.is_empty() { Key::root() } else { Key::parse(name)? };
        control_root(container, &key).await.map_err(anyhow::Error::msg)?;
        keys.push(key);
    }
    if keys.is_empty() {
        return Ok(vec![Key::root()]);
    }
    keys.sort();
    keys.dedup();
    let all = keys.clone();
    keys.retain(|key| {
        let mut above = std::iter::successors(key.parent(), Key::parent);
        !above.any(|above| all.contains(&above))
    });
    Ok(keys)
}

/// Everybody who is told.
struct Watchers {
    report: Option<Report>,
    terminal: Terminal,
}

impl Listener for Watchers {
    fn take(&mut self, event: Event<'_>) -> std::io::Result<()> {
        if let Some(report) = &mut self.report {
            report.take(&event)?;
        }
        self.terminal.take(&event);
        Ok(())
    }

    fn wants_checkpoint(&self) -> bool {
        self.report.as_ref().is_some_and(Report::wants_checkpoint)
    }
}
