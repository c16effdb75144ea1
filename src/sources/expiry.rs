//! Expiry of certificates, CAs, CRLs and exceptions, for `/status` and the status page.

use std::path::Path;
use std::time::{Duration, SystemTime};

use keygate_core::guard::Exception;
use keygate_core::spki;
use keygate_core::tls::CertificateRole;
use keygate_core::unix_time;
use serde::Serialize;

use super::warning::expires_soon_from;

/// Remaining time below which a CRL expires soon, in seconds: 8 hours, as in the alert
/// `KeygateCrlRunningOut`.
const CRL_SOON: u64 = 8 * 3600;
/// Remaining time below which certificates for servers are soon rejected, in seconds: 30 days, because
/// clients need others.
const SERVER_AUTH_SOON: u64 = 30 * 86_400;
/// Remaining time below which an exception expires soon, a week.
pub(super) const EXCEPTION_NOTICE: Duration = Duration::from_secs(7 * 86_400);

/// An object that expires. Times are in seconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Expiry {
    /// Kind of object, such as `certificate`.
    pub kind: &'static str,
    /// Name of the service or authorizer, or the key and the reason of an exception.
    pub subject: String,
    /// Path of the file; `None` for a date that the configuration has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// When it expires.
    pub at: u64,
    /// From when on it expires soon, so that an operator must act.
    pub soon_from: u64,
}

/// Whether an object has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryState {
    /// Has expired.
    Expired,
    /// Expires soon, so that an operator must act.
    Soon,
    /// Is valid, and does not expire soon.
    Valid,
}

impl Expiry {
    /// The kind of the date until which a service accepts certificates for servers.
    pub const SERVER_AUTH: &str = "acceptance of certificates for servers";
    /// The kind of an exception.
    pub const EXCEPTION: &str = "exception";

    /// The state at `now`, in seconds since the Unix epoch.
    #[must_use]
    pub fn state(&self, now: u64) -> ExpiryState {
        if self.at <= now {
            ExpiryState::Expired
        } else if self.soon_from < now {
            ExpiryState::Soon
        } else {
            ExpiryState::Valid
        }
    }

    /// A certificate (DER) of a service or authorizer. One that cannot be decoded has expired.
    pub(super) fn from_certificate(
        owner: &str,
        role: CertificateRole,
        certificate: &[u8],
        path: Option<&Path>,
    ) -> Self {
        let kind = match role {
            CertificateRole::AlternativeServer => "alternative certificate",
            CertificateRole::Assertion => "signing key",
            CertificateRole::Intermediate => "intermediate CA of clients",
            CertificateRole::Server => "certificate",
            CertificateRole::TrustAnchor => "CA of clients",
            CertificateRole::UpstreamClient => "client certificate for the upstream",
            CertificateRole::UpstreamTrustAnchor => "CA of the upstream",
        };
        let (at, soon_from) = spki::validity(certificate)
            .map_or((0, 0), |period| (period.not_after.as_secs(), expires_soon_from(period)));
        let path = path.map(|path| path.display().to_string());
        Self { kind, subject: owner.to_owned(), path, at, soon_from }
    }

    /// The CRL of a service or authorizer that expires first, at `next_update`.
    pub(super) fn from_crl(owner: &str, next_update: u64, path: &Path) -> Self {
        let (subject, soon_from) = (owner.to_owned(), next_update.saturating_sub(CRL_SOON));
        let path = Some(path.display().to_string());
        Self { kind: "revocation list", subject, path, at: next_update, soon_from }
    }

    /// The date until which a service or authorizer accepts certificates for servers.
    pub(super) fn from_server_auth(owner: &str, until: SystemTime) -> Self {
        let at = unix_time::seconds(until);
        let soon_from = at.saturating_sub(SERVER_AUTH_SOON);
        let subject = owner.to_owned();
        Self { kind: Self::SERVER_AUTH, subject, path: None, at, soon_from }
    }

    /// An exception.
    pub(super) fn from_exception(exception: &Exception) -> Self {
        let at = unix_time::seconds(exception.until);
        let subject = format!("{} ({})", exception.reason, exception.key);
        Self {
            kind: Self::EXCEPTION,
            subject,
            path: None,
            at,
            soon_from: at.saturating_sub(EXCEPTION_NOTICE.as_secs()),
        }
    }
}
