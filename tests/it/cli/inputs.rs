//! Keys in every input format, made by the programs that usually make them.

use std::path::Path;
use std::process::Command;

use data_encoding::{BASE64, HEXLOWER};
use keygate_core::spki::{Finding, InputError, KeyScanner, keys_in};

use crate::support::keygate::{BINARY, keygate};
use crate::support::{output_text, system};

/// Runs a program in `directory`, which must succeed; returns its standard output.
pub(super) fn run(directory: &Path, program: &str, arguments: &str) -> Vec<u8> {
    let words = arguments.split_whitespace().map(|word| if word == "''" { "" } else { word });
    let output = Command::new(program)
        .args(words)
        .current_dir(directory)
        .output()
        .unwrap_or_else(|error| panic!("{program} is needed by this test: {error}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {error}");
    output.stdout
}

/// Runs `openssl` for what it writes.
pub(super) fn openssl(directory: &Path, arguments: &str) -> Vec<u8> {
    run(directory, "openssl", arguments)
}

/// The keys of an input that has nothing else.
pub(super) fn keys(what: &str, input: &[u8]) -> Vec<Vec<u8>> {
    let findings = keys_in(input);
    let key = |finding: Finding| finding.key.unwrap_or_else(|error| panic!("{what}: {error}"));
    findings.into_iter().map(key).collect()
}

/// The error in an input whose only finding is not a key.
pub(super) fn problem(what: &str, input: &[u8]) -> InputError {
    match <[Finding; 1]>::try_from(keys_in(input)) {
        Ok([Finding { key: Err(error), .. }]) => error,
        other => panic!("{what}: {other:?}"),
    }
}

const KINDS: [(&str, &str); 8] = [
    ("rsa-1024", "-algorithm rsa -pkeyopt rsa_keygen_bits:1024"),
    ("rsa-2048", "-algorithm rsa -pkeyopt rsa_keygen_bits:2048"),
    ("rsa-primes", "-algorithm rsa -pkeyopt rsa_keygen_bits:2048 -pkeyopt rsa_keygen_primes:3"),
    ("p256", "-algorithm ec -pkeyopt ec_paramgen_curve:P-256"),
    ("p384", "-algorithm ec -pkeyopt ec_paramgen_curve:P-384"),
    ("p521", "-algorithm ec -pkeyopt ec_paramgen_curve:P-521"),
    ("secp256k1", "-algorithm ec -pkeyopt ec_paramgen_curve:secp256k1"),
    ("ed25519", "-algorithm ed25519"),
];

#[test]
fn every_form_that_openssl_writes_gives_the_same_spki() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    for (kind, parameters) in KINDS {
        openssl(at, &format!("genpkey {parameters} -out key.pem"));
        let spki = openssl(at, "pkey -in key.pem -pubout -outform DER");
        let mut forms = vec![
            "pkey -in key.pem",
            "pkey -in key.pem -outform DER",
            "pkey -in key.pem -pubout",
            "pkey -in key.pem -pubout -outform DER",
            "req -new -key key.pem -subj /CN=a",
            "req -new -key key.pem -subj /CN=a -outform DER",
            "req -new -key key.pem -subj /CN=a -text",
            "req -x509 -key key.pem -subj /CN=a -days 9",
            "req -x509 -key key.pem -subj /CN=a -days 9 -outform DER",
            "req -x509 -key key.pem -subj /CN=a -days 9 -text",
        ];
        if kind != "ed25519" {
            forms.extend([
                "pkey -in key.pem -traditional",
                "pkey -in key.pem -traditional -outform DER",
            ]);
        }
        if kind.starts_with("rsa") {
            forms.extend([
                "rsa -in key.pem -RSAPublicKey_out",
                "rsa -in key.pem -RSAPublicKey_out -outform DER",
            ]);
        }
        if kind.starts_with('p') {
            forms.extend(["ec -in key.pem -no_public", "ec -in key.pem -no_public -outform DER"]);
        }
        for form in forms {
            assert_eq!(
                keys(form, &openssl(at, form)),
                std::slice::from_ref(&spki),
                "{kind}: {form}"
            );
        }
        std::fs::write(at.join("cert.pem"), openssl(at, "req -x509 -key key.pem -subj /CN=a"))
            .unwrap();
        let trusted = openssl(at, "x509 -in cert.pem -trustout -addtrust clientAuth");
        assert_eq!(keys("trusted", &trusted), std::slice::from_ref(&spki), "{kind}");

        for encrypted in [
            "pkey -in key.pem -aes256 -passout pass:secret",
            "pkey -in key.pem -aes256 -passout pass:secret -traditional",
            "pkcs8 -topk8 -in key.pem -outform DER -v2 aes256 -passout pass:secret",
            "pkcs8 -topk8 -in key.pem -passout pass:secret",
        ] {
            if kind == "ed25519" && encrypted.contains("-traditional") {
                continue; // it has no such form
            }
            let error = problem(encrypted, &openssl(at, encrypted));
            assert!(matches!(error, InputError::Encrypted { .. }), "{kind}: {encrypted}: {error}");
            assert!(error.to_string().contains("is encrypted"), "{error}");
        }
    }
}

#[test]
fn every_form_that_ssh_keygen_writes_gives_the_same_spki() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    for kind in ["rsa -b 2048", "ecdsa -b 256", "ecdsa -b 384", "ecdsa -b 521", "ed25519"] {
        for name in ["id", "id.pub"] {
            let _ = std::fs::remove_file(at.join(name)); // of the kind before
        }
        run(at, "ssh-keygen", &format!("-q -t {kind} -N '' -C a-comment -f id"));
        let file = |name: &str| std::fs::read(at.join(name)).unwrap();
        let [spki] = keys(kind, &file("id.pub")).try_into().unwrap();
        assert_eq!(keys(kind, &file("id")), std::slice::from_ref(&spki), "{kind}");
        if kind != "ed25519" {
            // Converts the key to a form that openssl reads.
            let pkcs8 = run(at, "ssh-keygen", "-e -m PKCS8 -f id.pub");
            assert_eq!(keys(kind, &pkcs8), std::slice::from_ref(&spki), "{kind}");
            std::fs::write(at.join("public.pem"), pkcs8).unwrap();
            assert_eq!(openssl(at, "pkey -pubin -in public.pem -outform DER"), spki, "{kind}");
        }
        let public = String::from_utf8(file("id.pub")).unwrap();
        let line = format!("from=\"10.0.0.0/8 ,::1\",command=\"echo \\\"ssh-rsa x\\\"\" {public}");
        assert_eq!(keys(kind, line.as_bytes()), std::slice::from_ref(&spki), "{line}");

        run(at, "ssh-keygen", "-q -p -P '' -N a-secret -f id");
        assert_eq!(keys(kind, &file("id")), std::slice::from_ref(&spki), "{kind}, encrypted");
    }
}

#[test]
fn lines_of_base64_and_hex_are_keys_and_other_lines_are_named_by_number() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let spkis: Vec<Vec<u8>> = (0..4)
        .map(|_| {
            openssl(at, "genpkey -algorithm ec -pkeyopt ec_paramgen_curve:P-256 -out key.pem");
            openssl(at, "pkey -in key.pem -pubout -outform DER")
        })
        .collect();
    let fingerprint = keygate_core::spki::Fingerprint::of(&spkis[0]);
    let text = format!(
        "# lost in March\r\n{}\r\n\r\nnonsense\n{}\n{}\n{fingerprint}\n{fingerprint}  a.der\n{}\nMAAA\nssh-rsa AAAA\nssh-dss {} c",
        BASE64.encode(&spkis[0]),
        HEXLOWER.encode(&spkis[1]),
        HEXLOWER.encode(&spkis[2]).to_uppercase(),
        BASE64.encode(&spkis[3]).trim_end_matches('='),
        BASE64.encode(b"\0\0\0\x07ssh-dss"),
    );
    let findings = keys_in(text.as_bytes());
    let found: Vec<_> = findings.iter().filter_map(|finding| finding.key.as_ref().ok()).collect();
    assert_eq!(found, spkis.iter().collect::<Vec<_>>());
    let errors = findings.iter().filter_map(|finding| {
        finding.key.as_ref().err().map(|error| (finding.line.unwrap(), error.to_string()))
    });
    let errors: Vec<_> = errors.collect();
    for ((line, error), (expected, part)) in errors.iter().zip([
        (4, "neither PEM"),
        (7, "a fingerprint is not a key"),
        (8, "a fingerprint is not a key"),
        (10, "neither PEM"),
        (11, "an OpenSSH key that cannot be read"),
        (12, "an OpenSSH key of the type ssh-dss is not supported"),
    ]) {
        assert_eq!(*line, expected, "{error}");
        assert!(error.contains(part), "{line}: {error}");
    }
    assert_eq!(errors.len(), 6, "{errors:?}");
}

#[test]
fn a_bundle_gives_all_its_keys_with_other_text_between_them() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let (mut bundle, mut spkis) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        openssl(at, "ecparam -name prime256v1 -genkey -out key.pem"); // with EC PARAMETERS
        spkis.push(openssl(at, "pkey -in key.pem -pubout -outform DER"));
        bundle.extend(b"Bag Attributes\n    friendlyName: a\nsubject=CN = a\n\n");
        bundle.extend(openssl(at, "req -x509 -key key.pem -subj /CN=a -text"));
    }
    bundle.extend(std::fs::read(at.join("key.pem")).unwrap());
    spkis.push(spkis[2].clone());
    assert_eq!(keys("bundle", &bundle), spkis);

    // A damaged section is reported with its line, and the keys of the others are found.
    let text = String::from_utf8(bundle.clone()).unwrap();
    let broken =
        text.replacen("-----BEGIN CERTIFICATE-----\nMI", "-----BEGIN CERTIFICATE-----\n??", 1);
    let line = 1 + text.lines().position(|line| line.contains("BEGIN CERT")).unwrap() as u64;
    let findings = keys_in(broken.as_bytes());
    assert_eq!(findings.len(), 4);
    assert_eq!(findings[0].line, Some(line));
    assert!(matches!(findings[0].key, Err(InputError::Broken { what: "PEM", .. })));
    assert!(findings[1..].iter().all(|finding| finding.key.is_ok()));

    // A section with a damaged BEGIN line is reported, not skipped as text.
    let lost = text.replacen("-----BEGIN CERTIFICATE-----", "----BEGIN CERTIFICATE-----", 1);
    let findings = keys_in(lost.as_bytes());
    assert_eq!(findings.iter().filter(|finding| finding.key.is_ok()).count(), 3);
    assert!(findings.iter().any(|finding| finding.line == Some(line) && finding.key.is_err()));

    // Base64 without a BEGIN line is reported as well.
    let headless = text.replacen("-----BEGIN CERTIFICATE-----\n", "", 1);
    let findings = keys_in(headless.as_bytes());
    assert_eq!(findings.iter().filter(|finding| finding.key.is_ok()).count(), 3);
    assert!(findings.iter().any(|finding| finding.line == Some(line) && finding.key.is_err()));

    // An input that ends within a section, and one where the next section begins too early.
    let cut = text.split_at(text.rfind("-----END").unwrap()).0;
    let last = keys_in(cut.as_bytes()).pop().unwrap();
    assert!(last.key.unwrap_err().to_string().contains("has no END line"));
    let run_on = text.replacen("-----END CERTIFICATE-----\n", "", 1);
    let findings = keys_in(run_on.as_bytes());
    assert!(findings[0].key.is_err() && findings[1..].iter().all(|finding| finding.key.is_ok()));
}

#[test]
fn an_input_without_a_usable_key_is_reported_with_its_kind() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    openssl(at, "genpkey -algorithm ec -pkeyopt ec_paramgen_curve:P-256 -out key.pem");
    openssl(at, "req -x509 -key key.pem -subj /CN=a -out cert.pem");
    for (command, part) in [
        ("pkcs12 -export -inkey key.pem -in cert.pem -passout pass:secret", "a PKCS #12 store"),
        ("genpkey -algorithm x25519", "a private key of the algorithm 1.3.101.110"),
        ("genpkey -algorithm ed448 -outform DER", "a private key of the algorithm 1.3.101.113"),
        ("ecparam -name prime256v1", "no key found"),
        ("ecparam -name brainpoolP256r1 -genkey -noout", "P-256, P-384, P-521 or secp256k1"),
        ("rand 100", "no key found"),
    ] {
        let error = problem(command, &openssl(at, command)).to_string();
        assert!(error.contains(part), "{command}: {error}");
    }
    for empty in [&b""[..], b"\n\n", b"# nothing yet\n"] {
        assert_eq!(problem("nothing", empty), InputError::NoKey);
    }
}

#[test]
fn the_findings_do_not_depend_on_the_size_of_the_pieces() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    openssl(at, "genpkey -algorithm ec -pkeyopt ec_paramgen_curve:P-384 -out key.pem");
    let list = [BASE64.encode(&openssl(at, "pkey -in key.pem -pubout -outform DER")), "x".into()];
    for input in [
        openssl(at, "req -x509 -key key.pem -subj /CN=a -text"),
        openssl(at, "req -x509 -key key.pem -subj /CN=a -outform DER"),
        openssl(at, "rand 1000"),
        [b"\xef\xbb\xbf", list.join("\n").as_bytes()].concat(),
        b"short".to_vec(),
    ] {
        let whole = format!("{:?}", keys_in(&input));
        for size in [1, 7, 64, 100] {
            let mut findings = Vec::new();
            let mut scanner = KeyScanner::new();
            for piece in input.chunks(size) {
                scanner.push(piece, &mut |finding| findings.push(finding));
            }
            scanner.finish(&mut |finding| findings.push(finding));
            assert_eq!(format!("{findings:?}"), whole, "in pieces of {size}");
        }
    }
}

#[test]
fn an_input_larger_than_any_key_is_reported_and_not_buffered() {
    let spki = BASE64.encode(
        b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    );
    let line = "A".repeat(3 << 20);
    let text = format!(
        "{spki}\n{line}\n{spki}\n-----BEGIN CERTIFICATE-----\n{line}\n{}-----END CERTIFICATE-----\n{spki}",
        "QUJD\n".repeat(300_000)
    );
    let findings = keys_in(text.as_bytes());
    let lines: Vec<_> =
        findings.iter().map(|finding| (finding.line.unwrap(), finding.key.is_ok())).collect();
    assert_eq!(lines, [(1, true), (2, false), (3, true), (4, false), (300_007, true)]);
    for finding in findings.iter().filter(|finding| finding.key.is_err()) {
        assert!(matches!(finding.key, Err(InputError::TooLarge { limit: 1_048_576, .. })));
    }
    let object = [b"\x30\x84\x10\x00\x00\x00", vec![0; 3 << 20].as_slice()].concat();
    assert!(matches!(problem("object", &object), InputError::TooLarge { .. }));
}

#[test]
fn an_input_is_read_as_far_as_it_can_have_a_key() {
    for (what, start, is_bounded) in [
        ("binary", &b"\0"[..], true),
        ("DER", b"\x30\x84\x10\0\0\0", true),
        ("JSON", b"{\"keys\":[", true),
        ("text", b"# keys", false),
    ] {
        let mut scanner = KeyScanner::new();
        scanner.push(start, &mut |_| ());
        let piece = vec![if what == "DER" || what == "binary" { 0 } else { b' ' }; 1 << 18];
        let is_complete = (0..8).any(|_| {
            scanner.push(&piece, &mut |_| ());
            scanner.is_complete()
        });
        assert_eq!(is_complete, is_bounded, "{what}");
    }
    // The device has no end.
    let limited = ["100", BINARY, "key", "/dev/zero"];
    let output = system("timeout", &limited);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("/dev/zero: no key found"));
}

/// No input makes the scanner panic, and every input has a finding.
#[test]
fn every_truncation_and_every_changed_byte_is_a_finding() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    openssl(at, "genpkey -algorithm ec -pkeyopt ec_paramgen_curve:P-256 -out key.pem");
    openssl(at, "req -x509 -key key.pem -subj /CN=a -out cert.pem");
    run(at, "ssh-keygen", "-q -t ed25519 -N '' -C c -f id");
    run(at, "ssh-keygen", "-q -s id -I i id.pub");
    let export = "pkcs12 -export -inkey key.pem -in cert.pem -passout pass:secret -iter 1";
    let mut inputs = vec![
        openssl(at, "crl2pkcs7 -nocrl -certfile cert.pem -outform DER"),
        openssl(at, &format!("{export} -nomac -keypbe NONE -certpbe NONE")),
        run(at, "ssh-keygen", "-e -f id.pub"),
        std::fs::read(at.join("id-cert.pub")).unwrap(),
        br#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#.to_vec(),
        openssl(at, "req -x509 -key key.pem -subj /CN=a -outform DER"),
        openssl(at, "req -new -key key.pem -subj /CN=a -outform DER"),
        openssl(at, "pkey -in key.pem -outform DER"),
        openssl(at, "pkey -in key.pem -traditional -outform DER"),
        openssl(at, "pkey -in key.pem"),
    ];
    inputs.push(std::fs::read(at.join("id")).unwrap());
    inputs.push(std::fs::read(at.join("id.pub")).unwrap());
    for input in inputs {
        for length in 0..input.len() {
            assert!(!keys_in(&input[..length]).is_empty(), "{length} bytes");
        }
        for position in 0..input.len() {
            for flip in [0x01, 0x20, 0xff] {
                let mut changed = input.clone();
                changed[position] ^= flip;
                assert!(!keys_in(&changed).is_empty(), "byte {position} ^ {flip}");
            }
        }
    }
    let encrypted = openssl(at, export);
    for position in 0..encrypted.len() {
        for flip in [0x01, 0x20, 0xff] {
            let mut changed = encrypted.clone();
            changed[position] ^= flip;
            for finding in keys_in(&changed) {
                if let Err(InputError::Passphrase(store)) = finding.key {
                    assert!(!store.keys("secret").is_empty(), "byte {position} ^ {flip}");
                }
            }
        }
    }
}

#[test]
fn an_input_that_cannot_be_opened_is_named_with_the_reason_and_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("loop");
    std::os::unix::fs::symlink("loop", &link).unwrap();
    let link = link.to_str().unwrap();
    let cases = [
        ("/nowhere/key.pem", "No such file or directory; create it, or correct the path"),
        (
            link,
            "Too many levels of symbolic links; correct the path, because its symbolic links lead to each other",
        ),
    ];
    for (path, problem) in cases {
        let text = output_text(&keygate(&["key", path]));
        assert!(text.contains(&format!("{path}: {problem}\n")), "{text}");
    }
}
