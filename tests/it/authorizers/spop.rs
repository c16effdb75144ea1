//! SPOP with a scripted HAProxy: frames that no HAProxy sends, and frames of versions 2.6 to 3.x.
//!
//! A question that a client of HAProxy can spoil is denied (`src/ask/spop/notify.rs`). A fault of
//! HAProxy itself ends the connection with a DISCONNECT (`src/ask/spop.rs`). Neither is "allowed".

use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::TIMEOUT;
use crate::support::authorizer::{Authorizer, RunningAuthorizer};
use crate::support::keys::{with, written};
use crate::support::pki::Kind;
use crate::support::program::reserved_address;
use crate::support::proxy::Configure;
use crate::support::spop::{
    AGENT_HELLO, FINAL, FRAME_SIZE, HAPROXY_DISCONNECT, HAPROXY_HELLO, NOTIFY, SpopPeer, Value,
    arguments, frame, hello, items, message, notify,
};
use crate::support::wait_for;

/// Status codes of DISCONNECT (HAProxy, `doc/SPOE.txt`, section 3.5).
const NORMAL: u64 = 0;
const TOO_BIG: u64 = 3;
const INVALID: u64 = 4;
const FRAGMENTED: u64 = 10;

fn start() -> RunningAuthorizer {
    Authorizer::of("haproxy").start()
}

fn questions(keygate: &RunningAuthorizer, result: &str) -> f64 {
    keygate.metric(&format!("keygate_questions_total{{result=\"{result}\",service=\"edge\"}}"))
}

#[test]
fn an_answer_has_action_verdict_status_and_fingerprint() {
    let keygate = start();
    let mut peer = SpopPeer::connect(&keygate.socket());
    let fingerprint = |spki: &[u8]| keygate_core::spki::Fingerprint::of(spki).to_string();

    let ack = peer.ask(&arguments(&keygate.good.der));
    assert_eq!(ack.text("txn.action"), "admit");
    assert_eq!(ack.text("txn.verdict"), "clean");
    assert_eq!(ack.text("txn.status"), "clean");
    assert_eq!(ack.text("txn.fingerprint"), fingerprint(&keygate.good.spki));
    assert_eq!(ack.variables().len(), 4, "no variable of a session");

    let ack = peer.ask(&arguments(&keygate.lost.der));
    assert_eq!(ack.text("txn.action"), "reject");
    assert_eq!(ack.text("txn.verdict"), "probable");
    assert_eq!(ack.text("txn.status"), "probable", "the client may be shown the status");
    assert_eq!(ack.text("txn.fingerprint"), fingerprint(&keygate.lost.spki));

    let line = keygate.wait_for("the rejected client", |line| line["verdict"] == "probable");
    assert_eq!((&line["client"], &line["sni"]), (&"192.0.2.7".into(), &"localhost".into()));
}

#[test]
fn the_action_rejects_a_client_that_no_rule_names_although_its_key_is_clean() {
    let allow = "allow = { common_names = [\"good\"] }";
    let keygate = Authorizer::of("haproxy").add("authorizers.client_auth", allow).start();
    let unnamed = keygate.pki.client("unnamed", Kind::P256);
    let mut peer = SpopPeer::connect(&keygate.socket());
    assert_eq!(peer.action(&keygate.good.der), "admit");
    let ack = peer.ask(&arguments(&unnamed.der));
    assert_eq!(ack.text("txn.action"), "reject");
    assert_eq!(ack.text("txn.verdict"), "clean");
    assert_eq!(questions(&keygate, "client_not_allowed"), 1.0);
}

#[test]
fn a_flagged_client_has_the_whole_item_as_its_status() {
    for action in ["flag", "header"] {
        let settings = format!("on_probable = \"{action}\"");
        let keygate = Authorizer::of("haproxy").asked_policy(&settings).start();
        let ack = SpopPeer::connect(&keygate.socket()).ask(&arguments(&keygate.lost.der));
        assert_eq!(ack.text("txn.action"), action);
        assert_eq!(ack.text("txn.status"), "probable;filter=\"lost\";revision=1");
    }
}

#[test]
fn the_answer_to_each_message_has_the_scope_of_the_message() {
    let keygate = start();
    let mut peer = SpopPeer::connect(&keygate.socket());
    let request = message("keygate-request", &arguments(&keygate.good.der));
    let connection = message("keygate-connection", &arguments(&keygate.lost.der));
    let other = message("audit", &[("cert", Value::text("ignored")), ("", Value::Null)]);
    peer.send(frame(NOTIFY, FINAL, 3, 9, &[other, request, connection].concat()));
    let ack = peer.frame();
    assert_eq!((ack.stream, ack.number), (3, 9));
    assert_eq!(ack.text("txn.action"), "admit");
    assert_eq!(ack.text("sess.action"), "reject");
    assert_eq!(ack.variables().len(), 8);
}

#[test]
fn a_certificate_that_cannot_be_used_is_denied_whatever_the_policy() {
    // This policy admits unchecked keys.
    let keygate = Authorizer::of("haproxy")
        .asked_policy("on_unchecked = \"flag\"")
        .add("authorizers.client_auth", "mode = \"optional\"")
        .start();
    let mut peer = SpopPeer::connect(&keygate.socket());
    let good = keygate.good.der.to_vec();
    let cert = || ("cert", Value::Binary(good.clone()));
    let two = [good.as_slice(), &keygate.lost.der].concat();
    let binary = |bytes: &[u8]| ("cert", Value::Binary(bytes.to_vec()));
    let malformed: Vec<(&str, Vec<(&str, Value)>)> = vec![
        ("text", vec![("cert", Value::text("-----BEGIN CERTIFICATE-----"))]),
        ("a boolean", vec![("cert", Value::Bool(true))]),
        ("text, not used", vec![("cert", Value::text("text")), ("used", Value::Bool(false))]),
        ("no bytes", vec![binary(b"")]),
        ("junk", vec![binary(b"junk")]),
        ("half a certificate", vec![binary(&good[..good.len() / 2])]),
        ("two certificates", vec![binary(&two)]),
        ("cert twice", vec![cert(), cert()]),
        ("cert dropped by HAProxy", vec![("cert", Value::Null), ("used", Value::Bool(true))]),
        ("cert dropped, no argument", vec![("used", Value::Bool(true))]),
        ("neither cert nor used", vec![("src", Value::Ipv4([192, 0, 2, 7]))]),
        ("cert dropped, used not configured", vec![("cert", Value::Null)]),
        ("used is a number", vec![cert(), ("used", Value::Int64(1))]),
        ("used is false", vec![cert(), ("used", Value::Bool(false))]),
        ("chain is text", vec![cert(), ("chain", Value::text("chain"))]),
        ("chain is junk", vec![cert(), ("chain", Value::Binary(b"junk".to_vec()))]),
        ("chain of 10", vec![cert(), ("chain", Value::Binary(keygate.lost.der.repeat(10)))]),
        ("chain alone", vec![("chain", Value::Binary(good.clone()))]),
        ("verify is text", vec![cert(), ("verify", Value::text("SUCCESS"))]),
        ("src is text", vec![cert(), ("src", Value::text("192.0.2.1"))]),
        ("sni is binary", vec![cert(), ("sni", Value::Binary(vec![]))]),
        ("a value of no type", vec![cert(), ("x", Value::Raw(vec![0x0f]))]),
        ("a value beyond the frame", vec![cert(), ("x", Value::Raw(vec![0x09, 100, 1]))]),
        ("a length of 64 bits", vec![("cert", Value::Raw([&[9][..], &[0xff; 10]].concat()))]),
    ];
    let not_verified: Vec<(&str, Vec<(&str, Value)>)> = vec![
        ("expired", vec![cert(), ("verify", Value::Int64(10))]),
        ("not verified", vec![cert(), ("verify", Value::Bool(false))]),
        ("verify without a value", vec![cert(), ("verify", Value::Null)]),
        ("no certificate, failed", vec![("cert", Value::Null), ("verify", Value::Int64(20))]),
    ];
    for (what, arguments) in malformed.iter().chain(&not_verified) {
        let ack = peer.ask(arguments);
        assert_eq!(ack.text("txn.action"), "reject", "{what}");
        assert_eq!(ack.text("txn.verdict"), "unchecked", "{what}");
        assert_eq!(ack.variables()["txn.fingerprint"], Value::Null, "{what}");
    }
    assert_eq!(questions(&keygate, "malformed"), malformed.len() as f64);
    assert_eq!(questions(&keygate, "not_verified"), not_verified.len() as f64);
    assert_eq!(questions(&keygate, "allowed"), 0.0);
    // The connection goes on, and a client without a certificate is treated by the policy.
    let none = [("cert", Value::Null), ("used", Value::Bool(false)), ("verify", Value::Int64(0))];
    assert_eq!(peer.ask(&none).text("txn.action"), "flag");
    assert_eq!(peer.ask(&arguments(&good)).text("txn.action"), "admit");
}

#[test]
fn a_client_without_a_certificate_is_rejected_unless_certificates_are_optional() {
    // The policy that would let an unchecked key in.
    let keygate = Authorizer::of("haproxy").asked_policy("on_unchecked = \"flag\"").start();
    let mut peer = SpopPeer::connect(&keygate.socket());
    for arguments in [vec![], vec![("cert", Value::Null), ("used", Value::Bool(false))]] {
        assert_eq!(peer.ask(&arguments).text("txn.action"), "reject");
    }
}

#[test]
fn messages_that_cannot_be_read_are_denied_in_both_scopes() {
    // The policy that would let an unchecked key in.
    let keygate = Authorizer::of("haproxy")
        .asked_policy("on_unchecked = \"flag\"")
        .add("authorizers.client_auth", "mode = \"optional\"")
        .start();
    let mut peer = SpopPeer::connect(&keygate.socket());
    let good = message("keygate-request", &arguments(&keygate.good.der));
    let mut too_many = good.clone();
    // One argument more than there is, after the name of 15 bytes and its length.
    too_many[16] += 1;
    let payloads = [
        ("nothing", vec![]),
        ("half a name", vec![9, b'k']),
        ("no arguments", good[..16].to_vec()),
        ("half the arguments", good[..good.len() / 2].to_vec()),
        ("an argument too many", too_many),
        ("a message, then half of one", [good.as_slice(), &[9, b'k']].concat()),
        ("the message twice", good.repeat(2)),
        ("another message alone", message("keygate", &arguments(&keygate.good.der))),
        ("the name in capitals", message("KEYGATE-REQUEST", &arguments(&keygate.good.der))),
    ];
    for (what, payload) in payloads {
        peer.send(frame(NOTIFY, FINAL, 5, 2, &payload));
        let ack = peer.frame();
        assert_eq!((ack.stream, ack.number), (5, 2), "{what}");
        assert_eq!(ack.text("txn.action"), "reject", "{what}");
        assert_eq!(ack.text("sess.action"), "reject", "{what}");
    }
    assert_eq!(peer.action(&keygate.good.der), "admit", "the connection goes on");
}

#[test]
fn no_truncation_of_a_question_admits_a_listed_client() {
    let keygate = start();
    let mut peer = SpopPeer::connect(&keygate.socket());
    let whole = message("keygate-request", &arguments(&keygate.lost.der));
    // Frames of all lengths at once, so that the answers are read while the questions are written.
    let frames: Vec<u8> = (0..=whole.len())
        .flat_map(|end| frame(NOTIFY, FINAL, end as u64, 1, &whole[..end]))
        .collect();
    let count = whole.len() as u64;
    let mut writer = peer.stream().try_clone().unwrap();
    let writing = std::thread::spawn(move || std::io::Write::write_all(&mut writer, &frames));
    for stream in 0..=count {
        let ack = peer.frame();
        assert_eq!((ack.stream, ack.text("txn.action").as_str()), (stream, "reject"));
    }
    writing.join().unwrap().unwrap();
}

#[test]
fn frames_that_no_client_can_provoke_end_the_connection_with_the_code_of_the_protocol() {
    let keygate = start();
    let good = message("keygate-request", &arguments(&keygate.good.der));
    let cases = [
        ("a frame that is continued", frame(NOTIFY, 0, 1, 1, &good), FRAGMENTED),
        ("an aborted frame", frame(NOTIFY, 3, 1, 1, &good), FRAGMENTED),
        ("a continuation", frame(0, FINAL, 1, 1, &good), INVALID),
        ("an unknown type", frame(77, FINAL, 1, 1, &good), INVALID),
        ("a frame of an agent", frame(AGENT_HELLO, FINAL, 0, 0, &[]), INVALID),
        ("a second HELLO", hello(FRAME_SIZE, false), INVALID),
        ("an empty frame", vec![0, 0, 0, 0], INVALID),
        ("a header without identifiers", vec![0, 0, 0, 5, NOTIFY, 0, 0, 0, 1], INVALID),
        (
            "an identifier of more than 64 bits",
            [&[0, 0, 0, 15, NOTIFY, 0, 0, 0, 1][..], &[0xff; 10]].concat(),
            INVALID,
        ),
        ("a frame above HAProxy's own size", vec![0, 0, 0x40, 0], TOO_BIG),
        ("a frame of 4 GiB", vec![0xff; 4], TOO_BIG),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(), TOO_BIG),
        (
            "a DISCONNECT",
            frame(
                HAPROXY_DISCONNECT,
                FINAL,
                0,
                0,
                &items(&[("status-code", Value::Uint32(0)), ("message", Value::text("normal"))]),
            ),
            NORMAL,
        ),
    ];
    for (what, bytes, code) in cases {
        let mut peer = SpopPeer::connect(&keygate.socket());
        // A question before it is answered.
        peer.send([notify(7, "keygate-request", &arguments(&keygate.good.der)), bytes].concat());
        assert_eq!(peer.frame().text("txn.action"), "admit", "{what}");
        assert_eq!(peer.disconnected(), code, "{what}");
    }
}

#[test]
fn a_connection_begins_with_a_hello_that_keygate_can_respond_to() {
    let keygate = start();
    let good = notify(1, "keygate-request", &arguments(&keygate.good.der));
    let without = |name: &str| {
        let list: Vec<_> = [
            ("supported-versions", Value::text("2.0")),
            ("max-frame-size", Value::Uint32(FRAME_SIZE)),
            ("capabilities", Value::text("pipelining")),
        ]
        .into_iter()
        .filter(|(item, _)| *item != name)
        .collect();
        frame(HAPROXY_HELLO, FINAL, 0, 0, &items(&list))
    };
    let version = items(&[
        ("supported-versions", Value::text("1.0")),
        ("max-frame-size", Value::Uint32(FRAME_SIZE)),
        ("capabilities", Value::text("pipelining")),
    ]);
    for (what, bytes, code) in [
        ("a question", good, INVALID),
        ("no version", without("supported-versions"), 5),
        ("no frame size", without("max-frame-size"), 6),
        ("no capabilities", without("capabilities"), 7),
        ("another version", frame(HAPROXY_HELLO, FINAL, 0, 0, &version), 8),
        ("a small frame size", hello(255, false), 9),
        ("a fragment", frame(HAPROXY_HELLO, 0, 0, 0, &[]), FRAGMENTED),
        ("a frame of 64 KiB", vec![0, 1, 0, 1], TOO_BIG),
    ] {
        let mut peer = SpopPeer::silent(&keygate.socket());
        peer.send(bytes);
        assert_eq!(peer.disconnected(), code, "{what}");
    }
}

#[test]
fn the_frame_size_of_haproxy_is_echoed_up_to_the_largest_question() {
    let keygate = start();
    for (theirs, announced) in [(256, 256), (FRAME_SIZE, FRAME_SIZE), (1 << 20, 64 << 10)] {
        let mut peer = SpopPeer::silent(&keygate.socket());
        assert_eq!(peer.exchange_hello(theirs), announced);
    }
}

/// HAProxy 3.1.0 to 3.2-dev11 ignores a frame size below its own.
#[test]
fn a_question_above_the_largest_question_is_denied_and_the_connection_goes_on() {
    let keygate =
        Authorizer::of("haproxy").add("authorizers.limits", "max_question_size = \"8KiB\"").start();
    let mut peer = SpopPeer::silent(&keygate.socket());
    assert_eq!(peer.exchange_hello(16 << 20), 8 << 10);
    let mut large = arguments(&keygate.good.der);
    large.push(("padding", Value::Binary(vec![0; 10 << 20])));
    keygate.forget_peak();
    let before = keygate.memory("VmHWM");
    for _ in 0..5 {
        let ack = peer.ask(&large);
        assert_eq!(ack.text("txn.action"), "reject");
        assert_eq!(ack.text("sess.action"), "reject");
        assert_eq!(peer.action(&keygate.good.der), "admit");
    }
    assert_eq!(questions(&keygate, "oversize"), 5.0);
    let grown = keygate.memory("VmHWM") - before;
    assert!(grown < 4 << 10, "{grown} KiB for a frame of 10 MiB that is not read");
}

#[test]
fn a_health_check_is_answered_and_closed() {
    let keygate = start();
    let mut peer = SpopPeer::silent(&keygate.socket());
    peer.send(hello(FRAME_SIZE, true));
    assert_eq!(peer.frame().kind, AGENT_HELLO);
    assert_eq!(peer.frame_or_end().unwrap(), None);
}

#[test]
fn frames_may_arrive_byte_by_byte() {
    let keygate = start();
    let mut peer = SpopPeer::silent(&keygate.socket());
    for byte in hello(FRAME_SIZE, false) {
        peer.send([byte]);
    }
    assert_eq!(peer.frame().kind, AGENT_HELLO);
    for byte in notify(7, "keygate-request", &arguments(&keygate.good.der)) {
        peer.send([byte]);
    }
    assert_eq!(peer.frame().text("txn.action"), "admit");
}

#[test]
fn each_of_a_hundred_pipelined_streams_gets_its_own_answer() {
    let keygate = start();
    let mut peer = SpopPeer::connect(&keygate.socket());
    let certificate = |stream: u64| match stream % 3 {
        0 => &keygate.lost.der,
        _ => &keygate.good.der,
    };
    for round in 0..10 {
        let streams = (0..100).map(|stream| round * 1_000_000_007 + stream);
        let burst = streams
            .clone()
            .flat_map(|stream| notify(stream, "keygate-request", &arguments(certificate(stream))));
        peer.send(burst.collect::<Vec<_>>());
        for stream in streams {
            let ack = peer.frame();
            let expected = if stream % 3 == 0 { "reject" } else { "admit" };
            assert_eq!((ack.stream, ack.text("txn.action").as_str()), (stream, expected));
        }
    }
}

#[test]
fn a_filter_update_counts_from_the_next_question_of_an_open_connection() {
    let keygate = start();
    let mut peer = SpopPeer::connect(&keygate.socket());
    assert_eq!(peer.action(&keygate.good.der), "admit");
    let keys = [keygate.lost.spki.as_slice(), &keygate.good.spki];
    crate::support::write_revision(&keygate.pki.path("lost.pkbf"), &keys, 2);
    keygate.wait_for_generation(2);
    assert_eq!(peer.action(&keygate.good.der), "reject");
}

#[test]
fn a_drained_connection_gets_its_answers_then_a_disconnect() {
    let mut keygate = Authorizer::of("haproxy")
        .global("shutdown = { readiness_delay = \"1s\", drain_timeout = \"30s\" }")
        .start();
    let socket = keygate.socket();
    let (mut busy, mut idle) = (SpopPeer::connect(&socket), SpopPeer::connect(&socket));
    keygate.signal("TERM");
    // Health checks fail at once; questions are still answered.
    wait_for("a failed health check", || {
        let mut check = SpopPeer::silent(&socket);
        check.send(hello(FRAME_SIZE, true));
        let response = check.frame();
        if response.kind == AGENT_HELLO {
            return Err("it is healthy".to_owned());
        }
        assert_eq!(response.status_code(), NORMAL);
        Ok(())
    });
    assert_eq!(busy.action(&keygate.good.der), "admit");
    assert_eq!(idle.disconnected(), NORMAL);
    // The other connection: a question under way is answered before the DISCONNECT, or gets it at
    // once. It never ends without one.
    busy.try_send(notify(7, "keygate-request", &arguments(&keygate.good.der)));
    let last = busy.frame();
    match last.kind {
        crate::support::spop::ACK => assert_eq!(busy.disconnected(), NORMAL),
        _ => assert_eq!(last.status_code(), NORMAL),
    }
    drop((busy, idle));
    assert!(keygate.keygate.ended().success());
}

#[test]
fn questions_until_the_disconnect_are_answered_while_the_process_drains() {
    let keygate = Authorizer::of("haproxy")
        .global("shutdown = { readiness_delay = \"0s\", drain_timeout = \"30s\" }")
        .start();
    let mut peer = SpopPeer::connect(&keygate.socket());
    // Half a question holds the connection.
    let question = notify(7, "keygate-request", &arguments(&keygate.good.der));
    let (first, second) = question.split_at(question.len() / 2);
    peer.send(first);
    keygate.signal("TERM");
    keygate.wait_for("the drain", |line| {
        line["message"].as_str().is_some_and(|message| message.contains("drain"))
    });
    peer.send(second);
    assert_eq!(peer.frame().text("txn.action"), "admit");
    assert_eq!(peer.disconnected(), NORMAL);
}

#[test]
fn idle_connections_are_closed_with_a_disconnect() {
    let keygate =
        Authorizer::of("haproxy").add("authorizers.limits", "idle_timeout = \"200ms\"").start();
    let mut peer = SpopPeer::connect(&keygate.socket());
    let since = Instant::now();
    assert_eq!(peer.disconnected(), NORMAL);
    assert!(since.elapsed() >= Duration::from_millis(150), "{:?}", since.elapsed());
}

#[test]
fn a_reload_keeps_open_connections_unless_their_peer_may_no_longer_ask() {
    let mut keygate = start();
    let mut peer = SpopPeer::connect(&keygate.socket());
    let file = keygate.pki.path("keygate.toml");
    let change = |key: &str, value: toml::Value| {
        std::fs::write(&file, written(&with(&keygate.configuration, key, Some(value)))).unwrap();
    };
    change("policy.on_probable", "flag".into());
    keygate.wait_for_generation(2);
    assert_eq!(peer.action(&keygate.lost.der), "flag");
    change("authorizers.askers.uids", vec![4_294_967_294_i64].into());
    assert_eq!(peer.disconnected(), NORMAL);
    keygate.keygate.signal("TERM");
    assert!(keygate.keygate.ended().success());
}

#[test]
fn a_thousand_connections_with_half_a_frame_cost_bounded_memory_and_delay_no_other() {
    let keygate =
        Authorizer::of("haproxy").add("authorizers.limits", "max_connections = 3000").start();
    let mut asking = SpopPeer::connect(&keygate.socket());
    let before = keygate.memory("VmRSS");
    let question = notify(7, "keygate-request", &arguments(&keygate.good.der));
    let peers: Vec<_> = (0..1000)
        .map(|_| {
            let mut peer = SpopPeer::connect(&keygate.socket());
            peer.send(&question[..question.len() - 1]);
            peer
        })
        .collect();
    assert_eq!(asking.action(&keygate.good.der), "admit");
    assert_eq!(asking.action(&keygate.lost.der), "reject");
    let grown = keygate.memory("VmRSS").saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB for 1000 connections");
    drop(peers);
    keygate.wait_for_metric("keygate_askers_active{service=\"edge\"}", 1.0);
}

#[test]
fn questions_over_tcp_are_answered_like_those_over_a_unix_socket() {
    let keygate =
        Authorizer::of("haproxy").set("authorizers.listen", reserved_address().to_string()).start();
    let line = keygate.wait_for("the address", |line| line["authorizer"] == "edge");
    let address: std::net::SocketAddr = line["address"].as_str().unwrap().parse().unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut peer = SpopPeer::over(stream);
    peer.exchange_hello(FRAME_SIZE);
    assert_eq!(peer.action(&keygate.good.der), "admit");
    peer.finish();
    assert_eq!(peer.frame_or_end().unwrap(), None, "closed with the peer");
}

/// A peer that does not read gets no more answers, and no other waits for it.
#[test]
fn a_peer_that_does_not_read_delays_no_other() {
    let keygate = start();
    let stalled = SpopPeer::connect(&keygate.socket());
    let question = notify(7, "keygate-request", &arguments(&keygate.good.der));
    let writer = stalled.stream().try_clone().unwrap();
    writer.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let burst = question.repeat(1000);
    let mut writer_stream = &writer;
    while std::io::Write::write_all(&mut writer_stream, &burst).is_ok() {}
    let grown = keygate.memory("VmRSS");
    assert_eq!(SpopPeer::connect(&keygate.socket()).action(&keygate.good.der), "admit");
    assert!(grown < 200 << 10, "{grown} KiB");
}
