//! Clients with ML-DSA keys: services for TCP, authorizers, eviction, and OpenSSL as the client.
//! `matrix` has the other ways to connect.
//!
//! Guards: `key_length` in `crates/core/src/spki/related/ml_dsa.rs`, `ParsedKey::MlDsa` in
//! `crates/core/src/spki/related.rs`.

use std::fs::write;
use std::process::{Command, Output};

use keygate_core::spki::Fingerprint;

use crate::support::asker::{AskedKeygate, UNIX};
use crate::support::client::Client;
use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki, der, elements};
use crate::support::program::python_with;
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, write_filter, write_revision};

const KINDS: [Kind; 3] = [Kind::MlDsa44, Kind::MlDsa65, Kind::MlDsa87];
const GET: &str = "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Runs OpenSSL 4 as a client that sends one request, with `settings` of SSL_CONF_cmd(3). `None`
/// without pyOpenSSL.
pub(crate) fn openssl_client(
    keygate: &Keygate,
    pki: &Pki,
    client: &Party,
    settings: &str,
) -> Option<Output> {
    let python = python_with("OpenSSL, cryptography.hazmat.primitives.asymmetric.mldsa")?;
    let file = pki.path("openssl.cnf");
    let sections = "openssl_conf = a\n[a]\nssl_conf = b\n[b]\nsystem_default = c\n[c]\n";
    write(&file, format!("{sections}{settings}\n")).unwrap();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/openssl_client.py");
    let mut command = Command::new(python);
    command.arg(program).arg(keygate.address().to_string()).arg(pki.path("ca.pem"));
    command.args([&client.certificate, &client.private_key]).env("OPENSSL_CONF", file);
    Some(command.output().unwrap())
}

#[test]
fn an_openssl_client_is_judged_by_its_ml_dsa_key() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let clients = KINDS.map(|kind| ["good", "lost"].map(|name| pki.client(name, kind)));
    let lost: Vec<_> = clients.iter().map(|[_, lost]| &lost.spki[..]).collect();
    write_filter(&pki.path("lost.pkbf"), &lost);
    let keygate = Configuration::new(origin.address()).start(&pki);
    for [good, lost] in &clients {
        let Some(admitted) = openssl_client(&keygate, &pki, good, "") else { return };
        assert!(output_text(&admitted).contains("hello"), "{}", output_text(&admitted));
        let rejected = openssl_client(&keygate, &pki, lost, "").unwrap();
        assert!(output_text(&rejected).contains("access denied"), "{}", output_text(&rejected));
    }
    let probable =
        "keygate_key_checks_total{service=\"test\",stage=\"handshake\",verdict=\"probable\"}";
    keygate.wait_for_metric(probable, 3.0);
}

#[test]
fn an_open_connection_whose_ml_dsa_key_becomes_a_hit_is_evicted() {
    for (protocol, scheme) in [("http", "http://"), ("tcp", "")] {
        let (pki, origin) = (Pki::new(), Origin::start());
        let [good, turned, lost] =
            ["good", "turned", "lost"].map(|name| pki.client(name, Kind::MlDsa65));
        write_filter(&pki.path("lost.pkbf"), &[&lost.spki]);
        let server = format!("{scheme}{}", origin.address());
        let configuration = Configuration::new(origin.address()).servers(&[server]);
        let keygate = configuration.service(&format!("protocol = \"{protocol}\"")).start(&pki);
        let mut clients = [&good, &turned].map(|it| Client::connect(&pki, keygate.address(), it));
        for client in &mut clients {
            client.send(GET);
            assert!(client.head().starts_with("HTTP/1.1 200 "), "{protocol}");
        }
        let mut rejected = Client::connect(&pki, keygate.address(), &lost);
        let _ = rejected.try_send(GET);
        let error = rejected.read_to_end().unwrap_err().to_string();
        assert!(error.contains("AccessDenied"), "{protocol}: {error}");
        write_revision(&pki.path("lost.pkbf"), &[&lost.spki, &turned.spki], 2);
        let evicted = keygate.wait_for("the eviction", |line| {
            line["message"] == "client key rejected, closing connection"
        });
        assert_eq!(evicted["subject"], "CN=turned", "{protocol}");
        let [good, _] = &mut clients;
        assert_eq!(good.exactly(6), b"hello\n", "{protocol}: not evicted");
        good.send(GET);
        assert!(good.head().starts_with("HTTP/1.1 200 "), "{protocol}");
    }
}

#[test]
fn an_authorizer_judges_ml_dsa_keys_and_leaves_those_with_parameters_unchecked() {
    let pki = Pki::new();
    for kind in KINDS {
        let client = pki.client("client", kind);
        let [algorithm, key] = elements(&client.spki).try_into().unwrap();
        let algorithm = der(0x30, &[&algorithm[2..], &[0x05, 0x00]].concat());
        let with_null = der(0x30, &[algorithm, key].concat());
        let with_null = pki.client_with_spki("null", &with_null, &client.key);
        let scene = AskedKeygate::start(UNIX);
        let status = |party: &Party| {
            let reply = scene.connect().ask_about(party);
            assert_eq!(reply.body.contains("parameters"), party.name == "null", "{}", reply.body);
            (reply.status, reply.field("client-key-status").map(str::to_owned))
        };
        assert_eq!(status(&client).0, 200, "{kind:?}");
        assert_eq!(status(&with_null), (403, Some("unchecked".to_owned())), "{kind:?}");
        write_revision(&scene.pki.path("lost.pkbf"), &[&client.spki], 2);
        scene.keygate.wait_for_generation(2);
        assert_eq!(status(&client), (403, Some("probable".to_owned())), "{kind:?}");
    }
}

#[test]
fn an_exception_and_a_list_name_an_ml_dsa_key_by_its_fingerprint() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let [excepted, listed] = ["excepted", "listed"].map(|name| pki.client(name, Kind::MlDsa87));
    write_filter(&pki.path("lost.pkbf"), &[&excepted.spki]);
    write(pki.path("deny.txt"), Fingerprint::of(&listed.spki).to_string()).unwrap();
    let text = format!(
        "lists = [{{ name = \"march\", path = \"deny.txt\" }}]\nexceptions = [{{ fingerprint = \"{}\", until = 2999-12-31, reason = \"ordered\" }}]",
        Fingerprint::of(&excepted.spki)
    );
    let keygate = Configuration::new(origin.address()).global(&text).start(&pki);
    let mut client = Client::connect(&pki, keygate.address(), &excepted);
    client.send(GET);
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    let mut client = Client::connect(&pki, keygate.address(), &listed);
    let _ = client.try_send(GET);
    assert!(client.read_to_end().unwrap_err().to_string().contains("AccessDenied"));
}
