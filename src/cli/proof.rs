//! `keygate proof`: verifies and creates proofs that a key is compromised.

mod create;
mod verify;

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use keygate_core::regular_file::FileSize;
use keygate_core::spki::{Fingerprint, InputError, keys_in};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use zeroize::Zeroizing;

use super::{CliError, Exit};

#[derive(Debug, clap::Subcommand)]
pub(super) enum ProofCommand {
    /// Create the proofs of a private key: anyone who has one can prove that the key is
    /// compromised.
    ///
    /// Writes FINGERPRINT.jws into a directory, for use as `confirm.proofs` or on a mirror. An
    /// elliptic-curve key has two files, one for each form of its point. The statement is the one
    /// of pwnedkeys. A proof cannot be withdrawn. On a terminal, --yes is required.
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
fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, CliError> {
    let failed = |source| CliError::File { path: path.to_owned(), source };
    let mut content = Zeroizing::new(Vec::new());
    let read = if path.as_os_str() == "-" {
        io::stdin().lock().take(MAX_SIZE + 1).read_to_end(&mut content)
    } else {
        File::open(path).and_then(|file| file.take(MAX_SIZE + 1).read_to_end(&mut content))
    };
    let found = read.map_err(failed)? as u64;
    if found > MAX_SIZE {
        let problem = format!(
            "larger than {}, so it is neither a proof nor a private key",
            FileSize(MAX_SIZE)
        );
        return Err(failed(io::Error::other(problem)));
    }
    Ok(content)
}

/// The first private key in PEM, or the private key in DER.
fn private_key(path: &Path, content: &[u8]) -> Result<Zeroizing<PrivateKeyDer<'static>>, CliError> {
    let pem = PrivateKeyDer::from_pem_slice(content);
    let key = pem.or_else(|_| PrivateKeyDer::try_from(content.to_vec()));
    key.map(Zeroizing::new).map_err(|_| {
        let mut errors = keys_in(content).into_iter().filter_map(|finding| finding.key.err());
        let reason = match errors.next() {
            Some(error @ InputError::Encrypted { .. }) => error.to_string(),
            Some(_) | None => reason_without_key(content).to_owned(),
        };
        CliError::Operation(format!("{}: {reason}", path.display()))
    })
}

/// Why a file has no private key that can be used.
fn reason_without_key(content: &[u8]) -> &'static str {
    const OPENSSH: &[u8] = b"BEGIN OPENSSH PRIVATE KEY";
    if content.windows(OPENSSH.len()).any(|it| it == OPENSSH) {
        return "no private key in PEM or DER; `ssh-keygen -p -m PEM -f FILE` converts an OpenSSH key";
    }
    if keys_in(content).iter().any(|finding| finding.key.is_ok()) {
        return "no private key in PEM or DER, but a certificate or a public key; give the private key";
    }
    "no private key in PEM or DER"
}

/// The name under which a proof is looked for in a directory of proofs.
fn file_name(fingerprint: Fingerprint) -> String {
    format!("{fingerprint}.jws")
}

/// Checks that the directory for proofs, which the option `option` names, exists.
pub(super) fn check_directory(option: &str, directory: &Path) -> Result<(), CliError> {
    let problem = |problem: &dyn std::fmt::Display| {
        CliError::Operation(format!("{option} {}: {problem}", directory.display()))
    };
    match std::fs::metadata(directory) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(problem(&"not a directory; name another one")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(problem(&"there is no such directory; create it"))
        }
        Err(error) => Err(problem(&error)),
    }
}

/// Writes a proof into `directory`, for all users, because a proof is not secret. A reader finds
/// the old file or the whole new one.
pub(super) fn write(
    directory: &Path,
    fingerprint: Fingerprint,
    body: &[u8],
) -> Result<PathBuf, CliError> {
    let path = directory.join(file_name(fingerprint));
    let written = tempfile::Builder::new()
        .prefix(".proof-")
        .permissions(Permissions::from_mode(0o666)) // the umask applies
        .tempfile_in(directory)
        .and_then(|mut file| {
            file.write_all(body)?;
            file.as_file().sync_all()?;
            file.persist(&path).map_err(|error| error.error)
        });
    match written {
        Ok(_) => Ok(path),
        Err(source) => Err(CliError::File { path, source }),
    }
}
