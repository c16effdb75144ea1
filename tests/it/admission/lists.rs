//! Exact lists and exceptions, over real handshakes.
//!
//! Guards: `look_up` in `crates/core/src/guard/exact.rs`, `deciding_finding` in `crates/core/src/guard/policy.rs`,
//! `is_ascii_whitespace` in
//! `src/sources/list/read.rs` for an emptied list, `now < exception.until` in
//! `crates/core/src/guard/lists.rs` for the expiry of an exception.

use std::fs::{rename, write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use data_encoding::BASE64;
use keygate_core::spki::{Fingerprint, related};
use serde_json::json;

use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{before, output_text, write_filter, write_revision};

struct Setting {
    origin: Origin,
    keygate: Keygate,
    pki: Pki,
    good: Party,
    /// In the filter.
    lost: Party,
    /// On the list.
    stolen: Party,
}

/// The fingerprint of the last encoding of a client's key, which no certificate contains.
fn another_encoding(client: &Party) -> Fingerprint {
    Fingerprint::of(&related(&client.spki).pop().unwrap().1)
}

/// A proxy with a list. `more` is added to the top of its configuration, and `policy` to its
/// service.
fn setting(policy: &str, more: impl FnOnce(&Party, &Party) -> String) -> Setting {
    let (pki, origin) = (Pki::new(), Origin::start());
    let [good, lost, stolen] = ["good", "lost", "stolen"].map(|name| pki.client(name, Kind::P256));
    write_filter(&pki.path("lost.pkbf"), &[&lost.spki]);
    let listed = another_encoding(&stolen);
    let another = Fingerprint::of(&0_u32.to_be_bytes());
    let text = format!("# March\n{listed}  # a laptop\n{another}\n");
    write(pki.path("deny.txt"), text).unwrap();
    let top =
        format!("{}\n[[lists]]\nname = \"march\"\npath = \"deny.txt\"\n", more(&lost, &stolen));
    let policy = format!("policy = {{ {policy} }}");
    let keygate = Configuration::new(origin.address()).global(&top).service(&policy).start(&pki);
    Setting { origin, keygate, pki, good, lost, stolen }
}

impl Setting {
    fn admits(&self, client: &Party) {
        let response = self.keygate.curl(client, &[]);
        assert_eq!(response.stdout, b"hello\n", "{}: {}", client.name, output_text(&response));
    }

    fn refuses(&self, client: &Party) {
        let response = self.keygate.curl(client, &[]);
        assert!(
            output_text(&response).contains("access denied"),
            "{}: {}",
            client.name,
            output_text(&response)
        );
    }

    fn list(&self) -> PathBuf {
        self.pki.path("deny.txt")
    }

    fn checks(&self, verdict: &str) -> f64 {
        let labels = format!("{{service=\"test\",stage=\"handshake\",verdict=\"{verdict}\"}}");
        self.keygate.metric(&format!("keygate_key_checks_total{labels}"))
    }
}

/// An exception as a table of the configuration.
fn exception(fingerprint: &Fingerprint, until: &str) -> String {
    format!(
        "[[exceptions]]\nfingerprint = \"{fingerprint}\"\nuntil = {until}\nreason = \"replacement ordered\"\n"
    )
}

#[test]
fn a_listed_key_is_rejected_in_each_encoding_the_list_may_have() {
    let setting = setting("", |_, _| String::new());
    setting.admits(&setting.good);
    setting.refuses(&setting.lost);
    setting.refuses(&setting.stolen);
    let line = setting.keygate.wait_for("the line about the client", |line| {
        line["message"] == "client key rejected" && line["verdict"] == "listed"
    });
    assert_eq!((&line["list"], &line["action"]), (&json!("march"), &json!("reject")));
    assert_eq!(line["subject"], "CN=stolen");
    assert_eq!(line["encoding"], related(&setting.stolen.spki).pop().unwrap().0.as_str());
    for (verdict, count) in [("clean", 1.0), ("probable", 1.0), ("listed", 1.0), ("allowed", 0.0)] {
        assert_eq!(setting.checks(verdict), count, "{verdict}");
    }
}

#[test]
fn the_status_header_names_lists_and_exceptions() {
    let setting = setting("on_listed = \"header\", on_probable = \"header\"", |lost, _| {
        exception(&another_encoding(lost), "2999-12-31")
    });
    for (client, status) in [
        (&setting.good, "clean"),
        (&setting.lost, "allowed"),
        (&setting.stolen, "listed;list=\"march\""),
    ] {
        setting.admits(client);
        assert_eq!(setting.origin.next().fields("client-key-status"), [status]);
    }
}

/// A key on a list and in a filter is rejected for the one whose action rejects it.
#[test]
fn a_rejected_client_gets_the_reason_that_decides() {
    let by_list = "is on a list of rejected keys";
    for (policy, reason) in [
        ("on_listed = \"flag\"", "is probably compromised"),
        ("on_probable = \"flag\"", by_list),
        ("on_listed = \"reject\"", by_list),
    ] {
        let policy = format!("reject_with = \"http-403\", {policy}");
        let setting = setting(&policy, |_, _| String::new());
        write_revision(&setting.pki.path("lost.pkbf"), &[&setting.stolen.spki], 2);
        setting.keygate.wait_for_generation(2);
        let response = output_text(&setting.keygate.curl(&setting.stolen, &[]));
        assert!(response.contains(reason), "{policy}: {response}");
    }
}

#[test]
fn a_changed_list_is_loaded_and_a_broken_one_is_not() {
    let setting = setting("", |_, _| String::new());
    let replace = |text: &str| {
        let next = setting.pki.path("next.txt");
        write(&next, text).unwrap();
        rename(next, setting.list()).unwrap();
    };
    // Thousands of entries, in hex and base64.
    let many: String = (0_u32..5000)
        .map(|number| {
            let fingerprint = Fingerprint::of(&number.to_be_bytes()).to_string();
            if number % 2 == 0 {
                return fingerprint + "\n";
            }
            let bytes = data_encoding::HEXLOWER.decode(fingerprint.as_bytes()).unwrap();
            BASE64.encode(&bytes) + "\n"
        })
        .collect();
    let good = Fingerprint::of(&setting.good.spki);
    replace(&format!("{many}{good}\n"));
    setting.keygate.wait_for_generation(2);
    setting.refuses(&setting.good);
    setting.admits(&setting.stolen);
    assert_eq!(setting.keygate.metric("keygate_list_entries{list=\"march\"}"), 5001.0);

    replace("nonsense\n");
    setting.keygate.wait_for("a refused list", |line| {
        line["message"] == "list update rejected, keeping the one in use"
            && line["error"].as_str().unwrap().contains("line 1: not a fingerprint")
    });
    setting.refuses(&setting.good);
    let list = setting.keygate.wait_for_status("the refusal", |status| {
        status["lists"][0]["last_reload"]["result"] == "refused"
    });
    assert_eq!(list["lists"][0]["entries"], 5001);
    let successful = "keygate_list_last_reload_successful{list=\"march\"}";
    assert_eq!(setting.keygate.metric(successful), 0.0);

    // An editor that writes in place empties the file first.
    replace("");
    setting.keygate.wait_for("a refused list", |line| {
        line["message"] == "list update rejected, keeping the one in use"
            && line["error"]
                .as_str()
                .unwrap()
                .contains("empty, and the list in use has keys (5001)")
    });
    setting.refuses(&setting.good);

    // The checksum reveals a truncated list.
    let checksum = Fingerprint::of(b"# none\n"); // a SHA-256 of any content
    write(setting.pki.path("deny.txt.sha256"), format!("{checksum}  deny.txt\n")).unwrap();
    replace("# no\n");
    setting.keygate.wait_for("a refused list", |line| {
        line["message"] == "list update rejected, keeping the one in use"
            && line["error"].as_str().unwrap().contains("deny.txt.sha256")
    });
    setting.refuses(&setting.good);

    // Nor does a list without keys replace one that has keys.
    replace("# none\n");
    setting.keygate.wait_for("a waiting list", |line| {
        line["message"] == "list update rejected, keeping the one in use"
            && line["error"]
                .as_str()
                .unwrap()
                .contains("the number of entries falls from 5001 to 0")
    });
    setting.refuses(&setting.good);
}

#[test]
fn an_exception_admits_a_key_until_it_expires_also_after_reloads() {
    let (ends, (setting, status)) = before(Duration::from_secs(10), |ends| {
        let until = humantime::format_rfc3339_millis(ends).to_string();
        let setting = setting("", |lost, stolen| {
            let listed = exception(&Fingerprint::of(&stolen.spki), &until);
            exception(&Fingerprint::of(&lost.spki), &until) + &listed
        });
        setting.admits(&setting.lost);
        setting.admits(&setting.stolen);
        let status = setting.keygate.status();
        (setting, status)
    });
    assert_eq!(setting.checks("allowed"), 2.0);
    setting.keygate.wait_for("notice", |line| line["message"] == "exception expires within a week");
    assert_eq!(status["exceptions"][0]["expired"], false);
    assert_eq!(status["exceptions"][0]["reason"], "replacement ordered");
    let fingerprint = Fingerprint::of(&setting.lost.spki);
    let series =
        format!("keygate_exception_until_timestamp_seconds{{fingerprint=\"{fingerprint}\"}}");
    let seconds = ends.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    assert_eq!(setting.keygate.metric(&series), seconds as f64);

    setting.keygate.wait_for("the end", |line| line["message"] == "exception has expired");
    assert!(SystemTime::now() >= ends, "not before its time");
    setting.refuses(&setting.lost);
    setting.refuses(&setting.stolen);
    assert_eq!(setting.keygate.status()["generation"], 1, "nothing was loaded");
}

#[test]
fn an_unusable_list_or_exception_is_named() {
    let pki = Pki::new();
    write_filter(&pki.path("lost.pkbf"), &[]);
    write(pki.path("deny.txt"), "abc\n").unwrap();
    let fingerprint = Fingerprint::of(b"key");
    let exception = |fingerprint: &str, until: &str, reason: &str| {
        format!(
            "exceptions = [{{ fingerprint = \"{fingerprint}\", until = {until}, reason = \"{reason}\" }}]"
        )
    };
    let good = fingerprint.to_string();
    let list = |path: &str| format!("lists = [{{ name = \"march\", path = \"{path}\" }}]");
    for (top, code, problem) in [
        (list("deny.txt"), 3, "list \"march\""),
        (list("deny.txt"), 3, "line 1: not a fingerprint (length 3); write the SHA-256 of"),
        (
            list("deny.txt\", max_size = \"3B"),
            3,
            "deny.txt: larger than 3 bytes: it has 4 bytes; raise max_size, or give the path",
        ),
        (list("missing.txt"), 3, "missing.txt: No such file"),
        (exception("9e03", "2026-12-31", "x"), 2, "exceptions.fingerprint: \"9e03\" is not"),
        (
            exception(&good, "2026-12-31T10:00:00", "x"),
            2,
            "exceptions.until: 2026-12-31T10:00:00: ",
        ),
        (exception(&good, "2026-12-31", " "), 2, "exceptions.reason: empty"),
        (exception(&good, "\"soon\"", "x"), 2, "keygate.toml:"),
    ] {
        let text = Configuration::new("127.0.0.1:9").global(&top);
        write(pki.path("keygate.toml"), text.text()).unwrap();
        for command in ["run", "validate"] {
            let path = pki.path("keygate.toml");
            let output = keygate(&[command, "--config", path.to_str().unwrap()]);
            assert_eq!(output.status.code(), Some(code), "{}", output_text(&output));
            assert!(output_text(&output).contains(problem), "{problem}: {}", output_text(&output));
        }
    }
}
