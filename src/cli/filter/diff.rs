//! `keygate filter diff`: compares two filters.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use keygate_core::guard::{Guard, NamedFilter};
use keygate_core::pkbf::{Filter, FilterFile, FilterSummary};
use serde::Serialize;

use super::info::properties;
use super::{CliError, CliOutput, Exit, read};
use crate::cli::input::InputArgs;
use crate::cli::verdict_rows::{NewHitsLimit, print_compared};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The filter in use.
    before: PathBuf,
    /// The new filter.
    after: PathBuf,
    #[command(flatten)]
    inputs: InputArgs<false>,
    #[command(flatten)]
    limit: NewHitsLimit,
    /// Print a JSON object, then one per line for each key whose verdict changes.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct FilterDiff {
    same: bool,
    before: FilterSummary,
    after: FilterSummary,
    /// Bits set only in `before`; null if the filters differ in size.
    bits_lost: Option<u64>,
    /// Bits set only in `after`; null if the filters differ in size.
    bits_gained: Option<u64>,
    /// Share of bits that differ, 0 to 1; null if the filters differ in size.
    changed_ratio: Option<f64>,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let difference = FilterDiff::new((&args.before, &before), (&args.after, &after));
    let exit = if difference.same { Exit::Done } else { Exit::Found };
    let mut output = CliOutput::new();
    let shown = if args.json { output.json(&difference) } else { show(&mut output, &difference) };
    shown?;
    let guards = [guard(before.filter), guard(after.filter)];
    args.inputs.print_changes(args.json, &mut output, &guards, &args.limit, exit)
}

impl FilterDiff {
    fn new(before: (&Path, &FilterFile), after: (&Path, &FilterFile)) -> Self {
        let info = |(path, file): (&Path, &FilterFile)| {
            FilterSummary::new(path, &file.filter, file.sha256())
        };
        let bits = before.1.filter.difference(&after.1.filter);
        let bit_count = before.1.filter.header().bit_count() as f64;
        Self {
            same: before.1.sha256() == after.1.sha256(),
            before: info(before),
            after: info(after),
            bits_lost: bits.map(|(lost, _)| lost),
            bits_gained: bits.map(|(_, gained)| gained),
            changed_ratio: bits.map(|(lost, gained)| (lost + gained) as f64 / bit_count),
        }
    }
}

fn guard(filter: Filter) -> Guard {
    Guard::new(vec![Arc::new(NamedFilter { name: "".into(), filter, sha256: [0; 32] })])
}

fn show(output: &mut CliOutput, difference: &FilterDiff) -> Result<(), CliError> {
    let FilterDiff { before, after, .. } = difference;
    print_compared(output, "file", [&before.path, &after.path])?;
    for ((name, before), (_, after)) in properties(before).iter().zip(&properties(after)) {
        print_compared(output, name, [before, after])?;
    }
    match (difference.bits_lost, difference.bits_gained, difference.changed_ratio) {
        (Some(lost), Some(gained), Some(ratio)) => output.line(format_args!(
            "{gained} bits gained, {lost} lost: {:.4} % of all bits differ",
            ratio * 100.0
        )),
        _ => output.line("the filters differ in size, so their bits cannot be compared"),
    }
}
