//! The public keys of minisign that the operator has chosen.

use std::io;
use std::path::{Path, PathBuf};

use minisign_verify::PublicKey;

use super::{
    FileSignature, KeyId, MAX_SIZE, SignatureError, SignatureFileError, UNTRUSTED,
    algorithm_and_id, signature_path, text_of,
};
use crate::regular_file;

/// Length of a public key with its algorithm and id, in bytes.
const KEY_LENGTH: usize = 42;
/// Length of a secret key with all that minisign stores with it, in bytes.
const SECRET_KEY_LENGTH: usize = 158;

/// The public keys in a file, any of which may have made a signature. A key that is being replaced
/// can stay beside the next one.
#[derive(Debug)]
pub struct MinisignKeys {
    path: PathBuf,
    /// At least one.
    keys: Vec<(KeyId, PublicKey)>,
}

impl MinisignKeys {
    /// Reads the public keys in the file at `path`: each has a line with a comment and a line with
    /// the key, as minisign writes them.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is larger than 16 KiB, or has anything but
    /// keys.
    pub fn read(path: &Path) -> Result<Self, SignatureError> {
        Self::from_file(path, regular_file::read(path, MAX_SIZE))
    }

    /// The public keys in a file, which was read with this result.
    ///
    /// # Errors
    /// Returns an error if the file could not be read, or has anything but keys.
    pub fn from_file(path: &Path, content: io::Result<Vec<u8>>) -> Result<Self, SignatureError> {
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

    /// Reads the signature beside the file at `path`, and verifies that it is of `content`, which
    /// was read from that file.
    ///
    /// # Errors
    /// Returns an error if there is no signature, or if it is not valid.
    pub fn verify_beside<'a>(
        &self,
        path: &Path,
        content: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<FileSignature, SignatureError> {
        let path = signature_path(path);
        let signature = FileSignature::from_file(&path, regular_file::read(&path, MAX_SIZE))?;
        self.verify(&signature, content)?;
        Ok(signature)
    }
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
        if algorithm_and_id(key, SECRET_KEY_LENGTH).is_some() {
            return Err(SignatureFileError::SecretKey);
        }
        let Some((_, id)) = algorithm_and_id(key, KEY_LENGTH) else { return Err(wrong) };
        PublicKey::from_base64(key).map(|key| (id, key)).map_err(|_| wrong)
    });
    let keys: Vec<_> = keys.collect::<Result<_, _>>()?;
    if keys.is_empty() {
        return Err(SignatureFileError::Line { line: 1, expected: EXPECTED });
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::super::examples::{KEY, SIGNATURE};
    use super::*;

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
}
