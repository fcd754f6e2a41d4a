//! The command line: its arguments and commands.

mod arguments;
mod block_on;
mod escape_control;
mod exit;
mod healthcheck;
mod inspect;
mod run;
mod sd_notify;
mod serve;
mod signals;
mod token;
mod verify;

pub use run::run;
