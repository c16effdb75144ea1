//! PKCS #12 stores and their passphrases. openssl and Java's keytool have made the stores.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use keygate_core::spki::{EncryptedStore, InputError};
use x509_cert::der::Decode;
use x509_cert::der::asn1::AnyRef;

use super::inputs::{keys, openssl, problem};
use super::key_files::{P256_WEB_KEY, make_chain, spki};
use crate::support::keygate::{BINARY, keygate};
use crate::support::{output_text, skip};

const KEYTOOL_STORE: &[u8] = include_bytes!("../../vectors/inputs/keytool.p12");
const KEYTOOL_CERTIFICATE: &[u8] = include_bytes!("../../vectors/inputs/keytool.pem");

/// The store in an input, which must need its passphrase.
fn store(what: &str, input: &[u8]) -> EncryptedStore {
    let problem = problem(what, input);
    let InputError::Passphrase(store) = problem else { panic!("{what}: {problem}") };
    store
}

#[test]
fn the_certificates_of_a_pkcs12_store_are_found_whatever_it_is_encrypted_with() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_chain(at);
    let both = [spki(at, "leaf.key"), spki(at, "ca.key")].map(Ok);
    for options in [
        "",
        "-legacy",
        "-legacy -certpbe PBE-SHA1-RC2-128",
        "-certpbe PBE-SHA1-3DES -keypbe PBE-SHA1-3DES -macalg sha1",
        "-legacy -certpbe PBE-SHA1-2DES",
        "-certpbe AES-128-CBC -macalg sha384 -iter 1",
        "-certpbe AES-192-CBC -macalg sha512 -iter 100000",
        "-certpbe DES-EDE3-CBC -macalg sha224",
        "-nomac -certpbe AES-256-CBC",
        "-nomaciter",
    ] {
        for passphrase in ["secret", "päss✓𝄞", "''"] {
            let command = format!(
                "pkcs12 -export -inkey leaf.key -in leaf.pem -certfile ca.pem \
                 -passout pass:{} {options}",
                passphrase.trim_matches('\'')
            );
            let what = format!("{command} ({passphrase})");
            let store = store(&what, &openssl(at, &command));
            let found = store.keys(passphrase.trim_matches('\''));
            assert_eq!(found, both, "{what}");
            for wrong in ["Secret", "secret\n"] {
                assert_eq!(store.keys(wrong), [Err(InputError::WrongPassphrase)], "{what}");
            }
        }
    }
    let store = store("keytool", KEYTOOL_STORE);
    let [certificate] = keys("keytool", KEYTOOL_CERTIFICATE).try_into().unwrap();
    assert_eq!(store.keys("secret1"), [Ok(certificate)]);
}

#[test]
fn a_private_key_in_a_pkcs12_store_is_a_key_if_no_certificate_has_it() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_chain(at);
    let [leaf, ca] = [spki(at, "leaf.key"), spki(at, "ca.key")];
    let export = "pkcs12 -export -passout pass:secret -inkey leaf.key";
    let alone = format!("{export} -nocerts");
    assert_eq!(store("alone", &openssl(at, &alone)).keys("secret"), [Ok(leaf.clone())]);

    // The certificates are in clear, and the encrypted key belongs to one of them.
    let chain = "-in leaf.pem -certfile ca.pem -certpbe NONE";
    for form in [
        format!("{export} {chain}"),
        format!("{export} {chain} -nomac"),
        format!("{export} {chain} -nomac -keypbe NONE"),
    ] {
        assert_eq!(keys(&form, &openssl(at, &form)), [leaf.clone(), ca.clone()], "{form}");
    }
    let clear = format!("{export} -nocerts -nomac -keypbe NONE");
    assert_eq!(keys(&clear, &openssl(at, &clear)), [leaf]);
}

#[test]
fn encryption_that_is_not_read_is_reported_beside_the_keys_of_the_other_parts() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_chain(at);
    let leaf = spki(at, "leaf.key");
    let export = "pkcs12 -export -legacy -inkey leaf.key -in leaf.pem -passout pass:secret";
    let rc4 = "PBE-SHA1-RC4-128";
    for (options, expected) in [
        (format!("-certpbe {rc4}"), &[leaf.clone()][..]),
        (format!("-keypbe {rc4}"), &[leaf]),
        (format!("-certpbe {rc4} -keypbe {rc4}"), &[]),
    ] {
        let found = store(&options, &openssl(at, &format!("{export} {options}"))).keys("secret");
        let [keys @ .., Err(error)] = &found[..] else { panic!("{options}: {found:?}") };
        let keys: Vec<_> = keys.iter().map(|key| key.clone().unwrap()).collect();
        assert_eq!(keys, expected, "{options}");
        assert!(
            error.to_string().contains("the encryption of the PKCS #12 store is not supported")
        );
    }
}

/// The iterations of a store come from its maker.
#[test]
fn the_iterations_of_a_pkcs12_store_are_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_chain(at);
    let export = "pkcs12 -export -inkey leaf.key -in leaf.pem -passout pass:secret -iter 66051";
    for algorithm in ["AES-256-CBC", "PBE-SHA1-3DES"] {
        let mut input = openssl(at, &format!("{export} -nomac -certpbe {algorithm}"));
        let mut patched = 0;
        for start in 0..input.len() - 5 {
            if input[start..start + 5] == [0x02, 0x03, 0x01, 0x02, 0x03] {
                input[start + 2..start + 5].copy_from_slice(&[0x7f, 0xff, 0xff]);
                patched += 1;
            }
        }
        assert_eq!(patched, 2, "certificate and key");
        let found = store(algorithm, &input).keys("secret");
        let [Err(error)] = &found[..] else { panic!("{algorithm}: {found:?}") };
        let is_bounded = error.to_string().contains("more than 10000000 iterations");
        assert!(is_bounded, "{algorithm}: {error}");
    }
}

/// Each store takes time, and a passphrase.
#[test]
fn the_stores_of_an_input_are_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_chain(at);
    let export = "pkcs12 -export -inkey leaf.key -in leaf.pem -passout pass:secret -iter 1";
    let line = data_encoding::BASE64.encode(&openssl(at, export));
    std::fs::write(at.join("passphrase"), "secret").unwrap();
    for (count, code) in [(10, 0), (12, 3)] {
        std::fs::write(at.join("stores"), format!("{line}\n").repeat(count)).unwrap();
        let path = |name: &str| at.join(name).display().to_string();
        let stores = path("stores");
        // The bound is for each input.
        let arguments =
            ["key", "--json", "--passphrase-file", &path("passphrase"), &stores, &stores];
        let output = keygate(&arguments);
        let shown = output_text(&output);
        assert_eq!(output.status.code(), Some(code), "{count}: {shown}");
        let found = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        assert_eq!(found.count(), 20, "{count}: {shown}");
        let is_reported = shown.contains("stores:11: more than 10 PKCS #12 stores");
        assert_eq!(is_reported, count > 10, "{shown}");
    }
}

/// `der` with indefinite lengths, and with strings in two pieces.
fn to_ber(der: &[u8], levels: usize) -> Vec<u8> {
    let Ok(element) = AnyRef::from_der(der) else { return der.to_vec() };
    let content = element.value();
    if levels == 0 {
        return der.to_vec();
    }
    if der[0] == 0x04 {
        let (one, two) = content.split_at(content.len() / 2);
        let piece = |bytes: &[u8]| {
            let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
            [&[0x04, 0x84][..], &length, bytes].concat()
        };
        return [&[0x24, 0x80][..], &piece(one), &piece(two), &[0, 0]].concat();
    }
    if der[0] & 0x20 == 0 {
        return der.to_vec();
    }
    let mut rest = content;
    let mut ber = vec![der[0], 0x80];
    while !rest.is_empty() {
        let (_, after) = AnyRef::from_der_partial(rest).unwrap();
        ber.extend(to_ber(&rest[..rest.len() - after.len()], levels - 1));
        rest = after;
    }
    ber.extend([0, 0]);
    ber
}

/// NSS, macOS and Bouncy Castle write BER. The content of the store is authenticated and stays.
#[test]
fn indefinite_lengths_and_strings_in_pieces_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_chain(at);
    let both = [spki(at, "leaf.key"), spki(at, "ca.key")];
    let object = openssl(at, "crl2pkcs7 -nocrl -certfile leaf.pem -certfile ca.pem -outform DER");
    // ContentInfo, [0], SignedData, [0]: the certificates themselves are DER.
    assert_eq!(keys("pkcs7", &to_ber(&object, 4)), both);
    let export = "pkcs12 -export -inkey leaf.key -in leaf.pem -certfile ca.pem";
    let input = openssl(at, &format!("{export} -passout pass:secret"));
    for levels in 1..5 {
        let ber = to_ber(&input, levels);
        assert_ne!(ber, input);
        assert_eq!(store("pkcs12", &ber).keys("secret"), both.clone().map(Ok), "{levels}");
    }
}

#[test]
fn each_command_reads_the_passphrase_from_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_chain(at);
    let export = "pkcs12 -export -inkey leaf.key -in leaf.pem -passout pass:secret -out leaf.p12";
    openssl(at, export);
    let path = |name: &str| at.join(name).display().to_string();
    for (name, content) in
        [("good", "secret\r\nmore"), ("bad", "other\n"), ("large", &"x".repeat(5000))]
    {
        std::fs::write(at.join(name), content).unwrap();
    }
    std::fs::write(at.join("web-key.json"), P256_WEB_KEY).unwrap();
    let [filter, store, good] = ["a.pkbf", "leaf.p12", "good"].map(path);
    let created = keygate(&["filter", "create", &filter, "--entries", "10", "--fp-rate", "1e-6"]);
    assert!(created.status.success(), "{}", output_text(&created));
    let list = path("list.txt");
    let lines = keygate(&["key", "--lists", "--passphrase-file", &good, &store]);
    assert_eq!(lines.status.code(), Some(0), "{}", output_text(&lines));
    std::fs::write(&list, lines.stdout).unwrap();
    let url = "http://127.0.0.1:9";
    for (command, code, part) in [
        (&["filter", "add", &filter][..], 0, "1 key read"),
        (&["filter", "query", &filter], 1, "probable"),
        (&["filter", "diff", &filter, &filter], 0, "revision"),
        (&["list", "query", &list], 1, "listed"),
        (&["list", "diff", &list, &list], 0, ""),
        (&["key"], 0, "p256"),
        (&["confirm", "--dry-run", "--url", url], 0, url),
    ] {
        let run = |options: &[&str]| keygate(&[command, &[&store], options].concat());
        let output = run(&["--passphrase-file", &good]);
        let shown = output_text(&output);
        assert_eq!(output.status.code(), Some(code), "{command:?}: {shown}");
        assert!(shown.contains(part), "{command:?}: {shown}");
        for (options, problem) in [
            (&[][..], "a PKCS #12 store needs its passphrase"),
            (&["--passphrase-file", &path("bad")], "the passphrase of the PKCS #12 store is wrong"),
            (
                &["--passphrase-file", &path("large")],
                "larger than 4 KiB; put the passphrase alone into it",
            ),
            (&["--passphrase-file", &path("none")], "--passphrase-file"),
        ] {
            let output = run(options);
            let shown = output_text(&output);
            assert_eq!(output.status.code(), Some(3), "{command:?} {options:?}: {shown}");
            assert!(shown.contains(problem), "{command:?} {options:?}: {shown}");
        }
    }
    let web_key = keygate(&["confirm", "--dry-run", "--url", url, &path("web-key.json")]);
    assert_eq!(web_key.status.code(), Some(0), "{}", output_text(&web_key));
    assert!(output_text(&web_key).contains(url), "{}", output_text(&web_key));
}

/// `script` gives the command a terminal.
#[test]
fn the_passphrase_is_asked_for_on_a_terminal() {
    if skip::without("script") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_chain(at);
    let export = "pkcs12 -export -inkey leaf.key -in leaf.pem -passout pass:secret -out leaf.p12";
    openssl(at, export);
    // With the store in a pipe, the passphrase comes from the terminal all the same.
    for (command, input, passphrase, expected) in [
        (format!("{BINARY} key leaf.p12"), "leaf.p12", "secret", "presented"),
        (format!("{BINARY} key leaf.p12"), "leaf.p12", "other", "is wrong"),
        (format!("cat leaf.p12 | {BINARY} key -"), "standard input", "secret", "presented"),
    ] {
        let prompt = format!("Passphrase of {input}: ");
        let mut script = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .current_dir(at)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut terminal = script.stdin.take().unwrap();
        let mut screen = script.stdout.take().unwrap();
        let mut shown = String::new();
        let mut bytes = [0; 1024];
        while !shown.contains(expected) {
            let read = screen.read(&mut bytes).unwrap();
            assert!(read > 0, "the end before {expected:?}: {shown}");
            shown.push_str(&String::from_utf8_lossy(&bytes[..read]));
            // Typed again after each output, because the command discards what was typed before it
            // has turned off the echo.
            if shown.contains(&prompt) {
                let _ = terminal.write_all(format!("{passphrase}\n").as_bytes());
            }
        }
        script.wait().unwrap();
    }
}
