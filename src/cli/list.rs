//! `keygate list`: inspects and creates exact lists.

mod create;
mod diff;
mod file;
mod info;
mod query;

use super::{CliError, Exit, accept};
use crate::sources::GuardFile;

#[derive(Debug, clap::Subcommand)]
pub(super) enum ListCommand {
    /// Show an update of a list that waits for the operator, and accept it.
    ///
    /// An update waits if it would reject more recent clients than `max_new_hits`, or if half of
    /// the entries in use or more are gone. Without --yes or --sha256, this command prints the
    /// update and the recent clients that it would reject, changes nothing, and exits with code 1.
    /// Otherwise it accepts exactly the file with that SHA-256.
    Accept(accept::Args),
    /// Create a list of the keys that a CA has revoked as compromised.
    ///
    /// A new certificate with such a key is then rejected as well. Writes the keys of certificates
    /// that a CRL revokes with the reason keyCompromise. A certificate is revoked if its serial
    /// number, its issuer and the key that signed it are the same as in the CRL. The signature of
    /// the CRL is verified, its dates are not. Prints how many certificates the directory lacks.
    Create(create::Args),
    /// Compare two lists: exit code 0 if they are equal, 1 if they differ.
    ///
    /// Prints format, date and entries, the number of entries that only one list has, then a line
    /// for each given key whose verdict changes. The keys of recent clients are printed by `keygate
    /// report --clients`.
    Diff(diff::Args),
    /// Check a list and print its format, date and entries.
    ///
    /// Reads badkeysdata.json beside a blocklist.dat, as the proxy does.
    Info(info::Args),
    /// Print a verdict for each key: exit code 0 if no key is on the list, 1 if any is.
    ///
    /// Looks keys up as the proxy does: by each related encoding, by modulus or x coordinate, and
    /// by products of primes. The list alone counts: no filter, no exception, and no other check.
    /// Use `keygate filter query` for a filter, and `keygate key` for the other checks.
    Query(query::Args),
}

pub(super) fn run(command: &ListCommand) -> Result<Exit, CliError> {
    match command {
        ListCommand::Accept(args) => accept::run(GuardFile::List, args),
        ListCommand::Create(args) => create::run(args),
        ListCommand::Diff(args) => diff::run(args),
        ListCommand::Info(args) => info::run(args),
        ListCommand::Query(args) => query::run(args),
    }
}
