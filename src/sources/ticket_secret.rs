//! The secrets from which the ticket keys of a service are derived, and the digest of the content that
//! admits its clients.
//!
//! The digest has every value in use that a full handshake depends on, and no path: processes on
//! other machines derive the same keys from the same content. Answers of a source of proofs are not
//! part of it, because a resumed session is judged again.

use keygate_core::guard::{AllowRules, Policy};
use keygate_core::tls::{SharedTickets, TicketSecrets};
use keygate_core::unix_time;

use super::credential_files::CredentialFiles;
use super::credential_source::CredentialSource;
use super::filter::FilterSource;
use super::guarded::GuardedFile;
use super::{Sources, exponents_of};
use crate::config::ExpiredCrl;
use crate::saved_state::saved_credentials::sha256;
use crate::sources::load_error::LoadError;
use crate::sources::load_errors::LoadErrors;
use crate::sources::private_key::{self, ExposedKeyFile};
use crate::sources::service_file::ServiceFile;
use crate::sources::source_set::Source;

/// The key of the configuration that names the file.
pub(super) const TICKET_SECRET: &str = "tls.ticket_secret";
/// Maximum size of the file, in bytes. Eight secrets in base64 need less than 1 KiB.
const MAX_SIZE: u64 = 16 << 10;

/// The secrets of a file.
#[derive(Debug)]
pub(crate) struct TicketSecretFile {
    secrets: TicketSecrets,
    /// The file, if its permissions are unsafe.
    pub(super) exposed: Option<ExposedKeyFile>,
}

impl TicketSecretFile {
    /// The secrets that the service names; `None` if it names no file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or has no secrets.
    pub(super) fn read(files: CredentialFiles<'_>) -> Result<Option<Self>, LoadErrors> {
        let Some(path) = files.ticket_secret else { return Ok(None) };
        let of_service = ServiceFile { files, key: TICKET_SECRET, path };
        let file = private_key::read(path, MAX_SIZE).map_err(|source| of_service.error(source))?;
        let secrets = TicketSecrets::parse(&file.content);
        let secrets = secrets.map_err(|source| of_service.error(source))?;
        let exposed = file.exposed.map(|exposed| exposed.with("ticket secrets"));
        Ok(Some(Self { secrets, exposed }))
    }
}

impl Sources {
    /// The digest of the filters, lists, checks and exceptions in use.
    pub(crate) fn judging_digest(&self) -> [u8; 32] {
        let mut content = Content::default();
        for filter in self.filters.iter() {
            content.add(&*filter.filter().name).add(filter.filter().sha256);
        }
        content.add(format!("{:?}", exponents_of(self.filters.iter().map(FilterSource::config))));
        for list in self.lists.iter() {
            content.add(list.name()).add(list.value().sha256());
        }
        content.add(format!("{:?}", self.weak_checks));
        for exception in self.exceptions.all() {
            content.add(exception.key.to_string()).add(format!("{:?}", exception.until));
        }
        content.digest()
    }
}

impl CredentialSource {
    /// The tickets of the service, which processes share whose content is the same; `None` if it
    /// shares none. `judging` is the digest of the filters and lists.
    ///
    /// # Errors
    /// Returns an error if the cryptographic library cannot derive the keys.
    pub(crate) fn shared_tickets(
        &self,
        judging: [u8; 32],
    ) -> Result<Option<SharedTickets>, LoadError> {
        let Some(file) = self.credentials.ticket_secret.get() else { return Ok(None) };
        let tickets = file.secrets.tickets(&self.admission_digest(judging));
        tickets.map(Some).map_err(|source| self.tls_error(source))
    }

    /// The digest of everything that admits a client of the service.
    fn admission_digest(&self, judging: [u8; 32]) -> [u8; 32] {
        let (files, clients) = (self.config.files(), self.credentials.clients.get());
        let mut content = Content::default();
        content.add(env!("CARGO_PKG_VERSION")).add(files.name).add(judging);
        let policy = Policy { allow: None, ..files.policy.clone() };
        let checks = (files.mode, files.revocation, files.accept_server_auth_until);
        content.add(format!("{policy:?} {checks:?} {:?}", files.expired_crl));
        content.add(files.rules().map(AllowRules::digest).unwrap_or_default());
        for ca in files.bound_cas {
            content.add(ca.bounds.digest());
        }
        for (key, sha256) in clients.cas.digests() {
            content.add(key).add(sha256);
        }
        for (sha256, _) in clients.crls.files() {
            content.add(sha256);
        }
        if files.expired_crl == ExpiredCrl::Reject {
            let now = unix_time::now();
            let lists = clients.crls.lists().into_iter();
            let expired = lists.filter(|(list, _)| list.next_update <= now).count();
            content.add(expired.to_be_bytes());
        }
        content.digest()
    }
}

/// Parts of a content, each with its length in front.
#[derive(Default)]
struct Content(Vec<u8>);

impl Content {
    fn add(&mut self, part: impl AsRef<[u8]>) -> &mut Self {
        let part = part.as_ref();
        self.0.extend(part.len().to_be_bytes());
        self.0.extend(part);
        self
    }

    fn digest(&self) -> [u8; 32] {
        sha256(&self.0)
    }
}
