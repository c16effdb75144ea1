//! What the upstream is told of a client besides the verdict.
//!
//! Sources: RFC 9440 (`Client-Cert`, `Client-Cert-Chain`), RFC 7239 (`Forwarded`), Envoy's
//! documentation of `x-forwarded-client-cert`.

use std::fmt::Write;
use std::net::IpAddr;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::HeaderMap;
use hyper::header::{self, HeaderName, HeaderValue};
use rustls::pki_types::CertificateDer;

use super::value;
use crate::config::{Forwarded, ServiceConfig};
use crate::tls::{CertificateSummary, ClientIdentity};

const CLIENT_CERT: HeaderName = HeaderName::from_static("client-cert");
const CLIENT_CERT_CHAIN: HeaderName = HeaderName::from_static("client-cert-chain");
const XFCC: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The same for every request of a connection, and therefore made once.
#[derive(Debug)]
pub(in crate::proxy) struct Annotations {
    fixed: Vec<(HeaderName, HeaderValue)>,
    forwarded: Forwarded,
    peer: IpAddr,
}

impl Annotations {
    pub(in crate::proxy) fn new(service: &ServiceConfig, identity: &ClientIdentity) -> Self {
        let forward = &service.forward;
        let leaf = identity.leaf();
        // An IPv4 address that came in over an IPv6 socket is still one.
        let peer = identity.peer().ip().to_canonical();
        let x_forwarded = matches!(forward.forwarded, Forwarded::Both | Forwarded::XForwarded);
        let chain = identity.chain().get(1..).filter(|chain| !chain.is_empty());
        let fixed = [
            (CLIENT_CERT, leaf.filter(|_| forward.client_cert).map(byte_sequence)),
            (
                CLIENT_CERT_CHAIN,
                chain
                    .filter(|_| forward.client_cert_chain)
                    .map(|chain| chain.iter().map(byte_sequence).collect::<Vec<_>>().join(", ")),
            ),
            (XFCC, leaf.filter(|_| forward.xfcc).map(xfcc)),
            (X_FORWARDED_FOR, x_forwarded.then(|| peer.to_string())),
            (X_FORWARDED_PROTO, x_forwarded.then(|| "https".to_owned())),
        ];
        let fixed = fixed.into_iter().filter_map(|(name, text)| Some((name, value(&text?)?)));
        Self { fixed: fixed.collect(), forwarded: forward.forwarded, peer }
    }

    /// Sets keygate's own headers. The client's copies are gone by now.
    pub(in crate::proxy) fn set(&self, headers: &mut HeaderMap, host: &HeaderValue) {
        for (name, value) in &self.fixed {
            headers.insert(name, value.clone());
        }
        if matches!(self.forwarded, Forwarded::Both | Forwarded::XForwarded) {
            headers.insert(X_FORWARDED_HOST, host.clone());
        }
        if matches!(self.forwarded, Forwarded::Both | Forwarded::Rfc7239)
            && let Some(forwarded) = value(&forwarded(self.peer, host))
        {
            headers.insert(header::FORWARDED, forwarded);
        }
    }
}

/// A certificate as a byte sequence (RFC 9651, section 3.3.5).
fn byte_sequence(certificate: &CertificateDer<'_>) -> String {
    format!(":{}:", BASE64_STANDARD.encode(certificate))
}

/// The element of `Forwarded` for one hop. An IPv6 address is quoted, in brackets.
fn forwarded(peer: IpAddr, host: &HeaderValue) -> String {
    // A host was checked before: it has nothing that needs escaping.
    let host = host.to_str().unwrap_or_default();
    match peer {
        IpAddr::V4(peer) => format!("for={peer};host=\"{host}\";proto=https"),
        IpAddr::V6(peer) => format!("for=\"[{peer}]\";host=\"{host}\";proto=https"),
    }
}

/// The element of Envoy's header for one hop: the certificate, its digest and its names.
fn xfcc(leaf: &CertificateDer<'_>) -> String {
    let summary = CertificateSummary::of(leaf);
    let hash = data_encoding::HEXLOWER.encode(digest(&SHA256, leaf).as_ref());
    let subject = summary.subject.replace('\\', "\\\\").replace('"', "\\\"");
    let mut element = format!("Hash={hash};Cert=\"{}\";Subject=\"{subject}\"", encoded_pem(leaf));
    let names = summary.uris.iter().map(|uri| ("URI", uri));
    for (key, name) in names.chain(summary.dns_names.iter().map(|name| ("DNS", name))) {
        // A name with a separator in it would be taken for several.
        if name.bytes().all(|byte| byte.is_ascii_graphic() && !b"\",;=".contains(&byte)) {
            let _ = write!(element, ";{key}={name}"); // a String takes everything
        }
    }
    element
}

/// PEM with everything but letters, digits and `-._~` in percent encoding.
fn encoded_pem(certificate: &CertificateDer<'_>) -> String {
    let base64 = BASE64_STANDARD.encode(certificate);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for (index, character) in base64.chars().enumerate() {
        if index > 0 && index % 64 == 0 {
            pem.push('\n');
        }
        pem.push(character);
    }
    pem.push_str("\n-----END CERTIFICATE-----\n");
    let mut encoded = String::with_capacity(pem.len() * 2);
    for byte in pem.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}"); // a String takes everything
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_either_family_is_written_as_rfc_7239_has_it() {
        let host = HeaderValue::from_static("a.example:8443");
        for (peer, expected) in [
            ("192.0.2.1", "for=192.0.2.1;host=\"a.example:8443\";proto=https"),
            ("2001:db8::1", "for=\"[2001:db8::1]\";host=\"a.example:8443\";proto=https"),
        ] {
            assert_eq!(forwarded(peer.parse().unwrap(), &host), expected);
        }
    }
}
