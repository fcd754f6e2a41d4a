//! The command-line arguments.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::styling::{AnsiColor, Styles};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::config::{ConfigFile, ConfigSources, RootAddress, split_root};
use crate::verify::Severity;

/// Colours of help and errors on a terminal. clap omits them elsewhere, and if `NO_COLOR` is set.
const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const SHORT_HELP: &str = "\
Examples:
  n5-server                              a small demo container
  n5-server volume.n5 --open             one container, opened in the browser
  n5-server em.n5 seg.n5                 two containers, under /em/ and /seg/
  n5-server volume.n5 -l 0.0.0.0:8080    also reachable from other machines
  n5-server verify volume.n5             decodes everything and reports damage
  n5-server inspect volume.n5 em/s0      describes a dataset and the programs that can read it

--help explains the routes, the settings and the exit status.";

const LONG_HELP: &str = "\
Routes (more in docs/API.md and openapi.yaml):
  /                               the container as stored: attributes.json, blocks, listings
                                  in a browser, a page with a preview and links
  /slice/DATASET?start=..&stop=.. an arbitrary region, assembled: format=raw, npy, json, png, jpeg, tiff or n5
  /info/PATH /stats/PATH          description of a group or dataset, and statistics of its elements
  /as/gzip/PATH                   the container re-encoded: raw, gzip, zstd or blosc
  /zarr2/PATH /zarr3/PATH         the container as Zarr, images as OME-NGFF
  /precomputed/PATH               a Neuroglancer precomputed volume
  /viewer/                        Neuroglancer, if this build contains it
  /healthz /readyz /metrics /version
  /token/TOKEN/...                any of these with a token, where access is restricted (docs/ACCESS.md)
Several containers are mounted under their names: /em/attributes.json, /slice/em/DATASET.

Settings, strongest first:
  ROOT, --listen, --port
  --set cache.decoded=1GiB
  N5_CACHE__DECODED=1GiB          in the environment: N5_, section, two underscores, key
  --config FILE                   [cache] and decoded = \"1GiB\"
  --print-default-config          prints every setting with its default and purpose
Unknown settings are errors. Lists: N5_CORS__ORIGINS=https://a.org,https://b.org or TOML.
Sizes:     512MiB, 1.5GiB, 64MB, 1048576   (KiB, MiB, GiB: powers of 1024; kB, MB, GB: of 1000)
Durations: 500ms, 30s, 5m, 1h 30m, 7d

Examples:
  n5-server                                      a small demo container
  n5-server /data/volume.n5                      one container, at http://127.0.0.1:8080/
  n5-server /data/em.n5 /data/seg.n5             two containers, under /em/ and /seg/
  n5-server em=/data/1.n5 seg=/data/2.n5         the same containers under chosen names
  n5-server /data/volume.n5 --listen 0.0.0.0:80  also reachable from other machines
  n5-server --config lab.toml --check-config     reports all errors in lab.toml at once
  n5-server /data/volume.n5 --set cache.decoded=4GiB --set log.format=json
  curl -o xy.npy 'localhost:8080/slice/s0?start=0,0,9&stop=64,64,10&format=npy'

  n5-server verify /data/volume.n5               decodes everything and reports damage
  n5-server inspect /data/volume.n5 em/s0        describes a dataset and the programs that can read it

Exit status: 0 after a shutdown by signal, 1 when serving failed, 2 when the command line or configuration is wrong.";

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

Exit status: 0 if nothing of the severity of --deny was found, 1 if something was, 2 if the command could not be run
(arguments, configuration, no such container, a report that cannot be written), 3 if it was interrupted, 4 if there was
no dataset to verify.";

const AFTER_INSPECT: &str = "\
Examples:
  n5-server inspect /data/volume.n5           the tree of groups and datasets
  n5-server inspect /data/volume.n5 em        a multiscale group: its levels, voxel size, and the programs that can read it
  n5-server inspect /data/volume.n5 em/s0     a dataset
  n5-server inspect /data/volume.n5 em --json | jq .readable

Exit status: 0, or 2 if there is no such container, group or dataset.";

/// Serves N5 containers over HTTP: metadata, blocks as stored, and arbitrary sub-regions.
#[derive(Debug, Clone, Parser)]
#[command(name = "n5-server", version, max_term_width = 120, args_conflicts_with_subcommands = true, styles = STYLES)]
#[command(after_help = SHORT_HELP, after_long_help = LONG_HELP)]
pub(super) struct Cli {
    /// Command to run; without a command, the server starts.
    #[command(subcommand)]
    pub(super) command: Option<Command>,

    #[command(flatten)]
    pub(super) serve: ServeArgs,
}

/// Arguments of `n5-server` and of `n5-server serve`.
#[derive(Debug, Clone, Default, Args)]
#[expect(clippy::struct_excessive_bools, reason = "one for each command-line switch")]
pub(super) struct ServeArgs {
    /// Directory or address (s3://BUCKET/PATH, gs://, az://, https://) of a container, or NAME=ROOT
    ///
    /// Several containers are served under their names; without NAME, a container has the name of its directory, or the
    /// last part of its address, without ".n5". The containers replace those of the configuration. An argument is a plain
    /// path or address if the part before its first "=" contains a slash, or if it names an existing directory. Without
    /// any container, here or in the configuration, a small demo container is served.
    #[arg(value_name = "ROOT")]
    pub(super) roots: Vec<OsString>,

    /// Listening address: PORT, IP:PORT, localhost:PORT or unix:/path/to/socket [default: 127.0.0.1:8080]
    ///
    /// Port 0 stands for any free port. PORT alone, and localhost:PORT, can be reached from this machine only. With
    /// 0.0.0.0:PORT, other machines can reach the server, too.
    #[arg(short, long, value_name = "ADDRESS")]
    pub(super) listen: Option<String>,

    /// Port to listen on; the IP address stays as configured
    #[arg(short, long, value_name = "PORT", conflicts_with = "listen")]
    pub(super) port: Option<u16>,

    /// Opens the front page in the default browser when the server is ready
    #[arg(long)]
    pub(super) open: bool,

    /// Reads settings from a TOML file
    #[arg(short, long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Overrides a setting, such as cache.decoded=1GiB; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub(super) set: Vec<String>,

    /// Checks the configuration, prints a summary or all errors, and exits with status 0 or 2
    #[arg(long, conflicts_with = "print_config")]
    pub(super) check_config: bool,

    /// Prints the configuration that results from all sources, as TOML that --config accepts, and exits
    #[arg(long)]
    pub(super) print_config: bool,

    /// Checks that the server running with this configuration is alive, and exits with status 0 or 1
    #[arg(long, conflicts_with_all = ["print_config", "check_config"])]
    pub(super) healthcheck: bool,

    /// Prints every setting with its default, unit and purpose, as TOML, and exits
    #[arg(long, conflicts_with_all = ["print_config", "check_config"])]
    pub(super) print_default_config: bool,
}

/// A command of the program.
#[derive(Debug, Clone, Subcommand)]
pub(super) enum Command {
    /// Serves containers, as without a command
    #[command(after_help = SHORT_HELP, after_long_help = LONG_HELP)]
    Serve(ServeArgs),
    /// Creates a token and prints it, once, together with its line for the file named by access.tokens
    Token {
        /// Name of the token's owner: letters, digits and - . _
        name: String,

        /// Expiry, as a duration from now (90d) or a time (2027-01-31T00:00:00Z); without it, the token never expires
        #[arg(long, value_name = "WHEN")]
        expires: Option<String>,

        /// Group of the token's owner; may be repeated
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,

        /// Path that the token may read, such as /em/volume; all others that are not public are refused; may be
        /// repeated
        #[arg(long, value_name = "PATH")]
        read: Vec<String>,
    },
    /// Decodes every block of a container and reports what is missing, corrupt or unreadable, and to which programs
    Verify(VerifyArgs),
    /// Describes a container, group or dataset
    Inspect(InspectArgs),
    /// Prints the completions of this command line for a shell
    Completions {
        /// Shell that will read the completions
        shell: Shell,
    },
    /// Prints the manual page, in the format of man(7)
    Man,
}

/// Arguments of `n5-server verify`.
///
/// The command decodes every block and checks all attributes and every file, as the server would read them. It does
/// not write to the container.
#[derive(Debug, Clone, Args)]
#[command(after_help = AFTER_VERIFY)]
pub(super) struct VerifyArgs {
    /// Directory of a container
    #[arg(value_name = "ROOT")]
    pub(super) root: PathBuf,

    /// Paths of groups or datasets within the container; without any, the whole container is verified
    #[arg(value_name = "DATASET")]
    pub(super) datasets: Vec<String>,

    /// Writes each finding to this file immediately, one JSON object per line; must not be inside ROOT
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,

    /// Resumes the interrupted run that wrote --report; starts anew if there is none or it was completed
    #[arg(long, requires = "report")]
    pub(super) resume: bool,

    /// Treats blocks that are not stored as errors, and lists them
    #[arg(long)]
    pub(super) missing: bool,

    /// Lowest severity that makes the exit status 1
    #[arg(long, value_name = "SEVERITY", default_value = "errors", value_parser = severity_parser())]
    pub(super) deny: Severity,

    /// Prints only findings that --deny covers, and no progress; prints nothing if datasets were verified without such a finding
    #[arg(short, long)]
    pub(super) quiet: bool,

    /// Number of blocks decoded concurrently [default: number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) threads: Option<u16>,

    /// Reads settings from a TOML file: limits, and the symbolic links to follow
    #[arg(short, long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Overrides a setting, such as limits.decode_budget=1GiB or container_defaults.symlinks=follow; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub(super) set: Vec<String>,
}

/// Arguments of `n5-server inspect`.
///
/// The command prints the contents of `/info` as readable text: shape, type, blocks, axes, voxel size, levels, the
/// programs that can read the dataset, and unusual properties. For a group, it prints the tree below it.
#[derive(Debug, Clone, Args)]
#[command(after_help = AFTER_INSPECT)]
pub(super) struct InspectArgs {
    /// Directory of a container or of a dataset
    #[arg(value_name = "ROOT")]
    pub(super) root: PathBuf,

    /// Path of a group or dataset within the container
    #[arg(value_name = "DATASET", default_value = "")]
    pub(super) dataset: String,

    /// Prints the document of /info as JSON
    #[arg(long)]
    pub(super) json: bool,

    /// Reads settings from a TOML file
    #[arg(short, long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Overrides a setting, such as limits.attributes=16MiB; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub(super) set: Vec<String>,
}

impl ServeArgs {
    /// Returns the sources of the configuration: the arguments, the text of the `--config` file, and the environment.
    /// `is_directory` decides whether a ROOT that contains `=` is a path.
    pub(super) fn sources(
        &self,
        file: Option<ConfigFile>,
        environment: Vec<(String, String)>,
        is_directory: impl Fn(&Path) -> bool,
        reserved: Vec<&'static str>,
    ) -> ConfigSources {
        ConfigSources {
            file,
            environment,
            set: self.set.clone(),
            listen: self.listen.clone(),
            port: self.port,
            roots: self.roots.iter().map(|text| split_root(text, &is_directory)).collect(),
            reserved,
            system_memory: None,
        }
    }
}

/// Returns the parser of `--deny`.
fn severity_parser() -> impl TypedValueParser<Value = Severity> {
    let values = [
        PossibleValue::new("errors").help("Lost, wrong or unverified data"),
        PossibleValue::new("warnings").help("Also data that some program cannot read"),
        PossibleValue::new("notes").help("Also other noteworthy findings"),
    ];
    PossibleValuesParser::new(values).map(|name| match name.as_str() {
        "errors" => Severity::Error,
        "warnings" => Severity::Warning,
        _ => Severity::Note,
    })
}

/// Returns the arguments of a server with this container and these settings.
pub(super) fn serve_args(root: &Path, config: Option<&PathBuf>, set: &[String]) -> ServeArgs {
    // Neither an absolute path nor an address with a scheme is ever parsed as NAME=ROOT.
    let root = match RootAddress::parse(root.as_os_str()) {
        Ok(RootAddress::Local(path)) => std::path::absolute(&path).unwrap_or(path),
        Ok(RootAddress::Remote(_)) | Err(_) => root.to_owned(),
    };
    ServeArgs { roots: vec![root.into()], config: config.cloned(), set: set.to_vec(), ..ServeArgs::default() }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::config::{Config, LogFormat};

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments_become_sources() {
        let cli =
            Cli::try_parse_from(["n5-server", "em=/a", "-l", "127.0.0.1:0", "--set", "log.format=json", "seg=/b"]);
        let sources = cli.unwrap().serve.sources(None, Vec::new(), |_| false, vec!["slice"]);
        let config = Config::load(&sources).unwrap();
        assert_eq!(config.containers.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["em", "seg"]);
        assert_eq!(config.log.format, LogFormat::Json);
    }

    #[test]
    fn the_help_names_all_essential_settings_and_forms() {
        let help = Cli::command().render_long_help().to_string();
        for word in ["N5_CACHE__DECODED", "/slice/", "--listen", "MiB", "30s", "--check-config", "Exit status"] {
            assert!(help.contains(word), "{word}");
        }
    }
}
