//! PEM sections (RFC 7468), with any line length, with headers and with old labels, and the
//! sections of SSH public keys (RFC 4716), which have other dashes.

use data_encoding::BASE64_NOPAD;

use super::{Damage, InputError, KeyResults, LIMIT, der, pkcs7, shown, ssh};

/// A line with the dashes of a section boundary.
pub(super) enum Boundary {
    Begin(Vec<u8>),
    /// Neither BEGIN nor END stands between the dashes.
    Broken,
    End(Vec<u8>),
}

const DASHES: &[u8] = b"-----";
/// Start and end of a boundary of RFC 4716.
const SSH2_DASHES: [&[u8]; 2] = [b"---- ", b" ----"];
const SSH2_PUBLIC_KEY: &[u8] = b"SSH2 PUBLIC KEY";

/// The boundary in `line`; `None` if the line has no dashes.
pub(super) fn boundary(line: &[u8]) -> Option<Boundary> {
    let has_dashes = line.windows(DASHES.len()).any(|window| window == DASHES);
    let [start, end] = SSH2_DASHES;
    let between = if has_dashes {
        line.strip_prefix(DASHES).and_then(|rest| rest.strip_suffix(DASHES))
    } else {
        Some(line.strip_prefix(start)?.strip_suffix(end)?)
    };
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
    /// Whether the next line continues a header of RFC 4716.
    is_continued: bool,
}

impl Section {
    pub(super) fn new(label: Vec<u8>, line: u64) -> Self {
        let base64 = Vec::new();
        Self {
            label,
            line,
            base64,
            is_encrypted: false,
            is_too_large: false,
            is_broken: false,
            is_continued: false,
        }
    }

    /// Adds a line: a header (RFC 1421, section 4.6; RFC 4716, section 3.3) or base64.
    pub(super) fn push(&mut self, line: &[u8]) {
        if line.contains(&b':') || self.is_continued {
            self.is_continued = self.label == SSH2_PUBLIC_KEY && line.ends_with(b"\\");
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

    /// The keys in the section, which ends with the label `end`; none if this kind has no key.
    pub(super) fn keys(self, end: &[u8]) -> Result<KeyResults, InputError> {
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
            b"CMS" | b"PKCS7" | b"PKCS #7 SIGNED DATA" => {
                return Ok(pkcs7::keys_in(&self.content()?));
            }
            b"DH PARAMETERS" | b"EC PARAMETERS" | b"X509 CRL" => return Ok(KeyResults::new()),
            b"EC PRIVATE KEY" | b"PRIVATE KEY" | b"RSA PRIVATE KEY" => der::private_key,
            b"ENCRYPTED PRIVATE KEY" => {
                return Err(InputError::Encrypted { what: "the private key" });
            }
            b"OPENSSH PRIVATE KEY" => ssh::private_key,
            b"PUBLIC KEY" => der::public_key,
            b"RSA PUBLIC KEY" => der::pkcs1_public_key,
            SSH2_PUBLIC_KEY => ssh::rfc4716_key,
            b"TRUSTED CERTIFICATE" => der::trusted_certificate,
            label => {
                let what = format!("a PEM section {}", shown(label));
                return Err(InputError::Unsupported { what, hint: "" });
            }
        };
        Ok(vec![reader(&self.content()?)])
    }

    /// The decoded content.
    fn content(&self) -> Result<Vec<u8>, InputError> {
        if self.is_too_large {
            return Err(InputError::TooLarge { what: "a PEM section", limit: LIMIT });
        }
        match BASE64_NOPAD.decode(&self.base64) {
            Ok(der) if !self.is_broken && !der.is_empty() => Ok(der),
            Ok(_) | Err(_) => Err(self.broken("its base64 is damaged".to_owned())),
        }
    }

    fn broken(&self, reason: String) -> InputError {
        InputError::Broken { what: "PEM", source: Damage::Text(reason) }
    }
}
