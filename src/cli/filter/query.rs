//! `keygate filter query`: a verdict for each key.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use clap::ValueHint;
use serde::Serialize;

use super::{CliError, Exit, Output, input, read};
use crate::guard::{Guard, NamedFilter, Verdict};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The filter file.
    file: PathBuf,
    #[arg(required = true, value_name = "INPUT", help = input::HELP, value_hint = ValueHint::AnyPath)]
    inputs: Vec<String>,
    /// Ask for each key as it is given, as the reference implementation does, and for none of its
    /// other encodings.
    #[arg(long)]
    exact: bool,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    input: &'a str,
    line: Option<u64>,
    algorithm: String,
    fingerprint: String,
    verdict: &'static str,
    encoding: Option<&'static str>,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let file = read(&args.file)?;
    let named = Arc::new(NamedFilter {
        name: args.file.display().to_string().into(),
        filter: file.filter,
        sha256: [0; 32], // nobody asks
    });
    let guard = Guard::new(vec![Arc::clone(&named)]);
    let now = SystemTime::now();
    let mut output = Output::new();
    let mut exit = Exit::Done;
    let tally = input::for_each_key(&args.inputs, true, |key| {
        // The filter itself answers for exactly these bytes.
        let verdict = if args.exact && !named.filter.contains(key.spki) {
            Verdict::Clean
        } else {
            guard.judge_key(key.spki, now)
        };
        let answer = Answer {
            input: key.input,
            line: key.line,
            algorithm: key.algorithm(),
            fingerprint: key.fingerprint(),
            verdict: verdict.as_str(),
            encoding: verdict.hit().map(|hit| hit.encoding.as_str()),
        };
        if answer.encoding.is_some() {
            exit = Exit::Found;
        }
        if args.json {
            return output.json(&answer);
        }
        let Answer { algorithm, fingerprint, verdict, encoding, .. } = answer;
        let encoding = encoding.map(|encoding| format!(" ({encoding})")).unwrap_or_default();
        let place = key.place();
        output.line(format_args!("{verdict} {fingerprint} {algorithm} {place}{encoding}"))
    })?;
    output.end()?;
    Ok(tally.exit(exit))
}
