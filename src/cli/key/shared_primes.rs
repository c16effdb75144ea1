//! `keygate key --shared-primes`: the keys of a fleet that share a prime.

use std::collections::HashMap;

use indicatif::{ProgressBar, ProgressStyle};
use keygate_core::guard::BatchGcd;
use keygate_core::spki::PublicKey;
use serde::Serialize;

use crate::cli::counted::counted;
use crate::cli::input::{FoundKey, FoundSubject, InputArgs, KeyFields};
use crate::cli::{CliError, CliOutput, Exit, print_error};

/// The keys with one modulus: position and SubjectPublicKeyInfo.
type KeysOfModulus = Vec<(String, Option<u64>, Vec<u8>)>;

/// Keys of which each has a prime of the others.
#[derive(Serialize)]
struct Group<'a> {
    keys: Vec<KeyFields<'a>>,
}

/// Prints the keys of the inputs that share a prime with another key. Keys with the same modulus
/// are one key, because a certificate is in a fleet more than once.
pub(super) fn run(inputs: &InputArgs, as_json: bool) -> Result<Exit, CliError> {
    let (mut search, mut keys) = (BatchGcd::default(), Vec::<KeysOfModulus>::new());
    let mut places = HashMap::new();
    let (mut others, mut unusable) = (0, 0);
    let counts = inputs.for_each_subject(|subject| {
        let (FoundSubject::Key(key) | FoundSubject::Reported { key, .. }) = subject else {
            others += 1; // a fingerprint
            return Ok(());
        };
        let Some(numbers) = PublicKey::parse(key.spki).rsa_numbers() else {
            others += 1;
            return Ok(());
        };
        let place = *places.entry(numbers.modulus.to_vec()).or_insert(keys.len());
        if place == keys.len() && !search.add(numbers.modulus) {
            places.remove(numbers.modulus);
            unusable += 1;
            print_error(&format_args!(
                "{}: a modulus of this size is not searched",
                key.position()
            ));
            return Ok(());
        }
        let found = (key.input.to_owned(), key.line, key.spki.to_vec());
        match keys.get_mut(place) {
            Some(keys) => keys.push(found),
            None => keys.push(vec![found]),
        }
        Ok(())
    })?;
    drop(places);
    let (moduli, others) = (keys.len(), counted(others, "other key"));
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
            output.json(&Group { keys: keys.iter().map(FoundKey::fields).collect() })?;
            continue;
        }
        output.line(format_args!("{} share a prime", counted(keys.len() as u64, "key")))?;
        keys.iter().try_for_each(|key| {
            let KeyFields { algorithm, fingerprint, .. } = key.fields();
            output.line(format_args!("  {fingerprint} {algorithm} {}", key.position()))
        })?;
    }
    output.flush()?;
    let exit = if groups.is_empty() { Exit::Done } else { Exit::Found };
    Ok(if unusable > 0 && groups.is_empty() { Exit::Incomplete } else { counts.exit(exit) })
}

/// Shows the progress on a terminal.
fn progress() -> impl FnMut(u64, u64) {
    let style = ProgressStyle::with_template("{bar:40} {percent} % in {elapsed}, {eta} left");
    let bar = ProgressBar::new(1);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    move |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    }
}
