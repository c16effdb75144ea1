//! A signature file, and its trusted comment.

use std::io;
use std::path::{Path, PathBuf};

use minisign_verify::Signature;

use super::{KeyId, SignatureError, SignatureFileError, UNTRUSTED, algorithm_and_id, text_of};
use crate::printable::is_unprintable;

/// Maximum length of a comment that is shown, in characters.
const MAX_COMMENT: usize = 200;
/// Length of a signature with its algorithm and the id of its key, in bytes.
const SIGNATURE_LENGTH: usize = 74;
/// Number of lines of a signature.
const SIGNATURE_LINES: usize = 4;
/// Start of the third line of a signature.
const TRUSTED: &str = "trusted comment: ";
/// Algorithm of a signature of the content without a hash.
const LEGACY: &[u8; 2] = b"Ed";
/// Algorithm of a signature of the BLAKE2b hash of the content.
const PREHASHED: &[u8; 2] = b"ED";

/// A well-formed signature. Nothing in it is true before
/// [`MinisignKeys::verify`](super::MinisignKeys::verify) has succeeded.
#[derive(Clone)]
pub struct FileSignature {
    pub(super) path: PathBuf,
    text: String,
    pub(super) parsed: Signature,
    pub(super) key_id: KeyId,
}

impl FileSignature {
    /// The signature in a file, which was read with this result.
    ///
    /// # Errors
    /// Returns an error if the file could not be read, or is not a signature of a hash.
    pub fn from_file(path: &Path, content: io::Result<Vec<u8>>) -> Result<Self, SignatureError> {
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

    /// The id of the key, in hex, as minisign prints it.
    #[must_use]
    pub fn key_id(&self) -> String {
        self.key_id.to_string()
    }

    /// The trusted comment for people: at most 200 characters, none of which is a control
    /// character.
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

#[cfg(test)]
mod tests {
    use super::super::examples::{SIGNATURE, signature};

    #[test]
    fn a_comment_is_bounded_and_harmless_when_it_is_shown() {
        assert_eq!(signature(SIGNATURE).unwrap().comment(), "timestamp:1556193335 file:test");
        let hostile = format!("\u{1b}[2J\u{202e}{}", "x".repeat(1000));
        let text = SIGNATURE.replace("timestamp:1556193335\tfile:test", &hostile);
        let comment = signature(&text).unwrap().comment();
        assert!(comment.starts_with("?[2J?xxx") && comment.ends_with("x…"), "{comment}");
        assert_eq!(comment.chars().count(), 201);
    }
}
