//! `keygate filter`: what is in a filter file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use super::{CliError, Exit, complain, input, say, say_json};
use crate::guard::{Guard, NamedFilter, Verdict};
use crate::pkbf::{self, FilterFile, Plausibility};
use crate::spki::{Algorithm, Fingerprint};

#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Header, size, fill, false-positive rate, plausibility.
    Info {
        /// The filter file.
        file: PathBuf,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// A verdict for each key: exit code 0 if none is in the filter, 1 if any is.
    Query(QueryArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct QueryArgs {
    /// The filter file.
    file: PathBuf,
    /// Certificates, requests, public or private keys, in PEM or DER; `-` for standard input.
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<String>,
    /// Ask for each key as it is given, as the reference implementation does, and for none of its
    /// other encodings.
    #[arg(long)]
    exact: bool,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(command: &Command) -> Result<Exit, CliError> {
    match command {
        Command::Info { file, json } => info(file, *json),
        Command::Query(args) => query(args),
    }
}

#[derive(Serialize)]
struct Info {
    path: String,
    revision: u32,
    updated: u64,
    entries: u32,
    hash_count: u8,
    hash_length: u8,
    size_bytes: u64,
    set_bits: u64,
    fill_ratio: f64,
    false_positive_ratio: f64,
    plausible: bool,
    sha256: String,
}

fn info(path: &Path, json: bool) -> Result<Exit, CliError> {
    let file = read(path)?;
    let sha256 = *file.sha256();
    let filter = file.filter;
    let header = filter.header();
    let info = Info {
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
        sha256: data_encoding::HEXLOWER.encode(&sha256),
    };
    if json {
        say_json(&info)?;
    } else {
        show(&info, filter.plausibility())?;
    }
    Ok(Exit::Done)
}

fn show(info: &Info, plausibility: Plausibility) -> Result<(), CliError> {
    let plausibility = match plausibility {
        Plausibility::Plausible => "yes".to_owned(),
        Plausibility::Impossible { .. }
        | Plausibility::NearlyFull { .. }
        | Plausibility::TooFewBits { .. }
        | Plausibility::TooManyBits { .. } => format!("no: {plausibility}"),
    };
    let updated = match UNIX_EPOCH.checked_add(Duration::from_secs(info.updated)) {
        _ if info.updated == 0 => "never".to_owned(),
        // humantime knows years up to 9999.
        Some(time) if info.updated < 253_402_300_800 => {
            humantime::format_rfc3339_seconds(time).to_string()
        }
        Some(_) | None => format!("{} s after the epoch", info.updated),
    };
    say(format_args!("file            {}", info.path))?;
    say(format_args!("sha256          {}", info.sha256))?;
    say(format_args!("revision        {}", info.revision))?;
    say(format_args!("updated         {updated}"))?;
    say(format_args!("entries         {}", info.entries))?;
    say(format_args!("hash count (k)  {}", info.hash_count))?;
    let size = bytesize::ByteSize(info.size_bytes);
    say(format_args!("hash length (L) {} ({size} of bits)", info.hash_length))?;
    say(format_args!("bits set        {} ({:.3} %)", info.set_bits, info.fill_ratio * 100.0))?;
    say(format_args!("false positives {:.3e} for each look-up", info.false_positive_ratio))?;
    say(format_args!("plausible       {plausibility}"))
}

#[derive(Serialize)]
struct Answer<'a> {
    input: &'a str,
    algorithm: String,
    fingerprint: String,
    verdict: &'static str,
    encoding: Option<&'static str>,
}

fn query(args: &QueryArgs) -> Result<Exit, CliError> {
    let file = read(&args.file)?;
    let sha256 = *file.sha256();
    let filter = file.filter;
    let name = args.file.display().to_string().into();
    let named = Arc::new(NamedFilter { name, filter, sha256 });
    let guard = Guard::new(vec![Arc::clone(&named)]);
    let mut exit = Exit::Done;
    for input in &args.inputs {
        match input::keys_of(input) {
            Ok(keys) => {
                for spki in keys {
                    let answer = judge(&guard, &named, args.exact, input, &spki);
                    if answer.encoding.is_some() && exit == Exit::Done {
                        exit = Exit::Found;
                    }
                    say_answer(&answer, args.json)?;
                }
            }
            Err(error) => {
                complain(&format_args!("{input}: {error}"));
                exit = Exit::Incomplete;
            }
        }
    }
    Ok(exit)
}

fn judge<'a>(
    guard: &Guard,
    named: &NamedFilter,
    exact: bool,
    input: &'a str,
    spki: &[u8],
) -> Answer<'a> {
    // The filter itself answers for exactly these bytes.
    let verdict =
        if exact && !named.filter.contains(spki) { Verdict::Clean } else { guard.judge_key(spki) };
    Answer {
        input,
        algorithm: Algorithm::of(spki).to_string(),
        fingerprint: Fingerprint::of(spki).to_string(),
        verdict: verdict.as_str(),
        encoding: verdict.hit().map(|hit| hit.encoding.as_str()),
    }
}

fn say_answer(answer: &Answer<'_>, json: bool) -> Result<(), CliError> {
    if json {
        return say_json(answer);
    }
    let Answer { input, algorithm, fingerprint, verdict, encoding } = answer;
    match encoding {
        Some(encoding) => {
            say(format_args!("{verdict} {fingerprint} {algorithm} {input} ({encoding})"))
        }
        None => say(format_args!("{verdict} {fingerprint} {algorithm} {input}")),
    }
}

fn read(path: &Path) -> Result<FilterFile, CliError> {
    pkbf::read_unlocked(path, u64::MAX)
        .map_err(|source| CliError::Filter { path: path.to_owned(), source })
}
