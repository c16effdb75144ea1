//! `keygate key --shared-primes`: the keys of a fleet that share a prime.

use std::collections::BTreeMap;

use indicatif::{ProgressBar, ProgressStyle};
use keygate_core::guard::BatchGcd;
use keygate_core::spki::PublicKey;
use serde_json::json;

use crate::cli::counted::counted;
use crate::cli::input::{FoundKey, FoundSubject, InputArgs, KeyFields, for_each_subject, position};
use crate::cli::progress::PerKeyOutput;
use crate::cli::{CliError, CliOutput, Exit, print_error};

/// The keys with one modulus: position and SubjectPublicKeyInfo.
type KeysOfModulus = Vec<(String, Option<u64>, Vec<u8>)>;

/// Prints the keys of the inputs that share a prime with another key. Keys with the same modulus
/// are one key, because a certificate is in a fleet more than once.
pub(super) fn run(inputs: &InputArgs, as_json: bool) -> Result<Exit, CliError> {
    let (mut search, mut keys) = (BatchGcd::default(), BTreeMap::<_, KeysOfModulus>::new());
    let mut others = 0;
    let InputArgs { inputs, passphrase } = inputs;
    let counts = for_each_subject(inputs, passphrase, PerKeyOutput::No, |subject| {
        let key = match &subject {
            FoundSubject::Key(key) | FoundSubject::Reported { key, .. } => Some(key),
            FoundSubject::Fingerprint { .. } => None,
        };
        match key.and_then(|key| Some((key, PublicKey::parse(key.spki).rsa_numbers()?))) {
            Some((FoundKey { input, line, spki }, numbers)) => {
                let keys = keys.entry(numbers.modulus.to_vec()).or_default();
                keys.push(((*input).to_owned(), *line, spki.to_vec()));
            }
            None => others += 1,
        }
        Ok(())
    })?;
    let all = keys.len();
    keys.retain(|modulus, keys| {
        let is_added = search.add(modulus);
        if let (false, Some((input, line, _))) = (is_added, keys.first()) {
            let position = position(input, *line);
            print_error(&format_args!("{position}: a modulus of this size is not searched"));
        }
        is_added
    });
    let keys: Vec<_> = keys.into_values().collect();
    let (moduli, others) = (keys.len(), counted(others, "other key"));
    if keys.is_empty() {
        print_error(&format_args!("no RSA key is in the inputs, and {others}"));
        return Ok(Exit::Incomplete);
    }
    let memory = (search.memory() >> 20) + 1;
    print_error(&format_args!(
        "RSA moduli: {moduli}, and {others}; the search needs about {memory} MiB"
    ));
    let groups = search.groups(progress());
    let mut output = CliOutput::new();
    for group in &groups {
        let keys: Vec<_> = { group.iter().filter_map(|place| keys.get(*place)).flatten() }
            .map(|(input, line, spki)| FoundKey { input, line: *line, spki })
            .collect();
        if as_json {
            let keys: Vec<_> = keys.iter().map(FoundKey::fields).collect();
            output.json(&json!({ "keys": keys }))?;
            continue;
        }
        match group.len() {
            1 => output.line("1 modulus shares primes with others of the inputs"),
            _ => output.line(format_args!("{} share a prime", counted(keys.len() as u64, "key"))),
        }?;
        keys.iter().try_for_each(|key| {
            let KeyFields { algorithm, fingerprint, .. } = key.fields();
            output.line(format_args!("  {fingerprint} {algorithm} {}", key.position()))
        })?;
    }
    output.flush()?;
    Ok(match groups.is_empty() {
        false => Exit::Found,
        true if moduli < all => Exit::Incomplete,
        true => {
            print_error(&"no two of them share a prime");
            counts.exit(Exit::Done)
        }
    })
}

/// Shows the progress on a terminal.
fn progress() -> impl FnMut(u64, u64) {
    let style = ProgressStyle::with_template("{bar:40} {percent} % in {elapsed}, {eta} left");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(1).with_style(style);
    move |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    }
}
