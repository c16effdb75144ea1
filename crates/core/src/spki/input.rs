//! Finds the public keys in certificates, requests, keys and lists, by content and not by file
//! name.
//!
//! An input is scanned piece by piece and never held as a whole. Text is scanned by line; a PEM
//! section, a DER object and JSON have a maximum size. An unusable place is reported with its line,
//! and the scan continues after it.

#[cfg_attr(not(feature = "key-stores"), allow(dead_code, reason = "`pkcs12` uses the rest"))]
mod ber;
mod der;
mod jwk;
mod object;
mod pem;
#[cfg(feature = "key-stores")]
mod pkcs12;
mod pkcs7;
mod ssh;
mod text;

use aws_lc_rs::error::{KeyRejected, Unspecified};

#[cfg(feature = "key-stores")]
pub use self::pkcs12::EncryptedStore;
use self::text::Text;
use super::{CertificateError, Fingerprint};
use crate::regular_file::FileSize;

/// A key, or an unusable place, in an input.
#[derive(Debug)]
pub struct Finding {
    /// The line where it begins, counted from 1; `None` for a binary input.
    pub line: Option<u64>,
    /// The SubjectPublicKeyInfo (DER), or the reason why there is none.
    pub key: Result<Vec<u8>, InputError>,
}

/// Why a place in an input has no public key. Messages contain no part of a private key.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InputError {
    /// The kind of object is known, but the object is damaged.
    #[error("{what} that cannot be read: {source}")]
    Broken {
        /// The kind of object.
        what: &'static str,
        /// The damage of the object.
        source: Damage,
    },
    /// A private key is encrypted.
    #[error("{what} is encrypted: decrypt it first, or give its public key or certificate instead")]
    Encrypted {
        /// The kind of object.
        what: &'static str,
    },
    /// The SHA-256 of a key, from which the key cannot be derived.
    #[error(
        "a fingerprint is not a key: a filter lookup needs the SubjectPublicKeyInfo, which a certificate or a public key contains"
    )]
    Fingerprint(Fingerprint),
    /// A line in no known format.
    #[error("neither PEM, nor base64 or hex of a SubjectPublicKeyInfo, nor an OpenSSH key")]
    Line,
    /// The format is known, but an object of this kind without a certificate has no key.
    #[error("{what} without certificates has no key")]
    NoCertificate {
        /// The kind of object.
        what: &'static str,
    },
    /// The whole input is in no known format.
    #[error(
        "no key found: expected certificates, certificate requests, public or private keys in PEM, DER, OpenSSH or JWK form, PKCS #7, PKCS #12, or lines of base64 or hex"
    )]
    NoKey,
    /// A PKCS #12 store that has to be decrypted.
    #[cfg(feature = "key-stores")]
    #[error(
        "a PKCS #12 store needs its passphrase: name the file that has it (--passphrase-file), or give the certificates instead"
    )]
    Passphrase(EncryptedStore),
    /// The object is larger than any key.
    #[error("{what} of more than {} is not a key; give the key alone", FileSize(*limit as u64))]
    TooLarge {
        /// The kind of object.
        what: &'static str,
        /// The maximum, in bytes.
        limit: usize,
    },
    /// The format is known, but keys cannot be extracted from it.
    #[error("{what} is not supported{hint}")]
    Unsupported {
        /// The name of the format.
        what: String,
        /// The remedy.
        hint: &'static str,
    },
    /// The MAC or the decryption of a PKCS #12 store fails.
    #[cfg(feature = "key-stores")]
    #[error("the passphrase of the PKCS #12 store is wrong, or the store is damaged")]
    WrongPassphrase,
}

/// The damage of an object.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Damage {
    /// The object is not a certificate with a public key.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The object is not valid DER, or has another structure than its kind.
    #[error(transparent)]
    Der(#[from] x509_cert::der::Error),
    /// The cryptographic library rejects the private key.
    #[error(transparent)]
    PrivateKey(#[from] KeyRejected),
    /// The cryptographic library cannot encode the public key.
    #[error(transparent)]
    PublicKey(#[from] Unspecified),
    /// The text around the object, or a field of it, is wrong.
    #[error("{0}")]
    Text(String),
}

/// The keys in an object that may have several, or the reasons why there are none.
type KeyResults = Vec<Result<Vec<u8>, InputError>>;

/// Maximum size of a line, a PEM section, a DER object and JSON, in bytes. No key is as large.
const LIMIT: usize = 1 << 20;
/// Number of bytes that decide whether an input is text.
const PROBE: usize = 64;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Finds the keys in an input, piece by piece, in bounded memory.
///
/// ```
/// use keygate_core::spki::KeyScanner;
///
/// let mut keys = Vec::new();
/// let mut scanner = KeyScanner::new();
/// for piece in [&b"# not"[..], b" a key\nnonsense\n"] {
///     scanner.push(piece, &mut |finding| keys.push(finding));
/// }
/// scanner.finish(&mut |finding| keys.push(finding));
/// assert_eq!(keys.len(), 1);
/// assert_eq!(keys[0].line, Some(2));
/// assert!(keys[0].key.is_err());
/// ```
#[derive(Debug, Default)]
pub struct KeyScanner {
    kind: InputKind,
    /// Bytes of the first probe, of an incomplete line, or of an incomplete object.
    pending: Vec<u8>,
    /// Whether the current line exceeds [`LIMIT`]; its rest is not kept.
    is_too_long: bool,
    text: Text,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum InputKind {
    /// Neither text nor a DER object; reported already.
    Binary,
    /// One DER object.
    Der,
    /// JSON objects that follow each other.
    Json,
    Text,
    /// Fewer than [`PROBE`] bytes have arrived.
    #[default]
    Unknown,
}

/// The SubjectPublicKeyInfo (DER) of a binary SSH public key or SSH certificate (RFC 4253, section
/// 6.6), as it is in base64 in a `.pub` file.
///
/// # Errors
/// Returns an error if the key cannot be read, or has an unknown type.
pub fn ssh_key(key: &[u8]) -> Result<Vec<u8>, InputError> {
    ssh::rfc4716_key(key)
}

/// All findings in `input`.
#[must_use]
pub fn keys_in(input: &[u8]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut scanner = KeyScanner::new();
    scanner.push(input, &mut |finding| findings.push(finding));
    scanner.finish(&mut |finding| findings.push(finding));
    findings
}

impl KeyScanner {
    /// A scanner at the beginning of an input.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Scans the next piece of the input and calls `found` with each finding that it completes.
    pub fn push(&mut self, piece: &[u8], found: &mut impl FnMut(Finding)) {
        match self.kind {
            InputKind::Binary => {}
            InputKind::Der | InputKind::Json => {
                let room = (LIMIT + 1).saturating_sub(self.pending.len());
                self.pending.extend(piece.iter().take(room));
            }
            InputKind::Text => self.lines(piece, found),
            InputKind::Unknown => {
                self.pending.extend_from_slice(piece);
                if self.pending.len() >= PROBE {
                    self.begin(found);
                }
            }
        }
    }

    /// Whether no further piece changes the findings: the input is binary without a key, or larger
    /// than any object.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        match self.kind {
            InputKind::Binary => true,
            InputKind::Der | InputKind::Json => self.pending.len() > LIMIT,
            InputKind::Text | InputKind::Unknown => false,
        }
    }

    /// Ends the input and calls `found` with the findings that the end completes.
    pub fn finish(mut self, found: &mut impl FnMut(Finding)) {
        if self.kind == InputKind::Unknown {
            self.begin(found);
        }
        match self.kind {
            InputKind::Der if self.pending.len() > LIMIT => {
                let error = InputError::TooLarge { what: "a binary object", limit: LIMIT };
                found(Finding { line: None, key: Err(error) });
            }
            InputKind::Der => {
                let keys = object::keys_in(&self.pending).into_iter();
                keys.for_each(|key| found(Finding { line: None, key }));
            }
            InputKind::Json if self.pending.len() > LIMIT => {
                let error = InputError::TooLarge { what: "JSON", limit: LIMIT };
                found(Finding { line: Some(1), key: Err(error) });
            }
            InputKind::Json => jwk::find(&self.pending, found),
            InputKind::Text => {
                self.end_line(found);
                self.text.end(found);
            }
            InputKind::Binary | InputKind::Unknown => {}
        }
    }

    /// Determines the kind of the input from its first bytes.
    fn begin(&mut self, found: &mut impl FnMut(Finding)) {
        let start = std::mem::take(&mut self.pending);
        let probe = start.get(..PROBE).unwrap_or(&start);
        let is_text =
            !probe.iter().any(|byte| byte.is_ascii_control() && !b"\t\r\n".contains(byte));
        let content = probe.strip_prefix(BYTE_ORDER_MARK).unwrap_or(probe).trim_ascii_start();
        self.kind = match probe.first() {
            _ if is_text && content.starts_with(b"{") => InputKind::Json,
            _ if is_text => InputKind::Text,
            Some(&ber::SEQUENCE) => InputKind::Der,
            Some(_) | None => InputKind::Binary,
        };
        if self.kind == InputKind::Binary {
            found(Finding { line: None, key: Err(InputError::NoKey) });
        }
        let start = start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&start);
        self.push(start, found);
    }

    fn lines(&mut self, piece: &[u8], found: &mut impl FnMut(Finding)) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            if self.pending.len() + part.len() > LIMIT {
                self.is_too_long = true;
                self.pending.clear();
            } else if !self.is_too_long {
                self.pending.extend_from_slice(part);
            }
            if part.ends_with(b"\n") {
                self.end_line(found);
            }
        }
    }

    fn end_line(&mut self, found: &mut impl FnMut(Finding)) {
        if self.is_too_long || !self.pending.is_empty() {
            self.text.number += 1;
            if self.is_too_long {
                self.text.too_long(found);
            } else {
                self.text.line(self.pending.trim_ascii(), found);
            }
        }
        self.pending.clear();
        self.is_too_long = false;
    }
}

/// Text of an input for a message: escaped, and cut after 48 bytes.
fn shown(text: &[u8]) -> String {
    const MAX_LENGTH: usize = 48;
    let start = text.get(..MAX_LENGTH).unwrap_or(text);
    let more = if text.len() > MAX_LENGTH { "..." } else { "" };
    format!("{}{more}", start.escape_ascii())
}
