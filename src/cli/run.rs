//! Chooses the command, builds the configuration from arguments, file and environment, and returns the exit status.
//!
//! The status is 0 after a shutdown by signal, 1 if serving failed, and 2 if the command line or configuration is
//! wrong. The help of `verify` and `inspect` lists their statuses.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _};
use tokio::runtime::Builder;

use super::arguments::{Cli, Command, ServeArgs, serve_args};
use super::command_help::{completions, manual_page, misspelled_command};
use super::healthcheck::healthcheck;
use super::inspect::inspect;
use super::process::{EXIT_USAGE, block_on, fail, print};
use super::serve::serve;
use super::verify::verify;
use crate::config::{Config, ConfigFile, ConfigSources, DEFAULTS};
use crate::{access, http, server};

/// Runs the program with the arguments of its command line and returns its exit status.
pub fn run() -> ExitCode {
    let command = Cli::command().long_version(long_version());
    let matches = command.try_get_matches();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            // Options of a misspelled command are unknown to the server.
            let mut words = std::env::args_os().skip(1).filter_map(|word| word.into_string().ok());
            let word = words.find(|word| !word.starts_with('-'));
            return match word.and_then(|word| misspelled_command(&word)) {
                Some(advice) if error.kind() == ErrorKind::UnknownArgument => {
                    fail(&anyhow::anyhow!(advice), EXIT_USAGE)
                }
                _ => error.exit(),
            };
        }
    };
    match &cli.command {
        None => {
            let advice = cli.serve.roots.iter().find_map(|root| misspelled_command(root.to_str()?));
            advice.map_or_else(|| run_server(&cli.serve), |advice| fail(&anyhow::anyhow!(advice), EXIT_USAGE))
        }
        Some(Command::Serve(args)) => run_server(args),
        Some(Command::Token { name, expires, groups, read }) => issue_token(name, expires.as_deref(), groups, read),
        Some(Command::Verify(args)) => {
            let server = serve_args(&args.root, args.config.as_ref(), &args.set);
            run_maintenance(&server, async |config| verify(config, args).await)
        }
        Some(Command::Inspect(args)) => {
            let server = serve_args(&args.root, args.config.as_ref(), &args.set);
            run_maintenance(&server, async |config| inspect(config, args).await)
        }
        Some(Command::Completions { shell }) => print(&completions(*shell)),
        Some(Command::Man) => match manual_page() {
            Ok(text) => print(&text),
            Err(error) => fail(&error.into(), 1),
        },
    }
}

/// Serves, or does what a switch asks for instead.
fn run_server(args: &ServeArgs) -> ExitCode {
    if args.print_default_config {
        return print(DEFAULTS);
    }
    let config = match load_config(args).and_then(|config| server::check_rules(&config).map(|()| config)) {
        Ok(config) => config,
        Err(error) => return fail(&error, EXIT_USAGE),
    };
    if args.check_config {
        let warnings = match server::check_files(&config) {
            Ok(warnings) => warnings,
            Err(error) => return fail(&error, EXIT_USAGE),
        };
        let warnings: Vec<String> = warnings.iter().map(|warning| format!("warning     {warning}\n")).collect();
        return print(&format!("configuration is valid\n{}\n{}", config.summary(), warnings.concat()));
    }
    if args.print_config {
        return match config.to_toml() {
            Ok(text) => print(&text),
            Err(error) => fail(&error.into(), EXIT_USAGE),
        };
    }
    let result = if args.healthcheck {
        healthcheck(&config)
    } else {
        let reload_args = args.clone();
        serve(config, args.open, move || load_config(&reload_args))
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, 1),
    }
}

/// Prints a new token and its line for the token file. The token is not stored.
#[expect(clippy::disallowed_methods, reason = "the token's lifetime begins now")]
fn issue_token(name: &str, expires: Option<&str>, groups: &[String], read: &[String]) -> ExitCode {
    match access::issue(name, expires, groups, read, std::time::SystemTime::now()) {
        Ok(issued) => {
            eprintln!("The token, which is shown only once, and the line for the file that access.tokens names:");
            print(&format!("{}\n{}\n", issued.token, issued.line))
        }
        Err(why) => fail(&anyhow::anyhow!(why), EXIT_USAGE),
    }
}

/// Runs a maintenance command with the configuration that a server with this command line would have. The status is 2
/// if the command cannot be run.
fn run_maintenance(server: &ServeArgs, job: impl AsyncFnOnce(&Config) -> anyhow::Result<u8>) -> ExitCode {
    match load_config(server).and_then(|config| block_on(Builder::new_multi_thread(), job(&config))) {
        Ok(status) => ExitCode::from(status),
        Err(error) => fail(&error, EXIT_USAGE),
    }
}

fn load_config(args: &ServeArgs) -> anyhow::Result<Config> {
    let file = args.config.as_deref().map(read_config_file).transpose()?;
    let reserved_names = http::route::endpoints().map(|(name, _)| name).collect();
    let sources = args.sources(file, environment()?, Path::is_dir, reserved_names);
    Ok(Config::load(&ConfigSources { system_memory: server::system_memory(), ..sources })?)
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

/// Returns the text of `--version`, which lists the codecs below the version that `-V` prints.
fn long_version() -> String {
    let codecs: Vec<_> = n5_format::Codecs::built_in().names().collect();
    format!("{}\ncodecs: {}", env!("CARGO_PKG_VERSION"), codecs.join(" "))
}
