//! `keygate filter info`: what a filter file says of itself, and whether its bits bear it out.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use super::{CliError, Exit, read, say, say_json};
use crate::pkbf::{Filter, FilterSummary};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The filter file.
    file: PathBuf,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let file = read(&args.file)?;
    let info = FilterSummary::of(&args.file, &file.filter, file.sha256());
    let shown = if args.json { say_json(&info) } else { show(&info, &file.filter) };
    shown.map(|()| Exit::Done)
}

pub(super) fn show(info: &FilterSummary, filter: &Filter) -> Result<(), CliError> {
    let plausibility = filter.plausibility();
    let plausible = if plausibility.is_plausible() { "yes" } else { "no" };
    say(format_args!("file            {}", info.path))?;
    say(format_args!("sha256          {}", info.sha256))?;
    say(format_args!("revision        {}", info.revision))?;
    say(format_args!("updated         {}", date(info.updated)))?;
    say(format_args!("entries         {}", info.entries))?;
    say(format_args!("hash count (k)  {}", info.hash_count))?;
    let size = bytesize::ByteSize(info.size_bytes);
    say(format_args!("hash length (L) {} ({size} of bits)", info.hash_length))?;
    say(format_args!("bits set        {} ({:.3} %)", info.set_bits, info.fill_ratio * 100.0))?;
    say(format_args!("false positives {:.3e} for each look-up", info.false_positive_ratio))?;
    say(format_args!("plausible       {plausible}: {plausibility}"))
}

/// The time of a header, in seconds since the Unix epoch, for people.
pub(super) fn date(updated: u64) -> String {
    match UNIX_EPOCH.checked_add(Duration::from_secs(updated)) {
        _ if updated == 0 => "never".to_owned(),
        // humantime knows years up to 9999.
        Some(time) if updated < 253_402_300_800 => {
            humantime::format_rfc3339_seconds(time).to_string()
        }
        Some(_) | None => format!("{updated} s after the epoch"),
    }
}
