//! The policy of a service: how it rejects, whether it requires a certificate, and how much of the
//! chain it judges.
//!
//! Guards: `rejection(` in `src/proxy/http/response.rs` (403), `Depth::Chain` in `crates/core/src/tls/verifier.rs` and
//! `Depth::Chain` in `crates/core/src/guard/judgement.rs` (intermediates), `check_own_keys` in
//! `src/snapshot/loader/own_key_check.rs` (keys of the proxy, judged without exceptions).

use std::process::Output;

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::keygate::keygate;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configuration, Configure, Proxy, Running};
use crate::support::{output_text, system, write_filter};

fn scene(extra: &str) -> Running {
    Proxy::new().service(extra).start()
}

impl Running {
    /// curl without a client certificate.
    fn anonymous(&self) -> Output {
        let ca = self.pki.path("ca.pem");
        let url = format!("https://{}/", self.keygate.address());
        system("curl", &["--silent", "--show-error", "--cacert", ca.to_str().unwrap(), &url])
    }
}

#[test]
fn a_403_gives_the_reason_and_the_origin_gets_no_request() {
    let scene = scene("policy = { reject_with = \"http-403\" }");
    for version in ["--http1.1", "--http2"] {
        let response = scene.keygate.curl(&scene.lost, &[version, "--include", "--tlsv1.3"]);
        let text = String::from_utf8_lossy(&response.stdout).to_lowercase();
        let (head, body) =
            text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{}", output_text(&response)));
        assert!(head.contains(" 403"), "{head}");
        assert_eq!(head.contains("connection: close"), version == "--http1.1", "{head}");
        assert!(body.contains("probably compromised"), "{body}");
    }
    let arguments = ["-H", "Accept: application/json", "-d", "a body", "-w", "%{http_code}"];
    let response = scene.keygate.curl(&scene.lost, &arguments);
    let text = String::from_utf8_lossy(&response.stdout);
    let body = text.strip_suffix("403").unwrap_or_else(|| panic!("{}", output_text(&response)));
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["status"], 403);
    assert!(body["error"].as_str().unwrap().contains("probably compromised"));

    assert_eq!(scene.keygate.curl(&scene.good, &[]).stdout, b"hello\n");
    assert_eq!(scene.origin.untaken(), 1, "the good client's request, no other");
    let line = scene.keygate.wait_for("a line", |line| line["message"] == "client key rejected");
    assert_eq!((&line["subject"], &line["action"]), (&json!("CN=lost"), &json!("reject")));
    for (series, value) in [
        (r#"keygate_handshakes_total{result="ok",resumed="false",service="test"}"#, 4.0),
        (r#"keygate_connections_total{result="refused",service="test"}"#, 3.0),
        (r#"keygate_connections_total{result="served",service="test"}"#, 1.0),
        (r#"keygate_key_actions_total{action="reject",service="test"}"#, 3.0),
        (r#"keygate_requests_total{code="4xx",service="test"}"#, 3.0),
    ] {
        assert_eq!(scene.keygate.metric(series), value, "{series}");
    }
}

#[test]
fn a_client_without_a_certificate_is_unchecked_where_one_is_optional() {
    let optional = Proxy::new().client_auth("mode = \"optional\"");
    // A certificate cannot be optional while clients without one are rejected.
    write_filter(&optional.pki.path("lost.pkbf"), &[&optional.lost.spki]);
    let config = optional.pki.path("keygate.toml");
    std::fs::write(&config, optional.configuration.text()).unwrap();
    let output = keygate(&["validate", "--config", config.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
    assert!(
        output_text(&output).contains("services.test.client_auth.mode: "),
        "{}",
        output_text(&output)
    );

    let scene = optional.policy("on_unchecked = \"header\"").start();
    assert_eq!(scene.anonymous().stdout, b"hello\n");
    let request = scene.origin.next();
    assert_eq!(request.fields("client-key-status"), ["unchecked"]);
    assert!(request.fields("client-cert").is_empty());
    assert_eq!(scene.keygate.curl(&scene.good, &[]).stdout, b"hello\n");
    assert_eq!(scene.origin.next().fields("client-key-status"), ["clean"]);
    let refused = scene.keygate.curl(&scene.lost, &[]);
    assert!(output_text(&refused).contains("access denied"), "{}", output_text(&refused));
    // A client with an untrusted certificate does not count as one without a certificate.
    let theirs = Pki::named("Another CA");
    let stranger = theirs.client("stranger", Kind::P256);
    let response = scene.keygate.curl(&stranger, &[]);
    assert!(output_text(&response).contains("unknown ca"), "{}", output_text(&response));
    let checks =
        r#"keygate_key_checks_total{service="test",stage="handshake",verdict="unchecked"}"#;
    assert_eq!(scene.keygate.metric(checks), 1.0);
}

#[test]
fn a_key_in_any_of_several_filters_is_rejected_and_each_filter_reloads_separately() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let [good, lost, stolen] = ["good", "lost", "stolen"].map(|name| pki.client(name, Kind::P256));
    write_filter(&pki.path("lost.pkbf"), &[&lost.spki]);
    write_filter(&pki.path("stolen.pkbf"), &[&stolen.spki]);
    let second = "[[filters]]\nname = \"stolen\"\npath = \"stolen.pkbf\"\n";
    let text =
        Configuration::new(origin.address()).global(second).policy("on_probable = \"header\"");
    let keygate = text.start(&pki);
    let forwarded = |client: &Party| {
        let response = keygate.curl(client, &[]);
        assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
        origin.next().fields("client-key-status").concat()
    };
    assert_eq!(forwarded(&good), "clean");
    assert_eq!(forwarded(&lost), "probable;filter=\"lost\";revision=1");
    assert_eq!(forwarded(&stolen), "probable;filter=\"stolen\";revision=1");
    crate::support::write_revision(&pki.path("stolen.pkbf"), &[&good.spki], 2);
    keygate.wait_for_generation(2);
    assert_eq!(forwarded(&good), "probable;filter=\"stolen\";revision=2");
    assert_eq!(forwarded(&lost), "probable;filter=\"lost\";revision=1");
    assert_eq!(forwarded(&stolen), "clean");
}

#[test]
fn an_intermediate_with_a_compromised_key_counts_if_the_chain_is_judged() {
    for (judge, is_refused) in [("leaf", false), ("chain", true)] {
        let (pki, origin) = (Pki::new(), Origin::start());
        let good = pki.client("good", Kind::P256);
        let (client, intermediate) = pki.client_of_intermediate("client");
        write_filter(&pki.path("lost.pkbf"), &[&intermediate]);
        let keygate = Configuration::new(origin.address())
            .service(&format!("policy = {{ judge = \"{judge}\" }}"))
            .start(&pki);
        let response = keygate.curl(&client, &[]);
        if is_refused {
            assert!(output_text(&response).contains("access denied"), "{}", output_text(&response));
            assert_eq!(origin.untaken(), 0);
            let line =
                keygate.wait_for("its line", |line| line["message"] == "client key rejected");
            assert_eq!(line["subject"], "CN=client");
            let found = ::keygate_core::spki::Fingerprint::of(&intermediate).to_string();
            assert_eq!(line["found_fingerprint"], found);
            assert_eq!(line["found_subject"], "CN=issuer of client");
            let admin = format!("admin = {{ listen = \"{}\" }}", keygate.admin_address());
            std::fs::write(pki.path("admin.toml"), admin).unwrap();
            let config = pki.path("admin.toml");
            let report = crate::support::keygate::keygate(&["report", config.to_str().unwrap()]);
            let shown = format!("found key {found}  CN=issuer of client, an issuer of the client");
            assert!(output_text(&report).contains(&shown), "{}", output_text(&report));
            let page = keygate.admin("/").1;
            assert!(page.contains(&format!("the key of CN=issuer of client, <code>{found}")));
        } else {
            assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
        }
        assert_eq!(keygate.curl(&good, &[]).stdout, b"hello\n");
    }
}

#[test]
fn an_intermediate_is_judged_after_the_handshake_too() {
    // With `http-403`, the verifier rejects no client; the judgement after the handshake does.
    let (pki, origin) = (Pki::new(), Origin::start());
    let (client, intermediate) = pki.client_of_intermediate("client");
    write_filter(&pki.path("lost.pkbf"), &[&intermediate]);
    let policy = "policy = { judge = \"chain\", reject_with = \"http-403\" }";
    let keygate = Configuration::new(origin.address()).service(policy).start(&pki);
    let response = keygate.curl(&client, &["-w", "%{http_code}"]);
    assert!(response.stdout.ends_with(b"403"), "{}", output_text(&response));
    assert_eq!(origin.untaken(), 0);
}

/// The intermediate's verdict (`listed`) is more severe than the leaf's (`probable`), and its
/// action is less strict.
const LESS_STRICT_FOR_MORE_SEVERE: &str =
    "judge = \"chain\", on_probable = \"reject\", on_listed = \"flag\"";

#[test]
fn a_listed_intermediate_does_not_save_a_rejected_leaf_in_a_new_connection() {
    for (reject_with, seen) in [("alert", "access denied"), ("http-403", "403")] {
        let (pki, origin) = (Pki::new(), Origin::start());
        let (client, intermediate) = pki.client_of_intermediate("client");
        let (other, _) = pki.client_of_intermediate("other");
        write_filter(&pki.path("lost.pkbf"), &[&client.spki]);
        let listed = ::keygate_core::spki::Fingerprint::of(&intermediate).to_string();
        std::fs::write(pki.path("deny.txt"), listed).unwrap();
        let keygate = Configuration::new(origin.address())
            .global("lists = [{ name = \"deny\", path = \"deny.txt\" }]")
            .policy(LESS_STRICT_FOR_MORE_SEVERE)
            .policy(&format!("reject_with = \"{reject_with}\""))
            .start(&pki);
        for http in ["--http1.1", "--http2"] {
            let response = keygate.curl(&client, &[http, "-w", "%{http_code}"]);
            assert!(output_text(&response).contains(seen), "{}", output_text(&response));
        }
        assert_eq!(origin.untaken(), 0);
        assert_eq!(keygate.curl(&other, &[]).stdout, b"hello\n");
    }
}

#[test]
fn a_listed_intermediate_does_not_save_a_rejected_leaf_on_an_open_connection() {
    for reject_with in ["alert", "http-403"] {
        let (pki, origin) = (Pki::new(), Origin::start());
        let (client, intermediate) = pki.client_of_intermediate("client");
        write_filter(&pki.path("lost.pkbf"), &[]);
        let listed = ::keygate_core::spki::Fingerprint::of(&intermediate).to_string();
        std::fs::write(pki.path("deny.txt"), listed).unwrap();
        let keygate = Configuration::new(origin.address())
            .global("lists = [{ name = \"deny\", path = \"deny.txt\" }]")
            .policy(LESS_STRICT_FOR_MORE_SEVERE)
            .policy(&format!("reject_with = \"{reject_with}\""))
            .start(&pki);
        let mut open = Client::with_chain(&pki, keygate.address(), &client);
        open.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(open.head().starts_with("HTTP/1.1 200 "), "flagged only");
        open.exactly(6);
        crate::support::write_revision(&pki.path("lost.pkbf"), &[&client.spki], 2);
        keygate.wait_for("its line", |line| {
            line["message"] == "client key rejected, closing connection"
        });
        assert_eq!(open.rest(), "", "the connection is closed");
        assert_eq!(origin.untaken(), 1);
    }
}

#[test]
fn a_service_with_a_compromised_key_of_its_own_starts_only_if_configured_to() {
    for (file, role) in [("server.pem", "server"), ("ca.pem", "trust_anchor")] {
        let (pki, origin) = (Pki::new(), Origin::start());
        let good = pki.client("good", Kind::P256);
        let own = spki_in(&pki, file);
        write_filter(&pki.path("lost.pkbf"), &[&own]);
        // Exceptions are for clients.
        let fingerprint = ::keygate_core::spki::Fingerprint::of(&own);
        let exception = format!(
            "exceptions = [{{ fingerprint = \"{fingerprint}\", until = 2999-12-31, reason = \"own\" }}]"
        );
        let refused = Configuration::new(origin.address()).global(&exception);
        let config = pki.path("keygate.toml");
        std::fs::write(&config, refused.text()).unwrap();
        for command in ["run", "validate"] {
            let output = keygate(&[command, "--config", config.to_str().unwrap()]);
            assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
            let problem = format!("service \"test\": the key of its {} (", role.replace('_', " "));
            assert!(output_text(&output).contains(&problem), "{}", output_text(&output));
            assert!(
                output_text(&output).contains("is in filter \"lost\", revision 1"),
                "{}",
                output_text(&output)
            );
        }
        let allowed = "policy = { allow_compromised_own_key = true }";
        let keygate = Configuration::new(origin.address()).service(allowed).start(&pki);
        keygate.wait_for("a warning", |line| line["message"] == "own key is compromised");
        assert_eq!(keygate.curl(&good, &[]).stdout, b"hello\n");
        let series = format!("keygate_own_key_compromised{{role=\"{role}\",service=\"test\"}}");
        assert_eq!(keygate.metric(&series), 1.0);
    }
}

#[test]
fn a_reload_that_finds_the_key_of_the_proxy_warns_and_is_applied() {
    let scene = scene("");
    let series = "keygate_own_key_compromised{role=\"server\",service=\"test\"}";
    assert_eq!(scene.keygate.metric(series), 0.0);
    let own = spki_in(&scene.pki, "server.pem");
    crate::support::write_revision(&scene.pki.path("lost.pkbf"), &[&own, &scene.good.spki], 2);
    scene.keygate.wait_for_generation(2);
    scene.keygate.wait_for("the alarm", |line| {
        line["level"] == "ERROR" && line["message"] == "own key is compromised"
    });
    assert_eq!(scene.keygate.metric(series), 1.0);
    let response = scene.keygate.curl(&scene.good, &[]);
    assert!(
        output_text(&response).contains("access denied"),
        "it is carried out: {}",
        output_text(&response)
    );
    assert_eq!(scene.keygate.curl(&scene.lost, &[]).stdout, b"hello\n");
}

fn spki_in(pki: &Pki, file: &str) -> Vec<u8> {
    let content = std::fs::read(pki.path(file)).unwrap();
    let finding = ::keygate_core::spki::keys_in(&content).remove(0);
    finding.key.unwrap()
}
