//! The CAs of clients and their CRLs. They are read together, because a CRL is verified with the
//! key of its CA. They are accepted apart.

mod client_cas;
mod crl_candidate;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use keygate_core::tls::{AnchorKind, ClientVerifier, CrlLoader, CrlMarks, Crls};

use self::client_cas::CaFile;
pub(crate) use self::client_cas::ClientCas;
pub use self::crl_candidate::{CrlFileError, check_crl_candidate};
use crate::config::ClientAuthMode;
use crate::saved_state::saved_credentials::{MAX_CRL_SIZE, SavedCredentials, SavedFile};
use crate::sources::credential_files::{CRLS, CredentialFiles};
use crate::sources::credential_unit::CredentialUnit;
use crate::sources::failure::{Failure, ReadError};
use crate::sources::load_error::LoadError;
use crate::sources::load_errors::{LoadErrors, none_of};
use crate::sources::service_file::ServiceFile;

/// Maximum number of files and CRLs that a log line about an update names; the rest is counted.
const MAX_NAMES: usize = 20;

/// The CAs of clients and their verified CRLs. Both are empty for an authorizer that trusts the
/// verification of the host.
#[derive(Debug, Default, Clone)]
pub(crate) struct ClientAuth {
    pub(crate) cas: ClientCas,
    pub(crate) crls: Arc<Crls>,
}

/// The accepted part of an update with the last good value of the rest, and why the rest is
/// rejected. `None` if there is no last good value.
pub(crate) type ReadClients = (Option<ClientAuth>, Vec<LoadError>);

/// An update of which a part is rejected.
#[derive(Debug, thiserror::Error)]
#[error("{errors}")]
pub(crate) struct PartialUpdate {
    /// The accepted part, and the last good value of the rejected part. `None` if there is none.
    pub(crate) usable: Option<ClientAuth>,
    /// Why the rest is rejected.
    pub(crate) errors: LoadErrors,
}

impl PartialUpdate {
    /// The update that is `usable` in spite of `errors`.
    pub(crate) fn result((usable, errors): ReadClients) -> Result<ClientAuth, Self> {
        match none_of(errors) {
            Ok(()) => Ok(usable.unwrap_or_default()),
            Err(errors) => Err(Self { usable, errors }),
        }
    }
}

impl ReadError for PartialUpdate {
    fn failure(&self) -> Failure {
        self.errors.failure()
    }
}

/// The CAs and CRLs that an attempt reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// All files.
    All,
    /// The CAs without CRLs.
    Cas,
    /// The CRLs. The CAs in use, or their copies, stay, because an update of them waits.
    Crls,
}

/// Known CAs and CRLs at the time when their files are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownClients<'a> {
    /// The CAs and CRLs in use; `None` at a start.
    pub(crate) in_use: Option<&'a ClientAuth>,
    /// The CAs and CRLs to read.
    pub(crate) attempt: Attempt,
    /// Whether what is in use stays in use if its update is rejected. A new configuration may name
    /// fewer files.
    pub(crate) is_reload: bool,
    /// The copies, if they may be used.
    pub(crate) copies: Option<&'a SavedCredentials>,
    /// The names of removed services with a waiting update. One of them may be the previous name of
    /// this service. The copies of these services count, too.
    pub(crate) removed: &'a [&'a str],
    /// The newest versions that were in use.
    pub(crate) marks: &'a CrlMarks,
    /// The current time, in seconds since the Unix epoch.
    pub(crate) now: u64,
}

impl ClientAuth {
    /// Whether no CA has a CRL although `files` has CRLs, so every client is rejected. A pin needs
    /// none.
    pub(crate) fn lacks_every_crl(&self, files: CredentialFiles<'_>) -> bool {
        let Some(anchors) = &self.cas.trust_anchors else { return false };
        let has_pin = anchors.with_kind().any(|(_, kind)| kind == AnchorKind::Pin);
        let mut cas = anchors.with_kind().map(|(ca, _)| ca).chain(&self.cas.intermediates);
        !files.clients.crls.is_empty() && !has_pin && !cas.any(|ca| self.crls.cover(ca))
    }

    /// Reads all files that `client_auth` names. CRLs are verified only if there are usable CAs.
    pub(crate) fn read(files: CredentialFiles<'_>, known: KnownClients<'_>) -> ReadClients {
        let keeps_cas = known.attempt == Attempt::Crls;
        let kept = keeps_cas.then(|| last_good_cas(files, known)).flatten();
        let read = kept.map_or_else(|| ClientCas::read(files, |file| file.read()), Ok);
        let (cas, mut errors) = match read {
            Ok(cas) => (Some(cas), Vec::new()),
            Err(errors) => (last_good_cas(files, known), errors.into_vec()),
        };
        let Some(cas) = cas else {
            let crls = crl_files(files).map(|file| file.read_up_to(MAX_CRL_SIZE));
            errors.extend(crls.filter_map(Result::err));
            return (None, errors);
        };
        if known.attempt == Attempt::Cas {
            return (Some(Self { cas, crls: Arc::default() }), errors);
        }
        let (crls, is_covered, mut problems) = read_crls(files, &cas, known);
        errors.append(&mut problems);
        let is_usable = is_covered || known.is_reload || errors.is_empty();
        (is_usable.then(|| Self { cas, crls: Arc::new(crls) }), errors)
    }

    /// The copies in the state directory, if the CAs are among them.
    pub(crate) fn copies(files: CredentialFiles<'_>, known: KnownClients<'_>) -> Option<Self> {
        let (cas, kept) = (last_good_cas(files, known)?, known.copies?);
        let crls = Arc::new(kept.crls(cas.issuers.as_deref()?, known.marks));
        Some(Self { cas, crls })
    }

    /// A verifier of clients; `None` without CAs.
    pub(crate) fn verifier(&self, files: CredentialFiles<'_>) -> Option<ClientVerifier> {
        let verifier = ClientVerifier::new(Arc::clone(self.cas.trust_anchors.as_ref()?));
        let crls = Arc::clone(&self.crls);
        let mut verifier =
            verifier.with_crls(crls, files.clients.expired_crl, files.clients.revocation);
        if !files.clients.cas.is_empty() {
            verifier = verifier.with_bound_cas(self.cas.bound(files));
        }
        if let Some(until) = files.clients.accept_server_auth_until {
            verifier = verifier.accept_server_auth_until(until);
        }
        if files.is_authorizer {
            verifier = verifier.with_intermediates(self.cas.intermediates.clone());
        }
        Some(match files.clients.mode {
            ClientAuthMode::Optional => verifier.allow_unauthenticated(),
            ClientAuthMode::Required => verifier,
        })
    }

    /// These with the CRLs of `issuer` in `other`.
    pub(crate) fn with_lists_of(mut self, issuer: &[u8], other: &Crls) -> Self {
        Arc::make_mut(&mut self.crls).take_lists(issuer, other);
        self
    }

    /// Path of the trust anchors, and the SHA-256 of each file with CAs, if they differ from
    /// `before`.
    pub(crate) fn changed_cas(&self, before: &Self) -> Option<(&Path, Vec<[u8; 32]>)> {
        let is_changed = self.changed_since(before).contains(&CredentialUnit::ClientCa);
        let files = &self.cas.files;
        let first = files.first().filter(|_| is_changed)?;
        Some((&first.path, files.iter().map(|file| file.sha256).collect()))
    }

    /// The first names of the files that differ from the files of `before`, CRLs with their CAs.
    pub(crate) fn names_since(&self, before: &Self) -> String {
        let is_known = |file: &CaFile| before.cas.files.iter().any(|it| it.sha256 == file.sha256);
        let cas = self.cas.files.iter().filter(|file| !is_known(file));
        let cas = cas.map(|file| file.path.display().to_string());
        let mut names = cas.chain(self.crls.names_since(&before.crls));
        let mut shown: Vec<_> = names.by_ref().take(MAX_NAMES).collect();
        match names.count() {
            0 => {}
            others => shown.push(format!("{others} more")),
        }
        shown.join(", ")
    }

    /// Which of the CAs and the CRLs differ from `before`.
    pub(crate) fn changed_since(&self, before: &Self) -> Vec<CredentialUnit> {
        // By file: a CA that moves to another file has other bounds.
        let [anchors, known] =
            [self, before].map(|it| it.cas.by_file().map(|(_, anchors)| anchors));
        let is_same = anchors.eq(known) && self.cas.intermediates == before.cas.intermediates;
        let is_changed = |unit: &CredentialUnit| match *unit == CredentialUnit::ClientCa {
            true => !is_same,
            false => !self.crls.has_same_lists(&before.crls),
        };
        CredentialUnit::OF_CLIENTS.into_iter().filter(is_changed).collect()
    }

    /// The files in use, for their copies.
    pub(crate) fn files(&self, files: CredentialFiles<'_>) -> impl Iterator<Item = SavedFile> {
        let owner = files.owner();
        let cas = self.cas.files.iter();
        let cas =
            cas.map(move |file| SavedFile::from_ca(&owner, file.key, &file.path, file.sha256));
        cas.chain(self.crls.files().map(|(sha256, path)| SavedFile::from_crls(sha256, path)))
    }
}

/// The CAs in use, or their copies at a start.
fn last_good_cas(files: CredentialFiles<'_>, known: KnownClients<'_>) -> Option<ClientCas> {
    let keeps_cas = known.attempt == Attempt::Crls;
    if let Some(in_use) = known.in_use.filter(|_| known.is_reload || keeps_cas) {
        return Some(in_use.cas.clone());
    }
    let kept = known.copies?;
    let read = |file: ServiceFile<'_>| {
        let names = std::iter::once(&files.name).chain(known.removed).copied();
        let owners = names.map(|name| CredentialFiles { name, ..files }.owner());
        let content = kept.read_ca(owners, file.key, file.path);
        content.map_err(|source| file.error(source))
    };
    ClientCas::read(files, read).ok()
}

fn crl_files(files: CredentialFiles<'_>) -> impl Iterator<Item = ServiceFile<'_>> {
    files.clients.crls.iter().map(move |crl| ServiceFile { files, key: CRLS, path: &crl.path })
}

/// Reads and verifies the CRLs. Returns those to use, whether they cover all that cannot be used,
/// and the errors of the rest.
fn read_crls(
    files: CredentialFiles<'_>,
    cas: &ClientCas,
    known: KnownClients<'_>,
) -> (Crls, bool, Vec<LoadError>) {
    let Some(issuers) = cas.issuers.as_deref().filter(|_| !files.clients.crls.is_empty()) else {
        return (Crls::default(), true, Vec::new());
    };
    let kept = known.copies.map(|kept| kept.crls(issuers, known.marks));
    let mut loader = CrlLoader::new(issuers, files.clients.expired_crl, known.marks, known.now);
    loader.in_use = known.in_use.map(|in_use| in_use.crls.as_ref()).or(kept.as_ref());
    loader.is_reload = known.is_reload;
    let mut errors = Vec::new();
    for file in crl_files(files) {
        match file.read_up_to(MAX_CRL_SIZE) {
            Ok(content) => loader.add(file.path, &content),
            Err(error) => {
                loader.skip(file.path);
                errors.push(error);
            }
        }
    }
    let update = loader.finish();
    let problems = update.problems.into_iter();
    errors.extend(problems.map(|(path, source): (PathBuf, _)| {
        ServiceFile { files, key: CRLS, path: &path }.error(source)
    }));
    (update.crls, update.is_covered, errors)
}
