//! `keygate completions`: completion scripts for shells.

use std::io::{self, Write};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap_complete::Shell;

use super::{CliError, Exit};

/// Shells whose scripts the tests run.
const SHELLS: [&str; 3] = ["bash", "fish", "zsh"];

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The shell to print the script for.
    #[arg(value_parser = PossibleValuesParser::new(SHELLS).try_map(|it| it.parse::<Shell>()))]
    shell: Shell,
}

/// Prints the script for `command`.
pub(super) fn run(args: &Args, mut command: clap::Command) -> Result<Exit, CliError> {
    let mut script = Vec::new(); // the generator panics on a write error
    clap_complete::generate(args.shell, &mut command, "keygate", &mut script);
    io::stdout().write_all(&script).map_err(CliError::Output)?;
    Ok(Exit::Done)
}
