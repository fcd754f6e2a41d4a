//! The command line: its arguments and commands.

mod arguments;
mod healthcheck;
mod inspect;
mod process;
mod run;
mod serve;
mod verify;

pub use run::run;
