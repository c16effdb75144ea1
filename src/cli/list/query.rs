//! `keygate list query`: prints a verdict for each key.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::ValueHint;
use serde::Serialize;

use super::file::FormatArgs;
use super::{CliError, Exit, input};
use crate::cli::counted::counted;
use crate::cli::progress::PerKeyOutput;
use crate::cli::{CliOutput, print_error};
use crate::guard::{Guard, Listing};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The list file.
    file: PathBuf,
    #[arg(required = true, value_name = "INPUT", help = input::HELP, value_hint = ValueHint::AnyPath)]
    inputs: Vec<String>,
    #[command(flatten)]
    passphrase: input::PassphraseArgs,
    #[command(flatten)]
    format: FormatArgs,
    /// Print one JSON object per key.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct QueryRow<'a> {
    input: &'a str,
    line: Option<u64>,
    algorithm: String,
    fingerprint: String,
    verdict: &'static str,
    encoding: Option<&'static str>,
    finding: Option<&'a str>,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let guard = Guard::default().with_lists([args.format.read(&args.file)?.list]);
    let now = SystemTime::now();
    let mut output = CliOutput::new();
    let mut hits = 0_u64;
    let counts = input::for_each_key(&args.inputs, &args.passphrase, PerKeyOutput::Yes, |key| {
        let verdict = guard.judge_key(key.spki, now);
        let listing = verdict.listing();
        let row = QueryRow {
            input: key.input,
            line: key.line,
            algorithm: key.algorithm(),
            fingerprint: key.fingerprint(),
            verdict: name_of(listing),
            encoding: listing.map(|listing| listing.encoding.as_str()),
            finding: listing.and_then(|listing| listing.finding.as_deref()),
        };
        hits += u64::from(listing.is_some());
        if args.json {
            return output.json(&row);
        }
        let QueryRow { algorithm, fingerprint, verdict, encoding, finding, .. } = row;
        let details: Vec<_> = encoding.into_iter().chain(finding).collect();
        let details = match details.is_empty() {
            true => String::new(),
            false => format!(" ({})", details.join(", ")),
        };
        let position = key.position();
        output.line(format_args!("{verdict} {fingerprint} {algorithm} {position}{details}"))
    })?;
    output.flush()?;
    // One readable input needs no summary, and the lack of inputs was reported.
    if counts.inputs > 1 || counts.inputs == 1 && counts.unusable > 0 {
        let (keys, inputs) = (counted(counts.keys, "key"), counted(counts.inputs, "input"));
        let unusable = match counts.unusable_inputs {
            0 => String::new(),
            count => format!("; {} with places that could not be read", counted(count, "input")),
        };
        print_error(&format_args!("{keys} in {inputs}, {hits} on the list{unusable}"));
    }
    Ok(counts.exit(if hits > 0 { Exit::Found } else { Exit::Done }))
}

/// The name of the verdict that follows from the list alone.
pub(super) fn name_of(listing: Option<&Listing>) -> &'static str {
    if listing.is_some() { "listed" } else { "clean" }
}
