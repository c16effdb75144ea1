//! `keygate filter info`: header, size, fill and plausibility of a filter.

use std::path::PathBuf;

use keygate_core::pkbf::{Filter, FilterSummary};
use keygate_core::unix_time::dated;
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
        summary: FilterSummary::new(&args.file, &file.filter, file.sha256()),
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
    properties(info)
        .iter()
        .try_for_each(|(name, value)| print(format_args!("{name:<16}{value}")))?;
    print(format_args!("plausible       {plausible}: {plausibility}"))
}

/// The properties that two filters are compared by, with their names.
pub(super) fn properties(info: &FilterSummary) -> [(&'static str, String); 7] {
    let size = bytesize::ByteSize(info.size_bytes);
    [
        ("revision", info.revision.to_string()),
        ("updated", if info.updated == 0 { "never".to_owned() } else { dated(info.updated) }),
        ("entries", info.entries.to_string()),
        ("hash count (k)", info.hash_count.to_string()),
        ("hash length (L)", format!("{} ({size} of bits)", info.hash_length)),
        ("bits set", format!("{} ({:.3} %)", info.set_bits, info.fill_ratio * 100.0)),
        ("false positives", format!("{:.3e} per lookup", info.false_positive_ratio)),
    ]
}
