//! Limits of askers, and the end of their connections when the process drains.

use crate::support::asker::{AskedKeygate, Asker, TCP, UNIX};
use crate::support::pki::Pki;
use crate::support::wait_until;

#[test]
fn one_asker_gets_every_connection_and_503_for_more() {
    let scene = AskedKeygate::start(&format!("{UNIX}limits = {{ max_connections = 4 }}\n"));
    let mut askers: Vec<_> = (0..4).map(|_| scene.connect()).collect();
    for asker in &mut askers {
        assert_eq!(asker.ask_about(&scene.good).status, 200);
    }
    let busy = scene.connect().response().unwrap();
    assert_eq!((busy.status, busy.field("retry-after")), (503, Some("1")));
    assert_eq!((scene.questions("busy"), scene.questions("draining")), (1.0, 0.0));
    let line = scene
        .keygate
        .wait_for("the line", |line| line["message"] == "no free connection for an asker");
    assert_eq!(line["service"], "edge");
    askers.pop();
    // The share of a connection ends after its metric.
    wait_until("a free connection", || {
        let answer = scene.connect().try_ask(&[&scene.good.der]);
        answer.is_some_and(|answer| answer.status == 200)
    });
}

#[test]
fn an_asker_with_every_connection_leaves_a_quarter_more_to_others() {
    let scene = AskedKeygate::start(&format!("{TCP}limits = {{ max_connections = 4 }}\n"));
    let address = scene.address();
    let mut askers: Vec<_> = (0..4).map(|_| Asker::tcp(address)).collect();
    for asker in &mut askers {
        assert_eq!(asker.ask_about(&scene.good).status, 200);
    }
    // They do not read, and stay open until keygate closes them.
    askers.extend((0..200).map(|_| Asker::tcp(address)));
    let mut other = Asker::tcp_from([127, 0, 0, 2].into(), address);
    assert_eq!(other.ask_about(&scene.good).status, 200);
}

#[test]
fn a_connection_above_the_limit_waits_until_another_one_ends() {
    let scene = AskedKeygate::start(&format!("{UNIX}limits = {{ max_connections = 4 }}\n"));
    let mut askers: Vec<_> = (0..4).map(|_| scene.connect()).collect();
    for asker in &mut askers {
        assert_eq!(asker.ask_about(&scene.good).status, 200);
    }
    let mut next = scene.connect();
    askers.pop();
    assert_eq!(next.ask_about(&scene.good).status, 200);
    assert_eq!(scene.questions("busy"), 0.0);
}

/// A host keeps idle connections, and its other threads need new ones. Guard: `makes_room` in
/// `src/ask/connection.rs`.
#[test]
fn a_connection_is_closed_after_its_answer_if_another_one_waits() {
    let scene = AskedKeygate::start(&format!("{UNIX}limits = {{ max_connections = 4 }}\n"));
    let mut askers: Vec<_> = (0..4).map(|_| scene.connect()).collect();
    for asker in &mut askers {
        assert_eq!(asker.ask_about(&scene.good).field("connection"), None);
    }
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            wait_until("an answer to another connection", || {
                let answer = scene.connect().try_ask(&[&scene.good.der]);
                answer.is_some_and(|answer| answer.status == 200)
            });
        });
        let asker = &mut askers[0];
        let mut closes = false;
        while !closes && !other.is_finished() {
            let answer = asker.ask_about(&scene.good);
            assert_eq!(answer.status, 200);
            closes = answer.field("connection") == Some("close");
        }
        assert!(closes);
        askers.remove(0);
    });
}

#[test]
fn a_thousand_connections_are_served_and_end_with_the_process() {
    let edge = format!("{UNIX}limits = {{ max_connections = 2000 }}\n");
    let mut scene = AskedKeygate::with_pki(Pki::new(), &edge);
    let mut askers: Vec<_> = (0..1000).map(|_| scene.connect()).collect();
    for asker in &mut askers {
        assert_eq!(asker.ask_about(&scene.good).status, 200);
    }
    assert_eq!(scene.keygate.metric("keygate_askers_active{service=\"edge\"}"), 1000.0);
    scene.keygate.signal("TERM");
    scene.keygate.wait_for("the drain", |line| line["message"] == "draining");
    for asker in &mut askers {
        // A question that crosses the end is answered.
        while let Some(answer) = asker.try_ask(&[&scene.good.der]) {
            assert_eq!(answer.status, 200);
        }
    }
    assert!(scene.keygate.ended().success());
}

#[test]
fn askers_are_answered_until_the_readiness_delay_is_over() {
    let edge = format!("{UNIX}\n[shutdown]\nreadiness_delay = \"1h\"\n");
    let text = crate::support::asker::configuration(&edge)
        .replace("shutdown = { readiness_delay = \"0s\", drain_timeout = \"5s\" }\n", "");
    let scene = AskedKeygate::start(UNIX);
    let pki = Pki::new();
    std::fs::copy(scene.pki.path("lost.pkbf"), pki.path("lost.pkbf")).unwrap();
    let keygate = crate::support::keygate::Keygate::configured(&pki, &text);
    let path = pki.path("ask.sock");
    let mut open = Asker::unix(&path);
    assert_eq!(open.ask_about(&scene.good).status, 200);
    keygate.signal("TERM");
    keygate.wait_for("the lifecycle", |line| line["message"] == "no longer ready");
    assert_eq!(open.ask_about(&scene.good).status, 200);
    let new = Asker::unix(&path).ask_about(&scene.good);
    assert_eq!(new.status, 200);
}
