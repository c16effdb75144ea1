//! Key exchange and certificates of upstream servers that run OpenSSL 4.
//!
//! Guards: `HYBRID_FIRST` in `crates/core/src/tls/key_exchange.rs`, `key_exchange` in
//! `src/sources/upstream_credentials.rs`.

use std::fs::write;
use std::process::Command;

use crate::support::pki::Kind;
use crate::support::program::{Program, python_with, reserved_address};
use crate::support::proxy::{Configure, Proxy};

#[test]
fn an_openssl_server_with_an_ml_dsa_key_exchanges_keys_by_the_configured_groups() {
    let Some(python) = python_with("OpenSSL, cryptography.hazmat.primitives.asymmetric.mldsa")
    else {
        return;
    };
    for (server_groups, setting, expected) in [
        ("X25519MLKEM768:X25519", "[]", "X25519MLKEM768"),
        ("X25519", "[]", "x25519"),
        ("X25519MLKEM768:X25519", "[\"x25519\", \"X25519MLKEM768\"]", "x25519"),
        ("X25519MLKEM768:P-256", "[\"secp256r1\"]", "secp256r1"),
    ] {
        let proxy = Proxy::new();
        let server = proxy.pki.server_of_kind("upstream", Kind::MlDsa65);
        let file = proxy.pki.path("openssl.cnf");
        let sections = "openssl_conf = a\n[a]\nssl_conf = b\n[b]\nsystem_default = c\n[c]\n";
        write(&file, format!("{sections}Groups = {server_groups}\n")).unwrap();
        let address = reserved_address();
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/openssl_server.py");
        let mut command = Command::new(python);
        command.arg(program).arg(address.to_string()).env("OPENSSL_CONF", file);
        command.args([&server.certificate, &server.private_key]);
        let _server = Program::start(&mut command).listening_on(address);
        let tls = format!(
            "tls = {{ trust_anchors = \"ca.pem\", server_name = \"localhost\", key_exchange = {setting} }}"
        );
        let proxy = proxy.servers(&[format!("https://{address}")]).upstream(&tls).start();
        let body = String::from_utf8(proxy.curl(&proxy.good, &[]).stdout).unwrap();
        assert_eq!(body, format!("{expected}\n"), "{server_groups} {setting}");
        let series = "keygate_upstream_key_exchanges_total";
        let series = format!("{series}{{group=\"{expected}\",service=\"test\"}}");
        proxy.wait_for_metric(&series, 1.0);
    }
}
