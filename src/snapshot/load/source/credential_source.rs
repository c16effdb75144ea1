//! The last good state of the certificates, keys, CAs and CRLs of a service or an authorizer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tracing::{info, warn};

use super::credential_files::{CredentialFiles, NamesCredentials};
use super::service_credentials::{CRLS, KnownCrls, ServiceCredentials};
use crate::config::ExpiredCrl;
use crate::guard::{Depth, Guard};
use crate::metrics::{ControlMetrics, Label};
use crate::snapshot::crl_rejection_reason::CrlRejectionReason;
use crate::snapshot::expiry::Expiry;
use crate::snapshot::last_question::LastQuestion;
use crate::snapshot::load::error::LoadError;
use crate::snapshot::load::last_good::{LastGood, ReadIf, Reread, ValueChange};
use crate::snapshot::load::load_errors::LoadErrors;
use crate::snapshot::load::own_key::OwnKey;
use crate::snapshot::load::source::LoadContext;
use crate::snapshot::report::CertificateExpiry;
use crate::snapshot::warning::Warning;
use crate::spki;
use crate::tls::{
    self, CertificateRole, CertificateSummary, CrlError, CrlMarks, TlsFileError, TrustAnchors,
};
use crate::unix_time::{self, rfc3339};

/// A configured service or authorizer and the last good state of its files.
#[derive(Debug)]
pub(crate) struct CredentialSource<C> {
    pub(super) id: usize,
    pub(super) config: Arc<C>,
    pub(super) credentials: LastGood<ServiceCredentials>,
    metrics: ControlMetrics,
    /// The newest CRLs that were in use.
    crl_marks: CrlMarks,
    /// The expiries of CRLs up to this time were logged and applied, in seconds since the Unix
    /// epoch.
    crls_checked_at: u64,
    /// When files with a CRL that is dated in the future are read again, in seconds since the Unix
    /// epoch.
    retry_at: Option<u64>,
    /// Whether a CRL was rejected at the last check.
    is_crl_rejected: bool,
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
        let paths = config.all_files().into_iter().map(Path::to_owned).collect();
        let own = before.map(|before| &before.crl_marks);
        let configured = context.configured.names();
        let mut crl_marks =
            context.crl_state.marks(config.credential_files().name, own, &configured);
        let credentials = LastGood::load(paths, context.now, context.max_wait, || {
            let in_use = before.map(|before| before.credentials.get().crls.as_ref());
            // A new configuration may name fewer CRLs.
            let known = KnownCrls { in_use, keep_issuers: false, marks: &crl_marks, now };
            let mut credentials = ServiceCredentials::read(config.credential_files(), known)?;
            if let Some(before) = before {
                let files_before = before.config.credential_files();
                let files = config.credential_files();
                credentials.reuse_unchanged(files, before.credentials.get(), files_before);
            }
            Ok::<_, LoadErrors>(credentials)
        })?;
        log_warnings(credentials.get(), config.credential_files(), context.now);
        if let Some(warning) = open_access(&config) {
            warning.log();
        }
        credentials.get().crls.raise(&mut crl_marks);
        Ok(Self {
            id,
            config: Arc::new(config),
            credentials,
            metrics: context.metrics.clone(),
            crl_marks,
            // A CRL may have expired since the last check, and the verifier may be the same.
            crls_checked_at: before.map_or(now, |before| before.crls_checked_at),
            retry_at: None,
            is_crl_rejected: false,
            last_question: before.map(|it| it.last_question.clone()).unwrap_or_default(),
        })
    }

    /// Reads the files again if one has changed, and applies the expiry of a CRL.
    pub(crate) fn refresh(&mut self, now: SystemTime) -> ValueChange {
        let seconds = unix_time::seconds(now);
        let is_due = self.retry_at.is_some_and(|due| due <= seconds);
        let read_if = if is_due { ReadIf::Always } else { ReadIf::Changed };
        let read = |before: &ServiceCredentials| {
            let (in_use, marks) = (Some(before.crls.as_ref()), &self.crl_marks);
            let known = KnownCrls { in_use, keep_issuers: true, marks, now: seconds };
            ServiceCredentials::read(self.config.credential_files(), known)
        };
        match self.credentials.reread(read_if, now, read) {
            // The writer of a file must not delay the expiry of a CRL.
            Reread::Pending => match self.apply_crl_expiry(now) {
                ValueChange::Replaced => ValueChange::Replaced,
                ValueChange::Pending | ValueChange::Same => ValueChange::Pending,
            },
            Reread::Read(Ok(credentials)) => self.activate(credentials, now),
            Reread::Read(Err(errors)) => self.reject(&errors, now),
            Reread::Unchanged => self.apply_crl_expiry(now),
        }
    }

    fn activate(&mut self, mut credentials: ServiceCredentials, now: SystemTime) -> ValueChange {
        let files = self.config.credential_files();
        credentials.reuse_unchanged(files, self.credentials.get(), files);
        log_warnings(&credentials, files, now);
        credentials.crls.raise(&mut self.crl_marks);
        self.credentials.replace(credentials, now);
        self.retry_at = None;
        self.is_crl_rejected = false;
        info!(service = %self.name(), "certificates loaded");
        // A list that is still in use may have expired meanwhile.
        self.apply_crl_expiry(now);
        ValueChange::Replaced
    }

    fn reject(&mut self, errors: &LoadErrors, now: SystemTime) -> ValueChange {
        let reason = crl_rejection_reason(errors);
        self.retry_at = retry_at(errors);
        self.is_crl_rejected |= reason.is_some();
        if self.credentials.record_rejection(reason.map(Label::as_str), errors, now) {
            if let Some(reason) = reason {
                self.metrics.record_crl_rejected(self.name(), reason);
            }
            let reason = reason.map(Label::as_str);
            warn!(reason, error = %errors, "certificate update rejected, keeping those in use");
        }
        self.apply_crl_expiry(now)
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
        self.credentials.get_mut().rebuild_client_verifier(self.config.credential_files());
        for (list, path) in self.credentials.get().crls.lists() {
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
            ExpiredCrl::Reject => {
                self.credentials.get().crls.next_update_after(self.crls_checked_at)
            }
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

    /// Sets the metrics of the CRLs, if there are any.
    pub(crate) fn show_crls(&self) {
        let crls = &self.credentials.get().crls;
        let Some(next_update) = crls.next_update() else { return };
        let entries = crls.lists().iter().map(|(list, _)| list.entries()).sum();
        self.metrics.show_crls::<CrlRejectionReason>(self.name(), next_update, entries);
        self.metrics.set_crl_last_reload_successful(self.name(), !self.is_crl_rejected);
    }

    /// The error of rustls about the certificates and keys.
    pub(super) fn tls_error(&self, source: rustls::Error) -> LoadError {
        LoadError::Tls { owner: self.config.credential_files().owner(), key: "tls", source }
    }

    /// The keys that are weak, in a filter or on a list: of the service's own certificates, and of
    /// the CAs that it trusts on either side.
    pub(crate) fn compromised_keys(&self, guard: &Guard, now: SystemTime) -> Vec<OwnKey> {
        let keys = self.credentials.get().certificates().filter_map(|(role, cert)| {
            let verdict = guard.judge(std::slice::from_ref(cert), Depth::Leaf, now);
            let is_listed = verdict.hit().is_some() || verdict.listing().is_some();
            let is_compromised = is_listed || verdict.weakness().is_some();
            is_compromised.then(|| OwnKey {
                owner: self.config.credential_files().owner(),
                key: self.config.credential_files().key_of(role),
                role,
                certificate: CertificateSummary::of(cert),
                verdict,
            })
        });
        keys.collect()
    }

    /// The conditions of the files that an operator must mend.
    pub(crate) fn warnings(&self, now: SystemTime) -> Vec<Warning> {
        let files = self.credentials.get().warnings(self.config.credential_files(), now);
        files.into_iter().chain(open_access(self.config.as_ref())).collect()
    }

    /// Whether the service may run with compromised keys of its own.
    pub(crate) fn tolerates_compromised_keys(&self) -> bool {
        self.config.allows_compromised_own_key()
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
    pub(crate) fn paths(&self) -> &[PathBuf] {
        self.credentials.paths()
    }

    /// Expiry of the service's own leaf certificates, and of the client CA that expires first, in
    /// seconds since the Unix epoch; 0 if it cannot be parsed.
    pub(crate) fn certificate_expiries(
        &self,
    ) -> impl Iterator<Item = (CertificateRole, u64)> + use<'_, C> {
        let expiry = |wanted| {
            let certificates = self.credentials.get().certificates();
            let of_role = certificates.filter(|(role, _)| *role == wanted);
            let expiries =
                of_role.map(|(_, cert)| spki::not_after(cert).unwrap_or_default().as_secs());
            expiries.min().map(|expiry| (wanted, expiry))
        };
        let roles = [
            CertificateRole::Server,
            CertificateRole::UpstreamClient,
            CertificateRole::TrustAnchor,
        ];
        roles.into_iter().filter_map(expiry)
    }

    /// The expiries of the service: in each role the certificate that expires first, and the CRL
    /// that expires first.
    pub(crate) fn expiries(&self) -> Vec<Expiry> {
        let credentials = self.credentials.get();
        let files = self.config.credential_files();
        let mut expiries: BTreeMap<&str, Expiry> = BTreeMap::new();
        for (role, certificate) in credentials.certificates() {
            let path = files.path_of(role);
            let expiry = Expiry::of_certificate(self.name(), role, certificate, path);
            let first = expiries.entry(role.as_str()).or_insert_with(|| expiry.clone());
            if expiry.at < first.at {
                *first = expiry;
            }
        }
        let crls = credentials.crls.lists().into_iter();
        let crl = crls.min_by_key(|(list, _)| list.next_update);
        let crl = crl.map(|(list, path)| Expiry::of_crl(self.name(), list.next_update, path));
        expiries.into_values().chain(crl).collect()
    }

    /// When the own certificates, the CAs and the CRLs expire.
    pub(super) fn expiry(&self) -> CertificateExpiry {
        let expiry_of = |wanted| {
            self.certificate_expiries()
                .find_map(|(role, expiry)| (role == wanted).then_some(expiry))
        };
        let anchors = self.credentials.get().trust_anchors.as_deref();
        CertificateExpiry {
            anchors: anchors.map(TrustAnchors::counts).unwrap_or_default(),
            server: expiry_of(CertificateRole::Server),
            trust_anchor: expiry_of(CertificateRole::TrustAnchor),
            upstream_client: expiry_of(CertificateRole::UpstreamClient),
            crl: self.credentials.get().crls.next_update(),
        }
    }
}

/// The class of the first rejected CRL, if there is one.
fn crl_rejection_reason(errors: &LoadErrors) -> Option<CrlRejectionReason> {
    errors.iter().find_map(|error| {
        if let LoadError::Credentials { key: CRLS, source, .. } = error {
            return Some(CrlRejectionReason::of(source));
        }
        let is_unreadable = matches!(error, LoadError::Read { key: CRLS, .. });
        is_unreadable.then_some(CrlRejectionReason::Io)
    })
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

fn open_access(config: &impl NamesCredentials) -> Option<Warning> {
    let owner = config.credential_files().owner();
    config.open_access().map(|access| Warning::OpenAccess { owner, access })
}

fn log_warnings(credentials: &ServiceCredentials, files: CredentialFiles<'_>, now: SystemTime) {
    for warning in credentials.warnings(files, now) {
        warning.log();
    }
}
