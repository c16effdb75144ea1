//! The secrets from which the ticket keys of a service are derived.

use std::path::PathBuf;
use std::time::SystemTime;

use keygate_core::tls::TicketSecrets;

use super::credential_files::CredentialFiles;
use super::credential_unit::CredentialUnit;
use super::load_errors::LoadErrors;
use super::private_key::{self, ExposedKeyFile};
use super::service_file::ServiceFile;
use super::unit_files::UnitFiles;

/// Maximum size of the file, in bytes. Eight secrets in base64 need less than 1 KiB.
const MAX_SIZE: u64 = 16 << 10;

/// The secrets of a file.
#[derive(Debug)]
pub(crate) struct TicketSecretFile {
    pub(super) secrets: TicketSecrets,
    /// The file, if its permissions are unsafe.
    exposed: Option<ExposedKeyFile>,
}

impl UnitFiles for Option<TicketSecretFile> {
    const UNIT: CredentialUnit = CredentialUnit::TicketSecret;

    fn paths(files: CredentialFiles<'_>) -> Vec<PathBuf> {
        files.tls.iter().filter_map(|tls| tls.ticket_secret.clone()).collect()
    }

    fn read(files: CredentialFiles<'_>, _: &Self, _: SystemTime) -> Result<Self, LoadErrors> {
        let Some(path) = files.tls.and_then(|tls| tls.ticket_secret.as_deref()) else {
            return Ok(None);
        };
        let of_service = ServiceFile { files, key: "tls.ticket_secret", path };
        let file = private_key::read(path, MAX_SIZE).map_err(|source| of_service.error(source))?;
        let secrets = TicketSecrets::parse(&file.content);
        let secrets = secrets.map_err(|source| of_service.error(source))?;
        let exposed = file.exposed.map(|exposed| exposed.with("ticket secrets"));
        Ok(Some(TicketSecretFile { secrets, exposed }))
    }

    fn exposed(&self) -> &[ExposedKeyFile] {
        self.as_ref().map_or(&[], |file| file.exposed.as_slice())
    }
}
