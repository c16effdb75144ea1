//! The content of a file that lacks the certificate or the private key that it must have, and what
//! to do about it.

use std::fmt;

/// The content of a file in place of what was looked for. No part of the content is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileContent {
    /// Certificates in PEM, and no private key.
    Certificate,
    /// A DER object.
    Der,
    /// Nothing.
    Empty,
    /// A private key that is encrypted with a password.
    EncryptedKey,
    /// A private key in the format of OpenSSH.
    OpensshKey,
    /// Other bytes or text.
    Other,
    /// PKCS #12, or PKCS #7 in PEM.
    Pkcs,
    /// A private key in PEM, and no certificate.
    PrivateKey,
    /// A public key in PEM.
    PublicKey,
    /// A certificate request in PEM.
    Request,
    /// A certificate in OpenSSL's own format.
    TrustedCertificate,
    /// Text in UTF-16.
    Utf16,
}

impl FileContent {
    /// The kind of content of `file`.
    pub(super) fn new(file: &[u8]) -> Self {
        let has = |text: &[u8]| file.windows(text.len()).any(|window| window == text);
        let is_encrypted = || has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED");
        match file {
            [] => Self::Empty,
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Self::Utf16,
            // A SEQUENCE that begins with the INTEGER 3 (RFC 7292, section 4).
            [0x30, rest @ ..] => {
                let start = rest.get(..8).unwrap_or(rest);
                let is_pkcs12 = start.windows(3).any(|window| window == b"\x02\x01\x03");
                if is_pkcs12 { Self::Pkcs } else { Self::Der }
            }
            _ if is_encrypted() => Self::EncryptedKey,
            _ if has(b"BEGIN OPENSSH PRIVATE KEY") => Self::OpensshKey,
            _ if has(b"PRIVATE KEY-----") => Self::PrivateKey,
            _ if has(b"BEGIN CERTIFICATE-----") => Self::Certificate,
            _ if has(b"CERTIFICATE REQUEST-----") => Self::Request,
            _ if has(b"BEGIN TRUSTED CERTIFICATE-----") => Self::TrustedCertificate,
            _ if has(b"PUBLIC KEY-----") => Self::PublicKey,
            _ if has(b"BEGIN PKCS7-----") => Self::Pkcs,
            _ => Self::Other,
        }
    }
}

/// A sentence for a file that must have a certificate or a private key in PEM.
impl fmt::Display for FileContent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Certificate => {
                "it has a certificate and no private key; are certificate and private_key swapped?"
            }
            Self::Der => {
                "it is DER, and PEM is needed: convert it with `openssl x509 -inform DER` or `openssl pkey -inform DER`"
            }
            Self::Empty => "it is empty; write the PEM into it",
            Self::EncryptedKey => {
                "the private key is encrypted: decrypt it first (`openssl pkey -in FILE -out NEW`), and protect the new file by its mode"
            }
            Self::OpensshKey => {
                "the private key has the format of OpenSSH: convert it with `ssh-keygen -p -m PKCS8 -f FILE`"
            }
            Self::Other => "it has no PEM section of this kind; give the path of a PEM file",
            Self::Pkcs => {
                "it is a PKCS store: take certificates and key out of it first (`openssl pkcs12 -in FILE` or `openssl pkcs7 -print_certs -in FILE`)"
            }
            Self::PrivateKey => {
                "it has a private key and no certificate; are certificate and private_key swapped?"
            }
            Self::PublicKey => "it has a public key only; give the private key, or its certificate",
            Self::Request => "it has a certificate request; give the certificate that the CA issued",
            Self::TrustedCertificate => {
                "it has the section TRUSTED CERTIFICATE: convert it with `openssl x509 -in FILE`"
            }
            Self::Utf16 => "it is text in UTF-16: save it as ASCII or UTF-8",
        })
    }
}
