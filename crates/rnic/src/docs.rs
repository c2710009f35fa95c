//! Manual pages and completion scripts, from the definitions of the command line.
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;
use crate::error::{Failure, Result};
use crate::perf::progress::say;

/// A manual page in roff.
pub(crate) fn man(name: Option<&str>) -> Result<()> {
    let mut command = Cli::command();
    command.build();
    let command = match name {
        None => command,
        Some(name) => {
            let Some(found) = command.find_subcommand(name) else {
                return Err(Failure::usage(format!("there is no subcommand `{name}`"))
                    .hint("`rnic --help` lists the subcommands"));
            };
            found.clone()
        }
    };
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    print(&page)
}

/// A completion script.
pub(crate) fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "rnic", &mut script);
    print(&script)
}

fn print(text: &[u8]) -> Result<()> {
    say(String::from_utf8_lossy(text).trim_end())
}
