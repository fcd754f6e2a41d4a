//! Help that is derived from the definition of the command line: completions, the manual page, and advice for
//! misspelled commands.

use std::io::{self, Write};
use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_mangen::Man;

use super::arguments::Cli;
use crate::config::most_similar;

/// Minimum similarity of a word and the name of a command, from 0 to 1, at which the word is taken for a misspelled
/// command.
const MIN_SIMILARITY: f64 = 0.6;

/// Returns advice if `word`, which stands where a command or ROOT is expected, is probably meant as a command: it names
/// no file or directory, and is similar to the name of a command.
pub(super) fn misspelled_command(word: &str) -> Option<String> {
    if word.contains(['/', '=', '.']) || Path::new(word).exists() {
        return None;
    }
    let mut command = Cli::command();
    command.build();
    let names = command.get_subcommands().map(clap::Command::get_name);
    let name = most_similar(word, names, MIN_SIMILARITY)?;
    Some(if name == word {
        format!("write the command first, then its options: n5-server {name} ...")
    } else {
        format!("{word:?} is neither a command nor a directory; did you mean `n5-server {name}`?")
    })
}

/// Returns the completions of the command line for `shell`.
pub(super) fn completions(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "n5-server", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Returns the manual page, in the format of man(7). It describes all commands, because none has a page of its own.
///
/// # Errors
/// Returns the error of the formatter.
pub(super) fn manual_page() -> io::Result<String> {
    let mut command = Cli::command();
    command.build();
    let man = Man::new(command.clone());
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    writeln!(text, ".SH COMMANDS")?;
    // `serve` has the options above.
    let described = command.get_subcommands().filter(|subcommand| !["serve", "help"].contains(&subcommand.get_name()));
    for subcommand in described {
        writeln!(text, ".SS {}", subcommand.get_name())?;
        write_preformatted(&mut text, &subcommand.clone().render_long_help().to_string())?;
    }
    if let Some(extra) = command.get_after_long_help() {
        writeln!(text, ".SH EXTRA")?;
        write_preformatted(&mut text, &extra.to_string())?;
    }
    man.render_version_section(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Writes lines that man(1) must neither fill nor interpret.
fn write_preformatted(out: &mut Vec<u8>, text: &str) -> io::Result<()> {
    writeln!(out, ".nf")?;
    for line in text.lines() {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        // A line that begins with a dot or an apostrophe would be a request.
        writeln!(out, "{}{line}", if line.starts_with(['.', '\'']) { "\\&" } else { "" })?;
    }
    writeln!(out, ".fi")
}
