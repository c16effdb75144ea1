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
    ///
    /// With `max_new_hits` an update that would refuse more of the clients seen lately waits. It is
    /// let through as it is now: another file, or the same one changed, waits again. The answer
    /// comes when the filter is in use.
    Accept(accept::Args),
    /// Add keys. The file is replaced as a whole when all of them are in.
    ///
    /// Waits for the exclusive lock (flock) on the file, writes a new file beside it and renames it
    /// over the old one. An elliptic-curve key takes two entries, with its point uncompressed and
    /// compressed. The revision goes up by one; a run that adds nothing leaves the file alone.
    Add(add::Args),
    /// Make an empty filter.
    ///
    /// Say how many entries it is to hold and how often it may be wrong, or set the parameters
    /// themselves. A filter cannot be enlarged.
    Create(create::Args),
    /// What differs between two filters: exit code 0 if nothing does, else 1.
    ///
    /// Shows parameters, revision, entries and the share of the bits that differ, then a line for
    /// each given key whose verdict changes.
    Diff(diff::Args),
    /// Header, size, fill, false-positive rate, plausibility.
    Info(info::Args),
    /// A verdict for each key: exit code 0 if none is in the filter, 1 if any is.
    ///
    /// Keys are judged as the proxy judges them: a key is a hit if any of its encodings is in the
    /// filter.
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
