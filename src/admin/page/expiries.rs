//! The objects on the status page that expire first.

use super::Badge;
use super::time::within;
use crate::snapshot::Report;
use crate::unix_time::rfc3339;

/// Maximum number of expiry dates on the page, earliest first.
const MAX_EXPIRIES: usize = 20;
/// Expiry dates within this time are highlighted, in seconds.
const SOON: u64 = 14 * 86_400;

/// An object and the time at which it expires.
pub(in crate::admin) struct Expiry {
    /// Seconds since the Unix epoch.
    pub(in crate::admin) seconds: u64,
    pub(in crate::admin) state: Badge,
    pub(in crate::admin) at: String,
    /// Kind of object, such as a certificate.
    pub(in crate::admin) kind: &'static str,
    /// Service or exception that the object belongs to.
    pub(in crate::admin) subject: String,
}

/// Returns the certificates, revocation lists and exceptions that expire first.
pub(in crate::admin) fn expiries(report: &Report, now: u64) -> Vec<Expiry> {
    let expiry = |seconds, kind, subject: &str| {
        let (class, text) = match seconds {
            seconds if seconds <= now => ("bad", "expired"),
            seconds if seconds - now <= SOON => ("warn", "soon"),
            _ => ("good", ""),
        };
        let at = format!("{} ({})", within(seconds, now), rfc3339(seconds));
        Expiry { seconds, state: Badge::new(class, text), at, kind, subject: subject.to_owned() }
    };
    let services = report.services.iter().flat_map(|service| {
        let own = Some(service.certificate_not_after).filter(|not_after| *not_after > 0);
        [
            (own, "certificate"),
            (service.trust_anchor_not_after, "CA of clients"),
            (service.upstream_certificate_not_after, "client certificate for the upstream"),
            (service.crl_next_update, "revocation list"),
        ]
        .into_iter()
        .filter_map(move |(seconds, kind)| {
            seconds.map(|seconds| expiry(seconds, kind, &service.name))
        })
    });
    let authorizers = report.authorizers.iter().flat_map(|authorizer| {
        [
            (authorizer.certificate_not_after, "certificate"),
            (authorizer.trust_anchor_not_after, "CA of clients"),
            (authorizer.crl_next_update, "revocation list"),
        ]
        .into_iter()
        .filter_map(move |(seconds, kind)| {
            seconds.map(|seconds| expiry(seconds, kind, &authorizer.name))
        })
    });
    let exceptions = report.exceptions.iter().map(|exception| {
        let subject = format!("{} ({})", exception.reason, exception.fingerprint);
        expiry(exception.until, "exception", &subject)
    });
    let mut expiries: Vec<Expiry> = services.chain(authorizers).chain(exceptions).collect();
    expiries.sort_by_key(|expiry| expiry.seconds);
    expiries.truncate(MAX_EXPIRIES);
    expiries
}
