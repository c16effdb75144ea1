//! Revoked client certificates.
//!
//! Guards: `check_one` in `src/tls/client_verifier.rs`, `ensure_not_older_than` in `src/tls/crls.rs` for
//! older revocation lists.

use std::fs::rename;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, write_filter};

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
            && line["error"].as_str().unwrap().contains("is older than the one in use")
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
fn an_expired_revocation_list_rejects_every_client_unless_configured_otherwise() {
    let strict = scene(Duration::ZERO, "");
    strict.refuses(&strict.good, "alert");
    strict.keygate.wait_for_metric(REVOKED, 1.0);
    let lenient = scene(Duration::ZERO, "expired_crl = \"accept\"");
    lenient.admits(&lenient.good);
    lenient.refuses(&lenient.revoked, "certificate revoked");
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
        (Some(b"0\x03\x02\x01\x01"), "revocation list 1 cannot be used"),
    ] {
        if let Some(content) = content {
            std::fs::write(pki.path("clients.crl"), content).unwrap();
        }
        let output = keygate(&["validate", "--config", config.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
        assert!(output_text(&output).contains(problem), "{problem}: {}", output_text(&output));
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
        write_filter(&pki.path("lost.pkbf"), &[]);
        pki.crl("clients.crl", &[&sub.as_party()], A_DAY);
        rename(sub.crl("sub.crl", &[], A_DAY), pki.path("sub.crl")).unwrap();
        let keygate = configuration(&origin, "")
            .policy(&format!("judge = \"{judge}\""))
            .client_auth("crls = [\"clients.crl\", \"sub.crl\"]")
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
            && line["problem"].as_str().unwrap().contains("is older than the one in use")
    });
    scene.refuses(&scene.revoked, "certificate revoked");
    scene.admits(&scene.good);
}
