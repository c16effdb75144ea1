//! SHA-256 of CAs and revocation lists, in hex.

use data_encoding::HEXLOWER;

use crate::spki::sha256;

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
