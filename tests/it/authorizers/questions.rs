//! The one path from a question to its answer: verdicts, denials, metrics, log lines, the report
//! (`src/ask/connection.rs`).

use serde_json::Value;

use crate::support::asker::{AskedKeygate, UNIX};

const RESULTS: [&str; 7] =
    ["allowed", "denied", "draining", "malformed", "not_allowed", "not_verified", "oversize"];

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
    assert_eq!(required.questions("malformed"), 1.0);
}
