//! The command line, the configuration's memory bounds, and the summary that `--check-config` prints.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};

use super::{Config, ConfigFile, ConfigSources, InspectArgs, RootArgument, VerifyArgs, values};

/// Size of the cache of parsed attributes, which is not configurable.
const ATTRIBUTES_CACHE_BYTES: u64 = 8 << 20;

/// Memory of each thread of `server.threads` beyond [`BASELINE_THREADS`], including the threads beside it that decode
/// blocks and make documents: stacks, and the memory that the allocator retains for each thread. Measured 3 to 7 MiB
/// (`docs/HOSTILE.md`).
const THREAD_BYTES: u64 = 8 << 20;

/// Number of threads whose memory is part of the process's baseline.
const BASELINE_THREADS: u64 = 2;

/// Memory of a thread that waits for a container's disk. Measured 0.1 MiB (`docs/HOSTILE.md`).
const DISK_THREAD_BYTES: u64 = 128 << 10;

/// Disk threads: the maximum for one container, the number reserved for each container, and the number that all
/// containers share in addition.
const MAX_DISK_THREADS_PER_CONTAINER: usize = 64;
const RESERVED_DISK_THREADS_PER_CONTAINER: usize = 4;
const SHARED_DISK_THREADS: usize = 180;

/// Measured memory of a connection that has used the HTTP library, without and with TLS. HTTP/2 streams and long
/// request heads are not included.
const CONNECTION_BYTES: u64 = 34 << 10;
const TLS_CONNECTION_BYTES: u64 = 58 << 10;

/// Memory for HTTP/2 streams and long request heads in the pool that all connections share: this much for each
/// connection of `server.max_connections`, and at least [`MIN_POOL_BYTES`].
const POOL_BYTES_PER_CONNECTION: u64 = 6 << 10;
const MIN_POOL_BYTES: u64 = 4 << 20;

/// Minimum memory that an HTTP/2 stream takes from this pool.
const MIN_STREAM_BYTES: u64 = 8 << 10;

/// Memory of a request that waits for memory, in addition to its connection's memory. Measured 12 KiB.
const WAITING_REQUEST_BYTES: u64 = 16 << 10;

/// Kernel memory of a connection's socket: its structures (5 KiB), its receive buffer, and the part of its send
/// queue that is not counted in [`SEND_QUEUES_BYTES`].
const SOCKET_BYTES: u64 = 19 << 10;

/// Kernel memory for the send queues of all connections.
const SEND_QUEUES_BYTES: u64 = 40 << 20;

/// Kernel memory of 2,048 connections in the accept queue, including the data that they have sent.
const ACCEPT_QUEUE_BYTES: u64 = 26 << 20;

/// Measured memory of a TLS handshake in progress.
const HANDSHAKE_BYTES: u64 = 72 << 10;

const AFTER_HELP: &str = "\
Routes (more in docs/API.md and openapi.yaml):
  /                               the container as stored: attributes.json, blocks, listings
                                  in a browser, a page with a preview and links
  /slice/DATASET?start=..&stop=.. an arbitrary region, assembled: format=raw, npy, json, png, jpeg, tiff or n5
  /info/PATH /stats/PATH          description of a group or dataset, and statistics of its elements
  /as/gzip/PATH                   the container re-encoded: raw, gzip, zstd or blosc
  /zarr2/PATH /zarr3/PATH         the container as Zarr, images as OME-NGFF
  /precomputed/PATH               a Neuroglancer precomputed volume
  /viewer/                        Neuroglancer, if viewer/build has built it
  /healthz /readyz /metrics /version
  /token/TOKEN/...                any of these with a token, where access is restricted (docs/ACCESS.md)
Several containers are mounted under their names: /em/attributes.json, /slice/em/DATASET.

Settings, strongest first:
  ROOT, --listen
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
  n5-server em=/data/em.n5 seg=/data/seg.n5      two containers, under /em/ and /seg/
  n5-server /data/volume.n5 --listen 0.0.0.0:80  also reachable from other machines
  n5-server --config lab.toml --check-config     reports all errors in lab.toml at once
  n5-server /data/volume.n5 --set cache.decoded=4GiB --set log.format=json
  curl -o xy.npy 'localhost:8080/slice/s0?start=0,0,9&stop=64,64,10&format=npy'

  n5-server verify /data/volume.n5               decodes everything and reports damage
  n5-server inspect /data/volume.n5 em/s0        describes a dataset and the programs that can read it

Exit status: 0 after a shutdown by signal, 1 when serving failed, 2 when the command line or configuration is wrong.";

/// Serves N5 containers over HTTP: metadata, blocks as stored, and arbitrary sub-regions.
#[derive(Debug, Clone, Default, Parser)]
#[expect(clippy::struct_excessive_bools, reason = "one for each command-line switch")]
#[command(name = "n5-server", version, after_help = AFTER_HELP, max_term_width = 120)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Command to run instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Directory of a container, or NAME=DIRECTORY; several containers need names. Replaces the configured containers.
    /// An argument is a plain path if the part before its first "=" contains a slash, or if it names an existing
    /// directory. Without any container, here or in the configuration, a small demo container is served.
    #[arg(value_name = "ROOT")]
    pub roots: Vec<OsString>,

    /// Listening address: IP:PORT (port 0 for any free port) or unix:/path/to/socket [default: 127.0.0.1:8080]
    #[arg(short, long, value_name = "ADDRESS")]
    pub listen: Option<String>,

    /// Reads settings from a TOML file
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Overrides a setting, such as cache.decoded=1GiB; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,

    /// Checks the configuration, prints a summary or all errors, and exits with status 0 or 2
    #[arg(long, conflicts_with = "print_config")]
    pub check_config: bool,

    /// Prints the configuration that results from all sources, as TOML that --config accepts, and exits
    #[arg(long)]
    pub print_config: bool,

    /// Checks that the server running with this configuration is alive, and exits with status 0 or 1
    #[arg(long, conflicts_with_all = ["print_config", "check_config"])]
    pub healthcheck: bool,

    /// Prints every setting with its default, unit and purpose, as TOML, and exits
    #[arg(long, conflicts_with_all = ["print_config", "check_config"])]
    pub print_default_config: bool,
}

/// A command of the program other than serving.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Creates a token and prints it, once, together with its line for the file named by access.tokens
    Token(TokenArgs),
    /// Decodes every block of a container and reports what is missing, corrupt or unreadable, and to which programs
    Verify(VerifyArgs),
    /// Describes a container, group or dataset
    Inspect(InspectArgs),
}

/// Arguments of `n5-server token`.
#[derive(Debug, Clone, Args)]
pub struct TokenArgs {
    /// Name of the token's owner: letters, digits and - . _
    pub name: String,

    /// Expiry, as a duration from now (90d) or a time (2027-01-31T00:00:00Z); without it, the token never expires
    #[arg(long, value_name = "WHEN")]
    pub expires: Option<String>,

    /// Group of the token's owner; may be repeated
    #[arg(long = "group", value_name = "GROUP")]
    pub groups: Vec<String>,

    /// Path that the token may read, such as /em/volume; all others that are not public are refused; may be repeated
    #[arg(long, value_name = "PATH")]
    pub read: Vec<String>,
}

impl Cli {
    /// Returns the sources of the configuration: the arguments, the text of the `--config` file, and the environment.
    /// `is_directory` decides whether a ROOT that contains `=` is a path.
    pub fn sources(
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
            roots: self.roots.iter().map(|text| RootArgument::parse(text, &is_directory)).collect(),
            reserved,
        }
    }
}

impl Config {
    /// Returns the configuration as TOML that [`Config::load`] reads back.
    ///
    /// # Errors
    /// If a path is not UTF-8, which TOML cannot represent.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// Returns the maximum memory of connections in bytes, without the responses sent on them. It includes
    /// [`Self::connection_pool_bytes`].
    pub fn max_connections_bytes(&self) -> u64 {
        let (connection_bytes, handshakes) = if self.tls.is_enabled() {
            (TLS_CONNECTION_BYTES, HANDSHAKE_BYTES.saturating_mul(super::TlsConfig::MAX_HANDSHAKES as u64))
        } else {
            (CONNECTION_BYTES, 0)
        };
        let fixed = connection_bytes.saturating_mul(self.server.max_connections as u64);
        [self.connection_pool_bytes(), handshakes, self.waiting_requests_bytes()]
            .into_iter()
            .fold(fixed, u64::saturating_add)
    }

    /// Returns the maximum memory of waiting requests in bytes, beyond those of the default
    /// `limits.concurrent_requests`, which the process's baseline includes. Connections and the memory for their
    /// streams limit the number of requests.
    fn waiting_requests_bytes(&self) -> u64 {
        let with_spare = |requests: u64| requests.saturating_mul(2);
        let max_requests =
            (self.server.max_connections as u64).saturating_add(self.connection_pool_bytes() / MIN_STREAM_BYTES);
        let requests = with_spare(self.limits.concurrent_requests as u64).min(max_requests);
        let default_requests = with_spare(super::LimitsConfig::default().concurrent_requests as u64);
        requests.saturating_sub(default_requests).saturating_mul(WAITING_REQUEST_BYTES)
    }

    /// Returns the size in bytes of the pool that all connections share for HTTP/2 streams and long request heads.
    pub fn connection_pool_bytes(&self) -> u64 {
        POOL_BYTES_PER_CONNECTION.saturating_mul(self.server.max_connections as u64).max(MIN_POOL_BYTES)
    }

    /// Returns the maximum kernel memory of the connections' sockets in bytes. It includes [`Self::send_queues_bytes`].
    pub fn sockets_bytes(&self) -> u64 {
        let sockets = SOCKET_BYTES.saturating_mul(self.server.max_connections as u64);
        sockets.saturating_add(self.send_queues_bytes()).saturating_add(ACCEPT_QUEUE_BYTES)
    }

    /// Returns the kernel memory in bytes that the send queues of all connections share.
    pub fn send_queues_bytes(&self) -> u64 {
        SEND_QUEUES_BYTES
    }

    /// Returns the maximum memory of caches, budgets and additional threads together, in bytes. Connections and the
    /// rest of the process are not included.
    pub fn memory_bound_bytes(&self) -> u64 {
        let Self { cache, limits, .. } = self;
        [cache.decoded, cache.stored, limits.slice_budget, limits.decode_budget, limits.transfer_budget]
            .into_iter()
            .fold(ATTRIBUTES_CACHE_BYTES.saturating_add(self.threads_bytes()), u64::saturating_add)
    }

    /// Returns the maximum memory of threads in bytes, without two of `server.threads` and the disk threads of one
    /// container.
    pub fn threads_bytes(&self) -> u64 {
        let serving = (self.threads() as u64).saturating_sub(BASELINE_THREADS).saturating_mul(THREAD_BYTES);
        let waiting = (self.disk_threads().saturating_sub(MAX_DISK_THREADS_PER_CONTAINER) as u64)
            .saturating_mul(DISK_THREAD_BYTES);
        serving.saturating_add(waiting)
    }

    /// Returns the minimum number of file descriptors: one for each connection, two for each read, and 100 more. With
    /// fewer, some clients' connections make those of other clients wait.
    pub fn min_file_descriptors(&self) -> usize {
        self.server.max_connections.saturating_add(self.disk_threads().saturating_mul(2)).saturating_add(100)
    }

    /// Returns the maximum number of threads that wait for the disks of all containers.
    pub fn disk_threads(&self) -> usize {
        let containers = self.containers.len().max(1);
        let shared = RESERVED_DISK_THREADS_PER_CONTAINER.saturating_mul(containers).saturating_add(SHARED_DISK_THREADS);
        MAX_DISK_THREADS_PER_CONTAINER.saturating_mul(containers).min(shared)
    }

    /// Returns the number of threads that serve connections, which is also the number of concurrent jobs in each lane
    /// of the CPU pool: `server.threads`, or one for each core.
    pub fn threads(&self) -> usize {
        match self.server.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }

    /// Returns a summary of the configuration in a few lines for people.
    pub fn summary(&self) -> String {
        let mut text = format!("listens on  {}", self.server.listen);
        if !self.server.base_path.is_empty() {
            let _ = write!(text, ", under {}", self.server.base_path);
        }
        if self.tls.is_enabled() {
            let _ = write!(text, ", with TLS by {}", self.tls.certificate.display());
        }
        if self.containers.is_empty() {
            text.push_str("\nserves      the embedded demo container");
        }
        for container in &self.containers {
            let slash = if container.name.is_empty() { "" } else { "/" };
            let _ = write!(
                text,
                "\nserves      {}/{}{slash} from {} (cache-control {}, symlinks {}{}{})",
                self.server.base_path,
                container.name,
                container.root.display(),
                container.cache_control,
                match container.symlinks {
                    super::Symlinks::Inside => "inside",
                    super::Symlinks::Deny => "deny",
                    super::Symlinks::Follow => "follow",
                },
                if container.must_be_mount { ", must be a mount" } else { "" },
                if container.entity_tag == super::EntityTagBasis::Inode { ", entity tags by inode" } else { "" },
            );
        }
        if self.has_access_control() {
            let default = if self.access.default == super::DefaultAccess::Public { "public" } else { "private" };
            let _ = write!(
                text,
                "\naccess      {default} except for {} rules; metrics: {}",
                self.access.rules.len(),
                self.access.metrics
            );
            if !self.access.tokens.as_os_str().is_empty() {
                let _ = write!(text, "; tokens of {}", self.access.tokens.display());
            }
            if !self.jwt.keys.is_empty() {
                let _ = write!(text, "; JWTs of {}", self.jwt.issuer);
            }
        }
        let size = values::size::format;
        let _ = write!(
            text,
            "\nmemory      {} at most: caches {} decoded, {} stored; budgets {} slices, {} decoding, {} transfer; {} threads",
            size(self.memory_bound_bytes()),
            size(self.cache.decoded),
            size(self.cache.stored),
            size(self.limits.slice_budget),
            size(self.limits.decode_budget),
            size(self.limits.transfer_budget),
            self.threads(),
        );
        let (max_connections, bytes) = (self.server.max_connections, self.max_connections_bytes());
        let _ = write!(
            text,
            "\nconnections {max_connections} at most, which take up to {} MiB more",
            bytes.div_ceil(1 << 20)
        );
        let _ = write!(text, "\nsockets     up to {} MiB more, in the kernel", self.sockets_bytes().div_ceil(1 << 20));
        text
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments_become_sources() {
        let cli =
            Cli::try_parse_from(["n5-server", "em=/a", "-l", "127.0.0.1:0", "--set", "log.format=json", "seg=/b"]);
        let sources = cli.unwrap().sources(None, Vec::new(), |_| false, vec!["slice"]);
        let config = Config::load(&sources).unwrap();
        assert_eq!(config.containers.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["em", "seg"]);
        assert_eq!(config.log.format, super::super::LogFormat::Json);
    }

    #[test]
    fn the_help_names_all_essential_settings_and_forms() {
        let help = Cli::command().render_long_help().to_string();
        for word in ["N5_CACHE__DECODED", "/slice/", "--listen", "MiB", "30s", "--check-config", "Exit status"] {
            assert!(help.contains(word), "{word}");
        }
    }

    #[test]
    fn the_summary_shows_addresses_containers_and_memory() {
        let mut config = Config::default();
        assert!(config.summary().contains("embedded demo"));
        let sources = ConfigSources {
            roots: vec![RootArgument { name: "em".into(), path: "/data/em.n5".into() }],
            set: vec!["server.base_path=/n5data".into(), "server.threads=2".into()],
            ..ConfigSources::default()
        };
        config = Config::load(&sources).unwrap();
        insta::assert_snapshot!(config.summary());
    }
}
