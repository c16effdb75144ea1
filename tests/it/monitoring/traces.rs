//! Traces: which spans a collector gets, what the upstream gets, and that no request depends on a
//! collector.

use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::collector::Collector;
use crate::support::http2::{Came, frame, request};
use crate::support::keygate::Keygate;
use crate::support::origin::{Origin, Received};
use crate::support::program::reserved_address;
use crate::support::proxy::{Configure, Proxy, Running};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// A `traceparent` of the client.
fn parent(flags: &str) -> String {
    format!("traceparent: 00-{TRACE}-{SPAN}-{flags}\r\n")
}

/// A proxy that exports to `collector`.
fn traced(collector: &Collector, settings: &str) -> Proxy {
    Proxy::new().add("traces", &collector.settings()).add("traces", settings)
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
    let resource = json!([{"service.name": "edge", "service.version": version}]);
    assert_eq!((&export["resources"], &export["scopes"]), (&resource, &json!(["keygate"])));
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
    while flags(&mut client) == "01" {} // ends: a request takes less than four seconds
    assert!(dropped(&proxy, "rate") >= 2.0);
}

#[test]
fn failures_and_rejections_are_errors_with_their_reason() {
    let Some(collector) = Collector::start(&["200"]) else { return };
    let nowhere = reserved_address();
    let origin = Origin::start();
    let both = [format!("http://{nowhere}"), format!("http://{}", origin.address())];
    let proxy =
        traced(&collector, "").servers(&[&both[0]]).policy("reject_with = \"http-403\"").start();
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

    // The exchange names the server that was tried last.
    let changed = proxy.configuration.clone().servers(&both).upstream("balance = \"round-robin\"");
    std::fs::write(proxy.pki.path("keygate.toml"), changed.text()).unwrap();
    proxy.wait_for_generation(2);
    for _ in 0..2 {
        proxy.admits(&proxy.good);
        let spans = collector.spans(2);
        let client = of_kind(&spans, "CLIENT");
        assert_eq!(client["attributes"]["server.port"], origin.address().port());
        assert_eq!(client["is_error"], false);
        let id = traceparent(&origin.next())[2].clone();
        assert_eq!(client["id"], id.as_str(), "a request that is sent again has the same parent");
    }
}

#[test]
fn requests_are_served_without_a_collector_and_lost_spans_are_counted() {
    let nowhere = reserved_address();
    let settings = format!("endpoint = \"http://{nowhere}\"\ninterval = \"1ms\"");
    let proxy = Proxy::new().add("traces", &settings).start();
    let mut client = proxy.connect();
    for _ in 0..20 {
        assert_eq!(traceparent(&get(&proxy, &mut client, ""))[3], "01");
    }
    let line = proxy.wait_for("the failure", |line| line["message"] == "traces cannot be exported");
    assert!(line["error"].as_str().unwrap().contains("refused"), "{line}");
    proxy.wait_for_counter("keygate_trace_spans_dropped_total{reason=\"export\"}", 2.0);
    assert_eq!(proxy.lines("traces cannot be exported").len(), 1, "one line a minute");
    assert_eq!(proxy.metric("keygate_trace_spans_exported_total"), 0.0);
}

/// The export takes as long as the test. A request that waited for it would not end.
#[test]
fn requests_are_served_with_a_collector_that_never_responds_and_the_queue_is_bounded() {
    let Some(collector) = Collector::start(&["silent"]) else { return };
    let proxy = traced(&collector, "timeout = \"1h\"\nmax_queue = 4").start();
    let mut client = proxy.connect();
    get(&proxy, &mut client, "");
    assert_eq!(collector.spans(2).len(), 2, "the export is under way");
    for sent in 1..=20_u32 {
        get(&proxy, &mut client, "");
        // The span of a request ends a moment after its response was read.
        let lost = f64::from(2 * sent.saturating_sub(4));
        proxy.wait_for_metric("keygate_trace_spans_dropped_total{reason=\"queue\"}", lost);
    }
    assert!(collector.has_nothing());
    // A stop waits for the collector for two seconds, not for an hour.
    let mut keygate = proxy.keygate;
    keygate.signal("TERM");
    assert!(keygate.ended().success());
}

#[test]
fn a_batch_is_sent_again_after_a_temporary_failure_and_no_other() {
    let Some(collector) = Collector::start(&["503", "400", "rejects=1", "200"]) else { return };
    let proxy = traced(&collector, "").start();
    let mut client = proxy.connect();
    get(&proxy, &mut client, "");
    let first = collector.next();
    let again = collector.next(); // gets 400
    assert_eq!(first["spans"], again["spans"]);
    let line = proxy.wait_for("the failure", |line| line["message"] == "traces cannot be exported");
    assert!(line["error"].as_str().unwrap().contains("503"), "{line}");
    proxy.wait_for_metric("keygate_trace_spans_dropped_total{reason=\"export\"}", 2.0);
    get(&proxy, &mut client, "");
    collector.next();
    proxy.wait_for_metric("keygate_trace_spans_dropped_total{reason=\"rejected\"}", 1.0);
    assert_eq!(proxy.metric("keygate_trace_spans_exported_total"), 1.0);
    get(&proxy, &mut client, "");
    collector.next();
    proxy.wait_for("the recovery", |line| line["message"] == "traces are exported again");
    proxy.wait_for_metric("keygate_trace_spans_exported_total", 3.0);
    assert!(collector.has_nothing());
}

/// The sandbox allows the connection, the file of header fields is secret, and the certificate of the
/// collector is verified.
#[test]
fn a_collector_is_authenticated_and_gets_the_fields_of_a_file() {
    let proxy = Proxy::new();
    let [certificate, key] = ["server.pem", "server.key"].map(|name| proxy.pki.path(name));
    let tls = ["--tls", certificate.to_str().unwrap(), key.to_str().unwrap(), "200"];
    let Some(collector) = Collector::start(&tls) else { return };
    let fields = proxy.pki.path("collector.fields");
    std::fs::write(&fields, "# secret\nAuthorization: Bearer the-secret\nX-Team: edge\n").unwrap();
    std::fs::set_permissions(&fields, std::fs::Permissions::from_mode(0o600)).unwrap();
    let settings = format!(
        "endpoint = \"https://localhost:{}/otlp\"\ntrust_anchors = \"ca.pem\"\n\
         headers = \"collector.fields\"\ninterval = \"1ms\"",
        collector.port
    );
    let proxy =
        proxy.add("traces", &settings).global("sandbox = { ports = \"configured\" }").start();
    proxy.admits(&proxy.good);
    let export = collector.next();
    assert_eq!(export["path"], "/otlp");
    assert_eq!(export["headers"]["authorization"], "Bearer the-secret");
    assert_eq!(export["headers"]["x-team"], "edge");
    assert!(proxy.matching_lines(|line| line.to_string().contains("the-secret")).is_empty());

    let other = proxy.pki.subordinate("other");
    std::fs::copy(other.path("ca.pem"), proxy.pki.path("other.pem")).unwrap();
    let settings = settings.replace("\"ca.pem\"", "\"other.pem\"");
    let configuration = proxy.configuration.clone().unset("traces").add("traces", &settings);
    let distrusting = configuration.start(&proxy.pki);
    assert_eq!(distrusting.curl(&proxy.good, &[]).stdout, b"hello\n");
    let line =
        distrusting.wait_for("the failure", |line| line["message"] == "traces cannot be exported");
    assert!(line["error"].as_str().unwrap().contains("TLS"), "{line}");
    assert!(collector.has_nothing());
}

#[test]
fn a_file_of_the_collector_that_cannot_be_used_prevents_the_start() {
    let proxy = Proxy::new();
    let settings = "endpoint = \"http://127.0.0.1:4318\"\nheaders = \"fields\"";
    let configuration = proxy.configuration.clone().add("traces", settings);
    std::fs::write(proxy.pki.path("fields"), "Authorization: a\nHost: b\n").unwrap();
    std::fs::write(proxy.pki.path("keygate.toml"), configuration.text()).unwrap();
    crate::support::write_filter(&proxy.pki.path("lost.pkbf"), &[]);
    let file = proxy.pki.path("keygate.toml");
    for command in ["validate", "run"] {
        let output =
            crate::support::keygate::keygate(&[command, "--config", file.to_str().unwrap()]);
        let text = crate::support::output_text(&output);
        assert!(text.contains("traces.headers") && text.contains("line 2"), "{command}: {text}");
        assert!(!output.status.success());
    }
}
