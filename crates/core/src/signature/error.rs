//! Errors of signatures and of the files of keys.

use std::io;
use std::path::PathBuf;

use crate::regular_file::{cause, explain_with_remedy};

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
    #[error("minisign_key {}: {}", path.display(), problem_of_keys(source))]
    Keys {
        /// The file of keys.
        path: PathBuf,
        /// Why the file cannot be used.
        source: SignatureFileError,
    },
    /// The signature file does not exist.
    #[error(
        "{} is missing: sign the file with `minisign -S`, or fetch the signature too, because minisign_key needs it",
        signature.display()
    )]
    Missing {
        /// The signature file.
        signature: PathBuf,
    },
    /// A copy in the state directory has no signature.
    #[error(
        "{} has no signature, because minisign_key was not set when the copy was written; mend the file itself, which the copy cannot replace",
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
    #[error("{}: {}", path.display(), problem_of_signature(source))]
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
        /// The content of this line in the format.
        expected: &'static str,
    },
    /// The file cannot be read.
    #[error("{}", cause(.0))]
    Read(#[from] io::Error),
    /// The file has a secret key.
    #[error("a secret key of minisign")]
    SecretKey,
    /// The file is not UTF-8 text.
    #[error("not UTF-8 text")]
    Text,
}

/// The problem of a file of keys, and the remedy.
fn problem_of_keys(problem: &SignatureFileError) -> String {
    const GIVE_FILE: &str = "give the file that `minisign -G` wrote for the public key (.pub)";
    let remedy = match problem {
        SignatureFileError::Read(error) => return explain_with_remedy(error, GIVE_FILE),
        SignatureFileError::SecretKey => {
            "give the file of the public key (.pub), and remove the secret key from this machine"
        }
        SignatureFileError::Algorithm
        | SignatureFileError::Legacy
        | SignatureFileError::Line { .. }
        | SignatureFileError::Text => GIVE_FILE,
    };
    format!("{problem}; {remedy}")
}

/// The problem of a signature file, and the remedy.
fn problem_of_signature(problem: &SignatureFileError) -> String {
    const SIGN: &str = "sign the file again with `minisign -S`, or fetch the signature again";
    match problem {
        SignatureFileError::Legacy => problem.to_string(),
        SignatureFileError::Read(error) => explain_with_remedy(error, SIGN),
        SignatureFileError::Algorithm
        | SignatureFileError::Line { .. }
        | SignatureFileError::SecretKey
        | SignatureFileError::Text => format!("{problem}; {SIGN}"),
    }
}
