//! The command line, and what the server says about its configuration there.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};

use super::{Config, File, Inspect, Root, Sources, Verify, values};

/// Memory for parsed attributes, which is not configurable.
const ATTRIBUTES_BYTES: u64 = 8 << 20;

/// Memory of a thread of `server.threads` beyond [`THREADS_INCLUDED`], with those that decode and make documents beside it:
/// stacks, and what the allocator's heap of each keeps. Measured 3 to 7 MiB (`docs/HOSTILE.md`).
const THREAD_BYTES: u64 = 8 << 20;

/// Threads whose memory is in what the process takes for itself.
const THREADS_INCLUDED: u64 = 2;

/// Memory of a thread that waits for a container's disk: measured 0.1 MiB (`docs/HOSTILE.md`).
const DISK_THREAD_BYTES: u64 = 128 << 10;

/// Threads that wait for the disk of one container at most, those that it may have whatever others have, and those that all
/// containers share beyond these.
const DISK_THREADS: usize = 64;
const OWN_DISK_THREADS: usize = 4;
const COMMON_DISK_THREADS: usize = 180;

/// Memory of a connection that has used the HTTP library, without streams of HTTP/2 and with a head of ordinary length,
/// as measured, and of an encrypted one.
const CONNECTION_BYTES: u64 = 34 << 10;
const ENCRYPTED_BYTES: u64 = 58 << 10;

/// Memory for streams and long heads that all connections share: so much for each that may be open, and at least
/// [`LEAST_SHARED_BYTES`].
const SHARED_BYTES: u64 = 6 << 10;
const LEAST_SHARED_BYTES: u64 = 4 << 20;

/// What a stream of HTTP/2 takes of these, at least.
const LEAST_STREAM_BYTES: u64 = 8 << 10;

/// What a request that waits for memory takes besides its connection's part: measured 12 KiB.
const WAITING_BYTES: u64 = 16 << 10;

/// Kernel memory of a connection's socket: its structures (5 KiB), its receive buffer, and the part of its send queue that
/// takes nothing from [`SEND_QUEUES_BYTES`].
const SOCKET_BYTES: u64 = 19 << 10;

/// Kernel memory for the send queues of all connections together.
const SEND_QUEUES_BYTES: u64 = 40 << 20;

/// Kernel memory of 2,048 connections that wait to be accepted, with what they have sent.
const ACCEPT_QUEUE_BYTES: u64 = 26 << 20;

/// Memory of a TLS handshake while it is under way, as measured.
const HANDSHAKE_BYTES: u64 = 72 << 10;

const AFTER_HELP: &str = "\
Routes (more in README.md and openapi.yaml):
  /                               the container as stored: attributes.json, blocks, listings
                                  in a browser a page with preview and links
  /slice/DATASET?start=..&stop=.. an arbitrary region, assembled: format=raw, npy, json, png, jpeg, tiff or n5
  /info/PATH /stats/PATH          what a group or dataset is, and what its elements are like
  /as/gzip/PATH                   the container re-encoded: raw, gzip, zstd or blosc
  /zarr2/PATH /zarr3/PATH         the container as Zarr, images as OME-NGFF
  /precomputed/PATH               a Neuroglancer precomputed volume
  /viewer/                        Neuroglancer, where viewer/build has made it
  /healthz /readyz /metrics /version
  /token/TOKEN/...                any of these with a token, where access is restricted (docs/ACCESS.md)
Several containers are mounted under their names: /em/attributes.json, /slice/em/DATASET.

Settings, strongest first:
  ROOT, --listen
  --set cache.decoded=1GiB
  N5_CACHE__DECODED=1GiB          in the environment: N5_, section, two underscores, key
  --config FILE                   [cache] and decoded = \"1GiB\"
  --print-default-config          prints every setting with its default and what it is for
Unknown settings are errors. Lists: N5_CORS__ORIGINS=https://a.org,https://b.org or TOML.
Sizes:     512MiB, 1.5GiB, 64MB, 1048576   (KiB, MiB, GiB: powers of 1024; kB, MB, GB: of 1000)
Durations: 500ms, 30s, 5m, 1h 30m, 7d

Examples:
  n5-server                                      a small demo container
  n5-server /data/volume.n5                      one container, at http://127.0.0.1:8080/
  n5-server em=/data/em.n5 seg=/data/seg.n5      two containers, under /em/ and /seg/
  n5-server /data/volume.n5 --listen 0.0.0.0:80  for other machines too
  n5-server --config lab.toml --check-config     says what is wrong with lab.toml, all at once
  n5-server /data/volume.n5 --set cache.decoded=4GiB --set log.format=json
  curl -o xy.npy 'localhost:8080/slice/s0?start=0,0,9&stop=64,64,10&format=npy'

  n5-server verify /data/volume.n5               decodes everything and tells what is damaged
  n5-server inspect /data/volume.n5 em/s0        what a dataset is, and who reads it

Exit status: 0 after a shutdown by signal, 1 when serving failed, 2 when the command line or configuration is wrong.";

/// Serves N5 containers over HTTP: metadata, blocks as stored, and arbitrary sub-regions.
#[derive(Debug, Clone, Default, Parser)]
#[expect(clippy::struct_excessive_bools, reason = "one for each switch of the command line")]
#[command(name = "n5-server", version, after_help = AFTER_HELP, max_term_width = 120)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Directory of a container, or NAME=DIRECTORY; several need names. Replaces the containers of the configuration.
    /// A text whose part before the first "=" holds a slash, or which is an existing directory as a whole, is a path.
    /// Without any, here or configured, a small demo container is served.
    #[arg(value_name = "ROOT")]
    pub roots: Vec<OsString>,

    /// Where to accept connections: IP:PORT (port 0 for any free one) or unix:/path/to/socket [default: 127.0.0.1:8080]
    #[arg(short, long, value_name = "ADDRESS")]
    pub listen: Option<String>,

    /// Reads settings from a TOML file
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Sets one setting, such as cache.decoded=1GiB; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,

    /// Says whether the configuration is valid and what it comes to, then ends: status 0 or 2
    #[arg(long, conflicts_with = "print_config")]
    pub check_config: bool,

    /// Prints the configuration that results from all sources, as TOML that --config accepts, then ends
    #[arg(long)]
    pub print_config: bool,

    /// Asks the server that runs with this configuration whether it lives, then ends: status 0 or 1
    #[arg(long, conflicts_with_all = ["print_config", "check_config"])]
    pub healthcheck: bool,

    /// Prints every setting with its default, unit and purpose, as TOML, then ends
    #[arg(long, conflicts_with_all = ["print_config", "check_config"])]
    pub print_default_config: bool,
}

/// What the program does besides serving.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Makes a token and prints it, once, with the line for the file that access.tokens names
    Token(NewToken),
    /// Decodes every block of a container and tells what is missing, corrupt or unreadable, and for whom
    Verify(Verify),
    /// Prints what a container, group or dataset is
    Inspect(Inspect),
}

/// A token to be made.
#[derive(Debug, Clone, Args)]
pub struct NewToken {
    /// Whose it is: letters, digits and - . _
    pub name: String,

    /// When it ends: after a duration (90d) or at a time (2027-01-31T00:00:00Z); never without this
    #[arg(long, value_name = "WHEN")]
    pub expires: Option<String>,

    /// A group that it belongs to; may be repeated
    #[arg(long = "group", value_name = "GROUP")]
    pub groups: Vec<String>,

    /// A path that it opens, /em/volume, and then nothing else that is not public; may be repeated
    #[arg(long, value_name = "PATH")]
    pub read: Vec<String>,
}

impl Cli {
    /// What the configuration is made from: the arguments, the text of the `--config` file, and the environment.
    /// `is_directory` decides about a ROOT that contains `=`.
    pub fn sources(
        &self,
        file: Option<File>,
        environment: Vec<(String, String)>,
        is_directory: impl Fn(&Path) -> bool,
        reserved: Vec<&'static str>,
    ) -> Sources {
        Sources {
            file,
            environment,
            set: self.set.clone(),
            listen: self.listen.clone(),
            roots: self.roots.iter().map(|text| Root::parse(text, &is_directory)).collect(),
            reserved,
        }
    }
}

impl Config {
    /// The configuration as TOML that [`Config::load`] reads back.
    ///
    /// # Errors
    /// When a path is not UTF-8, which TOML cannot hold.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// The most memory that connections can take besides what they are sent, in bytes;
    /// [`Self::shared_by_connections_bytes`] is a part of it.
    pub fn connections_bytes(&self) -> u64 {
        let (each, handshakes) = if self.tls.is_used() {
            (ENCRYPTED_BYTES, HANDSHAKE_BYTES.saturating_mul(super::Tls::HANDSHAKES as u64))
        } else {
            (CONNECTION_BYTES, 0)
        };
        let fixed = each.saturating_mul(self.server.max_connections as u64);
        [self.shared_by_connections_bytes(), handshakes, self.waiting_bytes()]
            .into_iter()
            .fold(fixed, u64::saturating_add)
    }

    /// The memory of requests that wait beyond those of the default `limits.concurrent_requests`, which the process has room for, in
    /// bytes. No more can come than connections and the memory for their streams allow.
    fn waiting_bytes(&self) -> u64 {
        let with_spare = |requests: u64| requests.saturating_mul(2);
        let most = (self.server.max_connections as u64)
            .saturating_add(self.shared_by_connections_bytes() / LEAST_STREAM_BYTES);
        let requests = with_spare(self.limits.concurrent_requests as u64).min(most);
        let usual = with_spare(super::Limits::default().concurrent_requests as u64);
        requests.saturating_sub(usual).saturating_mul(WAITING_BYTES)
    }

    /// Memory for streams of HTTP/2 and long heads that all connections share, in bytes.
    pub fn shared_by_connections_bytes(&self) -> u64 {
        SHARED_BYTES.saturating_mul(self.server.max_connections as u64).max(LEAST_SHARED_BYTES)
    }

    /// The most memory that the kernel can take for the sockets of connections, in bytes; [`Self::send_queues_bytes`] is a
    /// part of it.
    pub fn sockets_bytes(&self) -> u64 {
        let sockets = SOCKET_BYTES.saturating_mul(self.server.max_connections as u64);
        sockets.saturating_add(self.send_queues_bytes()).saturating_add(ACCEPT_QUEUE_BYTES)
    }

    /// Kernel memory for the send queues that all connections share, in bytes.
    pub fn send_queues_bytes(&self) -> u64 {
        SEND_QUEUES_BYTES
    }

    /// The most memory that caches, budgets and further threads can hold together, in bytes; connections and the rest of the
    /// process come on top.
    pub fn memory_bytes(&self) -> u64 {
        let Self { cache, limits, .. } = self;
        [cache.decoded, cache.stored, limits.slice_budget, limits.decode_budget, limits.transfer_budget]
            .into_iter()
            .fold(ATTRIBUTES_BYTES.saturating_add(self.threads_bytes()), u64::saturating_add)
    }

    /// The most memory that threads take for themselves beyond two of `server.threads` and those of one container, in bytes.
    pub fn threads_bytes(&self) -> u64 {
        let serving = (self.threads() as u64).saturating_sub(THREADS_INCLUDED).saturating_mul(THREAD_BYTES);
        let waiting = (self.disk_threads().saturating_sub(DISK_THREADS) as u64).saturating_mul(DISK_THREAD_BYTES);
        serving.saturating_add(waiting)
    }

    /// Descriptors without which connections of some clients keep those of others waiting: one for each connection, two for
    /// each read, and a few.
    pub fn least_descriptors(&self) -> usize {
        self.server.max_connections.saturating_add(self.disk_threads().saturating_mul(2)).saturating_add(100)
    }

    /// The most threads that wait for the disks of all containers.
    pub fn disk_threads(&self) -> usize {
        let containers = self.containers.len().max(1);
        let shared = OWN_DISK_THREADS.saturating_mul(containers).saturating_add(COMMON_DISK_THREADS);
        DISK_THREADS.saturating_mul(containers).min(shared)
    }

    /// Threads that serve connections, and jobs on the CPU lane at once: `server.threads`, or one for each core.
    pub fn threads(&self) -> usize {
        match self.server.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }

    /// What the configuration comes to, in a few lines for people.
    pub fn summary(&self) -> String {
        let mut text = format!("listens on  {}", self.server.listen);
        if !self.server.base_path.is_empty() {
            let _ = write!(text, ", under {}", self.server.base_path);
        }
        if self.tls.is_used() {
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
                if container.entity_tag == super::EntityTag::Inode { ", entity tags by inode" } else { "" },
            );
        }
        if self.is_guarded() {
            let default = if self.access.default == super::Exposure::Public { "public" } else { "private" };
            let _ = write!(
                text,
                "\naccess      {default} but for {} rules; metrics: {}",
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
            size(self.memory_bytes()),
            size(self.cache.decoded),
            size(self.cache.stored),
            size(self.limits.slice_budget),
            size(self.limits.decode_budget),
            size(self.limits.transfer_budget),
            self.threads(),
        );
        let (most, bytes) = (self.server.max_connections, self.connections_bytes());
        let _ = write!(text, "\nconnections {most} at most, which take up to {} MiB more", bytes.div_ceil(1 << 20));
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
    fn the_help_names_every_section_rule_a_person_needs() {
        let help = Cli::command().render_long_help().to_string();
        for word in ["N5_CACHE__DECODED", "/slice/", "--listen", "MiB", "30s", "--check-config", "Exit status"] {
            assert!(help.contains(word), "{word}");
        }
    }

    #[test]
    fn the_summary_tells_where_what_and_how_much() {
        let mut config = Config::default();
        assert!(config.summary().contains("embedded demo"));
        let sources = Sources {
            roots: vec![Root { name: "em".into(), path: "/data/em.n5".into() }],
            set: vec!["server.base_path=/n5data".into(), "server.threads=2".into()],
            ..Sources::default()
        };
        config = Config::load(&sources).unwrap();
        insta::assert_snapshot!(config.summary());
    }
}
