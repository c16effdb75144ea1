//! The names that a CA may vouch for, and the comparison with the names of a certificate.
//!
//! A name that cannot be read is within no bounds. Names have the same forms as in rules.

use std::collections::HashSet;
use std::fmt;

use rustls::pki_types::CertificateDer;

use super::dns::HostBounds;
use super::names::{self, CertificateName};
use super::spiffe::{is_of_other_scheme, trust_domain_of_id, trust_domain_of_rule};
use super::subject::SubjectRules;
use super::{AllowKind, AllowRuleError, RulesDigest, email};
use crate::printable::printable;

/// The names that a CA may vouch for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameBounds {
    trust_domains: HashSet<Box<str>>,
    dns: HostBounds,
    email_hosts: HostBounds,
    common_names: SubjectRules,
    organizational_units: SubjectRules,
    kinds: NameKinds,
    digest: RulesDigest,
}

/// A set of kinds of names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NameKinds(u8);

impl NameKinds {
    /// These kinds and `kind`.
    #[must_use]
    pub fn with(self, kind: AllowKind) -> Self {
        Self(self.0 | 1 << kind as u8)
    }

    /// The kinds of both sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether `kind` is one of these.
    #[must_use]
    pub fn contains(self, kind: AllowKind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }
}

impl NameBounds {
    /// Adds a name that the CA may vouch for: a trust domain for [`AllowKind::Uri`], a host for
    /// [`AllowKind::Email`].
    ///
    /// # Errors
    /// Returns an error if no certificate could have such a name. No CA vouches for a key.
    pub fn add(&mut self, kind: AllowKind, name: &str) -> Result<(), AllowRuleError> {
        match kind {
            AllowKind::CommonName => self.common_names.add(name)?,
            AllowKind::Dns => self.dns.add(name)?,
            AllowKind::Email => self.email_hosts.add(name)?,
            AllowKind::OrganizationalUnit => self.organizational_units.add(name)?,
            AllowKind::Spki => return Err(AllowRuleError::Spki),
            AllowKind::Uri => {
                self.trust_domains.insert(trust_domain_of_rule(name)?);
            }
        }
        self.kinds = self.kinds.with(kind);
        self.digest.add(kind, name);
        Ok(())
    }

    /// A SHA-256 of all names, which depends on their order.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.digest.0
    }

    /// The kinds of names that the CA may vouch for.
    #[must_use]
    pub fn kinds(&self) -> NameKinds {
        self.kinds
    }

    fn have(&self, name: &CertificateName<'_>) -> bool {
        match name {
            CertificateName::CommonName(text) => self.common_names.contains(*text),
            CertificateName::Dns(name) => self.dns.contains(name),
            CertificateName::Email(address) => {
                email::with_host(address, |host| self.email_hosts.contains(host.as_bytes()))
            }
            CertificateName::OrganizationalUnit(text) => self.organizational_units.contains(*text),
            CertificateName::Uri(id) => {
                trust_domain_of_id(id, |name| self.trust_domains.contains(name)).unwrap_or(false)
            }
        }
    }
}

/// The names of a certificate that must be within the bounds of its CA.
#[derive(Debug)]
pub(crate) enum VouchedNames<'a> {
    /// These names, which may be none.
    Names(Vec<CertificateName<'a>>),
    /// SPIFFE IDs of two trust domains, for which no CA vouches.
    TwoTrustDomains,
    /// The names are not valid DER, or too many.
    Unreadable,
}

impl<'a> VouchedNames<'a> {
    /// The names of these `kinds`, and all SPIFFE IDs.
    pub(crate) fn of(certificate: &'a CertificateDer<'_>, kinds: NameKinds) -> Self {
        let (mut found, mut first_id, mut is_mixed) = (Vec::new(), None, false);
        let read = names::for_each(certificate, |name| {
            let counts = match name {
                CertificateName::CommonName(_) => kinds.contains(AllowKind::CommonName),
                CertificateName::Dns(_) => kinds.contains(AllowKind::Dns),
                CertificateName::Email(_) => kinds.contains(AllowKind::Email),
                CertificateName::OrganizationalUnit(_) => {
                    kinds.contains(AllowKind::OrganizationalUnit)
                }
                CertificateName::Uri(id) if is_of_other_scheme(id) => false,
                CertificateName::Uri(id) => {
                    // An ID that cannot be read may be of another trust domain to an upstream.
                    match first_id {
                        None => first_id = Some(id),
                        Some(first) => is_mixed = is_mixed || !is_same_trust_domain(first, id),
                    }
                    true
                }
            };
            if counts {
                found.push(name);
            }
        });
        match read {
            None => Self::Unreadable,
            Some(()) if is_mixed => Self::TwoTrustDomains,
            Some(()) => Self::Names(found),
        }
    }

    /// Whether all of the names are within `bounds`.
    pub(crate) fn are_within(&self, bounds: &NameBounds) -> bool {
        match self {
            Self::Names(names) => names.iter().all(|name| bounds.have(name)),
            Self::TwoTrustDomains | Self::Unreadable => false,
        }
    }

    /// The part of the names that is within none of `bounds`, for people.
    pub(crate) fn beyond<'b>(&self, bounds: impl Iterator<Item = &'b NameBounds>) -> String {
        let names = match self {
            Self::Names(names) => names,
            Self::TwoTrustDomains => return "SPIFFE IDs of two trust domains".to_owned(),
            Self::Unreadable => return "names that cannot be read".to_owned(),
        };
        let first = |it: &NameBounds| names.iter().find(|name| !it.have(name));
        let mut outside = bounds.filter_map(first);
        outside.next().map(ToString::to_string).unwrap_or_default()
    }
}

/// Whether two SPIFFE IDs are of one trust domain.
fn is_same_trust_domain(one: &[u8], other: &[u8]) -> bool {
    let is_same = |one: &str| trust_domain_of_id(other, |other| one == other);
    trust_domain_of_id(one, is_same).flatten().unwrap_or(false)
}

impl fmt::Display for CertificateName<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_LENGTH: usize = 100; // a line of the log has room for it and the CA
        let (kind, name) = match self {
            Self::CommonName(text) => ("common name", text.content),
            Self::Dns(name) => ("DNS name", *name),
            Self::Email(address) => ("email address", *address),
            Self::OrganizationalUnit(text) => ("organizational unit", text.content),
            Self::Uri(id) => ("URI", *id),
        };
        let name: String = String::from_utf8_lossy(name).chars().take(MAX_LENGTH).collect();
        write!(formatter, "the {kind} \"{}\"", printable(&name))
    }
}
