//! The rules of RFC 5280 for the certificates of a path that rustls-webpki does not check.
//!
//! OpenSSL's purpose `sslclient`, which nginx, HAProxy and Envoy use, has the same rules. Reading a
//! certificate allocates nothing.

use rustls::pki_types::CertificateDer;
use x509_cert::der::Decode;
use x509_cert::name::Name;

use crate::spki::{BOOLEAN, CertificateFields, Element, INTEGER, OID, SEQUENCE};

/// A certificate that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{subject} {rule}")]
pub struct PathProblem {
    /// Distinguished name of the subject.
    subject: Box<str>,
    rule: PathRule,
}

/// A rule that a certificate breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum PathRule {
    #[error("has a critical extension that is not supported")]
    CriticalExtension,
    #[error("is not valid DER")]
    Encoding,
    #[error("must not issue certificates: its key usage has no keyCertSign")]
    KeyCertSign,
    #[error("must not be a TLS client: its key usage has no digitalSignature or keyAgreement")]
    KeyUsage,
    #[error("has a serial number of more than 20 octets, or of none (RFC 5280, 4.1.2.2)")]
    LongSerial,
    #[error(
        "has name constraints for URIs, email addresses, directory names or other names, which are not supported: no certificate with such a name is accepted below it"
    )]
    NameConstraints,
    #[error("allows fewer CAs below it (path length constraint)")]
    PathLength,
    #[error("must not certify or be a TLS client: its extended key usage has no clientAuth")]
    Purpose,
    #[error(
        "must not certify or be a TLS client: its extended key usage has serverAuth only; client_auth.accept_server_auth_until accepts it for a time"
    )]
    ServerPurpose,
    #[error("is not of X.509 version 3")]
    Version,
}

impl PathProblem {
    pub(super) fn new(rule: PathRule, certificate: &[u8]) -> Self {
        Self { subject: subject_of(certificate), rule }
    }

    /// Whether the certificate would be accepted if certificates for servers were.
    pub(super) fn is_server_purpose(&self) -> bool {
        self.rule == PathRule::ServerPurpose
    }
}

/// The distinguished name of the subject of a certificate, for people.
pub(super) fn subject_of(certificate: &[u8]) -> Box<str> {
    const MAX_LENGTH: usize = 256;
    let name = CertificateFields::new(certificate).ok();
    let name: Option<Name> = name.and_then(|fields| Name::from_der(fields.subject).ok());
    let name = name.map(|name| name.to_string()).filter(|name| !name.is_empty());
    let subject = name.unwrap_or_else(|| "a certificate without subject".to_owned());
    subject.chars().take(MAX_LENGTH).collect()
}

/// The bits of a key usage (RFC 5280, 4.2.1.3), as in its first octet.
const DIGITAL_SIGNATURE: u8 = 0x80;
const KEY_AGREEMENT: u8 = 0x08;
const KEY_CERT_SIGN: u8 = 0x04;
const CRL_SIGN: u8 = 0x02;

/// The content octets of `id-kp-serverAuth` and `id-kp-clientAuth`.
const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];

/// Last octets of the identifiers of extensions below `id-ce`, 2.5.29.
const KEY_USAGE: u8 = 15;
const SUBJECT_ALT_NAME: u8 = 17;
const BASIC_CONSTRAINTS: u8 = 19;
const NAME_CONSTRAINTS: u8 = 30;
const EXTENDED_KEY_USAGE: u8 = 37;
/// `cRLDistributionPoints`, and the extensions of certificate policies, which have no effect.
const OTHERS: [u8; 5] = [31, 32, 33, 36, 54];

/// The tags of a GeneralName whose constraints rustls-webpki checks: DNS name and IP address.
const SUPPORTED_NAMES: u16 = 1 << 2 | 1 << 7;
const DIRECTORY_NAME: u16 = 1 << 4;

/// The parts of a certificate that the rules are about.
#[derive(Debug, Default)]
pub(super) struct PathRules {
    is_long_serial: bool,
    key_usage: Option<u8>,
    pub(super) is_ca: bool,
    pub(super) path_length: Option<usize>,
    /// Whether the extended key usage, if there is one, has clientAuth.
    allows_clients: bool,
    /// Whether serverAuth is the only purpose of the extended key usage.
    pub(super) is_for_servers: bool,
    has_unknown_critical: bool,
    /// The tags of the names, as bits, that the CA constrains and rustls-webpki does not check.
    unsupported_constraints: u16,
    /// The tags of the subject and of its alternative names, as bits.
    names: u16,
}

impl PathRules {
    /// Reads a certificate; `None` if it is not valid DER.
    pub(super) fn new(certificate: &[u8]) -> Option<Self> {
        let fields = CertificateFields::new(certificate).ok()?;
        let is_long_serial = match fields.serial {
            [] => true,
            [first, rest @ ..] => {
                rest.len() > 20 || (rest.len() == 20 && !matches!(first, 0 | 0xff))
            }
        };
        let mut rules =
            Self { is_long_serial, allows_clients: true, names: DIRECTORY_NAME, ..Self::default() };
        fields.for_each_extension(|extension| {
            let id = match extension.oid {
                [0x55, 29, id] => *id,
                _ => 0,
            };
            match id {
                KEY_USAGE => rules.key_usage = Some(first_octet_of_bits(extension.value)),
                // Names that are not DER match no rule by name, and reject nobody.
                SUBJECT_ALT_NAME => rules.names |= name_tags(extension.value).unwrap_or(0),
                BASIC_CONSTRAINTS => {
                    let mut fields = content(extension.value)?;
                    if fields.first() == Some(&BOOLEAN) {
                        rules.is_ca = Element::next(&mut fields, BOOLEAN)?.content != [0];
                    }
                    if !fields.is_empty() {
                        let length = Element::next(&mut fields, INTEGER)?.content;
                        // No path has 128 CAs.
                        rules.path_length = Some(match length {
                            [length] if *length < 0x80 => usize::from(*length),
                            _ => usize::MAX,
                        });
                    }
                }
                NAME_CONSTRAINTS => {
                    rules.unsupported_constraints = constrained_tags(extension.value)?;
                }
                EXTENDED_KEY_USAGE => {
                    let mut purposes = content(extension.value)?;
                    rules.allows_clients = false;
                    rules.is_for_servers = !purposes.is_empty();
                    while !purposes.is_empty() {
                        let purpose = Element::next(&mut purposes, OID)?.content;
                        rules.allows_clients |= purpose == CLIENT_AUTH;
                        rules.is_for_servers &= purpose == SERVER_AUTH;
                    }
                }
                id if OTHERS.contains(&id) => {}
                _ => rules.has_unknown_critical |= extension.is_critical,
            }
            Some(())
        })?;
        Some(rules)
    }

    /// The rule that the certificate of a client breaks, of those that rustls-webpki does not check.
    pub(super) fn client_problem(&self) -> Option<PathRule> {
        let usage = DIGITAL_SIGNATURE | KEY_AGREEMENT;
        if self.is_long_serial {
            return Some(PathRule::LongSerial);
        }
        self.key_usage.is_some_and(|it| it & usage == 0).then_some(PathRule::KeyUsage)
    }

    /// The rule that the certificate of an intermediate CA breaks, of those that rustls-webpki does
    /// not check.
    pub(super) fn issuer_problem(&self) -> Option<PathRule> {
        if self.is_long_serial {
            return Some(PathRule::LongSerial);
        }
        (!self.may_issue()).then_some(PathRule::KeyCertSign)
    }

    fn may_issue(&self) -> bool {
        self.key_usage.is_none_or(|it| it & KEY_CERT_SIGN != 0)
    }

    /// The rule that a certificate breaks that no other one certifies: a root, or a pinned client.
    /// rustls-webpki checks neither.
    pub(super) fn anchor_problem(&self) -> Option<PathRule> {
        if self.has_unknown_critical {
            return Some(PathRule::CriticalExtension);
        }
        let problem = match self.is_ca {
            // The serial number of a root is never looked up.
            true => (!self.may_issue()).then_some(PathRule::KeyCertSign),
            false => self.client_problem(),
        };
        // The purpose comes last, because it is the only rule with an exception.
        problem.or(match (self.allows_clients, self.is_for_servers) {
            (true, _) => None,
            (false, true) => Some(PathRule::ServerPurpose),
            (false, false) => Some(PathRule::Purpose),
        })
    }

    /// Whether the CA may sign revocation lists (RFC 5280, 6.3.3 (f)).
    pub(super) fn may_sign_lists(&self) -> bool {
        self.key_usage.is_none_or(|it| it & CRL_SIGN != 0)
    }

    /// Whether this CA constrains a kind of names that `client` has and rustls-webpki does not
    /// check.
    pub(super) fn has_unsupported_constraint_for(&self, client: &Self) -> bool {
        self.unsupported_constraints & client.names != 0
    }
}

/// Whether the extended key usage of a certificate has serverAuth only.
#[must_use]
pub fn is_for_servers(certificate: &CertificateDer<'_>) -> bool {
    PathRules::new(certificate).is_some_and(|rules| rules.is_for_servers)
}

/// The content of a SEQUENCE.
fn content(der: &[u8]) -> Option<&[u8]> {
    Some(Element::only(der).filter(|it| it.tag == SEQUENCE)?.content)
}

/// The first octet of a BIT STRING; 0 if there is none.
fn first_octet_of_bits(der: &[u8]) -> u8 {
    const BIT_STRING: u8 = 0x03;
    let bits = Element::only(der).filter(|it| it.tag == BIT_STRING);
    bits.and_then(|bits| bits.content.get(1).copied()).unwrap_or(0)
}

/// The tags of GeneralNames, as bits.
fn name_tags(names: &[u8]) -> Option<u16> {
    let (mut names, mut tags) = (content(names)?, 0);
    while !names.is_empty() {
        tags |= 1 << (Element::take(&mut names)?.tag & 0x0f);
    }
    Some(tags)
}

/// The tags of the names that the value of `nameConstraints` constrains, as bits, without those
/// that rustls-webpki checks.
fn constrained_tags(value: &[u8]) -> Option<u16> {
    let (mut lists, mut tags) = (content(value)?, 0);
    while !lists.is_empty() {
        let mut subtrees = Element::take(&mut lists)?.content;
        while !subtrees.is_empty() {
            let mut subtree = Element::next(&mut subtrees, SEQUENCE)?.content;
            tags |= 1 << (Element::take(&mut subtree)?.tag & 0x0f);
        }
    }
    Some(tags & !SUPPORTED_NAMES)
}
