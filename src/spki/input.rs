//! The public keys in whatever people have, found by what it is and not by what it is called.
//!
//! An input comes piece by piece and is never held whole: text is taken line by line, a PEM section
//! and a DER object up to a bound. What is no key is told with its line, and the rest goes on.

mod der;
mod pem;
mod ssh;
mod text;

use self::text::Text;

/// What an input has at one place.
#[derive(Debug)]
pub struct Finding {
    /// The line where it begins, counted from 1; `None` for an input that is not text.
    pub line: Option<u64>,
    /// The SubjectPublicKeyInfo (DER), or why there is none.
    pub key: Result<Vec<u8>, InputError>,
}

/// Why a place in an input has no public key. Messages hold nothing of a private key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// It is what it claims to be, but broken.
    #[error("{what} that cannot be read: {reason}")]
    Broken {
        /// What it claims to be.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A private key that needs a pass phrase.
    #[error("{what} is encrypted: decrypt it first, or give its public key or certificate instead")]
    Encrypted {
        /// What it is.
        what: &'static str,
    },
    /// The SHA-256 of a key, of which nothing else can be told.
    #[error(
        "a fingerprint is not a key: a filter is asked for the SubjectPublicKeyInfo itself, which a certificate or a public key has"
    )]
    Fingerprint,
    /// A line that is none of what is recognized.
    #[error("neither PEM, nor base64 or hex of a SubjectPublicKeyInfo, nor an OpenSSH key")]
    Line,
    /// Nothing in the whole input is recognized.
    #[error(
        "no key found: expected certificates, certificate requests, public or private keys in PEM, DER or OpenSSH form, or lines of base64 or hex"
    )]
    NoKey,
    /// Larger than any key.
    #[error("{what} of more than {limit} bytes is no key")]
    TooLarge {
        /// What it looks like.
        what: &'static str,
        /// The bound, in bytes.
        limit: usize,
    },
    /// Something that is known, and has no key that can be taken from it.
    #[error("{what} is not supported{hint}")]
    Unsupported {
        /// What it is, as it calls itself.
        what: String,
        /// What to do about it.
        hint: &'static str,
    },
}

/// The longest line, PEM section and DER object that are read, in bytes: no key is as large.
const LIMIT: usize = 1 << 20;
/// As many bytes of the beginning tell whether it is text.
const PROBE: usize = 64;

/// Finds the keys in an input that comes piece by piece. Its memory is bounded, whatever comes.
///
/// ```
/// use keygate::spki::KeyScanner;
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
    kind: Kind,
    /// The beginning of the input, the line, or the object that is not complete yet.
    pending: Vec<u8>,
    /// The rest of a line that is too long is not kept.
    is_too_long: bool,
    text: Text,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Kind {
    /// Neither text nor a DER object; that has been said.
    Binary,
    /// One DER object.
    Der,
    Text,
    /// Too little of it has come.
    #[default]
    Unknown,
}

/// All findings of an input that is in memory.
#[must_use]
pub fn keys_in(input: &[u8]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut scanner = KeyScanner::new();
    scanner.push(input, &mut |finding| findings.push(finding));
    scanner.finish(&mut |finding| findings.push(finding));
    findings
}

impl KeyScanner {
    /// A scanner that has seen nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next piece of the input, of any size, and shows `found` what it completes.
    pub fn push(&mut self, piece: &[u8], found: &mut impl FnMut(Finding)) {
        match self.kind {
            Kind::Binary => {}
            Kind::Der => {
                let room = (LIMIT + 1).saturating_sub(self.pending.len());
                self.pending.extend(piece.iter().take(room));
            }
            Kind::Text => self.lines(piece, found),
            Kind::Unknown => {
                self.pending.extend_from_slice(piece);
                if self.pending.len() >= PROBE {
                    self.begin(found);
                }
            }
        }
    }

    /// Shows `found` what the end of the input completes.
    pub fn finish(mut self, found: &mut impl FnMut(Finding)) {
        if self.kind == Kind::Unknown {
            self.begin(found);
        }
        match self.kind {
            Kind::Der if self.pending.len() > LIMIT => {
                let error = InputError::TooLarge { what: "a binary object", limit: LIMIT };
                found(Finding { line: None, key: Err(error) });
            }
            Kind::Der => found(Finding { line: None, key: der::key_in(&self.pending) }),
            Kind::Text => {
                self.end_line(found);
                self.text.end(found);
            }
            Kind::Binary | Kind::Unknown => {}
        }
    }

    /// Decides what the input is by its first bytes.
    fn begin(&mut self, found: &mut impl FnMut(Finding)) {
        let start = std::mem::take(&mut self.pending);
        let probe = start.get(..PROBE).unwrap_or(&start);
        let is_text =
            !probe.iter().any(|byte| byte.is_ascii_control() && !b"\t\r\n".contains(byte));
        self.kind = match probe.first() {
            _ if is_text => Kind::Text,
            Some(&der::SEQUENCE) => Kind::Der,
            Some(_) | None => Kind::Binary,
        };
        if self.kind == Kind::Binary {
            found(Finding { line: None, key: Err(InputError::NoKey) });
        }
        let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&start); // a byte order mark
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

/// Text of an input for a message: escaped, and not more than a line has room for.
fn shown(text: &[u8]) -> String {
    const LONGEST: usize = 48;
    let start = text.get(..LONGEST).unwrap_or(text);
    let more = if text.len() > LONGEST { "..." } else { "" };
    format!("{}{more}", start.escape_ascii())
}
