//! CAs that may vouch for some names only (`client_auth.cas`): a client with a name of another CA
//! is rejected in every way to connect. Each test shows first that the client is served without
//! bounds.
//!
//! Guards: `vouchers.check` in `crates/core/src/tls/client_verifier/search.rs`, `with_bound_cas` in
//! `src/sources/client_auth.rs`, `files.bound_cas` and `kinds` in
//! `ServiceCredentials::load`.

use std::fs::{copy, read, write};
use std::sync::Arc;

use rcgen::{CertificateParams, DnValue};
use rustls::ClientConfig;
use serde_json::Value;

use super::names::{VERSIONS, dns, email, exchange, in_unit, uri, with};
use crate::support::client::{Client, config_of};
use crate::support::keygate::keygate;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configuration, Configure, Proxy, Running};
use crate::support::{output_text, wait_until};

pub(super) const FOO: &str = "spiffe = [\"foo.example\"]";
pub(super) const BAR: &str = "spiffe = [\"bar.example\"]";
const GET: &str = "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// A kind of rule, which names a client of the CA of bar.example.
pub(crate) struct NamedBy {
    pub(crate) rule: &'static str,
    pub(crate) foo: &'static str,
    pub(crate) bar: &'static str,
    pub(crate) name: &'static str,
    pub(crate) parameters: fn() -> CertificateParams,
}

pub(crate) const KINDS: [NamedBy; 6] = [
    NamedBy {
        rule: "uri = [\"spiffe://bar.example/**\"]",
        foo: "spiffe = [\"foo.example\"]",
        bar: "spiffe = [\"bar.example\"]",
        name: "the URI \"spiffe://bar.example/orders\"",
        parameters: || with(&[uri("spiffe://bar.example/orders")]),
    },
    NamedBy {
        rule: "dns = [\"*.bar.example\"]",
        foo: "dns = [\"**.foo.example\"]",
        bar: "dns = [\"*.bar.example\"]",
        name: "the DNS name \"orders.bar.example\"",
        parameters: || with(&[dns("orders.bar.example")]),
    },
    NamedBy {
        rule: "email = [\"orders@bar.example\"]",
        foo: "email = [\"foo.example\"]",
        bar: "email = [\"bar.example\"]",
        name: "the email address \"orders@bar.example\"",
        parameters: || with(&[email("orders@bar.example")]),
    },
    NamedBy {
        rule: "common_names = [\"client\"]",
        foo: "common_names = [\"other\"]",
        bar: "common_names = [\"client\"]",
        name: "the common name \"client\"",
        parameters: CertificateParams::default,
    },
    NamedBy {
        rule: "organizational_units = [\"Orders\"]",
        foo: "organizational_units = [\"Billing\"]",
        bar: "organizational_units = [\"Orders\"]",
        name: "the organizational unit \"Orders\"",
        parameters: || in_unit(DnValue::Utf8String("Orders".into())),
    },
    // The entry of the other CA lists no DNS name at all.
    NamedBy {
        rule: "dns = [\"orders.bar.example\"]",
        foo: "spiffe = [\"foo.example\"]",
        bar: "dns = [\"**.bar.example\"]",
        name: "the DNS name \"orders.bar.example\"",
        parameters: || with(&[dns("orders.bar.example")]),
    },
];

/// `client_auth` with both CAs and their bounds, `foo.pem` and `bar.pem`.
pub(super) fn bound<C: Configure>(configuration: C, of_foo: &str, of_bar: &str) -> C {
    let cas =
        format!("cas = [{{ file = \"foo.pem\", {of_foo} }}, {{ file = \"bar.pem\", {of_bar} }}]");
    configuration.unset("services.client_auth.trust_anchors").client_auth(&cas)
}

/// A proxy with two CAs in `trust_anchors`: its own, of foo.example, and the CA of bar.example.
pub(super) fn with_two_cas(proxy: Proxy) -> (Pki, Proxy) {
    let bar = Pki::named("Bar CA");
    let pki = &proxy.pki;
    copy(pki.path("ca.pem"), pki.path("foo.pem")).unwrap();
    copy(bar.path("ca.pem"), pki.path("bar.pem")).unwrap();
    let both = [pki.path("foo.pem"), pki.path("bar.pem")].map(|path| read(path).unwrap());
    write(pki.path("both.pem"), both.concat()).unwrap();
    (bar, proxy.client_auth("trust_anchors = \"both.pem\""))
}

pub(super) fn reconfigure(running: &Running, configuration: &Configuration, generation: u64) {
    write(running.pki.path("keygate.toml"), configuration.text()).unwrap();
    running.wait_for_generation(generation);
}

fn is_served(running: &Running, config: &Arc<ClientConfig>, is_resumed: bool) {
    let mut client = Client::with((**config).clone(), running.address());
    gets_a_response(&mut client);
    assert_eq!(client.is_resumed(), is_resumed);
}

fn gets_a_response(client: &mut Client) {
    client.send(GET);
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(client.exactly(6), b"hello\n");
}

fn of_protocol(protocol: &str) -> Proxy {
    let origin = Origin::start();
    let server = origin.address();
    let proxy = Proxy::to(origin).policy("evict_within = \"1s\"");
    let proxy = proxy.global("log = { repeat_after = \"0s\" }");
    match protocol {
        "http" => proxy,
        _ => proxy.service("protocol = \"tcp\"").servers(&[server]),
    }
}

#[test]
fn a_ca_vouches_for_no_name_of_another_ca_whatever_rule_protocol_version_and_connection() {
    for (protocol, kind) in
        ["http", "tcp"].iter().flat_map(|protocol| KINDS.iter().map(move |kind| (protocol, kind)))
    {
        let rules = format!("allow = {{ {} }}", kind.rule);
        let (bar, proxy) = with_two_cas(of_protocol(protocol));
        let running = proxy.client_auth(&rules).start();
        let [own, forged] = [&bar, &running.pki]
            .map(|pki| pki.client_with("client", Kind::P256, (kind.parameters)()));
        let config =
            |party: &Party, version| Arc::new(config_of(&running.pki, &[version], Some(party)));
        let configs = VERSIONS.map(|version| [config(&own, version), config(&forged, version)]);
        // The hole: without bounds, both are served, on full and resumed connections.
        for config in configs.iter().flatten() {
            is_served(&running, config, false);
            is_served(&running, config, true);
        }
        let mut open = configs.clone().map(|configs| {
            configs.map(|config| Client::with((*config).clone(), running.address()))
        });
        open.iter_mut().flatten().for_each(gets_a_response);

        let bounds = bound(running.configuration.clone(), kind.foo, kind.bar);
        reconfigure(&running, &bounds, 2);
        for [own, forged] in &mut open {
            forged.whatever_comes(); // until its end
            gets_a_response(own);
        }
        let told = |line: &Value| {
            let error = line["error"].as_str().unwrap_or_default();
            let is_told = line["result"] == "not_vouched" && error.contains("may not vouch for");
            is_told && error.contains("CN=Test CA") && error.contains(kind.name)
        };
        let evicted = "client certificate is no longer accepted, closing connection";
        running.wait_for("the eviction", |line| line["message"] == evicted && told(line));
        for [own, forged] in &configs {
            let (_, response) = exchange(&running, forged);
            let error = response.unwrap_err().to_string();
            assert!(error.contains("CertificateUnknown"), "{protocol}, {}: {error}", kind.rule);
            is_served(&running, own, false);
            is_served(&running, own, true);
        }
        running.wait_for("the line", |it| it["message"] == "handshake failed" && told(it));
        let series =
            "keygate_handshakes_total{result=\"not_vouched\",resumed=\"false\",service=\"test\"}";
        running.wait_for_metric(series, 2.0);
    }
}

#[test]
fn a_client_that_its_ca_may_not_vouch_for_is_reported_without_an_entry_that_admits_it() {
    let (_bar, proxy) = with_two_cas(Proxy::new());
    let proxy = proxy.client_auth("allow = { uri = [\"spiffe://bar.example/**\"] }");
    let running = bound(proxy, FOO, BAR).start();
    let forged = with(&[uri("spiffe://bar.example/orders")]);
    let forged = running.pki.client_with("forged", Kind::P256, forged);
    running.rejection(&forged);
    wait_until("a row of the report", || running.admin("/report").1.contains("not_vouched"));
    let report: Value = serde_json::from_str(&running.admin("/report").1).unwrap();
    let [client] = &report["clients"].as_array().unwrap()[..] else { panic!("{report}") };
    let found = ["result", "verdict", "action", "subject", "stage"].map(|field| &client[field]);
    assert_eq!(found, ["not_vouched", "unchecked", "reject", "CN=forged", "handshake"]);
    // An entry for the forged name would open the hole.
    let page = running.admin("/").1;
    assert!(page.contains("not_vouched") && !page.contains("spiffe = ["), "{page}");
    assert!(!page.contains("to admit") && !page.contains("<pre>"), "{page}");
    let why = "CN=Test CA may not vouch for the URI \"spiffe://bar.example/orders\"";
    let shown = |text: &str| text.replace("&#34;", "\"").contains(why);
    assert!(client["error"].as_str().is_some_and(shown) && shown(&page), "{client}, {page}");
    assert!(shown(&running.admin("/status.txt").1));
    let address = format!("[admin]\nlisten = {:?}\n", running.admin_address().to_string());
    write(running.pki.path("admin.toml"), address).unwrap();
    let admin = running.pki.path("admin.toml");
    let output = keygate(&["report", "--config", admin.to_str().unwrap()]);
    let text = output_text(&output);
    assert!(text.contains("not_vouched") && !text.contains("spiffe = ["), "{text}");
    assert!(shown(&text), "{text}");
    // The page names the cause of more than ten rejections.
    (0..11).for_each(|_| drop(running.rejection(&forged)));
    let cause =
        "(not_vouched: 12): check client_auth.cas: see \"not_vouched\" in the log, with the CA and";
    running.wait_for_status("the cause", |status| {
        let mut conditions = status["attention"].as_array().unwrap().iter();
        conditions.any(|it| it["problem"].as_str().unwrap().contains(cause))
    });
    assert!(running.admin("/").1.contains("check client_auth.cas: see "));
}

#[test]
fn a_path_that_is_judged_as_a_whole_ends_at_a_ca_that_may_vouch() {
    let (bar, proxy) = with_two_cas(Proxy::new());
    let foo_spki = keygate_core::spki::Fingerprint::of(&proxy.pki.spki()).to_string();
    write(proxy.pki.path("deny.txt"), foo_spki).unwrap();
    // Each CA has a certificate of the other for its key, so that a client has two paths.
    let crossed = proxy.pki.cross_sign(&bar);
    let own = bar.client_with("own", Kind::P256, with(&[uri("spiffe://bar.example/a")]));
    let own = own.present_with(&[&crossed]);
    let proxy = proxy
        .global("lists = [{ name = \"march\", path = \"deny.txt\" }]")
        .policy("judge = \"chain\", allow_compromised_own_key = true");
    let running = bound(proxy, FOO, BAR).start();
    // The path over the listed CA, which may not vouch for the client, is not the verified one.
    running.admits(&own);
}

#[test]
fn validate_names_each_ca_that_may_vouch_for_every_name_with_the_line_and_the_remedy() {
    let (_bar, proxy) = with_two_cas(Proxy::new());
    let validated = |configuration: &Configuration| {
        write(proxy.pki.path("keygate.toml"), configuration.text()).unwrap();
        output_text(&super::revocation::validate(&proxy.pki))
    };
    crate::support::write_filter(&proxy.pki.path("lost.pkbf"), &[]);
    let rules = proxy.configuration.clone().client_auth(
        "allow = { uri = [\"spiffe://bar.example/**\"], email = [\"ops@bar.example\"] }",
    );
    let output = validated(&rules);
    let line = rules.text().lines().position(|line| line.contains("\"both.pem\"")).unwrap() + 1;
    for part in [
        &format!("keygate.toml:{line}: service \"test\": client_auth.trust_anchors"),
        "the CA CN=Test CA and 1 more may vouch for every name",
        "such as the name of the rule uri \"spiffe://bar.example/**\"",
        "cas = [{ file = \"ca-1.pem\", email = [\"bar.example\"], spiffe = [\"bar.example\"] }]",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
    // An authorizer as well.
    let edge = "name = \"edge\"\nlisten = \"unix:ask.sock\"\nprotocol = \"http\"\n\
                certificate_from = \"client-cert\"";
    let checks = "trust_anchors = \"both.pem\", allow = { uri = [\"spiffe://bar.example/a\"] }";
    let text =
        proxy.configuration.clone().set("services.client_auth.trust_anchors", "bar.pem").text();
    let text = format!("{text}\n[[authorizers]]\n{edge}\nclient_auth = {{ {checks} }}\n");
    write(proxy.pki.path("keygate.toml"), &text).unwrap();
    let of_edge = output_text(&super::revocation::validate(&proxy.pki));
    let place = format!(
        "keygate.toml:{}: authorizer \"edge\": client_auth.trust_anchors",
        text.lines().position(|line| line.starts_with("client_auth = ")).unwrap() + 1
    );
    assert!(
        of_edge.contains(&place) && of_edge.contains("spiffe = [\"bar.example\"]"),
        "{of_edge}"
    );
    // A part of the names would reject clients.
    let names: Vec<_> = (0..21).map(|it| format!("a{it}.example")).collect();
    for (count, is_printed) in [(20, true), (21, false)] {
        let many = format!("allow = {{ dns = {:?} }}", &names[..count]);
        let output = validated(&proxy.configuration.clone().client_auth(&many));
        let entry = "move each CA to a file of its own, with the names that it may vouch for";
        assert!(output.contains(entry), "{output}");
        assert_eq!(output.contains("a19.example"), is_printed, "{output}");
        assert_eq!(output.contains("in place of"), is_printed, "{output}");
    }
    // The TOML is what it says.
    let pasted = output.split("cas = [{ ").nth(1).unwrap().split(" }]").next().unwrap();
    let pasted = pasted.replace("ca-1.pem", "bar.pem");
    let half = rules.clone().client_auth(&format!("cas = [{{ {pasted} }}]"));
    let output = validated(&half);
    assert!(output.contains("the CA CN=Test CA may vouch for every name"), "{output}");
    for quiet in [
        bound(rules.clone(), FOO, BAR),
        rules.clone().client_auth("trust_anchors = \"bar.pem\""),
        proxy.configuration.clone(),
    ] {
        let output = validated(&quiet);
        assert!(!output.contains("may vouch for every name"), "{output}");
    }
}
