//! The INPUT arguments: files, or `-` for standard input.

use std::fs::File;
use std::io::{self, Read};

use crate::spki::{self, InputError};

/// The largest input that is read, in bytes.
const MAX_INPUT_SIZE: u64 = 64 << 20;

/// Why an input has no key to look at.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnusableInput {
    #[error(transparent)]
    Content(#[from] InputError),
    #[error(transparent)]
    Read(#[from] io::Error),
}

/// The SubjectPublicKeyInfo (DER) of every key in an input.
pub(super) fn keys_of(input: &str) -> Result<Vec<Vec<u8>>, UnusableInput> {
    let bytes = match input {
        "-" => read_bounded(io::stdin().lock())?,
        path => read_bounded(File::open(path)?)?,
    };
    Ok(spki::keys_in(&bytes)?)
}

fn read_bounded(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(MAX_INPUT_SIZE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_INPUT_SIZE {
        let problem = format!("larger than {MAX_INPUT_SIZE} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(bytes)
}
