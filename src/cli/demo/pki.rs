//! CA, server certificate and client certificates of the demo.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::cli::BoxedError;

/// The certificates that the demo uses after they are written to files.
pub(super) struct DemoPki {
    pub(super) ca: CertificateDer<'static>,
    pub(super) good: DemoParty,
    pub(super) mallory: DemoParty,
    /// A client whose key is in the filter by chance.
    pub(super) carol: DemoParty,
    /// The key that the source of proofs always knows.
    pub(super) canary: DemoParty,
}

/// A server or client: its certificate and private key.
pub(super) struct DemoParty {
    certificate: Certificate,
    pub(super) key: KeyPair,
}

impl DemoPki {
    /// Generates the CA, the server and the clients. Writes certificates and keys to `directory`;
    /// only the owner can read the files.
    pub(super) fn generate(directory: &Path) -> Result<Self, BoxedError> {
        let ca_key = KeyPair::generate()?;
        let mut parameters = named("keygate demo CA", Vec::new())?;
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca = parameters.self_signed(&ca_key)?;
        let issuer = Issuer::new(parameters, ca_key);

        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let party = |name, names, purpose| DemoParty::generate(name, names, purpose, &issuer);
        let server = party("localhost", names, ExtendedKeyUsagePurpose::ServerAuth)?;
        let client = |name| party(name, Vec::new(), ExtendedKeyUsagePurpose::ClientAuth);
        let pki = Self {
            good: client("good")?,
            mallory: client("mallory")?,
            carol: client("carol")?,
            canary: client("canary")?,
            ca: ca.der().clone(),
        };

        write(&directory.join("ca.pem"), &ca.pem())?;
        for (name, party) in [
            ("server", &server),
            ("good", &pki.good),
            ("mallory", &pki.mallory),
            ("carol", &pki.carol),
            ("canary", &pki.canary),
        ] {
            write(&directory.join(format!("{name}.pem")), &party.certificate.pem())?;
            write(&directory.join(format!("{name}.key")), &party.key.serialize_pem())?;
        }
        Ok(pki)
    }
}

impl DemoParty {
    fn generate(
        name: &str,
        hosts: Vec<String>,
        purpose: ExtendedKeyUsagePurpose,
        issuer: &Issuer<'_, KeyPair>,
    ) -> Result<Self, BoxedError> {
        let key = KeyPair::generate()?;
        let mut parameters = named(name, hosts)?;
        parameters.extended_key_usages = vec![purpose];
        parameters.use_authority_key_identifier_extension = true;
        let certificate = parameters.signed_by(&key, issuer)?;
        Ok(Self { certificate, key })
    }

    /// The certificate chain and the private key, for rustls.
    pub(super) fn credentials(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(self.key.serialize_der());
        (vec![self.certificate.der().clone()], key.into())
    }
}

/// Parameters of a certificate with this common name, valid for `hosts`.
fn named(name: &str, hosts: Vec<String>) -> Result<CertificateParams, rcgen::Error> {
    let mut parameters = CertificateParams::new(hosts)?;
    parameters.distinguished_name.push(DnType::CommonName, name);
    Ok(parameters)
}

/// Creates a file that only the owner can read. An existing file is an error.
fn write(path: &Path, pem: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(pem.as_bytes())
}
