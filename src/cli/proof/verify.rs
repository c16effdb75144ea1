//! `keygate proof verify`: verifies a proof against keys.

use std::path::PathBuf;

use clap::ValueHint;
use keygate_core::proof::{self, BadProof};
use keygate_core::spki::{Encoding, Fingerprint, for_each_related};
use serde::Serialize;
use serde_json::json;

use super::{CliError, Exit, private_key, read};
use crate::cli::input::{self, FoundKey, KeyFields};
use crate::cli::progress::PerKeyOutput;
use crate::cli::{CliOutput, print_error};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// A response of the pwnedkeys API (flattened JWS), or a private key that is not encrypted (PEM
    /// or DER); '-' for standard input.
    #[arg(value_name = "PROOF", value_hint = ValueHint::FilePath)]
    proof: PathBuf,
    #[arg(value_name = "KEY", help = input::HELP, value_hint = ValueHint::AnyPath)]
    keys: Vec<String>,
    #[command(flatten)]
    passphrase: input::PassphraseArgs,
    /// Print one JSON object per key.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct VerifyRow<'a> {
    #[serde(flatten)]
    key: KeyFields<'a>,
    proved: bool,
    /// The encoding that the proof is for; `None` if there is no proof.
    encoding: Option<&'static str>,
    /// The reason why there is no proof, one word.
    reason: Option<&'static str>,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let proofs = proofs(args)?;
    let mut output = CliOutput::new();
    if args.keys.is_empty() {
        for body in &proofs {
            show_form(args, &mut output, body)?;
        }
        output.flush()?;
        print_error(&"no key given: no signature was verified");
        return Ok(Exit::NotProved);
    }
    let mut is_any_proved = false;
    let counts = input::for_each_key(&args.keys, &args.passphrase, PerKeyOutput::Yes, |key| {
        let outcome = verify(&proofs, key.spki);
        is_any_proved |= outcome.is_ok();
        show(args, &mut output, key, &proofs, outcome)
    })?;
    output.flush()?;
    // A key that was proved compromised counts more than an input that could not be read.
    if is_any_proved {
        return Ok(Exit::Done);
    }
    Ok(counts.exit(Exit::NotProved))
}

/// The proofs in the argument. A private key signs its own, so that its public half need not be
/// trusted.
fn proofs(args: &Args) -> Result<Vec<Vec<u8>>, CliError> {
    let content = read(&args.proof)?;
    if content.trim_ascii_start().first() == Some(&b'{') {
        return Ok(vec![content.to_vec()]);
    }
    let key = private_key(&args.proof, &content)?;
    let created =
        proof::create(key.secret_der()).map_err(|error| CliError::file(&args.proof, error))?;
    Ok(created.into_iter().map(|created| created.json.into_bytes()).collect())
}

/// Verifies with the encoding of the key that a proof is for.
fn verify(proofs: &[Vec<u8>], spki: &[u8]) -> Result<Encoding, BadProof> {
    let mut outcome = Err(BadProof::KeyId);
    for body in proofs {
        let fingerprint = match proof::form(body) {
            Ok(fingerprint) => fingerprint,
            Err(reason) => {
                outcome = outcome.or(Err(reason));
                continue;
            }
        };
        for_each_related(spki, |encoding, spki| {
            if outcome.is_err() && Fingerprint::of(spki) == fingerprint {
                outcome = proof::verify_with_rsa_1024(body, spki).map(|_| encoding);
            }
        });
    }
    outcome
}

fn show(
    args: &Args,
    output: &mut CliOutput,
    key: &FoundKey<'_>,
    proofs: &[Vec<u8>],
    outcome: Result<Encoding, BadProof>,
) -> Result<(), CliError> {
    let row = VerifyRow {
        key: key.fields(),
        proved: outcome.is_ok(),
        encoding: outcome.ok().map(Encoding::as_str),
        reason: outcome.err().map(BadProof::as_str),
    };
    if args.json {
        return output.json(&row);
    }
    let KeyFields { algorithm, fingerprint, .. } = row.key;
    let position = key.position();
    match outcome {
        Ok(encoding) => {
            let encoding = encoding.as_str();
            output.line(format_args!("proved {fingerprint} {algorithm} {position} ({encoding})"))
        }
        Err(reason) => {
            let other = proofs.first().filter(|_| reason == BadProof::KeyId);
            let reason = match other.map(|body| proof::form(body)) {
                Some(Ok(other)) => format!("the proof is for another key, {other}"),
                Some(Err(_)) | None => reason.to_string(),
            };
            output.line(format_args!("unproved {fingerprint} {algorithm} {position}: {reason}"))
        }
    }
}

/// Shows the `kid` of a proof that was not verified against a key.
fn show_form(args: &Args, output: &mut CliOutput, body: &[u8]) -> Result<(), CliError> {
    let form = proof::form(body);
    if args.json {
        let fingerprint = form.ok().map(|fingerprint| fingerprint.to_string());
        let reason = form.err().map(BadProof::as_str);
        return output.json(&json!({ "fingerprint": fingerprint, "reason": reason }));
    }
    match form {
        Ok(fingerprint) => output.line(format_args!("unverified {fingerprint}")),
        Err(reason) => output.line(format_args!("not a proof: {reason}")),
    }
}
