use std::process::ExitCode;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::output::print;

/// Prints a script that completes commands and flags in a shell
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidegate completions bash > ~/.local/share/bash-completion/completions/tidegate\n  \
    tidegate completions zsh > ~/.zfunc/_tidegate\n  \
    tidegate completions fish > ~/.config/fish/completions/tidegate.fish")]
pub(crate) struct Arguments {
    /// Which shell
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    // Written in one piece by `print`, which knows a reader that leaves early.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "tidegate", &mut script);
    print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
