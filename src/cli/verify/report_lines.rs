//! Lines of a report: the header, which identifies the job of the report, and the lines after it.

use std::borrow::Cow;
use std::fmt::Display;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::config::{ContainerConfig, RootAddress};
use crate::store::Key;

/// Maximum length of a line in bytes. This program does not write longer lines.
pub(super) const MAX_LINE_BYTES: u64 = 4 << 20;

/// Version of the report format.
const REPORT_VERSION: u64 = 1;

/// The first line of a report, which identifies its job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ReportHeader {
    version: u64,
    pub(super) root: String,
    pub(super) roots: Vec<String>,
    missing: bool,
    /// Version of the program. Like the two settings below, it affects the findings.
    server: String,
    symlinks: String,
    decode_budget: u64,
}

impl ReportHeader {
    /// Creates the header of a report on the groups and datasets `roots` of a container. `decode_budget` is in bytes.
    ///
    /// # Errors
    /// Returns an error if the directory of the container cannot be read.
    #[expect(clippy::disallowed_methods, reason = "one container may have several paths")]
    pub(super) fn new(
        container: &ContainerConfig,
        roots: &[Key],
        missing: bool,
        decode_budget: u64,
    ) -> anyhow::Result<Self> {
        let root = match &container.root {
            RootAddress::Local(path) => std::fs::canonicalize(path)
                .with_context(|| format!("{}: cannot be read", path.display()))?
                .to_string_lossy()
                .into_owned(),
            RootAddress::Remote(root) => root.to_string(),
        };
        Ok(Self {
            version: REPORT_VERSION,
            root,
            roots: roots.iter().map(|key| key.as_str().to_owned()).collect(),
            missing,
            server: env!("CARGO_PKG_VERSION").to_owned(),
            symlinks: container.symlinks.name().to_owned(),
            decode_budget,
        })
    }

    /// Returns the reason why a run cannot continue the report with the header `earlier`, or `None` if it can.
    pub(super) fn resume_mismatch(&self, earlier: &Self) -> Option<String> {
        let mismatch = |setting: &str, earlier: &dyn Display, current: &dyn Display| {
            Some(format!("was written with {setting} {earlier}, but this run has {current}: choose another name"))
        };
        if self == earlier {
            None
        } else if self.server != earlier.server {
            mismatch("n5-server", &earlier.server, &self.server)
        } else if self.symlinks != earlier.symlinks {
            mismatch("container_defaults.symlinks =", &earlier.symlinks, &self.symlinks)
        } else if self.decode_budget != earlier.decode_budget {
            mismatch("limits.decode_budget =", &earlier.decode_budget, &self.decode_budget)
        } else {
            Some("belongs to another container or another job: choose another name".to_owned())
        }
    }
}

/// Parses the first line of a report. Returns `None` if the line is not a header.
pub(super) fn parse_header(text: &[u8]) -> Option<ReportHeader> {
    is_header(text).then(|| serde_json::from_slice(text).ok())?
}

/// Returns true if this is the first line of a report of any version.
pub(super) fn is_header(text: &[u8]) -> bool {
    serde_json::from_slice::<ReportLine<'_>>(text).is_ok_and(|line| line.record == "run")
}

/// Members of a line that are needed to resume a report.
#[derive(Deserialize)]
pub(super) struct ReportLine<'a> {
    #[serde(borrow)]
    pub(super) record: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) severity: Option<Cow<'a, str>>,
    #[serde(default)]
    pub(super) key: Option<String>,
    #[serde(default)]
    pub(super) complete: Option<bool>,
    /// Checksum of a checkpoint.
    #[serde(borrow, default)]
    pub(super) sum: Option<Cow<'a, str>>,
}
