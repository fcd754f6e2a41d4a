//! The edge of the process: arguments, file and environment become a configuration; the exit status tells the end.
//!
//! Status 0 after a shutdown by signal, 1 when serving failed, 2 when the command line or configuration is wrong; those of
//! `verify` and `inspect` are in their help.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _};
use n5_server::app::Supervisor;
use n5_server::config::{Cli, Command, Config, DEFAULTS, File, NewToken};
use n5_server::{access, allocator, app, healthcheck, n5, telemetry};

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

/// Exit status for a wrong command line or configuration, as clap has it.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    allocator::return_memory();
    let command = Cli::command().long_version(long_version());
    let cli = match Cli::from_arg_matches(&command.get_matches()) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    match &cli.command {
        Some(Command::Token(wanted)) => return token(wanted),
        Some(Command::Verify(wanted)) => return care(&wanted.server(), |config| app::verify(config, wanted)),
        Some(Command::Inspect(wanted)) => return care(&wanted.server(), |config| app::inspect(config, wanted)),
        None => {}
    }
    if cli.print_default_config {
        return print(DEFAULTS);
    }
    let config = match configuration(&cli).and_then(|config| app::check_rules(&config).map(|()| config)) {
        Ok(config) => config,
        Err(error) => return fail(&error, USAGE),
    };
    if cli.check_config {
        if let Err(error) = app::control(&config).and_then(|_control| app::check_tls(&config)) {
            return fail(&error, USAGE);
        }
        return print(&format!("configuration is valid\n{}\n", config.summary()));
    }
    if cli.print_config {
        return match config.to_toml() {
            Ok(text) => print(&text),
            Err(error) => fail(&error.into(), USAGE),
        };
    }
    let ended = if cli.healthcheck { healthcheck::healthcheck(&config) } else { run(config, cli) };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, 1),
    }
}

/// Looks after a container as a server with that command line would read it; status 2 where that cannot be done.
fn care(server: &Cli, job: impl FnOnce(&Config) -> anyhow::Result<u8>) -> ExitCode {
    match configuration(server).and_then(|config| job(&config)) {
        Ok(status) => ExitCode::from(status),
        Err(error) => fail(&error, USAGE),
    }
}

/// Prints a new token and the line that stands for it. Nothing else ever sees the token.
#[expect(clippy::disallowed_methods, reason = "the token's time begins now")]
fn token(wanted: &NewToken) -> ExitCode {
    let now = std::time::SystemTime::now();
    match access::issue(&wanted.name, wanted.expires.as_deref(), &wanted.groups, &wanted.read, now) {
        Ok(issued) => {
            eprintln!("The token, shown only now, and the line for the file that access.tokens names:");
            print(&format!("{}\n{}\n", issued.token, issued.line))
        }
        Err(why) => fail(&anyhow::anyhow!(why), USAGE),
    }
}

fn configuration(cli: &Cli) -> anyhow::Result<Config> {
    let file = cli.config.as_deref().map(read).transpose()?;
    Ok(Config::load(&cli.sources(file, environment()?, Path::is_dir, app::reserved()))?)
}

#[expect(clippy::disallowed_methods, reason = "the one file that is not of a container: the configuration's own")]
fn read(path: &Path) -> anyhow::Result<File> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("{name}: cannot be read"))?;
    Ok(File { name, text })
}

/// The variables that can be settings.
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

fn run(config: Config, cli: Cli) -> anyhow::Result<()> {
    let _log = telemetry::install_log(&config.log)?;
    allow_descriptors(&config);
    warn_of_address_space();
    #[expect(clippy::disallowed_methods, reason = "systemd names its socket there")]
    let socket = std::env::var("NOTIFY_SOCKET");
    let supervisor = socket.map_or_else(|_none| Supervisor::default(), |name| Supervisor::at(&name));
    // Accepts connections and looks after the whole; those who serve them have threads of their own.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("the runtime cannot be started")?;
    let served = runtime.block_on(app::serve(config, move || configuration(&cli), supervisor));
    // A read that hangs in the storage must not keep the process.
    runtime.shutdown_background();
    served
}

/// Raises the number of open files to what this process may have: a connection takes one, and one more while a file is
/// sent on it.
fn allow_descriptors(config: &Config) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // What there is will do where it cannot be raised.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let needed = config.least_descriptors() as u64;
    if let Some(limit) = getrlimit(Resource::Nofile).current.filter(|limit| *limit < needed) {
        tracing::warn!(
            limit,
            needed,
            "the limit of open files is below what connections and reads may need, so that a few clients can keep all others \
             waiting; raise it (ulimit -n, LimitNOFILE), or lower server.max_connections"
        );
    }
}

/// Says so where the address space is limited: much more of it is reserved than memory is taken, and what is not available
/// ends the process.
fn warn_of_address_space() {
    if let Some(limit_bytes) = rustix::process::getrlimit(rustix::process::Resource::As).current {
        tracing::warn!(
            limit_bytes,
            "the address space is limited (ulimit -v): the server is aborted when it reaches the limit, whatever memory it \
             takes; limit the memory of a control group in its place"
        );
    }
}

/// What `--version` adds to `-V`.
fn long_version() -> String {
    let mut text = env!("CARGO_PKG_VERSION").to_owned();
    let _ = write!(text, "\ncodecs:");
    for (name, _) in n5::CODECS {
        let _ = write!(text, " {name}");
    }
    text
}

fn print(text: &str) -> ExitCode {
    // A reader that has seen enough (`| head`) is not a fault.
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => fail(&error.into(), 1),
        _ => ExitCode::SUCCESS,
    }
}

fn fail(error: &anyhow::Error, status: u8) -> ExitCode {
    // A full disk is no reason for another status.
    let _ = writeln!(std::io::stderr(), "n5-server: {error:#}");
    ExitCode::from(status)
}
