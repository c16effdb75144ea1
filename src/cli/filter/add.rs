//! `keygate filter add`: keys into a filter, all in one run.

use std::path::PathBuf;

use clap::ValueHint;
use serde::Serialize;

use super::{CliError, Exit, complain, input, say, say_json};
use crate::pkbf::{FilterError, FilterUpdate};
use crate::spki;
use crate::unix_time;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The filter file.
    file: PathBuf,
    #[arg(required = true, value_name = "INPUT", help = input::HELP, value_hint = ValueHint::AnyPath)]
    inputs: Vec<String>,
    /// The revision of the changed file; one more than before unless given.
    #[arg(long, value_name = "N", value_hint = ValueHint::Other)]
    revision: Option<u32>,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Default, Serialize)]
struct Added {
    path: String,
    /// Keys that were read.
    keys: u64,
    /// Entries that are new: up to two for an elliptic-curve key.
    added: u64,
    /// Entries that tested positive already.
    known: u64,
    /// Places in the inputs that hold no key that can be read.
    unusable: u64,
    revision: u32,
    updated: u64,
    entries: u32,
    fill_ratio: f64,
    false_positive_ratio: f64,
}

/// A filter that is fuller than this hits more often than it was sized for.
const FULL: f64 = 0.5;

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let failed = |source: FilterError| CliError::Filter { path: args.file.clone(), source };
    let mut update = FilterUpdate::begin(&args.file).map_err(failed)?;
    let mut result = Added { path: args.file.display().to_string(), ..Added::default() };
    let tally = input::for_each_key(&args.inputs, false, |key| {
        spki::for_each_point_form(key.spki, |spki| {
            let count =
                if update.filter.insert(spki) { &mut result.added } else { &mut result.known };
            *count += 1;
        });
        Ok(())
    })?;
    let before = *update.filter.header();
    if result.added > 0 || args.revision.is_some_and(|revision| revision != before.revision) {
        // A clock that is behind must not make the new file look older than the old one.
        let updated_at = unix_time::now().max(before.updated_at);
        match args.revision {
            Some(revision) => update.filter.stamp_as(revision, updated_at),
            None => update.filter.stamp(updated_at),
        }
    }
    let header = *update.filter.header();
    result.keys = tally.keys;
    result.unusable = tally.unusable;
    result.revision = header.revision;
    result.updated = header.updated_at;
    result.entries = header.entry_count;
    result.fill_ratio = update.filter.fill_ratio();
    result.false_positive_ratio = update.filter.false_positive_ratio();
    if header != before {
        update.commit().map_err(|error| failed(error.into()))?;
    }
    let shown = if args.json { say_json(&result) } else { show(&result) };
    shown?;
    if result.fill_ratio > FULL {
        complain(&format_args!(
            "{}: {:.0} % of its bits are set; make a larger one with `keygate filter create`",
            result.path,
            result.fill_ratio * 100.0
        ));
    }
    Ok(tally.exit(Exit::Done))
}

fn show(result: &Added) -> Result<(), CliError> {
    say(format_args!(
        "{}: {} keys read, {} entries added, {} known already; revision {}, {} entries, false positives {:.3e} for each look-up",
        result.path,
        result.keys,
        result.added,
        result.known,
        result.revision,
        result.entries,
        result.false_positive_ratio
    ))
}
