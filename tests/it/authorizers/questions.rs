//! The one path from a question to its answer: verdicts, denials, metrics, log lines, the report
//! (`src/ask/connection.rs`).

use data_encoding::BASE64;
use serde_json::{Value, json};

use crate::support::asker::{AskedKeygate, UNIX, configuration};
use crate::support::keygate::keygate;
use crate::support::pki::{Kind, Pki};
use crate::support::proof_source::{ProofSource, fingerprint};
use crate::support::{output_text, wait_for, write_revision};

const RESULTS: [&str; 9] = [
    "allowed",
    "client_not_allowed",
    "denied",
    "draining",
    "malformed",
    "no_certificate",
    "not_allowed",
    "not_verified",
    "oversize",
];

#[test]
fn every_series_exists_before_the_first_question() {
    let scene = AskedKeygate::start(UNIX);
    let metrics = scene.keygate.metrics();
    for result in RESULTS {
        let series = format!("keygate_questions_total{{result=\"{result}\",service=\"edge\"}}");
        assert_eq!(metrics.get(&series), Some(&0.0), "{series}");
    }
    for series in [
        "keygate_key_checks_total{service=\"edge\",stage=\"asked\",verdict=\"probable\"}",
        "keygate_key_actions_total{action=\"reject\",service=\"edge\"}",
        "keygate_name_checks_total{result=\"not_allowed\",service=\"edge\",stage=\"asked\"}",
        "keygate_question_duration_seconds_count{service=\"edge\"}",
        "keygate_askers_active{service=\"edge\"}",
    ] {
        assert_eq!(metrics.get(series), Some(&0.0), "{series}");
    }
}

#[test]
fn verdicts_become_answers_that_are_counted_and_logged() {
    let scene = AskedKeygate::start(UNIX);
    let mut asker = scene.connect();
    let clean = asker.ask_about(&scene.good);
    assert_eq!((clean.status, clean.field("client-key-status")), (200, Some("clean")));
    let hit = asker.ask_about(&scene.lost);
    assert_eq!((hit.status, hit.field("client-key-status")), (403, Some("probable")));
    assert!(hit.body.contains("probably compromised"), "{}", hit.body);

    let line = scene.keygate.wait_for("the line", |line| line["message"] == "client key rejected");
    for (field, expected) in [
        ("service", "edge"),
        ("client", "192.0.2.7"),
        ("proof", "host"),
        ("stage", "asked"),
        ("verdict", "probable"),
        ("action", "reject"),
        ("filter", "lost"),
    ] {
        assert_eq!(line[field], expected, "{line}");
    }
    assert!(line["asker"].as_str().unwrap().starts_with("uid "), "{line}");
    for (series, count) in [
        ("keygate_key_checks_total{service=\"edge\",stage=\"asked\",verdict=\"clean\"}", 1.0),
        ("keygate_key_checks_total{service=\"edge\",stage=\"asked\",verdict=\"probable\"}", 1.0),
        ("keygate_key_actions_total{action=\"admit\",service=\"edge\"}", 1.0),
        ("keygate_key_actions_total{action=\"reject\",service=\"edge\"}", 1.0),
        ("keygate_question_duration_seconds_count{service=\"edge\"}", 2.0),
        ("keygate_askers_active{service=\"edge\"}", 1.0),
    ] {
        assert_eq!(scene.keygate.metric(series), count, "{series}");
    }
    assert_eq!((scene.questions("allowed"), scene.questions("denied")), (1.0, 1.0));
    let report: Value = serde_json::from_str(&scene.keygate.admin("/report").1).unwrap();
    let text = report.to_string();
    assert!(text.contains("\"asked\"") && text.contains("192.0.2.7"), "{text}");
    drop(asker);
    scene.keygate.wait_for_metric("keygate_askers_active{service=\"edge\"}", 0.0);
}

#[test]
fn a_client_that_no_rule_names_is_denied_counted_logged_and_reported() {
    let allow =
        |name| format!("{UNIX}client_auth = {{ allow = {{ common_names = [\"{name}\"] }} }}\n");
    let scene = AskedKeygate::start(&allow("good"));
    let unnamed = scene.pki.client("unnamed", Kind::P256);
    let mut asker = scene.connect();
    assert_eq!(asker.ask_about(&scene.good).status, 200);
    let denied = asker.ask_about(&unnamed);
    assert_eq!((denied.status, denied.field("client-key-status")), (403, Some("clean")));
    assert!(denied.body.contains("no name of the client certificate is allowed here"));
    // The verdict on the key goes before the rules.
    assert_eq!(asker.ask_about(&scene.lost).field("client-key-status"), Some("probable"));
    let line = scene.keygate.wait_for("the line", |line| line["message"] == "client not allowed");
    for (field, expected) in [
        ("service", "edge"),
        ("client", "192.0.2.7"),
        ("subject", "CN=unnamed"),
        ("stage", "asked"),
        ("result", "not_allowed"),
        ("verdict", "clean"),
        ("action", "reject"),
    ] {
        assert_eq!(line[field], expected, "{line}");
    }
    let results = ["allowed", "client_not_allowed", "denied", "not_allowed"];
    assert_eq!(results.map(|result| scene.questions(result)), [1.0, 1.0, 1.0, 0.0]);
    for (result, count) in [("allowed", 1.0), ("not_allowed", 1.0)] {
        let series = format!(
            "keygate_name_checks_total{{result=\"{result}\",service=\"edge\",stage=\"asked\"}}"
        );
        assert_eq!(scene.keygate.metric(&series), count, "{series}");
    }
    let actions = "keygate_key_actions_total{action=\"reject\",service=\"edge\"}";
    assert_eq!(scene.keygate.metric(actions), 1.0, "of the probable key alone");
    let (_, shown) = scene.keygate.admin("/status.txt");
    assert!(shown.contains(", allowed 1, denied 2, unusable 0, "), "{shown}");
    let report: Value = serde_json::from_str(&scene.keygate.admin("/report").1).unwrap();
    let clients = report["clients"].as_array().unwrap();
    assert!(clients.iter().any(|it| it["result"] == "not_allowed" && it["stage"] == "asked"));

    // The next question on the open connection gets the answer of the new rules.
    scene.reconfigure(&allow("unnamed"), 2);
    assert_eq!(asker.ask_about(&unnamed).status, 200);
    assert_eq!(asker.ask_about(&scene.good).status, 403);
}

#[test]
fn an_allowed_answer_has_the_whole_verdict_and_flagged_clients_are_logged() {
    let scene = AskedKeygate::start(&format!("{UNIX}policy = {{ on_probable = \"flag\" }}\n"));
    let flagged = scene.connect().ask_about(&scene.lost);
    let status = Some("probable;filter=\"lost\";revision=1");
    assert_eq!((flagged.status, flagged.field("client-key-status")), (200, status));
    scene.keygate.wait_for("the line", |line| line["message"] == "client key flagged");
}

/// `on_unchecked = "flag"`, which clients without a certificate need, must not admit them.
#[test]
fn a_question_that_cannot_be_used_is_denied_whatever_the_policy() {
    let optional = "client_auth = { mode = \"optional\" }\npolicy = { on_unchecked = \"flag\" }\n";
    let scene = AskedKeygate::start(&format!("{UNIX}{optional}"));
    let mut asker = scene.connect();
    let none = asker.ask(&[]);
    assert_eq!((none.status, none.field("client-key-status")), (200, Some("unchecked")));
    let broken = &scene.good.der[..scene.good.der.len() / 2];
    for chain in [&[broken][..], &[b"no certificate"], &[&scene.good.der, broken]] {
        let denied = scene.connect().ask(chain);
        let status = denied.field("client-key-status");
        assert_eq!((denied.status, status), (403, Some("unchecked")), "{chain:?}");
    }
    let line = scene.keygate.wait_for("the line", |line| {
        line["message"] == "question denied, its certificate cannot be used"
    });
    assert_eq!((&line["result"], &line["service"]), (&"malformed".into(), &"edge".into()));
    assert!(line["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{line}");
    assert_eq!(scene.questions("malformed"), 3.0);

    let required = AskedKeygate::start(UNIX);
    assert_eq!(required.connect().ask(&[]).status, 403);
    assert_eq!(required.questions("no_certificate"), 1.0);
}

#[test]
fn a_client_whose_address_the_host_does_not_send_has_none_in_log_and_report() {
    let scene = AskedKeygate::start(UNIX);
    let certificate = BASE64.encode(&scene.lost.der);
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\nClient-Cert: :{certificate}:\r\n\r\n");
    assert_eq!(scene.connect().exchange(&request).unwrap().status, 403);
    let line = scene.keygate.wait_for("the line", |line| line["message"] == "client key rejected");
    assert_eq!((&line["client"], &line["peer"]), (&Value::Null, &Value::Null), "{line}");
    let report: Value = serde_json::from_str(&scene.keygate.admin("/report").1).unwrap();
    let client = report["clients"][0].as_object().unwrap();
    assert_eq!(client.get("address"), Some(&Value::Null), "{report}");
    assert!(scene.keygate.admin("/").1.contains("data-label=\"address\">-"));
    let admin = scene.pki.path("admin.toml");
    let text =
        configuration(UNIX).replace("127.0.0.1:0", &scene.keygate.admin_address().to_string());
    std::fs::write(&admin, text).unwrap();
    let output = keygate(&["report", "--config", admin.to_str().unwrap()]);
    assert!(output_text(&output).contains("last from -\n"), "{}", output_text(&output));
}

#[test]
fn a_client_that_was_asked_about_is_a_new_hit_of_an_update() {
    let text = configuration(UNIX);
    let text = text.replace("path = \"lost.pkbf\"", "path = \"lost.pkbf\", max_new_hits = 0");
    let scene = AskedKeygate::configured(Pki::new(), &text);
    assert_eq!(scene.connect().ask_about(&scene.good).status, 200);
    write_revision(&scene.pki.path("lost.pkbf"), &[&scene.lost.spki, &scene.good.spki], 2);
    let status = scene.keygate.wait_for_status("the update to wait", |status| {
        status["filters"][0]["waiting"].is_object()
    });
    let waiting = &status["filters"][0]["waiting"];
    assert_eq!(waiting["new_hits"], 1);
    let fingerprint = fingerprint(&scene.good);
    let clients = json!([{ "service": "edge", "fingerprint": fingerprint, "subject": "CN=good" }]);
    assert_eq!(waiting["clients"], clients);
    assert_eq!(scene.connect().ask_about(&scene.good).status, 200, "the filter in use stays");
}

#[test]
fn the_source_of_proofs_is_asked_about_the_key_of_a_question_and_later_questions_get_the_answer() {
    let (pki, source) = (Pki::new(), ProofSource::start());
    let edge = format!("{UNIX}policy = {{ on_probable = \"flag\", on_cleared = \"header\" }}\n");
    let text = configuration(&edge) + &source.settings(&pki, "1h");
    let scene = AskedKeygate::configured(pki, &text);
    source.wait_for_canary(&scene.keygate);
    source.prove(&scene.lost);
    source.clear(&scene.good);
    write_revision(&scene.pki.path("lost.pkbf"), &[&scene.lost.spki, &scene.good.spki], 2);
    scene.keygate.wait_for_generation(2);
    let mut asker = scene.connect();
    for (client, status, word) in [(&scene.lost, 403, "confirmed"), (&scene.good, 200, "cleared")] {
        let first = asker.ask_about(client);
        assert_eq!(first.status, 200, "it does not wait");
        assert!(first.field("client-key-status").unwrap().starts_with("probable;"), "{first:?}");
        source.wait_for_question(client);
        wait_for("the answer", || {
            let later = asker.ask_about(client);
            let found = later.field("client-key-status").unwrap();
            let is_known = later.status == status && found.starts_with(word);
            if is_known { Ok(()) } else { Err(format!("{later:?}")) }
        });
        assert_eq!(source.questions(client), 1);
    }
    let line = scene.keygate.wait_for("the line", |line| line["verdict"] == "confirmed");
    assert_eq!((&line["proof"], &line["message"]), (&json!("host"), &json!("client key rejected")));
    assert_eq!(line["key_proof"], fingerprint(&scene.lost), "{line}");
}
