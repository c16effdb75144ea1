//! Any bytes as a revocation list. The first byte selects whether the CA signs them. Without a
//! signature of the CA no list is used. A list that is used has the entries that rustls-webpki
//! finds, and is not dated in the future.

#![no_main]

use std::path::Path;
use std::sync::LazyLock;

use keygate::config::ExpiredCrl;
use keygate_core::tls::{CrlIssuers, CrlLoader, CrlMarks, Crls, MAX_CLOCK_SKEW, TrustAnchors};
use libfuzzer_sys::fuzz_target;
use rcgen::{CertificateParams, DnType, KeyPair, SigningKey};
use webpki::BorrowedCertRevocationList;

/// 2030-03-17, within the validity of all seeds.
const NOW: u64 = 1_900_000_000;
/// The content of the AlgorithmIdentifier of Ed25519.
const ED25519: &[u8] = &[0x30, 5, 0x06, 3, 0x2b, 0x65, 0x70];

/// A CA whose key is made for this process, so that no input has a signature of it.
static CA: LazyLock<(KeyPair, CrlIssuers)> = LazyLock::new(|| {
    let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, "Fuzz CA");
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = parameters.self_signed(&key).unwrap();
    let anchors = TrustAnchors::new(vec![certificate.der().clone()]).unwrap();
    (key, CrlIssuers::new(&anchors))
});

fn load(file: &[u8]) -> Option<Crls> {
    let marks = CrlMarks::new();
    let mut loader = CrlLoader::new(&CA.1, ExpiredCrl::Reject, &marks, NOW);
    loader.add(Path::new("fuzz.crl"), file);
    let update = loader.finish();
    (update.problems.is_empty() && !update.crls.lists().is_empty()).then_some(update.crls)
}

fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let header = match content.len() {
        0..0x80 => vec![tag, length[7]],
        0x80..0x100 => vec![tag, 0x81, length[7]],
        0x100..0x1_0000 => vec![tag, 0x82, length[6], length[7]],
        _ => vec![tag, 0x83, length[5], length[6], length[7]],
    };
    [&header, content].concat()
}

fuzz_target!(|input: (bool, &[u8])| {
    let (is_signed, input) = input;
    if !is_signed {
        assert!(load(input).is_none(), "used without a signature of the CA");
        return;
    }
    let signature = CA.0.sign(input).unwrap();
    let signature = der(0x03, &[&[0], signature.as_slice()].concat());
    let list = der(0x30, &[input, ED25519, &signature].concat());
    let Some(crls) = load(&list) else { return };
    let lists = crls.lists();
    let [(used, _)] = lists.as_slice() else { panic!("one list was given") };
    assert!(used.version.this_update <= NOW + MAX_CLOCK_SKEW);
    let Ok(reference) = BorrowedCertRevocationList::from_der(&list) else { return };
    let mut count = 0;
    for entry in &reference {
        let Ok(entry) = entry else { return };
        assert!(used.contains(entry.serial_number));
        count += 1;
    }
    assert!(used.entries() <= count);
});
