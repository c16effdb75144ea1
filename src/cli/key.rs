//! `keygate key`: what a key is called, in all its encodings.

use serde::Serialize;

use super::{CliError, Exit, Output, input};
use crate::spki::{Algorithm, Fingerprint, related};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(required = true, value_name = "INPUT", help = input::HELP)]
    inputs: Vec<String>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Key<'a> {
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
    let mut output = Output::new();
    let tally = input::for_each_key(&args.inputs, true, |key| {
        let encodings = related(key.spki).into_iter().map(|(encoding, spki)| NamedEncoding {
            encoding: encoding.as_str(),
            fingerprint: Fingerprint::of(&spki).to_string(),
        });
        let key = Key {
            input: key.input,
            line: key.line,
            algorithm: Algorithm::of(key.spki).to_string(),
            fingerprint: Fingerprint::of(key.spki).to_string(),
            encodings: encodings.collect(),
        };
        if args.json { output.json(&key) } else { show(&mut output, &key) }
    })?;
    output.end()?;
    Ok(tally.exit(Exit::Done))
}

fn show(output: &mut Output, key: &Key<'_>) -> Result<(), CliError> {
    let line = key.line.map(|line| format!(":{line}")).unwrap_or_default();
    output.line(format_args!("{}{line}: {}", key.input, key.algorithm))?;
    key.encodings.iter().try_for_each(|named| {
        output.line(format_args!("  {} {}", named.fingerprint, named.encoding))
    })
}
