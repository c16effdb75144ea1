//! Compromised keys of the services themselves and of the CAs that they trust.

use std::fmt;

use keygate_core::guard::{Listing, Verdict};
use keygate_core::tls::{CertificateRole, CertificateSummary};

use crate::config::CredentialOwner;

/// A key of a service, or of a CA that the service trusts, that is weak, in a filter or on a list.
#[derive(Debug, Clone)]
pub struct OwnKey {
    /// The service or authorizer.
    pub owner: CredentialOwner,
    /// Configuration key that names the file with the certificate.
    pub key: &'static str,
    /// Role of the key in the service.
    pub role: CertificateRole,
    /// The certificate that contains the key.
    pub certificate: CertificateSummary,
    /// The verdict on the key.
    pub verdict: Verdict,
}

impl fmt::Display for OwnKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { owner, key: _, role, certificate, verdict } = self;
        let (name, fingerprint) = (certificate.name(), &certificate.fingerprint);
        let role = role.as_str().replace('_', " ");
        write!(formatter, "{owner}: the key of its {role} ({name}, {fingerprint}) ")?;
        match (verdict.hit(), verdict.listing()) {
            (Some(hit), _) => {
                write!(formatter, "is in filter {:?}, revision {}", hit.filter, hit.revision)
            }
            (None, Some(Listing { list, finding: Some(finding), .. })) => {
                write!(formatter, "is on list {list:?} ({finding})")
            }
            (None, Some(listing)) => write!(formatter, "is on list {:?}", listing.list),
            (None, None) => match verdict.weakness() {
                Some(weakness) => {
                    write!(formatter, "is weak: it fails the check {}", weakness.check)
                }
                None => write!(formatter, "is {}", verdict.as_str()),
            },
        }
    }
}
