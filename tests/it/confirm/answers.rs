//! Answers over time: restarts, expiry, new filters, new proofs, and open connections.
//!
//! Guards: `add_saved` in `src/confirm/answer_book/state_file.rs`, `merge`, `expire` and
//! `set_filters` in `src/confirm/answer_book.rs`, `publish` in `src/confirm/task/publisher.rs`,
//! `end_look` in `src/confirm/task.rs`, `take_over` in `src/confirm/task/state_writer.rs`.

use std::path::PathBuf;
use std::time::Instant;

use serde_json::json;

use crate::support::client::Client;
use crate::support::keygate::Keygate;
use crate::support::pki::{Kind, Party};
use crate::support::proof_source::{
    ProofSource, canary, fingerprint, not_found, proof, proof_of, respond,
};
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::{wait_until, write_filter, write_revision};

const GET: &str = "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

struct Scene {
    proxy: Running,
    source: ProofSource,
    state: PathBuf,
}

/// A proxy with a state directory, and a source that knows its canary and no other key.
fn scene(confirm: &str, policy: &str) -> Scene {
    let proxy = Proxy::new().policy(policy);
    let (source, state) = (ProofSource::start(), proxy.pki.path("state"));
    std::fs::create_dir(&state).unwrap();
    let canary = canary(&proxy.pki);
    source.reply(&canary, proof(&canary));
    let table = format!("url = \"{}\"\ncanary = \"canary.pem\"\n", source.url());
    let proxy = proxy.add("confirm", &table).add("confirm", confirm);
    Scene { proxy: proxy.global("state = { dir = \"state\" }").start(), source, state }
}

impl Scene {
    /// Ends the proxy and starts it again, with this configuration.
    fn restart(&mut self, text: &str) {
        self.proxy.keygate.signal("TERM");
        assert!(self.proxy.keygate.ended().success());
        self.proxy.keygate = Keygate::configured(&self.proxy.pki, text);
    }

    fn restart_unchanged(&mut self) {
        self.restart(&self.proxy.configuration.text());
    }

    fn wait_for_answers(&self, verdict: &str, count: f64) {
        let series = format!("keygate_confirmation_answers{{verdict=\"{verdict}\"}}");
        self.proxy.wait_for_metric(&series, count);
    }

    fn asked_about(&self, party: &Party) -> usize {
        let asked = self.source.taken().into_iter();
        asked.filter(|asked| asked.fingerprint == fingerprint(party)).count()
    }
}

#[test]
fn a_restart_loses_no_answer() {
    let mut scene = scene("", "");
    let other = scene.proxy.pki.client("other", Kind::P256);
    let filter = scene.proxy.pki.path("lost.pkbf");
    write_revision(&filter, &[&scene.proxy.lost.spki, &other.spki], 2);
    scene.proxy.wait_for_generation(2);
    scene.source.reply(&other, proof(&other));
    scene.proxy.admits(&scene.proxy.lost);
    assert_ne!(scene.proxy.curl(&other, &[]).stdout, b"hello\n");
    scene
        .proxy
        .wait_for("the proof", |line| line["message"] == "compromise of a client key proved");
    scene.restart_unchanged();
    scene.source.taken();
    scene.proxy.admits(&scene.proxy.lost);
    scene.proxy.revokes(&other); // in the handshake: the answer is known
    assert_eq!(scene.asked_about(&other) + scene.asked_about(&scene.proxy.lost), 0);
    // A confirmed key stays confirmed in a filter that has lost it.
    write_revision(&filter, &[b"one", b"two"], 3);
    scene.proxy.wait_for_generation(2);
    scene.proxy.revokes(&other);
    scene.proxy.admits(&scene.proxy.lost);
}

/// During a rolling restart, two processes use one state directory. Each learns answers that the
/// other one does not have.
#[test]
fn a_later_process_adds_the_answers_of_the_earlier_one_and_saves_both() {
    let mut scene = scene("", "");
    let pki = &scene.proxy.pki;
    let [first, second, proved] =
        ["first", "second", "proved"].map(|name| pki.client(name, Kind::P256));
    let keys = [&first, &second, &proved].map(|party| &party.spki[..]);
    write_revision(&pki.path("lost.pkbf"), &keys, 2);
    scene.proxy.wait_for_generation(2);
    scene.source.reply(&proved, proof(&proved));
    let later = Keygate::configured(pki, &scene.proxy.configuration.text());
    later.wait_for("the warning", |line| {
        line["message"]
            == "state directory is in use by another process, nothing is saved until it ends"
    });
    scene.proxy.admits(&first);
    assert_ne!(scene.proxy.curl(&proved, &[]).stdout, b"hello\n");
    assert_eq!(later.curl(&second, &[]).stdout, b"hello\n");
    scene.proxy.keygate.signal("TERM");
    assert!(scene.proxy.keygate.ended().success());
    later.wait_for_status("the answers of both", |status| {
        (&status["confirm"]["cleared"], &status["confirm"]["confirmed"]) == (&json!(2), &json!(1))
    });
    wait_until("the answers of both are saved", || {
        let saved = std::fs::read(scene.state.join("confirm.json")).unwrap();
        let saved: serde_json::Value = serde_json::from_slice(&saved).unwrap();
        let has = |verdict: &str, party| saved[verdict].get(fingerprint(party)).is_some();
        has("cleared", &first) && has("cleared", &second) && has("confirmed", &proved)
    });
    assert_eq!(later.failed_saves(), Vec::<serde_json::Value>::new());
}

#[test]
fn a_kept_proof_that_was_changed_confirms_nobody() {
    let mut scene = scene("", "on_probable = \"flag\"");
    let lost = fingerprint(&scene.proxy.lost);
    scene.source.reply(&scene.proxy.lost, proof(&scene.proxy.lost));
    scene.proxy.curl(&scene.proxy.lost, &[]);
    scene.wait_for_answers("confirmed", 1.0);
    scene.source.reply(&scene.proxy.lost, respond("500 Oops", "", ""));
    let kept = scene.state.join(format!("proofs/{lost}.jws"));
    wait_until("the proof is kept", || kept.exists());
    let other = proof_of(&scene.proxy.good);
    std::fs::write(&kept, other).unwrap();
    scene.restart_unchanged();
    let line = scene.proxy.wait_for("the kept proof", |line| {
        line["message"] == "kept proof cannot be used, the key is asked about again"
    });
    assert_eq!((&line["fingerprint"], &line["error"]), (&json!(lost), &json!("kid")));
    scene.wait_for_answers("confirmed", 0.0);
    scene.proxy.admits(&scene.proxy.lost);
}

#[test]
fn a_proof_that_cannot_be_written_is_written_again_and_at_the_end_at_the_latest() {
    for ends in [false, true] {
        let mut scene = scene("", "on_probable = \"flag\"");
        let kept = scene.state.join(format!("proofs/{}.jws", fingerprint(&scene.proxy.lost)));
        let (proofs, away) = (scene.state.join("proofs"), scene.state.join("away"));
        std::fs::rename(&proofs, &away).unwrap();
        scene.source.reply(&scene.proxy.lost, proof(&scene.proxy.lost));
        scene.proxy.curl(&scene.proxy.lost, &[]);
        scene.proxy.wait_for("the failure", |line| {
            line["message"] == "answers about keys cannot be saved"
        });
        std::fs::rename(&away, &proofs).unwrap();
        if ends {
            scene.restart_unchanged();
            scene.wait_for_answers("confirmed", 1.0);
            assert!(kept.exists());
        } else {
            wait_until("the proof is kept", || kept.exists());
        }
    }
}

#[test]
fn a_broken_state_file_is_warned_of_and_started_anew() {
    let mut scene = scene("", "");
    scene.proxy.admits(&scene.proxy.lost);
    scene.wait_for_answers("cleared", 1.0);
    let file = scene.state.join("confirm.json");
    wait_until("the answers are kept", || file.exists());
    for broken in ["{", "{\"cleared\": 7}", "\u{0}"] {
        scene.proxy.keygate.signal("TERM");
        assert!(scene.proxy.keygate.ended().success());
        std::fs::write(&file, broken).unwrap();
        let text = scene.proxy.configuration.text();
        scene.proxy.keygate = Keygate::configured(&scene.proxy.pki, &text);
        scene.proxy.wait_for("the warning", |line| {
            line["message"] == "kept answers cannot be used, keys are asked about again"
        });
        scene.proxy.admits(&scene.proxy.lost);
        scene.wait_for_answers("cleared", 1.0);
    }
}

#[test]
fn another_source_forgets_what_the_first_one_cleared() {
    let mut scene = scene("", "");
    scene.proxy.admits(&scene.proxy.lost);
    scene.wait_for_answers("cleared", 1.0);
    let other = ProofSource::start();
    let text = scene.proxy.configuration.text().replace(&scene.source.url(), &other.url());
    scene.restart(&text);
    assert_ne!(scene.proxy.curl(&scene.proxy.lost, &[]).stdout, b"hello\n");
    scene.wait_for_answers("cleared", 0.0);
    other.next_about(&scene.proxy.lost);
}

#[test]
fn a_cleared_key_is_asked_about_again_and_stays_cleared_meanwhile() {
    let scene = scene("cleared_ttl = \"1s\"", "");
    scene.proxy.admits(&scene.proxy.lost);
    scene.source.next_about(&scene.proxy.lost);
    scene.source.reply(&scene.proxy.lost, respond("500 Oops", "", ""));
    // The client comes back until the key is due.
    wait_until("the second question", || {
        scene.proxy.admits(&scene.proxy.lost);
        scene.asked_about(&scene.proxy.lost) > 0
    });
    scene.proxy.admits(&scene.proxy.lost);
}

#[test]
fn a_clearance_ends_when_nobody_answers_for_too_long() {
    let scene = scene("cleared_ttl = \"1s\"\nstale_for = \"1s\"", "");
    scene.proxy.admits(&scene.proxy.lost);
    scene.source.reply(&scene.proxy.lost, respond("500 Oops", "", ""));
    wait_until("the clearance to end", || {
        scene.proxy.curl(&scene.proxy.lost, &[]).stdout != b"hello\n"
    });
    scene.wait_for_answers("cleared", 0.0);
}

#[test]
fn a_key_that_becomes_known_while_connections_are_open_evicts_its_clients_only() {
    let scene = scene("cleared_ttl = \"1s\"", "");
    let connect = |party| {
        let mut client = Client::connect(&scene.proxy.pki, scene.proxy.address(), party);
        client.send(GET);
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        client.exactly(6);
        client
    };
    let (mut good, mut lost) = (connect(&scene.proxy.good), connect(&scene.proxy.lost));
    scene.wait_for_answers("cleared", 1.0);
    scene.source.reply(&scene.proxy.lost, proof(&scene.proxy.lost));
    assert_eq!(lost.rest(), "", "the connection of the confirmed key ends");
    scene
        .proxy
        .wait_for("the proof", |line| line["message"] == "compromise of a client key proved");
    good.send(GET);
    assert!(good.head().starts_with("HTTP/1.1 200 "));
    scene.proxy.revokes(&scene.proxy.lost);
}

#[test]
fn a_new_filter_asks_again_about_cleared_keys() {
    let scene = scene("", "");
    scene.proxy.admits(&scene.proxy.lost);
    scene.source.next_about(&scene.proxy.lost);
    scene.source.reply(&scene.proxy.lost, proof(&scene.proxy.lost));
    write_revision(&scene.proxy.pki.path("lost.pkbf"), &[&scene.proxy.lost.spki], 2);
    scene.proxy.wait_for_generation(2);
    wait_until("the answer to the second question", || {
        scene.proxy.curl(&scene.proxy.lost, &[]).stdout != b"hello\n"
    });
    scene.wait_for_answers("confirmed", 1.0);
}

#[test]
fn a_hit_in_another_filter_is_never_cleared() {
    let proxy = Proxy::new();
    let source = ProofSource::start();
    let canary = canary(&proxy.pki);
    source.reply(&canary, proof(&canary));
    write_filter(&proxy.pki.path("own.pkbf"), &[&proxy.lost.spki]);
    let table =
        format!("filters = [\"lost\"]\nurl = \"{}\"\ncanary = \"canary.pem\"\n", source.url());
    let proxy = proxy
        .add("confirm", &table)
        .global("[[filters]]\nname = \"own\"\npath = \"own.pkbf\"\n")
        .start();
    assert_ne!(proxy.curl(&proxy.lost, &[]).stdout, b"hello\n");
    assert_ne!(proxy.curl(&proxy.lost, &[]).stdout, b"hello\n");
}

#[test]
fn a_directory_of_proofs_is_consulted_first_and_a_new_file_is_noticed() {
    let proxy = Proxy::new().policy("on_probable = \"flag\"");
    let proofs = proxy.pki.path("proofs");
    std::fs::create_dir(&proofs).unwrap();
    let proxy = proxy.add("confirm", "proofs = \"proofs\"").start();
    let mut open = Client::connect(&proxy.pki, proxy.address(), &proxy.lost);
    open.send(GET);
    assert!(open.head().starts_with("HTTP/1.1 200 "));
    open.exactly(6);
    proxy.wait_for_metric("keygate_confirmations_total{result=\"untrusted\"}", 1.0);
    let line = proxy.wait_for("the line", |line| line["message"] == "no answer about a client key");
    assert_eq!(line["level"], "INFO", "the normal case of such a directory");
    let name = fingerprint(&proxy.lost);
    std::fs::write(proxy.pki.path("new"), proof_of(&proxy.lost)).unwrap();
    std::fs::rename(proxy.pki.path("new"), proofs.join(format!("{name}.json"))).unwrap();
    assert_eq!(open.rest(), "", "the client is evicted");
    let line =
        proxy.wait_for("the proof", |line| line["message"] == "compromise of a client key proved");
    assert_eq!(line["proof_file"], json!(proofs.join(format!("{name}.json")).to_str().unwrap()));
    proxy.wait_for_status("the time", |status| status["confirm"]["last_answer"].is_string());
    assert!(proxy.metric("keygate_confirmation_last_answer_timestamp_seconds") > 0.0);
}

/// The list is in trial, so that the proof is the reason of the rejection.
#[test]
fn a_proof_about_a_listed_key_rejects_it_with_the_alert_of_a_proof() {
    let proxy = Proxy::new().policy("on_listed = \"flag\", on_probable = \"flag\"");
    let name = fingerprint(&proxy.lost);
    std::fs::write(proxy.pki.path("deny.txt"), &name).unwrap();
    let proofs = proxy.pki.path("proofs");
    std::fs::create_dir(&proofs).unwrap();
    std::fs::write(proofs.join(format!("{name}.json")), proof_of(&proxy.lost)).unwrap();
    let lists = "lists = [{ name = \"march\", path = \"deny.txt\" }]";
    let proxy = proxy.global(lists).add("confirm", "proofs = \"proofs\"").start();
    let _ = proxy.curl(&proxy.lost, &[]); // the proof may come before the response
    proxy.wait_for_status("the answer", |status| status["confirm"]["confirmed"] == 1);
    proxy.revokes(&proxy.lost);
    let line = proxy.wait_for("the line", |line| line["message"] == "client key rejected");
    assert_eq!((&line["verdict"], &line["proof"]), (&json!("listed"), &json!(name)));
}

#[test]
fn a_proof_in_the_directory_needs_no_question() {
    for suffix in ["", ".jws", ".json"] {
        let proxy = Proxy::new();
        let source = ProofSource::start();
        let canary = canary(&proxy.pki);
        source.reply(&canary, proof(&canary));
        let proofs = proxy.pki.path("proofs");
        std::fs::create_dir(&proofs).unwrap();
        let name = fingerprint(&proxy.lost);
        std::fs::write(proofs.join(format!("{name}{suffix}")), proof_of(&proxy.lost)).unwrap();
        let table =
            format!("url = \"{}\"\ncanary = \"canary.pem\"\nproofs = \"proofs\"\n", source.url());
        let proxy = proxy.add("confirm", &table).start();
        assert_ne!(proxy.curl(&proxy.lost, &[]).stdout, b"hello\n");
        proxy.wait_for_metric("keygate_confirmations_total{result=\"confirmed\"}", 1.0);
        source.next_about(&canary);
        assert!(source.taken().is_empty(), "{suffix:?}");
    }
}

/// The file may be the proof, so that a 404 of the URL does not clear the key. A proof counts.
#[test]
fn an_unusable_file_in_the_directory_is_reported_and_only_a_proof_of_the_url_counts() {
    for is_readable in [true, false] {
        let proxy = Proxy::new();
        let source = ProofSource::start();
        let canary = canary(&proxy.pki);
        source.reply(&canary, proof(&canary));
        source.reply(&proxy.lost, not_found());
        let proofs = proxy.pki.path("proofs");
        std::fs::create_dir(&proofs).unwrap();
        let file = proofs.join(fingerprint(&proxy.lost));
        if is_readable {
            std::fs::write(&file, proof_of(&proxy.good)).unwrap();
        } else {
            std::fs::create_dir(&file).unwrap();
        }
        let table =
            format!("url = \"{}\"\ncanary = \"canary.pem\"\nproofs = \"proofs\"\n", source.url());
        let proxy = proxy.add("confirm", &table).start();
        assert_ne!(proxy.curl(&proxy.lost, &[]).stdout, b"hello\n");
        let file = file.to_str().unwrap();
        if is_readable {
            let line =
                proxy.wait_for("the file", |line| line["message"] == "proof does not verify");
            assert_eq!((&line["source"], &line["reason"]), (&json!(file), &json!("kid")));
        } else {
            let line = proxy.wait_for("the file", |line| {
                line["message"] == "directory of proofs cannot be read"
            });
            assert_eq!(
                line["error"],
                json!(format!("{file}: not a regular file; give the path of a file"))
            );
        }
        proxy.wait_for("the 404", |line| {
            line["message"] == "no answer about a client key" && line["result"] == "untrusted"
        });
        source.reply(&proxy.lost, proof(&proxy.lost));
        proxy.wait_for_metric("keygate_confirmations_total{result=\"confirmed\"}", 1.0);
        assert_eq!(proxy.metric("keygate_confirmations_total{result=\"cleared\"}"), 0.0);
    }
}

#[test]
fn log_lines_about_unusable_files_are_ten_seconds_apart() {
    for message in ["proof does not verify", "directory of proofs cannot be read"] {
        let began = Instant::now();
        let proxy = Proxy::new();
        let proofs = proxy.pki.path("proofs");
        let parties = ["one", "two", "three"].map(|name| proxy.pki.client(name, Kind::P256));
        let keys: Vec<&[u8]> = parties.iter().map(|party| &*party.spki).collect();
        write_filter(&proxy.pki.path("lost.pkbf"), &keys);
        std::fs::create_dir(&proofs).unwrap();
        for party in &parties {
            let file = proofs.join(fingerprint(party));
            if message == "proof does not verify" {
                std::fs::write(file, "no proof").unwrap();
            } else {
                std::fs::create_dir(file).unwrap();
            }
        }
        let proxy = proxy.add("confirm", "proofs = \"proofs\"").start();
        for party in &parties {
            assert_ne!(proxy.curl(party, &[]).stdout, b"hello\n");
        }
        let line = proxy.wait_for("the line", |line| line["message"] == message);
        assert_eq!(line["left_out"], json!(0));
        let lines = proxy.keygate.lines(message).len() as u64;
        assert!(lines <= 1 + began.elapsed().as_secs() / 10, "{message}: {lines}");
    }
}

#[test]
fn an_unusable_file_in_the_directory_does_not_hide_a_proof_with_another_suffix() {
    for is_readable in [true, false] {
        let proxy = Proxy::new();
        let (proofs, name) = (proxy.pki.path("proofs"), fingerprint(&proxy.lost));
        std::fs::create_dir(&proofs).unwrap();
        if is_readable {
            std::fs::write(proofs.join(&name), "no proof").unwrap();
        } else {
            std::fs::create_dir(proofs.join(&name)).unwrap();
        }
        std::fs::write(proofs.join(format!("{name}.jws")), proof_of(&proxy.lost)).unwrap();
        let proxy = proxy.add("confirm", "proofs = \"proofs\"").start();
        assert_ne!(proxy.curl(&proxy.lost, &[]).stdout, b"hello\n");
        proxy.wait_for_metric("keygate_confirmations_total{result=\"confirmed\"}", 1.0);
    }
}

#[test]
fn a_complete_directory_clears_the_keys_that_it_lacks_if_it_has_its_canary() {
    for has_canary in [true, false] {
        let proxy = Proxy::new();
        let canary = canary(&proxy.pki);
        let proofs = proxy.pki.path("proofs");
        std::fs::create_dir(&proofs).unwrap();
        if has_canary {
            std::fs::write(proofs.join(fingerprint(&canary)), proof_of(&canary)).unwrap();
        }
        let table = "proofs = \"proofs\"\ndirectory_is_complete = true\ncanary = \"canary.pem\"\n";
        let proxy = proxy.add("confirm", table).start();
        assert_eq!(proxy.curl(&proxy.lost, &[]).stdout == b"hello\n", has_canary);
    }
}

/// An unmounted file system leaves an empty directory, and changes nothing in a watched one.
#[test]
fn a_complete_directory_without_its_canary_clears_no_key_from_then_on() {
    let proxy = Proxy::new();
    let canary = canary(&proxy.pki);
    let parent = tempfile::tempdir().unwrap();
    let mounted = parent.path().join("mounted");
    std::fs::create_dir_all(mounted.join("proofs")).unwrap();
    std::fs::write(mounted.join("proofs").join(fingerprint(&canary)), proof_of(&canary)).unwrap();
    let proxy = proxy
        .add("confirm", "directory_is_complete = true\ncanary = \"canary.pem\"\n")
        .add("confirm", &format!("proofs = {:?}\n", mounted.join("proofs")))
        .start();
    proxy.wait_for_metric("keygate_confirmation_canary_successful", 1.0);
    std::fs::rename(&mounted, parent.path().join("unmounted")).unwrap();
    std::fs::create_dir_all(mounted.join("proofs")).unwrap();
    assert_ne!(proxy.curl(&proxy.lost, &[]).stdout, b"hello\n");
    proxy.wait_for_metric("keygate_confirmation_canary_successful", 0.0);
    assert_eq!(proxy.metric("keygate_confirmations_total{result=\"cleared\"}"), 0.0);
}
