//! The group of the key exchange: its selection, and what metrics, logs, status and report show of
//! it and of the algorithm of the client's key.
//!
//! Guards: `for_groups` in `crates/core/src/tls/server_config.rs`, `count_key_use` in
//! `src/metrics/worker.rs`, `record` in `src/key_uses.rs`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::{default_provider, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};
use serde_json::json;

use super::ml_dsa::openssl_client;
use crate::support::client::Presents;
use crate::support::keygate::{Keygate, keygate};
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configure, Proxy};
use crate::support::{TIMEOUT, output_text};

const HYBRID: &dyn SupportedKxGroup = kx_group::X25519MLKEM768;
const X25519: &dyn SupportedKxGroup = kx_group::X25519;
const P256: &dyn SupportedKxGroup = kx_group::SECP256R1;

/// A client that offers these groups, the first one with a key share.
fn config(
    pki: &Pki,
    party: &Party,
    groups: &[&'static dyn SupportedKxGroup],
    is_tls12: bool,
) -> Arc<ClientConfig> {
    let mut anchors = RootCertStore::empty();
    anchors.add(pki.ca().clone()).unwrap();
    let provider = CryptoProvider { kx_groups: groups.to_vec(), ..default_provider() };
    let version = if is_tls12 { &rustls::version::TLS12 } else { &rustls::version::TLS13 };
    let builder = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(anchors);
    Arc::new(builder.with_client_cert_resolver(Presents::new(party, party)))
}

/// The group and the kind of a handshake with one request, or the error.
fn connect(
    keygate: &Keygate,
    config: &Arc<ClientConfig>,
) -> Result<(Option<String>, HandshakeKind), String> {
    let name = "localhost".try_into().unwrap();
    let connection = ClientConnection::new(Arc::clone(config), name).unwrap();
    let tcp = TcpStream::connect(keygate.address()).unwrap();
    tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut tls = StreamOwned::new(connection, tcp);
    let request = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let mut response = String::new();
    let sent = tls.write_all(request).and_then(|()| tls.read_to_string(&mut response));
    sent.map_err(|error| error.to_string())?;
    assert!(response.ends_with("hello\n"), "{response}");
    let group = tls.conn.negotiated_key_exchange_group().map(|it| format!("{:?}", it.name()));
    Ok((group, tls.conn.handshake_kind().unwrap()))
}

#[test]
fn the_service_takes_its_first_group_that_the_client_offers() {
    let both = r#"["X25519MLKEM768", "x25519", "secp256r1"]"#;
    for (setting, cases) in [
        (
            "[]",
            &[(&[X25519, HYBRID][..], Some("X25519")), (&[HYBRID, X25519], Some("X25519MLKEM768"))]
                [..],
        ),
        (
            both,
            &[
                (&[X25519, HYBRID], Some("X25519MLKEM768")),
                (&[P256, X25519], Some("X25519")),
                (&[kx_group::SECP384R1], None),
            ],
        ),
        (r#"["X25519MLKEM768"]"#, &[(&[HYBRID], Some("X25519MLKEM768")), (&[X25519, P256], None)]),
        (r#"["secp256r1"]"#, &[(&[HYBRID, P256], Some("secp256r1"))]),
    ] {
        let proxy = Proxy::new().add("services.tls", &format!("key_exchange = {setting}"));
        let proxy = proxy.start();
        for (offered, expected) in cases {
            let config = config(&proxy.pki, &proxy.good, offered, false);
            match (connect(&proxy, &config), expected) {
                (Ok((group, _)), Some(expected)) => {
                    assert_eq!(group.as_deref(), Some(*expected), "{setting} {offered:?}");
                    let (_, kind) = connect(&proxy, &config).unwrap();
                    assert_eq!(kind, HandshakeKind::Resumed, "{setting} {offered:?}");
                }
                (Err(error), None) => assert!(error.contains("HandshakeFailure"), "{error}"),
                (found, expected) => panic!("{setting} {offered:?}: {found:?}, not {expected:?}"),
            }
        }
    }
}

#[test]
fn a_tls12_client_gets_a_classical_group_or_an_alert() {
    for (setting, is_served) in
        [(r#"["X25519MLKEM768", "x25519"]"#, true), (r#"["X25519MLKEM768"]"#, false)]
    {
        let proxy = Proxy::new().add("services.tls", &format!("key_exchange = {setting}"));
        let proxy = proxy.start();
        let found = connect(&proxy, &config(&proxy.pki, &proxy.good, &[X25519, P256], true));
        assert_eq!(found.is_ok(), is_served, "{setting}: {found:?}");
        if let Err(error) = found {
            assert!(error.contains("HandshakeFailure"), "{error}");
        }
    }
}

#[test]
fn an_openssl_client_exchanges_keys_by_the_hybrid_group() {
    let proxy = Proxy::new().start();
    for (groups, expected) in
        [("X25519MLKEM768:X25519", "X25519MLKEM768"), ("X25519", "x25519"), ("P-384", "secp384r1")]
    {
        let settings = format!("Groups = {groups}");
        let Some(output) = openssl_client(&proxy, &proxy.pki, &proxy.good, &settings) else {
            return;
        };
        let output = output_text(&output);
        assert!(output.contains(&format!("\n{expected}\n")), "{groups}: {output}");
        let series =
            format!("keygate_key_exchanges_total{{group=\"{expected}\",service=\"test\"}}");
        proxy.wait_for_metric(&series, 1.0);
    }
}

#[test]
fn metrics_status_page_log_and_report_show_group_and_algorithm() {
    let proxy = Proxy::new().global("access_log = { requests = \"all\" }").start();
    let modern = proxy.pki.client("modern", Kind::MlDsa44);
    for (client, groups) in
        [(&proxy.good, &[X25519][..]), (&modern, &[HYBRID]), (&modern, &[HYBRID])]
    {
        connect(&proxy, &config(&proxy.pki, client, groups, false)).unwrap();
    }
    for (series, value) in [
        ("key_exchanges_total{group=\"X25519MLKEM768\",service=\"test\"}", 2.0),
        ("key_exchanges_total{group=\"x25519\",service=\"test\"}", 1.0),
        ("client_key_algorithms_total{algorithm=\"ml-dsa-44\",service=\"test\"}", 2.0),
        ("client_key_algorithms_total{algorithm=\"p256\",service=\"test\"}", 1.0),
    ] {
        proxy.wait_for_metric(&format!("keygate_{series}"), value);
    }
    let traffic = &proxy.status()["traffic"]["test"];
    assert_eq!(traffic["key_exchanges"], json!({ "X25519MLKEM768": 2.0, "x25519": 1.0 }));
    assert_eq!(traffic["client_keys"], json!({ "ml-dsa-44": 1.0, "p256": 1.0 }), "clients");
    for path in ["/", "/status.txt"] {
        let (_, page) = proxy.admin(path);
        assert!(page.contains("X25519MLKEM768: 2, x25519: 1"), "{page}");
        assert!(page.contains("ml-dsa-44: 1, p256: 1"), "{page}");
    }
    let lines = proxy.access_lines(3);
    let uses = lines.iter().map(|line| [&line["key_exchange"], &line["key_algorithm"]]);
    let modern_use = ["X25519MLKEM768", "ml-dsa-44"];
    assert_eq!(Vec::from_iter(uses), [["x25519", "p256"], modern_use, modern_use]);
    let file = proxy.pki.path("admin.toml");
    let admin = format!("listen = \"{}\"", proxy.admin_address());
    std::fs::write(&file, proxy.configuration.clone().add("admin", &admin).text()).unwrap();
    let report = keygate(&["report", "--classical", "--config", file.to_str().unwrap()]);
    let report = output_text(&report);
    assert!(report.contains("CN=good"), "{report}");
    assert!(report.contains("key p256, key exchange x25519"), "{report}");
    assert!(!report.contains("CN=modern"), "{report}");
    assert!(
        report.contains(
            "2 clients, counted once for each service: 1 with a hybrid key exchange, 1 with"
        ),
        "{report}"
    );
}
