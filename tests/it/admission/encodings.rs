//! One private key has many encodings of its public half. A client is rejected in each encoding
//! that the list or the certificate may have, over real handshakes.
//!
//! Guards: `for_each_related` in `crates/core/src/spki/related.rs`, `visit` in `crates/core/src/spki/related/ec.rs`,
//! `crates/core/src/spki/related/ed25519.rs` and `crates/core/src/spki/related/rsa.rs`, `judge_key` in
//! `crates/core/src/guard.rs` for unknown encodings.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA512, digest};
use curve25519_dalek::constants::EIGHT_TORSION;
use curve25519_dalek::scalar::clamp_integer;
use curve25519_dalek::{EdwardsPoint, Scalar};
use data_encoding::HEXLOWER;
use keygate_core::spki::{Encoding, PublicKey, RsaExponents, related};
use rustls::sign::{CertifiedKey, Signer, SigningKey, SingleCertAndKey};
use rustls::{ClientConfig, ClientConnection, SignatureAlgorithm, SignatureScheme, StreamOwned};

use crate::support::client::{config, config_of};
use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki, der, elements};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{TIMEOUT, output_text, system, write_filter};

#[test]
fn a_key_is_rejected_in_each_encoding_the_filter_may_have() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let mut listed: Vec<(Party, Encoding, Vec<u8>)> = Vec::new();
    for (kind, count) in
        [(Kind::Ed25519, 2), (Kind::P256, 4), (Kind::P384, 4), (Kind::P521, 4), (Kind::Rsa2048, 2)]
    {
        let forms = related(&pki.client("count", kind).spki).len();
        assert_eq!(forms, count, "{kind:?}");
        for form in 0..forms {
            let client = pki.client(&format!("{kind:?}-{form}"), kind);
            let (encoding, spki) = related(&client.spki).swap_remove(form);
            listed.push((client, encoding, spki));
        }
    }
    let spkis: Vec<&[u8]> = listed.iter().map(|(_, _, spki)| spki.as_slice()).collect();
    write_filter(&pki.path("lost.pkbf"), &spkis);
    let keygate = Configuration::new(origin.address()).start(&pki);
    for (client, encoding, _) in &listed {
        let response = keygate.curl(client, &[]);
        let output_text = output_text(&response);
        assert!(
            output_text.contains("access denied"),
            "{} {encoding:?}: {output_text}",
            client.name
        );
        wait_for_line(&keygate, client, encoding.as_str());
    }
    assert_eq!(keygate.curl(&pki.client("good", Kind::P256), &[]).stdout, b"hello\n");
    assert_eq!(origin.untaken(), 1);
}

#[test]
fn a_filter_has_the_related_exponents_of_the_configuration() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let client = pki.client("client", Kind::Rsa2048);
    let mut old = None;
    PublicKey::parse(&client.spki).for_each_related(RsaExponents::ALL, |encoding, spki| {
        if encoding == Encoding::RsaExponent35 {
            old = Some(spki.to_vec());
        }
    });
    write_filter(&pki.path("lost.pkbf"), &[&old.unwrap()]);
    let configuration = Configuration::new(origin.address());
    let keygate = configuration.clone().start(&pki);
    let is_admitted = || keygate.curl(&client, &[]).stdout == b"hello\n";
    let configure = |generation: u64, exponents: &str| {
        let key = format!("related_exponents = {exponents}");
        let text = configuration.clone().filter(&key).text();
        std::fs::write(pki.path("keygate.toml"), text).unwrap();
        keygate.wait_for_generation(generation);
    };
    assert!(is_admitted(), "3 and 65537 are the default");
    configure(2, "[3, 35, 65537]");
    assert!(!is_admitted());
    wait_for_line(&keygate, &client, "rsa-exponent-35");
    configure(3, "[]");
    assert!(is_admitted());
}

fn wait_for_line(keygate: &Keygate, client: &Party, encoding: &str) {
    keygate.wait_for("its line", |line| {
        line["message"] == "client key rejected"
            && line["subject"] == format!("CN={}", client.name)
            && line["encoding"] == encoding
    });
}

/// The response to one request of `client`, or the error that ended the connection.
fn send_get(pki: &Pki, keygate: &Keygate, client: &Party) -> Result<String, String> {
    send_get_with(config(pki, client), keygate)
}

fn send_get_with(config: ClientConfig, keygate: &Keygate) -> Result<String, String> {
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let tcp = TcpStream::connect(keygate.address()).unwrap();
    tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut tls = StreamOwned::new(connection, tcp);
    let mut response = String::new();
    write!(tls, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .and_then(|()| tls.read_to_string(&mut response))
        .map_err(|error| error.to_string())?;
    Ok(response)
}

/// The order of the curve's group. Source: SEC 2, version 2.0, section 2.
fn order(kind: Kind) -> Vec<u8> {
    let hex = match kind {
        Kind::P256 => "ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551".to_owned(),
        Kind::P384 => "f".repeat(48) + "c7634d81f4372ddf581a0db248b0a77aecec196accc52973",
        Kind::P521 => {
            "01".to_owned()
                + &"f".repeat(64)
                + "fa51868783bf2f966b7fcc0148f709a5d03bb5c9b8899c47aebb6fb71e91386409"
        }
        Kind::Ed25519
        | Kind::MlDsa44
        | Kind::MlDsa65
        | Kind::MlDsa87
        | Kind::Rsa2048
        | Kind::Rsa4096 => panic!("{kind:?} is on no such curve"),
    };
    HEXLOWER.decode(hex.as_bytes()).unwrap()
}

/// `a - b`, big-endian, of the same length.
fn minus(a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut borrow = false;
    let mut difference: Vec<u8> = a
        .iter()
        .zip(b)
        .rev()
        .map(|(a, b)| {
            let (partial, first) = a.overflowing_sub(*b);
            let (digit, second) = partial.overflowing_sub(u8::from(borrow));
            borrow = first || second;
            digit
        })
        .collect();
    difference.reverse();
    difference
}

/// The PKCS#8 of n - d, whose public half is -Q.
fn negated(client: &Party, kind: Kind) -> Vec<u8> {
    let forms = related(&client.spki);
    let negative =
        &forms.iter().find(|(form, _)| *form == Encoding::NegatedUncompressed).unwrap().1;
    let n = order(kind);
    // PrivateKeyInfo: version, algorithm, OCTET STRING of ECPrivateKey: version, OCTET STRING of d.
    let outer = elements(&client.key);
    let inner = elements(&elements_of_octets(&outer[2]));
    let d = &inner[1][2..];
    let changed = [
        (d, minus(&n, d)),
        (
            &client.spki[client.spki.len() - 2 * n.len()..],
            negative[negative.len() - 2 * n.len()..].to_vec(),
        ),
    ];
    let mut key = client.key.clone();
    for (from, to) in changed {
        if let Some(at) = key.windows(from.len()).position(|window| window == from) {
            key[at..at + to.len()].copy_from_slice(&to);
        }
    }
    key
}

/// The content of an OCTET STRING.
fn elements_of_octets(octets: &[u8]) -> Vec<u8> {
    let header = if octets[1] < 0x80 { 2 } else { 2 + usize::from(octets[1] & 0x7f) };
    octets[header..].to_vec()
}

/// Certificates for every encoding of an elliptic-curve key, each with its private key.
fn certificates_of(pki: &Pki, client: &Party, kind: Kind) -> Vec<(Party, Encoding)> {
    let forms = related(&client.spki).into_iter();
    let made = forms.map(|(encoding, spki)| {
        let key = match encoding {
            Encoding::Presented | Encoding::Compressed => client.key.clone(),
            Encoding::Canonical
            | Encoding::EcX
            | Encoding::Ed25519Negated
            | Encoding::Ed25519Torsion
            | Encoding::NegatedCompressed
            | Encoding::NegatedUncompressed
            | Encoding::RsaExponent3
            | Encoding::RsaExponent5
            | Encoding::RsaExponent17
            | Encoding::RsaExponent35
            | Encoding::RsaExponent37
            | Encoding::RsaExponent257
            | Encoding::RsaExponent65537
            | Encoding::RsaModulus
            | Encoding::Uncompressed => negated(client, kind),
        };
        let name = format!("{}-{}", client.name, encoding.as_str());
        // The relation of the listed encoding to the one in the certificate.
        let seen_from_it = if encoding == Encoding::Compressed {
            Encoding::Uncompressed
        } else if encoding == Encoding::NegatedCompressed {
            Encoding::NegatedUncompressed
        } else {
            encoding
        };
        (pki.client_with_spki(&name, &spki, &key), seen_from_it)
    });
    made.collect()
}

#[test]
fn a_certificate_with_another_encoding_of_a_listed_key_is_rejected() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let curves = [Kind::P256, Kind::P384, Kind::P521];
    let lost = curves.map(|kind| (pki.client(&format!("lost-{kind:?}"), kind), kind));
    let good = curves.map(|kind| (pki.client(&format!("good-{kind:?}"), kind), kind));
    // Lost with the usual exponent; the certificate has e = 3.
    let [lost_rsa, good_rsa] = ["lost-rsa", "good-rsa"].map(|name| with_exponent_3(&pki, name));
    let usual = related(&lost_rsa.spki).into_iter();
    let usual = usual.filter(|(form, _)| *form == Encoding::RsaExponent65537).map(|(_, spki)| spki);
    let usual: Vec<_> = usual.collect();
    let spkis = lost.iter().map(|(client, _)| &client.spki).chain(&usual);
    let spkis: Vec<&[u8]> = spkis.map(Vec::as_slice).collect();
    assert_eq!(spkis.len(), 4);
    write_filter(&pki.path("lost.pkbf"), &spkis);
    let keygate = Configuration::new(origin.address()).start(&pki);

    // The verifier accepts all of these keys, so that only the list rejects them.
    for (client, kind) in &good {
        for (certificate, encoding) in certificates_of(&pki, client, *kind) {
            let response = send_get(&pki, &keygate, &certificate);
            assert!(response.is_ok_and(|text| text.ends_with("hello\n")), "{kind:?} {encoding:?}");
            origin.next();
        }
    }
    assert!(send_get(&pki, &keygate, &good_rsa).unwrap().ends_with("hello\n"));
    origin.next();

    for (client, kind) in &lost {
        for (certificate, encoding) in certificates_of(&pki, client, *kind) {
            let error = send_get(&pki, &keygate, &certificate).unwrap_err();
            assert!(error.contains("AccessDenied"), "{kind:?} {encoding:?}: {error}");
            wait_for_line(&keygate, &certificate, encoding.as_str());
        }
    }
    assert!(send_get(&pki, &keygate, &lost_rsa).unwrap_err().contains("AccessDenied"));
    wait_for_line(&keygate, &lost_rsa, "rsa-exponent-65537");
    assert_eq!(origin.untaken(), 0);
}

/// An Ed25519 key that is presented as ±A + T, where T is a point of small order.
#[derive(Debug, Clone)]
struct Disguised {
    /// The private key of ±A.
    scalar: Scalar,
    /// ±A + T, encoded.
    public: [u8; 32],
}

impl Disguised {
    /// All sixteen forms of the key of `client`: its own one first, its negative second.
    fn all(client: &Party) -> Vec<Self> {
        let seed = &client.key[client.key.len() - 32..];
        let hash = digest(&SHA512, seed);
        let scalar = clamp_integer(*hash.as_ref().first_chunk().unwrap());
        let scalar = Scalar::from_bytes_mod_order(scalar);
        let forms = EIGHT_TORSION.iter().flat_map(|offset| {
            [scalar, -scalar].map(|scalar| {
                let point = EdwardsPoint::mul_base(&scalar) + offset;
                Self { scalar, public: point.compress().to_bytes() }
            })
        });
        forms.collect()
    }

    fn spki(&self) -> Vec<u8> {
        // RFC 8410: SEQUENCE { SEQUENCE { id-Ed25519 }, BIT STRING }
        let bits = [&[0], self.public.as_slice()].concat();
        der(0x30, &[der(0x30, b"\x06\x03\x2b\x65\x70"), der(0x03, &bits)].concat())
    }

    /// The configuration of a client that presents `certificate` and proves possession.
    fn config(&self, pki: &Pki, certificate: &Party) -> ClientConfig {
        let key = CertifiedKey::new(vec![certificate.der.clone()], Arc::new(self.clone()));
        let mut config = config_of(pki, rustls::ALL_VERSIONS, None);
        config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(key));
        config
    }
}

/// RFC 8032, section 5.1.6. The equation `[S]B = R + [k](±A + T)` holds if k is a multiple of the
/// order of T, which is 8 at most. The nonce is changed until this is so.
impl Signer for Disguised {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        let attempts = (1_u64..).map(|nonce| {
            let nonce = Scalar::from(nonce);
            let point = EdwardsPoint::mul_base(&nonce).compress().to_bytes();
            let hash = digest(&SHA512, &[&point, &self.public, message].concat());
            let k = Scalar::from_bytes_mod_order_wide(hash.as_ref().try_into().unwrap());
            (k, [point, (nonce + k * self.scalar).to_bytes()].concat())
        });
        let mut valid = attempts.filter(|(k, _)| k.as_bytes()[0].is_multiple_of(8));
        Ok(valid.next().unwrap().1)
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ED25519
    }
}

impl SigningKey for Disguised {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered.contains(&self.scheme()).then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ED25519
    }
}

#[test]
fn an_ed25519_key_that_is_negated_or_has_a_point_of_small_order_added_is_rejected() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let [good, lost] = ["good", "lost"].map(|name| pki.client(name, Kind::Ed25519));
    write_filter(&pki.path("lost.pkbf"), &[&lost.spki]);
    let keygate = Configuration::new(origin.address()).start(&pki);
    for (number, key) in Disguised::all(&good).into_iter().enumerate() {
        let certificate = pki.client_with_spki(&format!("good-{number}"), &key.spki(), &good.key);
        let response = send_get_with(key.config(&pki, &certificate), &keygate);
        assert!(response.is_ok_and(|text| text.ends_with("hello\n")), "the verifier accepts it");
        origin.next();
    }
    for (number, key) in Disguised::all(&lost).into_iter().enumerate() {
        let certificate = pki.client_with_spki(&format!("lost-{number}"), &key.spki(), &lost.key);
        let error = send_get_with(key.config(&pki, &certificate), &keygate).unwrap_err();
        assert!(error.contains("AccessDenied"), "{number}: {error}");
        wait_for_line(
            &keygate,
            &certificate,
            match number {
                0 => "presented",
                1 => "ed25519-negated",
                _ => "ed25519-torsion",
            },
        );
    }
    assert_eq!(origin.untaken(), 0);
}

/// A client with an RSA key whose public exponent is 3.
fn with_exponent_3(pki: &Pki, name: &str) -> Party {
    let path = pki.path("exponent-3.pem");
    let path = path.to_str().unwrap();
    let exponent = "rsa_keygen_pubexp:3";
    let made = ["genpkey", "-algorithm", "RSA", "-out", path, "-pkeyopt", exponent];
    let made = system("openssl", &made);
    assert!(made.status.success(), "{}", output_text(&made));
    let convert = |arguments: &[&str]| {
        let output = system("openssl", &[arguments, &["-in", path, "-outform", "DER"]].concat());
        assert!(output.status.success(), "{}", output_text(&output));
        output.stdout
    };
    let key = convert(&["pkcs8", "-topk8", "-nocrypt"]);
    let spki = convert(&["pkey", "-pubout"]);
    pki.client_with_spki(name, &spki, &key)
}

const RSA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01";
const OAEP: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x07";
const PSS: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0a";
const NULL: &[u8] = b"\x05\x00";

#[test]
fn an_encoding_that_no_list_can_have_is_rejected() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let rsa = pki.client("rsa", Kind::Rsa2048);
    let p256 = pki.client("p256", Kind::P256);
    let ed25519 = pki.client("ed25519", Kind::Ed25519);
    write_filter(&pki.path("lost.pkbf"), &[&rsa.spki, &p256.spki, &ed25519.spki]);
    let keygate = Configuration::new(origin.address()).start(&pki);

    let bits = |client: &Party| elements(&client.spki)[1].clone();
    let spki = |algorithm: &[u8], bits: &[u8]| der(0x30, &[&der(0x30, algorithm), bits].concat());
    let of_rsa = |algorithm: &[&[u8]]| spki(&algorithm.concat(), &bits(&rsa));
    let hybrid = |form: u8| {
        let mut spki = p256.spki.clone();
        let at = spki.len() - 65;
        spki[at] = form;
        spki
    };
    // The same lengths, encoded in one byte more than needed.
    let long = {
        let content = elements(&p256.spki).concat();
        [&[0x30, 0x81, u8::try_from(content.len()).unwrap()], content.as_slice()].concat()
    };
    let long_bits = {
        let [algorithm, bits] = elements(&p256.spki).try_into().unwrap();
        let bits = [&[0x03, 0x81, bits[1]], &bits[2..]].concat();
        der(0x30, &[algorithm, bits].concat())
    };
    // A whole SubjectPublicKeyInfo in place of the bare key, with trailing bytes.
    let nested = |client: &Party, behind: &[u8]| {
        let inner = [&[0], client.spki.as_slice(), behind].concat();
        let [algorithm, _] = elements(&client.spki).try_into().unwrap();
        der(0x30, &[algorithm, der(0x03, &inner)].concat())
    };
    for (what, client, spki) in [
        ("no parameters", &rsa, of_rsa(&[RSA])),
        ("OAEP", &rsa, of_rsa(&[OAEP])),
        ("OAEP, NULL", &rsa, of_rsa(&[OAEP, NULL])),
        ("PSS", &rsa, of_rsa(&[PSS])),
        ("PSS, NULL", &rsa, of_rsa(&[PSS, NULL])),
        ("hybrid, even", &p256, hybrid(6)),
        ("hybrid, odd", &p256, hybrid(7)),
        ("a long length", &p256, long),
        ("a long length inside", &p256, long_bits),
        ("a nested RSA key", &rsa, nested(&rsa, b"")),
        ("a nested RSA key and more", &rsa, nested(&rsa, b"more")),
        ("a nested Ed25519 key", &ed25519, nested(&ed25519, b"")),
        ("a nested Ed25519 key and more", &ed25519, nested(&ed25519, b"more")),
    ] {
        let client = pki.client_with_spki("odd", &spki, &client.key);
        let error = send_get(&pki, &keygate, &client).unwrap_err();
        assert!(error.contains("received fatal alert"), "{what}: {error}");
    }
    assert_eq!(origin.untaken(), 0);
    let series = |verdict: &str| {
        let labels = format!("{{service=\"test\",stage=\"handshake\",verdict=\"{verdict}\"}}");
        format!("keygate_key_checks_total{labels}")
    };
    // The verifier rejects all but the nested ones before a judgement. A client gets its alert
    // before the judgement is counted.
    keygate.wait_for_metric(&series("unchecked"), 4.0);
    assert_eq!(keygate.metric(&series("clean")), 0.0);
    assert_eq!(keygate.metric(&series("probable")), 0.0);
}
