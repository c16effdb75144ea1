//! The digest of the content that admits the clients of a service, and the ticket keys that are
//! derived with it.
//!
//! The digest has every value in use that a full handshake depends on, and no path: processes on
//! other machines derive the same keys from the same content. Answers of a source of proofs are not
//! part of it, because a resumed session is judged again.

use keygate_core::guard::{AllowRules, Policy};
use keygate_core::tls::SharedTickets;
use keygate_core::unix_time;

use super::credential_source::CredentialSource;
use super::filter::FilterSource;
use super::guarded::GuardedFile;
use super::load_error::LoadError;
use super::source_set::FileSource;
use super::{Sources, exponents_of};
use crate::config::ExpiredCrl;
use crate::saved_state::saved_credentials::sha256;

impl Sources {
    /// The digest of the filters, lists, checks and exceptions in use.
    pub(crate) fn judging_digest(&self) -> [u8; 32] {
        let mut content = DigestContent::default();
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
        let mut content = DigestContent::default();
        content.add(env!("CARGO_PKG_VERSION")).add(files.name).add(judging);
        let policy = Policy { allow: None, ..files.policy.decisions.clone() };
        let checks =
            (files.clients.mode, files.clients.revocation, files.clients.accept_server_auth_until);
        content.add(format!("{policy:?} {checks:?} {:?}", files.clients.expired_crl));
        content.add(files.rules().map(AllowRules::digest).unwrap_or_default());
        for ca in &files.clients.cas {
            content.add(ca.bounds.digest());
        }
        for (key, sha256) in clients.cas.digests() {
            content.add(key).add(sha256);
        }
        for (sha256, _) in clients.crls.files() {
            content.add(sha256);
        }
        if files.clients.expired_crl == ExpiredCrl::Reject {
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
struct DigestContent(Vec<u8>);

impl DigestContent {
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
