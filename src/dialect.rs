//! Dialects: how a client certificate and its address are written into a header field.
//!
//! Sources: RFC 9440 (`Client-Cert`, `Client-Cert-Chain`), RFC 7239 (`Forwarded`), Envoy's
//! documentation of `x-forwarded-client-cert`.

use std::fmt::Write;
use std::net::IpAddr;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::header::HeaderValue;
use rustls::pki_types::CertificateDer;

use crate::tls::CertificateSummary;

/// A certificate as a byte sequence (RFC 9651, section 3.3.5).
pub(crate) fn byte_sequence(certificate: &CertificateDer<'_>) -> String {
    format!(":{}:", BASE64_STANDARD.encode(certificate))
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

/// One element of `X-Forwarded-Client-Cert`: the certificate, its digest and its names.
pub(crate) fn xfcc(leaf: &CertificateDer<'_>) -> String {
    let summary = CertificateSummary::of(leaf);
    let hash = data_encoding::HEXLOWER.encode(digest(&SHA256, leaf).as_ref());
    let subject = summary.subject.replace('\\', "\\\\").replace('"', "\\\"");
    let mut element = format!("Hash={hash};Cert=\"{}\";Subject=\"{subject}\"", encoded_pem(leaf));
    let names = summary.uris.iter().map(|uri| ("URI", uri));
    for (key, name) in names.chain(summary.dns_names.iter().map(|name| ("DNS", name))) {
        // A name with a separator would read as several.
        if name.bytes().all(|byte| byte.is_ascii_graphic() && !b"\",;=".contains(&byte)) {
            let _ = write!(element, ";{key}={name}"); // a String never fails
        }
    }
    element
}

/// PEM in percent encoding, except letters, digits and `-._~`.
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
            let _ = write!(encoded, "%{byte:02X}"); // a String never fails
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

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
