//! The checks of weak keys on the command line, compared with the badkeys program.
//!
//! Guards: `failed_checks` in `src/cli/key.rs`, every module of `crates/core/src/guard/weak`.

use std::collections::BTreeSet;
use std::fs::{read_to_string, write};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use data_encoding::BASE64;
use keygate_core::spki::{Fingerprint, PublicKey};
use num_bigint::BigUint;
use serde_json::{Value, json};

use super::bench::Bench;
use crate::support::keygate::keygate;
use crate::support::output_text;
use crate::support::program::{keys_of_badkeys, python_with};
use crate::support::weak_keys::{
    RsaKey, prime, random, roca_number, small_primes, sparse_number, spki_of,
};

/// Modulus and public exponent.
type Numbers = (BigUint, BigUint);

fn numbers(key: &RsaKey) -> Numbers {
    (key.modulus(), key.exponent.clone())
}

/// At least `count` good keys: all pairs of some primes, with many exponents.
fn good_keys(count: usize) -> Vec<Numbers> {
    let exponents = [3_u64, 17, 65_537, 0xffff_ffff, 0x1_0000_0001, 0xffff_ffff_ffff_ffc5];
    let exponents = exponents.map(BigUint::from);
    let mut keys = Vec::new();
    for (bits, share) in [(1024, count / 2), (2048, count / 2 - count / 50), (3072, count / 50)] {
        let needed = (2..).find(|primes| primes * (primes - 1) / 2 >= share.max(1)).unwrap();
        let primes: Vec<_> = (0..needed).map(|_| prime(bits / 2)).collect();
        for (index, p) in primes.iter().enumerate() {
            for q in &primes[..index] {
                let modulus = p * q;
                // One in seven has a large exponent, which leaves the private one large.
                let exponent = exponents.get(keys.len() % 7).cloned();
                let exponent =
                    exponent.unwrap_or_else(|| (&modulus >> (keys.len() % 64 + 1)) | one());
                keys.push((modulus, exponent));
            }
        }
    }
    keys
}

fn one() -> BigUint {
    1_u32.into()
}

/// The sizes of keys of each class, in bits.
const SIZES: [u32; 5] = [1024, 2048, 3072, 4096, 8192];

/// Keys of each class with a modulus of each size. No check needs factors that are prime.
fn weak_keys_of_each_size() -> Vec<(&'static str, Numbers)> {
    let exponent = || BigUint::from(65_537_u32);
    let factor = |bits: u32| random(bits) | one();
    let small: Vec<_> = small_primes().take_while(|prime| *prime <= 65_537).collect();
    let without_small = |make: &dyn Fn() -> BigUint| {
        let has_none = |it: &BigUint| small.iter().all(|prime| it % *prime > BigUint::ZERO);
        (0..).map(|_| make()).find(has_none).unwrap()
    };
    let mut keys = Vec::new();
    for bits in SIZES {
        let half = bits / 2;
        let close = factor(half);
        keys.push(("fermat", (&close * (&close + 2_u32), exponent())));
        keys.push(("small-factors", (factor(bits - 16) * 65_521_u32, exponent())));
        keys.push(("roca", (roca_number(half) * roca_number(half), exponent())));
        for limb in [32, 64, 128] {
            let sparse = || sparse_number(half, limb) * sparse_number(half, limb);
            keys.push(("rsapoly", (without_small(&sparse), exponent())));
        }
        let modulus = factor(half) * factor(half);
        keys.push(("invalid", (modulus, one())));
        // A small private exponent makes the public one as large as the modulus.
        let weak = RsaKey::good(bits).with_private_exponent(bits / 4 - 8);
        keys.push(("wiener", numbers(&weak)));
    }
    keys
}

/// Keys that fail a check, and their neighbours that do not.
fn weak_keys() -> Vec<Numbers> {
    let mut keys = Vec::new();
    for bits in [512, 960, 1024, 2048, 3072] {
        keys.push(numbers(&RsaKey::roca(bits)));
    }
    for bits in [512, 1024, 2048, 3072] {
        keys.push(numbers(&RsaKey::close_primes(bits)));
        // The method of Fermat succeeds in this round, or would.
        for round in [1_u32, 2, 99, 100, 111, 112] {
            let a = (one() << (bits / 2 - 1)) + 1_u32;
            let square: BigUint = (&a << 1_u32) * round - &a;
            let b = square.sqrt();
            keys.push((&a * &a - &b * &b, 65_537_u32.into()));
        }
    }
    for factor in [3, 5, 251, 257, 65_519, 65_521, 65_537, 65_539, 65_543] {
        keys.push(numbers(&RsaKey::small_factor(1024, factor)));
    }
    for bits in [512_u32, 1024, 2048] {
        let good = RsaKey::good(bits);
        for private in
            [16, 64, bits / 8, bits / 4 - 4].into_iter().chain(bits / 4 - 2..=bits / 4 + 3)
        {
            keys.push(numbers(&good.clone().with_private_exponent(private)));
        }
    }
    let good = RsaKey::good(1024);
    let [p, q] = [512, 1024].map(prime);
    keys.push((&p * &p, 65_537_u32.into()));
    keys.push((&q * 2_u32, 65_537_u32.into()));
    for exponent in [1_u32, 2, 3, 4, 65_536] {
        keys.push((good.modulus(), exponent.into()));
    }
    for added in [1_u32, 2, 3] {
        keys.push((good.modulus(), good.modulus() + added));
        keys.push((good.modulus(), good.modulus() - added));
    }
    keys
}

/// The checks that badkeys reports for each key, by the names of keygate.
fn by_badkeys(python: &str, keys: &[Numbers]) -> Vec<BTreeSet<&'static str>> {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/badkeys_weak.py");
    let mut command = Command::new(python);
    command.arg(program).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let hex = keys
        .iter()
        .map(|(modulus, exponent)| json!([modulus.to_str_radix(16), exponent.to_str_radix(16)]));
    let input = Value::from_iter(hex).to_string();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{}", output_text(&output));
    let lines = String::from_utf8(output.stdout).unwrap();
    let found = lines.lines().map(|line| serde_json::from_str::<Vec<String>>(line).unwrap());
    found.map(|checks| checks.iter().map(|it| name_of(it)).collect()).collect()
}

/// The name of a check of badkeys in keygate.
fn name_of(check: &str) -> &'static str {
    match check {
        "fermat" => "fermat",
        "roca" => "roca",
        "rsainvalid" => "invalid",
        "rsapoly" => "rsapoly",
        "sharedprimes" => "shared-primes",
        "smalld" => "wiener",
        "smallfactors" => "small-factors",
        other => panic!("{other}"),
    }
}

/// The checks that `keygate key` prints for each key.
fn by_keygate(keys: &[Numbers]) -> Vec<BTreeSet<String>> {
    let bench = Bench::new("key");
    let lines =
        keys.iter().map(|(modulus, exponent)| BASE64.encode(&spki_of(modulus, exponent)) + "\n");
    write(bench.path("keys.txt"), lines.collect::<String>()).unwrap();
    let rows = bench.json(0, &["keys.txt"]);
    let checks = |row: &Value| {
        let checks = row["weak"].as_array().unwrap().iter();
        checks.map(|it| it.as_str().unwrap().to_owned()).collect()
    };
    rows.iter().map(checks).collect()
}

/// Numbers that are of no RSA key, which badkeys leaves to other programs.
fn is_invalid((modulus, exponent): &Numbers) -> bool {
    let root = modulus.sqrt();
    !modulus.bit(0) || !exponent.bit(0) || &root * &root == *modulus
}

#[test]
fn the_weak_keys_are_those_of_badkeys() {
    let Some(python) = python_with("badkeys") else { return };
    let count = std::env::var("KEYGATE_GOOD_KEYS").map_or(100, |count| count.parse().unwrap());
    let (good, weak, of_each_size) = (good_keys(count), weak_keys(), weak_keys_of_each_size());
    assert!(good.len() >= count);
    let (classes, sizes): (Vec<_>, Vec<_>) = of_each_size.into_iter().unzip();
    let first_of_sizes = good.len() + weak.len();
    let keys = [good.clone(), weak, sizes].concat();
    let (ours, theirs) = (by_keygate(&keys), by_badkeys(python, &keys));
    assert_eq!((ours.len(), theirs.len()), (keys.len(), keys.len()));
    for ((key, ours), theirs) in keys.iter().zip(&ours).zip(&theirs) {
        let mut expected: BTreeSet<_> = theirs.iter().copied().collect();
        expected.extend(is_invalid(key).then_some("invalid"));
        let ours: BTreeSet<_> = ours.iter().map(String::as_str).collect();
        assert_eq!(ours, expected, "n = {:x}, e = {:x}", key.0, key.1);
    }
    assert!(ours[..good.len()].iter().all(BTreeSet::is_empty));
    for (class, failed) in classes.iter().zip(&ours[first_of_sizes..]) {
        assert!(failed.contains(*class), "{class}: {failed:?}");
    }
    let ours = &ours[..first_of_sizes];
    let found = |check: &str| ours.iter().filter(|failed| failed.contains(check)).count();
    assert_eq!(found("roca"), 5);
    assert_eq!(found("fermat"), 4 * 5 + 1, "close primes, four rounds of six, and the square");
    assert!(found("small-factors") > 7, "and the even modulus");
    assert!((12..40).contains(&found("wiener")), "{}", found("wiener"));
    assert!(found("invalid") >= 8, "{}", found("invalid"));
}

/// The keys that badkeys is tested with are in its source package. They are not part of this
/// project. The program in `docs/lists.md` writes the products of badkeys.
#[test]
fn the_test_keys_of_badkeys_have_its_verdicts() {
    let Some(python) = python_with("badkeys") else { return };
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Some(directory) = keys_of_badkeys() else { return };
    let bench = Bench::new("list");
    let page = read_to_string(project.join("docs/lists.md")).unwrap();
    let (_, program) = page.split_once("python3 - > shared-primes.txt <<'EOF'\n").unwrap();
    let (program, _) = program.split_once("EOF\n").unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new(python).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", output_text(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    write(bench.path("shared-primes.txt"), run(&["-c", program])).unwrap();
    let info = bench.lines(0, &["info", "shared-primes.txt"]);
    assert!(info.iter().any(|line| line.ends_with("rsa-primes")), "{info:?}");

    let script = project.join("tests/programs/badkeys_files.py");
    let found = run(&[script.to_str().unwrap(), directory.to_str().unwrap()]);
    let mut classes = BTreeSet::new();
    for line in found.lines() {
        let (name, checks): (String, Vec<String>) = serde_json::from_str(line).unwrap();
        let path = directory.join(&name);
        let path = path.to_str().unwrap();
        let output = keygate(&["key", "--json", path]);
        assert!(output.status.success(), "{}", output_text(&output));
        let row: Value = serde_json::from_slice(&output.stdout).unwrap();
        let weak = row["weak"].as_array().unwrap().iter().map(|it| it.as_str().unwrap());
        let mut ours: BTreeSet<_> = weak.collect();
        let list = bench.path("shared-primes.txt");
        let output = keygate(&["list", "query", "--json", list.to_str().unwrap(), path]);
        let row: Value = serde_json::from_slice(&output.stdout).unwrap();
        if row["verdict"] == "weak" {
            assert_eq!((output.status.code(), &row["encoding"]), (Some(1), &json!("rsa-modulus")));
            ours.insert("shared-primes");
        }
        let mut theirs: BTreeSet<_> = checks.iter().map(|it| name_of(it)).collect();
        classes.extend(theirs.clone());
        // The square of a prime.
        theirs.extend((name == "rsa-fermat-pkcs1.key").then_some("invalid"));
        assert_eq!(ours, theirs, "{name}");
    }
    let all = ["fermat", "roca", "rsapoly", "shared-primes", "small-factors", "wiener"];
    assert_eq!(classes, BTreeSet::from(all), "a test key of each class");
}

#[test]
fn a_list_of_products_finds_keys_of_each_size_on_the_command_line() {
    let bench = Bench::new("list");
    for bits in SIZES {
        let factors: [_; 3] = std::array::from_fn(|_| random(bits / 2) | one());
        let [p, q, r] = &factors;
        let lines = [p * q, p * p, p * r, q * r].map(|modulus| {
            assert_eq!(modulus.bits(), u64::from(bits));
            BASE64.encode(&spki_of(&modulus, &65_537_u32.into())) + "\n"
        });
        write(bench.path("keys.txt"), lines.concat()).unwrap();
        // The factors are random, so no gcd of two is sure to be 1: a small one is divided out.
        let product = without_common_factor(p, &(q * r));
        write(bench.path("products.txt"), format!("rsa-primes:{bits}:{product:x}\n")).unwrap();
        let rows = bench.json(1, &["query", "products.txt", "keys.txt"]);
        let verdicts: Vec<_> = rows.iter().map(|row| row["verdict"].as_str().unwrap()).collect();
        assert_eq!(verdicts, ["weak", "weak", "weak", "unchecked"], "{bits}");
        // An update with one more product, which counts as the prime that it has room for.
        let other = without_common_factor(q, &(p * r));
        let both = format!("rsa-primes:{bits}:{product:x}\nrsa-primes:{bits}:{other:x}\n");
        write(bench.path("next.txt"), both).unwrap();
        let arguments = ["diff", "products.txt", "next.txt", "keys.txt"];
        let mut rows = bench.json(1, &arguments);
        let difference = rows.remove(0);
        assert_eq!((&difference["gained"], &difference["lost"]), (&json!(1), &json!(0)));
        let changes = rows.iter().map(|row| [&row["line"], &row["before"], &row["after"]]);
        let expected = [&json!(4), &json!("unchecked"), &json!("weak")];
        assert_eq!(changes.collect::<Vec<_>>(), [expected], "{bits}");
    }
    let ec = rcgen::KeyPair::generate().unwrap().public_key_pem();
    write(bench.path("ec.pem"), ec).unwrap();
    assert_eq!(bench.json(5, &["query", "products.txt", "ec.pem"])[0]["verdict"], "unchecked");
    // A list with the fingerprint of the key as well, and one without products.
    let spki = spki_of(&(prime(512) * 3_u32), &65_537_u32.into());
    write(bench.path("key.txt"), BASE64.encode(&spki)).unwrap();
    let bits = PublicKey::parse(&spki).rsa_numbers().map(|it| BigUint::from_bytes_be(it.modulus));
    let fingerprint = Fingerprint::of(&spki);
    let both = format!("{fingerprint}\nrsa-primes:{}:3\n", bits.unwrap().bits());
    write(bench.path("both.txt"), both).unwrap();
    let row = &bench.json(1, &["query", "both.txt", "key.txt"])[0];
    assert_eq!((&row["verdict"], &row["encoding"]), (&json!("listed"), &json!("presented")));
    let large = spki_of(&((BigUint::from(1_u32) << 8193) - 1_u32), &65_537_u32.into());
    write(bench.path("large.txt"), BASE64.encode(&large)).unwrap();
    write(bench.path("digests.txt"), fingerprint.to_string()).unwrap();
    assert_eq!(bench.json(0, &["query", "digests.txt", "large.txt"])[0]["verdict"], "clean");
}

/// `number` without the factors that `other` has as well.
fn without_common_factor(number: &BigUint, other: &BigUint) -> BigUint {
    let (mut number, mut common) = (number.clone(), BigUint::ZERO);
    while common != one() {
        let (mut a, mut b) = (number.clone(), other % &number);
        while b != BigUint::ZERO {
            (a, b) = (b.clone(), a % b);
        }
        common = a;
        number /= &common;
    }
    number
}

#[test]
fn key_prints_the_checks_that_a_key_fails() {
    let bench = Bench::new("key");
    let keys = [
        RsaKey::roca(1024),
        RsaKey::small_factor(1024, 3).with_exponent(2_u32),
        RsaKey::good(1024),
    ];
    let lines = keys.map(|key| BASE64.encode(&key.spki()) + "\n");
    let large = BASE64.encode(&spki_of(&((one() << 8193) - 1_u32), &65_537_u32.into()));
    write(bench.path("keys.txt"), lines.concat() + &large).unwrap();
    let lines = bench.lines(0, &["keys.txt"]);
    let said: Vec<_> = lines.iter().filter(|line| line.contains("weak")).collect();
    assert_eq!(
        said,
        [
            "  weak: roca",
            "  weak: invalid, small-factors",
            "  too large for the checks of weak keys"
        ]
    );
    let rows = bench.json(0, &["keys.txt"]);
    let weak: Vec<_> = rows.iter().map(|row| row["weak"].clone()).collect();
    let expected = [json!(["roca"]), json!(["invalid", "small-factors"]), json!([]), json!(null)];
    assert_eq!(weak, expected);
}
