//! The gates before the files with CAs and CRLs of clients. An update that would reject too many
//! recent clients waits, while the other files of the service are used.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;

use super::client_auth::{Attempt, ClientAuth, KnownClients, PartialUpdate, ReadClients};
use super::context::LoadContext;
use super::credential_files::{CRLS, CredentialFiles, TRUST_ANCHORS};
use super::gate::{AcceptError, Acceptance, Gate};
use super::last_good::LastGood;
use super::load_errors::LoadErrors;
use super::service_file::ServiceFile;
use crate::config::ClientAuthConfig;
use crate::sources::check::dry_run::{DryRun, NewHits};
use crate::sources::failure::{Failure, ReadError};
use crate::sources::load_error::LoadError;
use crate::sources::operator_decision::GuardFile;
use crate::sources::report::{DryRunReport, WaitingReport};

/// Why recent clients were not asked about an update that waited before the start, in reports.
const NO_COPY: &str =
    "not checked: an update waited, and state.dir has no copy of the files before it";

/// The gates of a service, each of a part of its files. An attempt to read the files changes a copy
/// of them, because the result may be dropped.
#[derive(Debug, Default, Clone)]
pub(crate) struct ClientGates {
    gates: BTreeMap<Part, Gate>,
    /// The updates that operators accepted, until they are logged.
    accepted: Vec<Acceptance>,
    /// Why the recent clients were not asked about the last update.
    pub(super) untried: Option<String>,
}

/// The path of a file, and the name of the CA whose CRLs in it are held. The name is empty for a
/// file with CAs, and for an update that waited before a restart.
type Part = (PathBuf, Box<[u8]>);

/// An attempt to replace the CAs and CRLs of clients.
pub(super) struct ClientUpdate<'a> {
    pub(super) files: CredentialFiles<'a>,
    /// Id of the service.
    pub(super) service: usize,
    /// The CAs and CRLs in use, or their copies at a start.
    pub(super) in_use: &'a ClientAuth,
    pub(super) gates: &'a mut ClientGates,
    pub(super) dry_run: &'a DryRun,
    pub(super) is_start: bool,
}

/// Reads all files that `client_auth` names, for the first time or for a new configuration. If
/// files are rejected, copies of the last good ones are used at a start, and for a new
/// configuration the CRLs in use. The second value has their errors, and the errors of updates
/// that wait in `gates` of the service with this id.
///
/// # Errors
/// Returns the errors of all files that cannot be used and have no last good value.
pub(super) fn load_clients(
    files: CredentialFiles<'_>,
    known: KnownClients<'_>,
    has_same_files: bool,
    (service, gates): (usize, &mut ClientGates),
    context: LoadContext<'_>,
) -> Result<(LastGood<ClientAuth>, Option<LoadErrors>), LoadErrors> {
    let paths: Vec<_> = files.clients.files().cloned().collect();
    let with_copies = KnownClients { copies: Some(&context.state.credentials), ..known };
    let is_first = known.in_use.is_none();
    let in_use = match known.in_use {
        Some(in_use) => (has_same_files || !gates.is_empty()).then(|| in_use.clone()),
        None if gates.is_empty() => None,
        None => ClientAuth::copies(files, with_copies),
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
            ClientAuth::read(files, KnownClients { attempt, ..known })
        };
        let Some(in_use) = &in_use else { return PartialUpdate::result(read(Attempt::All)) };
        let (dry_run, is_start) = (context.dry_run, context.is_start);
        ClientUpdate { files, service, in_use, gates, dry_run, is_start }.read(read)
    };
    let loaded = LastGood::load(paths.clone(), context.now, context.max_wait, || read(known));
    let (auth, rejection) = match loaded.map_err(|unusable| unusable.error) {
        Ok(loaded) => return Ok((loaded, None)),
        Err(PartialUpdate { usable: Some(auth), errors })
            if !is_first || errors.iter().all(LoadError::waits) =>
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

impl ClientUpdate<'_> {
    /// What `read` returns, with the last good value of each part that must wait. CAs are tried
    /// first, then the CRLs of each CA, and the new hits of all parts count together. CAs that wait
    /// are tried even if the CRLs, which fit the CAs in use, do not fit them.
    ///
    /// # Errors
    /// Returns the errors of `read`, and one for each part that waits.
    pub(super) fn read(
        mut self,
        read: impl Fn(Attempt) -> ReadClients,
    ) -> Result<ClientAuth, PartialUpdate> {
        let (usable, mut errors) = read(Attempt::All);
        let Some(limit) = self.files.clients.max_new_hits else {
            self.gates.gates.clear();
            return PartialUpdate::result((usable, errors));
        };
        let is_whole = usable.is_some() || !self.gates.hold_cas_of(self.files);
        let usable = if is_whole { usable } else { read(Attempt::Cas).0 };
        let Some(mut all) = usable else { return PartialUpdate::result((None, errors)) };
        let is_same = all.changed_since(self.in_use).is_empty();
        if self.gates.is_empty() && (is_same || self.new_hits(self.in_use, &all).count <= limit) {
            return PartialUpdate::result((Some(all), errors));
        }
        let (mut held, mut hits) = (Vec::new(), 0);
        if let Some((path, files)) = all.changed_cas(self.in_use) {
            let part = (path.to_owned(), Box::default());
            let (kept, mut kept_errors) = read(Attempt::Crls);
            let before = kept.as_ref().unwrap_or(self.in_use);
            let key = self.files.cas().next().map_or(TRUST_ANCHORS, |(key, _)| key);
            let checked = self.check(key, part, &files, (before, &all), &mut hits);
            match (checked, kept) {
                (Ok(()), _) if is_whole => {}
                (Ok(()), _) => return PartialUpdate::result((None, errors)),
                (Err(waits), Some(kept)) => {
                    held.push(waits);
                    (all, errors) = (kept, kept_errors);
                }
                // The CAs before the update are of no use without their lists.
                (Err((_, waits)), None) => {
                    kept_errors.push(waits.without_file_in_use());
                    return PartialUpdate::result((None, kept_errors));
                }
            }
        } else if !is_whole {
            return PartialUpdate::result((None, errors));
        }
        let changes = all.crls.changes_since(&self.in_use.crls);
        let mut tried = changes.iter().fold(all.clone(), |tried, change| {
            tried.with_lists_of(&change.issuer, &self.in_use.crls)
        });
        for change in changes {
            let after = tried.clone().with_lists_of(&change.issuer, &all.crls);
            let part = (change.path, change.issuer);
            match self.check(CRLS, part, &change.files, (&tried, &after), &mut hits) {
                Ok(()) => tried = after,
                Err(waits) => held.push(waits),
            }
        }
        self.gates.end_attempt(&held, &errors);
        errors.extend(held.into_iter().map(|(_, waits)| waits));
        PartialUpdate::result((Some(tried), errors))
    }

    /// Checks the part of an update that makes `before` into `after`. `earlier` is the number of new
    /// hits of the parts before it.
    fn check(
        &mut self,
        key: &'static str,
        part: Part,
        files: &[[u8; 32]],
        (before, after): (&ClientAuth, &ClientAuth),
        earlier: &mut usize,
    ) -> Result<(), (Part, LoadError)> {
        let (hits, sha256) = (
            self.new_hits(before, after),
            match files {
                [file] => HEXLOWER.encode(file),
                _ => HEXLOWER.encode(digest(&SHA256, files.as_flattened()).as_ref()),
            },
        );
        let count = hits.count.saturating_add(*earlier);
        let hits = NewHits { count, ..hits };
        let update = WaitingReport {
            path: Some(part.0.display().to_string()),
            without_crls: after.lacks_every_crl(self.files),
            ..WaitingReport::new(sha256.clone(), hits, self.files.clients.max_new_hits)
        };
        let of_file = self.gates.gates.get(&(part.0.clone(), Box::default()));
        let waited = of_file.and_then(Gate::waiting).cloned();
        let gate = self.gates.gates.entry(part.clone());
        let gate = gate.or_insert_with(|| Gate::new(GuardFile::Service, waited));
        match gate.check(update, None, self.is_start, self.dry_run.now) {
            Ok(()) => match gate.record_use(&sha256, 0, self.dry_run.now) {
                Some(accepted) => self.gates.accepted.push(accepted),
                None => *earlier = count,
            },
            Err(source) => {
                let error = ServiceFile { files: self.files, key, path: &part.0 }.error(source);
                return Err((part, error));
            }
        }
        Ok(())
    }

    /// The recent clients that are verified by `before` and would not be by `after`.
    fn new_hits(&self, before: &ClientAuth, after: &ClientAuth) -> NewHits {
        let (before, after) = (before.verifier(self.files), after.verifier(self.files));
        let verifiers = before.zip(after);
        let new_hits = verifiers.map(|it| self.dry_run.new_hits_of_verifier(self.service, &it));
        new_hits.unwrap_or_default()
    }
}

impl ClientGates {
    /// The gates of a new source: of the updates of the files of `clients` that were `waiting`.
    pub(super) fn new<'a>(
        waiting: impl Iterator<Item = &'a WaitingReport>,
        clients: &ClientAuthConfig,
    ) -> Self {
        let mut waiting: Vec<_> = waiting.collect();
        // The update with the most new hits counts, if there are several of one file.
        waiting.sort_by_key(|report| report.new_hits);
        let gates = waiting.into_iter().filter_map(|report| {
            let path = clients.files().find(|path| report.is_of(path))?;
            Some((
                (path.clone(), Box::default()),
                Gate::new(GuardFile::Service, Some(report.clone())),
            ))
        });
        Self { gates: gates.collect(), ..Self::default() }
    }

    /// Whether no update is held.
    pub(super) fn is_empty(&self) -> bool {
        self.gates.is_empty()
    }

    /// Whether an update of the CAs in `files` is held.
    fn hold_cas_of(&self, files: CredentialFiles<'_>) -> bool {
        self.gates.keys().any(|(held, _)| files.cas().any(|(_, path)| path == held))
    }

    /// Logs the updates in use that operators accepted.
    pub(super) fn log_accepted(&mut self, service: &str) {
        self.accepted.drain(..).for_each(|accepted| accepted.log(service));
    }

    /// Forgets the updates that wait no longer. `errors` are about files that cannot be used.
    fn end_attempt(&mut self, held: &[(Part, LoadError)], errors: &[LoadError]) {
        self.gates.retain(|part, gate| {
            let is_offered = held.iter().any(|(held, _)| held == part);
            let failure =
                errors.iter().find(|error| error.is_about(&part.0)).map(ReadError::failure);
            gate.record_rejection(is_offered, failure.unwrap_or(Failure::Content));
            is_offered || failure.is_some()
        });
    }

    /// Whether an update was accepted and is not in use yet.
    pub(super) fn may_be_used(&self, now: SystemTime) -> bool {
        self.gates.values().any(|gate| gate.may_be_used(now))
    }

    /// The updates that wait.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &WaitingReport> {
        self.gates.values().filter_map(Gate::waiting)
    }

    /// The first update that can be accepted.
    pub(super) fn acceptable(&self) -> Option<&WaitingReport> {
        self.gates.values().find_map(Gate::acceptable)
    }

    /// The first update that can be accepted, and why recent clients were not asked.
    pub(super) fn report(&self) -> DryRunReport {
        let waiting = self.acceptable().cloned();
        DryRunReport { acceptable: waiting.is_some(), waiting, max_new_hits: self.untried.clone() }
    }

    /// Whether the update with this SHA-256 waits, or was accepted and is not in use yet.
    pub(super) fn hold(&self, sha256: &[u8; 32]) -> bool {
        let sha256 = HEXLOWER.encode(sha256);
        let waits = |gate: &Gate| gate.waiting().is_some_and(|it| it.sha256 == sha256);
        self.gates.values().any(|gate| gate.has_accepted(&sha256) || waits(gate))
    }

    /// Accepts the waiting update with this SHA-256 on behalf of `peer`.
    pub(super) fn accept(
        &mut self,
        service: &str,
        sha256: &[u8; 32],
        peer: &str,
    ) -> Result<(), AcceptError> {
        let mut result = Err(AcceptError::Nothing(GuardFile::Service.subject(service)));
        for gate in self.gates.values_mut().filter(|gate| gate.acceptable().is_some()) {
            let accepted = gate.accept(service, sha256, peer);
            result = result.or(accepted);
        }
        result
    }
}
