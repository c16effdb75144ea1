//! A source of proofs that plays every kind of answer. For each: the verdict, the metric, the log
//! line and the next question.
//!
//! Guards: `Conclusion` in `src/confirm/task/outcome.rs`, `clear_if_trusted` and
//! `record_canary` in `src/confirm/task.rs`, `read` and `get` in `src/confirm/client.rs`, `finish`
//! in `src/confirm/schedule.rs`.

use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use keygate_core::spki::related;
use serde_json::json;

use crate::support::client::Client;
use crate::support::keygate::{BINARY, Keygate};
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proof_source::{
    ProofSource, Reply, canary, fingerprint, not_found, proof, proof_of, respond,
};
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::{wait_until, write_filter};

/// A proxy whose client `lost` is in the filter, and a source that knows its canary.
fn scene(reply: Reply, confirm: &str) -> (Running, ProofSource) {
    scene_at(ProofSource::start(), reply, confirm)
}

fn scene_at(source: ProofSource, reply: Reply, confirm: &str) -> (Running, ProofSource) {
    let proxy = Proxy::new();
    let canary = canary(&proxy.pki);
    source.reply(&canary, proof(&canary));
    source.reply(&proxy.lost, reply);
    let table = format!("url = \"{}\"\ncanary = \"canary.pem\"\n", source.url());
    (proxy.add("confirm", &table).add("confirm", confirm).start(), source)
}

impl Running {
    /// Whether `client` gets the response of the origin.
    fn serves(&self, client: &Party) -> bool {
        self.curl(client, &[]).stdout == b"hello\n"
    }

    fn wait_for_result(&self, result: &str, count: f64) {
        let series = format!("keygate_confirmations_total{{result=\"{result}\"}}");
        self.wait_for_metric(&series, count);
    }

    /// Waits for a first failure. More may follow, because the question is asked again.
    fn wait_for_failure(&self, result: &str) {
        let series = format!("keygate_confirmations_total{{result=\"{result}\"}}");
        self.wait_for_counter(&series, 1.0);
    }

    fn wait_for_canary(&self, is_successful: f64) {
        self.wait_for_metric("keygate_confirmation_canary_successful", is_successful);
    }
}

/// `reply`, which is sent once the sender is dropped.
fn blocked(reply: Reply) -> (Sender<()>, Reply) {
    let (release, released) = channel();
    let released = Mutex::new(released);
    let reply: Reply = Arc::new(move |stream| {
        released.lock().unwrap().recv().unwrap_err();
        reply(stream)
    });
    (release, reply)
}

/// Seconds from now to an RFC 3339 time.
fn seconds_to(time: &serde_json::Value) -> f64 {
    let time = humantime::parse_rfc3339(time.as_str().unwrap()).unwrap();
    match time.duration_since(SystemTime::now()) {
        Ok(left) => left.as_secs_f64(),
        Err(error) => -error.duration().as_secs_f64(),
    }
}

#[test]
fn a_proved_compromise_is_confirmed_and_kept_and_not_asked_about_again() {
    let proxy = Proxy::new().policy("on_probable = \"flag\", on_confirmed = \"reject\"");
    let reply = proof(&proxy.lost);
    let (source, state) = (ProofSource::start(), proxy.pki.path("state"));
    std::fs::create_dir(&state).unwrap();
    source.reply(&proxy.lost, reply);
    let table = format!("url = \"{}\"\ncanary = \"off\"\n", source.url());
    let proxy = proxy.add("confirm", &table).global("state = { dir = \"state\" }").start();
    assert!(!proxy.serves(&proxy.lost));
    proxy.admits(&proxy.good);
    let name = fingerprint(&proxy.lost);
    let line = proxy.wait_for("the line about the proof", |line| {
        line["message"] == "compromise of a client key proved"
    });
    assert_eq!((&line["level"], &line["fingerprint"]), (&json!("WARN"), &json!(name)));
    let kept = state.join("proofs").join(format!("{name}.jws"));
    assert_eq!(line["proof_file"], json!(kept.to_str().unwrap()));
    assert_eq!(line["source"], json!(source.url()));
    wait_until("the proof is kept", || kept.exists());
    keygate_core::proof::verify(&std::fs::read(&kept).unwrap(), &proxy.lost.spki).unwrap();
    proxy.wait_for_result("confirmed", 1.0);
    proxy.wait_for_metric("keygate_confirmation_answers{verdict=\"confirmed\"}", 1.0);
    let asked = source.next();
    assert!(asked.head.starts_with(&format!("GET /{name} HTTP/1.1\r\n")), "{}", asked.head);
    for field in
        ["user-agent: keygate\r\n", "accept: application/json\r\n", "connection: close\r\n"]
    {
        assert!(asked.head.contains(field), "{}", asked.head);
    }
    assert_eq!(asked.head.lines().count(), 6, "nothing else leaves: {}", asked.head);
    proxy.revokes(&proxy.lost); // in the handshake now
    assert!(source.taken().is_empty(), "a confirmed key is never asked about again");
    let status = proxy.wait_for_status("an answer", |status| {
        status["confirm"]["answers"][0]["verdict"] == "confirmed"
    });
    assert_eq!(status["confirm"]["answers"][0]["fingerprint"], json!(name));
}

#[test]
fn a_key_that_a_source_with_its_canary_does_not_know_is_cleared() {
    let (proxy, source) = scene(not_found(), "");
    proxy.admits(&proxy.lost);
    proxy.wait_for_canary(1.0);
    let line = proxy.wait_for("the line", |line| line["message"] == "client key cleared");
    assert_eq!(
        (&line["level"], &line["fingerprint"]),
        (&json!("INFO"), &json!(fingerprint(&proxy.lost)))
    );
    let day = 86_400.0;
    assert!((0.89 * day..1.11 * day).contains(&seconds_to(&line["until"])), "{line}");
    proxy.wait_for_result("cleared", 1.0);
    proxy.wait_for_metric("keygate_confirmation_answers{verdict=\"cleared\"}", 1.0);
    source.next_about(&proxy.lost);
    proxy.admits(&proxy.lost);
    proxy.wait_for_metric("keygate_confirmations_pending", 0.0);
    assert!(source.taken().is_empty(), "it is not asked about again before it is due");
    let status = proxy.status();
    assert_eq!(
        (&status["confirm"]["canary"], &status["confirm"]["cleared"]),
        (&json!("ok"), &json!(1))
    );
}

#[test]
fn a_source_that_answers_404_to_everything_clears_nobody() {
    let proxy = Proxy::new();
    let source = ProofSource::start();
    canary(&proxy.pki);
    let table = format!("url = \"{}\"\ncanary = \"canary.pem\"\n", source.url());
    let proxy = proxy.add("confirm", &table).start();
    let line = proxy.wait_for("the canary", |line| {
        line["message"] == "source does not know its canary, no key is cleared"
    });
    assert!(line["error"].as_str().unwrap().ends_with(": 404 Not Found"), "{line}");
    assert!(!proxy.serves(&proxy.lost));
    proxy.wait_for_failure("untrusted");
    assert_eq!(proxy.metric("keygate_confirmation_canary_successful"), 0.0);
    assert_eq!(proxy.metric("keygate_confirmation_answers{verdict=\"cleared\"}"), 0.0);
    proxy.wait_for("the line", |line| {
        line["message"] == "no answer about a client key" && line["result"] == "untrusted"
    });
    assert_eq!(proxy.status()["confirm"]["canary"], json!("failed"));
}

#[test]
fn a_canary_that_answers_again_clears_keys_again() {
    let proxy = Proxy::new();
    let source = ProofSource::start();
    let canary = canary(&proxy.pki);
    let table = format!("url = \"{}\"\ncanary = \"canary.pem\"\n", source.url());
    let proxy = proxy.add("confirm", &table).start();
    proxy.wait_for("the canary", |line| {
        line["message"] == "source does not know its canary, no key is cleared"
    });
    assert!(!proxy.serves(&proxy.lost));
    source.reply(&canary, proof(&canary));
    proxy.wait_for("the canary", |line| {
        line["message"] == "source of proofs knows its canary again"
    });
    proxy.wait_for_result("cleared", 1.0);
    proxy.admits(&proxy.lost);
}

/// A kind of answer that is none.
struct Case {
    name: &'static str,
    reply: Reply,
    result: &'static str,
    /// A part of the error in the log.
    error: &'static str,
    /// Seconds until the next question.
    next: std::ops::Range<f64>,
}

/// The first back-off, rounded down, and the time that the test itself takes.
const FIRST: std::ops::Range<f64> = -60.0..2.0;

fn endless(head: &'static str, length: u64) -> Reply {
    Arc::new(move |stream| {
        write!(stream, "HTTP/1.1 200 OK\r\n{head}\r\n")?;
        for _ in 0..length / 65_536 {
            stream.write_all(&[b'x'; 65_536])?;
        }
        Ok(())
    })
}

fn cases(lost: &Party, other: &Party) -> Vec<Case> {
    let case = |name, reply, result, error| Case { name, reply, result, error, next: FIRST };
    let hour = 3240.0 - 60.0..3960.0;
    let bad =
        |name, reply, error| Case { next: hour.clone(), ..case(name, reply, "bad_proof", error) };
    let good = proof_of(lost);
    let limited = |name, field: &str, next| Case {
        next,
        ..case(name, respond("429 Too Many Requests", field, ""), "rate_limited", "429")
    };
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(600));
    vec![
        bad("a proof of another key", proof(other), "kid"),
        bad("no JSON", respond("200 OK", "", "pwned"), "json"),
        bad("gzip", respond("200 OK", "content-encoding: gzip\r\n", &good), "encoding"),
        case("400", respond("400 Bad Request", "", ""), "refused", "400 Bad Request"),
        case("401", respond("401 Unauthorized", "", ""), "refused", "401 Unauthorized"),
        case("500", respond("500 Oops", "", ""), "server_error", "500"),
        case("503", respond("503 Busy", "", ""), "server_error", "503"),
        case(
            "a redirect",
            respond("302 Found", "location: http://127.0.0.1:1/\r\n", &good),
            "refused",
            "302 Found",
        ),
        limited("429 with seconds", "retry-after: 600\r\n", 540.0..601.0),
        limited("429 with a date", &format!("retry-after: {date}\r\n"), 540.0..601.0),
        limited("429 without a time", "", 0.0..61.0),
        limited("429 for a year", "retry-after: 31536000\r\n", 3540.0..3601.0),
        case("1 GiB", endless("content-length: 1073741824\r\n", 1 << 30), "too_large", "larger"),
        case("1 GiB until the end", endless("", 1 << 30), "too_large", "larger"),
        case(
            "a large head",
            respond("200 OK", &format!("x-large: {}\r\n", "x".repeat(100_000)), &good),
            "too_large",
            "larger",
        ),
        case(
            "a body that is cut",
            Arc::new(|stream| {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"payload\"")
            }),
            "unreachable",
            "broke off",
        ),
        case("a close", Arc::new(|_| Ok(())), "unreachable", "closed the connection"),
        case(
            "no HTTP",
            Arc::new(|stream| stream.write_all(b"SSH-2.0-x\r\n\r\n")),
            "unreachable",
            "pars",
        ),
    ]
}

#[test]
fn an_answer_that_is_none_leaves_the_key_probable() {
    let other = Pki::new().client("other", Kind::P256);
    let names = cases(&other, &other).len();
    for index in 0..names {
        let proxy = Proxy::new();
        let source = ProofSource::start();
        let canary = canary(&proxy.pki);
        source.reply(&canary, proof(&canary));
        let Case { name, reply, result, error, next } = cases(&proxy.lost, &other).remove(index);
        source.reply(&proxy.lost, reply);
        // The wait is shorter than the pause after each 429.
        let table = format!("url = \"{}\"\ncanary = \"canary.pem\"\nwait = \"50s\"", source.url());
        let proxy = proxy.add("confirm", &table).start();
        assert!(!proxy.serves(&proxy.lost), "{name}");
        proxy.wait_for_failure(result);
        for verdict in ["confirmed", "cleared"] {
            let series = format!("keygate_confirmation_answers{{verdict=\"{verdict}\"}}");
            assert_eq!(proxy.metric(&series), 0.0, "{name}");
        }
        let line = if result == "bad_proof" {
            let line = proxy.wait_for(name, |line| line["message"] == "proof does not verify");
            assert_eq!(line["level"], json!("ERROR"), "{name}");
            assert_eq!(line["reason"], json!(error), "{name}");
            proxy.wait_for(name, |line| line["message"] == "no answer about a client key")
        } else {
            let line =
                proxy.wait_for(name, |line| line["message"] == "no answer about a client key");
            assert!(line["error"].as_str().unwrap().contains(error), "{name}: {line}");
            line
        };
        assert_eq!((&line["level"], &line["result"]), (&json!("WARN"), &json!(result)), "{name}");
        assert_eq!(line["fingerprint"], json!(fingerprint(&proxy.lost)), "{name}");
        let seconds = seconds_to(&line["next"]);
        assert!(next.contains(&seconds), "{name}: {seconds} in {line}");
        let blocked = proxy.metric("keygate_confirmation_blocked_until_timestamp_seconds");
        assert_eq!(blocked > 0.0, result == "rate_limited", "{name}");
        assert!(proxy.serves(&proxy.good), "{name}");
    }
}

#[test]
fn a_response_that_stalls_or_trickles_ends_at_the_deadline() {
    let stalls: [(&str, Reply); 3] = [
        ("nothing", Arc::new(|stream| stream.read(&mut [0]).map(drop))),
        (
            "half a body",
            Arc::new(|stream| {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")?;
                stream.read(&mut [0]).map(drop)
            }),
        ),
        (
            "a byte a time",
            Arc::new(|stream| {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\n")?;
                loop {
                    stream.write_all(b"x")?;
                    // The pause is the subject: no byte arrives late enough for an idle timeout.
                    std::thread::sleep(Duration::from_millis(100));
                }
            }),
        ),
    ];
    for (name, reply) in stalls {
        let (proxy, _source) = scene(reply, "timeout = \"1s\"");
        assert!(!proxy.serves(&proxy.lost), "{name}");
        proxy.wait_for_failure("timeout");
        let line = proxy.wait_for(name, |line| line["message"] == "no answer about a client key");
        assert_eq!(line["result"], json!("timeout"), "{name}");
        let duration = proxy.metric("keygate_confirmation_duration_seconds_sum");
        assert!(duration >= 1.0, "{name}: {duration}");
    }
}

#[test]
fn all_encodings_of_a_key_share_one_deadline() {
    let proxy = Proxy::new();
    let compressed = related(&proxy.lost.spki).remove(1).1;
    write_filter(&proxy.pki.path("lost.pkbf"), &[&proxy.lost.spki, &compressed]);
    let source = ProofSource::start();
    let canary = canary(&proxy.pki);
    source.reply(&canary, proof(&canary));
    let slow = not_found();
    source.reply_to_others(Arc::new(move |stream| {
        // The pause is the subject: two of them are longer than the deadline.
        std::thread::sleep(Duration::from_millis(1200));
        slow(stream)
    }));
    let table = format!("url = \"{}\"\ncanary = \"canary.pem\"\ntimeout = \"2s\"\n", source.url());
    let proxy = proxy.add("confirm", &table).start();
    assert!(!proxy.serves(&proxy.lost));
    wait_until("the result", || {
        proxy.metric("keygate_confirmations_total{result=\"timeout\"}") > 0.0
    });
    assert_eq!(proxy.metric("keygate_confirmations_total{result=\"cleared\"}"), 0.0);
}

#[test]
fn a_failed_source_is_asked_again_and_its_answer_counts() {
    let (proxy, source) = scene(respond("500 Oops", "", ""), "");
    assert!(!proxy.serves(&proxy.lost));
    proxy.wait_for_failure("server_error");
    source.reply(&proxy.lost, not_found());
    proxy.wait_for("the line", |line| line["message"] == "source of proofs answers again");
    proxy.wait_for_result("cleared", 1.0);
    proxy.admits(&proxy.lost);
}

#[test]
fn a_429_pauses_the_questions_about_every_key() {
    // The wait is shorter than the pause.
    let reply = respond("429 Slow", "retry-after: 600\r\n", "");
    let (proxy, source) = scene(reply, "wait = \"5m\"");
    assert!(!proxy.serves(&proxy.lost));
    proxy.wait_for_result("rate_limited", 1.0);
    source.next_about(&proxy.lost);
    assert!(!proxy.serves(&proxy.lost));
    assert!(source.taken().is_empty(), "nothing is asked during the pause");
    proxy.rejects(&proxy.lost); // in the handshake: no answer comes soon
    assert_eq!(proxy.metric("keygate_confirmations_pending"), 1.0);
    assert!(proxy.status()["confirm"]["blocked_until"].is_string());
}

#[test]
fn a_429_ends_questions_under_way_before_their_next_request() {
    let proxy = Proxy::new();
    let [other, third] = ["other", "third"].map(|name| proxy.pki.client(name, Kind::P256));
    let compressed = related(&proxy.lost.spki).remove(1).1;
    write_filter(
        &proxy.pki.path("lost.pkbf"),
        &[&proxy.lost.spki, &compressed, &other.spki, &third.spki],
    );
    let source = ProofSource::start();
    let canary = canary(&proxy.pki);
    let ((of_lost, to_lost), (of_third, to_third)) = (blocked(not_found()), blocked(not_found()));
    source.reply(&canary, proof(&canary));
    source.reply(&proxy.lost, to_lost);
    source.reply(&third, to_third);
    source.reply(&other, respond("429 Slow", "retry-after: 600\r\n", ""));
    let table = format!(
        "url = \"{}\"\ncanary = \"canary.pem\"\nwait = \"0s\"\ntimeout = \"1h\"\n",
        source.url()
    );
    let proxy = proxy.add("confirm", &table).start();
    proxy.wait_for_canary(1.0);
    for party in [&proxy.lost, &third] {
        assert!(!proxy.serves(party));
        source.next_about(party);
    }
    assert!(!proxy.serves(&other));
    proxy.wait_for_result("rate_limited", 1.0);
    source.taken();
    drop(of_third);
    proxy.wait_for_result("cleared", 1.0);
    let blocked = proxy.metric("keygate_confirmation_blocked_until_timestamp_seconds");
    assert!(blocked > 0.0, "a response to an earlier request ends no pause");
    drop(of_lost);
    proxy.wait_for_result("rate_limited", 2.0);
    assert!(source.taken().is_empty(), "the compressed form is not asked about");
}

#[test]
fn a_429_pauses_the_checks_of_the_canary() {
    let limited_at = Arc::new(Mutex::new(None));
    let at = Arc::clone(&limited_at);
    let limited = respond("429 Slow", "retry-after: 3\r\n", "");
    let limited: Reply = Arc::new(move |stream| {
        at.lock().unwrap().get_or_insert_with(Instant::now);
        limited(stream)
    });
    let proxy = Proxy::new();
    std::fs::write(proxy.pki.path("api.key"), "one").unwrap();
    let source = ProofSource::start();
    let canary = canary(&proxy.pki);
    source.reply(&canary, proof(&canary));
    source.reply(&proxy.lost, limited);
    let table =
        format!("url = \"{}\"\ncanary = \"canary.pem\"\napi_key = \"api.key\"\n", source.url());
    let proxy = proxy.add("confirm", &table).start();
    proxy.wait_for_canary(1.0);
    source.next_about(&canary);
    assert!(!proxy.serves(&proxy.lost));
    source.reply(&proxy.lost, not_found());
    std::fs::write(proxy.pki.path("api.key"), "two").unwrap();
    source.next_about(&canary);
    let limited_at = limited_at.lock().unwrap().unwrap();
    assert!(limited_at.elapsed() >= Duration::from_secs(3), "{:?}", limited_at.elapsed());
}

#[test]
fn tls_to_the_source_needs_a_certificate_of_the_configured_cas() {
    for (ca, hosts, is_right) in [
        ("Source CA", ["localhost"], true),
        ("Source CA", ["elsewhere.example"], false),
        ("Other CA", ["localhost"], false),
    ] {
        let (proxy, right) = (Proxy::new(), Pki::named("Source CA"));
        let other = Pki::named(ca);
        let certificate =
            if ca == "Other CA" { &other } else { &right }.server_for("source", &hosts);
        std::fs::copy(right.path("ca.pem"), proxy.pki.path("source-ca.pem")).unwrap();
        let source = ProofSource::with_tls(&certificate);
        let canary = canary(&proxy.pki);
        source.reply(&canary, proof(&canary));
        let port = source.address().port();
        let table = format!(
            "url = \"https://localhost:{port}/v1\"\ntrust_anchors = \"source-ca.pem\"\ncanary = \"canary.pem\"\n"
        );
        let proxy = proxy.add("confirm", &table).start();
        assert_eq!(proxy.serves(&proxy.lost), is_right);
        if is_right {
            let asked = source.next_about(&proxy.lost);
            assert!(asked.head.starts_with("GET /v1/"), "{}", asked.head);
            assert!(asked.head.contains(&format!("host: localhost:{port}\r\n")), "{}", asked.head);
        } else {
            let line = proxy.wait_for("the canary", |line| {
                line["message"] == "source cannot be asked about its canary, no key is cleared"
            });
            assert!(line["error"].as_str().unwrap().contains("TLS handshake failed"), "{line}");
            assert!(source.taken().is_empty());
        }
    }
}

/// The address of a proxy must come from the configuration, which names none.
#[test]
fn variables_that_name_a_proxy_are_not_read() {
    let proxy = Proxy::new();
    let source = ProofSource::start();
    let canary = canary(&proxy.pki);
    source.reply(&canary, proof(&canary));
    let url = format!("http://localhost:{}", source.address().port());
    let table = format!("url = \"{url}\"\ncanary = \"canary.pem\"\n");
    let mut command = Command::new(BINARY);
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"] {
        command.env(name, "http://127.0.0.1:9");
    }
    write_filter(&proxy.pki.path("lost.pkbf"), &[]);
    let text = proxy.configuration.clone().add("confirm", &table).text();
    let keygate = Keygate::run_by(command, &proxy.pki, &text);
    keygate.wait_for_status("the canary", |status| status["confirm"]["canary"] == "ok");
    assert!(source.next_about(&canary).head.starts_with("GET /"));
}

#[test]
fn an_api_key_is_sent_and_never_logged_and_a_new_one_is_used() {
    let proxy = Proxy::new().set("log.level", "trace");
    let source = ProofSource::start();
    let canary = canary(&proxy.pki);
    source.reply(&canary, proof(&canary));
    std::fs::write(proxy.pki.path("api.key"), "secret-one\n").unwrap();
    let table =
        format!("url = \"{}\"\ncanary = \"canary.pem\"\napi_key = \"api.key\"\n", source.url());
    let proxy = proxy.add("confirm", &table).start();
    let exposed = proxy.wait_for("the permissions", |line| {
        line["message"].as_str().is_some_and(|it| it.contains("everybody can read"))
            || line.to_string().contains("everybody can read")
    });
    assert!(exposed.to_string().contains("api.key"), "{exposed}");
    assert!(source.next().head.contains("authorization: Bearer secret-one\r\n"));
    std::fs::write(proxy.pki.path("api.key"), "secret-two\n").unwrap();
    proxy.wait_for("the files", |line| line["message"] == "files of the source of proofs loaded");
    assert!(source.next().head.contains("authorization: Bearer secret-two\r\n"));
    std::fs::write(proxy.pki.path("api.key"), "two\nlines\n").unwrap();
    proxy.wait_for("the rejection", |line| {
        line["message"] == "files of the source of proofs rejected, keeping those in use"
    });
    proxy.admits(&proxy.lost);
    assert!(source.next_about(&proxy.lost).head.contains("authorization: Bearer secret-two\r\n"));
    assert!(proxy.matching_lines(|line| line.to_string().contains("secret-")).is_empty());
}

#[test]
fn a_new_api_key_clears_no_key_before_a_check_of_the_canary_with_it() {
    let proxy = Proxy::new();
    let source = ProofSource::start();
    let canary = canary(&proxy.pki);
    source.reply(&canary, proof(&canary));
    std::fs::write(proxy.pki.path("api.key"), "one").unwrap();
    let table =
        format!("url = \"{}\"\ncanary = \"canary.pem\"\napi_key = \"api.key\"\n", source.url());
    let proxy = proxy.add("confirm", &table).start();
    proxy.wait_for_canary(1.0);
    source.next_about(&canary);
    let (release, reply) = blocked(respond("401 Unauthorized", "", ""));
    source.reply(&canary, reply);
    std::fs::write(proxy.pki.path("api.key"), "two").unwrap();
    source.next_about(&canary); // the check with the new key is in progress
    let mut client = Client::connect(&proxy.pki, proxy.address(), &proxy.lost);
    client.send("GET / HTTP/1.1\r\nhost: localhost\r\n\r\n");
    source.next_about(&proxy.lost);
    wait_until("the 404", || {
        proxy.metric("keygate_confirmation_last_answer_timestamp_seconds") > 0.0
    });
    drop(release);
    wait_until("the result", || {
        proxy.metric("keygate_confirmations_total{result=\"untrusted\"}") > 0.0
    });
    assert_eq!(proxy.metric("keygate_confirmations_total{result=\"cleared\"}"), 0.0);
    drop(client);
}

#[test]
fn plain_http_to_another_machine_clears_nobody_and_its_proofs_count() {
    for (host, clears) in [("127.0.0.1", true), ("localhost", true), (OTHER_NAME, false)] {
        let proxy = Proxy::new();
        let source = ProofSource::start();
        let canary = canary(&proxy.pki);
        source.reply(&canary, proof(&canary));
        let url = format!("http://{host}:{}", source.address().port());
        let table = format!("url = \"{url}\"\ncanary = \"canary.pem\"\n");
        let proxy = proxy.add("confirm", &table).start();
        assert_eq!(proxy.serves(&proxy.lost), clears, "{host}");
        if !clears {
            proxy.wait_for_result("untrusted", 1.0);
            assert_eq!(proxy.status()["confirm"]["canary"], json!("off"));
        }
    }
    let proxy = Proxy::new().policy("on_probable = \"flag\"");
    let source = ProofSource::start();
    source.reply(&proxy.lost, proof(&proxy.lost));
    let url = format!("url = \"http://{OTHER_NAME}:{}\"\n", source.address().port());
    let proxy = proxy.add("confirm", &url).start();
    assert!(!proxy.serves(&proxy.lost));
    proxy.wait_for_result("confirmed", 1.0);
}

/// A name that is not `localhost`, and that glibc resolves to 127.0.0.1 without a name server, as
/// inet_aton(3) does. keygate must not trust a name because of the address that it leads to.
const OTHER_NAME: &str = "0x7f.0x1";
