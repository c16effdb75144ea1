//! minisign signatures of files: `NAME.minisig` beside a file, made with a key that the operator has
//! chosen.
//!
//! A [`FileSignature`] is verified over content that has been read already, so that the bytes in use
//! are the bytes that were signed. Verified are the signature of the content, and the signature of
//! both the first one and the trusted comment. The comment itself has no meaning here: neither its
//! time nor its file name is compared. Legacy signatures (`Ed`), which sign the content without a
//! hash, are rejected. Format: <https://jedisct1.github.io/minisign/>

use std::io;
use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use minisign_verify::{PublicKey, Signature};

use crate::regular_file;

/// Maximum size of a signature, and of a file of keys, in bytes, 16 KiB; a larger file is rejected.
/// minisign writes comments of up to 9 KiB.
pub const MAX_SIZE: u64 = 16 << 10;
/// Maximum length of a comment that is shown, in characters.
const MAX_COMMENT: usize = 200;
/// Length of a public key with its algorithm and id, in bytes.
const KEY_LENGTH: usize = 42;
/// Length of a signature with its algorithm and the id of its key, in bytes.
const SIGNATURE_LENGTH: usize = 74;
/// Number of lines of a signature.
pub(crate) const SIGNATURE_LINES: usize = 4;
/// Start of the first line of a signature.
pub(crate) const SIGNATURE_START: &[u8] = UNTRUSTED.as_bytes();
/// Start of the first line of a key or a signature.
const UNTRUSTED: &str = "untrusted comment: ";
/// Start of the third line of a signature.
const TRUSTED: &str = "trusted comment: ";
/// Algorithm of a signature of the content without a hash.
const LEGACY: &[u8; 2] = b"Ed";
/// Algorithm of a signature of the BLAKE2b hash of the content.
const PREHASHED: &[u8; 2] = b"ED";

/// Why the signature of a file cannot be relied on.
#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    /// The signature is of another content, or one of its lines was changed.
    #[error(
        "{} is not the signature of this content: one of the two is damaged or outdated; fetch both again",
        signature.display()
    )]
    Invalid {
        /// The signature file.
        signature: PathBuf,
    },
    /// The file of keys cannot be used.
    #[error("minisign_key {}: {source}", path.display())]
    Keys {
        /// The file of keys.
        path: PathBuf,
        /// Why the file cannot be used.
        source: SignatureFileError,
    },
    /// There is no signature.
    #[error(
        "{} is missing: sign the file with `minisign -S`, or fetch the signature too",
        signature.display()
    )]
    Missing {
        /// The signature file.
        signature: PathBuf,
    },
    /// A copy in the state directory has no signature.
    #[error(
        "{} has no signature, because minisign_key was not set when the copy was written",
        copy.display()
    )]
    NotKept {
        /// The copy.
        copy: PathBuf,
    },
    /// The signature was made with none of the keys.
    #[error(
        "{} was made with the key {found}, but minisign_key {} has {expected}: sign the file again, or replace the key",
        signature.display(),
        keys.display()
    )]
    OtherKey {
        /// The signature file.
        signature: PathBuf,
        /// The id of the key that made the signature.
        found: String,
        /// The file of keys.
        keys: PathBuf,
        /// The ids of the keys in that file.
        expected: String,
    },
    /// The signature file cannot be used.
    #[error("{}: {source}", path.display())]
    Unusable {
        /// The signature file.
        path: PathBuf,
        /// Why the file cannot be used.
        source: SignatureFileError,
    },
}

/// Why a file of minisign cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SignatureFileError {
    /// The algorithm is not known.
    #[error("its algorithm is none of minisign")]
    Algorithm,
    /// The signature is of the content without a hash.
    #[error(
        "a legacy signature (algorithm Ed), which is not accepted: sign the file again without -l, with minisign 0.10 or later or with -H"
    )]
    Legacy,
    /// A line is not what the format requires.
    #[error("line {line} is not {expected}")]
    Line {
        /// Number of the line, counted from 1.
        line: usize,
        /// What the format has in this line.
        expected: &'static str,
    },
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The file is not UTF-8 text.
    #[error("not UTF-8 text")]
    Text,
}

/// The public keys in a file, any of which may have made a signature. A key that is being replaced
/// can stay beside the next one.
#[derive(Debug)]
pub struct MinisignKeys {
    path: PathBuf,
    /// At least one.
    keys: Vec<(KeyId, PublicKey)>,
}

/// The id of a key, by which a signature names its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KeyId([u8; 8]);

/// The id as minisign prints it.
impl std::fmt::Display for KeyId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:X}", u64::from_le_bytes(self.0))
    }
}

impl MinisignKeys {
    /// Reads the public keys in the file at `path`: each has a line with a comment and a line with
    /// the key, as minisign writes them.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is larger than 16 KiB, or has anything but keys.
    pub fn read(path: &Path) -> Result<Self, SignatureError> {
        Self::of_file(path, regular_file::read(path, MAX_SIZE))
    }

    /// The public keys in a file, which was read with this result.
    ///
    /// # Errors
    /// Returns an error if the file could not be read, or has anything but keys.
    pub(crate) fn of_file(
        path: &Path,
        content: io::Result<Vec<u8>>,
    ) -> Result<Self, SignatureError> {
        let keys = text_of(content).and_then(|text| parse_keys(&text));
        match keys {
            Ok(keys) => Ok(Self { path: path.to_owned(), keys }),
            Err(source) => Err(SignatureError::Keys { path: path.to_owned(), source }),
        }
    }

    /// Verifies that `signature` is of the content whose parts are `content`.
    ///
    /// # Errors
    /// Returns an error if the signature was made with another key, or if it is of other content.
    pub fn verify<'a>(
        &self,
        signature: &FileSignature,
        content: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), SignatureError> {
        let path = || signature.path.clone();
        // Two keys with the same id do not occur.
        let Some((_, key)) = self.keys.iter().find(|(id, _)| *id == signature.key_id) else {
            let ids: Vec<_> = self.keys.iter().map(|(id, _)| id.to_string()).collect();
            let (found, expected) = (signature.key_id.to_string(), ids.join(", "));
            let keys = self.path.clone();
            return Err(SignatureError::OtherKey { signature: path(), found, keys, expected });
        };
        let invalid = |_| SignatureError::Invalid { signature: path() };
        let mut verifier = key.verify_stream(&signature.parsed).map_err(invalid)?;
        content.into_iter().for_each(|part| verifier.update(part));
        verifier.finalize().map_err(invalid)
    }

    /// Reads the signature beside the file at `path`, and verifies that it is of `content`, which was
    /// read from that file.
    ///
    /// # Errors
    /// Returns an error if there is no signature, or if it is not valid.
    pub fn verify_beside<'a>(
        &self,
        path: &Path,
        content: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<FileSignature, SignatureError> {
        let signature = FileSignature::read(&signature_path(path))?;
        self.verify(&signature, content)?;
        Ok(signature)
    }
}

/// A well-formed signature. Nothing in it is true before [`MinisignKeys::verify`] has succeeded.
#[derive(Clone)]
pub struct FileSignature {
    path: PathBuf,
    text: String,
    parsed: Signature,
    key_id: KeyId,
}

impl FileSignature {
    /// Reads the signature file at `path`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is larger than [`MAX_SIZE`], or is not a
    /// signature of a hash.
    pub fn read(path: &Path) -> Result<Self, SignatureError> {
        Self::of_file(path, regular_file::read(path, MAX_SIZE))
    }

    /// The signature in a file, which was read with this result.
    ///
    /// # Errors
    /// Returns an error if the file could not be read, or is not a signature of a hash.
    pub(crate) fn of_file(
        path: &Path,
        content: io::Result<Vec<u8>>,
    ) -> Result<Self, SignatureError> {
        match text_of(content) {
            Ok(text) => Self::parse(path, text),
            Err(SignatureFileError::Read(error)) if error.kind() == io::ErrorKind::NotFound => {
                Err(SignatureError::Missing { signature: path.to_owned() })
            }
            Err(source) => Err(SignatureError::Unusable { path: path.to_owned(), source }),
        }
    }

    /// Parses the `text` of a signature. `path` is its name in errors.
    ///
    /// # Errors
    /// Returns an error if `text` is not a signature of a hash, or has more than four lines.
    pub fn parse(path: &Path, text: String) -> Result<Self, SignatureError> {
        match parse_signature(&text) {
            Ok((key_id, parsed)) => Ok(Self { path: path.to_owned(), text, parsed, key_id }),
            Err(source) => Err(SignatureError::Unusable { path: path.to_owned(), source }),
        }
    }

    /// The signature as it was read.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The lines of the signature, each with a line feed.
    pub(crate) fn lines(&self) -> String {
        self.text.lines().flat_map(|line| [line, "\n"]).collect()
    }

    /// The id of the key, in hex, as minisign prints it.
    #[must_use]
    pub fn key_id(&self) -> String {
        self.key_id.to_string()
    }

    /// The trusted comment for people: at most 200 characters, none of which is a control character.
    #[must_use]
    pub fn comment(&self) -> String {
        let shown = |it: char| match it {
            '\t' => ' ',
            it if is_unprintable(it) => '?',
            it => it,
        };
        let mut comment: String =
            self.parsed.trusted_comment().chars().take(MAX_COMMENT).map(shown).collect();
        if self.parsed.trusted_comment().chars().nth(MAX_COMMENT).is_some() {
            comment.push('…');
        }
        comment
    }
}

impl std::fmt::Debug for FileSignature {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("FileSignature")
            .field("path", &self.path)
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

impl PartialEq for FileSignature {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for FileSignature {}

/// The path of the signature of the file at `path`.
#[must_use]
pub fn signature_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".minisig");
    PathBuf::from(name)
}

/// Whether a terminal may act on a character, or show text in another order because of it.
fn is_unprintable(it: char) -> bool {
    it.is_control()
        || matches!(it, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}')
}

fn text_of(content: io::Result<Vec<u8>>) -> Result<String, SignatureFileError> {
    String::from_utf8(content?).map_err(|_| SignatureFileError::Text)
}

fn parse_keys(text: &str) -> Result<Vec<(KeyId, PublicKey)>, SignatureFileError> {
    const EXPECTED: &str = "a public key of minisign";
    let lines: Vec<&str> = text.lines().collect();
    let keys = lines.chunks(2).enumerate().map(|(index, lines)| {
        let line = index * 2 + 1;
        let comment = lines.first().is_some_and(|line| line.starts_with(UNTRUSTED));
        if !comment {
            let expected = "an untrusted comment, as in a public key of minisign";
            return Err(SignatureFileError::Line { line, expected });
        }
        let wrong = SignatureFileError::Line { line: line + 1, expected: EXPECTED };
        let Some(key) = lines.get(1) else { return Err(wrong) };
        let Some((_, id)) = algorithm_and_id(key, KEY_LENGTH) else { return Err(wrong) };
        PublicKey::from_base64(key).map(|key| (id, key)).map_err(|_| wrong)
    });
    let keys: Vec<_> = keys.collect::<Result<_, _>>()?;
    if keys.is_empty() {
        return Err(SignatureFileError::Line { line: 1, expected: EXPECTED });
    }
    Ok(keys)
}

fn parse_signature(text: &str) -> Result<(KeyId, Signature), SignatureFileError> {
    let lines: Vec<&str> = text.lines().collect();
    let line = |line: usize| lines.get(line - 1).copied().unwrap_or_default();
    let ensure = |is_right: bool, line: usize, expected: &'static str| {
        if is_right { Ok(()) } else { Err(SignatureFileError::Line { line, expected }) }
    };
    ensure(line(1).starts_with(UNTRUSTED), 1, "the untrusted comment of a signature of minisign")?;
    let (algorithm, key_id) = algorithm_and_id(line(2), SIGNATURE_LENGTH)
        .ok_or(SignatureFileError::Line { line: 2, expected: "a signature in base64" })?;
    ensure(line(3).starts_with(TRUSTED), 3, "the trusted comment of a signature of minisign")?;
    ensure(lines.len() <= SIGNATURE_LINES, 5, "the end of the file")?;
    match &algorithm {
        PREHASHED => {}
        LEGACY => return Err(SignatureFileError::Legacy),
        _ => return Err(SignatureFileError::Algorithm),
    }
    // The last line is all that can still be wrong.
    let signature = Signature::decode(text);
    let expected = "the signature of the trusted comment";
    Ok((key_id, signature.map_err(|_| SignatureFileError::Line { line: 4, expected })?))
}

/// The algorithm and the id of the key at the start of a key or a signature of `length` bytes.
fn algorithm_and_id(base64: &str, length: usize) -> Option<([u8; 2], KeyId)> {
    let bytes = BASE64.decode(base64.as_bytes()).ok().filter(|bytes| bytes.len() == length)?;
    let (algorithm, rest) = bytes.split_first_chunk::<2>()?;
    Some((*algorithm, KeyId(*rest.first_chunk()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key of minisign, and its signatures of `test`.
    const KEY: &str = "untrusted comment: minisign public key E7620F1842B4E81F\n\
        RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3\n";
    const SIGNATURE: &str = "untrusted comment: signature from minisign secret key\n\
        RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=\n\
        trusted comment: timestamp:1556193335\tfile:test\n\
        y/rUw2y8/hOUYjZU71eHp/Wo1KZ40fGy2VJEDl34XMJM+TX48Ss/17u3IvIfbVR1FkZZSNCisQbuQY+bHwhEBg==\n";
    const LEGACY_SIGNATURE: &str = "untrusted comment: signature from minisign secret key\n\
        RWQf6LRCGA9i59SLOFxz6NxvASXDJeRtuZykwQepbDEGt87ig1BNpWaVWuNrm73YiIiJbq71Wi+dP9eKL8OC351vwIasSSbXxwA=\n\
        trusted comment: timestamp:1555779966\tfile:test\n\
        QtKMXWyYcwdpZAlPF7tE2ENJkRd1ujvKjlj1m9RtHTBnZPa5WKU5uWRs5GoP5M/VqE81QFuMKI5k/SfNQUaOAA==\n";
    const OTHER_KEY: &str = "untrusted comment: minisign public key 1\n\
        RWQBAAAAAAAAAHmlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3\n";

    fn keys(text: &str) -> MinisignKeys {
        MinisignKeys { path: "keys.pub".into(), keys: parse_keys(text).unwrap() }
    }

    fn signature(text: &str) -> Result<FileSignature, SignatureError> {
        FileSignature::parse(Path::new("test.minisig"), text.to_owned())
    }

    fn verify(keys_text: &str, text: &str, content: &[u8]) -> Result<(), String> {
        let signature = signature(text).map_err(|error| error.to_string())?;
        let verified = keys(keys_text).verify(&signature, content.chunks(3));
        verified.map_err(|error| error.to_string())
    }

    #[test]
    fn a_signature_of_the_reference_implementation_is_valid_for_its_content_only() {
        assert_eq!(verify(KEY, SIGNATURE, b"test"), Ok(()));
        let both = format!("{OTHER_KEY}{KEY}");
        assert_eq!(verify(&both, SIGNATURE, b"test"), Ok(()));
        for content in [&b""[..], b"tes", b"Test", b"testt"] {
            let problem = verify(KEY, SIGNATURE, content).unwrap_err();
            assert!(problem.contains("test.minisig is not the signature of this"), "{problem}");
        }
        let problem = verify(OTHER_KEY, SIGNATURE, b"test").unwrap_err();
        let expected = "with the key E7620F1842B4E81F, but minisign_key keys.pub has 1:";
        assert!(problem.contains(expected), "{problem}");
        let windows = SIGNATURE.replace('\n', "\r\n");
        assert_eq!(verify(KEY, &windows, b"test"), Ok(()));
    }

    /// A comment of any other text, or a lost line, is an error, and no input is accepted or panics.
    #[test]
    fn every_changed_byte_and_every_truncation_is_an_error() {
        let start = SIGNATURE.find('\n').unwrap();
        for at in UNTRUSTED.len()..SIGNATURE.len() - 1 {
            let is_untrusted = (UNTRUSTED.len()..start).contains(&at);
            let mut bytes = SIGNATURE.as_bytes().to_vec();
            bytes[at] ^= 1;
            let Ok(changed) = String::from_utf8(bytes) else { continue };
            assert_eq!(verify(KEY, &changed, b"test").is_ok(), is_untrusted, "{changed}");
            assert!(verify(KEY, SIGNATURE.split_at(at).0, b"test").is_err());
        }
        for text in [
            format!("{SIGNATURE}\n"),
            format!("{SIGNATURE}more"),
            SIGNATURE.replacen("untrusted", "trusted", 1),
            SIGNATURE.replace("trusted comment: timestamp", "comment: timestamp"),
            SIGNATURE.replace("RUQf", "RVQf"),
            KEY.to_owned(),
            "\0".repeat(16 << 10),
        ] {
            assert!(signature(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_legacy_signature_is_an_error_with_its_remedy() {
        let problem = verify(KEY, LEGACY_SIGNATURE, b"test").unwrap_err();
        assert!(problem.contains("a legacy signature (algorithm Ed)"), "{problem}");
        // The algorithm is covered by nothing, and another one leads to another content.
        let forged = LEGACY_SIGNATURE.replacen("RWQf", "RUQf", 1);
        assert!(verify(KEY, &forged, b"test").is_err());
    }

    #[test]
    fn a_file_of_keys_has_keys_only() {
        let second = KEY.lines().nth(1).unwrap();
        for (text, problem) in [
            (String::new(), "line 1 is not a public key"),
            (second.to_owned(), "line 1 is not an untrusted comment"),
            (format!("{KEY}\n"), "line 3 is not an untrusted comment"),
            (KEY.replace("RWQ", "RXQ"), "line 2 is not a public key"),
            (KEY.lines().next().unwrap().to_owned(), "line 2 is not a public key"),
            (format!("{KEY}{}", KEY.split_at(80).0), "line 4 is not a public key"),
            (SIGNATURE.to_owned(), "line 2 is not a public key"),
        ] {
            let error = parse_keys(&text).unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn a_comment_is_bounded_and_harmless_when_it_is_shown() {
        assert_eq!(signature(SIGNATURE).unwrap().comment(), "timestamp:1556193335 file:test");
        let hostile = format!("\u{1b}[2J\u{202e}{}", "x".repeat(1000));
        let text = SIGNATURE.replace("timestamp:1556193335\tfile:test", &hostile);
        let comment = signature(&text).unwrap().comment();
        assert!(comment.starts_with("?[2J?xxx") && comment.ends_with("x…"), "{comment}");
        assert_eq!(comment.chars().count(), 201);
    }

    #[test]
    fn a_missing_and_a_large_file_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("test.minisig");
        let problem = || FileSignature::read(&path).unwrap_err().to_string();
        assert!(problem().contains("test.minisig is missing"), "{}", problem());
        std::fs::write(&path, " ".repeat((16 << 10) + 1)).unwrap();
        assert!(problem().contains("larger than 16384 bytes"), "{}", problem());
        let problem = MinisignKeys::read(&path).unwrap_err().to_string();
        assert!(problem.contains("larger than 16384 bytes"), "{problem}");
        std::fs::write(&path, b"\xff").unwrap();
        assert!(FileSignature::read(&path).unwrap_err().to_string().contains("not UTF-8 text"));
    }
}
