//! `keygate key`: algorithm and fingerprints of keys, in all related encodings.

use clap::ValueHint;
use serde::Serialize;

use super::input;
use super::progress::PerKeyOutput;
use super::{CliError, CliOutput, Exit};
use crate::spki::{Fingerprint, related};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(required = true, value_name = "INPUT", help = input::HELP, value_hint = ValueHint::AnyPath)]
    inputs: Vec<String>,
    /// Print one JSON object per key.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct KeyRow<'a> {
    input: &'a str,
    line: Option<u64>,
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
    let mut output = CliOutput::new();
    let counts = input::for_each_key(&args.inputs, PerKeyOutput::Yes, |key| {
        let encodings = related(key.spki).into_iter().map(|(encoding, spki)| NamedEncoding {
            encoding: encoding.as_str(),
            fingerprint: Fingerprint::of(&spki).to_string(),
        });
        let row = KeyRow {
            input: key.input,
            line: key.line,
            algorithm: key.algorithm(),
            fingerprint: key.fingerprint(),
            encodings: encodings.collect(),
        };
        if args.json {
            return output.json(&row);
        }
        output.line(format_args!("{}: {}", key.position(), row.algorithm))?;
        row.encodings.iter().try_for_each(|named| {
            output.line(format_args!("  {} {}", named.fingerprint, named.encoding))
        })
    })?;
    output.flush()?;
    Ok(counts.exit(Exit::Done))
}
