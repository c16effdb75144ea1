//! `keygate proof create`: creates the proofs of a private key.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::ValueHint;
use keygate_core::proof;
use keygate_core::spki::Algorithm;
use serde::Serialize;

use super::{CliError, Exit, check_directory, file_name, private_key, read, write};
use crate::cli::CliOutput;

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
    let proofs =
        proof::create(key.secret_der()).map_err(|error| CliError::file(&args.key, error))?;
    let path = |fingerprint| args.dir.join(file_name(fingerprint));
    if !args.yes && io::stdin().is_terminal() {
        let files = proofs.iter().map(|proof| path(proof.fingerprint).display().to_string());
        return Err(CliError::Usage(format!(
            "anyone who has the proof can prove that this key is compromised, and no proof can be \
             withdrawn: --yes creates {}",
            files.collect::<Vec<_>>().join(" and ")
        )));
    }
    check_directory(&args.dir)?;
    let mut output = CliOutput::new();
    for proof in proofs {
        let path = write(&args.dir, proof.fingerprint, proof.json.as_bytes())?;
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
