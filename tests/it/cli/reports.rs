//! The reporting commands, against vectors of the reference implementation.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use serde_json::{Value, json};

use crate::support::keygate::{BINARY, keygate};
use crate::support::{output_text, write_filter};

/// The path of a file of the vectors.
fn vector(name: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    directory.join(name).to_str().unwrap().to_owned()
}

fn parsed(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A value of a key in one of its encodings, as the vectors have it.
fn known(key: &str, encoding: &str, value: &str) -> String {
    let vectors = parsed(&vector("vectors.json"));
    let mut vectors = vectors.as_array().unwrap().iter();
    let found = vectors.find(|vector| vector["key"] == key && vector["encoding"] == encoding);
    found.unwrap()[value].as_str().unwrap().to_owned()
}

fn fingerprint(key: &str, encoding: &str) -> String {
    known(key, encoding, "spki_sha256")
}

fn key_file(key: &str) -> String {
    vector(&format!("{key}.key.pem"))
}

/// Standard output, if the command ended with `code`.
fn lines(output: &Output, code: i32) -> Vec<String> {
    assert_eq!(output.status.code(), Some(code), "{}", output_text(output));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// The lines of standard output as JSON, if the command ended with `code`.
fn objects(output: &Output, code: i32) -> Vec<Value> {
    lines(output, code).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn with_input(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn info_as_json_has_every_field_as_the_reference_implementation_reads_it() {
    for name in ["20_20.pkbf", "12_18.pkbf", "3_14.pkbf"] {
        let path = vector(name);
        let reference = parsed(&format!("{path}.json"));
        let file = std::fs::read(&path).unwrap();
        let bits = &file[24..];
        let set: u32 = bits.iter().map(|byte| byte.count_ones()).sum();

        let [info] = objects(&keygate(&["filter", "info", &path, "--json"]), 0).try_into().unwrap();
        let near = |field: &str, expected: f64| {
            let found = info[field].as_f64().unwrap();
            assert!((found / expected - 1.0).abs() < 1e-9, "{name}: {field}: {found} {expected}");
        };
        near("fill_ratio", f64::from(set) / (bits.len() as f64 * 8.0));
        near("false_positive_ratio", reference["false_positive_rate"].as_f64().unwrap());
        let expected = json!({
            "path": path,
            "revision": reference["revision"],
            "updated": reference["update_time"],
            "entries": reference["entry_count"],
            "hash_count": reference["hash_count"],
            "hash_length": reference["hash_length"],
            "size_bytes": bits.len(),
            "set_bits": set,
            "fill_ratio": info["fill_ratio"],
            "false_positive_ratio": info["false_positive_ratio"],
            "plausible": true,
            "sha256": HEXLOWER.encode(digest(&SHA256, &file).as_ref()),
            "signature": null,
        });
        assert_eq!(info, expected);
    }
}

#[test]
fn info_as_text_has_the_same_values() {
    let path = vector("20_20.pkbf");
    let reference = parsed(&format!("{path}.json"));
    let shown = lines(&keygate(&["filter", "info", &path]), 0);
    let seconds = std::time::Duration::from_secs(reference["update_time"].as_u64().unwrap());
    let updated = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + seconds).to_string();
    let updated = format!("updated         {}", updated.replace('T', " ").replace('Z', " UTC ("));
    let sha256 = HEXLOWER.encode(digest(&SHA256, &std::fs::read(&path).unwrap()).as_ref());
    for line in [
        format!("file            {path}"),
        format!("sha256          {sha256}"),
        "revision        1".to_owned(),
        "entries         7".to_owned(),
        "hash count (k)  20".to_owned(),
        "hash length (L) 20 (128.0 KiB of bits)".to_owned(),
        "false positives 3.236e-78 per lookup".to_owned(),
        "plausible       yes: the entries explain the bits that are set".to_owned(),
    ] {
        assert!(shown.contains(&line), "{line:?} is not in {shown:#?}");
    }
    for start in ["bits set        ", &updated] {
        assert!(shown.iter().any(|line| line.starts_with(start)), "{start}: {shown:#?}");
    }
}

#[test]
fn info_names_a_file_that_is_no_filter() {
    let key = key_file("ed25519");
    for (path, problem) in [(&*key, "not a pkbfv1 filter"), ("missing.pkbf", "No such file")] {
        let output = keygate(&["filter", "info", path]);
        assert!(lines(&output, 3).is_empty());
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains(path) && message.contains(problem), "{message}");
    }
}

#[test]
fn query_agrees_with_the_reference_implementation() {
    let filter = vector("20_20.pkbf");
    let reference = parsed(&format!("{filter}.json"));
    for (key, algorithm) in [
        ("ed25519", "ed25519"),
        ("p256-a", "p256"),
        ("p256-b", "p256"),
        ("p384", "p384"),
        ("p521", "p521"),
        ("rsa-2048-a", "rsa-2048"),
        ("rsa-2048-b", "rsa-2048"),
        ("rsa-3072", "rsa-3072"),
        ("rsa-4096", "rsa-4096"),
    ] {
        let input = key_file(key);
        let hit = reference["probably_includes"][format!("{key}/default")].as_bool().unwrap();
        let fingerprint = fingerprint(key, "default");
        let expected = json!({
            "input": input,
            "line": 1,
            "algorithm": algorithm,
            "fingerprint": fingerprint,
            "verdict": if hit { "probable" } else { "clean" },
            "encoding": if hit { json!("presented") } else { Value::Null },
        });
        for exact in [&[][..], &["--exact"]] {
            let json = [&["filter", "query", &filter, &input, "--json"], exact].concat();
            assert_eq!(
                objects(&keygate(&json), i32::from(hit)),
                std::slice::from_ref(&expected),
                "{exact:?}"
            );
        }
        let text = if hit {
            format!("probable {fingerprint} {algorithm} {input}:1 (presented)")
        } else {
            format!("clean {fingerprint} {algorithm} {input}:1")
        };
        let output = keygate(&["filter", "query", &filter, &input]);
        assert_eq!(lines(&output, i32::from(hit)), [text]);
    }
}

#[test]
fn query_finds_a_key_that_was_added_compressed_and_exact_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("compressed.pkbf");
    let spki = HEXLOWER.decode(known("p256-b", "compressed", "spki_der_hex").as_bytes()).unwrap();
    write_filter(&path, &[&spki]);
    let (filter, input) = (path.to_str().unwrap(), key_file("p256-b"));

    let [found] =
        objects(&keygate(&["filter", "query", filter, &input, "--json"]), 1).try_into().unwrap();
    assert_eq!((&found["verdict"], &found["encoding"]), (&json!("probable"), &json!("compressed")));
    assert_eq!(
        found["fingerprint"],
        fingerprint("p256-b", "default"),
        "of the key as it was given"
    );

    let exact = keygate(&["filter", "query", filter, &input, "--json", "--exact"]);
    let [exact] = objects(&exact, 0).try_into().unwrap();
    assert_eq!((&exact["verdict"], &exact["encoding"]), (&json!("clean"), &Value::Null));
    let compressed = with_input(&["filter", "query", filter, "-", "--json", "--exact"], &spki);
    let [compressed] = objects(&compressed, 1).try_into().unwrap();
    assert_eq!(compressed["encoding"], "presented");
}

#[test]
fn query_reads_standard_input() {
    let filter = vector("20_20.pkbf");
    for (key, code) in [("p256-a", 1), ("p256-b", 0)] {
        let pem = std::fs::read(key_file(key)).unwrap();
        let output = with_input(&["filter", "query", &filter, "-", "--json"], &pem);
        let [response] = objects(&output, code).try_into().unwrap();
        assert_eq!(response["input"], "-");
        assert_eq!(response["fingerprint"], fingerprint(key, "default"));
    }
}

#[test]
fn an_unreadable_input_is_named_and_the_others_get_their_verdicts() {
    let filter = vector("20_20.pkbf");
    let (hit, clean) = (key_file("p256-a"), key_file("p256-b"));
    let inputs = [&*hit, "missing.pem", &filter, &clean];
    let output = keygate(&[&["filter", "query", &filter][..], &inputs].concat());
    // A hit is never hidden by an input that cannot be read.
    let responses = lines(&output, 1);
    assert_eq!(responses.len(), 2, "{responses:#?}");
    let without_hit = keygate(&["filter", "query", &filter, "missing.pem", &clean]);
    assert_eq!(lines(&without_hit, 3).len(), 1);
    assert!(
        responses[0].starts_with("probable ") && responses[1].starts_with("clean "),
        "{responses:?}"
    );
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("keygate: missing.pem: No such file"), "{message}");
    assert!(message.contains(&format!("keygate: {filter}: no key found")), "{message}");
    let summary = "keygate: 2 keys in 4 inputs, 1 in the filter; 2 inputs with places that could not be read\n";
    assert!(message.ends_with(summary), "{message}");
}

#[test]
fn key_shows_the_fingerprints_of_every_encoding() {
    let (ec, rsa) = (key_file("p256-a"), key_file("rsa-2048-a"));
    let output = keygate(&["key", &ec, &rsa]);
    let shown = lines(&output, 0);
    assert_eq!(shown[0], format!("{ec}:1: p256"));
    assert_eq!(shown[1], format!("  {} presented", fingerprint("p256-a", "default")));
    let compressed = format!("  {} compressed", fingerprint("p256-a", "compressed"));
    assert!(shown.contains(&compressed), "{shown:#?}");
    assert!(shown.contains(&format!("{rsa}:1: rsa-2048")), "{shown:#?}");

    let [ec, rsa] = objects(&keygate(&["key", "--json", &ec, &rsa]), 0).try_into().unwrap();
    assert_eq!(ec["algorithm"], "p256");
    assert_eq!(ec["fingerprint"], fingerprint("p256-a", "default"));
    let names = |key: &Value| {
        let encodings = key["encodings"].as_array().unwrap();
        let names = encodings.iter().map(|named| named["encoding"].as_str().unwrap().to_owned());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    };
    let of_points = ["compressed", "negated-compressed", "negated-uncompressed", "presented"];
    assert_eq!(names(&ec), of_points);
    assert_eq!(rsa["fingerprint"], fingerprint("rsa-2048-a", "default"));
    assert_eq!(names(&rsa), ["presented", "rsa-exponent-3"]);
    let presented = json!({
        "encoding": "presented",
        "fingerprint": fingerprint("rsa-2048-a", "default"),
    });
    assert_eq!(rsa["encodings"][0], presented);
}

#[test]
fn wrong_usage_has_its_own_exit_code() {
    let filter = vector("20_20.pkbf");
    for arguments in [
        &["serve"][..],
        &["run", "--colour"],
        &["filter"],
        &["filter", "query", &filter],
        &["filter", "info"],
        &["key"],
        &[],
    ] {
        let output = keygate(arguments);
        assert!(lines(&output, 2).is_empty(), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("Usage: "), "{arguments:?}");
    }
    assert_eq!(lines(&keygate(&["-V"]), 0), [concat!("keygate ", env!("CARGO_PKG_VERSION"))]);
    let long = lines(&keygate(&["--version"]), 0);
    assert_eq!(long[0], concat!("keygate ", env!("CARGO_PKG_VERSION")));
    let commit = long[1].strip_prefix("commit: ").unwrap();
    let is_hex = commit.len() >= 7 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(commit == "unknown" || is_hex, "{commit}");
    let target = long[2].strip_prefix("target: ").unwrap();
    assert!(target.starts_with(std::env::consts::ARCH) && target.contains("linux"), "{target}");
    assert_eq!(long[3], "cryptography: AWS-LC (aws-lc-rs), TLS: rustls");
}

#[test]
fn a_directory_without_a_file_is_an_unusable_input() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("empty")).unwrap();
    let path = directory.path().to_str().unwrap();
    for command in [&["filter", "query", &vector("20_20.pkbf")][..], &["key"]] {
        let output = keygate(&[command, &[path]].concat());
        assert!(lines(&output, 3).is_empty(), "{}", output_text(&output));
        let error = "keygate: no input: there is no file below the directory that was given\n";
        assert_eq!(output.stderr, error.as_bytes(), "{}", output_text(&output));
    }
}

#[test]
fn query_of_a_directory_has_a_line_for_each_unusable_file_in_order_and_a_summary() {
    let filter = vector("20_20.pkbf");
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::create_dir(path("b")).unwrap();
    std::fs::copy(key_file("p256-a"), path("c.pem")).unwrap();
    std::fs::copy(key_file("p256-b"), path("b/clean.pem")).unwrap();
    for name in ["z.txt", "a.txt", "b/notes.txt"] {
        std::fs::write(path(name), "not a key\n".repeat(50)).unwrap();
    }
    for extra in [&[][..], &["--json"]] {
        let input = directory.path().to_str().unwrap();
        let output = keygate(&[&["filter", "query", &filter, input], extra].concat());
        let found = lines(&output, 1);
        assert!(found[0].contains("b/clean.pem") && found[1].contains("c.pem"), "{found:?}");
        assert_eq!(found.len(), 2);
        let errors = String::from_utf8(output.stderr).unwrap();
        let [first, second, third, summary] = errors.lines().collect::<Vec<_>>()[..] else {
            panic!("{errors}")
        };
        for (line, name) in [(first, "a.txt"), (second, "b/notes.txt"), (third, "z.txt")] {
            let start = format!("keygate: {}:1: ", path(name).display());
            assert!(line.starts_with(&start), "{start}: {line}");
            assert!(line.ends_with(" (and 49 more places)"), "{line}");
        }
        let expected = "keygate: 2 keys in 5 inputs, 1 in the filter; 3 inputs with places that could not be read";
        assert_eq!(summary, expected);
    }
}
