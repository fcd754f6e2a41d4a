//! `n5-server token`: issues a token.

use std::process::ExitCode;

use super::arguments::TokenArgs;
use super::exit::{EXIT_USAGE, fail, print};
use crate::access;

/// Prints a new token and its line for the token file. The token appears nowhere else.
#[expect(clippy::disallowed_methods, reason = "the token's lifetime begins now")]
pub(super) fn issue_token(args: &TokenArgs) -> ExitCode {
    let now = std::time::SystemTime::now();
    match access::issue(&args.name, args.expires.as_deref(), &args.groups, &args.read, now) {
        Ok(issued) => {
            eprintln!("The token, which is shown only once, and the line for the file that access.tokens names:");
            print(&format!("{}\n{}\n", issued.token, issued.line))
        }
        Err(why) => fail(&anyhow::anyhow!(why), EXIT_USAGE),
    }
}
