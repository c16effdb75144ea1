//! Proofs of compromise made and verified on the command line.

use std::fs::{read, write};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use keygate_core::proof;
use keygate_core::spki::keys_in;
use serde_json::json;

use super::bench::{Bench, problem};
use crate::support::keygate::BINARY;
use crate::support::{output_text, skip, system};

impl Bench {
    /// With `NAME.key` and `NAME.pem`, the certificate, of these algorithms of `openssl req`.
    fn with_keys(keys: &[(&str, &str)]) -> Self {
        let bench = Self::new("proof");
        for (name, algorithm) in keys {
            let made = format!(
                "req -x509 -newkey {algorithm} -noenc -keyout {name}.key -out {name}.pem -subj /CN={name}"
            );
            let mut openssl = Command::new("openssl");
            openssl.args(made.split_whitespace()).current_dir(bench.directory());
            let output = openssl.output().unwrap();
            assert!(output.status.success(), "{}", output_text(&output));
        }
        bench
    }

    fn fingerprint(&self, certificate: &str) -> String {
        let spki = keys_in(&read(self.path(certificate)).unwrap()).remove(0).key.unwrap();
        keygate_core::spki::Fingerprint::of(&spki).to_string()
    }
}

const P256: &str = "ec -pkeyopt ec_paramgen_curve:P-256";

#[test]
fn created_proofs_are_files_that_verify_the_certificate() {
    if skip::without("openssl") {
        return;
    }
    let bench = Bench::with_keys(&[("lost", P256), ("rsa", "rsa:2048"), ("other", "ed25519")]);
    std::fs::create_dir(bench.path("proofs")).unwrap();
    for (name, algorithm, count) in
        [("lost", "p256", 2), ("rsa", "rsa-2048", 1), ("other", "ed25519", 1)]
    {
        let key = format!("{name}.key");
        let rows = bench.json(0, &["create", &key, "--dir", "proofs"]);
        assert_eq!(rows.len(), count, "{name}");
        let certificate = format!("{name}.pem");
        let fingerprint = bench.fingerprint(&certificate);
        assert_eq!(rows[0]["fingerprint"], fingerprint);
        assert_eq!(rows[0]["algorithm"], algorithm);
        for (row, encoding) in rows.iter().zip(["presented", "compressed"]) {
            let path = row["path"].as_str().unwrap();
            assert_eq!(path, format!("proofs/{}.jws", row["fingerprint"].as_str().unwrap()));
            let [line] = bench.lines(0, &["verify", path, &certificate]).try_into().unwrap();
            let position = format!("{certificate}:1 ({encoding})");
            assert_eq!(line, format!("proved {fingerprint} {algorithm} {position}"));
            let body = read(bench.path(path)).unwrap();
            assert_eq!(body.last(), Some(&b'}'), "the bytes of the reference have no line break");
        }
    }
    let names: Vec<_> = std::fs::read_dir(bench.path("proofs")).unwrap().collect();
    assert_eq!(names.len(), 4, "{names:?}");
    for entry in names {
        let mode = entry.unwrap().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o700, 0o600, "others read it as the umask has it: {mode:o}");
    }
    // The paths are what is printed without --json, and an older proof is replaced.
    let printed = bench.lines(0, &["create", "rsa.key", "--dir", "proofs"]);
    assert_eq!(printed, [format!("proofs/{}.jws", bench.fingerprint("rsa.pem"))]);
}

#[test]
fn a_proof_says_nothing_about_other_keys_and_names_the_reason() {
    if skip::without("openssl") {
        return;
    }
    let bench = Bench::with_keys(&[("lost", P256), ("other", P256), ("rsa", "rsa:2048")]);
    let paths = bench.lines(0, &["create", "lost.key"]);
    let proof = paths[0].as_str();
    let rows = bench.json(0, &["verify", proof, "other.pem", "lost.pem", "rsa.pem"]);
    let outcomes: Vec<_> =
        rows.iter().map(|row| (&row["proved"], &row["encoding"], &row["reason"])).collect();
    let (yes, no, none) = (&json!(true), &json!(false), &json!(null));
    let (kid, presented) = (&json!("kid"), &json!("presented"));
    assert_eq!(outcomes, [(no, none, kid), (yes, presented, none), (no, none, kid)]);
    assert_eq!(rows[1]["input"], "lost.pem");

    let [line] = bench.lines(1, &["verify", proof, "other.pem"]).try_into().unwrap();
    let [fingerprint, proved] = ["other.pem", "lost.pem"].map(|file| bench.fingerprint(file));
    let expected =
        format!("unproved {fingerprint} p256 other.pem:1: the proof is for another key, {proved}");
    assert_eq!(line, expected);

    // One changed character of the signature.
    let body = String::from_utf8(read(bench.path(proof)).unwrap()).unwrap();
    let signature = body.find("signature\":\"").unwrap() + 12;
    let other = if &body[signature..=signature] == "A" { "B" } else { "A" };
    let changed = format!("{}{other}{}", &body[..signature], &body[signature + 1..]);
    for (content, reason) in [
        (changed.as_str(), "signature"),
        (&body.replace("\"payload\"", "\"load\""), "members"),
        (&body[..body.len() - 1], "json"),
        (&format!("{body:>17000}"), "size"),
    ] {
        write(bench.path("changed.jws"), content).unwrap();
        let [row] = bench.json(1, &["verify", "changed.jws", "lost.pem"]).try_into().unwrap();
        assert_eq!((&row["proved"], &row["reason"]), (no, &json!(reason)));
    }
}

#[test]
fn without_a_key_no_signature_is_verified_and_the_exit_code_is_not_success() {
    if skip::without("openssl") {
        return;
    }
    let bench = Bench::with_keys(&[("lost", P256)]);
    let paths = bench.lines(0, &["create", "lost.key"]);
    let output = bench.run(1, &["verify", &paths[0]]);
    let fingerprint = bench.fingerprint("lost.pem");
    assert_eq!(output.stdout, format!("unverified {fingerprint}\n").as_bytes());
    assert!(problem(&output).contains("no signature was verified"), "{}", problem(&output));
    let [row] = bench.json(1, &["verify", &paths[0]]).try_into().unwrap();
    assert_eq!(row, json!({ "fingerprint": fingerprint, "reason": null }));
    write(bench.path("empty.jws"), "{}").unwrap();
    let [line] = bench.lines(1, &["verify", "empty.jws"]).try_into().unwrap();
    assert!(line.starts_with("not a proof: not an object of the strings "), "{line}");
}

#[test]
fn a_private_key_proves_its_own_compromise() {
    if skip::without("openssl") {
        return;
    }
    let bench = Bench::with_keys(&[("lost", P256), ("other", P256)]);
    let rows = bench.json(0, &["verify", "lost.key", "lost.pem", "other.pem"]);
    let proved: Vec<_> = rows.iter().map(|row| &row["proved"]).collect();
    assert_eq!(proved, [&json!(true), &json!(false)]);
    // From standard input, and against the private key itself.
    let mut child = bench.command(&["verify", "-", "lost.key"]).stdin(Stdio::piped()).spawn();
    let child = child.as_mut().unwrap();
    let key = read(bench.path("lost.key")).unwrap();
    child.stdin.take().unwrap().write_all(&key).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    // A public key or a certificate is no proof.
    let output = bench.run(3, &["verify", "lost.pem", "lost.pem"]);
    assert!(problem(&output).contains("no private key in PEM or DER"), "{}", problem(&output));
}

#[test]
fn a_private_key_with_a_foreign_public_half_proves_nothing() {
    if skip::without("openssl") {
        return;
    }
    let bench = Bench::with_keys(&[("thief", "rsa:2048"), ("victim", "rsa:2048")]);
    // The modulus of another key in place of its own: both have 257 bytes.
    let der = |name: &str| {
        let made = format!("pkey -in {name}.key -traditional -outform DER");
        let mut openssl = Command::new("openssl");
        openssl.args(made.split_whitespace()).current_dir(bench.directory());
        openssl.output().unwrap().stdout
    };
    let (mut forged, victim) = (der("thief"), der("victim"));
    let start = forged.windows(4).position(|it| it == [0x02, 0x82, 0x01, 0x01]).unwrap() + 4;
    forged[start..start + 257].copy_from_slice(&victim[start..start + 257]);
    assert!(proof::create(&forged).is_err());
    write(bench.path("forged.der"), forged).unwrap();
    let output = bench.run(3, &["verify", "forged.der", "victim.pem"]);
    assert!(problem(&output).contains("not a private key that can sign"), "{}", problem(&output));
}

#[test]
fn an_unusable_input_is_named() {
    if skip::without("openssl") {
        return;
    }
    let bench = Bench::with_keys(&[("lost", P256)]);
    let mut openssl = Command::new("openssl");
    openssl.args("pkey -in lost.key -aes256 -passout pass:x -out locked.key".split_whitespace());
    assert!(openssl.current_dir(bench.directory()).status().unwrap().success());
    write(bench.path("prose"), "nothing\n").unwrap();
    write(bench.path("large"), vec![b' '; (1 << 20) + 1]).unwrap();
    let key = bench.path("ssh");
    let made = ["-q", "-t", "ed25519", "-N", "", "-f", key.to_str().unwrap()];
    assert!(system("ssh-keygen", &made).status.success());
    for (file, expected) in [
        ("locked.key", "the private key is encrypted: decrypt it first"),
        ("lost.pem", "no private key in PEM or DER"),
        ("prose", "no private key in PEM or DER"),
        ("ssh", "`ssh-keygen -p -m PEM -f FILE` converts an OpenSSH key"),
        ("large", "larger than 1 MiB: neither a proof nor a private key"),
        ("none", "No such file or directory"),
    ] {
        for arguments in [&["create", file][..], &["verify", file, "lost.pem"]] {
            let output = bench.run(3, arguments);
            let problem = problem(&output);
            assert!(problem.starts_with(&format!("keygate: {file}: ")), "{problem}");
            assert!(problem.contains(expected), "{problem}");
        }
    }
    let paths = bench.lines(0, &["create", "lost.key"]);
    // A key that is proved counts more than an input that cannot be read.
    bench.run(0, &["verify", &paths[0], "prose", "lost.pem"]);
    bench.run(3, &["verify", &paths[0], "prose"]);
    let output = bench.run(3, &["create", "lost.key", "--dir", "none"]);
    let expected = "keygate: none: No such file or directory; create it, or correct the path\n";
    assert_eq!(problem(&output), expected);
    bench.run(2, &["verify"]);
    bench.run(2, &["create"]);
}

#[test]
fn on_a_terminal_a_proof_is_created_with_yes_only() {
    if skip::without("openssl") || skip::without("script") {
        return;
    }
    let bench = Bench::with_keys(&[("lost", P256)]);
    let file = format!("{}.jws", bench.fingerprint("lost.pem"));
    let on_terminal = |arguments: &str| {
        let mut script = Command::new("script");
        let command = format!("{BINARY} proof create lost.key {arguments}");
        script.args(["-qec", &command, "/dev/null"]).current_dir(bench.directory());
        script.stdin(Stdio::null()).output().unwrap()
    };
    let output = on_terminal("");
    let shown = output_text(&output);
    assert_eq!(output.status.code(), Some(2), "{shown}");
    assert!(shown.contains("no proof can be withdrawn") && shown.contains(&file), "{shown}");
    assert!(!bench.path(&file).exists());
    let output = on_terminal("--yes");
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    assert!(bench.path(&file).exists());
}
