//! `keygate filter query`: prints a verdict for each key.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use keygate_core::guard::{Guard, NamedFilter, Verdict};
use keygate_core::pkbf::{self, FilterError, MissingBits};
use keygate_core::spki::{PublicKey, RsaExponents};

use super::{CliError, Exit};
use crate::cli::input::InputArgs;
use crate::cli::verdict_rows::FileVerdict;

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The filter file.
    file: PathBuf,
    #[command(flatten)]
    inputs: InputArgs,
    /// Look up only the given encoding of each key, as the reference implementation does.
    #[arg(long)]
    exact: bool,
    /// Print one JSON object per key.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let failed = |source: FilterError| CliError::file(&args.file, source);
    let (filter, mut missing_bits) = pkbf::open_sparse(&args.file).map_err(failed)?;
    let name = args.file.display().to_string().into();
    let mut named = Arc::new(NamedFilter { name, filter, sha256: [0; 32] }); // digest unused here
    let now = SystemTime::now();
    args.inputs.print_verdicts(args.json, "in the filter", |spki| {
        fetch(&mut missing_bits, &mut named, spki).map_err(failed)?;
        // The filter looks up exactly these bytes; the guard also tries related encodings.
        let verdict = if args.exact && !named.filter.contains(spki) {
            Verdict::Clean
        } else {
            Guard::new(vec![Arc::clone(&named)]).judge_key(spki, now)
        };
        let encoding = verdict.hit().map(|hit| hit.encoding);
        Ok(FileVerdict { name: verdict.as_str(), encoding, finding: None })
    })
}

/// Reads the bits of every encoding that a guard may look up.
fn fetch(
    missing_bits: &mut MissingBits,
    named: &mut Arc<NamedFilter>,
    spki: &[u8],
) -> Result<(), FilterError> {
    if missing_bits.is_empty() {
        return Ok(());
    }
    let Some(NamedFilter { filter, .. }) = Arc::get_mut(named) else {
        return Err(FilterError::Io(io::Error::other("a guard still has the filter")));
    };
    let mut outcome = Ok(());
    PublicKey::parse(spki).for_each_related(RsaExponents::ALL, |_, spki| {
        if outcome.is_ok() {
            outcome = missing_bits.fetch(filter, spki);
        }
    });
    outcome
}
