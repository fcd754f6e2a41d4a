//! Command-line arguments of the maintenance commands `verify` and `inspect`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Cli;

const AFTER_VERIFY: &str = "\
Severities:
  error    data are lost or wrong, or could not be verified
  warning  the data are intact, but some program cannot read them
  note     for information: blocks that are not stored, files that do not belong to N5, unusual attributes
docs/VERIFY.md explains every kind of finding, the lines of the report, and what to do.

Examples:
  n5-server verify /data/volume.n5                            the whole container, with a progress bar on a terminal
  n5-server verify /data/volume.n5 em/s0 seg                  two of its datasets or groups
  n5-server verify /data/volume.n5 --missing                  treats holes as errors, too
  n5-server verify /data/volume.n5 --report v.jsonl --resume  resumes the interrupted run of that report
  n5-server verify -q /data/volume.n5 --report v.jsonl        for cron: prints nothing if there are no findings

Exit status: 0 where nothing of the severity of --deny was found, 1 where something was, 2 when it could not be run
(arguments, configuration, no such container, a report that cannot be written), 3 when it was interrupted.";

const AFTER_INSPECT: &str = "\
Examples:
  n5-server inspect /data/volume.n5           the tree of groups and datasets
  n5-server inspect /data/volume.n5 em        a multiscale group: its levels, voxel size, and the programs that can read it
  n5-server inspect /data/volume.n5 em/s0     a dataset
  n5-server inspect /data/volume.n5 em --json | jq .readable

Exit status: 0, or 2 if there is no such container, group or dataset.";

/// Arguments of `n5-server verify`.
///
/// The command decodes every block and checks all attributes and every file, as the server would read them. It does
/// not write to the container.
#[derive(Debug, Clone, Args)]
#[command(after_help = AFTER_VERIFY)]
pub struct VerifyArgs {
    /// Directory of a container
    #[arg(value_name = "ROOT")]
    pub root: PathBuf,

    /// Paths of groups or datasets within the container; without any, the whole container is verified
    #[arg(value_name = "DATASET")]
    pub datasets: Vec<String>,

    /// Writes each finding to this file immediately, one JSON object per line; must not be inside ROOT
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Resumes the interrupted run that wrote --report; starts anew if there is none or it was completed
    #[arg(long, requires = "report")]
    pub resume: bool,

    /// Treats blocks that are not stored as errors, and lists them
    #[arg(long)]
    pub missing: bool,

    /// Lowest severity that makes the exit status 1
    #[arg(long, value_name = "SEVERITY", default_value = "errors")]
    pub deny: DenyLevel,

    /// Prints only findings that --deny covers, nothing if there are none, and no progress
    #[arg(short, long)]
    pub quiet: bool,

    /// Number of blocks decoded concurrently [default: number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,

    /// Reads settings from a TOML file: limits, and the symbolic links to follow
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Overrides a setting, such as limits.decode_budget=1GiB or container_defaults.symlinks=follow; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

/// Lowest severity that counts as a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DenyLevel {
    /// Lost, wrong or unverified data.
    Errors,
    /// Also data that some program cannot read.
    Warnings,
    /// Also other noteworthy findings.
    Notes,
}

/// Arguments of `n5-server inspect`.
///
/// The command prints the contents of `/info` for people: shape, type, blocks, axes, voxel size, levels, the programs
/// that can read the dataset, and unusual properties. For a group, it prints the tree below it.
#[derive(Debug, Clone, Args)]
#[command(after_help = AFTER_INSPECT)]
pub struct InspectArgs {
    /// Directory of a container or of a dataset
    #[arg(value_name = "ROOT")]
    pub root: PathBuf,

    /// Path of a group or dataset within the container
    #[arg(value_name = "DATASET", default_value = "")]
    pub dataset: String,

    /// Prints the document of /info as JSON
    #[arg(long)]
    pub json: bool,

    /// Reads settings from a TOML file
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Overrides a setting, such as limits.attributes=16MiB; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

impl VerifyArgs {
    /// Returns the command line of a server with the same container and settings.
    pub fn to_server_cli(&self) -> Cli {
        server_cli(&self.root, self.config.as_ref(), &self.set)
    }
}

impl InspectArgs {
    /// Returns the command line of a server with the same container and settings.
    pub fn to_server_cli(&self) -> Cli {
        server_cli(&self.root, self.config.as_ref(), &self.set)
    }
}

fn server_cli(root: &std::path::Path, config: Option<&PathBuf>, set: &[String]) -> Cli {
    // An absolute path is never parsed as NAME=DIRECTORY.
    let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
    Cli { roots: vec![root.into()], config: config.cloned(), set: set.to_vec(), ..Cli::default() }
}
