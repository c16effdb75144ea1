//! `keygate completions`: completion scripts for shells.

use std::io::{self, Write};

use super::{CliError, Exit};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The shell to print the script for.
    shell: Shell,
}

/// Shells whose scripts the tests run.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Shell {
    /// Load it with `source`, or save it as /usr/share/bash-completion/completions/keygate.
    Bash,
    /// Save it as ~/.config/fish/completions/keygate.fish.
    Fish,
    /// Save it as _keygate in a directory of $fpath.
    Zsh,
}

/// Prints the script for `command`.
pub(super) fn run(args: &Args, mut command: clap::Command) -> Result<Exit, CliError> {
    let mut script = Vec::new(); // the generator panics on a write error
    let shell = match args.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Fish => clap_complete::Shell::Fish,
        Shell::Zsh => clap_complete::Shell::Zsh,
    };
    clap_complete::generate(shell, &mut command, "keygate", &mut script);
    io::stdout().write_all(&script).map_err(CliError::Output)?;
    Ok(Exit::Done)
}
