//! `keygate jwks`: the public keys that verify assertions.

use std::time::SystemTime;

use super::{CliError, ConfigFile, Exit, print};
use crate::config::Config;
use crate::files;
use crate::sources::assertion::{SigningKeys, key_set};
use crate::sources::credential_files::CredentialTable;
use crate::sources::unit_files::UnitFiles;

pub(super) fn run(args: &ConfigFile) -> Result<Exit, CliError> {
    let config = Config::read(&args.path())?;
    files::start_thread().map_err(|error| CliError::system("cannot read files", error))?;
    let (now, none) = (SystemTime::now(), SigningKeys::default());
    let read = |table: &CredentialTable| SigningKeys::read(table.files(), &none, now);
    let keys = CredentialTable::all(&config).iter().map(read).collect::<Result<Vec<_>, _>>();
    let keys = keys.map_err(|error| CliError::file(&args.path(), error))?;
    print(key_set(&keys)).map(|()| Exit::Done)
}
