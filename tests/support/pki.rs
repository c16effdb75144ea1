//! A throw-away CA, servers and clients, as files.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::BASE64;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationList,
    CertificateRevocationListParams, CrlDistributionPoint, CrlIssuingDistributionPoint, CrlScope,
    CustomExtension, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod,
    KeyPair, KeyUsagePurpose, PublicKeyData, RevokedCertParams, RsaKeySize, SanType, SigningKey,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use x509_cert::Certificate;
use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{Decode, Reader, SliceReader};

use super::system;

/// The kinds of keys that clients have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Ed25519,
    MlDsa44,
    MlDsa65,
    MlDsa87,
    P256,
    P384,
    P521,
    Rsa2048,
    Rsa4096,
}

impl Kind {
    /// The kinds that TLS 1.2 has.
    pub const ALL: [Self; 6] =
        [Self::Ed25519, Self::P256, Self::P384, Self::P521, Self::Rsa2048, Self::Rsa4096];

    fn generate(self) -> KeyPair {
        match self {
            // OpenSSL 3.0 reads no Ed25519 key that has its public half beside it, as rcgen's have.
            Self::Ed25519 => {
                let made = system("openssl", &["genpkey", "-algorithm", "ed25519"]);
                KeyPair::from_pem(std::str::from_utf8(&made.stdout).unwrap())
            }
            Self::MlDsa44 => KeyPair::generate_for(&rcgen::PKCS_ML_DSA_44),
            Self::MlDsa65 => KeyPair::generate_for(&rcgen::PKCS_ML_DSA_65),
            Self::MlDsa87 => KeyPair::generate_for(&rcgen::PKCS_ML_DSA_87),
            Self::P256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
            Self::P384 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
            Self::P521 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512),
            Self::Rsa2048 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048),
            Self::Rsa4096 => KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_4096),
        }
        .unwrap()
    }
}

/// A DER element (X.690, 8.1).
pub fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let long = |bytes: usize| {
        let length = length.to_be_bytes()[8 - bytes..].to_vec();
        [vec![0x80 | u8::try_from(bytes).unwrap()], length].concat()
    };
    let header = match length {
        0..0x80 => vec![u8::try_from(length).unwrap()],
        0x80..0x100 => long(1),
        0x100..0x1_0000 => long(2),
        0x1_0000..0x100_0000 => long(3),
        _ => long(4),
    };
    [vec![tag], header, content.to_vec()].concat()
}

/// The elements inside a DER SEQUENCE, each whole.
pub fn elements(sequence: &[u8]) -> Vec<Vec<u8>> {
    let content = AnyRef::from_der(sequence).unwrap().value();
    let mut reader = SliceReader::new(content).unwrap();
    let mut elements = Vec::new();
    while !reader.is_finished() {
        elements.push(reader.tlv_bytes().unwrap().to_vec());
    }
    elements
}

/// A CA with its own directory, which has the files of all parties.
pub struct Pki {
    directory: tempfile::TempDir,
    parameters: CertificateParams,
    issuer: Issuer<'static, KeyPair>,
    ca: CertificateDer<'static>,
}

/// A revocation list to make.
pub struct RevocationList<'a> {
    pub number: u64,
    pub issued: SystemTime,
    pub expires: SystemTime,
    pub revoked: &'a [&'a Party],
    /// Revoked serial numbers that no party has: from 1 to this.
    pub others: u64,
    pub distribution_point: Option<&'a str>,
    pub scope: Option<CrlScope>,
}

impl<'a> RevocationList<'a> {
    /// A list that is one hour old and lasts for a day.
    pub fn new(number: u64, revoked: &'a [&'a Party]) -> Self {
        let (issued, expires) = (Duration::from_secs(3600), Duration::from_secs(86_400));
        Self {
            number,
            issued: SystemTime::now() - issued,
            expires: SystemTime::now() + expires,
            revoked,
            others: 0,
            distribution_point: None,
            scope: None,
        }
    }
}

/// A holder of a certificate and its private key.
pub struct Party {
    pub name: String,
    /// PEM files.
    pub certificate: PathBuf,
    pub private_key: PathBuf,
    /// DER.
    pub der: CertificateDer<'static>,
    pub spki: Vec<u8>,
    /// PKCS#8, DER.
    pub key: Vec<u8>,
}

/// The first lifetime of a [`BriefClient`].
const BRIEF: Duration = Duration::from_secs(5);

/// A client whose certificate expires within the test.
pub struct BriefClient {
    pub party: Party,
    not_after: SystemTime,
}

impl BriefClient {
    /// Whether the certificate has not expired yet.
    fn is_valid(&self) -> bool {
        SystemTime::now() < self.not_after
    }

    /// Returns when the certificate has expired.
    pub fn wait_for_expiry(&self) {
        // The second of `notAfter` is still valid (RFC 5280, 4.1.2.5).
        let expired = self.not_after + Duration::from_secs(1);
        // The clock alone shows that a certificate expires.
        while let Ok(left) = expired.duration_since(SystemTime::now()) {
            std::thread::sleep(left);
        }
    }
}

impl Party {
    /// Adds certificates to the file with the party's own.
    pub fn present_with(self, others: &[&CertificateDer<'_>]) -> Self {
        let mut pem = std::fs::read_to_string(&self.certificate).unwrap();
        for der in others {
            let text = BASE64.encode(der);
            let lines: Vec<_> =
                text.as_bytes().chunks(64).map(|line| str::from_utf8(line).unwrap()).collect();
            pem += &format!(
                "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
                lines.join("\n")
            );
        }
        std::fs::write(&self.certificate, pem).unwrap();
        self
    }

    /// Certificate and key for a rustls client.
    pub fn credentials(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        (vec![self.der.clone()], PrivatePkcs8KeyDer::from(self.key.clone()).into())
    }
}

impl Pki {
    /// `ca.pem`, and `server.pem` with `server.key` for `localhost`, `a.example` to `d.example`,
    /// and `127.0.0.1`.
    pub fn new() -> Self {
        Self::named("Test CA")
    }

    /// The files of [`Pki::new`] with a CA of this name.
    pub fn named(ca: &str) -> Self {
        Self::with_parameters(ca, CertificateParams::default())
    }

    /// The files of [`Pki::new`] with a CA of this name and these parameters.
    pub fn with_parameters(ca: &str, mut parameters: CertificateParams) -> Self {
        let key = KeyPair::generate().unwrap();
        parameters.distinguished_name.push(DnType::CommonName, ca);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = parameters.self_signed(&key).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), certificate.pem()).unwrap();
        let der = certificate.der().clone();
        let issuer = Issuer::new(parameters.clone(), key);
        let pki = Self { directory, parameters, issuer, ca: der };
        let hosts = ["localhost", "a.example", "b.example", "c.example", "d.example", "127.0.0.1"];
        let server = CertificateParams::new(hosts.map(str::to_owned)).unwrap();
        pki.issue("server", Kind::P256, server, ExtendedKeyUsagePurpose::ServerAuth);
        pki
    }

    /// A subordinate CA with its own directory.
    pub fn subordinate(&self, name: &str) -> Self {
        self.subordinate_with(name, CertificateParams::default())
    }

    /// A subordinate CA with these parameters and its own directory.
    pub fn subordinate_with(&self, name: &str, mut parameters: CertificateParams) -> Self {
        let key = KeyPair::generate().unwrap();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), certificate.pem()).unwrap();
        let ca = certificate.der().clone();
        Self { directory, issuer: Issuer::new(parameters.clone(), key), parameters, ca }
    }

    /// A certificate of this CA for the name and key of the CA `other`.
    pub fn cross_sign(&self, other: &Self) -> CertificateDer<'static> {
        let certificate = other.parameters.signed_by(other.issuer.key(), &self.issuer).unwrap();
        certificate.der().clone()
    }

    /// Another certificate of the CA, in PEM, whose key usage does not permit it to sign lists.
    pub fn without_crl_sign(&self) -> String {
        let mut parameters = self.parameters.clone();
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        parameters.self_signed(self.issuer.key()).unwrap().pem()
    }

    /// The SPKI of the CA.
    pub fn spki(&self) -> Vec<u8> {
        self.issuer.key().subject_public_key_info()
    }

    /// The certificate of the CA as a party, for a CRL that revokes it.
    pub fn as_party(&self) -> Party {
        let certificate = self.path("ca.pem");
        let (name, private_key) = ("CA".to_owned(), PathBuf::new());
        let (der, spki, key) = (self.ca.clone(), Vec::new(), Vec::new());
        Party { name, certificate, private_key, der, spki, key }
    }

    /// A new directory below this one with a copy of each file.
    pub fn copied(&self, name: &str) -> PathBuf {
        let directory = self.path(name);
        std::fs::create_dir(&directory).unwrap();
        for entry in std::fs::read_dir(self.directory()).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), directory.join(entry.file_name())).unwrap();
            }
        }
        directory
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The path of a file of this name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn ca(&self) -> &CertificateDer<'static> {
        &self.ca
    }

    /// `NAME.pem` and `NAME.key` of another server for `localhost` and `127.0.0.1`.
    pub fn server(&self, name: &str) -> Party {
        self.server_for(name, &["localhost", "127.0.0.1"])
    }

    /// `NAME.pem` and `NAME.key` of a server for these hosts.
    pub fn server_for(&self, name: &str, hosts: &[&str]) -> Party {
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let parameters = CertificateParams::new(hosts).unwrap();
        self.issue(name, Kind::P256, parameters, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// `NAME.pem` and `NAME.key` of a server for `localhost` with a key of this kind.
    pub fn server_of_kind(&self, name: &str, kind: Kind) -> Party {
        let parameters = CertificateParams::new(["localhost".to_owned()]).unwrap();
        self.issue(name, kind, parameters, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// `NAME.pem` and `NAME.key` of a server whose certificate has these parameters.
    pub fn server_with(&self, name: &str, parameters: CertificateParams) -> Party {
        self.issue(name, Kind::P256, parameters, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// `NAME.pem` and `NAME.key` of a client with a certificate of X.509 version 1: without the
    /// fields for the version and for extensions, signed by our CA like any other.
    pub fn client_of_version_1(&self, name: &str) -> Party {
        let like = self.client(name, Kind::P256);
        let mut fields = elements(&like.der);
        let to_be_signed = elements(&fields[0]);
        let [_version, old @ .., _extensions] = to_be_signed.as_slice() else { panic!("{name}") };
        fields[0] = der(0x30, &old.concat());
        let signature = self.issuer.key().sign(&fields[0]).unwrap();
        fields[2] = der(0x03, &[&[0], signature.as_slice()].concat());
        let der = CertificateDer::from(der(0x30, &fields.concat()));
        let pem = like.certificate.to_str().unwrap();
        std::fs::write(pem, &der).unwrap();
        let made = system("openssl", &["x509", "-inform", "DER", "-in", pem, "-out", pem]);
        assert!(made.status.success(), "{name}");
        Party { der, ..like }
    }

    /// `NAME.pem` and `NAME.key` of a client whose certificate is valid.
    pub fn client(&self, name: &str, kind: Kind) -> Party {
        self.client_with(name, kind, CertificateParams::default())
    }

    /// `NAME.pem` and `NAME.key` of a client whose certificate has these parameters.
    pub fn client_with(&self, name: &str, kind: Kind, parameters: CertificateParams) -> Party {
        self.issue(name, kind, parameters, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// A workload: its certificate has an empty subject, and these names.
    pub fn workload(&self, name: &str, names: &[SanType]) -> Party {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = DistinguishedName::new();
        parameters.subject_alt_names = names.to_vec();
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&self.issuer, name, Kind::P256, parameters)
    }

    /// A client that signed its own certificate, and a client whose certificate it signed.
    pub fn self_signed_client(&self, name: &str) -> (Party, Party) {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let made = parameters.self_signed(&key).unwrap();
        let paths = ["pem", "key"].map(|kind| self.path(&format!("{name}.{kind}")));
        std::fs::write(&paths[0], made.pem()).unwrap();
        std::fs::write(&paths[1], key.serialize_pem()).unwrap();
        let [certificate, private_key] = paths;
        let (spki, key_der) = (key.subject_public_key_info(), key.serialize_der());
        let (name, der) = (name.to_owned(), made.der().clone());
        let party = Party { name, certificate, private_key, der, spki, key: key_der };
        let below = CertificateParams::default();
        let forged = self.sign(&Issuer::new(parameters, key), "forged", Kind::P256, below);
        (party, forged)
    }

    /// A client whose certificate has about 20 KiB.
    pub fn large_client(&self, name: &str) -> Party {
        let mut parameters = CertificateParams::default();
        let extension =
            CustomExtension::from_oid_content(&[1, 3, 6, 1, 4, 1, 55_555, 1], vec![4; 20_000]);
        parameters.custom_extensions.push(extension);
        self.client_with(name, Kind::P256, parameters)
    }

    /// The result of `handshakes` with a client whose certificate was valid all the time, and
    /// expires soon. On a loaded machine the handshakes are made again, with a certificate of twice
    /// the lifetime.
    pub fn with_brief_client<T>(
        &self,
        mut handshakes: impl FnMut(&Party) -> T,
    ) -> (T, BriefClient) {
        let mut lifetime = BRIEF;
        loop {
            let brief = self.brief_client(lifetime);
            let found = handshakes(&brief.party);
            if brief.is_valid() {
                return (found, brief);
            }
            lifetime *= 2;
        }
    }

    /// A client whose certificate is valid for `lifetime`, in whole seconds.
    fn brief_client(&self, lifetime: Duration) -> BriefClient {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let not_after = UNIX_EPOCH + Duration::from_secs((now + lifetime).as_secs());
        let mut parameters = CertificateParams::default();
        parameters.not_after = not_after.into();
        BriefClient { party: self.client_with("brief", Kind::P256, parameters), not_after }
    }

    /// A client whose certificate was issued by an intermediate. `NAME.pem` contains both.
    /// Returns the SPKI of the intermediate, too.
    pub fn client_of_intermediate(&self, name: &str) -> (Party, Vec<u8>) {
        self.client_of_intermediate_with_key(name, KeyPair::generate().unwrap())
    }

    /// A client whose certificate was issued by an intermediate with this key. `NAME.pem` contains
    /// both. Returns the SPKI of the intermediate, too.
    pub fn client_of_intermediate_with_key(&self, name: &str, key: KeyPair) -> (Party, Vec<u8>) {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, format!("issuer of {name}"));
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let intermediate = parameters.signed_by(&key, &self.issuer).unwrap();
        let (pem, spki) = (intermediate.pem(), key.subject_public_key_info());
        let issuer = Issuer::new(parameters, key);
        let client_auth = ExtendedKeyUsagePurpose::ClientAuth;
        let party =
            self.issue_by(&issuer, name, Kind::P256, CertificateParams::default(), client_auth);
        let leaf = std::fs::read_to_string(&party.certificate).unwrap();
        std::fs::write(&party.certificate, leaf + &pem).unwrap();
        (party, spki)
    }

    /// A client with the private key `key` (PKCS#8) whose certificate has these bytes where the
    /// SubjectPublicKeyInfo is, signed by our CA like any other.
    pub fn client_with_spki(&self, name: &str, spki: &[u8], key: &[u8]) -> Party {
        self.with_spki(self.client(name, Kind::P256), spki, key)
    }

    /// A party like another one, with the private key `key` (PKCS#8) and these bytes where the
    /// SubjectPublicKeyInfo is. Its files stay.
    pub fn with_spki(&self, like: Party, spki: &[u8], key: &[u8]) -> Party {
        let mut fields = elements(&like.der);
        let mut to_be_signed = elements(&fields[0]);
        let place = to_be_signed.iter().position(|field| *field == like.spki).unwrap();
        to_be_signed[place] = spki.to_vec();
        fields[0] = der(0x30, &to_be_signed.concat());
        let signature = self.issuer.key().sign(&fields[0]).unwrap();
        fields[2] = der(0x03, &[&[0], signature.as_slice()].concat());
        let certificate = CertificateDer::from(der(0x30, &fields.concat()));
        Party { der: certificate, spki: spki.to_vec(), key: key.to_vec(), ..like }
    }

    /// A revocation list (PEM) of our CA that names `revoked`, and is up to date for `lasts`; a
    /// list that lasts no time has expired.
    pub fn crl(&self, name: &str, revoked: &[&Party], lasts: Duration) -> PathBuf {
        let mut list = RevocationList::new(1, revoked);
        list.expires = match lasts.is_zero() {
            true => list.issued + Duration::from_secs(1),
            false => SystemTime::now() + lasts,
        };
        self.crl_with(name, &list)
    }

    /// An empty revocation list from yesterday.
    pub fn old_crl(&self, name: &str) -> PathBuf {
        let mut list = RevocationList::new(1, &[]);
        list.issued = SystemTime::now() - Duration::from_secs(86_400);
        self.crl_with(name, &list)
    }

    /// A revocation list (PEM) of our CA.
    pub fn crl_with(&self, name: &str, list: &RevocationList<'_>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, self.signed_crl(list).pem().unwrap()).unwrap();
        path
    }

    /// A revocation list of our CA.
    pub fn signed_crl(&self, list: &RevocationList<'_>) -> CertificateRevocationList {
        let revoke = |serial_number| RevokedCertParams {
            serial_number,
            revocation_time: list.issued.into(),
            reason_code: None,
            invalidity_date: None,
        };
        let revoked = list.revoked.iter().map(|party| {
            let certificate = Certificate::from_der(&party.der).unwrap();
            revoke(certificate.tbs_certificate().serial_number().as_bytes().to_vec().into())
        });
        let others = (1..=list.others).map(|number| revoke(number.into()));
        let point = list.distribution_point.map(|uri| CrlIssuingDistributionPoint {
            distribution_point: CrlDistributionPoint { uris: vec![uri.to_owned()] },
            scope: list.scope,
        });
        let list = CertificateRevocationListParams {
            this_update: list.issued.into(),
            next_update: list.expires.into(),
            crl_number: list.number.into(),
            issuing_distribution_point: point,
            revoked_certs: revoked.chain(others).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap()
    }

    /// A revocation list of our CA (DER) with this many entries that no party has, in addition to
    /// the entries of `list`. Serial numbers have 16 octets, in no order, as large CAs have them.
    pub fn large_crl(&self, list: &RevocationList<'_>, entries: u64) -> Vec<u8> {
        let template = RevocationList { others: 1, ..*list };
        let mut fields = elements(self.signed_crl(&template).der());
        let mut to_be_signed = elements(&fields[0]);
        let mut revoked = elements(&to_be_signed[5]).concat();
        for entry in 0..entries {
            let high = entry.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            revoked.extend(b"\x30\x21\x02\x10\x40");
            revoked.extend(&high.to_be_bytes()[1..]);
            revoked.extend(&entry.to_be_bytes());
            revoked.extend(b"\x17\x0d260101000000Z");
        }
        to_be_signed[5] = der(0x30, &revoked);
        fields[0] = der(0x30, &to_be_signed.concat());
        let signature = self.issuer.key().sign(&fields[0]).unwrap();
        fields[2] = der(0x03, &[&[0], signature.as_slice()].concat());
        der(0x30, &fields.concat())
    }

    fn issue(
        &self,
        name: &str,
        kind: Kind,
        parameters: CertificateParams,
        purpose: ExtendedKeyUsagePurpose,
    ) -> Party {
        self.issue_by(&self.issuer, name, kind, parameters, purpose)
    }

    fn issue_by(
        &self,
        issuer: &Issuer<'static, KeyPair>,
        name: &str,
        kind: Kind,
        mut parameters: CertificateParams,
        purpose: ExtendedKeyUsagePurpose,
    ) -> Party {
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.extended_key_usages = vec![purpose];
        self.sign(issuer, name, kind, parameters)
    }

    fn sign(
        &self,
        issuer: &Issuer<'static, KeyPair>,
        name: &str,
        kind: Kind,
        mut parameters: CertificateParams,
    ) -> Party {
        let key = kind.generate();
        parameters.use_authority_key_identifier_extension = true;
        let certificate = parameters.signed_by(&key, issuer).unwrap();
        let party = Party {
            name: name.to_owned(),
            certificate: self.path(&format!("{name}.pem")),
            private_key: self.path(&format!("{name}.key")),
            der: certificate.der().clone(),
            spki: key.subject_public_key_info(),
            key: key.serialize_der(),
        };
        std::fs::write(&party.certificate, certificate.pem()).unwrap();
        std::fs::write(&party.private_key, key.serialize_pem()).unwrap();
        let own = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&party.private_key, own).unwrap();
        party
    }
}
