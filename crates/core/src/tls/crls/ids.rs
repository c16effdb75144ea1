//! SHA-256 of CAs, revocation lists and their files.

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;

/// SHA-256 of the name of a CA in DER and of its SubjectPublicKeyInfo, in hex.
pub(super) fn ca_id(name: &[u8], spki: &[u8]) -> String {
    sha256_hex(&[name, spki])
}

/// SHA-256, in hex, of the name in DER of an issuer that is no CA of the service.
pub(super) fn unused_issuer_id(name: &[u8]) -> String {
    sha256_hex(&[b"unused", name])
}

/// SHA-256 of these parts, in hex.
pub(super) fn sha256_hex(parts: &[&[u8]]) -> String {
    HEXLOWER.encode(&sha256(&parts.concat()))
}

/// SHA-256 of a file or of a list in DER.
pub(super) fn sha256(der: &[u8]) -> [u8; 32] {
    let mut sha256 = [0; 32];
    sha256.copy_from_slice(digest(&SHA256, der).as_ref());
    sha256
}
