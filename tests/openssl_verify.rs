//! Client verification against `openssl verify -purpose sslclient`, over generated chains.
//!
//! Each case is verified by OpenSSL and by `ClientVerifier`. A different result is an error, unless
//! a row of the table "Where keygate and OpenSSL differ" in `docs/policy.md` covers it. The test
//! also fails if a row covers no case. `KEYGATE_OPENSSL_CASES=2000` sets the number of random cases;
//! `KEYGATE_OPENSSL_SEED` sets their seed, which is otherwise 1.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    missing_docs,
    reason = "a test may fail loudly"
)]

mod support;

use std::collections::BTreeSet;
use std::fs::{read_to_string, write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keygate::config::{ExpiredCrl, RevocationDepth};
use keygate_core::tls::{ClientVerifier, CrlIssuers, CrlLoader, CrlMarks, TrustAnchors};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CustomExtension, DnType,
    ExtendedKeyUsagePurpose as Purpose, IsCa, Issuer, KeyIdMethod, KeyPair,
    KeyUsagePurpose as Usage, RevokedCertParams, SanType, SerialNumber, SigningKey,
};
use rustls::pki_types::{CertificateDer, UnixTime};
use support::pki::{der, elements};
use support::system;

/// The rows of the table: whether keygate accepts what OpenSSL rejects, and the cases of the row.
type Row = (&'static str, bool, fn(&Case) -> bool);

const ROWS: [Row; 10] = [
    ("a CA whose issuer is no CA in `trust_anchors`", true, |case| {
        let is_ca = |it: &Spec| matches!(it.ca, Ca::Yes(_)) && it.version == 3;
        let pairs = case.chain[..case.chain.len() - 1].windows(2);
        pairs.into_iter().any(|pair| {
            let has_issuer = pair[0].is_in_file() && is_ca(&pair[0]) && !pair[1].is_forged;
            pair[1].is_in_file() && !has_issuer
        })
    }),
    ("a pinned certificate", true, |case| case.leaf().is_in_file()),
    ("a revoked CA whose issuer has no CRL", true, |case| {
        let may_sign = |it: &Spec| it.usage.as_ref().is_none_or(|it| it.contains(&Usage::CrlSign));
        let cas = &case.chain[..case.chain.len() - 1];
        let has_none = |it: &Spec| it.list == List::None || !may_sign(it);
        case.check == Check::Path && cas.iter().any(has_none)
    }),
    ("several CAs with the same name", true, |case| case.twin),
    ("a CA as a client", false, |case| matches!(case.leaf().ca, Ca::Yes(_))),
    ("X.509 version 1", false, |case| case.any(|index, it| index > 0 && it.version == 1)),
    ("a root without basic constraints", false, |case| {
        case.chain[0].version == 3 && case.chain[0].ca == Ca::Absent
    }),
    ("a serial number of more than 20 octets", false, |case| {
        case.any(|index, it| index > 0 && it.serial > 20)
    }),
    ("name constraints other than for DNS names and IP addresses", false, |case| {
        case.any(|_, it| {
            matches!(it.constraint, Constraint::Uri | Constraint::Email | Constraint::Directory)
        })
    }),
    ("critical extensions of certificate policies", false, |case| {
        case.any(|index, it| index > 0 && it.critical == Critical::Policies)
    }),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ca {
    Absent,
    No,
    Yes(Option<u8>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Constraint {
    Directory,
    Email,
    NoDns,
    None,
    OtherDns,
    SameDns,
    Uri,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Critical {
    None,
    Policies,
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dates {
    Future,
    Now,
    Past,
}

/// The revocation list of a CA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    Empty,
    Expired,
    None,
    Revokes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Both,
    File,
    Nowhere,
    Presented,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    Leaf,
    Nothing,
    Path,
}

/// A certificate to make.
#[derive(Debug, Clone)]
struct Spec {
    ca: Ca,
    usage: Option<Vec<Usage>>,
    purposes: Vec<Purpose>,
    dates: Dates,
    constraint: Constraint,
    critical: Critical,
    serial: usize,
    version: u8,
    /// Whether another key than the issuer's signs it.
    is_forged: bool,
    place: Place,
    list: List,
}

/// A chain, root first.
#[derive(Debug, Clone)]
struct Case {
    name: String,
    chain: Vec<Spec>,
    check: Check,
    /// Whether the file begins with another root of the same name.
    twin: bool,
}

impl Spec {
    fn ca(place: Place) -> Self {
        Self {
            ca: Ca::Yes(None),
            usage: Some(vec![Usage::KeyCertSign, Usage::CrlSign]),
            purposes: Vec::new(),
            dates: Dates::Now,
            constraint: Constraint::None,
            critical: Critical::None,
            serial: 8,
            version: 3,
            is_forged: false,
            place,
            list: List::Empty,
        }
    }

    fn client() -> Self {
        Self {
            ca: Ca::Absent,
            usage: Some(vec![Usage::DigitalSignature]),
            purposes: vec![Purpose::ClientAuth],
            ..Self::ca(Place::Presented)
        }
    }

    fn is_in_file(&self) -> bool {
        matches!(self.place, Place::Both | Place::File)
    }
}

impl Case {
    /// A good chain with this number of intermediates.
    fn new(intermediates: usize, place: Place, check: Check) -> Self {
        let mut chain = vec![Spec::ca(Place::File)];
        chain.extend(std::iter::repeat_n(Spec::ca(place), intermediates));
        chain.push(Spec::client());
        let name = format!("{intermediates} intermediates, {place:?}, check {check:?}");
        Self { name, chain, check, twin: false }
    }

    fn with(mut self, change: &Change, level: usize) -> Self {
        self.name = format!("{}, {} at {level}", self.name, change.0);
        (change.1)(&mut self.chain[level]);
        self
    }

    fn leaf(&self) -> &Spec {
        self.chain.last().unwrap()
    }

    fn any(&self, is: impl Fn(usize, &Spec) -> bool) -> bool {
        self.chain.iter().enumerate().any(|(index, spec)| is(index, spec))
    }
}

type Change = (&'static str, fn(&mut Spec));

const CHANGES: [Change; 38] = [
    ("no basic constraints", |it| it.ca = Ca::Absent),
    ("no CA", |it| it.ca = Ca::No),
    ("a CA", |it| it.ca = Ca::Yes(None)),
    ("path length 0", |it| it.ca = Ca::Yes(Some(0))),
    ("path length 1", |it| it.ca = Ca::Yes(Some(1))),
    ("path length 2", |it| it.ca = Ca::Yes(Some(2))),
    ("no key usage", |it| it.usage = None),
    ("cRLSign", |it| it.usage = Some(vec![Usage::CrlSign])),
    ("keyCertSign", |it| it.usage = Some(vec![Usage::KeyCertSign])),
    ("keyEncipherment", |it| it.usage = Some(vec![Usage::KeyEncipherment])),
    ("keyAgreement", |it| it.usage = Some(vec![Usage::KeyAgreement])),
    ("digitalSignature", |it| it.usage = Some(vec![Usage::DigitalSignature])),
    ("decipherOnly", |it| it.usage = Some(vec![Usage::DecipherOnly])),
    ("no purposes", |it| it.purposes = Vec::new()),
    ("clientAuth", |it| it.purposes = vec![Purpose::ClientAuth]),
    ("serverAuth", |it| it.purposes = vec![Purpose::ServerAuth]),
    ("both purposes", |it| it.purposes = vec![Purpose::ServerAuth, Purpose::ClientAuth]),
    ("any purpose", |it| it.purposes = vec![Purpose::Any]),
    ("expired", |it| it.dates = Dates::Past),
    ("not yet valid", |it| it.dates = Dates::Future),
    ("permits its DNS name", |it| it.constraint = Constraint::SameDns),
    ("permits another DNS name", |it| it.constraint = Constraint::OtherDns),
    ("excludes its DNS name", |it| it.constraint = Constraint::NoDns),
    ("permits its email", |it| it.constraint = Constraint::Email),
    ("permits its URI", |it| it.constraint = Constraint::Uri),
    ("permits its directory", |it| it.constraint = Constraint::Directory),
    ("unknown critical extension", |it| it.critical = Critical::Unknown),
    ("critical policies", |it| it.critical = Critical::Policies),
    ("serial number of 20 octets", |it| it.serial = 20),
    ("serial number of 21 octets", |it| it.serial = 21),
    ("serial number of 30 octets", |it| it.serial = 30),
    ("version 1", |it| it.version = 1),
    ("forged", |it| it.is_forged = true),
    ("in the file", |it| it.place = Place::File),
    ("nowhere", |it| it.place = Place::Nowhere),
    ("no list", |it| it.list = List::None),
    ("revokes", |it| it.list = List::Revokes),
    ("expired list", |it| it.list = List::Expired),
];

/// The cases that every run has.
fn shapes() -> Vec<Case> {
    let mut cases = Vec::new();
    for check in [Check::Nothing, Check::Leaf, Check::Path] {
        for place in [Place::Presented, Place::File, Place::Both] {
            cases.extend((0..4).map(|depth| Case::new(depth, place, check)));
        }
    }
    let base = |place, check| Case::new(1, place, check);
    for change in &CHANGES {
        for level in 0..3 {
            cases.push(base(Place::Presented, Check::Nothing).with(change, level));
            let is_list = matches!(change.0, "no list" | "revokes" | "expired list");
            if level < 2 && is_list {
                for (place, check) in [
                    (Place::Presented, Check::Leaf),
                    (Place::Presented, Check::Path),
                    (Place::File, Check::Leaf),
                    (Place::File, Check::Path),
                ] {
                    cases.push(base(place, check).with(change, level));
                }
            } else if level == 1 {
                cases.push(base(Place::File, Check::Nothing).with(change, level));
            }
        }
    }
    let change = |name| CHANGES.iter().find(|change| change.0 == name).unwrap();
    for length in ["path length 0", "path length 1", "path length 2"] {
        for level in 0..3 {
            cases.push(Case::new(2, Place::Presented, Check::Nothing).with(change(length), level));
            cases.push(Case::new(3, Place::File, Check::Nothing).with(change(length), level));
        }
    }
    // A client that signed its own certificate, and the client of an unknown CA.
    let alone = Case { chain: vec![Spec::client()], ..Case::new(0, Place::File, Check::Nothing) };
    cases.push(alone.clone().with(change("in the file"), 0));
    cases.push(alone.clone());
    for name in ["serverAuth", "expired", "keyEncipherment", "a CA", "unknown critical extension"] {
        cases.push(alone.clone().with(change("in the file"), 0).with(change(name), 0));
    }
    let strange = Case::new(0, Place::File, Check::Nothing).with(change("nowhere"), 0);
    cases.push(strange.clone());
    cases.push(strange.with(change("in the file"), 1));
    for place in [Place::File, Place::Presented] {
        let top = Case::new(2, place, Check::Nothing).with(change("nowhere"), 0);
        cases.push(top.with(change("in the file"), 1));
    }
    for depth in 0..2 {
        cases.push(Case { twin: true, ..Case::new(depth, Place::Presented, Check::Nothing) });
    }
    cases
}

/// A generator of numbers (xorshift64*), the same on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(high).unwrap() % limit
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    fn case(&mut self) -> Case {
        let place = self.of(&[Place::Presented, Place::File, Place::Both]);
        let check = self.of(&[Check::Nothing, Check::Leaf, Check::Path]);
        let mut case = Case::new(self.below(4), place, check);
        for _ in 0..1 + self.below(3) {
            let (change, level) = (self.below(CHANGES.len()), self.below(case.chain.len()));
            case = case.with(&CHANGES[change], level);
        }
        case
    }
}

/// The files of a case.
struct Made {
    file: Vec<CertificateDer<'static>>,
    presented: Vec<CertificateDer<'static>>,
    leaf: CertificateDer<'static>,
    lists: Vec<Vec<u8>>,
}

const DAY: Duration = Duration::from_secs(86_400);

fn constraint(kind: Constraint) -> Option<CustomExtension> {
    // Each base is the content of a GeneralName.
    let directory = || {
        let attribute = [der(6, &[0x55, 4, 3]), der(12, b"client")].concat();
        der(0x30, &der(0x31, &der(0x30, &attribute)))
    };
    let (list, tag, base) = match kind {
        Constraint::None => return None,
        Constraint::Directory => (0xa0, 0xa4, directory()),
        Constraint::Email => (0xa0, 0x81, b"example.org".to_vec()),
        Constraint::NoDns => (0xa1, 0x82, b"example.org".to_vec()),
        Constraint::OtherDns => (0xa0, 0x82, b"example.net".to_vec()),
        Constraint::SameDns => (0xa0, 0x82, b"example.org".to_vec()),
        Constraint::Uri => (0xa0, 0x86, b"example.org".to_vec()),
    };
    let value = der(0x30, &der(list, &der(0x30, &der(tag, &base))));
    let mut extension = CustomExtension::from_oid_content(&[2, 5, 29, 30], value);
    extension.set_criticality(true);
    Some(extension)
}

fn parameters(spec: &Spec, name: &str, number: usize) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, name);
    let mut serial = vec![0x41; spec.serial];
    *serial.last_mut().unwrap() = u8::try_from(number).unwrap();
    parameters.serial_number = Some(SerialNumber::from(serial));
    parameters.is_ca = match spec.ca {
        Ca::Absent => IsCa::NoCa,
        Ca::No => IsCa::ExplicitNoCa,
        Ca::Yes(None) => IsCa::Ca(BasicConstraints::Unconstrained),
        Ca::Yes(Some(length)) => IsCa::Ca(BasicConstraints::Constrained(length)),
    };
    parameters.key_usages = spec.usage.clone().unwrap_or_default();
    parameters.extended_key_usages.clone_from(&spec.purposes);
    let now = SystemTime::now();
    let (from, to) = match spec.dates {
        Dates::Future => (now + DAY, now + 2 * DAY),
        Dates::Now => (now - DAY, now + DAY),
        Dates::Past => (now - 2 * DAY, now - DAY),
    };
    (parameters.not_before, parameters.not_after) = (from.into(), to.into());
    parameters.custom_extensions.extend(constraint(spec.constraint));
    let critical = match spec.critical {
        Critical::None => None,
        Critical::Policies => {
            let policy = der(0x30, &der(0x30, &der(6, &[0x2a, 3, 4])));
            Some(CustomExtension::from_oid_content(&[2, 5, 29, 32], policy))
        }
        Critical::Unknown => {
            Some(CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 55_555, 1], vec![5, 0]))
        }
    };
    parameters.custom_extensions.extend(critical.map(|mut extension| {
        extension.set_criticality(true);
        extension
    }));
    parameters
}

/// The certificate without the fields for the version and for extensions.
fn of_version_1(certificate: &CertificateDer<'_>, key: &KeyPair) -> CertificateDer<'static> {
    let mut fields = elements(certificate);
    let to_be_signed = elements(&fields[0]);
    let old = to_be_signed[1..].iter().filter(|field| field[0] != 0xa3);
    fields[0] = der(0x30, &old.flatten().copied().collect::<Vec<_>>());
    let signature = key.sign(&fields[0]).unwrap();
    fields[2] = der(0x03, &[&[0], signature.as_slice()].concat());
    CertificateDer::from(der(0x30, &fields.concat()))
}

fn make(case: &Case) -> Made {
    let mut made = Made { file: vec![], presented: vec![], leaf: vec![].into(), lists: vec![] };
    let mut issuer: Option<Issuer<'static, KeyPair>> = None;
    let mut list_of_issuer = List::None;
    for (number, spec) in case.chain.iter().enumerate() {
        let is_leaf = number + 1 == case.chain.len();
        let name = if is_leaf { "client".to_owned() } else { format!("ca {number}") };
        let mut parameters = parameters(spec, &name, number + 1);
        if is_leaf {
            parameters.subject_alt_names = vec![
                SanType::DnsName("client.example.org".try_into().unwrap()),
                SanType::URI("spiffe://example.org/client".try_into().unwrap()),
                SanType::Rfc822Name("client@example.org".try_into().unwrap()),
            ];
        }
        let key = KeyPair::generate().unwrap();
        let other = KeyPair::generate().unwrap();
        let signer = match (&issuer, spec.is_forged) {
            (Some(issuer), false) => issuer.key(),
            (Some(_), true) => &other,
            (None, _) => &key,
        };
        let mut certificate = match &issuer {
            None => parameters.self_signed(&key).unwrap().der().clone(),
            Some(issuer) if spec.is_forged => {
                let mut named = CertificateParams::default();
                named.distinguished_name = rcgen::DistinguishedName::new();
                named.distinguished_name.push(DnType::CommonName, format!("ca {}", number - 1));
                let _ = issuer;
                parameters
                    .signed_by(&key, &Issuer::from_params(&named, &other))
                    .unwrap()
                    .der()
                    .clone()
            }
            Some(issuer) => parameters.signed_by(&key, issuer).unwrap().der().clone(),
        };
        if spec.version == 1 {
            certificate = of_version_1(&certificate, signer);
        }
        if let (Some(issuer), true) = (&issuer, list_of_issuer != List::None) {
            let now = SystemTime::now();
            let revoked = RevokedCertParams {
                serial_number: parameters.serial_number.clone().unwrap(),
                revocation_time: (now - DAY).into(),
                reason_code: None,
                invalidity_date: None,
            };
            let is_revoked = list_of_issuer == List::Revokes && spec.serial <= 20;
            let next = if list_of_issuer == List::Expired { now - DAY / 2 } else { now + DAY };
            let list = CertificateRevocationListParams {
                this_update: (now - DAY).into(),
                next_update: next.into(),
                crl_number: 1_u64.into(),
                issuing_distribution_point: None,
                revoked_certs: is_revoked.then_some(revoked).into_iter().collect(),
                key_identifier_method: KeyIdMethod::Sha256,
            };
            // A CA that must not sign lists has none.
            made.lists.extend(list.signed_by(issuer).map(|list| list.der().to_vec()));
        }
        if is_leaf {
            made.leaf = certificate.clone();
        } else if matches!(spec.place, Place::Both | Place::Presented) {
            made.presented.insert(0, certificate.clone());
        }
        if spec.is_in_file() {
            made.file.push(certificate);
        }
        list_of_issuer = spec.list;
        issuer = Some(Issuer::new(parameters, key));
    }
    if case.twin {
        let root = CertificateParams::clone(&parameters(&case.chain[0], "ca 0", 77));
        let twin = root.self_signed(&KeyPair::generate().unwrap()).unwrap();
        made.file.insert(0, twin.der().clone());
    }
    made
}

fn pem(label: &str, ders: &[impl AsRef<[u8]>]) -> String {
    let section = |der: &[u8]| {
        let text = data_encoding::BASE64.encode(der);
        let lines = text.as_bytes().chunks(64).map(|line| str::from_utf8(line).unwrap());
        let lines: Vec<_> = lines.collect();
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
    };
    ders.iter().map(|der| section(der.as_ref())).collect()
}

/// The error of OpenSSL; `None` if it accepts the client.
fn openssl(case: &Case, made: &Made, directory: &Path) -> Option<String> {
    let path = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    let [file, presented, leaf, lists] = ["file", "presented", "leaf", "lists"].map(path);
    write(&file, pem("CERTIFICATE", &made.file)).unwrap();
    write(&presented, pem("CERTIFICATE", &made.presented)).unwrap();
    write(&leaf, pem("CERTIFICATE", std::slice::from_ref(&made.leaf))).unwrap();
    write(&lists, pem("X509 CRL", &made.lists)).unwrap();
    let mut arguments = vec!["verify", "-purpose", "sslclient", "-no-CApath", "-no-CAstore"];
    if made.file.is_empty() {
        return Some("no CA".to_owned());
    }
    arguments.extend(["-CAfile", &file]);
    if !made.presented.is_empty() {
        arguments.extend(["-untrusted", &presented]);
    }
    match case.check {
        Check::Nothing => {}
        Check::Leaf => arguments.push("-crl_check"),
        Check::Path => arguments.push("-crl_check_all"),
    }
    if case.check != Check::Nothing && !made.lists.is_empty() {
        arguments.extend(["-CRLfile", &lists]);
    }
    arguments.push(&leaf);
    let output = system("openssl", &arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(text)
}

/// The error of keygate; `None` if it accepts the client.
fn keygate(case: &Case, made: &Made) -> Option<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let anchors = match TrustAnchors::new(made.file.clone()) {
        Ok(anchors) => Arc::new(anchors),
        Err(error) => return Some(error.to_string()),
    };
    let mut verifier = ClientVerifier::new(Arc::clone(&anchors));
    let depth = match case.check {
        Check::Nothing => None,
        Check::Leaf => Some(RevocationDepth::Leaf),
        Check::Path => Some(RevocationDepth::Path),
    };
    if let Some(depth) = depth {
        // A service names its presented intermediates, so that their lists are accepted.
        let issuers = CrlIssuers::new(&anchors);
        let issuers = match issuers.with_intermediates(&made.presented) {
            Ok(issuers) => issuers,
            Err(error) => return Some(error.to_string()),
        };
        // A list in use may expire.
        let marks = CrlMarks::new();
        let mut loader = CrlLoader::new(&issuers, ExpiredCrl::Accept, &marks, now.as_secs());
        for list in &made.lists {
            loader.add(Path::new("list"), list);
        }
        let update = loader.finish();
        if let Some((_, problem)) = update.problems.first() {
            return Some(problem.to_string());
        }
        verifier = verifier.with_crls(Arc::new(update.crls), ExpiredCrl::Reject, depth);
        if made.lists.is_empty() {
            return Some("no list".to_owned());
        }
    }
    let now = UnixTime::since_unix_epoch(now);
    verifier.verify(&made.leaf, &made.presented, now).err().map(|error| error.to_string())
}

/// The results of both for each case.
fn compare(cases: &[Case]) -> Vec<(Option<String>, Option<String>)> {
    let next = AtomicUsize::new(0);
    let mut results: Vec<_> = std::thread::scope(|scope| {
        let work = || {
            let directory = tempfile::tempdir().unwrap();
            let mut results = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(case) = cases.get(index) else { return results };
                let made = make(case);
                let openssl = openssl(case, &made, directory.path());
                results.push((index, (openssl, keygate(case, &made))));
            }
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[test]
fn clients_are_verified_as_openssl_verifies_them() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |value| value.parse().unwrap())
    };
    let mut cases = shapes();
    assert!(cases.len() > 150, "{}", cases.len());
    let mut random = Random(number("KEYGATE_OPENSSL_SEED", 1).wrapping_mul(2).wrapping_add(1));
    let count = number("KEYGATE_OPENSSL_CASES", 100);
    cases.extend((0..count).map(|_| random.case()));
    let (mut used, mut problems, mut accepted) = (BTreeSet::new(), Vec::new(), 0);
    for (case, (openssl, keygate)) in cases.iter().zip(compare(&cases)) {
        accepted += usize::from(keygate.is_none());
        if openssl.is_none() == keygate.is_none() {
            continue;
        }
        let is_of = |row: &&Row| row.1 == keygate.is_none() && (row.2)(case);
        let mut rows = ROWS.iter().filter(is_of).peekable();
        if rows.peek().is_none() {
            problems.push(format!("{}\n  openssl: {openssl:?}\n  keygate: {keygate:?}", case.name));
        }
        used.extend(rows.map(|row| row.0));
    }
    assert!(problems.is_empty(), "{} differences:\n{}", problems.len(), problems.join("\n"));
    assert!(accepted > 50, "{accepted} of {} are accepted", cases.len());
    assert_eq!(used, ROWS.iter().map(|row| row.0).collect(), "each row covers a case");
}

#[test]
fn the_page_has_a_row_for_each_difference() {
    let page =
        read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/policy.md")).unwrap();
    let section = page.split("## Where keygate and OpenSSL differ\n").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows: BTreeSet<_> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .filter(|cell| !["chain", "---"].contains(cell))
        .collect();
    assert_eq!(rows, ROWS.iter().map(|row| row.0).collect());
}
