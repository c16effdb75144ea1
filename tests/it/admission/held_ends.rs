//! Held clients: their limits, and the end of the wait without an answer.
//!
//! Guards: `client_gone` and `decision` in `src/proxy/connection/held.rs`.

use std::sync::Arc;
use std::thread::scope;
use std::time::Duration;

use super::held::{
    FLAG, GET, LONG, REJECT, configured, request, silent, wait_for_outcome, wait_for_verdict,
    wait_until_held,
};
use crate::support::client::{Client, config};
use crate::support::pki::Party;
use crate::support::proof_source::ProofSource;
use crate::support::proxy::Configure;
use crate::support::wait_for;

#[test]
fn the_wait_ends_with_the_decision_on_a_probable_key() {
    for (policy, response) in [(REJECT, ""), (FLAG, "HTTP/1.1 200 OK")] {
        let (scene, source) = silent(policy, "300ms");
        let config = Arc::new(config(&scene.pki, &scene.lost));
        assert_eq!(request(&scene, &config).1, response);
        source.wait_for_question(&scene.lost);
        wait_for_outcome(&scene, "expired", 1.0);
        wait_for_verdict(&scene, "handshake", "probable", 1.0);
    }
}

#[test]
fn a_held_client_counts_under_the_limits() {
    let (scene, source) =
        configured(ProofSource::silent(), LONG, |proxy| proxy.limits("max_connections_per_ip = 1"));
    let mut held = Client::connect(&scene.pki, scene.keygate.address(), &scene.lost);
    held.send(GET);
    wait_until_held(&scene, &source);
    let request = |party: &Party| request(&scene, &Arc::new(config(&scene.pki, party))).1;
    assert_eq!(request(&scene.good), "HTTP/1.1 429 Too Many Requests");
    source.clear(&scene.lost);
    assert!(held.rest().starts_with("HTTP/1.1 200 "));
    wait_for("the end of the first connection", || {
        let response = request(&scene.good);
        if response == "HTTP/1.1 200 OK" { Ok(()) } else { Err(response) }
    });
}

#[test]
fn a_held_client_that_goes_away_is_noticed() {
    let (scene, source) = silent(REJECT, LONG);
    let connect = || {
        let mut held = Client::connect(&scene.pki, scene.keygate.address(), &scene.lost);
        held.send(GET); // unread data must not hide the close
        held
    };
    let mut finished = connect();
    wait_until_held(&scene, &source);
    finished.finish(); // close_notify and FIN
    wait_for_outcome(&scene, "client_gone", 1.0);
    drop(connect()); // FIN or a reset
    wait_for_outcome(&scene, "client_gone", 2.0);
    let failed = "keygate_connections_total{result=\"failed\",service=\"test\"}";
    scene.keygate.wait_for_metric(failed, 2.0);
    // The last client may have been gone before it was asked about.
    assert_eq!(source.questions(&scene.lost), 1);
}

#[test]
fn a_held_client_that_sends_without_end_is_not_read_without_end() {
    const MANY: usize = 64 << 20;
    let (scene, source) = silent(REJECT, LONG);
    let mut held = Client::connect(&scene.pki, scene.keygate.address(), &scene.lost);
    held.send("POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 67108864\r\n\r\n");
    wait_until_held(&scene, &source);
    held.tcp().set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    let sent = held.send_until_stalled(&vec![0; MANY]);
    assert!(sent < MANY / 2, "{sent} bytes are more than the buffers of the kernel");
}

#[test]
fn a_held_client_is_decided_when_the_process_drains() {
    let shutdown = "shutdown = { readiness_delay = \"0s\", drain_timeout = \"50s\" }";
    for (policy, response) in [(REJECT, ""), (FLAG, "HTTP/1.1 200 OK")] {
        let (mut scene, source) =
            configured(ProofSource::silent(), LONG, |proxy| proxy.global(shutdown).policy(policy));
        let config = Arc::new(config(&scene.pki, &scene.lost));
        scope(|scope| {
            let held = scope.spawn(|| request(&scene, &config));
            wait_until_held(&scene, &source);
            scene.keygate.signal("TERM");
            assert_eq!(held.join().unwrap().1, response);
        });
        assert!(scene.keygate.ended().success());
        assert!(scene.keygate.lines("drain timeout reached, closing open connections").is_empty());
    }
}

#[test]
fn a_held_client_is_closed_when_a_reload_removes_its_service() {
    let (scene, source) = configured(ProofSource::silent(), LONG, |mut proxy| {
        proxy.configuration = proxy.configuration.second_service("server_names = [\"second\"]");
        proxy
    });
    let mut held = Client::connect(&scene.pki, scene.keygate.address(), &scene.lost);
    held.send(GET);
    wait_until_held(&scene, &source);
    let renamed = scene.configuration.clone().set("services.name", "another");
    std::fs::write(scene.pki.path("keygate.toml"), renamed.text()).unwrap();
    scene.keygate.signal("HUP");
    assert_eq!(held.rest(), "");
    wait_for_outcome(&scene, "stopped", 1.0);
}

#[test]
fn a_held_client_waits_on_through_a_reload_that_changes_nothing_for_it() {
    let (scene, source) = silent(REJECT, LONG);
    let mut held = Client::connect(&scene.pki, scene.keygate.address(), &scene.lost);
    held.send(GET);
    wait_until_held(&scene, &source);
    crate::support::write_revision(&scene.pki.path("lost.pkbf"), &[&scene.lost.spki, b"one"], 2);
    scene.keygate.wait_for_generation(2);
    source.clear(&scene.lost);
    assert!(held.head().starts_with("HTTP/1.1 200 "));
    wait_for_outcome(&scene, "answered", 1.0);
}
