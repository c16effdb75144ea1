//! `keygate proof create`: creates the proofs of a private key.

use std::fs::Permissions;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::ValueHint;
use serde::Serialize;

use super::{CliError, Exit, private_key, read};
use crate::cli::CliOutput;
use crate::proof;
use crate::spki::{Algorithm, Fingerprint};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// A private key that is not encrypted (PEM or DER), '-' for standard input.
    #[arg(value_name = "KEY", value_hint = ValueHint::FilePath)]
    key: PathBuf,
    /// The directory for the files. A proof of the same key is replaced.
    #[arg(long, value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// Create the proofs without asking. Required on a terminal.
    #[arg(long)]
    yes: bool,
    /// Print one JSON object per proof.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct CreatedRow {
    path: String,
    algorithm: String,
    fingerprint: String,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let content = read(&args.key)?;
    let key = private_key(&args.key, &content)?;
    let proofs = proof::create(key.secret_der())
        .map_err(|error| CliError::Operation(format!("{}: {error}", args.key.display())))?;
    let path = |fingerprint| args.dir.join(file_name(fingerprint));
    if !args.yes && io::stdin().is_terminal() {
        let files = proofs.iter().map(|proof| path(proof.fingerprint).display().to_string());
        return Err(CliError::Usage(format!(
            "anyone who has the proof can prove that this key is compromised, and no proof can be \
             withdrawn: --yes creates {}",
            files.collect::<Vec<_>>().join(" and ")
        )));
    }
    let mut output = CliOutput::new();
    for proof in proofs {
        let path = path(proof.fingerprint);
        write(&path, proof.json.as_bytes())
            .map_err(|source| CliError::File { path: path.clone(), source })?;
        let row = CreatedRow {
            path: path.display().to_string(),
            algorithm: Algorithm::of(&proof.spki).to_string(),
            fingerprint: proof.fingerprint.to_string(),
        };
        if args.json {
            output.json(&row)?;
        } else {
            output.line(&row.path)?;
        }
    }
    output.flush()?;
    Ok(Exit::Done)
}

/// The name under which a proof is looked for in a directory of proofs.
fn file_name(fingerprint: Fingerprint) -> String {
    format!("{fingerprint}.jws")
}

/// Writes a file that other users may read, because a proof is not secret. A reader finds the old
/// file or the whole new one.
fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut file = tempfile::Builder::new()
        .prefix(".proof-")
        .permissions(Permissions::from_mode(0o666)) // the umask applies
        .tempfile_in(directory.unwrap_or(Path::new(".")))?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
