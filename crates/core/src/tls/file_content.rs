//! The content of a file that lacks the certificate or the private key that it must have, and what
//! to do about it.

/// The content of a file in place of what was looked for. No part of the content is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FileContent {
    /// Certificates in PEM, and no private key.
    #[error("it has a certificate and no private key; are certificate and private_key swapped?")]
    Certificate,
    /// Nothing.
    #[error("it is empty; write the PEM into it")]
    Empty,
    /// A private key that is encrypted with a password.
    #[error(
        "the private key is encrypted: decrypt it first (`openssl pkey -in FILE -out NEW`), and protect the new file by its mode"
    )]
    EncryptedKey,
    /// Other bytes or text.
    #[error("it has no PEM section of this kind; give the path of a PEM file")]
    Other,
    /// DER, a PKCS store, or a private key in the format of OpenSSH.
    #[error(
        "it has another format than PEM: convert it with `openssl x509 -inform DER`, `openssl pkey -inform DER`, `openssl pkcs12` or `ssh-keygen -p -m PKCS8`"
    )]
    OtherFormat,
    /// A private key in PEM, and no certificate.
    #[error("it has a private key and no certificate; are certificate and private_key swapped?")]
    PrivateKey,
}

impl FileContent {
    /// The kind of content of `file`.
    pub(super) fn new(file: &[u8]) -> Self {
        let has = |text: &[u8]| file.windows(text.len()).any(|window| window == text);
        match file {
            [] => Self::Empty,
            [0x30, ..] => Self::OtherFormat, // a SEQUENCE in DER
            _ if has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED") => {
                Self::EncryptedKey
            }
            _ if has(b"BEGIN OPENSSH PRIVATE KEY") || has(b"BEGIN PKCS7-----") => Self::OtherFormat,
            _ if has(b"PRIVATE KEY-----") => Self::PrivateKey,
            _ if has(b"BEGIN CERTIFICATE-----") => Self::Certificate,
            _ => Self::Other,
        }
    }
}
