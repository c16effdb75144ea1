//! `keygate filter create`: an empty filter of the right size.

use std::path::PathBuf;

use super::info::show;
use super::{CliError, Exit, say_json};
use crate::pkbf::{self, Filter, FilterError, FilterSummary, Overwrite, Parameters};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The filter file.
    file: PathBuf,
    /// How many entries it is to hold. An elliptic-curve key has two.
    #[arg(long, value_name = "N", requires = "fp_rate", required_unless_present = "hash_count")]
    entries: Option<u64>,
    /// How often it may be wrong about a key that it does not hold, once it holds so many: 0.001 is
    /// once in a thousand look-ups, of which a key takes up to four.
    #[arg(long, value_name = "P", requires = "entries")]
    fp_rate: Option<f64>,
    /// k, the bits that are set for each entry: 1 to 255.
    #[arg(long, value_name = "K", requires = "hash_length", conflicts_with = "entries")]
    hash_count: Option<u8>,
    /// L, for a filter of 2^L bits: 3 to 63.
    #[arg(long, value_name = "L", requires = "hash_count")]
    hash_length: Option<u8>,
    /// Replace a file that is there already, with all that is in it.
    #[arg(long)]
    force: bool,
    /// One JSON object, as `filter info` has it.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let parameters = match (args.entries, args.fp_rate, args.hash_count, args.hash_length) {
        (Some(entries), Some(rate), ..) => Parameters::for_entries(entries, rate),
        (_, _, Some(hash_count), Some(hash_length)) => Parameters::new(hash_count, hash_length),
        // The parser lets nothing else pass.
        (entries, rate, ..) => Err(FilterError::NoParameters {
            entries: entries.unwrap_or_default(),
            rate: rate.unwrap_or_default(),
        }),
    };
    let failed = |source: FilterError| CliError::Filter { path: args.file.clone(), source };
    let filter = Filter::new(parameters.map_err(CliError::Parameters)?).map_err(failed)?;
    let overwrite = if args.force { Overwrite::Always } else { Overwrite::Never };
    pkbf::create(&filter, &args.file, overwrite).map_err(|error| {
        if error.kind() == std::io::ErrorKind::AlreadyExists {
            let path = args.file.display();
            return CliError::Operation(format!("{path} is there already; --force replaces it"));
        }
        failed(error.into())
    })?;
    let info = FilterSummary::of(&args.file, &filter, &filter.sha256());
    let shown = if args.json { say_json(&info) } else { show(&info, &filter) };
    shown.map(|()| Exit::Done)
}
