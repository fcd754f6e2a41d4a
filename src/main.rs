//! The binary: the allocator, and the command that the command line names.

use std::process::ExitCode;

use n5_server::runtime::allocator;

use n5_server::cli;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

fn main() -> ExitCode {
    allocator::configure_purging();
    cli::run()
}
