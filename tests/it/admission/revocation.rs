//! Revoked client certificates.
//!
//! Guards: `check` in `crates/core/src/tls/crls.rs` in handshakes, `CrlLoader` for the lists that are loaded.

use std::fs::{read_to_string, rename, write};
use std::process::Output;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{CertificateParams, CrlDistributionPoint, CrlScope};
use serde_json::{Value, json};

use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki, RevocationList};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, write_filter};

pub(super) const A_DAY: Duration = Duration::from_secs(86_400);

pub(super) struct Scene {
    pub(super) pki: Pki,
    pub(super) keygate: Keygate,
    pub(super) good: Party,
    pub(super) revoked: Party,
    pub(super) origin: Origin,
}

/// A configuration whose service has a revocation list.
pub(super) fn configuration(origin: &Origin, expired: &str) -> Configuration {
    Configuration::new(origin.address())
        .client_auth("crls = [\"clients.crl\"]")
        .client_auth(expired)
}

pub(super) fn scene(lasts: Duration, expired: &str) -> Scene {
    let (pki, origin) = (Pki::new(), Origin::start());
    let [good, revoked] = ["good", "revoked"].map(|name| pki.client(name, Kind::P256));
    write_filter(&pki.path("lost.pkbf"), &[]);
    pki.crl("clients.crl", &[&revoked], lasts);
    let keygate = configuration(&origin, expired).start(&pki);
    Scene { pki, keygate, good, revoked, origin }
}

impl Scene {
    pub(super) fn admits(&self, client: &Party) {
        let response = self.keygate.curl(client, &[]);
        assert_eq!(response.stdout, b"hello\n", "{}: {}", client.name, output_text(&response));
    }

    pub(super) fn refuses(&self, client: &Party, problem: &str) {
        let response = self.keygate.curl(client, &[]);
        assert!(
            output_text(&response).contains(problem),
            "{}: {}",
            client.name,
            output_text(&response)
        );
    }

    /// Renames a file with `content` over the revocation lists.
    pub(super) fn publish(&self, content: impl AsRef<[u8]>) {
        write(self.pki.path("next.crl"), content).unwrap();
        rename(self.pki.path("next.crl"), self.pki.path("clients.crl")).unwrap();
    }

    pub(super) fn pem(&self, list: &RevocationList<'_>) -> String {
        self.pki.signed_crl(list).pem().unwrap()
    }

    /// Waits until an update is rejected for `reason`, with `problem` in the message.
    pub(super) fn is_rejected(&self, reason: &str, problem: &str) {
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

    pub(super) fn is_as_it_was(&self) {
        self.admits(&self.good);
        self.refuses(&self.revoked, "certificate revoked");
    }

    pub(super) fn lists(&self) -> Value {
        self.keygate.status()["services"][0]["crls"].clone()
    }
}

pub(super) const SUCCESSFUL: &str = "keygate_crl_last_reload_successful{service=\"test\"}";

pub(super) fn refusals(reason: &str) -> String {
    format!("keygate_crl_refusals_total{{reason=\"{reason}\",service=\"test\"}}")
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
    std::fs::write(scene.pki.path("next.crl"), "no list").unwrap();
    rename(scene.pki.path("next.crl"), scene.pki.path("clients.crl")).unwrap();
    scene.keygate.wait_for("a refused list", |line| {
        line["message"] == "certificate update rejected, keeping those in use"
            && line["error"].as_str().unwrap().contains("clients.crl: there is no revocation list")
    });
    scene.refuses(&scene.good, "certificate revoked");
    scene.admits(&scene.revoked);
}

#[test]
fn an_expired_revocation_list_is_used_at_a_start_and_rejects_its_clients() {
    let (pki, origin) = (Pki::new(), Origin::start());
    write_filter(&pki.path("lost.pkbf"), &[]);
    pki.crl("clients.crl", &[], Duration::ZERO);
    write(pki.path("keygate.toml"), configuration(&origin, "").text()).unwrap();
    let validated = validate(&pki);
    let text = output_text(&validated);
    assert_eq!(validated.status.code(), Some(0), "{text}");
    assert!(text.contains("the list of CN=Test CA has expired at "), "{text}");
    assert!(text.contains(", so that its clients are rejected"), "{text}");

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

pub(super) fn validate(pki: &Pki) -> Output {
    keygate(&["validate", "--config", pki.path("keygate.toml").to_str().unwrap()])
}

/// `keygate validate` on the configuration of `pki` fails with `problem`.
pub(super) fn validation_fails(pki: &Pki, problem: &str) {
    let output = validate(pki);
    assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
    assert!(output_text(&output).contains(problem), "{problem}: {}", output_text(&output));
}

/// `keygate validate` on the configuration of `pki` finds `problem` and uses the last good list.
pub(super) fn validation_uses_the_last_good_list(pki: &Pki, problem: &str) {
    let output = validate(pki);
    let text = output_text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let warning = text.lines().find(|line| line.starts_with("warning: service "));
    assert!(warning.is_some_and(|line| line.contains(problem)), "{problem}: {text}");
    assert!(text.contains("the last good one in state.dir is in use"), "{text}");
}

#[test]
fn a_revoked_intermediate_counts_unless_only_the_leaf_is_checked() {
    for (judge, depth, is_refused) in [
        ("leaf", "revocation = \"path\"", true),
        ("leaf", "", true),
        ("chain", "revocation = \"leaf\"", false),
    ] {
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
            .client_auth(depth)
            .start(&pki);
        let response = keygate.curl(&client, &[]);
        let status = keygate.status()["attention"].to_string();
        let revoked = "CN=Sub CA is revoked by a list in use, so every client";
        assert_eq!(status.contains(revoked), is_refused, "{status}");
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
    let warnings = |depth: &str, keys: &str| {
        let config = Configuration::new(origin.address())
            .client_auth(&format!("revocation = \"{depth}\""))
            .client_auth("intermediates = \"intermediates.pem\"")
            .client_auth(keys);
        write(pki.path("keygate.toml"), config.text()).unwrap();
        let output = validate(&pki);
        assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
        output_text(&output)
    };
    let missing = |ca: &str| format!("client_auth.crls has no list of CN={ca}");
    for (depth, list, root, below) in [
        ("leaf", "clients.crl", false, true),
        ("leaf", "sub.crl", false, false),
        ("path", "sub.crl", true, false),
    ] {
        let text = warnings(depth, &format!("crls = [\"{list}\"]"));
        assert_eq!(text.contains(&missing("Test CA")), root, "{depth} {list}: {text}");
        assert_eq!(text.contains(&missing("Sub CA")), below, "{depth} {list}: {text}");
    }
    let text = warnings("leaf", "");
    let counts = "1 root, 0 intermediates, 0 pinned certificates; client_auth.intermediates: 1";
    assert!(text.contains(counts), "{text}");
    assert!(text.contains("it has no effect without client_auth.crls"), "{text}");
}

#[test]
fn a_pin_needs_no_list_and_no_other_client_of_its_ca_gets_in() {
    let (pki, foreign, origin) = (Pki::new(), Pki::named("Foreign CA"), Origin::start());
    let sub = pki.subordinate("Sub CA");
    let of_foreign = |name: &str| foreign.client(name, Kind::P256);
    let (pinned, other) = (of_foreign("pinned"), of_foreign("other"));
    let [good, revoked] = ["good", "revoked"].map(|name| sub.client(name, Kind::P256));
    let (own, _) = pki.self_signed_client("own");
    write_filter(&pki.path("lost.pkbf"), &[]);
    pki.crl("clients.crl", &[], A_DAY);
    rename(sub.crl("sub.crl", &[&revoked], A_DAY), pki.path("sub.crl")).unwrap();
    let (ca, sub_ca) = (pki.path("ca.pem"), sub.path("ca.pem"));
    let pins = [&pinned, &own, &good, &revoked].map(|client| client.certificate.clone());
    let file = [&[ca][..], &pins].concat();
    let file: Vec<_> = file.iter().map(|path| read_to_string(path).unwrap()).collect();
    write(pki.path("clients.pem"), file.concat()).unwrap();
    write(pki.path("intermediates.pem"), read_to_string(sub_ca).unwrap()).unwrap();
    let keygate = Configuration::new(origin.address())
        .client_auth("trust_anchors = \"clients.pem\", intermediates = \"intermediates.pem\"")
        .client_auth("crls = [\"clients.crl\", \"sub.crl\"]")
        .start(&pki);
    for client in [&pinned, &own, &good] {
        let response = keygate.curl(client, &[]);
        assert_eq!(response.stdout, b"hello\n", "{}: {}", client.name, output_text(&response));
    }
    for (client, problem) in [(&other, "unknown ca"), (&revoked, "certificate revoked")] {
        let text = keygate.rejection(client);
        assert!(text.contains(problem), "{}: {text}", client.name);
    }
    let text = output_text(&validate(&pki));
    assert!(!text.contains("client_auth.crls has no list of"), "{text}");
}

#[test]
fn the_key_of_an_intermediate_is_judged_like_that_of_a_trust_anchor() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let sub = pki.subordinate("Sub CA");
    let content = std::fs::read(sub.path("ca.pem")).unwrap();
    write(pki.path("intermediates.pem"), &content).unwrap();
    let key = ::keygate_core::spki::keys_in(&content).remove(0).key.unwrap();
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
