//! `keygate key`: algorithm and fingerprints of keys, in all related encodings.

mod shared_primes;

use keygate_core::guard::{KeyStrength, WeakCheck, WeakChecks};
use keygate_core::spki::{Fingerprint, KeyDigest, PublicKey, key_problem, related};
use serde::Serialize;

use super::input::{FoundKey, InputArgs, KeyFields};
use super::progress::PerKeyOutput;
use super::{CliError, CliOutput, Exit};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    inputs: InputArgs,
    /// Print lines for an exact list or an exception: fingerprint, and the digest of modulus or x
    /// coordinate, which covers every encoding.
    #[arg(long, conflicts_with = "json")]
    lists: bool,
    /// Print the RSA keys of the inputs that share a prime with another key: exit code 1 if there is
    /// one. Anybody who has both keys can factor them. Accepts the lines of `keygate report --json`
    /// too. Two keys with the same modulus are one key. Takes minutes for 100,000 keys; standard
    /// error has the memory that the search needs.
    #[arg(long, conflicts_with = "lists")]
    shared_primes: bool,
    /// Print one JSON object per key, or per group of keys that share a prime.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct KeyRow<'a> {
    #[serde(flatten)]
    key: KeyFields<'a>,
    encodings: Vec<NamedEncoding>,
    /// Why a key is of no known algorithm although it names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<&'static str>,
    /// The checks that the key fails; `null` if it is too large for them.
    weak: Option<Vec<&'static str>>,
}

#[derive(Serialize)]
struct NamedEncoding {
    encoding: &'static str,
    fingerprint: String,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    if args.shared_primes {
        return shared_primes::run(&args.inputs, args.json);
    }
    let mut output = CliOutput::new();
    let counts = args.inputs.for_each_key(PerKeyOutput::Yes, |key| {
        if args.lists {
            return list_lines(key).iter().try_for_each(|line| output.line(line));
        }
        let encodings = related(key.spki).into_iter().map(|(encoding, spki)| NamedEncoding {
            encoding: encoding.as_str(),
            fingerprint: Fingerprint::of(&spki).to_string(),
        });
        let (problem, weak) = (key_problem(key.spki), failed_checks(key));
        let row = KeyRow { key: key.fields(), encodings: encodings.collect(), problem, weak };
        if args.json {
            return output.json(&row);
        }
        output.line(format_args!("{}: {}", key.position(), row.key.algorithm))?;
        row.encodings.iter().try_for_each(|named| {
            output.line(format_args!("  {} {}", named.fingerprint, named.encoding))
        })?;
        problem.map_or(Ok(()), |it| output.line(format_args!("  unchecked: {it}")))?;
        match row.weak.as_deref() {
            Some([]) => Ok(()),
            Some(checks) => output.line(format_args!("  weak: {}", checks.join(", "))),
            None => output.line("  too large for the checks of weak keys"),
        }
    })?;
    output.flush()?;
    Ok(counts.exit(Exit::Done))
}

/// The checks of weak keys that a key fails; `None` if it is too large for them.
fn failed_checks(key: &FoundKey<'_>) -> Option<Vec<&'static str>> {
    let public_key = PublicKey::parse(key.spki);
    let fingerprint = || Fingerprint::of(key.spki);
    let strength = KeyStrength::new(&public_key, WeakChecks::ALL, fingerprint);
    let failed = strength.failed.iter().map(WeakCheck::as_str);
    (!strength.is_oversize).then(|| failed.collect())
}

/// The lines of a list for a key: its position as a comment, its fingerprint, and the digest of its
/// number if it has one. The fingerprint of an Ed25519 key covers all of its encodings.
pub(super) fn list_lines(key: &FoundKey<'_>) -> Vec<String> {
    // A line break in a file name must not begin a line.
    let position = key.position().replace(char::is_control, "?");
    let KeyFields { algorithm, fingerprint, .. } = key.fields();
    let mut lines = vec![format!("# {position}: {algorithm}"), fingerprint];
    PublicKey::parse(key.spki).for_each_number(|_, digest| match digest {
        KeyDigest::EcX(_) | KeyDigest::RsaModulus(_) => lines.push(digest.to_string()),
        KeyDigest::Number(_) | KeyDigest::Spki(_) => {}
    });
    lines
}
