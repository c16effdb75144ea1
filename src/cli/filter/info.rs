//! `keygate filter info`: header, size, fill and plausibility of a filter.

use std::path::PathBuf;

use keygate_core::pkbf::{Filter, FilterSummary};
use keygate_core::unix_time::{dated, utc};
use serde::Serialize;

use super::{CliError, Exit, print, print_json, read};
use crate::cli::signature::{self, SignatureArgs, SignatureInfo};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The filter file.
    file: PathBuf,
    #[command(flatten)]
    signature: SignatureArgs,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// The properties of a filter file.
#[derive(Debug, Serialize)]
struct FilterInfo {
    #[serde(flatten)]
    summary: FilterSummary,
    /// The signature beside the file; null without one.
    signature: Option<SignatureInfo>,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let file = read(&args.file)?;
    let (header, bits) = file.filter.to_parts();
    let info = FilterInfo {
        summary: FilterSummary::of(&args.file, &file.filter, file.sha256()),
        signature: args.signature.check(&args.file, &[&header, bits])?,
    };
    if args.json {
        print_json(&info)?;
    } else {
        show(&info.summary, &file.filter)?;
        signature::show("signature       ", info.signature.as_ref())?;
    }
    Ok(Exit::Done)
}

pub(super) fn show(info: &FilterSummary, filter: &Filter) -> Result<(), CliError> {
    let plausibility = filter.plausibility();
    let plausible = if plausibility.is_plausible() { "yes" } else { "no" };
    print(format_args!("file            {}", info.path))?;
    print(format_args!("sha256          {}", info.sha256))?;
    print(format_args!("revision        {}", info.revision))?;
    let updated = if info.updated == 0 { date(0) } else { dated(info.updated) };
    print(format_args!("updated         {updated}"))?;
    print(format_args!("entries         {}", info.entries))?;
    print(format_args!("hash count (k)  {}", info.hash_count))?;
    let size = bytesize::ByteSize(info.size_bytes);
    print(format_args!("hash length (L) {} ({size} of bits)", info.hash_length))?;
    print(format_args!("bits set        {} ({:.3} %)", info.set_bits, info.fill_ratio * 100.0))?;
    print(format_args!("false positives {:.3e} per lookup", info.false_positive_ratio))?;
    print(format_args!("plausible       {plausible}: {plausibility}"))
}

/// Formats the time of a filter header, given in seconds since the Unix epoch.
pub(super) fn date(updated: u64) -> String {
    if updated == 0 { "never".to_owned() } else { utc(updated) }
}
