//! `keygate filter info`: what a filter file says of itself, and whether its bits bear it out.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use super::{CliError, Exit, read, say, say_json};
use crate::pkbf::Filter;

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
    let info = Info::of(&args.file, &file.filter, file.sha256());
    let shown = if args.json { say_json(&info) } else { show(&info, &file.filter) };
    shown.map(|()| Exit::Done)
}

/// A filter as every command describes it.
#[derive(Debug, Serialize)]
pub(super) struct Info {
    pub(super) path: String,
    pub(super) revision: u32,
    pub(super) updated: u64,
    pub(super) entries: u32,
    pub(super) hash_count: u8,
    pub(super) hash_length: u8,
    pub(super) size_bytes: u64,
    pub(super) set_bits: u64,
    pub(super) fill_ratio: f64,
    pub(super) false_positive_ratio: f64,
    pub(super) plausible: bool,
    pub(super) sha256: String,
}

impl Info {
    pub(super) fn of(path: &Path, filter: &Filter, sha256: &[u8; 32]) -> Self {
        let header = filter.header();
        Self {
            path: path.display().to_string(),
            revision: header.revision,
            updated: header.updated_at,
            entries: header.entry_count,
            hash_count: header.hash_count,
            hash_length: header.hash_length,
            size_bytes: header.data_size(),
            set_bits: filter.set_bits(),
            fill_ratio: filter.fill_ratio(),
            false_positive_ratio: filter.false_positive_ratio(),
            plausible: filter.plausibility().is_plausible(),
            sha256: data_encoding::HEXLOWER.encode(sha256),
        }
    }
}

pub(super) fn show(info: &Info, filter: &Filter) -> Result<(), CliError> {
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
