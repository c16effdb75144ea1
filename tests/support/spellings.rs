//! Certificates whose public key is spelled in another way than usual, as some TLS servers accept
//! it, and clients that prove possession of these keys.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::{CertifiedKey, Signer, SigningKey, SingleCertAndKey};
use rustls::{ClientConfig, SignatureAlgorithm, SignatureScheme};

use super::client::{Client, config_of};
use super::http_host::GET;
use super::pki::{Kind, Party, Pki, der, elements};
use super::write_filter;

/// A spelling of the key of a client.
#[derive(Debug)]
pub struct Spelling {
    pub name: &'static str,
    spki: Vec<u8>,
    /// Whether keygate reads the key.
    pub is_readable: bool,
    /// The TLS 1.3 scheme of its signatures, if it differs from the key's.
    scheme: Option<SignatureScheme>,
}

/// The names of the spellings that OpenSSL 3.0 accepts from clients.
pub const OF_OPENSSL: [&str; 11] = [
    "hybrid point",
    "long length",
    "modulus without a sign",
    "no parameters",
    "other parameters",
    "padded exponent",
    "padded modulus",
    "pss",
    "rsa of X.509",
    "rsa of X.509 with a size",
    "usual",
];
/// The names of the spellings that the library of Go accepts from clients.
pub const OF_GO: [&str; 3] = ["further parameters", "three numbers", "usual"];

/// `rsa_pss_pss_sha256` (RFC 8446, section 4.2.3).
const PSS_PSS: SignatureScheme = SignatureScheme::Unknown(0x0809);

const RSA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01";
const RSA_PSS: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0a";
const RSA_OF_X509: &[u8] = b"\x06\x04\x55\x08\x01\x01";
const NULL: &[u8] = b"\x05\x00";
const P256: &[u8] = b"\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07";
const EC: &[u8] = b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01";

impl Spelling {
    /// Every spelling of the key of an elliptic curve (P-256) or of an RSA key.
    pub fn all(key: &Party) -> Vec<Self> {
        let fields = elements(&key.spki);
        let bits = content(&fields[1])[1..].to_vec();
        let spki = |algorithm: &[&[u8]], key: &[u8]| {
            let bits = der(0x03, &[&[0], key].concat());
            der(0x30, &[der(0x30, &algorithm.concat()), bits].concat())
        };
        let readable = |name, spki| Self { name, spki, is_readable: true, scheme: None };
        let unreadable = |name, spki| Self { name, spki, is_readable: false, scheme: None };
        if !contains(&fields[0], RSA) {
            let hybrid = [&[0x06 | bits[64] & 1], &bits[1..]].concat();
            return vec![
                readable("hybrid point", spki(&[EC, P256], &hybrid)),
                unreadable("explicit curve", spki(&[EC, &explicit_p256()], &bits)),
                readable("usual", key.spki.clone()),
            ];
        }
        let numbers = elements(&bits);
        let [modulus, exponent] = [&numbers[0], &numbers[1]];
        let with = |modulus: &[u8], exponent: &[u8], more: &[u8]| {
            spki(&[RSA, NULL], &der(0x30, &[modulus, exponent, more].concat()))
        };
        let padded = |integer: &[u8]| der(0x02, &[&[0, 0], content(integer)].concat());
        let pss = |name, algorithm: &[&[u8]]| Self {
            scheme: Some(PSS_PSS),
            ..readable(name, spki(algorithm, &bits))
        };
        vec![
            readable("usual", key.spki.clone()),
            readable("no parameters", spki(&[RSA], &bits)),
            readable("other parameters", spki(&[RSA, b"\x02\x02\x08\x00"], &bits)),
            readable("rsa of X.509", spki(&[RSA_OF_X509, NULL], &bits)),
            readable("rsa of X.509 with a size", spki(&[RSA_OF_X509, b"\x02\x02\x08\x00"], &bits)),
            pss("pss", &[RSA_PSS]),
            pss("pss with parameters", &[RSA_PSS, b"\x30\x00"]),
            readable("padded modulus", with(&padded(modulus), exponent, b"")),
            readable("padded exponent", with(modulus, &padded(exponent), b"")),
            readable("modulus without a sign", {
                with(&der(0x02, &content(modulus)[1..]), exponent, b"")
            }),
            readable("three numbers", with(modulus, exponent, b"\x02\x01\x00")),
            readable("further parameters", spki(&[RSA, NULL, NULL], &bits)),
            unreadable("long length", {
                let mut key = bits.clone();
                key.splice(1..4, [0x83, 0, bits[2], bits[3]]);
                spki(&[RSA, NULL], &key)
            }),
        ]
    }

    /// A client whose certificate has this spelling of the key of `like`.
    pub fn config(&self, pki: &Pki, like: &Party) -> ClientConfig {
        let certificate = pki.client_with_spki(&like.name, &self.spki, &like.key);
        let key = any_supported_type(&like.credentials().1).unwrap();
        let key = Arc::new(SchemeKey { key, scheme: self.scheme });
        let certified = CertifiedKey::new(vec![certificate.der], key);
        let mut config = config_of(pki, &[&rustls::version::TLS13], None);
        let resolver: Arc<dyn ResolvesClientCert> = Arc::new(SingleCertAndKey::from(certified));
        config.client_auth_cert_resolver = resolver;
        config
    }
}

/// A key that names its scheme in another way.
#[derive(Debug)]
struct SchemeKey {
    key: Arc<dyn SigningKey>,
    scheme: Option<SignatureScheme>,
}

#[derive(Debug)]
struct SchemeSigner(Box<dyn Signer>, SignatureScheme);

impl Signer for SchemeSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rustls::Error> {
        self.0.sign(message)
    }

    fn scheme(&self) -> SignatureScheme {
        self.1
    }
}

impl SigningKey for SchemeKey {
    fn choose_scheme(&self, _: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let own = [SignatureScheme::RSA_PSS_SHA256, SignatureScheme::ECDSA_NISTP256_SHA256];
        let signer = self.key.choose_scheme(&own)?;
        let scheme = self.scheme.unwrap_or(signer.scheme());
        Some(Box::new(SchemeSigner(signer, scheme)))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.key.algorithm()
    }
}

/// Clients with a key of P-256 and of RSA: two in no filter, two in the filter `lost.pkbf`.
pub fn keys(pki: &Pki) -> [[Party; 2]; 2] {
    let keys = ["good", "lost"].map(|name| {
        [Kind::P256, Kind::Rsa2048].map(|kind| pki.client(&format!("{name}-{kind:?}"), kind))
    });
    let listed: Vec<_> = keys[1].iter().map(|key| key.spki.as_slice()).collect();
    write_filter(&pki.path("lost.pkbf"), &listed);
    keys
}

/// A listed key is rejected in every spelling. A key that is not listed is admitted if keygate
/// reads it. The host accepts the spellings `accepted`, and no others.
pub fn check(pki: &Pki, host: SocketAddr, [good, lost]: &[[Party; 2]; 2], accepted: &[&str]) {
    let mut served = BTreeSet::new();
    for key in good.iter().chain(lost) {
        for spelling in Spelling::all(key) {
            let mut client = Client::with(spelling.config(pki, key), host);
            let _ = client.try_send(GET); // an error if the host has closed the connection
            let response = client.whatever_comes();
            let status = response.get(9..12).unwrap_or_default();
            // nginx sends 400 to a client whose certificate it rejects.
            if !matches!(status, "" | "400") {
                let is_rejected = key.name.starts_with("lost") || !spelling.is_readable;
                let expected = if is_rejected { "403" } else { "200" };
                assert_eq!(status, expected, "{}: {}", key.name, spelling.name);
                served.insert(spelling.name);
            }
        }
    }
    assert_eq!(served, accepted.iter().copied().collect());
}

/// The content of a DER element.
fn content(element: &[u8]) -> &[u8] {
    let header = if element[1] < 0x80 { 2 } else { 2 + usize::from(element[1] & 0x7f) };
    &element[header..]
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

/// The parameters of P-256 in full (RFC 3279, section 2.3.5), made by OpenSSL.
fn explicit_p256() -> Vec<u8> {
    let arguments = ["ecparam", "-name", "prime256v1", "-param_enc", "explicit", "-outform", "DER"];
    super::system("openssl", &arguments).stdout
}
