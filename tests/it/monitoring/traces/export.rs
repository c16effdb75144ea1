//! The export of traces: what the collector gets, and that no request depends on it.

use std::os::unix::fs::PermissionsExt;

use super::{get, traced, traceparent};
use crate::support::collector::Collector;
use crate::support::program::reserved_address;
use crate::support::proxy::{Configure, Proxy};

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
    let error = line["error"].as_str().unwrap();
    assert!(error.contains("refused") && !error.contains("os error"), "{line}");
    assert_eq!(line["endpoint"], format!("http://{nowhere}/v1/traces"), "{line}");
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

/// The sandbox allows the connection, the file of header fields is secret, and the certificate of
/// the collector is verified.
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

/// 512 requests are sent at once. A stop sends the rest.
#[test]
fn a_full_batch_is_sent_before_its_interval_and_the_rest_at_a_stop() {
    let Some(collector) = Collector::start(&["200"]) else { return };
    let settings = "interval = \"1h\"\nmax_spans_per_second = 100000";
    let proxy = traced(&collector, "").unset("traces.interval").add("traces", settings).start();
    let mut client = proxy.connect();
    for _ in 0..513 {
        get(&proxy, &mut client, "");
    }
    assert_eq!(collector.next()["spans"].as_array().unwrap().len(), 1024);
    assert!(collector.has_nothing());
    let mut keygate = proxy.keygate;
    keygate.signal("TERM");
    assert!(keygate.ended().success());
    assert_eq!(collector.next()["spans"].as_array().unwrap().len(), 2);
    assert!(collector.has_nothing());
}

#[test]
fn a_batch_is_dropped_after_three_attempts() {
    let Some(collector) = Collector::start(&["503", "429", "504", "200"]) else { return };
    let proxy = traced(&collector, "").start();
    let mut client = proxy.connect();
    get(&proxy, &mut client, "");
    let attempts: [_; 3] = std::array::from_fn(|_| collector.next()["spans"].take());
    assert!(attempts.iter().all(|spans| *spans == attempts[0]), "{attempts:?}");
    proxy.wait_for_metric("keygate_trace_spans_dropped_total{reason=\"export\"}", 2.0);
    get(&proxy, &mut client, "");
    assert_ne!(collector.next()["spans"], attempts[0]);
    proxy.wait_for_metric("keygate_trace_spans_exported_total", 2.0);
}

#[test]
fn a_collector_that_never_responds_loses_the_batch_after_the_timeout() {
    let Some(collector) = Collector::start(&["silent"]) else { return };
    let proxy = traced(&collector, "timeout = \"100ms\"").start();
    get(&proxy, &mut proxy.connect(), "");
    let line = proxy.wait_for("the failure", |line| line["message"] == "traces cannot be exported");
    assert_eq!(line["error"], "no response within 100ms", "{line}");
    proxy.wait_for_metric("keygate_trace_spans_dropped_total{reason=\"export\"}", 2.0);
}

/// Its head is a response already.
#[test]
fn a_response_without_an_end_holds_up_no_further_batch() {
    let Some(collector) = Collector::start(&["unfinished", "200"]) else { return };
    let proxy = traced(&collector, "timeout = \"1h\"").start();
    for exported in [2.0, 4.0] {
        get(&proxy, &mut proxy.connect(), "");
        assert_eq!(collector.spans(2).len(), 2);
        proxy.wait_for_metric("keygate_trace_spans_exported_total", exported);
    }
}
