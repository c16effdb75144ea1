//! minisign signatures of files: `NAME.minisig` beside a file, made with a key that the operator
//! has chosen.
//!
//! A [`FileSignature`] is verified over content that has been read already, so that the bytes in
//! use are the bytes that were signed. Verified are the signature of the content, and the signature
//! of both the first one and the trusted comment. The comment itself has no meaning here: neither
//! its time nor its file name is compared. Legacy signatures (`Ed`), which sign the content without
//! a hash, are rejected. Format: <https://jedisct1.github.io/minisign/>

mod error;
mod file;
mod keys;

use std::io;
use std::path::{Path, PathBuf};

use data_encoding::BASE64;

pub use self::error::{SignatureError, SignatureFileError};
pub use self::file::FileSignature;
pub use self::keys::MinisignKeys;

/// Maximum size of a signature, and of a file of keys, in bytes, 16 KiB; a larger file is rejected.
/// minisign writes comments of up to 9 KiB.
pub const MAX_SIZE: u64 = 16 << 10;
/// Start of the first line of a key or a signature.
const UNTRUSTED: &str = "untrusted comment: ";

/// The id of a key, by which a signature names its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KeyId([u8; 8]);

/// The id as minisign prints it.
impl std::fmt::Display for KeyId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:X}", u64::from_le_bytes(self.0))
    }
}

/// The path of the signature of the file at `path`.
#[must_use]
pub fn signature_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".minisig");
    PathBuf::from(name)
}

fn text_of(content: io::Result<Vec<u8>>) -> Result<String, SignatureFileError> {
    String::from_utf8(content?).map_err(|_| SignatureFileError::Text)
}

/// The algorithm and the id of the key at the start of a key or a signature of `length` bytes.
fn algorithm_and_id(base64: &str, length: usize) -> Option<([u8; 2], KeyId)> {
    let bytes = BASE64.decode(base64.as_bytes()).ok().filter(|bytes| bytes.len() == length)?;
    let (algorithm, rest) = bytes.split_first_chunk::<2>()?;
    Some((*algorithm, KeyId(*rest.first_chunk()?)))
}

/// Keys and signatures of the reference implementation.
#[cfg(test)]
mod examples {
    use super::*;

    /// A key of minisign, and its signatures of `test`.
    pub(super) const KEY: &str = "untrusted comment: minisign public key E7620F1842B4E81F\n\
        RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3\n";
    pub(super) const SIGNATURE: &str = "untrusted comment: signature from minisign secret key\n\
        RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=\n\
        trusted comment: timestamp:1556193335\tfile:test\n\
        y/rUw2y8/hOUYjZU71eHp/Wo1KZ40fGy2VJEDl34XMJM+TX48Ss/17u3IvIfbVR1FkZZSNCisQbuQY+bHwhEBg==\n";
    pub(super) const LEGACY_SIGNATURE: &str = "untrusted comment: signature from minisign secret key\n\
        RWQf6LRCGA9i59SLOFxz6NxvASXDJeRtuZykwQepbDEGt87ig1BNpWaVWuNrm73YiIiJbq71Wi+dP9eKL8OC351vwIasSSbXxwA=\n\
        trusted comment: timestamp:1555779966\tfile:test\n\
        QtKMXWyYcwdpZAlPF7tE2ENJkRd1ujvKjlj1m9RtHTBnZPa5WKU5uWRs5GoP5M/VqE81QFuMKI5k/SfNQUaOAA==\n";
    pub(super) const OTHER_KEY: &str = "untrusted comment: minisign public key 1\n\
        RWQBAAAAAAAAAHmlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3\n";

    pub(super) fn signature(text: &str) -> Result<FileSignature, SignatureError> {
        FileSignature::parse(Path::new("test.minisig"), text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::examples::{KEY, LEGACY_SIGNATURE, OTHER_KEY, SIGNATURE, signature};
    use super::*;

    fn keys(text: &str) -> MinisignKeys {
        MinisignKeys::from_file(Path::new("keys.pub"), Ok(text.into())).unwrap()
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

    /// A comment of any other text, or a lost line, is an error, and no input is accepted or
    /// panics.
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
    fn a_missing_and_a_large_file_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let (file, path) = (directory.path().join("test"), directory.path().join("test.minisig"));
        let keys = keys(KEY);
        let fails = |expected: &str| {
            let problem = keys.verify_beside(&file, [&b"test"[..]]).unwrap_err().to_string();
            assert!(problem.contains(expected), "{problem}");
        };
        fails("test.minisig is missing");
        std::fs::write(&path, " ".repeat((16 << 10) + 1)).unwrap();
        let large = "test.minisig: larger than 16 KiB: it has 16385 bytes (16.0 KiB); ";
        fails(&format!("{large}sign the file again with `minisign -S`, or fetch the signature"));
        let problem = MinisignKeys::read(&path).unwrap_err().to_string();
        let remedy = "give the file that `minisign -G` wrote for the public key (.pub)";
        assert!(problem.ends_with(&format!("{large}{remedy}")), "{problem}");
        std::fs::write(&path, b"\xff").unwrap();
        fails("not UTF-8 text; sign the file again");
    }
}
