//! The command lines of what looks after containers: `verify` and `inspect`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Cli;

const AFTER_VERIFY: &str = "\
Severities:
  error    data are lost, wrong or could not be verified
  warning  the data are there, but some program cannot read them
  note     worth knowing: blocks that are not stored, files that are not N5's, unusual attributes
Every kind of finding, the report's lines, and what to do: docs/VERIFY.md.

Examples:
  n5-server verify /data/volume.n5                            everything, with a progress bar on a terminal
  n5-server verify /data/volume.n5 em/s0 seg                  two datasets or groups of it
  n5-server verify /data/volume.n5 --missing                  holes are errors, too
  n5-server verify /data/volume.n5 --report v.jsonl --resume  goes on where the run of that report was interrupted
  n5-server verify -q /data/volume.n5 --report v.jsonl        for cron: prints nothing where nothing is found

Exit status: 0 where nothing of the severity of --deny was found, 1 where something was, 2 when it could not be run
(arguments, configuration, no such container, a report that cannot be written), 3 when it was interrupted.";

const AFTER_INSPECT: &str = "\
Examples:
  n5-server inspect /data/volume.n5           the tree of groups and datasets
  n5-server inspect /data/volume.n5 em        a multiscale group: its levels, voxel size, who reads it
  n5-server inspect /data/volume.n5 em/s0     a dataset
  n5-server inspect /data/volume.n5 em --json | jq .readable

Exit status: 0, or 2 when there is no such container, group or dataset.";

/// What is to be verified, and how it is told.
///
/// Decodes every block, looks at all attributes and at every file, as the server would read them. Nothing in the container is
/// written.
#[derive(Debug, Clone, Args)]
#[command(after_help = AFTER_VERIFY)]
pub struct Verify {
    /// Directory of a container
    #[arg(value_name = "ROOT")]
    pub root: PathBuf,

    /// Groups or datasets of it, by their paths within it; all of it without any
    #[arg(value_name = "DATASET")]
    pub datasets: Vec<String>,

    /// Writes every finding to this file as it is made, a JSON object a line; must not be inside ROOT
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,

    /// Goes on where the run that wrote --report was interrupted; begins anew where there is none, or it had ended
    #[arg(long, requires = "report")]
    pub resume: bool,

    /// Takes blocks that are not stored for errors, and lists them
    #[arg(long)]
    pub missing: bool,

    /// The least severity that makes the exit status 1
    #[arg(long, value_name = "SEVERITY", default_value = "errors")]
    pub deny: Deny,

    /// Prints only what --deny names, and nothing where there is none; no progress
    #[arg(short, long)]
    pub quiet: bool,

    /// Blocks decoded at once [default: as many as there are cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,

    /// Reads settings from a TOML file: limits, and which symbolic links are followed
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Sets one setting, such as limits.decode_budget=1GiB or container_defaults.symlinks=follow; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

/// Severities that can be denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Deny {
    /// Data are lost, wrong or unverified.
    Errors,
    /// Also what some program cannot read.
    Warnings,
    /// Also what is worth knowing.
    Notes,
}

/// What is to be shown.
///
/// Prints what /info tells, for people: shape, type, blocks, axes, voxel size, levels, which programs read it and what is
/// unusual; of a group, the tree below it.
#[derive(Debug, Clone, Args)]
#[command(after_help = AFTER_INSPECT)]
pub struct Inspect {
    /// Directory of a container, or of a dataset
    #[arg(value_name = "ROOT")]
    pub root: PathBuf,

    /// A group or dataset of it, by its path within it
    #[arg(value_name = "DATASET", default_value = "")]
    pub dataset: String,

    /// Prints the document of /info itself
    #[arg(long)]
    pub json: bool,

    /// Reads settings from a TOML file
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Sets one setting, such as limits.attributes=16MiB; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
}

impl Verify {
    /// The command line of a server with the same container and settings.
    pub fn server(&self) -> Cli {
        server(&self.root, self.config.as_ref(), &self.set)
    }
}

impl Inspect {
    /// The command line of a server with the same container and settings.
    pub fn server(&self) -> Cli {
        server(&self.root, self.config.as_ref(), &self.set)
    }
}

fn server(root: &std::path::Path, config: Option<&PathBuf>, set: &[String]) -> Cli {
    // Absolute, so that it is a path whatever it holds.
    let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
    Cli { roots: vec![root.into()], config: config.cloned(), set: set.to_vec(), ..Cli::default() }
}
