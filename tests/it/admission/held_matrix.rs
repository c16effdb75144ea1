//! Every way to be held: by policy, answer, version of TLS and protocol. For each: what the client
//! gets, what the origin gets, the metrics and the log line. The cases are generated; the expected
//! outcome of each follows from [`expected`].
//!
//! Guards: `hold` in `src/proxy/connection/held.rs`, and the judgement after it in
//! `src/proxy/connection/assessment.rs`.

use std::sync::Arc;

use rustls::{HandshakeKind, ProtocolVersion};
use tokio::runtime::Builder;

use super::matrix::{PROTOCOLS, VERSIONS, connect};
use crate::support::client::config_of;
use crate::support::pki::{Kind, Party};
use crate::support::proof_source::ProofSource;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::write_filter;

/// `on_probable` and `on_cleared`. Confirmed clients are rejected, so that every client is held.
const POLICIES: [(&str, &str); 3] = [("reject", "admit"), ("flag", "flag"), ("header", "header")];

/// The expected outcome of a held client.
struct Expected {
    action: &'static str,
    /// The value of `Client-Key-Status` that the origin gets, if it gets the request.
    origin: Option<Vec<String>>,
}

fn expected((on_probable, on_cleared): (&'static str, &'static str), verdict: &str) -> Expected {
    let action = match verdict {
        "cleared" => on_cleared,
        "confirmed" => "reject",
        _ => on_probable,
    };
    let status = format!("{verdict};filter=\"lost\";revision=1");
    let status = if action == "header" { vec![status] } else { Vec::new() };
    Expected { action, origin: (action != "reject").then_some(status) }
}

fn count(scene: &Running, series: &str) -> f64 {
    scene.keygate.metrics().get(&format!("keygate_{series}")).copied().unwrap_or_default()
}

/// Compares everything but the response.
fn check(scene: &Running, case: &str, party: &Party, stage: &str, verdict: &str, done: &Expected) {
    let line = |line: &serde_json::Value| {
        line["target"] == "keygate::client_key"
            && line["subject"] == format!("CN={}", party.name)
            && line["stage"] == stage
    };
    if done.action == "admit" {
        assert!(scene.keygate.matching_lines(line).is_empty(), "{case}");
    } else {
        let line = scene.keygate.wait_for(case, line);
        assert_eq!((&line["verdict"], &line["action"]), (&verdict.into(), &done.action.into()));
    }
    if let Some(status) = &done.origin {
        assert_eq!(scene.origin.next().fields("client-key-status"), *status, "{case}");
    }
    assert_eq!(scene.origin.untaken(), 0, "{case}");
}

#[test]
fn every_held_client_is_decided_by_the_answer() {
    for policy in POLICIES {
        for verdict in ["cleared", "confirmed", "probable"] {
            // Only the answer ends the wait, or only its end.
            let wait = if verdict == "probable" { "500ms" } else { "1h" };
            let (source, proxy) = (ProofSource::silent(), Proxy::new());
            let ways: Vec<_> =
                VERSIONS.iter().flat_map(|it| PROTOCOLS.map(|protocol| (*it, protocol))).collect();
            let parties: Vec<Party> = (0..ways.len())
                .map(|index| proxy.pki.client(["a", "b", "c", "d"][index], Kind::P256))
                .collect();
            let keys: Vec<&[u8]> = parties.iter().map(|party| &party.spki[..]).collect();
            write_filter(&proxy.pki.path("lost.pkbf"), &keys);
            let (on_probable, on_cleared) = policy;
            let text = format!("on_probable = \"{on_probable}\"\non_cleared = \"{on_cleared}\"");
            let settings = source.settings(&proxy.pki, wait);
            let proxy = proxy.global(&settings).global("log = { repeat_after = \"0s\" }");
            let scene = proxy.policy(&text).start();
            source.wait_for_canary(&scene.keygate);
            let expected = expected(policy, verdict);
            let mut done = 0.0;
            for (party, (version, protocol)) in parties.iter().zip(ways) {
                let tls = if version.version == ProtocolVersion::TLSv1_2 { "1.2" } else { "1.3" };
                let mut config = config_of(&scene.pki, &[version], Some(party));
                config.alpn_protocols = vec![protocol.into()];
                let config = Arc::new(config);
                // A client that is served at the end of the wait resumes its session, and is held
                // again.
                let resumes = verdict == "probable" && expected.origin.is_some();
                for resumed in if resumes { vec![false, true] } else { vec![false] } {
                    let case = format!("{policy:?}, {verdict}, TLS {tls}, {protocol}, {resumed}");
                    let address = scene.keygate.address();
                    let held = std::thread::spawn({
                        let config = Arc::clone(&config);
                        move || {
                            let runtime = Builder::new_current_thread().enable_all().build();
                            runtime.unwrap().block_on(connect(address, &config, "localhost"))
                        }
                    });
                    source.wait_for_question(party);
                    if verdict != "probable" {
                        scene.keygate.wait_for_metric("keygate_confirmation_waits_active", 1.0);
                        assert_eq!(scene.origin.untaken(), 0, "{case}: not while it is held");
                    }
                    match verdict {
                        "cleared" => source.clear(party),
                        "confirmed" => source.prove(party),
                        _ => {}
                    }
                    let seen = held.join().unwrap();
                    let kind = if resumed { HandshakeKind::Resumed } else { HandshakeKind::Full };
                    match (&expected.origin, &seen) {
                        (Some(_), Ok(seen)) => assert_eq!(*seen, (200, kind), "{case}"),
                        (None, Err(_)) => {}
                        (_, seen) => panic!("{case}: {seen:?}"),
                    }
                    done += 1.0;
                    let outcome = if verdict == "probable" { "expired" } else { "answered" };
                    let waits = format!("confirmation_waits_total{{outcome=\"{outcome}\"}}");
                    let actions = format!(
                        "key_actions_total{{action=\"{}\",service=\"test\"}}",
                        expected.action
                    );
                    for series in [&waits, &actions] {
                        scene.keygate.wait_for_metric(&format!("keygate_{series}"), done);
                    }
                    let stage = if resumed { "resumed" } else { "handshake" };
                    check(&scene, &case, party, stage, verdict, &expected);
                }
            }
            let checks = |stage: &str| {
                let labels = format!("service=\"test\",stage=\"{stage}\",verdict=\"{verdict}\"");
                count(&scene, &format!("key_checks_total{{{labels}}}"))
            };
            assert_eq!(checks("handshake") + checks("resumed"), done, "{policy:?}, {verdict}");
        }
    }
}
