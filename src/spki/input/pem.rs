//! PEM sections (RFC 7468), with any line length, with headers and with old labels.

use data_encoding::BASE64_NOPAD;

use super::{Damage, InputError, LIMIT, der, shown, ssh};

/// A line with the dashes of a section boundary.
pub(super) enum Boundary {
    Begin(Vec<u8>),
    /// Neither BEGIN nor END stands between the dashes.
    Broken,
    End(Vec<u8>),
}

const DASHES: &[u8] = b"-----";

/// The boundary in `line`; `None` if the line has no dashes.
pub(super) fn boundary(line: &[u8]) -> Option<Boundary> {
    let has_dashes = line.windows(DASHES.len()).any(|window| window == DASHES);
    if !has_dashes {
        return None;
    }
    let between = line.strip_prefix(DASHES).and_then(|rest| rest.strip_suffix(DASHES));
    let label = |word: &[u8]| between?.strip_prefix(word).map(<[u8]>::to_vec);
    let begin = label(b"BEGIN ").map(Boundary::Begin);
    Some(begin.or_else(|| label(b"END ").map(Boundary::End)).unwrap_or(Boundary::Broken))
}

/// An open section.
#[derive(Debug)]
pub(super) struct Section {
    label: Vec<u8>,
    /// Number of the line where the section begins.
    pub(super) line: u64,
    /// The base64 so far, without padding.
    base64: Vec<u8>,
    is_encrypted: bool,
    is_too_large: bool,
    is_broken: bool,
}

impl Section {
    pub(super) fn new(label: Vec<u8>, line: u64) -> Self {
        let base64 = Vec::new();
        Self { label, line, base64, is_encrypted: false, is_too_large: false, is_broken: false }
    }

    /// Adds a line: a header (RFC 1421, section 4.6) or base64.
    pub(super) fn push(&mut self, line: &[u8]) {
        if line.contains(&b':') {
            self.is_encrypted |= line.starts_with(b"Proc-Type:") && line.ends_with(b"ENCRYPTED");
            return;
        }
        if self.base64.len() + line.len() > LIMIT {
            return self.overflow();
        }
        let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
        self.is_broken |= !line.iter().all(|byte| is_base64(byte) || byte.is_ascii_whitespace());
        let kept = line.iter().filter(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(byte));
        self.base64.extend(kept);
    }

    /// Marks the section as larger than any key and drops its content.
    pub(super) fn overflow(&mut self) {
        self.is_too_large = true;
        self.base64 = Vec::new();
    }

    /// The error if the input ends within the section.
    pub(super) fn without_end(&self) -> InputError {
        self.broken(format!("the section {} has no END line", shown(&self.label)))
    }

    /// The key in the section, which ends with the label `end`; `None` if this kind has no key.
    pub(super) fn key(self, end: &[u8]) -> Result<Option<Vec<u8>>, InputError> {
        if self.label != end {
            let (begin, end) = (shown(&self.label), shown(end));
            return Err(self.broken(format!("{begin} ends as {end}")));
        }
        if self.is_encrypted {
            return Err(InputError::Encrypted { what: "the private key" });
        }
        let reader: fn(&[u8]) -> Result<Vec<u8>, InputError> = match self.label.as_slice() {
            b"CERTIFICATE" | b"X509 CERTIFICATE" => der::certificate,
            b"CERTIFICATE REQUEST" | b"NEW CERTIFICATE REQUEST" => der::request,
            b"DH PARAMETERS" | b"EC PARAMETERS" | b"X509 CRL" => return Ok(None),
            b"EC PRIVATE KEY" | b"PRIVATE KEY" | b"RSA PRIVATE KEY" => der::private_key,
            b"ENCRYPTED PRIVATE KEY" => {
                return Err(InputError::Encrypted { what: "the private key" });
            }
            b"OPENSSH PRIVATE KEY" => ssh::private_key,
            b"PUBLIC KEY" => der::public_key,
            b"RSA PUBLIC KEY" => der::pkcs1_public_key,
            b"TRUSTED CERTIFICATE" => der::trusted_certificate,
            label => {
                let what = format!("a PEM section {}", shown(label));
                return Err(InputError::Unsupported { what, hint: "" });
            }
        };
        if self.is_too_large {
            return Err(InputError::TooLarge { what: "a PEM section", limit: LIMIT });
        }
        match BASE64_NOPAD.decode(&self.base64) {
            Ok(der) if !self.is_broken && !der.is_empty() => reader(&der).map(Some),
            Ok(_) | Err(_) => Err(self.broken("its base64 is damaged".to_owned())),
        }
    }

    fn broken(&self, reason: String) -> InputError {
        InputError::Broken { what: "PEM", source: Damage::Text(reason) }
    }
}
