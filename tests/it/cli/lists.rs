//! Exact lists on the command line, and their verdicts compared with the badkeys program.
//!
//! Guards: `format_of` in `src/cli/list/file.rs`, `ListDiff::new` in `src/cli/list/diff.rs`,
//! `list_lines` in `src/cli/key.rs`, `number` in `crates/core/src/spki/other_key.rs`.

use std::fs::{create_dir_all, write};
use std::io::Write;
use std::process::{Command, Stdio};

use data_encoding::BASE64;
use keygate_core::spki::{Encoding, Fingerprint, PublicKey, RsaExponents, keys_in};
use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ECDSA_P521_SHA512, PKCS_ED25519,
    PublicKeyData, SignatureAlgorithm,
};
use serde_json::{Value, json};

use super::bench::{Bench, problem};
use crate::support::blocklist::Blocklist;
use crate::support::program::python_with;
use crate::support::{output_text, system};

/// The SPKI of a test vector.
fn spki(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/vectors/{name}.key.pem", env!("CARGO_MANIFEST_DIR"));
    keys_in(&std::fs::read(path).unwrap()).remove(0).key.unwrap()
}

/// A line of base64 that is an input of the commands.
fn line(spki: &[u8]) -> String {
    BASE64.encode(spki) + "\n"
}

fn object(bench: &Bench, code: i32, arguments: &[&str]) -> Value {
    let [object] = bench.json(code, arguments).try_into().unwrap();
    object
}

#[test]
fn info_shows_what_is_on_a_list() {
    let bench = Bench::new("list");
    let list = Blocklist::new(&[(&spki("p384"), 1), (&spki("rsa-3072"), 5), (&spki("ed25519"), 9)]);
    list.clone().with("deprecated", true.into()).write(bench.directory());
    let info = object(&bench, 0, &["info", "blocklist.dat"]);
    assert_eq!((&info["format"], &info["entries"]), (&json!("badkeys"), &json!(3)));
    assert_eq!((&info["size_bytes"], &info["updated"]), (&json!(48), &json!(1_787_184_000)));
    assert_eq!(info["deprecated"], true);
    let part = |id: u8, name: &str| json!({ "id": id, "name": name, "entries": 1 });
    assert_eq!(info["parts"], json!([part(1, "debianssl"), part(5, "firmware"), part(9, "id9")]));
    let lines = bench.lines(0, &["info", "blocklist.dat"]);
    assert_eq!(lines[1], "format   badkeys");
    assert!(lines[3].starts_with("date     2026-08-20 00:00:00 UTC ("), "{}", lines[3]);
    assert!(lines[3].ends_with(") (the format is deprecated)"), "{}", lines[3]);
    assert_eq!(lines[4], "signed   none");
    assert_eq!(
        lines[5..],
        ["entries  3", "  1         debianssl", "  1         firmware", "  1         id9"]
    );

    let digest = Fingerprint::of(b"key");
    let text = format!("# March\n{digest}\nec-x:{digest}\nrsa-modulus:{digest} # a laptop\n");
    write(bench.path("deny.txt"), &text).unwrap();
    let info = object(&bench, 0, &["info", "deny.txt"]);
    assert_eq!((&info["format"], &info["entries"]), (&json!("fingerprints"), &json!(3)));
    assert_eq!(info["updated"], Value::Null);
    let names: Vec<_> = info["parts"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["fingerprint", "rsa-modulus", "ec-x"]);

    for (name, content, arguments, error) in [
        ("blocklist.dat", &list.content()[1..], &[][..], "size is 47 bytes"),
        ("deny.txt", b"abc\n", &[], "line 1: not a fingerprint"),
        ("deny.txt", text.as_bytes(), &["--format", "badkeys"], "which is not a multiple of 16"),
        ("deny.txt", b"\xff\xfe", &["--format", "fingerprints"], "not UTF-8 text"),
        ("blocklist.dat", b"", &[], "it is empty, and a blocklist has at least one record"),
    ] {
        write(bench.path(name), content).unwrap();
        let output = bench.run(3, &[&["info", name], arguments].concat());
        let text = problem(&output);
        assert!(text.contains(&format!("keygate: {name}: ")) && text.contains(error), "{text}");
    }
}

#[test]
fn query_finds_a_key_in_every_form() {
    let bench = Bench::new("list");
    let rsa = spki("rsa-2048-a");
    let mut forms = Vec::new();
    PublicKey::parse(&rsa).for_each_related(RsaExponents::ALL, |_, spki| forms.push(spki.to_vec()));
    let keys: String = forms.iter().map(|spki| line(spki)).collect();
    write(bench.path("keys.txt"), keys + &line(&spki("p256-a"))).unwrap();
    Blocklist::new(&[(&rsa, 1)]).write(bench.directory());
    let rows = bench.json(1, &["query", "blocklist.dat", "keys.txt"]);
    assert_eq!(rows.len(), 8);
    for row in &rows[..7] {
        assert_eq!((&row["verdict"], &row["finding"]), (&json!("listed"), &json!("debianssl")));
        assert_eq!(row["encoding"], "rsa-modulus");
    }
    assert_eq!((&rows[7]["verdict"], &rows[7]["encoding"]), (&json!("clean"), &Value::Null));
    assert_eq!(rows[7]["finding"], Value::Null);
    let lines = bench.lines(1, &["query", "blocklist.dat", "keys.txt"]);
    let expected =
        format!("listed {} rsa-2048 keys.txt:1 (rsa-modulus, debianssl)", Fingerprint::of(&rsa));
    assert_eq!(lines[0], expected);
    assert!(lines[7].starts_with("clean ") && lines[7].ends_with(" p256 keys.txt:8"));
    write(bench.path("good.txt"), line(&spki("p521"))).unwrap();
    let output = bench.run(0, &["query", "blocklist.dat", "good.txt"]);
    assert_eq!(problem(&output), "");
    let output = bench.run(1, &["query", "blocklist.dat", "good.txt", "keys.txt"]);
    assert_eq!(problem(&output), "keygate: 9 keys in 2 inputs, 7 on the list\n");
}

/// Other encodings of an unknown key may be on the list.
#[test]
fn a_key_in_an_encoding_that_cannot_be_looked_up_is_unchecked_with_a_code_of_its_own() {
    let bench = Bench::new("list");
    Blocklist::new(&[(&spki("p256-a"), 1)]).write(bench.directory());
    let x25519 = [&b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x6e\x03\x21\x00"[..], &[9; 32]].concat();
    write(bench.path("other.txt"), line(&x25519) + &line(&spki("p521"))).unwrap();
    let rows = bench.json(5, &["query", "blocklist.dat", "other.txt"]);
    let verdicts: Vec<_> = rows.iter().map(|row| row["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["unchecked", "clean"]);
    write(bench.path("listed.txt"), line(&spki("p256-a"))).unwrap();
    bench.run(1, &["query", "blocklist.dat", "other.txt", "listed.txt"]);
    bench.run(3, &["query", "blocklist.dat", "other.txt", "missing.txt"]);
}

#[test]
fn a_list_larger_than_any_in_use_is_not_read() {
    let bench = Bench::new("list");
    for name in ["blocklist.dat", "keys.txt"] {
        let file = std::fs::File::create(bench.path(name)).unwrap();
        file.set_len(200 << 30).unwrap(); // a sparse file
        let output = bench.run(
            3,
            &[
                "info",
                name,
                "--format",
                if name.ends_with("txt") { "fingerprints" } else { "badkeys" },
            ],
        );
        let expected = "larger than 1 GiB";
        assert!(problem(&output).contains(expected), "{}", problem(&output));
    }
}

#[test]
fn a_list_takes_the_pins_of_other_programs() {
    let bench = Bench::new("list");
    let pin = |key: &str| {
        let hex = Fingerprint::of(&spki(key)).to_string();
        BASE64.encode(&data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap())
    };
    let (ghostunnel, curl) = (pin("p256-a"), pin("rsa-2048-a"));
    write(bench.path("pins.txt"), format!("sha256:{ghostunnel}\nsha256//{curl}\n")).unwrap();
    write(bench.path("keys.txt"), line(&spki("p256-a")) + &line(&spki("rsa-2048-a"))).unwrap();
    let rows = bench.json(1, &["query", "pins.txt", "keys.txt"]);
    assert!(rows.iter().all(|row| row["verdict"] == "listed"), "{rows:?}");
}

#[test]
fn key_prints_lines_that_cover_every_form() {
    let bench = Bench::new("key");
    let names = ["p256-a", "rsa-2048-a", "ed25519"];
    let keys: String = names.map(|name| line(&spki(name))).concat();
    write(bench.path("keys.txt"), keys).unwrap();
    let lines = bench.lines(0, &["--lists", "keys.txt"]);
    let of = |name: &str| Fingerprint::of(&spki(name)).to_string();
    assert_eq!(lines[0..2], ["# keys.txt:1: p256".to_owned(), of("p256-a")]);
    assert!(lines[2].starts_with("ec-x:") && lines[2].len() == 69);
    assert_eq!(lines[3..5], ["# keys.txt:2: rsa-2048".to_owned(), of("rsa-2048-a")]);
    assert!(lines[5].starts_with("rsa-modulus:") && lines[5].len() == 76);
    assert_eq!(lines[6..], ["# keys.txt:3: ed25519".to_owned(), of("ed25519")]);
    bench.run(2, &["--lists", "--json", "keys.txt"]);

    // The lines without the fingerprints find the same keys in other forms.
    let list = Bench::new("list");
    let numbers = lines.iter().filter(|line| line.contains(':') || **line == of("ed25519"));
    write(list.path("deny.txt"), numbers.map(|it| format!("{it}\n")).collect::<String>()).unwrap();
    let mut forms = Vec::new();
    for name in names {
        let spki = spki(name);
        let key = PublicKey::parse(&spki);
        key.for_each_related(RsaExponents::ALL, |_, form| forms.push(line(form)));
        key.for_each_small_order_sum(|_, form| forms.push(line(form)));
    }
    assert_eq!(forms.len(), 4 + 7 + 16);
    write(list.path("forms.txt"), forms.concat()).unwrap();
    let rows = list.json(1, &["query", "deny.txt", "forms.txt"]);
    assert!(rows.iter().all(|row| row["verdict"] == "listed"), "{rows:#?}");
}

#[test]
fn diff_counts_the_entries_that_differ_and_shows_verdicts_that_change() {
    let bench = Bench::new("list");
    let (before, after) = (bench.path("before"), bench.path("after"));
    create_dir_all(&before).unwrap();
    create_dir_all(&after).unwrap();
    let (old, new) = (spki("p256-a"), spki("rsa-2048-a"));
    Blocklist::new(&[(&old, 1)]).with_others(0, 10).write(&before);
    Blocklist::new(&[(&new, 1)]).with_others(5, 20).write(&after);
    write(bench.path("keys.txt"), [line(&old), line(&new), line(&spki("p521"))].concat()).unwrap();
    let files = ["diff", "before/blocklist.dat", "after/blocklist.dat"];
    let rows = bench.json(1, &[&files[..], &["keys.txt"]].concat());
    assert_eq!((&rows[0]["same"], &rows[0]["lost"]), (&json!(false), &json!(6)));
    assert_eq!((&rows[0]["gained"], &rows[0]["before"]["entries"]), (&json!(16), &json!(11)));
    let changes: Vec<_> =
        rows[1..].iter().map(|row| (&row["line"], &row["before"], &row["after"])).collect();
    let (listed, clean) = (json!("listed"), json!("clean"));
    assert_eq!(changes, [(&json!(1), &listed, &clean), (&json!(2), &clean, &listed)]);
    let lines = bench.lines(1, &[&files[..], &["keys.txt"]].concat());
    assert_eq!(lines[4], "16 entries gained, 6 lost");
    assert!(lines[5].starts_with("listed -> clean "), "{lines:#?}");
    // The key on line 2 is a new hit.
    for (limit, code) in [("1", 1), ("0", 6)] {
        let limit = ["--max-new-hits", limit, "keys.txt"];
        let lines = bench.lines(code, &[&files[..], &limit].concat());
        assert!(lines.iter().any(|line| line.starts_with("clean -> listed ")), "{lines:#?}");
    }
    // A key that cannot be read may be a new hit, and an input is needed.
    let incomplete = ["--max-new-hits", "1", "keys.txt", "absent.pem"];
    bench.lines(3, &[&files[..], &incomplete].concat());
    bench.lines(6, &[&files[..], &["--max-new-hits", "0", "keys.txt", "absent.pem"]].concat());
    bench.lines(2, &[&files[..], &["--max-new-hits", "1"]].concat());
    // The same key in two inputs counts once. A key that is lost does not count.
    bench.lines(1, &[&files[..], &["--max-new-hits", "1", "keys.txt", "keys.txt"]].concat());
    let same = object(&bench, 0, &["diff", files[1], files[1]]);
    assert_eq!((&same["same"], &same["lost"]), (&json!(true), &json!(0)));

    write(bench.path("one.txt"), format!("{}\n", Fingerprint::of(&old))).unwrap();
    write(bench.path("two.txt"), "# none\n").unwrap();
    let rows = bench.json(1, &["diff", "one.txt", "two.txt", "keys.txt"]);
    assert_eq!((&rows[0]["lost"], &rows[0]["gained"]), (&json!(1), &json!(0)));
    assert_eq!(rows.len(), 2);
    // A product has room for two primes of 1,024 bits.
    write(bench.path("primes.txt"), format!("rsa-primes:2048:1{:0>511}\n", 1)).unwrap();
    for (files, lost, gained) in [(["one", "primes"], 1, 2), (["primes", "one"], 2, 1)] {
        let [before, after] = files.map(|name| format!("{name}.txt"));
        let found = object(&bench, 1, &["diff", &before, &after]);
        assert_eq!((&found["lost"], &found["gained"]), (&json!(lost), &json!(gained)));
    }
    let other = object(&bench, 1, &["diff", "one.txt", files[1]]);
    assert_eq!((&other["lost"], &other["gained"]), (&Value::Null, &Value::Null));
}

/// The options of `openssl genpkey` for each kind of key that both programs know.
const KINDS: [&[&str]; 17] = [
    &["rsa", "-pkeyopt", "rsa_keygen_bits:1024"],
    &["rsa", "-pkeyopt", "rsa_keygen_bits:2048"],
    &["rsa", "-pkeyopt", "rsa_keygen_bits:2048", "-pkeyopt", "rsa_keygen_pubexp:3"],
    &["rsa", "-pkeyopt", "rsa_keygen_bits:2056", "-pkeyopt", "rsa_keygen_pubexp:17"],
    &["ec", "-pkeyopt", "ec_paramgen_curve:P-224"],
    &["ec", "-pkeyopt", "ec_paramgen_curve:P-256"],
    &["rsa-pss"],
    &["ec", "-pkeyopt", "ec_paramgen_curve:P-384"],
    &["ec", "-pkeyopt", "ec_paramgen_curve:P-521"],
    &["ec", "-pkeyopt", "ec_paramgen_curve:secp256k1"],
    &["ec", "-pkeyopt", "ec_paramgen_curve:brainpoolP256r1"],
    &["ec", "-pkeyopt", "ec_paramgen_curve:brainpoolP512r1"],
    &["ed25519"],
    &["ed448"],
    &["x25519"],
    &["x448"],
    &["dh", "-pkeyopt", "group:ffdhe2048"],
];

/// A new public key, in PEM. `form` has options of `openssl pkey`.
fn public_key(options: &[&str], form: &[&str]) -> String {
    let made = system("openssl", &[&["genpkey", "-algorithm"], options].concat());
    let mut command = Command::new("openssl");
    command.args(["pkey", "-pubout"]).args(form).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&made.stdout).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{options:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A blocklist in the cache directory of badkeys.
struct Compared {
    bench: Bench,
    python: &'static str,
}

impl Compared {
    /// `None` without badkeys.
    fn new() -> Option<Self> {
        python_with("badkeys").map(|python| Self { bench: Bench::new("list"), python })
    }

    fn write(&self, list: &Blocklist) {
        let cache = self.bench.path("badkeys");
        create_dir_all(&cache).unwrap();
        list.write(&cache);
    }

    fn python(&self, program: &str, input: &str) -> String {
        let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");
        let mut command = Command::new(self.python);
        command.arg(format!("{programs}/{program}"));
        command.env("XDG_CACHE_HOME", self.bench.directory());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", output_text(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The findings of keygate and of badkeys for each key in PEM, null for a key that is on no
    /// list.
    fn findings(&self, keys: &[String]) -> Vec<[Value; 2]> {
        let theirs = self.python("badkeys_verdicts.py", &json!(keys).to_string());
        let theirs = theirs.lines().map(|line| serde_json::from_str(line).unwrap());
        write(self.bench.path("keys.pem"), keys.concat()).unwrap();
        let ours = self.bench.json(1, &["query", "badkeys/blocklist.dat", "keys.pem"]);
        assert_eq!(ours.len(), keys.len());
        let ours = ours.into_iter().map(|row| {
            assert_eq!(row["verdict"] == "listed", !row["finding"].is_null(), "{row}");
            row["finding"].clone()
        });
        ours.zip(theirs).map(|(ours, theirs)| [ours, theirs]).collect()
    }
}

fn spki_of(pem: &str) -> Vec<u8> {
    keys_in(pem.as_bytes()).remove(0).key.unwrap()
}

fn pem_of(spki: &[u8]) -> String {
    format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", BASE64.encode(spki))
}

#[test]
fn the_verdicts_are_those_of_badkeys_key_by_key() {
    let Some(compared) = Compared::new() else { return };
    // Two listed keys and two others of each kind. Ids without a name are among them.
    let compressed = ["-ec_conv_form", "compressed"];
    let kinds: Vec<_> =
        KINDS.iter().map(|kind| (*kind, &[][..])).chain([(KINDS[5], &compressed[..])]).collect();
    let each = || kinds.iter().map(|(options, form)| public_key(options, form));
    let mut keys: Vec<String> = (0..4).flat_map(|_| each()).collect();
    let mut listed: Vec<_> = keys[..2 * kinds.len()].to_vec();
    // DSA, ML-DSA and ML-KEM, the first one of two keys.
    let others: Vec<String> =
        serde_json::from_str(&compared.python("badkeys_keys.py", "")).unwrap();
    listed.extend(others.iter().step_by(2).cloned());
    keys.extend(others);
    let spkis: Vec<_> = listed.iter().map(|pem| spki_of(pem)).collect();
    let ids = [1, 5, 9, 255].into_iter().cycle();
    let records: Vec<_> = spkis.iter().map(|spki| &spki[..]).zip(ids).collect();
    compared.write(&Blocklist::new(&records).with_others(0, 1000));
    let findings = compared.findings(&keys);
    for ([ours, theirs], key) in findings.iter().zip(&keys) {
        assert_eq!(ours, theirs, "{key}");
        assert_eq!(theirs.is_null(), !listed.contains(key), "{key}");
    }
}

/// A new key in which `is_wanted` holds for the bytes of the SPKI from `offset`.
fn generated(
    algorithm: &'static SignatureAlgorithm,
    offset: usize,
    is_wanted: impl Fn(&[u8]) -> bool,
) -> Vec<u8> {
    let mut keys = std::iter::repeat_with(|| {
        KeyPair::generate_for(algorithm).unwrap().subject_public_key_info()
    });
    keys.find(|spki| is_wanted(&spki[offset..])).unwrap()
}

/// Leading zeros of the number do not count for either program, and neither exponent nor form does.
#[test]
fn each_form_of_a_key_is_judged_as_by_badkeys_and_ed25519_more_strictly() {
    let Some(compared) = Compared::new() else { return };
    // The x coordinate is behind the form of the point. P-521 has 7 bits in its first byte that are
    // always 0, and a second zero byte is wanted.
    let is_zero = |bytes: &[u8]| bytes[0] == 0;
    let keys = [
        generated(&PKCS_ECDSA_P256_SHA256, 27, is_zero),
        generated(&PKCS_ECDSA_P384_SHA384, 24, is_zero),
        generated(&PKCS_ECDSA_P521_SHA512, 26, |bytes| bytes[..2] == [0, 0]),
        spki("rsa-2048-a"),
    ];
    let ed25519 = generated(&PKCS_ED25519, 12, is_zero);
    let records: Vec<_> = keys.iter().chain([&ed25519]).map(|spki| (&spki[..], 1)).collect();
    compared.write(&Blocklist::new(&records).with_others(0, 1000));
    let mut forms = Vec::new();
    for key in &keys {
        let visit = |_, form: &[u8]| forms.push(pem_of(form));
        PublicKey::parse(key).for_each_related(RsaExponents::ALL, visit);
    }
    assert_eq!(forms.len(), 3 * 4 + 7);
    forms.push(pem_of(&ed25519));
    for (findings, form) in compared.findings(&forms).iter().zip(&forms) {
        assert_eq!(findings, &[json!("debianssl"), json!("debianssl")], "{form}");
    }
    // badkeys compares an Ed25519 key as it is encoded. The holder of the private key can use the
    // other forms as well.
    let mut forms = Vec::new();
    PublicKey::parse(&ed25519).for_each_related(RsaExponents::NONE, |encoding, form| {
        if encoding != Encoding::Presented {
            forms.push(pem_of(form));
        }
    });
    PublicKey::parse(&ed25519).for_each_small_order_sum(|_, form| forms.push(pem_of(form)));
    assert_eq!(forms.len(), 15);
    for (findings, form) in compared.findings(&forms).iter().zip(&forms) {
        assert_eq!(findings, &[json!("debianssl"), Value::Null], "{form}");
    }
}
