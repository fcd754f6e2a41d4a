//! The first line of a report.

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::config::ContainerConfig;
use crate::store::Key;

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
    /// Returns the header of a report on these groups and datasets of the container at `container`; `decode_budget` is
    /// in bytes.
    #[expect(clippy::disallowed_methods, reason = "one container may have several paths")]
    pub(super) fn new(
        container: &ContainerConfig,
        roots: &[Key],
        missing: bool,
        decode_budget: u64,
    ) -> anyhow::Result<Self> {
        let root = &container.root;
        let root = std::fs::canonicalize(root).with_context(|| format!("{}: cannot be read", root.display()))?;
        let roots = roots.iter().map(|key| key.as_str().to_owned()).collect();
        Ok(Self {
            version: REPORT_VERSION,
            root: root.to_string_lossy().into_owned(),
            roots,
            missing,
            server: env!("CARGO_PKG_VERSION").to_owned(),
            symlinks: container.symlinks.name().to_owned(),
            decode_budget,
        })
    }

    /// Returns why a run cannot continue the report with the header `earlier`; `None` if it can.
    pub(super) fn resume_mismatch(&self, earlier: &Self) -> Option<String> {
        let mismatch =
            |setting: &str, previous_value: &dyn std::fmt::Display, current_value: &dyn std::fmt::Display| {
                Some(format!(
                    "was written with {setting} {previous_value}, but this run has {current_value}: choose another name"
                ))
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
