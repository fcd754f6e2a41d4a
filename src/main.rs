//! The binary: builds the configuration from arguments, file and environment, and sets the exit status.
//!
//! The status is 0 after a shutdown by signal, 1 if serving failed, and 2 if the command line or configuration is
//! wrong. The help of `verify` and `inspect` lists their statuses.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _};
use n5_server::app::SdNotifier;
use n5_server::config::{Cli, Command, Config, ConfigFile, DEFAULTS, TokenArgs};
use n5_server::{access, allocator, app, healthcheck, n5, telemetry};

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

/// Exit status for a wrong command line or configuration, the same as clap's.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    allocator::configure_purging();
    let command = Cli::command().long_version(long_version());
    let cli = match Cli::from_arg_matches(&command.get_matches()) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    match &cli.command {
        Some(Command::Token(args)) => return issue_token(args),
        Some(Command::Verify(args)) => {
            return run_maintenance(&args.to_server_cli(), |config| app::verify(config, args));
        }
        Some(Command::Inspect(args)) => {
            return run_maintenance(&args.to_server_cli(), |config| app::inspect(config, args));
        }
        None => {}
    }
    if cli.print_default_config {
        return print(DEFAULTS);
    }
    let config = match load_config(&cli).and_then(|config| app::check_rules(&config).map(|()| config)) {
        Ok(config) => config,
        Err(error) => return fail(&error, EXIT_USAGE),
    };
    if cli.check_config {
        if let Err(error) = app::open_access_control(&config).and_then(|_control| app::check_tls(&config)) {
            return fail(&error, EXIT_USAGE);
        }
        return print(&format!("configuration is valid\n{}\n", config.summary()));
    }
    if cli.print_config {
        return match config.to_toml() {
            Ok(text) => print(&text),
            Err(error) => fail(&error.into(), EXIT_USAGE),
        };
    }
    let result = if cli.healthcheck { healthcheck::healthcheck(&config) } else { serve(config, cli) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, 1),
    }
}

/// Runs a maintenance command with the configuration that a server with this command line would have. The status is 2
/// if the command cannot be run.
fn run_maintenance(server: &Cli, job: impl FnOnce(&Config) -> anyhow::Result<u8>) -> ExitCode {
    match load_config(server).and_then(|config| job(&config)) {
        Ok(status) => ExitCode::from(status),
        Err(error) => fail(&error, EXIT_USAGE),
    }
}

/// Prints a new token and its line for the token file. The token appears nowhere else.
#[expect(clippy::disallowed_methods, reason = "the token's lifetime begins now")]
fn issue_token(args: &TokenArgs) -> ExitCode {
    let now = std::time::SystemTime::now();
    match access::issue(&args.name, args.expires.as_deref(), &args.groups, &args.read, now) {
        Ok(issued) => {
            eprintln!("The token, which is shown only once, and the line for the file that access.tokens names:");
            print(&format!("{}\n{}\n", issued.token, issued.line))
        }
        Err(why) => fail(&anyhow::anyhow!(why), EXIT_USAGE),
    }
}

fn load_config(cli: &Cli) -> anyhow::Result<Config> {
    let file = cli.config.as_deref().map(read_config_file).transpose()?;
    Ok(Config::load(&cli.sources(file, environment()?, Path::is_dir, app::reserved_names()))?)
}

#[expect(clippy::disallowed_methods, reason = "the configuration file is not part of a container")]
fn read_config_file(path: &Path) -> anyhow::Result<ConfigFile> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("{name}: cannot be read"))?;
    Ok(ConfigFile { name, text })
}

/// Returns the environment variables that can be settings.
fn environment() -> anyhow::Result<Vec<(String, String)>> {
    let mut variables = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Some(name) = name.to_str().filter(|name| name.starts_with("N5_")) else { continue };
        match value.into_string() {
            Ok(value) => variables.push((name.to_owned(), value)),
            Err(value) => anyhow::bail!("environment variable {name}: {} is not UTF-8", value.display()),
        }
    }
    Ok(variables)
}

fn serve(config: Config, cli: Cli) -> anyhow::Result<()> {
    let _log = telemetry::install_log(&config.log)?;
    raise_descriptor_limit(&config);
    warn_of_address_space();
    #[expect(clippy::disallowed_methods, reason = "systemd passes its socket's name in this variable")]
    let socket = std::env::var("NOTIFY_SOCKET");
    let supervisor = socket.map_or_else(|_none| SdNotifier::default(), |name| SdNotifier::from_socket_name(&name));
    // This runtime accepts connections and supervises the server. The threads that serve connections have their own.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime cannot be started")?;
    let result = runtime.block_on(app::serve(config, move || load_config(&cli), supervisor));
    // A read that hangs in storage must not keep the process alive.
    runtime.shutdown_background();
    result
}

/// Raises the limit of open files to the maximum for this process. A connection takes one descriptor, and another one
/// while a file is sent on it.
fn raise_descriptor_limit(config: &Config) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If the limit cannot be raised, the current one stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let needed = config.min_file_descriptors() as u64;
    if let Some(limit) = getrlimit(Resource::Nofile).current.filter(|limit| *limit < needed) {
        tracing::warn!(
            limit,
            needed,
            "the limit of open files is below what connections and reads may need, so that a few clients can keep all others \
             waiting; raise it (ulimit -n, LimitNOFILE), or lower server.max_connections"
        );
    }
}

/// Warns if the address space is limited. The server reserves much more address space than it takes memory, and is
/// aborted if address space is not available.
fn warn_of_address_space() {
    if let Some(limit_bytes) = rustix::process::getrlimit(rustix::process::Resource::As).current {
        tracing::warn!(
            limit_bytes,
            "the address space is limited (ulimit -v): the server is aborted when it reaches the limit, however little memory it \
             uses; limit the memory of its control group instead"
        );
    }
}

/// Returns the text of `--version`, which lists the codecs below the version that `-V` prints.
fn long_version() -> String {
    let mut text = env!("CARGO_PKG_VERSION").to_owned();
    let _ = write!(text, "\ncodecs:");
    for name in n5::Codecs::built_in().names() {
        let _ = write!(text, " {name}");
    }
    text
}

fn print(text: &str) -> ExitCode {
    // A closed pipe (`| head`) is not an error.
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => fail(&error.into(), 1),
        _ => ExitCode::SUCCESS,
    }
}

fn fail(error: &anyhow::Error, status: u8) -> ExitCode {
    // A failed write, as on a full disk, must not change the exit status.
    let _ = writeln!(std::io::stderr(), "n5-server: {error:#}");
    ExitCode::from(status)
}
