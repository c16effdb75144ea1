//! The last good state of the certificates, keys, CAs and CRLs of a service or an authorizer.

mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use keygate_core::tls::{self, CrlError, CrlMarks, TlsFileError};
use keygate_core::unix_time::{self, rfc3339};
use tracing::{info, warn};

use super::client_gates::{ClientGates, ClientUpdate};
use super::credential_files::{CredentialFiles, NamesCredentials};
use super::gate::AcceptError;
use super::rejected_unit::RejectedUnit;
use super::service_credentials::{
    Attempt, ClientAuth, KnownClients, PartialUpdate, ServiceCredentials, UpstreamCredentials,
    read_asker_ca, read_server,
};
use super::waiting::Guarded;
use crate::config::ExpiredCrl;
use crate::metrics::{ControlMetrics, Label, ReloadResult};
use crate::snapshot::credential_unit::CredentialUnit;
use crate::snapshot::last_question::LastQuestion;
use crate::snapshot::load::check::dry_run::DryRun;
use crate::snapshot::load::error::LoadError;
use crate::snapshot::load::last_good::{LastGood, ReadIf, Reread, ValueChange};
use crate::snapshot::load::load_errors::LoadErrors;
use crate::snapshot::load::saved_credentials::SavedFile;
use crate::snapshot::load::source::LoadContext;

/// A configured service or authorizer and the last good state of its files.
#[derive(Debug)]
pub(crate) struct CredentialSource<C> {
    pub(super) id: usize,
    pub(super) config: Arc<C>,
    pub(super) credentials: ServiceCredentials,
    metrics: ControlMetrics,
    /// The newest CRLs that were in use.
    crl_marks: CrlMarks,
    /// The expiries of CRLs up to this time were logged and applied, in seconds since the Unix
    /// epoch.
    crls_checked_at: u64,
    /// When files with a CRL that is dated in the future are read again, in seconds since the Unix
    /// epoch.
    retry_at: Option<u64>,
    /// The units that were rejected at their last check.
    rejected: Vec<RejectedUnit>,
    /// Whether copies of CAs or CRLs of clients are in use, because their files were rejected at the
    /// start.
    has_copies: bool,
    /// Hold updates of CAs and CRLs that wait for the operator.
    pub(super) gates: ClientGates,
    /// The files of the last update, if it changed what is in use.
    updated: Option<String>,
    /// When an authorizer was asked last.
    pub(super) last_question: LastQuestion,
}

impl<C: NamesCredentials> CredentialSource<C> {
    /// Reads the files of a service for the first time. `before` is the same service in the
    /// previous configuration.
    ///
    /// # Errors
    /// Returns the errors of all files that cannot be used. One of them is a CRL that is older than
    /// one that was in use.
    pub(super) fn load(
        id: usize,
        config: C,
        before: Option<&Self>,
        context: LoadContext<'_>,
    ) -> Result<Self, LoadErrors> {
        let now = unix_time::seconds(context.now);
        let own = before.filter(|before| before.id == id).map(|before| &before.crl_marks);
        let configured = context.configured.names();
        let files = config.credential_files();
        let mut crl_marks = context.crl_state.marks(files.name, own, &configured);
        let in_use = before.map(|before| before.credentials.clients.get());
        let (is_reload, kept, marks) = (false, None, &crl_marks);
        let known_files =
            before.map(|before| (&before.credentials, before.config.credential_files()));
        let paths = files.of_clients();
        let has_same_files = known_files.is_some_and(|(_, known)| known.of_clients() == paths);
        let attempt = Attempt::All;
        let known = KnownClients { in_use, attempt, is_reload, kept, marks, now };
        let mut gates = match before {
            Some(before) if has_same_files => before.gates.clone().renamed(files.name),
            Some(_) => ClientGates::default(),
            None => {
                let waiting = context.rollback.waiting_files(files.name, &configured);
                ClientGates::new(waiting, &paths, files.name)
            }
        };
        let (credentials, rejection) =
            ServiceCredentials::load(files, known_files, known, (id, &mut gates), context)?;
        if let Some(before) = before
            && !credentials.clients.get().changed_since(before.credentials.clients.get()).is_empty()
        {
            gates.untried = context.dry_run.untried(Some(before.id), files.max_new_hits);
        }
        credentials.crls().raise(&mut crl_marks);
        let mut source = Self {
            id,
            config: Arc::new(config),
            credentials,
            metrics: context.metrics.clone(),
            crl_marks,
            // A CRL may have expired since the last check, and the verifier may be the same.
            crls_checked_at: before.map_or(now, |before| before.crls_checked_at),
            retry_at: rejection.as_ref().and_then(retry_at),
            rejected: Vec::new(),
            has_copies: rejection.is_some() && before.is_none_or(|before| before.has_copies),
            gates,
            updated: before.and_then(|before| before.updated.clone()),
            last_question: before.map(|it| it.last_question.clone()).unwrap_or_default(),
        };
        if let Some(errors) = rejection {
            source.rejected = RejectedUnit::all(&errors);
            let reason = source.rejected.first().map(RejectedUnit::reason);
            source.credentials.clients.record_rejection(reason, &errors, context.now);
        }
        Ok(source)
    }

    /// Logs and counts the first values, which are now in use.
    pub(crate) fn show_loaded(&mut self, now: SystemTime) {
        self.gates.log_accepted();
        for warning in self.warnings(now) {
            warning.log();
        }
        if let Some(max_new_hits) = &self.gates.untried {
            warn!(service = self.name(), max_new_hits, "max_new_hits was not checked");
        }
        for unit in self.config.credential_files().units() {
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
    pub(crate) fn refresh(&mut self, now: SystemTime, dry_run: &DryRun) -> [ValueChange; 5] {
        [
            self.refresh_clients(now, dry_run),
            self.refresh_unit(
                CredentialUnit::Server,
                now,
                |it| &mut it.server,
                |files, _| read_server(files),
            ),
            self.refresh_unit(
                CredentialUnit::AskerCa,
                now,
                |it| &mut it.asker_ca,
                |files, _| read_asker_ca(files),
            ),
            self.refresh_unit(
                CredentialUnit::Upstream,
                now,
                |it| &mut it.upstream,
                UpstreamCredentials::read,
            ),
            // The writer of a file must not delay the expiry of a CRL.
            self.apply_crl_expiry(now),
        ]
    }

    fn refresh_unit<T>(
        &mut self,
        unit: CredentialUnit,
        now: SystemTime,
        of: fn(&mut ServiceCredentials) -> &mut LastGood<T>,
        read: impl FnOnce(CredentialFiles<'_>, &T) -> Result<T, LoadErrors>,
    ) -> ValueChange {
        let config = Arc::clone(&self.config);
        let read = |before: &T| read(config.credential_files(), before);
        match of(&mut self.credentials).reread(ReadIf::Changed, now, read) {
            Reread::Pending => ValueChange::Pending,
            Reread::Read(Ok(value)) => {
                of(&mut self.credentials).replace(value, now);
                let paths = of(&mut self.credentials).paths();
                let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
                self.updated = Some(paths.join(", "));
                self.record_loaded(&[unit], now);
                ValueChange::Replaced
            }
            Reread::Read(Err(errors)) => {
                self.reject(of, &[unit], &errors, now);
                ValueChange::Same
            }
            Reread::Unchanged => ValueChange::Same,
        }
    }

    /// Reads the CAs and CRLs of clients again. What is accepted of them is used, and for the rest
    /// the last good value stays.
    fn refresh_clients(&mut self, now: SystemTime, dry_run: &DryRun) -> ValueChange {
        let config = Arc::clone(&self.config);
        let (files, seconds) = (config.credential_files(), unix_time::seconds(now));
        let is_due = self.retry_at.is_some_and(|due| due <= seconds);
        let is_due = is_due || self.gates.may_be_used(now);
        let read_if = if is_due { ReadIf::Always } else { ReadIf::Changed };
        let (marks, service) = (&self.crl_marks, self.id);
        let mut gates = self.gates.clone();
        let read = |before: &ClientAuth| {
            let (in_use, kept, is_reload, now) = (Some(before), None, true, seconds);
            let (gates, is_start) = (&mut gates, false);
            let update = ClientUpdate { files, service, in_use: before, gates, dry_run, is_start };
            update.read(|attempt| {
                let known = KnownClients { in_use, attempt, is_reload, kept, marks, now };
                ClientAuth::read(files, known)
            })
        };
        let update = self.credentials.clients.reread(read_if, now, read);
        if let Reread::Read(_) = update {
            self.gates = gates;
            self.gates.log_accepted();
        }
        match update {
            Reread::Pending => ValueChange::Pending,
            Reread::Read(Ok(clients)) => {
                self.replace_clients(clients, dry_run);
                self.credentials.clients.record_loaded(now);
                (self.retry_at, self.has_copies) = (None, false);
                self.record_loaded(&CredentialUnit::OF_CLIENTS, now);
                ValueChange::Replaced
            }
            Reread::Read(Err(PartialUpdate { usable, errors })) => {
                let changed = usable.map(|clients| self.replace_clients(clients, dry_run));
                let changed = changed.unwrap_or_default();
                self.retry_at = retry_at(&errors);
                self.record_loaded(&changed, now);
                self.reject(|it| &mut it.clients, &CredentialUnit::OF_CLIENTS, &errors, now);
                if changed.is_empty() { ValueChange::Same } else { ValueChange::Replaced }
            }
            Reread::Unchanged => ValueChange::Same,
        }
    }

    /// Puts an update of the CAs and CRLs of clients in use. Returns what has changed.
    fn replace_clients(&mut self, clients: ClientAuth, dry_run: &DryRun) -> Vec<CredentialUnit> {
        clients.crls.raise(&mut self.crl_marks);
        let files = self.config.credential_files();
        let (changed, names) = self.credentials.replace_clients(clients, files);
        self.updated = (!changed.is_empty()).then_some(names);
        if !changed.is_empty() {
            self.gates.untried = dry_run.untried(Some(self.id), files.max_new_hits);
        }
        changed
    }

    /// Records that `units` are in use as their files are now.
    fn record_loaded(&mut self, units: &[CredentialUnit], now: SystemTime) {
        if units.is_empty() {
            return;
        }
        self.rejected.retain(|rejected| !units.contains(&rejected.unit));
        let configured = self.config.credential_files().units();
        for unit in configured.filter(|unit| units.contains(unit)) {
            self.count_loaded(unit);
            let of_clients = CredentialUnit::OF_CLIENTS.contains(&unit);
            let max_new_hits = self.gates.untried.as_deref().filter(|_| of_clients);
            let updated = self.updated.as_deref();
            info!(service = %self.name(), files = unit.as_str(), updated, max_new_hits, "certificates loaded");
        }
        for warning in self.warnings(now) {
            warning.log();
        }
    }

    fn count_loaded(&self, unit: CredentialUnit) {
        if unit == CredentialUnit::Crls {
            self.metrics.set_crl_last_reload_successful(self.name(), true);
        } else {
            self.metrics.record_credential_reload(self.name(), unit, ReloadResult::Loaded);
        }
    }

    /// Records which of `units`, that were read together, are rejected.
    fn reject<T>(
        &mut self,
        of: fn(&mut ServiceCredentials) -> &mut LastGood<T>,
        units: &[CredentialUnit],
        errors: &LoadErrors,
        now: SystemTime,
    ) {
        let rejected = RejectedUnit::all(errors);
        let reason = rejected.first().map(RejectedUnit::reason);
        if of(&mut self.credentials).record_rejection(reason, errors, now) {
            for unit in &rejected {
                unit.record(self.name(), &self.metrics, self.gates.acceptable());
            }
        }
        self.rejected.retain(|before| !units.contains(&before.unit));
        self.rejected.extend(rejected);
        self.show();
    }

    /// Rebuilds the client verifier when a CRL expires, because it rejects clients that were
    /// admitted before. Their sessions must not resume, and their open connections are verified
    /// again.
    fn apply_crl_expiry(&mut self, now: SystemTime) -> ValueChange {
        let now = unix_time::seconds(now);
        let next = self.next_crl_expiry();
        // Not the latest time: a clock that was ahead must not suppress later expiries.
        self.crls_checked_at = now;
        if next.is_none_or(|next| next > now) {
            return ValueChange::Same;
        }
        self.credentials.rebuild_client_verifier(self.config.credential_files());
        for (list, path) in self.credentials.crls().lists() {
            if next.is_some_and(|next| (next..=now).contains(&list.next_update)) {
                let next_update = rfc3339(list.next_update);
                let (issuer, path) = (&list.issuer, path.display());
                warn!(service = %self.name(), %issuer, %path, %next_update, "certificate revocation list has expired");
            }
        }
        ValueChange::Replaced
    }

    /// When clients are next rejected because a CRL expires, in seconds since the Unix epoch.
    /// `None` if expired CRLs are accepted or no CRL is left that expires.
    fn next_crl_expiry(&self) -> Option<u64> {
        match self.config.credential_files().expired_crl {
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

    /// The newest CRLs that were in use.
    pub(crate) fn crl_marks(&self) -> &CrlMarks {
        &self.crl_marks
    }

    /// The error of rustls about the certificates and keys.
    pub(super) fn tls_error(&self, source: rustls::Error) -> LoadError {
        LoadError::Tls { owner: self.config.credential_files().owner(), key: "tls", source }
    }

    /// Whether the service may run with compromised keys of its own.
    pub(crate) fn tolerates_compromised_keys(&self) -> bool {
        self.config.allows_compromised_own_key()
    }

    /// How many of certificate, CAs and server names `config` shares, which may be this service under
    /// another name; 0 if it shares neither the certificate nor the CAs.
    pub(super) fn likeness(&self, config: &C) -> usize {
        let [one, other] = [&*self.config, config].map(NamesCredentials::credential_files);
        let files = [
            one.server.is_some() && one.server == other.server,
            one.trust_anchors.is_some() && one.trust_anchors == other.trust_anchors,
        ];
        let files = files.into_iter().filter(|is_same| *is_same).count();
        files.saturating_add(usize::from(files > 0 && one.server_names == other.server_names))
    }

    /// Id of the service.
    pub(crate) fn id(&self) -> usize {
        self.id
    }

    /// The configuration of the service.
    pub(crate) fn config(&self) -> &C {
        &self.config
    }

    /// Name of the service.
    pub(crate) fn name(&self) -> &str {
        self.config.credential_files().name
    }

    /// Paths of all files of the service.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        let ServiceCredentials { server, asker_ca, clients, upstream, client_verifier: _ } =
            &self.credentials;
        let paths = [server.paths(), asker_ca.paths(), clients.paths(), upstream.paths()];
        paths.into_iter().flatten()
    }

    /// The files with the CAs and CRLs of clients in use.
    pub(crate) fn saved_files(&self) -> impl Iterator<Item = SavedFile> {
        self.credentials.saved_files(self.config.credential_files())
    }
}

impl<C: NamesCredentials> Guarded for CredentialSource<C> {
    fn accept(&mut self, sha256: &[u8; 32], peer: &str) -> Result<(), AcceptError> {
        self.gates.accept(self.config.credential_files().name, sha256, peer)
    }

    fn problem_of(&self, sha256: &[u8; 32]) -> Option<String> {
        self.gates.hold(sha256).then(|| self.credentials.clients.problem())
    }
}

/// When a CRL can be used without a change of its file, because its date has come.
fn retry_at(errors: &LoadErrors) -> Option<u64> {
    let due = errors.iter().filter_map(|error| {
        if let LoadError::Credentials { source: TlsFileError::Crl { source, .. }, .. } = error
            && let CrlError::Future { this_update, .. } = source
        {
            return Some(this_update.saturating_sub(tls::MAX_CLOCK_SKEW));
        }
        None
    });
    due.min()
}
