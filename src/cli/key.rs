//! `keygate key`: what a key is called, in all its encodings.

use serde::Serialize;

use super::{CliError, Exit, complain, input, say, say_json};
use crate::spki::{Algorithm, Fingerprint, related};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Certificates, requests, public or private keys, in PEM or DER; `-` for standard input.
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<String>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Key<'a> {
    input: &'a str,
    algorithm: String,
    fingerprint: String,
    encodings: Vec<NamedEncoding>,
}

#[derive(Serialize)]
struct NamedEncoding {
    encoding: &'static str,
    fingerprint: String,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let mut exit = Exit::Done;
    for input in &args.inputs {
        match input::keys_of(input) {
            Ok(keys) => keys.iter().try_for_each(|spki| show(args, input, spki))?,
            Err(error) => {
                complain(&format_args!("{input}: {error}"));
                exit = Exit::Incomplete;
            }
        }
    }
    Ok(exit)
}

fn show(args: &Args, input: &str, spki: &[u8]) -> Result<(), CliError> {
    let encodings = related(spki).into_iter().map(|(encoding, spki)| NamedEncoding {
        encoding: encoding.as_str(),
        fingerprint: Fingerprint::of(&spki).to_string(),
    });
    let key = Key {
        input,
        algorithm: Algorithm::of(spki).to_string(),
        fingerprint: Fingerprint::of(spki).to_string(),
        encodings: encodings.collect(),
    };
    if args.json {
        return say_json(&key);
    }
    say(format_args!("{input}: {}", key.algorithm))?;
    key.encodings
        .iter()
        .try_for_each(|named| say(format_args!("  {} {}", named.fingerprint, named.encoding)))
}
