//! `keygate key`: what a key is called, in all its encodings.

use clap::ValueHint;
use serde::Serialize;

use super::{CliError, Exit, Output, input};
use crate::spki::{Fingerprint, related};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(required = true, value_name = "INPUT", help = input::HELP, value_hint = ValueHint::AnyPath)]
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
        let shown = Key {
            input: key.input,
            line: key.line,
            algorithm: key.algorithm(),
            fingerprint: key.fingerprint(),
            encodings: encodings.collect(),
        };
        if args.json {
            return output.json(&shown);
        }
        output.line(format_args!("{}: {}", key.place(), shown.algorithm))?;
        shown.encodings.iter().try_for_each(|named| {
            output.line(format_args!("  {} {}", named.fingerprint, named.encoding))
        })
    })?;
    output.end()?;
    Ok(tally.exit(Exit::Done))
}
