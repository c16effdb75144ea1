//! Any certificates from a client, against one CA: an error, or a path of bounded length over
//! certificates that the client presented.

#![no_main]

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use keygate_core::tls::{ClientVerifier, MAX_CERTIFICATES, TrustAnchors};
use libfuzzer_sys::fuzz_target;
use rustls_pki_types::{CertificateDer, UnixTime};

/// 2030-03-17, within the validity of all seeds.
const NOW: Duration = Duration::from_secs(1_900_000_000);
/// Leaf and six intermediates.
const MAX_PATH: usize = 7;

static VERIFIER: LazyLock<ClientVerifier> = LazyLock::new(|| {
    let ca = CertificateDer::from(include_bytes!("../seeds/client_ca.der").as_slice());
    ClientVerifier::new(Arc::new(TrustAnchors::new(vec![ca]).unwrap()))
});

/// The certificates in `input`, each after its length in two bytes.
fn certificates(mut input: &[u8]) -> Vec<CertificateDer<'_>> {
    let mut certificates = Vec::new();
    while let Some((length, rest)) = input.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(*length)).min(rest.len());
        let (certificate, rest) = rest.split_at(length);
        certificates.push(CertificateDer::from(certificate));
        input = rest;
    }
    certificates
}

fuzz_target!(|input: &[u8]| {
    let certificates = certificates(input);
    let Some((leaf, intermediates)) = certificates.split_first() else { return };
    let verified = VERIFIER.verify(leaf, intermediates, UnixTime::since_unix_epoch(NOW));
    let Ok(path) = verified else { return };
    assert!(certificates.len() <= MAX_CERTIFICATES);
    assert!(path.not_after() >= NOW);
    assert!(path.anchor().is_some());
    let on_path: Vec<_> = path.without_anchor(&certificates).collect();
    assert_eq!(on_path.first(), Some(&leaf));
    assert!(on_path.len() <= MAX_PATH);
});
