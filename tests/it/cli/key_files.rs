//! Files with several keys: PKCS #7, JSON Web Keys, and the forms of SSH. openssl, ssh-keygen and
//! Node.js have made them.

use std::path::Path;

use keygate_core::spki::{Finding, InputError, keys_in};

use super::inputs::{keys, openssl, problem, run};

pub(super) const WEB_KEYS: &[u8] = include_bytes!("../../vectors/inputs/set.json");
const PRIVATE_WEB_KEYS: &[u8] = include_bytes!("../../vectors/inputs/private.jsonl");
/// The keys of the two files above, in the same order.
pub(super) const PUBLIC_KEYS: &[u8] = include_bytes!("../../vectors/inputs/keys.pem");

/// The first member of a set and of a file with one key in `PUBLIC_KEYS`.
pub(super) const P256_WEB_KEY: &str = r#"{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}"#;

/// Makes a chain: `leaf.pem` with its key `leaf.key`, and the certificate of its CA, `ca.pem`.
pub(super) fn make_chain(at: &Path) {
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

pub(super) fn spki(at: &Path, key: &str) -> Vec<u8> {
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
    assert_eq!(keys_in(&marked)[0].line, Some(4), "the line of its object");
}

/// RFC 7517, appendix A.1: the SubjectPublicKeyInfo comes from openssl.
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
        ("EC", &"PQK".to_owned(), "a JSON Web Key of the key type PQK is not supported"),
        ("EC", &"oct".to_owned(), "a symmetric JSON Web Key is not supported"),
        ("EC", &"RSA".to_owned(), "the member n is missing"),
        ("\"kty\":\"EC\",", &String::new(), "the member kty is missing"),
        ("\"crv\":\"P-256\",", &String::new(), "the member crv is missing"),
        (
            "\"crv\"",
            &"\"x\":\"\",\"crv\"".to_owned(),
            ": a member has another type, or occurs twice",
        ),
        ("\"P-256\"", &"256".to_owned(), ": the member crv has another type, or occurs twice"),
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

    // A damaged key does not hide the others.
    let damaged = [
        (r#"{"kty":"OKP","crv":"Ed25519","x":5}"#, "the member keys[1].x has another type"),
        (r#"{"kty":"EC","kty":"EC"}"#, "a member has another type, or occurs twice"),
        (r#"["OKP","Ed25519",null,null,"",null,null]"#, "it is not an object"),
        ("null", "it is not an object"),
    ];
    for (damaged, reason) in damaged {
        for (text, prefix) in [
            (format!("{{\"keys\":[{P256_WEB_KEY},{damaged},{P256_WEB_KEY}]}}"), "keys[1]."),
            (format!("{P256_WEB_KEY}\n{damaged}\n{P256_WEB_KEY}"), ""),
        ] {
            let [first, second, third] = &keys_in(text.as_bytes())[..] else { panic!("{text}") };
            assert!(first.key.is_ok() && third.key.is_ok(), "{text}");
            let error = second.key.as_ref().unwrap_err().to_string();
            assert!(error.contains(&reason.replace("keys[1].", prefix)), "{text}: {error}");
        }
    }
    let no_array = problem("no array", br#"{"keys":5}"#).to_string();
    assert!(no_array.contains("the member keys has another type"), "{no_array}");

    let deep = format!("{{\"keys\":[{{\"kty\":{}", "[".repeat(100_000));
    assert!(problem("deep", deep.as_bytes()).to_string().contains("a JSON Web Key"));
    let large = format!("{{\"keys\":[{P256_WEB_KEY}{}]}}", " ".repeat(1 << 20));
    assert!(matches!(
        problem("large", large.as_bytes()),
        InputError::TooLarge { what: "JSON", .. }
    ));
}

/// A set of one key a line, in the order of its members, with texts that resemble its structure.
#[test]
fn each_key_of_a_set_has_its_own_line() {
    let bad = r#"{"kid":"old \"key\"","kty":"EC"}"#;
    let curve = r#"{"kty":"EC","crv":"P-192","kid":"small"}"#;
    let nested = r#"{"x5c":["[{","}]"],"a":{"keys":[{}]},"kty":"RSA"}"#;
    let set = format!(
        "{{\"other\":[{{}},{{}}],\n\"note\":\"\\\"keys\\\":[{{\",\n\"k\\u0065ys\" :\n\n[\n{P256_WEB_KEY},\n{bad}\n,{curve},\n\
         {nested}\n],\n\"more\":[{{}}]}}"
    );
    let text = format!("{P256_WEB_KEY}\n{set}\n{P256_WEB_KEY}");
    let findings = keys_in(text.as_bytes());
    let places: Vec<_> =
        findings.iter().map(|finding| (finding.line.unwrap(), finding.key.is_ok())).collect();
    let expected = [(1, true), (7, true), (8, false), (9, false), (10, false), (13, true)];
    assert_eq!(places, expected, "{text}");
    let errors: Vec<_> = findings.iter().filter_map(|it| it.key.as_ref().err()).collect();
    let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert!(errors[0].ends_with(": the member crv is missing"), "{errors:?}");
    assert_eq!(errors[1], "a JSON Web Key of the curve P-192 is not supported");
    assert!(errors[2].ends_with(": the member n is missing"), "{errors:?}");
    // Several keys in one line.
    let findings =
        keys_in(format!("{{\"keys\":[{P256_WEB_KEY},{bad},{P256_WEB_KEY}]}}").as_bytes());
    assert_eq!(findings.iter().map(|it| it.line).collect::<Vec<_>>(), [Some(1); 3]);
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

/// The keys are made by hand, because `ssh-keygen` needs a device for them. It then certifies them.
#[test]
fn the_key_of_a_security_key_is_that_of_its_algorithm() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    run(at, "ssh-keygen", "-q -t ed25519 -N '' -C ca -f ca");
    for (kind, name, plain) in [
        ("ed25519", "sk-ssh-ed25519@openssh.com", "ssh-ed25519"),
        ("ecdsa -b 256", "sk-ecdsa-sha2-nistp256@openssh.com", "ecdsa-sha2-nistp256"),
    ] {
        run(at, "ssh-keygen", &format!("-q -t {kind} -N '' -C c -f {plain}"));
        let public = std::fs::read_to_string(at.join(format!("{plain}.pub"))).unwrap();
        let expected = keys(kind, public.as_bytes());
        let blob = public.split(' ').nth(1).unwrap();
        let blob = data_encoding::BASE64.decode(blob.as_bytes()).unwrap();
        let string =
            |bytes: &[u8]| [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat();
        let key = &blob[4 + plain.len()..];
        let blob = [&string(name.as_bytes()), key, &string(b"ssh:")].concat();
        let line = format!("{name} {} c", data_encoding::BASE64.encode(&blob));
        assert_eq!(keys(name, line.as_bytes()), expected, "{line}");
        std::fs::write(at.join("sk.pub"), &line).unwrap();
        let exported = run(at, "ssh-keygen", "-e -f sk.pub");
        assert_eq!(keys(name, &exported), expected);
        for options in ["", "-h"] {
            run(at, "ssh-keygen", &format!("-q -s ca -I identity {options} sk.pub"));
            let certificate = std::fs::read(at.join("sk-cert.pub")).unwrap();
            assert_eq!(keys(name, &certificate), expected, "{options}");
        }
        let cut = data_encoding::BASE64.encode(&blob[..blob.len() - 1]);
        let error = problem("without its application", format!("{name} {cut}").as_bytes());
        assert!(error.to_string().contains("it ends too early"), "{error}");
    }
}

#[test]
fn an_openssh_private_key_has_one_key() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    run(at, "ssh-keygen", "-q -t ed25519 -N '' -C c -f id");
    let pem = std::fs::read_to_string(at.join("id")).unwrap();
    let lines: Vec<&str> = pem.lines().collect();
    let [begin, base64 @ .., end] = &lines[..] else { panic!("{pem}") };
    let content = data_encoding::BASE64.decode(base64.concat().as_bytes()).unwrap();
    // After the marker, two names, "none", and empty options.
    let at = b"openssh-key-v1\0".len() + 2 * (4 + 4) + 4;
    assert_eq!(content[at..at + 4], [0, 0, 0, 1]);
    for count in [0, 2] {
        let mut changed = content.clone();
        changed[at + 3] = count;
        let text = format!("{begin}\n{}\n{end}\n", data_encoding::BASE64.encode(&changed));
        let error = problem("several keys", text.as_bytes()).to_string();
        assert!(error.contains("it has several keys, or none"), "{error}");
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
