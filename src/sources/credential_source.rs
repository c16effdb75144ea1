//! The last good state of the certificates, keys, CAs and CRLs of a service or an authorizer.

mod refresh;
mod report;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use keygate_core::tls::CrlMarks;
use keygate_core::unix_time;
use tracing::warn;

use super::check::dry_run::DryRun;
use super::client_auth::{Attempt, KnownClients};
use super::client_gates::{ClientGates, load_clients};
use super::context::LoadContext;
use super::credential_files::CredentialTable;
use super::credential_unit::{CredentialUnit, RejectedUnit, UnitRejection};
use super::gate::AcceptError;
use super::last_good::ValueChange;
use super::last_question::LastQuestion;
use super::load_error::LoadError;
use super::load_errors::LoadErrors;
use super::service_credentials::ServiceCredentials;
use super::source_set::FileSource;
use super::waiting::Guarded;
use crate::config::ExpiredCrl;
use crate::metrics::ControlMetrics;
use crate::saved_state::saved_credentials::SavedFile;

/// A configured service or authorizer and the last good state of its files.
#[derive(Debug)]
pub(crate) struct CredentialSource {
    pub(crate) id: usize,
    pub(crate) config: CredentialTable,
    pub(crate) credentials: ServiceCredentials,
    metrics: ControlMetrics,
    /// The newest CRLs that were in use.
    pub(super) crl_marks: CrlMarks,
    /// The expiries of CRLs up to this time were logged and applied, in seconds since the Unix
    /// epoch.
    crls_checked_at: u64,
    /// When files with a CRL that is dated in the future are read again, in seconds since the Unix
    /// epoch.
    retry_at: Option<u64>,
    /// The units that were rejected at their last check.
    rejected: Vec<RejectedUnit>,
    /// Whether copies of CAs or CRLs of clients are in use, because their files were rejected at
    /// the start.
    has_copies: bool,
    /// Hold updates of CAs and CRLs that wait for the operator.
    pub(super) gates: ClientGates,
    /// The files of the last update, if it changed what is in use.
    updated: Option<String>,
    /// When an authorizer was asked last.
    pub(crate) last_question: LastQuestion,
}

impl FileSource for CredentialSource {
    type Config = CredentialTable;

    fn config(&self) -> &CredentialTable {
        &self.config
    }

    fn name(&self) -> &str {
        self.config.files().name
    }

    fn replaced_by<'a>(
        config: &CredentialTable,
        in_use: &'a [Self],
        context: LoadContext<'_>,
    ) -> Option<&'a Self> {
        let id = context.ids.assign(config.files().name);
        former(in_use, id, config, &context.configured.names())
    }

    /// `before` is the same service in the previous configuration. A CRL that is older than one that
    /// was in use is an error.
    fn load(
        config: &CredentialTable,
        before: Option<&Self>,
        context: LoadContext<'_>,
    ) -> Result<Self, LoadErrors> {
        let (id, now) = (context.ids.assign(config.files().name), unix_time::seconds(context.now));
        let own = before.filter(|before| before.id == id).map(|before| &before.crl_marks);
        let configured = context.configured.names();
        let files = config.files();
        let mut crl_marks = context.state.crls.marks(files.name, own, &configured);
        let in_use = before.map(|before| before.credentials.clients.get());
        let known_files = before.map(|before| (&before.credentials, before.config.files()));
        let has_same_files =
            known_files.is_some_and(|(_, known)| known.clients.files().eq(files.clients.files()));
        let removed = context.state.rollback.removed_services(&configured);
        let known = KnownClients {
            in_use,
            attempt: Attempt::All,
            is_reload: false,
            copies: None,
            removed: &removed,
            marks: &crl_marks,
            now,
        };
        let mut gates = match before {
            Some(before) if has_same_files => before.gates.clone(),
            Some(before) => ClientGates::new(before.gates.waiting(), files.clients),
            None => {
                let waiting = context.state.rollback.waiting_files(files.name, &configured);
                ClientGates::new(waiting, files.clients)
            }
        };
        let clients = || load_clients(files, known, has_same_files, (id, &mut gates), context);
        let (credentials, rejection) =
            ServiceCredentials::load(files, known_files, clients, context)?;
        if let Some(before) = before
            && !credentials.clients.get().changed_since(before.credentials.clients.get()).is_empty()
        {
            gates.untried = context.dry_run.untried(Some(before.id), files.clients.max_new_hits);
        }
        credentials.crls().raise(&mut crl_marks);
        let mut source = Self {
            id,
            config: config.clone(),
            credentials,
            metrics: context.metrics.clone(),
            crl_marks,
            // A CRL may have expired since the last check, and the verifier may be the same.
            crls_checked_at: before.map_or(now, |before| before.crls_checked_at),
            retry_at: rejection.as_ref().and_then(refresh::retry_at),
            rejected: Vec::new(),
            has_copies: rejection.is_some() && before.is_none_or(|before| before.has_copies),
            gates,
            updated: before.and_then(|before| before.updated.clone()),
            last_question: before.map(|it| it.last_question.clone()).unwrap_or_default(),
        };
        if let Some(errors) = rejection {
            let (clients, unit) = (&mut source.credentials.clients, CredentialUnit::ClientCa);
            source.rejected = UnitRejection::record(clients, unit, &errors, context.now).units;
        }
        Ok(source)
    }

    fn log_and_count_first_load(&mut self, now: SystemTime) {
        self.gates.log_accepted(self.config.files().name);
        for warning in self.warnings(now) {
            warning.log();
        }
        if let Some(max_new_hits) = &self.gates.untried {
            warn!(service = self.name(), max_new_hits, "max_new_hits was not checked");
        }
        for unit in self.credentials.configured(self.config.files()) {
            match self.rejected.iter().find(|rejected| rejected.unit == unit) {
                Some(rejected) => {
                    rejected.record(self.name(), &self.metrics, self.gates.acceptable());
                }
                None => self.count_loaded(unit),
            }
        }
    }

    /// Reads the files of each unit again if one of them has changed, and applies the expiry of a
    /// CRL. Returns the result of each.
    fn refresh(&mut self, now: SystemTime, dry_run: &DryRun) -> Vec<ValueChange> {
        let mut changes = vec![self.refresh_clients(now, dry_run)];
        let config = self.config.clone();
        let units = self.credentials.units_mut();
        let refreshed = units.map(|it| (it.refresh(config.files(), now), it.state().unit));
        changes.extend(refreshed.map(|(result, unit)| self.record_refresh(unit, result, now)));
        // The writer of a file must not delay the expiry of a CRL.
        changes.push(self.apply_crl_expiry(now));
        changes
    }

    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        let others = self.credentials.units().flat_map(|unit| unit.paths);
        self.credentials.clients.paths().iter().chain(others)
    }
}

impl CredentialSource {
    /// When clients are next rejected because a CRL expires, in seconds since the Unix epoch.
    /// `None` if expired CRLs are accepted or no CRL is left that expires.
    fn next_crl_expiry(&self) -> Option<u64> {
        match self.config.files().clients.expired_crl {
            ExpiredCrl::Accept => None,
            ExpiredCrl::Reject => self.credentials.crls().next_update_after(self.crls_checked_at),
        }
    }

    /// Time until clients are rejected because a CRL expires, or until a rejected CRL is due.
    /// `None` if neither happens.
    pub(crate) fn time_to_crl_check(&self, now: SystemTime) -> Option<Duration> {
        let next = self.next_crl_expiry().into_iter().chain(self.retry_at).min()?;
        let next = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(next))?;
        Some(next.duration_since(now).unwrap_or_default())
    }

    /// The error of rustls about the certificates and keys.
    pub(crate) fn tls_error(&self, source: rustls::Error) -> LoadError {
        LoadError::Tls { owner: self.config.files().owner(), key: "tls", source }
    }

    /// How many of certificate, CAs and server names `config` shares, which may be this service
    /// under another name; 0 if it shares neither the certificate nor the CAs.
    pub(super) fn likeness(&self, config: &CredentialTable) -> usize {
        let (one, other) = (self.config.files(), config.files());
        let files = [
            one.server.is_some() && one.server == other.server,
            one.cas().next().is_some() && one.cas().eq(other.cas()),
        ];
        let files = files.into_iter().filter(|is_same| *is_same).count();
        files.saturating_add(usize::from(files > 0 && one.server_names == other.server_names))
    }

    /// The files with the CAs and CRLs of clients in use.
    pub(crate) fn saved_files(&self) -> impl Iterator<Item = SavedFile> {
        self.credentials.clients.get().files(self.config.files())
    }
}

impl Guarded for CredentialSource {
    fn accept(&mut self, sha256: &[u8; 32], peer: &str) -> Result<(), AcceptError> {
        self.gates.accept(self.config.files().name, sha256, peer)
    }

    fn problem_of(&self, sha256: &[u8; 32]) -> Option<String> {
        self.gates.hold(sha256).then(|| self.credentials.clients.problem())
    }
}

/// The source in use with this `id`, of the kind of `config`. Otherwise, of the sources of this
/// kind whose name is not among the `configured` ones, the one that is most like `config`; `None`
/// if several are.
pub(crate) fn former<'a>(
    in_use: &'a [CredentialSource],
    id: usize,
    config: &CredentialTable,
    configured: &[&str],
) -> Option<&'a CredentialSource> {
    let is_authorizer = config.files().is_authorizer;
    let alike = || in_use.iter().filter(|it| it.config.files().is_authorizer == is_authorizer);
    let same = alike().find(|it| it.id == id);
    same.or_else(|| {
        let removed = || alike().filter(|it| !configured.contains(&it.name()));
        let likeness = removed().map(|it| it.likeness(config)).max().filter(|it| *it > 0)?;
        let mut alike = removed().filter(|it| it.likeness(config) == likeness);
        alike.next().filter(|_| alike.next().is_none())
    })
}
