//! `keygate filter query`: prints a verdict for each key.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use clap::ValueHint;
use serde::Serialize;

use super::{CliError, CliOutput, Exit, PerKeyOutput, input, print_error};
use crate::cli::counted::counted;
use crate::cli::input::InputCounts;
use crate::guard::{Guard, NamedFilter, Verdict};
use crate::pkbf::{self, FilterError, MissingBits};
use crate::spki::{PublicKey, RsaExponents};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The filter file.
    file: PathBuf,
    #[arg(required = true, value_name = "INPUT", help = input::HELP, value_hint = ValueHint::AnyPath)]
    inputs: Vec<String>,
    #[command(flatten)]
    passphrase: input::PassphraseArgs,
    /// Look up only the given encoding of each key, as the reference implementation does.
    #[arg(long)]
    exact: bool,
    /// Print one JSON object per key.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct QueryRow<'a> {
    input: &'a str,
    line: Option<u64>,
    algorithm: String,
    fingerprint: String,
    verdict: &'static str,
    encoding: Option<&'static str>,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let failed = |source: FilterError| CliError::Filter { path: args.file.clone(), source };
    let (filter, mut missing_bits) = pkbf::open_sparse(&args.file).map_err(failed)?;
    let name = args.file.display().to_string().into();
    let mut named = Arc::new(NamedFilter { name, filter, sha256: [0; 32] }); // digest unused here
    let now = SystemTime::now();
    let mut output = CliOutput::new();
    let mut hits = 0_u64;
    let counts = input::for_each_key(&args.inputs, &args.passphrase, PerKeyOutput::Yes, |key| {
        fetch(&mut missing_bits, &mut named, key.spki).map_err(failed)?;
        // The filter looks up exactly these bytes; the guard also tries related encodings.
        let verdict = if args.exact && !named.filter.contains(key.spki) {
            Verdict::Clean
        } else {
            Guard::new(vec![Arc::clone(&named)]).judge_key(key.spki, now)
        };
        let row = QueryRow {
            input: key.input,
            line: key.line,
            algorithm: key.algorithm(),
            fingerprint: key.fingerprint(),
            verdict: verdict.as_str(),
            encoding: verdict.hit().map(|hit| hit.encoding.as_str()),
        };
        if row.encoding.is_some() {
            hits += 1;
        }
        if args.json {
            return output.json(&row);
        }
        let QueryRow { algorithm, fingerprint, verdict, encoding, .. } = row;
        let encoding = encoding.map(|encoding| format!(" ({encoding})")).unwrap_or_default();
        let position = key.position();
        output.line(format_args!("{verdict} {fingerprint} {algorithm} {position}{encoding}"))
    })?;
    output.flush()?;
    // One readable input needs no summary, and the lack of inputs was reported.
    if counts.inputs > 1 || counts.inputs == 1 && counts.unusable > 0 {
        print_error(&summary(&counts, hits));
    }
    Ok(counts.exit(if hits > 0 { Exit::Found } else { Exit::Done }))
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

fn summary(counts: &InputCounts, hits: u64) -> String {
    let keys = counted(counts.keys, "key");
    let inputs = counted(counts.inputs, "input");
    let unusable = match counts.unusable_inputs {
        0 => String::new(),
        count => format!("; {} with places that could not be read", counted(count, "input")),
    };
    format!("{keys} in {inputs}, {hits} in the filter{unusable}")
}
