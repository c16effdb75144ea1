//! `keygate completions`: what a shell needs to complete the command line.

use std::io::{self, Write};

use super::{CliError, Exit};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The shell that reads it.
    shell: Shell,
}

/// The shells whose scripts are tried.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Shell {
    /// To be read by `source`, or kept in /usr/share/bash-completion/completions/keygate.
    Bash,
    /// To be kept as keygate.fish in ~/.config/fish/completions.
    Fish,
    /// To be kept as _keygate in a directory of $fpath.
    Zsh,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let mut command = super::shown();
    let mut script = Vec::new(); // the generator panics where it cannot write
    let shell = match args.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Fish => clap_complete::Shell::Fish,
        Shell::Zsh => clap_complete::Shell::Zsh,
    };
    clap_complete::generate(shell, &mut command, "keygate", &mut script);
    io::stdout().write_all(&script).map_err(CliError::Output)?;
    Ok(Exit::Done)
}
