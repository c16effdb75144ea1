//! `keygate list diff`: compares two lists.

use std::path::PathBuf;

use keygate_core::guard::{ExactList, Guard};
use serde::Serialize;

use super::file::{FormatArgs, ListFile, ListInfo};
use super::{CliError, Exit};
use crate::cli::CliOutput;
use crate::cli::input::InputArgs;
use crate::cli::signature::SignatureArgs;
use crate::cli::verdict_rows::{NewHitsLimit, print_compared};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The list in use.
    before: PathBuf,
    /// The new list.
    after: PathBuf,
    #[command(flatten)]
    inputs: InputArgs<false>,
    #[command(flatten)]
    limit: NewHitsLimit,
    #[command(flatten)]
    format: FormatArgs,
    /// Print a JSON object, then one per line for each key whose verdict changes.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct ListDiff {
    same: bool,
    before: ListInfo,
    after: ListInfo,
    /// Entries only in `before`; null if the lists differ in format.
    lost: Option<usize>,
    /// Entries only in `after`; null if the lists differ in format.
    gained: Option<usize>,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let read = |path| args.format.read(path, &SignatureArgs::default());
    let (difference, lists) = ListDiff::new(read(&args.before)?, read(&args.after)?);
    let exit = if difference.same { Exit::Done } else { Exit::Found };
    let mut output = CliOutput::new();
    let shown = if args.json { output.json(&difference) } else { show(&mut output, &difference) };
    shown?;
    let guards = lists.map(Guard::of_list);
    args.inputs.print_changes(args.json, &mut output, &guards, &args.limit, exit)
}

impl ListDiff {
    fn new(before: ListFile, after: ListFile) -> (Self, [ExactList; 2]) {
        let changes = before.list.difference(&after.list);
        let difference = Self {
            same: before.info.sha256 == after.info.sha256,
            before: before.info,
            after: after.info,
            lost: changes.map(|(lost, _)| lost),
            gained: changes.map(|(_, gained)| gained),
        };
        (difference, [before.list, after.list])
    }
}

fn show(output: &mut CliOutput, difference: &ListDiff) -> Result<(), CliError> {
    let ListDiff { before, after, .. } = difference;
    print_compared(output, "file", [&before.path, &after.path])?;
    print_compared(output, "format", [before.format, after.format])?;
    print_compared(output, "date", [&before.date(), &after.date()])?;
    print_compared(output, "entries", [before, after].map(|it| it.entries.to_string()).each_ref())?;
    match (difference.lost, difference.gained) {
        (Some(lost), Some(gained)) => {
            output.line(format_args!("{gained} entries gained, {lost} lost"))
        }
        _ => output.line("the lists differ in format, so their entries cannot be compared"),
    }
}
