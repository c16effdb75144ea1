//! `keygate list query`: prints a verdict for each key.

use std::path::PathBuf;
use std::time::SystemTime;

use keygate_core::guard::Guard;
use keygate_core::spki::Encoding;

use super::file::FormatArgs;
use super::{CliError, Exit};
use crate::cli::input::InputArgs;
use crate::cli::signature::SignatureArgs;
use crate::cli::verdict_rows::FileVerdict;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The list file.
    file: PathBuf,
    #[command(flatten)]
    inputs: InputArgs,
    #[command(flatten)]
    format: FormatArgs,
    /// Print one JSON object per key.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let list = args.format.read(&args.file, &SignatureArgs::default())?.list;
    let guard = Guard::of_list(list);
    let now = SystemTime::now();
    args.inputs.print_verdicts(args.json, "on the list", |spki| {
        let verdict = guard.judge_key(spki, now);
        let listing = verdict.listing();
        Ok(FileVerdict {
            name: verdict.as_str(),
            encoding: listing.map(|listing| listing.encoding).or_else(|| {
                verdict.weakness().map(|_| Encoding::RsaModulus) // it has a prime of the list
            }),
            finding: Some(listing.and_then(|listing| listing.finding.clone())),
        })
    })
}
