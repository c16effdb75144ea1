//! `keygate key --shared-primes`: the keys of a fleet that share a prime.
//!
//! Guards: `src/cli/key/shared_primes.rs`, `json` in `src/key_uses.rs`, `admitted` in
//! `src/cli/report.rs`, `crates/core/src/guard/weak/batch_gcd.rs`.

use std::fs::{create_dir, write};

use data_encoding::BASE64;
use keygate_core::spki::Fingerprint;
use num_bigint::BigUint;
use serde_json::{Value, json};

use super::bench::{Bench, problem};
use crate::support::keygate::keygate;
use crate::support::output_text;
use crate::support::proxy::{Configure, Proxy};
use crate::support::weak_keys::{RsaKey, pem, prime, spki_of};

fn line(spki: &[u8]) -> String {
    BASE64.encode(spki) + "\n"
}

#[test]
fn keys_that_share_a_prime_are_found_in_files_directories_and_reports() {
    let bench = Bench::new("key");
    let primes: [_; 6] = std::array::from_fn(|_| prime(512));
    let key = |pair: [usize; 2]| RsaKey::new(pair.map(|index| primes[index].clone())).spki();
    let [first, second, third] = [[0, 1], [1, 2], [3, 4]].map(key);
    let other_exponent = RsaKey::new([0, 1].map(|index: usize| primes[index].clone()));
    let other_exponent = other_exponent.with_exponent(3_u32).spki();
    create_dir(bench.path("fleet")).unwrap();
    write(bench.path("fleet/first.pem"), pem("PUBLIC KEY", &first)).unwrap();
    let ec = rcgen::KeyPair::generate().unwrap().public_key_pem();
    write(bench.path("fleet/other.pem"), ec).unwrap();
    let lines = ["# the third\n".to_owned(), line(&third), line(&second), line(&other_exponent)];
    write(bench.path("keys.txt"), lines.concat()).unwrap();
    // A client that was rejected, and one whose key is not in a filter.
    let rejected = key([4, 5]);
    let reported = [
        json!({ "verdict": "confirmed", "spki": BASE64.encode(&rejected) }),
        json!({ "verdict": "clean" }),
    ];
    let reported = reported.map(|line| line.to_string() + "\n");
    write(bench.path("report.json"), reported.concat()).unwrap();
    let inputs = ["--shared-primes", "fleet", "keys.txt", "report.json"];

    let groups = bench.json(1, &inputs);
    let position = |key: &Value| json!([key["input"], key["line"], key["fingerprint"]]);
    let mut found: Vec<Vec<_>> = { groups.iter() }
        .map(|group| group["keys"].as_array().unwrap().iter().map(position).collect())
        .collect();
    found.iter_mut().for_each(|group: &mut Vec<_>| group.sort_by_key(Value::to_string));
    found.sort_by_key(Vec::len);
    let expected = |input: &str, line: u64, spki: &[u8]| {
        json!([input, line, Fingerprint::of(spki).to_string()])
    };
    assert_eq!(
        found,
        [
            vec![expected("keys.txt", 2, &third), expected("report.json", 1, &rejected)],
            vec![
                expected("fleet/first.pem", 1, &first),
                expected("keys.txt", 3, &second),
                expected("keys.txt", 4, &other_exponent),
            ],
        ]
    );

    let output = bench.run(1, &inputs);
    let told = problem(&output);
    assert!(told.contains("RSA moduli: 4, and 1 other key; the search needs about "), "{told}");
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("2 keys share a prime\n") && shown.contains("3 keys share"), "{shown}");
    let second_line = format!("  {} rsa-1024 keys.txt:3\n", Fingerprint::of(&second));
    assert!(shown.contains(&second_line), "{shown}");
    for prime in &primes {
        assert!(!shown.contains(&prime.to_str_radix(16)), "a prime is a private key");
    }

    // The same key, also with another exponent, shares no prime with itself.
    assert!(bench.lines(0, &["--shared-primes", "fleet", "fleet"]).is_empty());
    let same = line(&first) + &line(&other_exponent) + &line(&third);
    write(bench.path("same.txt"), same).unwrap();
    assert!(bench.lines(0, &["--shared-primes", "same.txt"]).is_empty());
}

#[test]
fn a_modulus_that_is_too_large_and_an_input_without_keys_are_reported() {
    let bench = Bench::new("key");
    let large = spki_of(&((BigUint::from(1_u32) << 8193) - 1_u32), &65_537_u32.into());
    write(bench.path("keys.txt"), line(&large) + &line(&RsaKey::good(1024).spki())).unwrap();
    let output = bench.run(3, &["--shared-primes", "keys.txt"]);
    let told = problem(&output);
    assert!(told.contains("keys.txt:1: a modulus of this size is not searched"), "{told}");
    write(bench.path("empty.txt"), "nothing\n").unwrap();
    bench.run(3, &["--shared-primes", "empty.txt"]);
    // Without an RSA key nothing is known about the fleet.
    let ec = rcgen::KeyPair::generate().unwrap().public_key_pem();
    write(bench.path("ec.pem"), ec).unwrap();
    write(bench.path("report.json"), json!({ "verdict": "clean" }).to_string()).unwrap();
    for input in ["ec.pem", "report.json"] {
        let told = problem(&bench.run(3, &["--shared-primes", input]));
        assert!(told.contains("no RSA key is in the inputs"), "{told}");
    }
}

#[test]
fn the_search_shows_its_progress_on_a_terminal_and_none_in_a_pipe() {
    let bench = Bench::new("key");
    let keys: String = (0..64).map(|_| line(&RsaKey::good(1024).spki())).collect();
    write(bench.path("keys.txt"), keys).unwrap();
    let shown = bench.on_terminal("--shared-primes keys.txt");
    let shows = |percent: u32| shown.contains(&format!(" {percent} % in "));
    assert!(shows(0) && (1..=100).any(shows), "{shown:?}");
    let told = problem(&bench.run(0, &["--shared-primes", "keys.txt"]));
    assert!(!told.contains('%'), "{told}");
}

#[test]
fn the_keys_of_recent_clients_are_an_input() {
    let proxy = Proxy::new().workers(2);
    let primes: [_; 3] = std::array::from_fn(|_| prime(1024));
    let clients = [[0, 1], [1, 2]].map(|pair| {
        let key = RsaKey::new(pair.map(|index: usize| primes[index].clone()));
        key.client(&proxy.pki, &format!("client {}", pair[0]))
    });
    let running = proxy.start();
    running.admits(&running.good);
    clients.iter().for_each(|client| running.admits(client));
    running.rejects(&running.lost);
    let config = running.pki.path("admin.toml");
    write(&config, format!("admin = {{ listen = \"{}\" }}", running.admin_address())).unwrap();
    let output = keygate(&["report", "--clients", config.to_str().unwrap()]);
    assert!(output.status.success(), "{}", output_text(&output));
    let lines = String::from_utf8(output.stdout).unwrap();
    let keys =
        |subject: &str, spki: &[u8]| lines.contains(&format!("# CN={subject}\n{}", line(spki)));
    assert!(
        clients.iter().zip(0..).all(|(it, i)| keys(&format!("client {i}"), &it.spki)),
        "{lines}"
    );
    assert_eq!(lines.lines().count(), 6, "and the good client, not the lost one: {lines}");

    let bench = Bench::new("key");
    write(bench.path("clients.txt"), &lines).unwrap();
    let groups = bench.json(1, &["--shared-primes", "clients.txt"]);
    assert_eq!(groups.len(), 1);
    let found = groups[0]["keys"].as_array().unwrap();
    let fingerprints: Vec<_> = found.iter().map(|it| it["fingerprint"].as_str().unwrap()).collect();
    for client in &clients {
        assert!(fingerprints.contains(&&*Fingerprint::of(&client.spki).to_string()), "{groups:?}");
    }
    // A list that gains the key of a client.
    let deny = Fingerprint::of(&clients[0].spki).to_string();
    write(bench.path("before.txt"), "# none\n").unwrap();
    write(bench.path("after.txt"), deny).unwrap();
    let paths = ["before.txt", "after.txt", "clients.txt"].map(|it| bench.path(it));
    let paths = paths.each_ref().map(|it| it.to_str().unwrap());
    let output = keygate(&["list", "diff", "--json", paths[0], paths[1], paths[2]]);
    let shown = output_text(&output);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("\"before\":\"clean\",\"after\":\"listed\""), "{shown}");
}
