//! `keygate filter add`: adds keys to a filter and replaces the file atomically.

use std::path::PathBuf;

use clap::ValueHint;
use keygate_core::pkbf::{FilterError, FilterUpdate};
use keygate_core::signature::signature_path;
use keygate_core::spki;
use keygate_core::unix_time;
use serde::Serialize;

use super::{CliError, Exit, PerKeyOutput, print, print_error, print_json};
use crate::cli::counted::{counted, counted_entries};
use crate::cli::input::InputArgs;
use crate::cli::progress::Spinner;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The filter file.
    file: PathBuf,
    #[command(flatten)]
    inputs: InputArgs,
    /// Revision of the changed file; by default one more than before.
    #[arg(long, value_name = "N", value_hint = ValueHint::Other)]
    revision: Option<u32>,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct AddSummary {
    path: String,
    /// Keys read from the inputs.
    keys: u64,
    /// New entries: up to two for an elliptic-curve key.
    added: u64,
    /// Entries that tested positive before.
    known: u64,
    /// Places in the inputs without a readable key.
    unusable: u64,
    revision: u32,
    updated: u64,
    entries: u32,
    fill_ratio: f64,
    false_positive_ratio: f64,
}

/// Share of bits set above which a warning is printed: more false positives than planned.
const MAX_FILL_RATIO: f64 = 0.5;

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let failed = |source: FilterError| CliError::file(&args.file, source);
    let mut update = FilterUpdate::begin(&args.file).map_err(failed)?;
    let (mut added, mut known) = (0, 0);
    let counts = args.inputs.for_each_key(PerKeyOutput::No, |key| {
        if let Some(problem) = spki::key_problem(key.spki) {
            print_error(&format_args!("{}: {problem}", key.position()));
        }
        spki::for_each_point_form(key.spki, |spki| {
            *if update.filter.insert(spki) { &mut added } else { &mut known } += 1;
        });
        Ok(())
    })?;
    let before = *update.filter.header();
    if added > 0 || args.revision.is_some_and(|revision| revision != before.revision) {
        // The clock may be behind; the new file must not look older than the old one.
        let updated_at = unix_time::now().max(before.updated_at);
        match args.revision {
            Some(revision) => update.filter.stamp_as(revision, updated_at),
            None => update.filter.stamp(updated_at),
        }
    }
    let header = *update.filter.header();
    let result = AddSummary {
        path: args.file.display().to_string(),
        keys: counts.keys,
        added,
        known,
        unusable: counts.unusable,
        revision: header.revision,
        updated: header.updated_at,
        entries: header.entry_count,
        fill_ratio: update.filter.fill_ratio(),
        false_positive_ratio: update.filter.false_positive_ratio(),
    };
    if header != before {
        let spinner = Spinner::new();
        spinner.show(format!("writing {}", result.path));
        update.commit().map_err(|error| failed(error.into()))?;
    }
    let shown = if args.json { print_json(&result) } else { show(&result) };
    shown?;
    let signature = signature_path(&args.file);
    if header != before && signature.symlink_metadata().is_ok() {
        print_error(&format_args!(
            "{}: the signature of the previous content; sign the file again with `minisign -S`",
            signature.display()
        ));
    }
    if result.fill_ratio > MAX_FILL_RATIO {
        print_error(&format_args!(
            "{}: {:.0} % of its bits are set; create a larger filter with `keygate filter create`",
            result.path,
            result.fill_ratio * 100.0
        ));
    }
    Ok(counts.exit(Exit::Done))
}

fn show(result: &AddSummary) -> Result<(), CliError> {
    print(format_args!(
        "{}: {} read, {} added, {} already known; revision {}, {}, false positives {:.3e} per lookup",
        result.path,
        counted(result.keys, "key"),
        counted_entries(result.added),
        result.known,
        result.revision,
        counted_entries(result.entries.into()),
        result.false_positive_ratio
    ))
}
