//! `keygate proof`: verifies and creates proofs that a key is compromised.

mod create;
mod verify;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use keygate_core::regular_file::FileSize;
use keygate_core::spki::{Fingerprint, InputError, keys_in};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use zeroize::Zeroizing;

use super::output::replace;
use super::{CliError, Exit};

#[derive(Debug, clap::Subcommand)]
pub(super) enum ProofCommand {
    /// Create the proofs of a private key: anyone who has one can prove that the key is
    /// compromised.
    ///
    /// Writes FINGERPRINT.jws into a directory, for use as `confirm.proofs` or on a mirror. An
    /// elliptic-curve key has two files, one for each form of its point. The statement is the same
    /// as in pwnedkeys. A proof cannot be withdrawn. On a terminal, --yes is required.
    Create(create::Args),
    /// Verify a proof without a network: exit code 0 if it proves that a given key is compromised.
    ///
    /// PROOF is a response of the pwnedkeys API or a private key. Prints a line for each key. A key
    /// is proved compromised if PROOF is for any of its encodings. Without KEY, prints the
    /// fingerprint in the proof, verifies no signature, and exits with code 1.
    Verify(verify::Args),
}

pub(super) fn run(command: &ProofCommand) -> Result<Exit, CliError> {
    match command {
        ProofCommand::Create(args) => create::run(args),
        ProofCommand::Verify(args) => verify::run(args),
    }
}

/// Maximum size of an argument that is a proof or a private key, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// Reads a file, or standard input if `path` is `-`. The content may be a private key.
pub(super) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, CliError> {
    let mut content = Zeroizing::new(Vec::new());
    let read = if path.as_os_str() == "-" {
        io::stdin().lock().take(MAX_SIZE + 1).read_to_end(&mut content)
    } else {
        File::open(path).and_then(|file| file.take(MAX_SIZE + 1).read_to_end(&mut content))
    };
    if read.map_err(|error| CliError::io(path, &error))? as u64 > MAX_SIZE {
        let problem =
            format!("larger than {}: neither a proof nor a private key", FileSize(MAX_SIZE));
        return Err(CliError::file(path, problem));
    }
    Ok(content)
}

const NO_KEY: &str =
    "no private key in PEM or DER; `ssh-keygen -p -m PEM -f FILE` converts an OpenSSH key";

/// The first private key in PEM, or the private key in DER.
pub(super) fn private_key(
    path: &Path,
    content: &[u8],
) -> Result<Zeroizing<PrivateKeyDer<'static>>, CliError> {
    let pem = PrivateKeyDer::from_pem_slice(content);
    let key = pem.or_else(|_| PrivateKeyDer::try_from(content.to_vec()));
    key.map(Zeroizing::new).map_err(|_| {
        let mut errors = keys_in(content).into_iter().filter_map(|finding| finding.key.err());
        match errors.next() {
            Some(error @ InputError::Encrypted { .. }) => CliError::file(path, error.to_string()),
            Some(_) | None => CliError::file(path, NO_KEY),
        }
    })
}

/// The name under which a proof is looked for in a directory of proofs.
pub(super) fn file_name(fingerprint: Fingerprint) -> String {
    format!("{fingerprint}.jws")
}

/// Checks that the directory for proofs exists.
pub(super) fn check_directory(directory: &Path) -> Result<(), CliError> {
    match std::fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(CliError::io(directory, &io::ErrorKind::NotADirectory.into())),
        Err(error) => Err(CliError::io(directory, &error)),
    }
}

/// Writes a proof into `directory`, for all users, because a proof is not secret.
pub(super) fn write(
    directory: &Path,
    fingerprint: Fingerprint,
    body: &[u8],
) -> Result<PathBuf, CliError> {
    let path = directory.join(file_name(fingerprint));
    replace(&path, body)?;
    Ok(path)
}
