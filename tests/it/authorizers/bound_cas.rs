//! CAs that may vouch for some names only, with keygate as the authorizer of other proxies, and
//! Envoy's SPIFFE validator as the oracle.
//!
//! Guard: `vouchers.check` in `crates/core/src/tls/client_verifier/search.rs`.

use std::fs::{copy, read, write};

use rcgen::{CertificateParams, KeyUsagePurpose, SanType};
use rustls::ClientConfig;
use rustls::version::{TLS12, TLS13};

use super::envoy_network;
use crate::admission::bound_cas::KINDS;
use crate::support::asker::{AskedKeygate, UNIX, configuration};
use crate::support::authorizer::{Authorizer, RunningAuthorizer};
use crate::support::client::{Client, config_of};
use crate::support::envoy::Envoy;
use crate::support::haproxy::HaproxyFiles;
use crate::support::http_host::HttpHost;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configure, Proxy};

const GET: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
const RULES: &str = "allow = { uri = [\"spiffe://bar.example/**\"] }";
const CAS: &str = "cas = [{ file = \"foo.pem\", spiffe = [\"foo.example\"] }, { file = \"bar.pem\", spiffe = [\"bar.example\"] }]";

fn uri(id: &str) -> SanType {
    SanType::URI(id.try_into().unwrap())
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

fn party(pki: &Pki, name: &str, names: &[SanType]) -> Party {
    let mut parameters = CertificateParams::default();
    parameters.subject_alt_names = names.to_vec();
    if name != "no-usage" {
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    }
    pki.client_with(name, Kind::P256, parameters)
}

/// The files of two CAs in the directory of `pki`, whose `ca.pem` has both.
fn with_two_cas(pki: &Pki) -> Pki {
    let bar = Pki::named("Bar CA");
    copy(pki.path("ca.pem"), pki.path("foo.pem")).unwrap();
    copy(bar.path("ca.pem"), pki.path("bar.pem")).unwrap();
    let both = [pki.path("foo.pem"), pki.path("bar.pem")].map(|path| read(path).unwrap());
    write(pki.path("ca.pem"), both.concat()).unwrap();
    bar
}

/// An authorizer with two CAs, the client of bar.example and the client that foo.example forged.
fn authorizer(authorizer: Authorizer, is_bound: bool) -> (Authorizer, [Party; 2]) {
    let bar = with_two_cas(&authorizer.pki);
    let names = [uri("spiffe://bar.example/orders")];
    let clients = [party(&bar, "own", &names), party(&authorizer.pki, "forged", &names)];
    let authorizer = authorizer.add("authorizers.client_auth", RULES);
    let authorizer = match is_bound {
        true => authorizer
            .unset("authorizers.client_auth.trust_anchors")
            .add("authorizers.client_auth", CAS),
        false => authorizer.set("authorizers.client_auth.trust_anchors", "ca.pem"),
    };
    (authorizer, clients)
}

/// Asks the host with each TLS version on a full and a resumed connection.
fn expect(
    running: &RunningAuthorizer,
    clients: &[Party; 2],
    is_bound: bool,
    get: impl Fn(&ClientConfig) -> String,
) {
    let [own, forged] = clients;
    for version in [&TLS12, &TLS13] {
        for (client, status) in [(own, "200"), (forged, if is_bound { "403" } else { "200" })] {
            let config = config_of(&running.pki, &[version], Some(client));
            for _ in 0..2 {
                assert_eq!(get(&config), status, "{version:?}, {}", client.name);
            }
        }
    }
    let not_vouched = "keygate_questions_total{result=\"not_vouched\",service=\"edge\"}";
    let count = running.metric(not_vouched);
    assert_eq!(count > 0.0, is_bound, "{count}");
}

#[test]
fn nginx_rejects_a_client_with_a_name_of_another_ca() {
    for is_bound in [false, true] {
        let (authorizer, clients) = authorizer(HttpHost::Nginx.authorizer(), is_bound);
        let Some(scene) = HttpHost::Nginx.start_with(authorizer, |text| text) else { return };
        expect(&scene, &clients, is_bound, |config| scene.get(config));
        if is_bound {
            let report = scene.admin("/report").1;
            assert!(report.contains("\"result\":\"not_vouched\""), "{report}");
            let line = scene.wait_for("the line", |line| line["result"] == "not_vouched");
            assert_eq!(line["uris"], "spiffe://bar.example/orders");
        }
    }
}

#[test]
fn envoy_rejects_a_client_with_a_name_of_another_ca() {
    for is_bound in [false, true] {
        let (authorizer, clients) = authorizer(Authorizer::of("envoy"), is_bound);
        let running = authorizer.start();
        let (directory, origin) = (running.pki.directory(), running.origin.address());
        let Some(envoy) = Envoy::start("envoy", directory, origin, |text| text) else { return };
        expect(&running, &clients, is_bound, |config| envoy.get(config));
    }
}

#[test]
fn envoys_network_filter_rejects_a_client_with_a_name_of_another_ca() {
    for is_bound in [false, true] {
        let (authorizer, clients) = authorizer(envoy_network::authorizer(), is_bound);
        let running = authorizer.start();
        let Some(envoy) = running.network_envoy(|text| text) else { return };
        expect(&running, &clients, is_bound, |config| {
            let mut client = Client::with(config.clone(), envoy.address);
            let _ = client.try_send(GET); // the connection may be closed
            match client.read_to_end() {
                Ok(response) => response.get(9..12).unwrap_or_default().to_owned(),
                Err(error) => {
                    assert!(error.to_string().contains("AccessDenied"), "{error}");
                    "403".to_owned()
                }
            }
        });
    }
}

/// As a host of HTTP, and as one of TCP, which closes the connection instead.
#[test]
fn haproxy_rejects_a_client_with_a_name_of_another_ca() {
    for (host, is_bound) in
        [("haproxy", false), ("haproxy", true), ("haproxy-tcp", false), ("haproxy-tcp", true)]
    {
        let (authorizer, clients) = authorizer(Authorizer::of(host), is_bound);
        let running = authorizer.start();
        let files = HaproxyFiles::of(host, &running.pki, running.origin.address());
        let Some(haproxy) = files.map(|files| files.start(&running.pki)) else { return };
        expect(&running, &clients, is_bound, |config| {
            let mut client = Client::with(config.clone(), haproxy.address);
            let _ = client.try_send(GET); // the connection may be closed
            match client.head_or_end() {
                Some(head) => head.get(9..12).unwrap_or_default().to_owned(),
                None if host == "haproxy-tcp" => "403".to_owned(),
                None => String::new(),
            }
        });
    }
}

/// With rules of each kind, and with bounds that are added while the host is connected.
#[test]
fn bounds_hold_for_the_next_question_of_a_connected_host_and_the_log_has_ca_and_name() {
    for kind in KINDS {
        let pki = Pki::new();
        let bar = with_two_cas(&pki);
        let [own, forged, second] = [(&bar, "own"), (&pki, "forged"), (&pki, "second")]
            .map(|(pki, _)| pki.client_with("client", Kind::P256, (kind.parameters)()));
        let rules = format!("allow = {{ {} }}", kind.rule);
        // An hour between two lines about one client.
        let text = |cas: &str| {
            configuration(&format!("{UNIX}client_auth = {{ {cas}, {rules} }}\n"))
                .replace("repeat_after = \"0s\"", "repeat_after = \"1h\"")
        };
        let scene = AskedKeygate::configured(pki, &text("trust_anchors = \"ca.pem\""));
        let mut host = scene.connect();
        // The hole: without bounds, both are allowed.
        for client in [&own, &forged] {
            assert_eq!(host.ask_about(client).status, 200, "{}", kind.rule);
        }
        let cas = format!(
            "cas = [{{ file = \"foo.pem\", {} }}, {{ file = \"bar.pem\", {} }}]",
            kind.foo, kind.bar
        );
        write(scene.pki.path("keygate.toml"), text(&cas)).unwrap();
        scene.keygate.wait_for_generation(2);
        for _ in 0..2 {
            assert_eq!(host.ask_about(&own).status, 200, "{}", kind.rule);
            for client in [&forged, &second] {
                let denied = host.ask_about(client);
                assert_eq!(denied.status, 403, "{}", kind.rule);
                assert!(!denied.body.contains("CN=Test CA"), "{}", denied.body);
            }
        }
        assert_eq!(scene.questions("not_vouched"), 4.0);
        for client in [&forged, &second] {
            let line = scene.keygate.wait_for("the line", |line| {
                line["result"] == "not_vouched" && line["fingerprint"] == *fingerprint(client)
            });
            let error = format!("CN=Test CA may not vouch for {}", kind.name);
            assert_eq!(line["error"], *error, "{line}");
        }
    }
}

fn fingerprint(client: &Party) -> String {
    keygate_core::spki::Fingerprint::of(&client.spki).to_string()
}

/// Envoy's SPIFFE validator in place of its file with both CAs.
fn with_spiffe_validator(text: String, directory: &str) -> String {
    let cas = format!("trusted_ca: {{ filename: {directory}/ca.pem }}");
    assert!(text.contains(&cas), "{text}");
    let domain = |name: &str| {
        let file = format!("{directory}/{name}.pem");
        format!("{{ name: {name}.example, trust_bundle: {{ filename: {file} }} }}")
    };
    let kind =
        "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.SPIFFECertValidatorConfig";
    let config =
        format!("\"@type\": {kind}, trust_domains: [{}, {}]", domain("foo"), domain("bar"));
    let validator = "custom_validator_config: { name: envoy.tls.cert_validator.spiffe";
    text.replace(&cas, &format!("{validator}, typed_config: {{ {config} }} }}"))
}

/// Envoy selects the CAs by the first URI, which it compares byte for byte. keygate reads the whole
/// ID, in lower case, and every name. `docs/policy.md` has the reasons for each difference.
#[test]
fn envoys_spiffe_validator_accepts_the_same_clients_with_the_documented_differences() {
    let running = Authorizer::of("envoy").start();
    let bar = with_two_cas(&running.pki);
    let (directory, origin) = (running.pki.directory(), running.origin.address());
    let change = |text| with_spiffe_validator(text, directory.to_str().unwrap());
    let Some(envoy) = Envoy::start("envoy", directory, origin, change) else { return };
    let pki = &running.pki;
    let proxy = Proxy::to(Origin::start());
    for file in ["foo.pem", "bar.pem"] {
        copy(pki.path(file), proxy.pki.path(file)).unwrap();
    }
    let proxy = proxy.unset("services.client_auth.trust_anchors").client_auth(CAS).start();
    let crossed = pki.cross_sign(&bar);
    for (name, issuer, names, by_envoy, by_keygate) in [
        ("own", &bar, vec![uri("spiffe://bar.example/a")], true, true),
        ("forged", pki, vec![uri("spiffe://bar.example/a")], false, false),
        ("unknown", &bar, vec![uri("spiffe://new.example/a")], false, false),
        ("subdomain", &bar, vec![uri("spiffe://a.bar.example/a")], false, false),
        ("upper", &bar, vec![uri("spiffe://BAR.example/a")], false, true),
        ("scheme", &bar, vec![uri("SPIFFE://bar.example/a")], false, true),
        ("port", &bar, vec![uri("spiffe://bar.example:443/a")], false, false),
        ("no-usage", &bar, vec![uri("spiffe://bar.example/a")], false, true),
        ("no-id", &bar, vec![dns("a.bar.example")], false, true),
        ("https", &bar, vec![uri("https://bar.example/a")], false, true),
        (
            "two",
            &bar,
            vec![uri("spiffe://bar.example/a"), uri("spiffe://foo.example/a")],
            true,
            false,
        ),
        ("dots", &bar, vec![uri("spiffe://bar.example/../a")], true, false),
        ("crossed", &bar, vec![uri("spiffe://foo.example/a")], true, false),
    ] {
        let client = party(issuer, name, &names);
        let client = if name == "crossed" { client.present_with(&[&crossed]) } else { client };
        let mut connection = Client::with_chain(pki, envoy.address, &client);
        let _ = connection.try_send(GET); // the handshake may have failed
        let response = connection.whatever_comes();
        assert_eq!(response.starts_with("HTTP/1.1 "), by_envoy, "Envoy, {name}: {response}");
        let output = proxy.curl(&client, &[]);
        assert_eq!(output.stdout == b"hello\n", by_keygate, "keygate, {name}");
    }
}
