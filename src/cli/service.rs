//! `keygate service`: decides about the files of services and authorizers.

use super::{CliError, Exit, accept};
use crate::sources::GuardFile;

#[derive(Debug, clap::Subcommand)]
pub(super) enum ServiceCommand {
    /// Show an update of CAs or CRLs that waits for the operator, and accept it.
    ///
    /// An update of a service or an authorizer waits if it would reject more recent clients than
    /// `client_auth.max_new_hits`. Without --yes or --sha256, this command prints the update and the
    /// recent clients that it would reject, changes nothing, and exits with code 1. Otherwise it
    /// accepts exactly the file with that SHA-256. If several updates wait, it shows the first.
    Accept(accept::Args),
}

pub(super) fn run(command: &ServiceCommand) -> Result<Exit, CliError> {
    match command {
        ServiceCommand::Accept(args) => accept::run(GuardFile::Service, args),
    }
}
