//! Rules by name: which clients a service admits, of those that its CAs have certified.
//!
//! A client is admitted if its certificate has one name, or its key one pin, that a rule names.
//! The rules are compiled once. A check reads the certificate without an allocation, and its time
//! does not depend on the number of rules. Comparison: RFC 9525 (DNS), the SPIFFE ID specification
//! (URI), RFC 5280 (email and subject).

mod bounds;
mod dns;
mod email;
mod names;
mod spiffe;
mod subject;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use rustls::pki_types::CertificateDer;

pub(crate) use self::bounds::VouchedNames;
pub use self::bounds::{NameBounds, NameKinds};
use self::dns::DnsRules;
use self::email::EmailRules;
use self::names::CertificateName;
use self::spiffe::SpiffeRules;
use self::subject::SubjectRules;
use crate::named::named;
use crate::spki::{self, Fingerprint};

/// The names and keys of the clients that a service admits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowRules {
    dns: DnsRules,
    uris: SpiffeRules,
    emails: EmailRules,
    common_names: SubjectRules,
    organizational_units: SubjectRules,
    pins: HashSet<Fingerprint>,
    kinds: NameKinds,
    count: usize,
    /// The first rules, for people.
    first: Vec<String>,
    /// The names that a CA of these clients may vouch for, by key of `client_auth.cas`.
    bounds: BTreeMap<&'static str, BTreeSet<String>>,
    digest: RulesDigest,
}

/// A digest of rules or names in the order in which they were added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct RulesDigest([u8; 32]);

impl RulesDigest {
    /// Adds a rule, which is not empty and has no control character.
    fn add(&mut self, kind: AllowKind, rule: &str) {
        let kind = kind.as_str().as_bytes();
        *self = Self(spki::sha256(&[&self.0, kind, b"\0", rule.as_bytes()].concat()));
    }
}

/// Number of rules whose text is kept, and maximum number of names of a key to paste.
const MAX_FIRST: usize = 20;

named! {
    /// The kind of a rule.
    pub enum AllowKind {
        /// A common name of the subject.
        CommonName = "common_names",
        /// A DNS name among the subject alternative names.
        Dns = "dns",
        /// An email address among the subject alternative names.
        Email = "email",
        /// An organizational unit of the subject.
        OrganizationalUnit = "organizational_units",
        /// The fingerprint of the client's key.
        Spki = "spki",
        /// A SPIFFE ID among the subject alternative names.
        Uri = "uri",
    }
}

impl AllowKind {
    /// The key in `client_auth.cas` for a CA that may vouch for `name`, and its value there. A key
    /// has none.
    fn bound(self, name: &str) -> Option<(&'static str, &str)> {
        match self {
            Self::CommonName | Self::Dns | Self::OrganizationalUnit => Some((self.as_str(), name)),
            Self::Email => Some((self.as_str(), name.rsplit('@').next()?)),
            Self::Spki => None,
            Self::Uri => Some(("spiffe", name.split('/').nth(2)?)),
        }
    }
}

/// The reason for which a text is no rule, with what to write instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AllowRuleError {
    /// Not a host name in ASCII.
    #[error(
        "is not a DNS name; write \"client.example.com\", or \"*.example.com\" for one label in front, with A-labels (xn--...)"
    )]
    Dns,
    /// Not an address of one mailbox.
    #[error(
        "is not an email address in ASCII with a host name; write \"name@example.com\", without wildcards"
    )]
    Email,
    /// Not the fingerprint of a key.
    #[error("is not the SHA-256 of a public key; write 64 hex digits as `keygate key` prints them")]
    Spki,
    /// Empty, too long or with a control character.
    #[error("is empty, longer than 1024 bytes or has a control character; write it as printed")]
    Subject,
    /// Not the name of a trust domain.
    #[error(
        "is not a SPIFFE trust domain; write its name, such as \"example.org\", without \"spiffe://\" and path"
    )]
    TrustDomain,
    /// Not a SPIFFE ID.
    #[error(
        "is not a SPIFFE ID; write \"spiffe://example.org/orders\" with letters, digits, '.', '-' and '_' in each segment, '*' for one segment, '**' for all at the end"
    )]
    Uri,
}

impl AllowRules {
    /// Adds a rule.
    ///
    /// # Errors
    /// Returns an error if no certificate could match the rule.
    pub fn add(&mut self, kind: AllowKind, rule: &str) -> Result<(), AllowRuleError> {
        self.add_to_kind(kind, rule)?;
        self.digest.add(kind, rule);
        self.kinds = self.kinds.with(kind);
        self.count += 1;
        if self.first.len() < MAX_FIRST {
            self.first.push(format!("{} {rule:?}", kind.as_str()));
        }
        if let Some((key, name)) = kind.bound(rule) {
            let names = self.bounds.entry(key).or_default();
            if names.len() <= MAX_FIRST {
                names.insert(name.to_owned());
            }
        }
        Ok(())
    }

    /// The number of rules, and the first of them with their kinds.
    #[must_use]
    pub fn summary(&self) -> (usize, &[String]) {
        (self.count, &self.first)
    }

    /// The keys of `client_auth.cas` for a CA that may vouch for all clients of the rules, in TOML.
    /// `None` if a key has more than `MAX_FIRST` names: a part of them would reject clients.
    #[must_use]
    pub fn as_bounds(&self) -> Option<String> {
        let keys = self.bounds.iter().map(|(key, names)| {
            (names.len() <= MAX_FIRST).then(|| format!("{key} = {:?}", Vec::from_iter(names)))
        });
        Some(keys.collect::<Option<Vec<_>>>()?.join(", "))
    }

    /// A SHA-256 of all rules, which depends on their order.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.digest.0
    }

    /// The kinds of the rules.
    #[must_use]
    pub fn kinds(&self) -> NameKinds {
        self.kinds
    }

    fn add_to_kind(&mut self, kind: AllowKind, rule: &str) -> Result<(), AllowRuleError> {
        match kind {
            AllowKind::CommonName => self.common_names.add(rule),
            AllowKind::Dns => self.dns.add(rule),
            AllowKind::Email => self.emails.add(rule),
            AllowKind::OrganizationalUnit => self.organizational_units.add(rule),
            AllowKind::Spki => {
                self.pins.insert(Fingerprint::parse(rule).ok_or(AllowRuleError::Spki)?);
                Ok(())
            }
            AllowKind::Uri => self.uris.add(rule),
        }
    }

    /// Whether a rule names the client with this certificate; `false` without a certificate.
    ///
    /// A certificate whose names cannot be read, or that has more than 1024 of them, is admitted by
    /// a pin only. One with several common names or several URIs has none that counts: programs
    /// disagree about the common name in use, and an X.509-SVID has exactly one URI.
    #[must_use]
    pub fn admit(&self, certificate: Option<&CertificateDer<'_>>) -> bool {
        certificate.is_some_and(|certificate| {
            self.admit_key(certificate) || self.admit_names(certificate).unwrap_or(false)
        })
    }

    fn admit_key(&self, certificate: &CertificateDer<'_>) -> bool {
        !self.pins.is_empty()
            && spki::of_certificate(certificate)
                .is_ok_and(|spki| self.pins.contains(&Fingerprint::of(spki)))
    }

    /// `None` if the names cannot be read.
    fn admit_names(&self, certificate: &CertificateDer<'_>) -> Option<bool> {
        let mut is_admitted = false;
        let (mut uri, mut common_name) = (OnlyName::default(), OnlyName::default());
        names::for_each(certificate, |name| match name {
            CertificateName::CommonName(text) => {
                common_name.add(|| self.common_names.contains(text));
            }
            CertificateName::Dns(name) => is_admitted = is_admitted || self.dns.contains(name),
            CertificateName::Email(address) => {
                is_admitted = is_admitted || self.emails.contains(address);
            }
            CertificateName::OrganizationalUnit(text) => {
                is_admitted = is_admitted || self.organizational_units.contains(text);
            }
            CertificateName::Uri(id) => uri.add(|| self.uris.contains(id)),
        })?;
        Some(is_admitted || uri.is_admitted() || common_name.is_admitted())
    }
}

/// A kind of name that counts only if a certificate has one of it.
#[derive(Debug, Default)]
struct OnlyName {
    count: usize,
    is_named: bool,
}

impl OnlyName {
    fn add(&mut self, is_named: impl FnOnce() -> bool) {
        if self.count == 0 {
            self.is_named = is_named();
        }
        self.count = self.count.saturating_add(1);
    }

    fn is_admitted(&self) -> bool {
        self.count == 1 && self.is_named
    }
}

#[cfg(test)]
mod tests;
