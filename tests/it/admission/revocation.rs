//! Revoked client certificates.
//!
//! Guards: `check` in `src/tls/crls.rs` in handshakes, `CrlLoader` for the lists that are loaded.

use std::fs::{read_to_string, rename, write};
use std::process::Output;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, CrlDistributionPoint, CrlScope};
use serde_json::{Value, json};

use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki, RevocationList};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, shell, write_filter};

const A_DAY: Duration = Duration::from_secs(86_400);

struct Scene {
    pki: Pki,
    keygate: Keygate,
    good: Party,
    revoked: Party,
    origin: Origin,
}

/// A configuration whose service has a revocation list.
fn configuration(origin: &Origin, expired: &str) -> Configuration {
    Configuration::new(origin.address())
        .client_auth("crls = [\"clients.crl\"]")
        .client_auth(expired)
}

fn scene(lasts: Duration, expired: &str) -> Scene {
    let (pki, origin) = (Pki::new(), Origin::start());
    let [good, revoked] = ["good", "revoked"].map(|name| pki.client(name, Kind::P256));
    write_filter(&pki.path("lost.pkbf"), &[]);
    pki.crl("clients.crl", &[&revoked], lasts);
    let keygate = configuration(&origin, expired).start(&pki);
    Scene { pki, keygate, good, revoked, origin }
}

impl Scene {
    fn admits(&self, client: &Party) {
        let response = self.keygate.curl(client, &[]);
        assert_eq!(response.stdout, b"hello\n", "{}: {}", client.name, output_text(&response));
    }

    fn refuses(&self, client: &Party, problem: &str) {
        let response = self.keygate.curl(client, &[]);
        assert!(
            output_text(&response).contains(problem),
            "{}: {}",
            client.name,
            output_text(&response)
        );
    }
}

const REVOKED: &str =
    r#"keygate_handshakes_total{result="revoked",resumed="false",service="test"}"#;

#[test]
fn a_revoked_certificate_is_rejected_and_a_new_list_is_loaded() {
    let scene = scene(A_DAY, "");
    scene.admits(&scene.good);
    scene.refuses(&scene.revoked, "certificate revoked");
    scene.keygate.wait_for_metric(REVOKED, 1.0);
    let next = scene.keygate.metric("keygate_crl_next_update_timestamp_seconds{service=\"test\"}");
    let tomorrow = (SystemTime::now() + A_DAY).duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((next - tomorrow).abs() < 600.0, "{next}");

    let list = scene.pki.crl("next.crl", &[&scene.good], A_DAY);
    rename(list, scene.pki.path("clients.crl")).unwrap();
    scene.keygate.wait_for_generation(2);
    scene.refuses(&scene.good, "certificate revoked");
    scene.admits(&scene.revoked);

    // An older list would admit clients that the CA has revoked since.
    let old = scene.pki.old_crl("next.crl");
    rename(old, scene.pki.path("clients.crl")).unwrap();
    scene.keygate.wait_for("a refused list", |line| {
        line["message"] == "certificate update rejected, keeping those in use"
            && line["error"].as_str().unwrap().contains("is older than the one that was in use")
    });
    scene.refuses(&scene.good, "certificate revoked");

    // A broken list is not used.
    std::fs::write(scene.pki.path("next.crl"), "nonsense").unwrap();
    rename(scene.pki.path("next.crl"), scene.pki.path("clients.crl")).unwrap();
    scene.keygate.wait_for("a refused list", |line| {
        line["message"] == "certificate update rejected, keeping those in use"
            && line["error"].as_str().unwrap().contains("clients.crl: there is no revocation list")
    });
    scene.refuses(&scene.good, "certificate revoked");
    scene.admits(&scene.revoked);
}

#[test]
fn an_expired_revocation_list_is_not_loaded_unless_configured_otherwise() {
    let (pki, origin) = (Pki::new(), Origin::start());
    write_filter(&pki.path("lost.pkbf"), &[]);
    pki.crl("clients.crl", &[], Duration::ZERO);
    write(pki.path("keygate.toml"), configuration(&origin, "").text()).unwrap();
    validation_fails(&pki, "the list of CN=Test CA has expired at ");

    let lenient = scene(Duration::ZERO, "expired_crl = \"accept\"");
    lenient.admits(&lenient.good);
    lenient.refuses(&lenient.revoked, "certificate revoked");
    let warning = lenient
        .keygate
        .wait_for("a warning", |line| line["message"] == "certificate revocation list has expired");
    let problem = warning["problem"].as_str().unwrap();
    assert!(problem.contains("expired_crl = \"accept\""), "{warning}");
    // The list in use stays in use, and its clients are rejected now.
    let strict = configuration(&lenient.origin, "");
    write(lenient.pki.path("next.toml"), strict.text()).unwrap();
    rename(lenient.pki.path("next.toml"), lenient.pki.path("keygate.toml")).unwrap();
    lenient.keygate.wait_for_generation(2);
    lenient.refuses(&lenient.good, "alert");
    lenient.keygate.wait_for_metric(REVOKED, 2.0);
}

fn validate(pki: &Pki) -> Output {
    keygate(&["validate", "--config", pki.path("keygate.toml").to_str().unwrap()])
}

/// `keygate validate` on the configuration of `pki` fails with `problem`.
fn validation_fails(pki: &Pki, problem: &str) {
    let output = validate(pki);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    assert!(output_text(&output).contains(problem), "{problem}: {}", output_text(&output));
}

#[test]
fn a_list_under_another_label_is_an_error() {
    let scene = scene(A_DAY, "");
    let newer = scene.pki.signed_crl(&RevocationList::new(9, &[&scene.good])).pem().unwrap();
    for label in ["CERTIFICATE", "TRUSTED CERTIFICATE", "PRIVATE KEY", "X509 CRL OLD"] {
        let file = read_to_string(scene.pki.path("clients.crl")).unwrap();
        write(scene.pki.path("both.crl"), file + &newer.replace("X509 CRL", label)).unwrap();
        let config =
            configuration(&scene.origin, "").set("services.client_auth.crls", vec!["both.crl"]);
        write(scene.pki.path("other.toml"), config.text()).unwrap();
        let output = keygate(&["validate", scene.pki.path("other.toml").to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(3), "{label}: {}", output_text(&output));
        let problem = "begins a revocation list under another label";
        assert!(output_text(&output).contains(problem), "{label}: {}", output_text(&output));
    }
}

#[test]
fn an_unusable_revocation_list_at_the_start_is_named() {
    let (pki, origin) = (Pki::new(), Origin::start());
    write_filter(&pki.path("lost.pkbf"), &[]);
    let config = pki.path("keygate.toml");
    std::fs::write(&config, configuration(&origin, "").text()).unwrap();
    for (content, problem) in [
        (None, "client_auth.crls"),
        (Some(&b"nonsense"[..]), "there is no revocation list in it"),
        (Some(b"0\x03\x02\x01\x01"), "the list at position 1 cannot be used"),
    ] {
        if let Some(content) = content {
            std::fs::write(pki.path("clients.crl"), content).unwrap();
        }
        validation_fails(&pki, problem);
    }
}

#[test]
fn a_revoked_intermediate_counts_if_the_chain_is_judged() {
    for (judge, is_refused) in [("leaf", false), ("chain", true)] {
        let (pki, origin) = (Pki::new(), Origin::start());
        let sub = pki.subordinate("Sub CA");
        let client = sub.client("client", Kind::P256);
        let pem = |path| std::fs::read_to_string(path).unwrap();
        let chain = pem(&client.certificate) + &pem(&sub.path("ca.pem"));
        std::fs::write(&client.certificate, chain).unwrap();
        rename(sub.path("ca.pem"), pki.path("sub.pem")).unwrap();
        write_filter(&pki.path("lost.pkbf"), &[]);
        pki.crl("clients.crl", &[&sub.as_party()], A_DAY);
        rename(sub.crl("sub.crl", &[], A_DAY), pki.path("sub.crl")).unwrap();
        let keygate = configuration(&origin, "")
            .policy(&format!("judge = \"{judge}\""))
            .client_auth("crls = [\"clients.crl\", \"sub.crl\"]")
            .client_auth("intermediates = \"sub.pem\"")
            .start(&pki);
        let response = keygate.curl(&client, &[]);
        if is_refused {
            assert!(
                output_text(&response).contains("certificate revoked"),
                "{}",
                output_text(&response)
            );
        } else {
            assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
        }
    }
}

#[test]
fn an_older_revocation_list_is_rejected_also_with_a_changed_configuration() {
    let scene = scene(A_DAY, "");
    scene.refuses(&scene.revoked, "certificate revoked");
    let config = scene.pki.path("keygate.toml");
    let changed = configuration(&scene.origin, "").limits("max_streams = 7");
    std::fs::write(scene.pki.path("next.toml"), changed.text()).unwrap();
    // Both files change. The list alone is rejected, and the new configuration must not load it.
    rename(scene.pki.old_crl("old.crl"), scene.pki.path("clients.crl")).unwrap();
    rename(scene.pki.path("next.toml"), config).unwrap();
    scene.keygate.wait_for("a refusal", |line| {
        line["message"] == "configuration rejected, keeping the one in use"
            && line["problem"].as_str().unwrap().contains("is older than the one that was in use")
    });
    scene.refuses(&scene.revoked, "certificate revoked");
    scene.admits(&scene.good);
}

impl Scene {
    /// Renames a file with `content` over the revocation lists.
    fn publish(&self, content: impl AsRef<[u8]>) {
        write(self.pki.path("next.crl"), content).unwrap();
        rename(self.pki.path("next.crl"), self.pki.path("clients.crl")).unwrap();
    }

    fn pem(&self, list: &RevocationList<'_>) -> String {
        self.pki.signed_crl(list).pem().unwrap()
    }

    /// Waits until an update is rejected for `reason`, with `problem` in the message.
    fn is_rejected(&self, reason: &str, problem: &str) {
        let line = self.keygate.wait_for(problem, |line| {
            line["message"] == "certificate update rejected, keeping those in use"
                && line["error"].as_str().unwrap().contains(problem)
        });
        assert_eq!(line["reason"], reason, "{line}");
        let status = self.keygate.wait_for_status(problem, |status| {
            let last = &status["services"][0]["last_reload"];
            last["error"].as_str().is_some_and(|error| error.contains(problem))
        });
        let last = &status["services"][0]["last_reload"];
        assert_eq!((&last["result"], &last["reason"]), (&json!("refused"), &json!(reason)));
        assert_eq!(self.keygate.metric(SUCCESSFUL), 0.0);
        assert!(self.keygate.metric(&refusals(reason)) >= 1.0, "{reason}");
        self.is_as_it_was();
    }

    fn is_as_it_was(&self) {
        self.admits(&self.good);
        self.refuses(&self.revoked, "certificate revoked");
    }

    fn lists(&self) -> Value {
        self.keygate.status()["services"][0]["crls"].clone()
    }
}

const SUCCESSFUL: &str = "keygate_crl_last_reload_successful{service=\"test\"}";

fn refusals(reason: &str) -> String {
    format!("keygate_crl_refusals_total{{reason=\"{reason}\",service=\"test\"}}")
}

#[test]
fn of_two_lists_of_one_ca_the_newer_one_counts_in_either_order() {
    for is_first in [false, true] {
        let (pki, origin) = (Pki::new(), Origin::start());
        let [good, revoked] = ["good", "revoked"].map(|name| pki.client(name, Kind::P256));
        write_filter(&pki.path("lost.pkbf"), &[]);
        let all = [&revoked];
        let mut newer = RevocationList::new(16, &all);
        // The number decides, although the date of the older list is later.
        newer.issued -= Duration::from_secs(60);
        let newer = pki.signed_crl(&newer).pem().unwrap();
        let older = pki.signed_crl(&RevocationList::new(9, &[])).pem().unwrap();
        let lists = if is_first { [newer, older] } else { [older, newer] };
        write(pki.path("clients.crl"), lists.concat()).unwrap();
        let keygate = configuration(&origin, "").start(&pki);
        let scene = Scene { pki, keygate, good, revoked, origin };
        scene.is_as_it_was();
        let warning = scene.keygate.wait_for("a warning", |line| {
            line["message"] == "certificate revocation list is superseded"
        });
        assert!(warning["problem"].as_str().unwrap().contains("(number 9, issued "), "{warning}");
        let lists = scene.lists();
        assert_eq!((&lists[0]["number"], &lists[0]["entries"]), (&json!("16"), &json!(1)));
        assert_eq!((&lists[0]["issuer"], &lists[1]), (&json!("CN=Test CA"), &Value::Null));
        assert_eq!(scene.keygate.metric("keygate_crl_entries{service=\"test\"}"), 1.0);
        let text = output_text(&validate(&scene.pki));
        assert!(
            text.contains("service test: revocation list of CN=Test CA, CRL number 16, 1 entry"),
            "{text}"
        );
        assert!(text.contains("is superseded (number 16, issued "), "{text}");
    }
}

#[test]
fn a_list_that_the_ca_did_not_sign_is_rejected_and_the_last_good_one_stays() {
    let scene = scene(A_DAY, "");
    assert_eq!(scene.keygate.metric(SUCCESSFUL), 1.0);
    for reason in ["encoding", "expired", "future", "io", "issuer", "rollback", "signature"] {
        assert_eq!(scene.keygate.metric(&refusals(reason)), 0.0, "{reason}");
    }
    let empty = RevocationList::new(2, &[]);
    let foreign = Pki::named("Foreign CA").signed_crl(&empty);
    scene.publish(foreign.pem().unwrap());
    scene.is_rejected("issuer", "its issuer CN=Foreign CA is no CA of this service");

    let namesake = Pki::new().signed_crl(&empty);
    scene.publish(namesake.der());
    scene.is_rejected("signature", "its signature is not by CN=Test CA");

    let mut forged = scene.pki.signed_crl(&empty).der().to_vec();
    let last = forged.len() - 1;
    forged[last] ^= 1;
    scene.publish(&forged);
    scene.is_rejected("signature", "its signature is not by CN=Test CA");

    let mut expired = RevocationList::new(2, &[]);
    expired.expires = SystemTime::now() - Duration::from_secs(60);
    scene.publish(scene.pem(&expired));
    scene.is_rejected("expired", "the list of CN=Test CA has expired at ");

    std::fs::remove_file(scene.pki.path("clients.crl")).unwrap();
    scene.is_rejected("io", "No such file");

    // A list of another CA beside the own one is not used, and does no harm.
    let all = [&scene.good];
    let next = RevocationList::new(2, &all);
    scene.publish(foreign.pem().unwrap() + &scene.pem(&next));
    scene.keygate.wait_for("a warning", |line| {
        line["message"] == "certificate revocation list is not used"
            && line["problem"].as_str().unwrap().contains(
                "CN=Foreign CA is no CA of this service; remove the list, or add the CA to",
            )
    });
    scene.keygate.wait_for_generation(2);
    scene.refuses(&scene.good, "certificate revoked");
    scene.admits(&scene.revoked);
    assert_eq!(scene.keygate.metric(SUCCESSFUL), 1.0);
}

#[test]
fn a_list_that_the_reader_of_pem_skips_is_an_error() {
    let scene = scene(A_DAY, "");
    let all = [&scene.good, &scene.revoked];
    let older = scene.pem(&RevocationList::new(2, &[]));
    let newer = scene.pem(&RevocationList::new(3, &all));
    for (index, (end, begin)) in [("", ""), ("\n", "\u{feff}"), ("\n", " ")].iter().enumerate() {
        // The older list alone would admit a client that the newer one revokes.
        scene.publish([&older.repeat(index), older.trim_end(), end, begin, &newer].concat());
        let problem =
            format!("{} revocation lists begin in it, and {} can be read", index + 2, index + 1);
        scene.is_rejected("encoding", &problem);
    }
    // Editors on Windows write a byte order mark.
    scene.publish(format!("\u{feff}{newer}"));
    scene.keygate.wait_for_generation(2);
    scene.refuses(&scene.good, "certificate revoked");
}

#[test]
fn a_list_outside_of_the_pem_sections_is_an_error() {
    let scene = scene(A_DAY, "");
    let all = [&scene.good, &scene.revoked];
    let older = scene.pem(&RevocationList::new(2, &[]));
    let newer = scene.pki.signed_crl(&RevocationList::new(3, &all));
    let pem = newer.pem().unwrap();
    let base64: Vec<_> = pem.lines().filter(|line| !line.starts_with('-')).collect();
    // The older list alone would admit a client that the newer one revokes.
    scene.publish([older.as_bytes(), newer.der()].concat());
    scene.is_rejected("encoding", "binary data outside of the PEM sections");
    scene.publish(older + &base64.join("\n"));
    scene.is_rejected("encoding", "base64 of DER outside of the PEM sections");
    // OpenSSL writes the list as text before the section.
    write(scene.pki.path("next.pem"), pem).unwrap();
    let text = shell(scene.pki.directory(), "openssl crl -text -in next.pem");
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with("Certificate Revocation List (CRL):"), "{text}");
    scene.publish(text);
    scene.keygate.wait_for_generation(2);
    scene.refuses(&scene.good, "certificate revoked");
}

#[test]
fn a_list_dated_ahead_does_not_lock_out_the_honest_next_one() {
    let scene = scene(A_DAY, "");
    let mut ahead = RevocationList::new(1000, &[]);
    ahead.issued = SystemTime::now() + 365 * A_DAY;
    ahead.expires = ahead.issued + A_DAY;
    scene.publish(scene.pem(&ahead));
    scene.is_rejected("future", "in the future; correct the clock");

    let all = [&scene.good, &scene.revoked];
    scene.publish(scene.pem(&RevocationList::new(2, &all)));
    scene.keygate.wait_for_generation(2);
    scene.refuses(&scene.good, "certificate revoked");
    scene.refuses(&scene.revoked, "certificate revoked");
}

#[test]
fn an_older_list_is_rejected_after_a_restart_too() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let [good, revoked] = ["good", "revoked"].map(|name| pki.client(name, Kind::P256));
    write_filter(&pki.path("lost.pkbf"), &[]);
    std::fs::create_dir(pki.path("state")).unwrap();
    pki.crl_with("clients.crl", &RevocationList::new(256, &[&revoked]));
    let text = configuration(&origin, "").global("state = { dir = \"state\" }");
    let mut keygate = text.start(&pki);
    // The mark is saved before the first connection is accepted.
    assert_eq!(keygate.curl(&good, &[]).stdout, b"hello\n");
    keygate.signal("TERM");
    assert!(keygate.ended().success());
    let state = pki.path("state/revocation-lists.json");
    let kept: Value = serde_json::from_str(&read_to_string(&state).unwrap()).unwrap();
    let marks = kept["services"]["test"].as_object().unwrap();
    assert_eq!(marks.len(), 1, "{kept}");
    let mark = marks.values().next().unwrap();
    assert_eq!((&mark["issuer"], &mark["number"]), (&json!("CN=Test CA"), &json!("100")));

    // The date of the older list is later, and its number is lower.
    pki.crl_with("clients.crl", &RevocationList::new(255, &[]));
    validation_fails(&pki, "(number 255, issued ");
    // An invalid state file is an error and not an empty state; an operator may delete the file.
    write(&state, "{").unwrap();
    validation_fails(&pki, "state/revocation-lists.json");
    std::fs::remove_file(&state).unwrap();
    let keygate = Keygate::configured(&pki, &text.text());
    assert_eq!(keygate.curl(&revoked, &[]).stdout, b"hello\n");
}

#[test]
fn a_service_with_a_new_name_keeps_the_marks_of_its_lists() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let revoked = pki.client("revoked", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    std::fs::create_dir(pki.path("state")).unwrap();
    pki.crl_with("clients.crl", &RevocationList::new(256, &[&revoked]));
    let config = configuration(&origin, "").global("state = { dir = \"state\" }");
    let mut keygate = config.start(&pki);
    keygate.signal("TERM");
    assert!(keygate.ended().success());

    pki.crl_with("clients.crl", &RevocationList::new(255, &[]));
    let renamed = config.clone().set("services.name", "renamed");
    write(pki.path("keygate.toml"), renamed.text()).unwrap();
    validation_fails(&pki, "(number 255, issued ");
    // Beside the first service, another one has versions of its own.
    pki.crl_with("newest.crl", &RevocationList::new(257, &[]));
    let second = "server_names = [\"b.example\"]\nclient_auth = { crls = [\"clients.crl\"] }";
    let both = config.second_service(second);
    let both = both.set("services.client_auth.crls", vec!["newest.crl"]);
    write(pki.path("keygate.toml"), both.text()).unwrap();
    assert_eq!(validate(&pki).status.code(), Some(0), "{}", output_text(&validate(&pki)));
}

#[test]
fn a_service_with_its_first_name_again_keeps_the_newest_marks() {
    let (pki, origin) = (Pki::new(), Origin::start());
    write_filter(&pki.path("lost.pkbf"), &[]);
    std::fs::create_dir(pki.path("state")).unwrap();
    let config = configuration(&origin, "").global("state = { dir = \"state\" }");
    for (name, number) in [("test", 256), ("renamed", 257)] {
        pki.crl_with("clients.crl", &RevocationList::new(number, &[]));
        let mut keygate = config.clone().set("services.name", name).start(&pki);
        keygate.signal("TERM");
        assert!(keygate.ended().success());
    }
    let kept = read_to_string(pki.path("state/revocation-lists.json")).unwrap();
    let kept: Value = serde_json::from_str(&kept).unwrap();
    assert_eq!(kept["services"].as_object().unwrap().len(), 1, "{kept}");
    pki.crl_with("clients.crl", &RevocationList::new(256, &[]));
    write(pki.path("keygate.toml"), config.text()).unwrap();
    validation_fails(&pki, "(number 256, issued ");
}

#[test]
fn the_list_of_an_intermediate_needs_its_certificate() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let sub = pki.subordinate("Sub CA");
    let [good, revoked] = ["good", "revoked"].map(|name| {
        let client = sub.client(name, Kind::P256);
        let chain =
            [&client.certificate, &sub.path("ca.pem")].map(|path| read_to_string(path).unwrap());
        write(&client.certificate, chain.concat()).unwrap();
        client
    });
    write_filter(&pki.path("lost.pkbf"), &[]);
    rename(sub.crl("sub.crl", &[&revoked], A_DAY), pki.path("clients.crl")).unwrap();
    let config = configuration(&origin, "");
    write(pki.path("keygate.toml"), config.text()).unwrap();
    validation_fails(
        &pki,
        "add the CA to client_auth.trust_anchors or, if it is an intermediate, to client_auth.intermediates",
    );

    let config = config.client_auth("intermediates = \"intermediates.pem\"");
    write(pki.path("keygate.toml"), config.text()).unwrap();
    for (certificate, problem) in [
        (
            Pki::named("Other CA").subordinate("Stray CA").path("ca.pem"),
            "CN=Stray CA was not issued by",
        ),
        (pki.client("leaf", Kind::P256).certificate, "is no CA: its basic constraints"),
    ] {
        std::fs::copy(certificate, pki.path("intermediates.pem")).unwrap_or_default();
        if pki.path("intermediates.pem").exists() {
            validation_fails(&pki, problem);
        }
    }
    rename(sub.path("ca.pem"), pki.path("intermediates.pem")).unwrap();
    let keygate = config.start(&pki);
    assert_eq!(keygate.curl(&good, &[]).stdout, b"hello\n");
    let response = output_text(&keygate.curl(&revoked, &[]));
    assert!(response.contains("certificate revoked"), "{response}");
}

#[test]
fn a_ca_without_a_list_is_a_warning() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let sub = pki.subordinate("Sub CA");
    write_filter(&pki.path("lost.pkbf"), &[]);
    pki.crl("clients.crl", &[], A_DAY);
    let sub_ca = read_to_string(sub.path("ca.pem")).unwrap();
    write(pki.path("intermediates.pem"), sub_ca).unwrap();
    rename(sub.crl("sub.crl", &[], A_DAY), pki.path("sub.crl")).unwrap();
    let warnings = |judge: &str, keys: &str| {
        let config = Configuration::new(origin.address())
            .policy(&format!("judge = \"{judge}\""))
            .client_auth("intermediates = \"intermediates.pem\"")
            .client_auth(keys);
        write(pki.path("keygate.toml"), config.text()).unwrap();
        let output = validate(&pki);
        assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
        output_text(&output)
    };
    let missing = |ca: &str| format!("client_auth.crls has no list of CN={ca}");
    for (judge, list, root, below) in [
        ("leaf", "clients.crl", false, true),
        ("leaf", "sub.crl", false, false),
        ("chain", "sub.crl", true, false),
    ] {
        let text = warnings(judge, &format!("crls = [\"{list}\"]"));
        assert_eq!(text.contains(&missing("Test CA")), root, "{judge} {list}: {text}");
        assert_eq!(text.contains(&missing("Sub CA")), below, "{judge} {list}: {text}");
    }
    let text = warnings("leaf", "");
    assert!(text.contains("it has no effect without client_auth.crls"), "{text}");
}

#[test]
fn the_key_of_an_intermediate_is_judged_like_that_of_a_trust_anchor() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let sub = pki.subordinate("Sub CA");
    let content = std::fs::read(sub.path("ca.pem")).unwrap();
    write(pki.path("intermediates.pem"), &content).unwrap();
    let key = ::keygate::spki::keys_in(&content).remove(0).key.unwrap();
    write_filter(&pki.path("lost.pkbf"), &[&key]);
    pki.crl("clients.crl", &[], A_DAY);
    let config = configuration(&origin, "").client_auth("intermediates = \"intermediates.pem\"");
    write(pki.path("keygate.toml"), config.text()).unwrap();
    validation_fails(&pki, "service \"test\": the key of its intermediate (");
}

#[test]
fn each_distribution_point_of_a_ca_has_its_own_list() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let client = |name: &str, point: Option<&str>| {
        let mut parameters = CertificateParams::default();
        let point = point.map(|uri| CrlDistributionPoint { uris: vec![uri.to_owned()] });
        parameters.crl_distribution_points = point.into_iter().collect();
        pki.client_with(name, Kind::P256, parameters)
    };
    let [a, b, c] = ["http://crl.example/a", "http://crl.example/b", "http://crl.example/c"];
    let (good_a, revoked_a) = (client("good-a", Some(a)), client("revoked-a", Some(a)));
    let (good_b, revoked_b) = (client("good-b", Some(b)), client("revoked-b", Some(b)));
    let [uncovered, unnamed] = [client("uncovered", Some(c)), client("unnamed", None)];
    write_filter(&pki.path("lost.pkbf"), &[]);
    let all = [&revoked_a, &revoked_b, &good_b];
    let mut list_a = RevocationList::new(7, &all[..1]);
    list_a.distribution_point = Some(a);
    list_a.scope = Some(CrlScope::UserCertsOnly);
    let mut list_b = RevocationList::new(3, &all[1..2]);
    list_b.distribution_point = Some(b);
    // A list of CA certificates at the same point covers no client.
    let mut of_cas = RevocationList::new(3, &all[2..]);
    of_cas.distribution_point = Some(c);
    of_cas.scope = Some(CrlScope::CaCertsOnly);
    let lists = [list_a, list_b, of_cas].map(|list| pki.signed_crl(&list).pem().unwrap());
    write(pki.path("clients.crl"), lists.concat()).unwrap();
    let text = configuration(&origin, "").global("log = { repeat_after = \"0s\" }");
    let keygate = text.start(&pki);
    for good in [&good_a, &good_b] {
        let response = keygate.curl(good, &[]);
        assert_eq!(response.stdout, b"hello\n", "{}: {}", good.name, output_text(&response));
    }
    for (client, error) in [
        (&revoked_a, "is revoked"),
        (&revoked_b, "is revoked"),
        (&uncovered, "no revocation list covers"),
        (&unnamed, "no revocation list covers"),
    ] {
        assert!(!keygate.curl(client, &[]).status.success(), "{}", client.name);
        keygate.wait_for(&client.name, |line| {
            line["message"] == "handshake failed"
                && line["subject"] == format!("CN={}", client.name)
                && line["error"].as_str().is_some_and(|line| line.contains(error))
        });
    }
    let lists = keygate.status()["services"][0]["crls"].clone();
    let points: Vec<_> = (0..3).map(|index| &lists[index]["distribution_point"]).collect();
    for point in [a, b, c] {
        assert!(points.contains(&&json!(point)), "{lists}");
    }
}

#[test]
fn lists_made_by_openssl_are_accepted_in_pem_and_der_for_every_type_of_key() {
    let (pki, origin) = (Pki::new(), Origin::start());
    write_filter(&pki.path("lost.pkbf"), &[]);
    let kinds =
        ["RSA -pkeyopt rsa_keygen_bits:2048", "EC -pkeyopt ec_paramgen_curve:P-384", "ED25519"];
    let commands = r#"
openssl genpkey -algorithm $KIND -out crl-ca.key
openssl req -x509 -new -key crl-ca.key -subj "/O=Example/CN=List CA" -days 2 -out crl-ca.pem \
  -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign
printf 'R\t991231235959Z\t260101000000Z,keyCompromise\t2A\tunknown\t/CN=x\n' > index.txt
echo 1000 > crlnumber
cat > ca.cnf <<'END'
[ca]
default_ca = it
[it]
database = index.txt
crlnumber = crlnumber
default_md = default
default_crl_days = 1
crl_extensions = extensions
[extensions]
authorityKeyIdentifier = keyid:always
END
openssl ca -gencrl -config ca.cnf -keyfile crl-ca.key -cert crl-ca.pem -out clients.crl
openssl crl -in clients.crl -outform DER -out clients.der
cat ca.pem crl-ca.pem > both.pem
"#;
    for kind in kinds {
        let made = shell(pki.directory(), &commands.replace("$KIND", kind));
        assert!(made.status.success(), "{kind}: {}", output_text(&made));
        for file in ["clients.crl", "clients.der"] {
            let config = Configuration::new(origin.address())
                .client_auth(&format!("trust_anchors = \"both.pem\", crls = [{file:?}]"));
            write(pki.path("keygate.toml"), config.text()).unwrap();
            let output = validate(&pki);
            let text = output_text(&output);
            assert!(output.status.success(), "{kind}, {file}: {text}");
            assert!(
                text.contains("revocation list of CN=List CA,O=Example, CRL number 4096, 1 entry"),
                "{text}"
            );
        }
    }
}

#[test]
fn a_ca_is_removed_although_its_list_is_left_over() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let theirs = Pki::named("Another CA");
    let (good, stranger) = (pki.client("good", Kind::P256), theirs.client("stranger", Kind::P256));
    write_filter(&pki.path("lost.pkbf"), &[]);
    let pem = |pki: &Pki| read_to_string(pki.path("ca.pem")).unwrap();
    write(pki.path("clients-ca.pem"), pem(&pki) + &pem(&theirs)).unwrap();
    let list = RevocationList::new(1, &[]);
    let lists = [&pki, &theirs].map(|pki| pki.signed_crl(&list).pem().unwrap());
    write(pki.path("clients.crl"), lists.concat()).unwrap();
    let keygate =
        configuration(&origin, "").client_auth("trust_anchors = \"clients-ca.pem\"").start(&pki);
    assert_eq!(keygate.curl(&stranger, &[]).stdout, b"hello\n");
    // A file that lost the list of one CA is not used.
    write(pki.path("next"), &lists[0]).unwrap();
    rename(pki.path("next"), pki.path("clients.crl")).unwrap();
    keygate.wait_for("a rejection", |line| {
        line["reason"] == "issuer"
            && line["error"]
                .as_str()
                .unwrap()
                .contains("no revocation list of CN=Another CA is left")
    });
    assert_eq!(keygate.curl(&stranger, &[]).stdout, b"hello\n");
    write(pki.path("next"), lists.concat()).unwrap();
    rename(pki.path("next"), pki.path("clients.crl")).unwrap();
    write(pki.path("clients-ca.pem"), pem(&pki)).unwrap();
    keygate
        .wait_for("a warning", |line| line["message"] == "certificate revocation list is not used");
    assert!(!keygate.curl(&stranger, &[]).status.success());
    assert_eq!(keygate.curl(&good, &[]).stdout, b"hello\n");
}
