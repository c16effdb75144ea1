//! `keygate list info`: format, date and entries of a list.

use std::path::PathBuf;

use super::file::{FormatArgs, ListInfo};
use super::{CliError, Exit};
use crate::cli::signature::{self, SignatureArgs};
use crate::cli::{print, print_json};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The list file.
    file: PathBuf,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    signature: SignatureArgs,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let info = args.format.read(&args.file, &args.signature)?.info;
    let shown = if args.json { print_json(&info) } else { show(&info) };
    shown.map(|()| Exit::Done)
}

fn show(info: &ListInfo) -> Result<(), CliError> {
    print(format_args!("file     {}", info.path))?;
    print(format_args!("format   {}", info.format))?;
    print(format_args!("sha256   {}", info.sha256))?;
    let deprecated = if info.deprecated { " (the format is deprecated)" } else { "" };
    print(format_args!("date     {}{deprecated}", info.date()))?;
    signature::show("signed   ", info.signature.as_ref())?;
    print(format_args!("entries  {}", info.entries))?;
    info.parts
        .iter()
        .filter(|part| part.entries > 0)
        .try_for_each(|part| print(format_args!("  {:<9} {}", part.entries, part.name)))
}
