//! The command line: its arguments and commands.

mod arguments;
mod command_help;
mod healthcheck;
mod inspect;
mod process;
mod run;
mod serve;
mod verify;

pub use run::run;
