//! `keygate filter`: filter files made, changed and looked into.

mod accept;
mod add;
mod create;
mod diff;
mod info;
mod query;

use std::path::Path;

use super::{CliError, ConfigArgs, Exit, Output, complain, input, json, say, say_json};
use crate::pkbf::{self, FilterFile};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Let an update through that waits for the operator of the running proxy.
    Accept(accept::Args),
    /// Add keys. The file is replaced as a whole when all of them are in.
    Add(add::Args),
    /// Make an empty filter.
    Create(create::Args),
    /// What differs between two filters: exit code 0 if nothing does, else 1.
    Diff(diff::Args),
    /// Header, size, fill, false-positive rate, plausibility.
    Info(info::Args),
    /// A verdict for each key: exit code 0 if none is in the filter, 1 if any is.
    Query(query::Args),
}

pub(super) fn run(command: &Command) -> Result<Exit, CliError> {
    match command {
        Command::Accept(args) => accept::run(args),
        Command::Add(args) => add::run(args),
        Command::Create(args) => create::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Info(args) => info::run(args),
        Command::Query(args) => query::run(args),
    }
}

fn read(path: &Path) -> Result<FilterFile, CliError> {
    pkbf::read_unlocked(path, u64::MAX)
        .map_err(|source| CliError::Filter { path: path.to_owned(), source })
}
