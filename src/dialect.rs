//! Dialects: how a client certificate and its address are written into a header field, and how a
//! certificate is read from one.
//!
//! Readers are pure functions from the bytes of one field value to certificates, leaf first. A
//! value that a reader rejects has no certificates: a client could have caused it, so it is never
//! treated like an absent field. Input is bounded by the caller (`max_question_size`); time and
//! memory are linear in it. Nothing here trusts a header: the caller must know who has set it.
//!
//! Sources: RFC 9440 (`Client-Cert`, `Client-Cert-Chain`), RFC 7239 (`Forwarded`), RFC 7468 (PEM),
//! Envoy's documentation of `x-forwarded-client-cert`.

pub mod base64_der;
pub mod client_cert;
pub mod escaped_pem;
pub mod xfcc;

use std::net::IpAddr;

use data_encoding::BASE64;
use hyper::header::HeaderValue;
use keygate_core::spki;
use keygate_core::tls::MAX_CERTIFICATES;
use rustls::pki_types::CertificateDer;
use smallvec::SmallVec;

/// One certificate or more, leaf first, at most [`MAX_CERTIFICATES`].
pub type Chain = SmallVec<[CertificateDer<'static>; 2]>;

/// Maximum number of certificates in a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainLength {
    /// The leaf, with up to nine further certificates.
    Any,
    /// The leaf alone.
    One,
}

/// Why a field value has no certificates, in words for logs and responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MalformedValue(&'static str);

#[expect(missing_docs, reason = "each has its text")]
impl MalformedValue {
    pub const BASE64: Self = Self("invalid base64");
    pub const BYTE_SEQUENCE: Self = Self("not a byte sequence of RFC 9651");
    pub const CERTIFICATE: Self = Self("not an X.509 certificate");
    pub const CERTIFICATE_AFTER_NAME: Self =
        Self("X-Forwarded-Client-Cert has a certificate after a name");
    pub const CHAIN_OF_ANOTHER: Self = Self("chain of another certificate");
    pub const NO_CERTIFICATE: Self = Self("X-Forwarded-Client-Cert without Cert and Chain");
    pub const NO_MEMBER: Self = Self("no certificate in the list");
    pub const PERCENT_ENCODING: Self = Self("invalid percent encoding");
    pub const PEM: Self = Self("not a PEM certificate");
    pub const REPEATED_KEY: Self = Self("X-Forwarded-Client-Cert has a key twice");
    pub const SECOND_ELEMENT: Self = Self("X-Forwarded-Client-Cert has more than one element");
    pub const TOO_MANY: Self = Self("more than 10 certificates");
    pub const TWO_CERTIFICATES: Self = Self("more than one certificate");
    pub const XFCC_SYNTAX: Self = Self("invalid syntax of X-Forwarded-Client-Cert");

    pub fn reason(self) -> &'static str {
        self.0
    }
}

impl ChainLength {
    /// Adds a certificate to `chain`.
    fn push(
        self,
        chain: &mut Chain,
        certificate: CertificateDer<'static>,
    ) -> Result<(), MalformedValue> {
        match self {
            Self::One if !chain.is_empty() => return Err(MalformedValue::TWO_CERTIFICATES),
            Self::Any if chain.len() >= MAX_CERTIFICATES => return Err(MalformedValue::TOO_MANY),
            Self::Any | Self::One => chain.push(certificate),
        }
        Ok(())
    }
}

/// The certificate in base64 with its padding, without line ends.
fn decode_base64(text: &[u8]) -> Result<CertificateDer<'static>, MalformedValue> {
    let der = BASE64.decode(text).map_err(|_| MalformedValue::BASE64)?;
    spki::of_certificate(&der).map_err(|_| MalformedValue::CERTIFICATE)?;
    Ok(CertificateDer::from(der))
}

/// One element of `Forwarded`. An IPv6 address is in brackets and quoted.
pub(crate) fn forwarded(peer: IpAddr, host: &HeaderValue) -> String {
    // The host is a checked authority, which has nothing to escape.
    let host = host.to_str().unwrap_or_default();
    match peer {
        IpAddr::V4(peer) => format!("for={peer};host=\"{host}\";proto=https"),
        IpAddr::V6(peer) => format!("for=\"[{peer}]\";host=\"{host}\";proto=https"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Certificates of different keys, and so of different lengths of base64 padding.
    pub(super) fn certificates<const N: usize>() -> [CertificateDer<'static>; N] {
        std::array::from_fn(|index| {
            let key = rcgen::KeyPair::generate().unwrap();
            let name = format!("{}.example", "a".repeat(index + 1));
            let parameters = rcgen::CertificateParams::new([name]).unwrap();
            parameters.self_signed(&key).unwrap().der().clone()
        })
    }

    /// One client, as the hosts sent its certificate: nginx 1.22.1, Envoy 1.40.0, Traefik 3.7.15,
    /// Caddy 2.11.7. The chain of RFC 9440 is of our own making.
    #[test]
    fn the_values_of_real_hosts_are_read() {
        macro_rules! vector {
            ($name:literal) => {
                include_bytes!(concat!("../tests/vectors/dialect/", $name)).as_slice()
            };
        }
        let [leaf, issuer] = [vector!("leaf.der"), vector!("issuer.der")].map(CertificateDer::from);
        let both = [leaf.clone(), issuer];
        for value in [vector!("nginx.escaped_pem"), vector!("envoy.escaped_pem")] {
            let read = escaped_pem::read(value, ChainLength::One).unwrap();
            assert_eq!(read.as_slice(), std::slice::from_ref(&leaf));
        }
        let traefik = base64_der::read(vector!("traefik.base64_der"), ChainLength::Any).unwrap();
        assert_eq!(traefik.as_slice(), both);
        assert_eq!(xfcc::read(vector!("envoy.xfcc")).unwrap().as_slice(), both);
        let caddy = client_cert::read(vector!("caddy.client_cert"));
        assert_eq!(caddy, Ok(Some(leaf)));
        let mut chain = Chain::new();
        client_cert::read_chain(vector!("rfc9440.client_cert_chain"), &mut chain).unwrap();
        assert_eq!(chain.as_slice(), both);
    }

    /// Every prefix of a value, as a host that cuts headers would send it.
    #[test]
    fn a_value_that_is_cut_short_is_malformed() {
        let [leaf] = certificates::<1>();
        let pem = escaped_pem::write(&leaf);
        // The last bytes of an escaped PEM are a line end, which may be missing.
        for end in 0..pem.len() - 3 {
            assert!(escaped_pem::read(&pem.as_bytes()[..end], ChainLength::One).is_err(), "{end}");
        }
        let item = client_cert::write(&leaf);
        for end in 0..item.len() {
            assert!(client_cert::read(&item.as_bytes()[..end]).is_err(), "{end}");
            let base64 = item.as_bytes().get(1..end.max(1)).unwrap();
            let is_whole = end == item.len() - 1;
            assert_eq!(base64_der::read(base64, ChainLength::One).is_ok(), is_whole, "{end}");
        }
        let element = format!("Cert=\"{pem}\"");
        for end in 0..element.len() {
            assert!(xfcc::read(&element.as_bytes()[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn forwarded_has_both_address_families_in_the_form_of_rfc_7239() {
        let host = HeaderValue::from_static("a.example:8443");
        for (peer, expected) in [
            ("192.0.2.1", "for=192.0.2.1;host=\"a.example:8443\";proto=https"),
            ("2001:db8::1", "for=\"[2001:db8::1]\";host=\"a.example:8443\";proto=https"),
        ] {
            assert_eq!(forwarded(peer.parse().unwrap(), &host), expected);
        }
    }
}
