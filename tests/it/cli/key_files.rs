//! Files with several keys, and the passphrases of PKCS #12 stores. openssl, ssh-keygen, Java's
//! keytool and Node.js have made them.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use keygate::spki::{Finding, InputError, keys_in};
use x509_cert::der::Decode;
use x509_cert::der::asn1::AnyRef;

use super::inputs::{keys, openssl, problem, run};
use crate::support::keygate::{BINARY, keygate};
use crate::support::{output_text, skip};

const WEB_KEYS: &[u8] = include_bytes!("../../vectors/inputs/set.json");
const PRIVATE_WEB_KEYS: &[u8] = include_bytes!("../../vectors/inputs/private.jsonl");
/// The keys of the two files above, in the same order.
const PUBLIC_KEYS: &[u8] = include_bytes!("../../vectors/inputs/keys.pem");
const KEYTOOL_STORE: &[u8] = include_bytes!("../../vectors/inputs/keytool.p12");
const KEYTOOL_CERTIFICATE: &[u8] = include_bytes!("../../vectors/inputs/keytool.pem");

/// The first member of a set and of a file with one key in `PUBLIC_KEYS`.
const P256_WEB_KEY: &str = r#"{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}"#;

/// Makes a chain: `leaf.pem` with its key `leaf.key`, and the certificate of its CA, `ca.pem`.
fn make_chain(at: &Path) {
    for name in ["ca", "leaf"] {
        openssl(
            at,
            &format!("genpkey -algorithm ec -pkeyopt ec_paramgen_curve:P-256 -out {name}.key"),
        );
    }
    openssl(at, "req -x509 -key ca.key -subj /CN=ca -days 9 -out ca.pem");
    openssl(at, "req -new -key leaf.key -subj /CN=leaf -out leaf.csr");
    openssl(at, "x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out leaf.pem");
}

fn spki(at: &Path, key: &str) -> Vec<u8> {
    openssl(at, &format!("pkey -in {key} -pubout -outform DER"))
}

#[test]
fn the_certificates_of_a_pkcs7_object_are_found_in_every_form() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_chain(at);
    let both = [spki(at, "leaf.key"), spki(at, "ca.key")];
    let bundle = "crl2pkcs7 -nocrl -certfile leaf.pem -certfile ca.pem";
    for form in [bundle.to_owned(), format!("{bundle} -outform DER")] {
        assert_eq!(keys(&form, &openssl(at, &form)), both, "{form}");
    }
    std::fs::write(at.join("text"), "signed").unwrap();
    let sign = "cms -sign -in text -signer leaf.pem -inkey leaf.key -certfile ca.pem -nodetach";
    for form in ["PEM", "DER", "DER -stream", "DER -binary -indef"] {
        let form = format!("{sign} -outform {form}");
        let mut found = keys(&form, &openssl(at, &form));
        found.sort();
        let mut both = both.clone();
        both.sort();
        assert_eq!(found, both, "{form}");
    }
    for empty in [
        format!("{sign} -nocerts -outform DER").replace(" -certfile ca.pem", ""),
        "cms -encrypt -in text -outform DER leaf.pem".to_owned(),
    ] {
        let error = problem(&empty, &openssl(at, &empty));
        assert!(matches!(error, InputError::NoCertificate { .. }), "{empty}: {error}");
    }
}

#[test]
fn a_damaged_certificate_in_a_pkcs7_object_does_not_hide_the_others() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_chain(at);
    let mut object =
        openssl(at, "crl2pkcs7 -nocrl -certfile leaf.pem -certfile ca.pem -outform DER");
    let leaf = openssl(at, "x509 -in leaf.pem -outform DER");
    let start = object.windows(leaf.len()).position(|window| window == leaf).unwrap();
    object[start + 4] ^= 0xff; // the tag of the content
    let [first, second] = <[Finding; 2]>::try_from(keys_in(&object)).unwrap();
    assert!(matches!(first.key, Err(InputError::Broken { what: "a certificate", .. })));
    assert_eq!(second.key.unwrap(), spki(at, "ca.key"));
}

/// The store in an input, which must need its passphrase.
fn store(what: &str, input: &[u8]) -> keygate::spki::EncryptedStore {
    match problem(what, input) {
        InputError::Passphrase(store) => store,
        other => panic!("{what}: {other}"),
    }
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
    let certificate = keys("keytool", KEYTOOL_CERTIFICATE);
    assert_eq!(store.keys("secret1"), certificate.map_ok());
}

trait MapOk {
    fn map_ok(self) -> Vec<Result<Vec<u8>, InputError>>;
}

impl MapOk for Vec<Vec<u8>> {
    fn map_ok(self) -> Vec<Result<Vec<u8>, InputError>> {
        self.into_iter().map(Ok).collect()
    }
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

    // Nothing is encrypted that is not in a certificate.
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
fn encryption_that_is_not_read_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_chain(at);
    let rc4 = "pkcs12 -export -legacy -inkey leaf.key -in leaf.pem -passout pass:secret \
        -certpbe PBE-SHA1-RC4-128";
    let found = store(rc4, &openssl(at, rc4)).keys("secret");
    let [Err(error)] = &found[..] else { panic!("{found:?}") };
    assert!(error.to_string().contains("the encryption of the PKCS #12 store is not supported"));
}

/// The iterations of a store come from its maker.
#[test]
fn the_iterations_of_a_pkcs12_store_are_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_chain(at);
    let export = "pkcs12 -export -inkey leaf.key -in leaf.pem -passout pass:secret -iter 66051";
    for options in
        ["", "-nomac -certpbe AES-256-CBC", "-certpbe PBE-SHA1-3DES -keypbe PBE-SHA1-3DES"]
    {
        let mut input = openssl(at, &format!("{export} {options}"));
        let mut patched = 0;
        for start in 0..input.len() - 5 {
            if input[start..start + 5] == [0x02, 0x03, 0x01, 0x02, 0x03] {
                input[start + 2..start + 5].copy_from_slice(&[0x7f, 0xff, 0xff]);
                patched += 1;
            }
        }
        assert!(patched > 0, "{options}");
        let found = store(options, &input).keys("secret");
        let [Err(error)] = &found[..] else { panic!("{options}: {found:?}") };
        let is_expected = *error == InputError::WrongPassphrase // of the MAC, within the limit
            || error.to_string().contains("more than 10000000 iterations");
        assert!(is_expected && (options.is_empty() || patched > 1), "{options}: {error}");
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
fn json_web_keys_of_node_are_found_alone_and_in_a_set() {
    let expected = keys("pem", PUBLIC_KEYS);
    assert_eq!(expected.len(), 10);
    assert_eq!(keys("set", WEB_KEYS), expected);
    assert_eq!(keys("private keys", PRIVATE_WEB_KEYS), expected);
    let lines: Vec<_> = keys_in(PRIVATE_WEB_KEYS).iter().map(|finding| finding.line).collect();
    assert_eq!(lines, (1..=10).map(Some).collect::<Vec<_>>());
    let marked = [b"\xef\xbb\xbf\r\n ", WEB_KEYS].concat();
    assert_eq!(keys("with a byte order mark", &marked), expected);
    assert_eq!(keys_in(&marked)[0].line, Some(2));
}

/// RFC 7517, appendix A.1: the SubjectPublicKeyInfo is that of openssl.
#[test]
fn the_members_of_a_json_web_key_have_one_spelling() {
    assert_eq!(keys("RFC 7517", P256_WEB_KEY.as_bytes()).len(), 1);
    let x = "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4";
    for (from, to, expected) in [
        (x, &format!("{x}="), "the member x is not base64url"),
        (x, &x.replace("NIc", "NI\\n"), "the member x is not base64url"),
        (x, &x.replace("MK", "+K"), "the member x is not base64url"),
        (x, &x.replace("7D4", "7D5"), "the member x is not base64url"), // bits after the last byte
        (x, &x[4..].to_owned(), "x and y of P-256 have 32 bytes each"),
        (x, &format!("AAAA{x}"), "x and y of P-256 have 32 bytes each"),
        ("P-256", &"P-192".to_owned(), "a JSON Web Key of the curve P-192 is not supported"),
        ("EC", &"AKP".to_owned(), "a JSON Web Key of the key type AKP is not supported"),
        ("EC", &"oct".to_owned(), "a symmetric JSON Web Key is not supported"),
        ("EC", &"RSA".to_owned(), "the member n is missing"),
        ("\"kty\":\"EC\",", &String::new(), "the member kty is missing"),
        ("\"crv\":\"P-256\",", &String::new(), "the member crv is missing"),
        ("\"crv\"", &"\"x\":\"\",\"crv\"".to_owned(), "has another type, or occurs twice"),
        ("\"P-256\"", &"256".to_owned(), "has another type, or occurs twice"),
        ("\"}", &"\"".to_owned(), "it ends too early"),
        ("\"}", &"\"]".to_owned(), "not JSON"),
    ] {
        let text = P256_WEB_KEY.replace(from, to);
        assert_ne!(text, P256_WEB_KEY);
        let error = problem(&text, text.as_bytes()).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let private = P256_WEB_KEY.replace("\"}", "\",\"d\":\"SECRET\"");
    assert!(!problem("a cut private key", private.as_bytes()).to_string().contains("SECRET"));
    let zeros = r#"{"kty":"RSA","n":"AMc","e":"AAM"}"#;
    assert_eq!(
        keys("zeros", zeros.as_bytes()),
        keys("none", zeros.replace("AMc", "xw").replace("AAM", "Aw").as_bytes())
    );
    for negative in ["AA", ""] {
        let text = zeros.replace("AMc", negative);
        assert!(problem(&text, text.as_bytes()).to_string().contains("n and e"), "{text}");
    }
}

#[test]
fn every_object_of_a_json_input_has_a_finding_with_its_line() {
    let bad = r#"{"kty":"EC"}"#;
    let text =
        format!("{P256_WEB_KEY}\n{bad}{bad}\n\n{{\"keys\":[]}}\n{{\"a\":1}}\nnonsense\n{bad}");
    let findings = keys_in(text.as_bytes());
    let places: Vec<_> =
        findings.iter().map(|finding| (finding.line.unwrap(), finding.key.is_ok())).collect();
    assert_eq!(places, [(1, true), (2, false), (2, false), (4, false), (5, false), (6, false)]);

    let deep = format!("{{\"keys\":[{{\"kty\":{}", "[".repeat(100_000));
    assert!(problem("deep", deep.as_bytes()).to_string().contains("a JSON Web Key"));
    let large = format!("{{\"keys\":[{P256_WEB_KEY}{}]}}", " ".repeat(1 << 20));
    assert!(matches!(
        problem("large", large.as_bytes()),
        InputError::TooLarge { what: "JSON", .. }
    ));
}

#[test]
fn the_key_of_an_ssh_certificate_is_that_of_its_subject() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    run(at, "ssh-keygen", "-q -t ed25519 -N '' -C ca -f ca");
    for (number, kind) in ["rsa -b 2048", "ecdsa -b 256", "ecdsa -b 384", "ecdsa -b 521", "ed25519"]
        .iter()
        .enumerate()
    {
        run(at, "ssh-keygen", &format!("-q -t {kind} -N '' -C c -f id{number}"));
        let sign = "-q -s ca -I identity -n a,b -V +1d -z 7";
        for options in ["-O force-command=ls -O source-address=10.0.0.0/8", "-h"] {
            run(at, "ssh-keygen", &format!("{sign} {options} id{number}.pub"));
            let file = |name: String| std::fs::read(at.join(name)).unwrap();
            let public = keys(kind, &file(format!("id{number}.pub")));
            let certificate = file(format!("id{number}-cert.pub"));
            assert_eq!(keys(kind, &certificate), public, "{kind} {options}");
            let text = String::from_utf8(certificate).unwrap();
            let [name, base64, comment] = text.split(' ').collect::<Vec<_>>()[..] else { panic!() };
            let blob = data_encoding::BASE64.decode(base64.as_bytes()).unwrap();
            for length in 0..blob.len() {
                let cut = data_encoding::BASE64.encode(&blob[..length]);
                let cut = format!("{name} {cut} {comment}");
                assert!(keys_in(cut.as_bytes()).iter().all(|it| it.key.is_err()), "{length} bytes");
            }
            let longer = data_encoding::BASE64.encode(&[&blob[..], b"x"].concat());
            let error = problem(kind, format!("{name} {longer}").as_bytes()).to_string();
            assert!(error.contains("bytes after the certificate"), "{error}");
        }
    }
}

#[test]
fn ssh2_public_keys_and_the_public_half_of_encrypted_keys_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let mut bundle = Vec::new();
    let mut expected = Vec::new();
    for (number, kind) in ["rsa -b 2048", "ecdsa -b 256", "ed25519"].iter().enumerate() {
        run(at, "ssh-keygen", &format!("-q -t {kind} -N a-secret -C c -f id{number}"));
        let file = |name: String| std::fs::read(at.join(name)).unwrap();
        let public = keys(kind, &file(format!("id{number}.pub")));
        assert_eq!(keys(kind, &file(format!("id{number}"))), public, "{kind}");
        let exported = run(at, "ssh-keygen", &format!("-e -f id{number}.pub"));
        assert!(exported.starts_with(b"---- BEGIN SSH2 PUBLIC KEY ----"));
        assert_eq!(keys(kind, &exported), public, "{kind}");
        // RFC 4716, section 3.3: a header may continue in the next line.
        let continued = String::from_utf8(exported.clone()).unwrap().replacen(
            "Comment: ",
            "x-note: a line \\\nwithout a colon \\\nand its end\nComment: ",
            1,
        );
        assert_eq!(keys(kind, continued.as_bytes()), public, "{continued}");
        bundle.extend(exported);
        expected.extend(public);
    }
    assert_eq!(keys("bundle", &bundle), expected);
    let text = String::from_utf8(bundle).unwrap();
    let cut = text.replacen("---- END SSH2 PUBLIC KEY ----\n", "", 1);
    let findings = keys_in(cut.as_bytes());
    assert_eq!(findings.iter().filter(|finding| finding.key.is_ok()).count(), 2, "{findings:?}");
    assert!(findings[0].key.as_ref().unwrap_err().to_string().contains("has no END line"));
}

/// The passphrase of a store in `directory`, which must be accepted by each command with inputs.
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
            (&["--passphrase-file", &path("large")], "larger than 4096 bytes"),
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
    for (passphrase, expected) in [("secret", "presented"), ("other", "is wrong")] {
        let mut script = Command::new("script")
            .args(["-qec", &format!("{BINARY} key leaf.p12"), "/dev/null"])
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
            if shown.contains("Passphrase of leaf.p12: ") {
                let _ = terminal.write_all(format!("{passphrase}\n").as_bytes());
            }
        }
        script.wait().unwrap();
    }
}
