//! The role of a certificate, and its fields for logs, reports and headers.

use std::net::IpAddr;

use rustls::pki_types::CertificateDer;
use serde::Serialize;
use x509_cert::der::Decode;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::name::Name;
use x509_cert::{Certificate, TbsCertificate};

use crate::named::named;
use crate::spki::{self, Algorithm, Fingerprint};

named! {
    /// The purpose of a certificate in a service.
    pub enum CertificateRole {
        /// The service's own alternative server certificate.
        AlternativeServer = "alternative_server",
        /// A key that signs assertions.
        Assertion = "assertion_signer",
        /// An intermediate CA whose revocation lists are accepted.
        Intermediate = "intermediate",
        /// The service's own server certificate.
        Server = "server",
        /// A CA that may issue client certificates.
        TrustAnchor = "trust_anchor",
        /// The service's own client certificate, towards its upstream.
        UpstreamClient = "upstream_client",
        /// A CA that may issue the upstream's certificate.
        UpstreamTrustAnchor = "upstream_trust_anchor",
    }
}

/// The parts of a certificate that logs, reports and headers show.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CertificateSummary {
    /// Distinguished name of the subject (RFC 4514).
    pub subject: String,
    /// The first common name of the subject.
    pub common_name: Option<String>,
    /// Distinguished name of the issuer (RFC 4514).
    pub issuer: String,
    /// Serial number in lower-case hex.
    pub serial: String,
    /// SHA-256 of the public key; empty if the certificate cannot be read.
    pub fingerprint: String,
    /// Algorithm of the public key, such as `rsa-2048`; empty if the certificate cannot be read.
    pub key_algorithm: String,
    /// Subject alternative names that are DNS names.
    pub dns_names: Vec<String>,
    /// Subject alternative names that are URIs.
    pub uris: Vec<String>,
    /// Subject alternative names that are email addresses.
    pub emails: Vec<String>,
    /// Subject alternative names that are IP addresses.
    pub ip_addresses: Vec<String>,
}

/// Maximum length of a name, in characters; the rest is cut, because the issuer chooses it.
const MAX_NAME_LENGTH: usize = 256;

impl CertificateSummary {
    /// Decodes a certificate. Fields that cannot be decoded are empty.
    #[must_use]
    pub fn new(certificate: &CertificateDer<'_>) -> Self {
        let key = spki::of_certificate(certificate)
            .map(|spki| (Fingerprint::of(spki).to_string(), Algorithm::of(spki).to_string()));
        let (fingerprint, key_algorithm) = key.unwrap_or_default();
        let Ok(certificate) = Certificate::from_der(certificate) else {
            return Self { fingerprint, key_algorithm, ..Self::default() };
        };
        let certificate = certificate.tbs_certificate();
        let [dns_names, uris, emails, ip_addresses] = alternative_names(certificate);
        Self {
            dns_names,
            uris,
            emails,
            ip_addresses,
            subject: bounded(certificate.subject().to_string()),
            common_name: common_name(certificate.subject()).map(bounded),
            issuer: bounded(certificate.issuer().to_string()),
            serial: data_encoding::HEXLOWER.encode(certificate.serial_number().as_bytes()),
            fingerprint,
            key_algorithm,
        }
    }

    /// The subject; if it is empty, the first URI, DNS name, email address or IP address, else the
    /// fingerprint. A SPIFFE X.509-SVID may have an empty subject (X509-SVID, section 4.1).
    #[must_use]
    pub fn name(&self) -> &str {
        let alternatives = self.alternative_names().map(String::as_str);
        let mut names = std::iter::once(self.subject.as_str()).chain(alternatives);
        names.find(|name| !name.is_empty()).unwrap_or(&self.fingerprint)
    }

    /// The subject alternative names in one line.
    pub fn names(&self) -> String {
        self.alternative_names().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// The subject alternative names: URIs, DNS names, email addresses, IP addresses.
    pub fn alternative_names(&self) -> impl Iterator<Item = &String> {
        [&self.uris, &self.dns_names, &self.emails, &self.ip_addresses].into_iter().flatten()
    }
}

/// Maximum number of names of each kind; further ones are left out.
const MAX_NAMES: usize = 16;

/// The DNS names, the URIs, the email addresses and the IP addresses among the subject alternative
/// names.
fn alternative_names(certificate: &TbsCertificate) -> [Vec<String>; 4] {
    let (mut dns_names, mut uris, mut emails) = (Vec::new(), Vec::new(), Vec::new());
    let mut ip_addresses = Vec::new();
    let names: Option<(bool, SubjectAltName)> = certificate.get_extension().ok().flatten();
    for name in names.map(|(_, names)| names.0).unwrap_or_default() {
        match name {
            GeneralName::Rfc822Name(email) => emails.push(bounded(email.to_string())),
            GeneralName::DnsName(name) => dns_names.push(bounded(name.to_string())),
            GeneralName::UniformResourceIdentifier(uri) => uris.push(bounded(uri.to_string())),
            GeneralName::IpAddress(octets) => {
                ip_addresses.extend(ip_address(octets.as_bytes()).map(|it| it.to_string()));
            }
            GeneralName::DirectoryName(_)
            | GeneralName::EdiPartyName(_)
            | GeneralName::OtherName(_)
            | GeneralName::RegisteredId(_) => {}
        }
    }
    [dns_names, uris, emails, ip_addresses].map(|mut names| {
        names.truncate(MAX_NAMES);
        names
    })
}

/// The IP address with these octets (RFC 5280, section 4.2.1.6); `None` for another number of them.
fn ip_address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from)).ok()
}

/// The first common name (RFC 5280, appendix A.1: `id-at-commonName`).
fn common_name(name: &Name) -> Option<String> {
    const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
    let attribute = name.iter().find(|attribute| attribute.oid == COMMON_NAME)?;
    std::str::from_utf8(attribute.value.value()).ok().map(str::to_owned)
}

/// A name for people, cut after 256 characters.
pub(super) fn bounded(name: String) -> String {
    match name.char_indices().nth(MAX_NAME_LENGTH) {
        None => name,
        Some(_) => name.chars().take(MAX_NAME_LENGTH).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(common_name: &str) -> CertificateDer<'static> {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::default();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, common_name);
        parameters.serial_number = Some(rcgen::SerialNumber::from(0x2a_u64));
        parameters.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn a_summary_names_the_certificate_and_its_key() {
        let summary = CertificateSummary::new(&certificate("client \"one\"\n"));
        assert!(summary.subject.contains("client"), "{summary:?}");
        assert_eq!(summary.serial, "2a");
        assert_eq!(summary.fingerprint.len(), 64);
    }

    #[test]
    fn the_name_is_the_first_one_that_is_not_empty() {
        let text = str::to_owned;
        let mut summary = CertificateSummary {
            subject: text("CN=client"),
            uris: vec![String::new(), text("spiffe://example.org/client")],
            dns_names: vec![text("client.example.org")],
            emails: vec![text("client@example.org")],
            ip_addresses: vec![text("192.0.2.1")],
            fingerprint: text("ab"),
            ..CertificateSummary::default()
        };
        let mut names = vec![summary.name().to_owned()];
        summary.subject.clear();
        names.push(summary.name().to_owned());
        for clear in [
            |summary: &mut CertificateSummary| summary.uris.clear(),
            |summary: &mut CertificateSummary| summary.dns_names.clear(),
            |summary: &mut CertificateSummary| summary.emails.clear(),
            |summary: &mut CertificateSummary| summary.ip_addresses.clear(),
        ] {
            clear(&mut summary);
            names.push(summary.name().to_owned());
        }
        let expected = [
            "CN=client",
            "spiffe://example.org/client",
            "client.example.org",
            "client@example.org",
            "192.0.2.1",
            "ab",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_long_name_is_cut() {
        let summary = CertificateSummary::new(&certificate(&"é".repeat(10_000)));
        assert_eq!(summary.subject.chars().count(), MAX_NAME_LENGTH + 1);
    }
}
