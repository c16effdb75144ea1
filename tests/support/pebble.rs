//! pebble, the ACME server of Let's Encrypt for tests, and orders of certificates.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::pki::Pki;
use super::program::{Program, python_with, reserved_address};
use super::{output_text, skip, system};

/// A server that validates every challenge, and ends with the test.
pub struct Pebble {
    address: SocketAddr,
    management: SocketAddr,
    /// The CA of the server's own certificate.
    ca: PathBuf,
    python: &'static str,
    _program: Program,
}

impl Pebble {
    /// Starts pebble with a certificate of `pki`; `None` skips the test.
    pub fn start(pki: &Pki) -> Option<Self> {
        if skip::without("pebble") {
            return None;
        }
        let python = python_with("cryptography")?;
        let (address, management) = (reserved_address(), reserved_address());
        let server = pki.server("pebble");
        let config = json!({ "pebble": {
            "listenAddress": address, "managementListenAddress": management,
            "certificate": server.certificate, "privateKey": server.private_key,
            "httpPort": 5002, "tlsPort": 5001, "ocspResponderURL": "",
            "externalAccountBindingRequired": false,
        } });
        let path = pki.path("pebble.json");
        std::fs::write(&path, config.to_string()).unwrap();
        let mut command = Command::new("pebble");
        command.arg("-config").arg(path);
        command.env("PEBBLE_VA_ALWAYS_VALID", "1").env("PEBBLE_VA_NOSLEEP", "1");
        command.env("PEBBLE_WFE_NONCEREJECT", "0");
        let program = Program::start(&mut command).listening_on(address).listening_on(management);
        Some(Self { address, management, ca: pki.path("ca.pem"), python, _program: program })
    }

    /// URL of the directory.
    pub fn directory(&self) -> String {
        format!("https://{}/dir", self.address)
    }

    /// Orders a certificate for `name` with the private key in `key`. Writes its chain to `out`.
    pub fn order(&self, name: &str, key: &Path, out: &Path) -> Vec<CertificateDer<'static>> {
        let mut order = Command::new(self.python);
        order.arg("tests/programs/acme_order.py").arg(self.directory()).arg(&self.ca);
        let output = order.arg(name).arg(key).arg(out).output().unwrap();
        assert!(output.status.success(), "{}", output_text(&output));
        let chain = CertificateDer::pem_file_iter(out).unwrap();
        chain.collect::<Result<Vec<_>, _>>().unwrap()
    }

    /// The root certificate in PEM.
    pub fn root(&self) -> Vec<u8> {
        self.manage("roots/0")
    }

    /// The status of a certificate, with its reason.
    pub fn status(&self, serial: &str) -> Value {
        serde_json::from_slice(&self.manage(&format!("cert-status-by-serial/{serial}"))).unwrap()
    }

    fn manage(&self, path: &str) -> Vec<u8> {
        let url = format!("https://{}/{path}", self.management);
        let output = system("curl", &["-sf", "--cacert", self.ca.to_str().unwrap(), &url]);
        assert!(output.status.success(), "{}", output_text(&output));
        output.stdout
    }
}
