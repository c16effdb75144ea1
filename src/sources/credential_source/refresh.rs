//! Reads the files of a service again, unit by unit, and applies the expiry of CRLs.

use std::time::SystemTime;

use keygate_core::tls::{self, CrlError, TlsFileError};
use keygate_core::unix_time::{self, rfc3339};
use tracing::{info, warn};

use super::CredentialSource;
use crate::metrics::{Label, ReloadResult};
use crate::sources::check::dry_run::DryRun;
use crate::sources::client_auth::{ClientAuth, KnownClients, PartialUpdate};
use crate::sources::client_gates::ClientUpdate;
use crate::sources::credential_unit::{CredentialUnit, UnitRejection};
use crate::sources::last_good::{ReadIf, Reread, ValueChange};
use crate::sources::load_error::{CredentialError, LoadError};
use crate::sources::load_errors::LoadErrors;
use crate::sources::source_set::FileSource;

impl CredentialSource {
    /// Records the result of reading the files of `unit` again.
    pub(super) fn record_refresh(
        &mut self,
        unit: CredentialUnit,
        result: Reread<Result<String, UnitRejection>>,
        now: SystemTime,
    ) -> ValueChange {
        match result {
            Reread::Pending => ValueChange::Pending,
            Reread::Read(Ok(paths)) => {
                self.updated = Some(paths);
                self.record_loaded(&[unit], now);
                ValueChange::Replaced
            }
            Reread::Read(Err(rejection)) => {
                self.reject(&[unit], rejection);
                ValueChange::Same
            }
            Reread::Unchanged => ValueChange::Same,
        }
    }

    /// Reads the CAs and CRLs of clients again. Accepted files are used; the last good value of the
    /// others stays.
    pub(super) fn refresh_clients(&mut self, now: SystemTime, dry_run: &DryRun) -> ValueChange {
        let config = self.config.clone();
        let (files, seconds) = (config.files(), unix_time::seconds(now));
        let is_due = self.retry_at.is_some_and(|due| due <= seconds);
        let is_due = is_due || self.gates.may_be_used(now);
        let read_if = if is_due { ReadIf::Always } else { ReadIf::Changed };
        let (marks, service) = (&self.crl_marks, self.id);
        let mut gates = self.gates.clone();
        let read = |before: &ClientAuth| {
            let (in_use, copies, is_reload, now) = (Some(before), None, true, seconds);
            let (gates, is_start) = (&mut gates, false);
            let update = ClientUpdate { files, service, in_use: before, gates, dry_run, is_start };
            update.read(|attempt| {
                let known =
                    KnownClients { in_use, attempt, is_reload, copies, removed: &[], marks, now };
                ClientAuth::read(files, known)
            })
        };
        let update = self.credentials.clients.reread(read_if, now, read);
        if let Reread::Read(_) = update {
            self.gates = gates;
            self.gates.log_accepted(files.name);
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
                let (files, unit) = (&mut self.credentials.clients, CredentialUnit::ClientCa);
                let rejection = UnitRejection::record(files, unit, &errors, now);
                self.reject(&CredentialUnit::OF_CLIENTS, rejection);
                if changed.is_empty() { ValueChange::Same } else { ValueChange::Replaced }
            }
            Reread::Unchanged => ValueChange::Same,
        }
    }

    /// Puts an update of the CAs and CRLs of clients in use. Returns what has changed.
    fn replace_clients(&mut self, clients: ClientAuth, dry_run: &DryRun) -> Vec<CredentialUnit> {
        clients.crls.raise(&mut self.crl_marks);
        let files = self.config.files();
        let (changed, names) = self.credentials.replace_clients(clients, files);
        self.updated = (!changed.is_empty()).then_some(names);
        if !changed.is_empty() {
            self.gates.untried = dry_run.untried(Some(self.id), files.clients.max_new_hits);
        }
        changed
    }

    /// Records that `units` are in use as their files are now.
    fn record_loaded(&mut self, units: &[CredentialUnit], now: SystemTime) {
        if units.is_empty() {
            return;
        }
        self.rejected.retain(|rejected| !units.contains(&rejected.unit));
        let configured = self.credentials.configured(self.config.files()).into_iter();
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

    pub(super) fn count_loaded(&self, unit: CredentialUnit) {
        if unit == CredentialUnit::Crls {
            self.metrics.set_crl_last_reload_successful(self.name(), true);
        } else {
            self.metrics.record_credential_reload(self.name(), unit, ReloadResult::Loaded);
        }
    }

    /// Records which of `units`, that were read together, are rejected.
    fn reject(&mut self, units: &[CredentialUnit], rejection: UnitRejection) {
        let UnitRejection { units: rejected, is_new } = rejection;
        for unit in rejected.iter().filter(|_| is_new) {
            unit.record(self.name(), &self.metrics, self.gates.acceptable());
        }
        self.rejected.retain(|before| !units.contains(&before.unit));
        self.rejected.extend(rejected);
        self.set_metrics();
    }

    /// Rebuilds the client verifier when a CRL expires, because it rejects clients that were
    /// admitted before. Their sessions must not resume, and their open connections are verified
    /// again.
    pub(super) fn apply_crl_expiry(&mut self, now: SystemTime) -> ValueChange {
        let now = unix_time::seconds(now);
        let next = self.next_crl_expiry();
        // Not the latest time: a clock that was ahead must not suppress later expiries.
        self.crls_checked_at = now;
        if next.is_none_or(|next| next > now) {
            return ValueChange::Same;
        }
        self.credentials.rebuild_client_verifier(self.config.files());
        for (list, path) in self.credentials.crls().lists() {
            if next.is_some_and(|next| (next..=now).contains(&list.next_update)) {
                let next_update = rfc3339(list.next_update);
                let (issuer, path) = (&list.issuer, path.display());
                warn!(service = %self.name(), %issuer, %path, %next_update, "certificate revocation list has expired");
            }
        }
        ValueChange::Replaced
    }
}

/// When a CRL can be used without a change of its file, because its date has come.
pub(super) fn retry_at(errors: &LoadErrors) -> Option<u64> {
    let due = errors.iter().filter_map(|error| {
        if let LoadError::Credentials { source: CredentialError::Content(source), .. } = error
            && let TlsFileError::Crl { source: CrlError::Future { this_update, .. }, .. } = source
        {
            return Some(this_update.saturating_sub(tls::MAX_CLOCK_SKEW));
        }
        None
    });
    due.min()
}
