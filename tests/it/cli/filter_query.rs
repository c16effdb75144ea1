//! `keygate filter query` reads the bits of the given keys, or the whole filter.

use std::fs::{File, write};
use std::io::Write;
use std::process::Command;

use super::bench::{Bench, problem};
use super::key_files::{PUBLIC_KEYS, WEB_KEYS};
use crate::support::keygate::BINARY;
use crate::support::{output_text, skip};

#[test]
fn verdicts_are_those_of_the_whole_filter() {
    let bench = Bench::new("filter");
    // 4 MiB. Filters up to 1 MiB are read as a whole.
    bench.run(0, &["create", "a.pkbf", "--hash-count", "7", "--hash-length", "25"]);
    write(bench.path("added.pem"), PUBLIC_KEYS).unwrap();
    write(bench.path("web-keys.json"), WEB_KEYS).unwrap();
    bench.run(0, &["add", "a.pkbf", "added.pem"]);
    // Another exponent of a modulus in the filter.
    let web_keys = String::from_utf8(WEB_KEYS.to_vec()).unwrap();
    write(bench.path("related.json"), web_keys.replace("\"AQAB\"", "\"Aw\"")).unwrap();
    let [related, ..] = &bench.json(1, &["query", "a.pkbf", "related.json"])[..] else { panic!() };
    assert_eq!(related["encoding"], "rsa-exponent-65537", "{related}");
    for name in ["one", "other"] {
        let key = rcgen::KeyPair::generate().unwrap();
        write(bench.path(name), key.public_key_pem()).unwrap();
    }
    let inputs = ["web-keys.json", "one", "other", "added.pem"];
    for options in [&[][..], &["--exact"]] {
        let query = || bench.json(1, &[&["query", "a.pkbf"][..], &inputs, options].concat());
        let sparse = query();
        let verdicts = |rows: &[serde_json::Value]| {
            rows.iter().filter(|row| row["verdict"] == "probable").count()
        };
        assert_eq!((sparse.len(), verdicts(&sparse)), (22, 20), "{sparse:?}");
        // With a checksum the whole filter is read.
        let sum = crate::support::system("sha256sum", &[bench.path("a.pkbf").to_str().unwrap()]);
        write(bench.path("a.pkbf.sha256"), sum.stdout).unwrap();
        assert_eq!(query(), sparse);
        std::fs::remove_file(bench.path("a.pkbf.sha256")).unwrap();
    }
    let clean = bench.lines(0, &["query", "a.pkbf", "one", "other"]);
    assert!(clean.iter().all(|line| line.starts_with("clean ")), "{clean:?}");
}

/// strace counts the bytes: the header, and one byte for each bit of the four encodings of the key.
#[test]
fn a_query_reads_only_the_bits_of_the_key() {
    if skip::without("strace") {
        return;
    }
    let bench = Bench::new("filter");
    write(bench.path("key"), rcgen::KeyPair::generate().unwrap().public_key_pem()).unwrap();
    for hash_length in ["25", "30"] {
        let name = format!("{hash_length}.pkbf");
        let length = ["--hash-count", "7", "--hash-length", hash_length];
        bench.run(0, &[&["create", name.as_str()][..], &length].concat());
        let filter = bench.path(&name);
        let calls = bench.path("calls");
        let mut traced = Command::new("strace");
        traced.args(["-f", "-qq", "-e", "trace=read,readv,pread64,preadv,preadv2,mmap"]);
        traced.arg("-P").arg(&filter).arg("-o").arg(&calls);
        traced.args([BINARY, "filter", "query"]).arg(&filter).arg(bench.path("key"));
        let output = traced.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
        let calls = std::fs::read_to_string(calls).unwrap();
        assert!(!calls.contains("mmap"), "{calls}");
        let results = calls.lines().map(|line| line.rsplit(' ').next().unwrap());
        let bytes: u64 = results.map(|result| result.parse::<u64>().unwrap()).sum();
        assert_eq!(bytes, 24 + 4 * 7, "{calls}");
    }
}

/// The data of the filter are a hole in the file: reading all of it would take minutes.
#[test]
fn a_filter_larger_than_the_memory_is_queried() {
    let bench = Bench::new("filter");
    let mut header = b"pkbfv1\0\0\0\x01\0\0\0\0\x65\x53\xf1\0\0\0\0\x05".to_vec();
    header.extend([8, 40]);
    let mut file = File::create_new(bench.path("a.pkbf")).unwrap();
    file.write_all(&header).unwrap();
    file.set_len(24 + (1 << 37)).unwrap();
    write(bench.path("keys.pem"), PUBLIC_KEYS).unwrap();
    let verdicts = bench.lines(5, &["query", "a.pkbf", "keys.pem"]);
    let clean = verdicts.iter().filter(|line| line.starts_with("clean ")).count();
    let unchecked = verdicts.iter().filter(|line| line.starts_with("unchecked ")).count();
    assert_eq!(
        (clean, unchecked),
        (7, 3),
        "Ed448, X25519 and DSA keys cannot be presented: {verdicts:?}"
    );
    file.set_len(1 << 37).unwrap();
    let output = bench.run(3, &["query", "a.pkbf", "keys.pem"]);
    assert!(problem(&output).contains("its header (hash length 40) requires"));
}
