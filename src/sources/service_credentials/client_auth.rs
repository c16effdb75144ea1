//! The CAs of clients and their CRLs. They are read together, because a CRL is verified with the
//! key of its CA. They are accepted apart.

mod client_cas;
mod crl_candidate;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use keygate_core::tls::{AnchorKind, ClientVerifier, CrlLoader, CrlMarks, Crls};
use rustls::pki_types::CertificateDer;

pub(super) use self::client_cas::{CaFile, ClientCas};
pub use self::crl_candidate::{CrlFileError, check_crl_candidate};
use super::service_file::ServiceFile;
use crate::config::ClientAuthMode;
use crate::saved_state::saved_credentials::{MAX_CRL_SIZE, SavedCredentials, SavedFile};
use crate::sources::client_gates::{ClientGates, ClientUpdate};
use crate::sources::context::LoadContext;
use crate::sources::credential_files::{CRLS, CredentialFiles};
use crate::sources::credential_unit::CredentialUnit;
use crate::sources::failure::{Failure, ReadError};
use crate::sources::last_good::LastGood;
use crate::sources::load_error::LoadError;
use crate::sources::load_errors::{LoadErrors, none_of};
use crate::sources::timed;

/// Why recent clients were not asked about an update that waited before the start, in reports.
const NO_COPY: &str =
    "not checked: an update waited, and state.dir has no copy of the files before it";
/// Maximum number of files and CRLs that a log line about an update names; the rest is counted.
const MAX_NAMES: usize = 20;

/// The CAs of clients and their verified CRLs. Both are empty for an authorizer that trusts the
/// verification of the host.
#[derive(Debug, Default, Clone)]
pub(in crate::sources) struct ClientAuth {
    pub(super) cas: ClientCas,
    pub(in crate::sources) crls: Arc<Crls>,
}

/// The accepted part of an update with the last good value of the rest, and why the rest is rejected.
/// `None` if there is no last good value.
pub(in crate::sources) type ReadClients = (Option<ClientAuth>, Vec<LoadError>);

/// An update of which a part is rejected.
#[derive(Debug, thiserror::Error)]
#[error("{errors}")]
pub(in crate::sources) struct PartialUpdate {
    /// The accepted part, and the last good value of the rejected part. `None` if there is none.
    pub(in crate::sources) usable: Option<ClientAuth>,
    /// Why the rest is rejected.
    pub(in crate::sources) errors: LoadErrors,
}

impl PartialUpdate {
    /// The update that is `usable` in spite of `errors`.
    pub(in crate::sources) fn result((usable, errors): ReadClients) -> Result<ClientAuth, Self> {
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
pub(in crate::sources) enum Attempt {
    /// All files.
    All,
    /// The CAs without CRLs.
    Cas,
    /// The CRLs. The CAs in use, or their copies, stay, because an update of them waits.
    Crls,
}

/// Known CAs and CRLs at the time when their files are read.
#[derive(Debug, Clone, Copy)]
pub(in crate::sources) struct KnownClients<'a> {
    /// The CAs and CRLs in use; `None` at a start.
    pub(in crate::sources) in_use: Option<&'a ClientAuth>,
    /// The CAs and CRLs to read.
    pub(in crate::sources) attempt: Attempt,
    /// Whether what is in use stays in use if its update is rejected. A new configuration may name
    /// fewer files.
    pub(in crate::sources) is_reload: bool,
    /// The copies, if they may be used.
    pub(in crate::sources) kept: Option<&'a SavedCredentials>,
    /// The names of removed services with a waiting update. One of them may be the previous name of this
    /// service. The copies of these services count, too.
    pub(in crate::sources) removed: &'a [&'a str],
    /// The newest versions that were in use.
    pub(in crate::sources) marks: &'a CrlMarks,
    /// The current time, in seconds since the Unix epoch.
    pub(in crate::sources) now: u64,
}

impl ClientAuth {
    /// Whether no CA has a CRL although `files` has CRLs, so every client is rejected. A pin needs
    /// none.
    pub(in crate::sources) fn lacks_every_crl(&self, files: CredentialFiles<'_>) -> bool {
        let Some(anchors) = &self.cas.trust_anchors else { return false };
        let has_pin = anchors.with_kind().any(|(_, kind)| kind == AnchorKind::Pin);
        let mut cas = anchors.with_kind().map(|(ca, _)| ca).chain(&self.cas.intermediates);
        !files.crls.is_empty() && !has_pin && !cas.any(|ca| self.crls.cover(ca))
    }

    /// Reads all files that `client_auth` names, for the first time or for a new configuration. If
    /// files are rejected, copies of the last good ones are used at a start, and for a new
    /// configuration the CRLs in use. The second value has their errors, and the errors of updates
    /// that wait in `gates` of the service with this id.
    ///
    /// # Errors
    /// Returns the errors of all files that cannot be used and have no last good value.
    pub(super) fn load(
        files: CredentialFiles<'_>,
        known: KnownClients<'_>,
        has_same_files: bool,
        (service, gates): (usize, &mut ClientGates),
        context: LoadContext<'_>,
    ) -> Result<(LastGood<Self>, Option<LoadErrors>), LoadErrors> {
        let paths = files.of_clients();
        let with_copies = KnownClients { kept: Some(context.saved_credentials), ..known };
        let is_first = known.in_use.is_none();
        let in_use = match known.in_use {
            Some(in_use) => (has_same_files || !gates.is_empty()).then(|| in_use.clone()),
            None if gates.is_empty() => None,
            None => Self::copies(files, with_copies),
        };
        if in_use.is_none() && !gates.is_empty() {
            *gates = ClientGates::default();
            gates.untried = Some(NO_COPY.to_owned());
        }
        let gates_before = gates.clone();
        let mut read = |known: KnownClients<'_>| {
            gates.clone_from(&gates_before); // the result of an earlier attempt was dropped
            let read = |attempt| {
                let known = if attempt == Attempt::Crls { with_copies } else { known };
                Self::read(files, KnownClients { attempt, ..known })
            };
            let Some(in_use) = &in_use else { return PartialUpdate::result(read(Attempt::All)) };
            let (dry_run, is_start) = (context.dry_run, context.is_start);
            ClientUpdate { files, service, in_use, gates, dry_run, is_start }.read(read)
        };
        let loaded = timed(context, || {
            LastGood::load(paths.clone(), context.now, context.max_wait, || read(known))
        });
        let (auth, rejection) = match loaded {
            Ok(loaded) => return Ok((loaded, None)),
            Err(PartialUpdate { usable: Some(auth), errors })
                if !is_first || errors.iter().all(waits) =>
            {
                (auth, Some(errors))
            }
            Err(PartialUpdate { errors, .. }) if !is_first => return Err(errors),
            Err(PartialUpdate { errors, .. }) => match read(with_copies) {
                Ok(auth) => (auth, None),
                Err(PartialUpdate { usable: Some(auth), errors }) => (auth, Some(errors)),
                Err(PartialUpdate { usable: None, .. }) => return Err(errors),
            },
        };
        let mut loaded = LastGood::new(auth, context.now);
        loaded.watch(paths);
        Ok((loaded, rejection))
    }

    /// Reads all files that `client_auth` names. CRLs are verified only if there are usable CAs.
    pub(in crate::sources) fn read(
        files: CredentialFiles<'_>,
        known: KnownClients<'_>,
    ) -> ReadClients {
        let keeps_cas = known.attempt == Attempt::Crls;
        let kept = keeps_cas.then(|| ClientCas::last_good(files, known)).flatten();
        let read = kept.map_or_else(|| ClientCas::read(files, |file| file.read()), Ok);
        let (cas, mut errors) = match read {
            Ok(cas) => (Some(cas), Vec::new()),
            Err(errors) => (ClientCas::last_good(files, known), errors.into_vec()),
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
    pub(in crate::sources) fn copies(
        files: CredentialFiles<'_>,
        known: KnownClients<'_>,
    ) -> Option<Self> {
        let (cas, kept) = (ClientCas::last_good(files, known)?, known.kept?);
        let crls = Arc::new(kept.crls(cas.issuers.as_deref()?, known.marks));
        Some(Self { cas, crls })
    }

    /// A verifier of clients; `None` without CAs.
    pub(in crate::sources) fn verifier(
        &self,
        files: CredentialFiles<'_>,
    ) -> Option<ClientVerifier> {
        let verifier = ClientVerifier::new(Arc::clone(self.cas.trust_anchors.as_ref()?));
        let crls = Arc::clone(&self.crls);
        let mut verifier = verifier.with_crls(crls, files.expired_crl, files.revocation);
        if !files.bound_cas.is_empty() {
            verifier = verifier.with_bound_cas(self.cas.bound(files));
        }
        if let Some(until) = files.accept_server_auth_until {
            verifier = verifier.accept_server_auth_until(until);
        }
        if files.is_authorizer {
            verifier = verifier.with_intermediates(self.cas.intermediates.clone());
        }
        Some(match files.mode {
            ClientAuthMode::Optional => verifier.allow_unauthenticated(),
            ClientAuthMode::Required => verifier,
        })
    }

    /// These with the CRLs of `issuer` in `other`.
    pub(in crate::sources) fn with_lists_of(mut self, issuer: &[u8], other: &Crls) -> Self {
        Arc::make_mut(&mut self.crls).take_lists(issuer, other);
        self
    }

    /// Path of the trust anchors, and the SHA-256 of each file with CAs, if they differ from
    /// `before`.
    pub(in crate::sources) fn changed_cas(&self, before: &Self) -> Option<(&Path, Vec<[u8; 32]>)> {
        let is_changed = self.changed_since(before).contains(&CredentialUnit::ClientCa);
        let files = &self.cas.files;
        let first = files.first().filter(|_| is_changed)?;
        Some((&first.path, files.iter().map(|file| file.sha256).collect()))
    }

    /// The first names of the files that differ from the files of `before`, CRLs with their CAs.
    pub(super) fn names_since(&self, before: &Self) -> String {
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
    pub(in crate::sources) fn changed_since(&self, before: &Self) -> Vec<CredentialUnit> {
        fn cas(
            it: &ClientAuth,
        ) -> (Option<&[CertificateDer<'static>]>, &[CertificateDer<'static>]) {
            let anchors = it.cas.trust_anchors.as_ref().map(|it| &it.certificates[..]);
            (anchors, &it.cas.intermediates)
        }
        let is_changed = |unit: &CredentialUnit| match *unit == CredentialUnit::ClientCa {
            true => cas(self) != cas(before),
            false => !self.crls.has_same_lists(&before.crls),
        };
        CredentialUnit::OF_CLIENTS.into_iter().filter(is_changed).collect()
    }

    /// The files in use, for their copies.
    pub(super) fn files(&self, files: CredentialFiles<'_>) -> impl Iterator<Item = SavedFile> {
        let owner = files.owner();
        let cas = self.cas.files.iter();
        let cas = cas.map(move |file| SavedFile::of_ca(&owner, file.key, &file.path, file.sha256));
        cas.chain(self.crls.files().map(|(sha256, path)| SavedFile::of_crls(sha256, path)))
    }
}

fn waits(error: &LoadError) -> bool {
    matches!(error, LoadError::Waits { .. })
}

fn crl_files(files: CredentialFiles<'_>) -> impl Iterator<Item = ServiceFile<'_>> {
    files.crls.iter().map(move |crl| ServiceFile { files, key: CRLS, path: &crl.path })
}

/// Reads and verifies the CRLs. Returns those to use, whether they cover all that cannot be used, and
/// the errors of the rest.
fn read_crls(
    files: CredentialFiles<'_>,
    cas: &ClientCas,
    known: KnownClients<'_>,
) -> (Crls, bool, Vec<LoadError>) {
    let Some(issuers) = cas.issuers.as_deref().filter(|_| !files.crls.is_empty()) else {
        return (Crls::default(), true, Vec::new());
    };
    let kept = known.kept.map(|kept| kept.crls(issuers, known.marks));
    let mut loader = CrlLoader::new(issuers, files.expired_crl, known.marks, known.now);
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
    errors.extend(problems.map(|(path, source): (PathBuf, _)| LoadError::Credentials {
        owner: files.owner(),
        key: CRLS,
        path,
        source,
    }));
    (update.crls, update.is_covered, errors)
}
