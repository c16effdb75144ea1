//! `keygate list query`: prints a verdict for each key.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::ValueHint;
use keygate_core::guard::Guard;

use super::file::FormatArgs;
use super::{CliError, Exit, input};
use crate::cli::verdict_rows::{FileVerdict, JudgedInputs};

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

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let guard = Guard::default().with_lists([args.format.read(&args.file)?.list]);
    let now = SystemTime::now();
    let Args { inputs, passphrase, json, .. } = args;
    JudgedInputs { inputs, passphrase, json: *json }.print_verdicts("on the list", |spki| {
        let verdict = guard.judge_presented_key(spki, now);
        let listing = verdict.listing();
        Ok(FileVerdict {
            name: verdict.as_str(),
            encoding: listing.map(|listing| listing.encoding),
            finding: Some(listing.and_then(|listing| listing.finding.clone())),
        })
    })
}
