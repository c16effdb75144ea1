//! `keygate filter create`: creates an empty filter.

use std::path::PathBuf;

use keygate_core::pkbf::{self, Filter, FilterError, FilterSummary, Overwrite, Parameters};

use super::info::show;
use super::{CliError, Exit, print_json};
use crate::cli::progress::Spinner;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The filter file.
    file: PathBuf,
    /// Number of entries that the filter is sized for. An elliptic-curve key takes two entries.
    #[arg(long, value_name = "N", requires = "fp_rate", required_unless_present = "hash_count")]
    entries: Option<u64>,
    /// False-positive rate per lookup when the filter holds N entries: 0.001 is one in a thousand.
    /// A key takes up to four lookups.
    #[arg(long, value_name = "P", requires = "entries")]
    fp_rate: Option<f64>,
    /// k, the number of bits set for each entry: 1 to 255.
    #[arg(long, value_name = "K", requires = "hash_length", conflicts_with = "entries")]
    hash_count: Option<u8>,
    /// L, log2 of the filter size in bits: 3 to 63.
    #[arg(long, value_name = "L", requires = "hash_count")]
    hash_length: Option<u8>,
    /// Overwrite an existing file.
    #[arg(long)]
    force: bool,
    /// Print a JSON object with the fields of `filter info`.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let parameters = match (args.entries, args.fp_rate, args.hash_count, args.hash_length) {
        (Some(entries), Some(rate), ..) => Parameters::for_entries(entries, rate),
        (_, _, Some(hash_count), Some(hash_length)) => Parameters::new(hash_count, hash_length),
        // Unreachable: the argument parser requires one of the two pairs.
        (entries, rate, ..) => Err(FilterError::NoParameters {
            entries: entries.unwrap_or_default(),
            rate: rate.unwrap_or_default(),
        }),
    };
    let failed = |source: FilterError| CliError::file(&args.file, source);
    let filter = Filter::new(parameters.map_err(|error| CliError::Usage(error.to_string()))?)
        .map_err(failed)?;
    let overwrite = if args.force { Overwrite::Always } else { Overwrite::Never };
    let spinner = Spinner::new();
    spinner.show(format!("writing {}", args.file.display()));
    pkbf::create(&filter, &args.file, overwrite).map_err(|error| {
        if error.kind() == std::io::ErrorKind::AlreadyExists {
            return CliError::file(&args.file, "already exists; --force overwrites it");
        }
        failed(error.into())
    })?;
    drop(spinner);
    let info = FilterSummary::new(&args.file, &filter, &filter.sha256());
    let shown = if args.json { print_json(&info) } else { show(&info, &filter) };
    shown.map(|()| Exit::Done)
}
