//! `keygate filter`: creates, changes and inspects filter files.

mod add;
mod create;
mod diff;
mod info;
mod query;

use std::path::Path;

use keygate_core::pkbf::{self, FilterFile};

use super::progress::PerKeyOutput;
use super::{CliError, CliOutput, Exit, accept, print, print_error, print_json};
use crate::sources::GuardFile;

#[derive(Debug, clap::Subcommand)]
pub(super) enum FilterCommand {
    /// Show a filter update that waits for the operator, and accept it.
    ///
    /// An update waits if it would reject more recent clients than `max_new_hits`, or if it has
    /// half of the entries in use or fewer. Without --yes or --sha256, this command prints the
    /// update and the recent clients that it would reject, changes nothing, and exits with code 1.
    /// Otherwise it accepts exactly the file with that SHA-256. A later change of the file waits
    /// again. The command returns when the running proxy uses the filter. The log of the proxy
    /// records who accepted which file.
    Accept(accept::Args),
    /// Add keys to a filter; the file is replaced atomically.
    ///
    /// Waits for the exclusive lock (flock) on the file, writes a new file in the same directory
    /// and renames it over the old one. An elliptic-curve key takes two entries, one for the
    /// uncompressed and one for the compressed point. The revision increases by one. A run that
    /// adds nothing does not change the file.
    Add(add::Args),
    /// Create an empty filter.
    ///
    /// Give the number of entries and the false-positive rate, or the parameters k and L. A filter
    /// cannot be enlarged later.
    Create(create::Args),
    /// Compare two filters: exit code 0 if they are equal, 1 if they differ.
    ///
    /// Prints parameters, revision, entries and the share of bits that differ, then a line for each
    /// given key whose verdict changes. The keys of recent clients are printed by `keygate report
    /// --clients`.
    Diff(diff::Args),
    /// Print header, size, fill, false-positive rate and plausibility.
    Info(info::Args),
    /// Print a verdict for each key: exit code 0 if no key is in the filter, 1 if any is.
    ///
    /// Judges keys as the proxy does: a key is a hit if any of its encodings is in the filter.
    Query(query::Args),
}

pub(super) fn run(command: &FilterCommand) -> Result<Exit, CliError> {
    match command {
        FilterCommand::Accept(args) => accept::run(GuardFile::Filter, args),
        FilterCommand::Add(args) => add::run(args),
        FilterCommand::Create(args) => create::run(args),
        FilterCommand::Diff(args) => diff::run(args),
        FilterCommand::Info(args) => info::run(args),
        FilterCommand::Query(args) => query::run(args),
    }
}

fn read(path: &Path) -> Result<FilterFile, CliError> {
    pkbf::read_unlocked(path, u64::MAX).map_err(|error| CliError::file(path, error))
}
