//! Traces: which spans a collector gets, and what the upstream gets.

mod export;

use std::io::{Error, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::collector::Collector;
use crate::support::http2::{Came, frame, request};
use crate::support::keygate::Keygate;
use crate::support::origin::{Origin, Received};
use crate::support::program::reserved_address;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::system;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// A `traceparent` of the client.
fn parent(flags: &str) -> String {
    format!("traceparent: 00-{TRACE}-{SPAN}-{flags}\r\n")
}

/// A proxy that exports to `collector`.
fn traced(collector: &Collector, settings: &str) -> Proxy {
    let proxy = Proxy::new().service("trace_context_from = [\"127.0.0.0/8\"]");
    proxy.add("traces", &collector.settings()).add("traces", settings)
}

/// Sends a GET with these field lines, and returns what the origin received.
fn get(proxy: &Running, client: &mut Client, fields: &str) -> Received {
    client.send(format!("GET /path?secret=1 HTTP/1.1\r\nHost: localhost:1\r\n{fields}\r\n"));
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(client.exactly(6), b"hello\n");
    proxy.origin.next()
}

/// The parts of the one `traceparent` that the origin received.
fn traceparent(received: &Received) -> [String; 4] {
    let fields = received.fields("traceparent");
    let [field] = fields.as_slice() else { panic!("{fields:?}") };
    let parts: Vec<_> = field.split('-').map(str::to_owned).collect();
    parts.try_into().unwrap()
}

/// The span of this kind.
fn of_kind<'a>(spans: &'a [Value], kind: &str) -> &'a Value {
    let mut found = spans.iter().filter(|span| span["kind"] == kind);
    let span = found.next().unwrap_or_else(|| panic!("no {kind} among {spans:?}"));
    assert!(found.next().is_none(), "{spans:?}");
    span
}

fn dropped(keygate: &Keygate, reason: &str) -> f64 {
    keygate.metric(&format!("keygate_trace_spans_dropped_total{{reason=\"{reason}\"}}"))
}

#[test]
fn a_request_is_a_span_with_the_exchange_as_its_child() {
    let Some(collector) = Collector::start(&["200"]) else { return };
    let proxy = traced(&collector, "service_name = \"edge\"").start();
    let mut client = proxy.connect();
    let agent = "x".repeat(600);
    let fields = format!("{}tracestate: a=1\r\ntracestate: b=2\r\n", parent("01"));
    let received = get(&proxy, &mut client, &format!("{fields}User-Agent: {agent}\r\n"));
    let export = collector.next();
    assert_eq!(export["path"], "/v1/traces");
    assert_eq!(export["headers"]["content-type"], "application/x-protobuf");
    assert_eq!(export["headers"]["user-agent"], "keygate");
    let version = env!("CARGO_PKG_VERSION");
    let resource = &export["resources"][0];
    assert_eq!(
        (&resource["service.name"], &resource["service.version"]),
        (&"edge".into(), &version.into())
    );
    let host = String::from_utf8(system("uname", &["-n"]).stdout).unwrap();
    assert_eq!(resource["host.name"], host.trim());
    assert_eq!(resource["service.instance.id"].as_str().unwrap().len(), 32);
    assert_eq!(export["scopes"], json!(["keygate"]));
    assert!(!export.to_string().contains("secret"), "no query leaves the machine: {export}");

    let spans = export["spans"].as_array().unwrap();
    let (server, client) = (of_kind(spans, "SERVER"), of_kind(spans, "CLIENT"));
    for span in [server, client] {
        assert_eq!((&span["trace"], &span["name"]), (&TRACE.into(), &"GET".into()), "{span}");
        assert_eq!((&span["state"], &span["is_error"]), (&"a=1,b=2".into(), &false.into()));
        assert!(span["start"].as_u64() <= span["end"].as_u64(), "{span}");
        assert!(span["start"].as_u64() > Some(1_700_000_000_000_000_000), "{span}");
    }
    assert_eq!((&server["parent"], &client["parent"]), (&SPAN.into(), &server["id"]));
    assert!(server["start"].as_u64() <= client["start"].as_u64());
    // Sampled, and whether the parent is in another process.
    assert_eq!((&server["flags"], &client["flags"]), (&0x301.into(), &0x101.into()));
    let id = client["id"].as_str().unwrap();
    assert_eq!(traceparent(&received), ["00", TRACE, id, "01"], "the upstream's spans are below");
    assert_eq!(received.fields("tracestate"), ["a=1", "b=2"]);

    let request_id = received.fields("x-request-id").concat();
    let (upstream, port) = (proxy.origin.address(), proxy.origin.address().port());
    assert_eq!(
        server["attributes"],
        json!({
            "http.request.method": "GET", "http.response.status_code": 200, "url.scheme": "https",
            "url.path": "/path", "server.address": "localhost", "server.port": 1,
            "client.address": "127.0.0.1", "network.protocol.version": "1.1",
            "user_agent.original": "x".repeat(512), "tls.client.subject": "CN=good",
            "keygate.service": "test", "keygate.verdict": "clean", "keygate.request_id": request_id,
            "keygate.key_algorithm": "p256", "keygate.key_exchange": "x25519",
        })
    );
    assert_eq!(
        client["attributes"],
        json!({
            "http.request.method": "GET", "http.response.status_code": 200,
            "server.address": "127.0.0.1", "server.port": port,
            "url.full": format!("http://{upstream}/path"),
        })
    );
    proxy.wait_for_metric("keygate_trace_spans_exported_total", 2.0);
}

/// The server closes a kept connection when the second request arrives.
#[test]
fn a_request_that_is_sent_again_has_a_span_for_each_attempt() {
    let Some(collector) = Collector::start(&["200"]) else { return };
    let requests = AtomicUsize::new(0);
    let origin = Origin::responding(move |_, tcp| match requests.fetch_add(1, Ordering::SeqCst) {
        1 => Err(Error::other("closed without a response")),
        _ => tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n"),
    });
    let proxy = Proxy::to(origin).add("traces", &collector.settings()).workers(1).start();
    let mut client = proxy.connect();
    let received: Vec<_> = (0..2).map(|_| get(&proxy, &mut client, "")).collect();
    let spans = collector.spans(5);
    let second = spans.iter().find(|span| is_second(span)).unwrap();
    let resent = proxy.origin.next();
    assert_eq!(traceparent(&resent), traceparent(&received[1]));
    assert_eq!(traceparent(&resent)[2], second["id"]);
}

#[test]
fn a_trace_continues_over_http2() {
    let Some(collector) = Collector::start(&["200"]) else { return };
    let proxy = traced(&collector, "").start();
    let mut client = proxy.connect_http2();
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let head = request("GET", &[("traceparent", &parent), ("user-agent", "test")]);
    client.send(&frame(1, 5, 1, &head));
    assert!(matches!(client.next(), Came::Response(0x88, 1)));
    let received = proxy.origin.next();
    let spans = collector.spans(2);
    let (server, client) = (of_kind(&spans, "SERVER"), of_kind(&spans, "CLIENT"));
    assert_eq!(server["attributes"]["network.protocol.version"], "2");
    assert_eq!((&server["trace"], &server["parent"]), (&TRACE.into(), &SPAN.into()));
    let id = client["id"].as_str().unwrap();
    assert_eq!(traceparent(&received), ["00", TRACE, id, "01"]);
}

#[test]
fn an_invalid_traceparent_is_replaced_by_that_of_a_new_trace() {
    let Some(collector) = Collector::start(&["200"]) else { return };
    let proxy = traced(&collector, "").start();
    let mut client = proxy.connect();
    let twice = parent("01").repeat(2);
    let zero = parent("01").replace(TRACE, &"0".repeat(32));
    for invalid in ["", &twice, &zero, &parent("01").to_uppercase(), "traceparent: 00-a\r\n"] {
        let received = get(&proxy, &mut client, &format!("{invalid}tracestate: a=1\r\n"));
        let spans = collector.spans(2);
        let (server, client) = (of_kind(&spans, "SERVER"), of_kind(&spans, "CLIENT"));
        let [version, trace, span, flags] = traceparent(&received);
        assert_eq!((version.as_str(), flags.as_str()), ("00", "01"), "{invalid}");
        assert_ne!(trace, TRACE);
        assert_eq!((&server["trace"], &server["parent"]), (&trace.into(), &"".into()));
        assert_eq!((&client["id"], &client["parent"]), (&span.into(), &server["id"]));
        assert_eq!(server["state"], "");
        assert!(received.fields("tracestate").is_empty(), "it belongs to no trace");
    }
    // `Connection` cannot remove the field that keygate sets.
    let received = get(&proxy, &mut client, "Connection: traceparent, tracestate\r\n");
    assert_eq!(traceparent(&received)[0], "00");
}

#[test]
fn a_peer_that_is_not_trusted_neither_joins_a_trace_nor_decides_about_its_own() {
    let Some(collector) = Collector::start(&["200"]) else { return };
    let untrusted = "trace_context_from = [\"10.0.0.0/8\"]";
    let proxy = traced(&collector, "").service(untrusted).start();
    let mut client = proxy.connect();
    for flags in ["00", "01"] {
        let fields = format!("{}tracestate: a=1\r\n", parent(flags));
        let received = get(&proxy, &mut client, &fields);
        let [_, trace, _, found] = traceparent(&received);
        assert!(trace != TRACE && found == "01", "{trace} {found}");
        assert!(received.fields("tracestate").is_empty());
        let spans = collector.spans(2);
        let server = of_kind(&spans, "SERVER");
        assert_eq!((&server["parent"], &server["state"]), (&"".into(), &"".into()));
    }
}

#[test]
fn the_client_or_the_sample_decides_which_requests_are_traced() {
    let Some(collector) = Collector::start(&["200"]) else { return };
    // (settings, fields of the client, the flags that the upstream gets)
    for (settings, fields, flags) in [
        ("sample_one_in = 0", "", "00"),
        ("sample_one_in = 0", &*parent("00"), "00"),
        ("sample_one_in = 0", &*parent("01"), "01"),
        ("sample_one_in = 0\nparent_based = false", &*parent("01"), "00"),
        ("sample_one_in = 1", "", "01"),
        ("sample_one_in = 1", &*parent("00"), "00"),
        ("sample_one_in = 1\nparent_based = false", &*parent("00"), "01"),
    ] {
        let proxy = traced(&collector, settings).start();
        let received = get(&proxy, &mut proxy.connect(), fields);
        let [_, trace, span, found] = traceparent(&received);
        assert_eq!(found, flags, "{settings} {fields}");
        assert_eq!(trace == TRACE, !fields.is_empty(), "the trace goes on in any case");
        assert_ne!(span, SPAN);
        // The end of the process exports all that was sampled.
        let mut keygate = proxy.keygate;
        keygate.signal("TERM");
        keygate.ended();
        if flags == "01" {
            assert_eq!(collector.spans(2).len(), 2);
        }
        assert!(collector.has_nothing(), "{settings} {fields}");
    }
}

#[test]
fn a_client_cannot_cause_more_spans_than_the_rate_allows() {
    let Some(collector) = Collector::start(&["200"]) else { return };
    let proxy = traced(&collector, "max_spans_per_second = 1").start();
    let mut client = proxy.connect();
    let flags = |client: &mut Client| {
        let [_, trace, _, flags] = traceparent(&get(&proxy, client, &parent("01")));
        assert_eq!(trace, TRACE);
        flags
    };
    assert_eq!(flags(&mut client), "01");
    // A request takes less than four seconds.
    assert!((0..100).any(|_| flags(&mut client) == "00"));
    assert!(dropped(&proxy, "rate") >= 2.0);
}

#[test]
fn failures_and_rejections_are_errors_with_their_reason() {
    let Some(collector) = Collector::start(&["200"]) else { return };
    let nowhere = reserved_address();
    let origin = Origin::start();
    let both = [format!("http://{nowhere}"), format!("http://{}", origin.address())];
    let proxy = traced(&collector, "").servers(&[&both[0]]).policy("reject_with = \"http-403\"");
    let proxy = proxy.workers(1).start();
    let mut client = proxy.connect();
    client.send("BREW /a HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 502 "));
    let spans = collector.spans(2);
    let (server, client) = (of_kind(&spans, "SERVER"), of_kind(&spans, "CLIENT"));
    assert_eq!((&server["name"], &client["name"]), (&"HTTP".into(), &"HTTP".into()));
    assert_eq!(server["attributes"]["http.request.method"], "_OTHER");
    assert_eq!(server["attributes"]["http.request.method_original"], "BREW");
    assert_eq!(server["attributes"]["http.response.status_code"], 502);
    assert_eq!((&server["is_error"], &client["is_error"]), (&true.into(), &true.into()));
    assert_eq!(server["attributes"]["error.type"], "502");
    assert_eq!(client["attributes"]["error.type"], "connect");
    assert_eq!(client["attributes"]["server.port"], nowhere.port());
    assert!(client["attributes"].get("http.response.status_code").is_none());

    // A rejected client has no exchange with the upstream.
    let output = proxy.curl(&proxy.lost, &["-w", "%{http_code}"]);
    assert!(output.stdout.ends_with(b"403"));
    let spans = collector.spans(1);
    let server = of_kind(&spans, "SERVER");
    assert_eq!(server["attributes"]["http.response.status_code"], 403);
    assert_eq!(
        (&server["is_error"], &server["attributes"]["keygate.verdict"]),
        (&false.into(), &"probable".into())
    );

    // One of two requests is sent to the first server, and then to the second one.
    let changed = proxy.configuration.clone().servers(&both).upstream("balance = \"round-robin\"");
    std::fs::write(proxy.pki.path("keygate.toml"), changed.text()).unwrap();
    proxy.wait_for_generation(2);
    let ids = [(); 2].map(|()| {
        proxy.admits(&proxy.good);
        Value::from(&*traceparent(&origin.next())[2])
    });
    let spans = collector.spans(5);
    let second = spans.iter().find(|span| is_second(span)).unwrap();
    let mut attempts = spans.iter().filter(|span| span["parent"] == second["parent"]);
    let first = attempts.find(|span| span["id"] != second["id"]).unwrap();
    assert_eq!(first["attributes"]["server.port"], nowhere.port());
    assert_eq!(first["attributes"]["error.type"], "connect");
    assert_eq!(first["end"], second["start"]);
    assert_eq!(second["attributes"]["server.port"], origin.address().port());
    assert_eq!((&first["is_error"], &second["is_error"]), (&true.into(), &false.into()));
    assert!(ids.contains(&second["id"]) && !ids.contains(&first["id"]), "{spans:?}");
}

/// Whether it is the span of a second attempt.
fn is_second(span: &Value) -> bool {
    span["attributes"]["http.request.resend_count"] == 1
}

/// The server or the client ends the exchange after the head of the response.
#[test]
fn a_response_that_breaks_off_is_an_error_of_both_spans() {
    let Some(collector) = Collector::start(&["200"]) else { return };
    let cut = || {
        Origin::responding(|request, tcp| {
            tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\npart")?;
            if !request.head.starts_with("GET /closed ") {
                tcp.read_exact(&mut [0])?; // the proxy closes
            }
            Err(Error::other("closed before the end of the response"))
        })
    };
    for (path, settings, reason) in [
        ("/closed", "", "incomplete"),
        ("/stalled", "body_timeout = \"200ms\"", "incomplete"),
        ("/left", "", "client"),
    ] {
        let proxy = Proxy::to(cut()).upstream(settings).add("traces", &collector.settings());
        let proxy = proxy.start();
        let mut client = proxy.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        assert_eq!(client.exactly(4), b"part");
        if path != "/left" {
            client.whatever_comes();
        }
        drop(client);
        let spans = collector.spans(2);
        for (kind, reason) in [("SERVER", "incomplete"), ("CLIENT", reason)] {
            let span = of_kind(&spans, kind);
            assert_eq!((&span["name"], &span["is_error"]), (&"GET".into(), &true.into()), "{path}");
            assert_eq!(span["attributes"]["error.type"], reason, "{path}: {span}");
            assert_eq!(span["attributes"]["http.response.status_code"], 200, "{path}: {span}");
        }
    }
}

#[test]
fn the_spans_of_an_upgrade_end_with_its_tunnel() {
    let Some(collector) = Collector::start(&["200"]) else { return };
    let upgrade = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\n\
        Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let proxy = Proxy::to(Origin::with_upgrades()).add("traces", &collector.settings()).start();
    for is_closed in [true, false] {
        let mut client = proxy.connect();
        client.send(upgrade);
        assert!(client.head().starts_with("HTTP/1.1 101 "));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        if is_closed {
            client.finish();
            assert_eq!(client.rest(), "");
        }
        drop(client);
        let spans = collector.spans(2);
        for kind in ["SERVER", "CLIENT"] {
            let span = of_kind(&spans, kind);
            assert!(span["end"].as_u64().map(u128::from) >= Some(now.as_nanos()), "{span}");
            assert_eq!(span["attributes"]["http.response.status_code"], 101, "{span}");
            let error = span["attributes"].get("error.type");
            let expected = Value::from("incomplete");
            assert_eq!(error, (!is_closed).then_some(&expected), "{span}");
        }
    }
}
