//! Verification by the authorizer: chain, dates and CRLs of the certificates in each question
//! (`ClientVerifier::verify_presented`).

use rcgen::{CertificateParams, date_time_ymd};

use crate::support::asker::{AskedKeygate, Asker, UNIX};
use crate::support::pki::{Kind, Party, Pki, RevocationList};

fn expired(pki: &Pki) -> Party {
    let mut parameters = CertificateParams::default();
    (parameters.not_before, parameters.not_after) =
        (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
    pki.client_with("expired", Kind::P256, parameters)
}

fn verifying(more: &str) -> String {
    format!("{UNIX}client_auth = {{ trust_anchors = \"ca.pem\"{more} }}\n")
}

#[test]
fn without_trust_anchors_the_verification_of_the_host_counts() {
    let scene = AskedKeygate::start(UNIX);
    let stranger = Pki::named("Other CA").client("stranger", Kind::P256);
    for client in [&expired(&scene.pki), &stranger] {
        assert_eq!(scene.connect().ask_about(client).status, 200, "{}", client.name);
    }
}

#[test]
fn expired_and_foreign_certificates_are_denied_with_each_question() {
    let scene = AskedKeygate::start(&verifying(""));
    let stranger = Pki::named("Other CA").client("stranger", Kind::P256);
    let mut asker = scene.connect();
    for round in 1..=2 {
        assert_eq!(asker.ask_about(&scene.good).status, 200, "round {round}");
        let denied = asker.ask_about(&expired(&scene.pki));
        assert_eq!(denied.status, 403);
        assert!(denied.body.contains("has expired"), "{}", denied.body);
        let denied = asker.ask_about(&stranger);
        assert_eq!((denied.status, denied.field("client-key-status")), (403, Some("unchecked")));
        assert!(denied.body.contains("no accepted CA"), "{}", denied.body);
        assert_eq!(scene.questions("not_verified"), f64::from(2 * round));
    }
    assert_eq!(asker.ask_about(&scene.lost).status, 403);
    assert_eq!(scene.questions("denied"), 1.0, "a verified client is judged");
    // The line names the client, so that its owner can be found.
    let line = scene.keygate.wait_for("the line", |line| line["result"] == "not_verified");
    assert_eq!(line["subject"], "CN=expired", "{line}");
    assert_eq!(line["fingerprint"].as_str().map(str::len), Some(64), "{line}");
}

#[test]
fn a_revocation_list_that_rejects_a_client_that_was_asked_about_waits() {
    let pki = Pki::new();
    pki.crl_with("clients.crl", &RevocationList::new(1, &[]));
    let checks = ", crls = [\"clients.crl\"], max_new_hits = 0";
    let scene = AskedKeygate::with_pki(pki, &verifying(checks));
    assert_eq!(scene.connect().ask_about(&scene.good).status, 200);
    scene.pki.crl_with("clients.crl", &RevocationList::new(2, &[&scene.good]));
    let status = scene.keygate.wait_for_status("the list to wait", |status| {
        status["authorizers"][0]["waiting"]["new_hits"] == 1
    });
    let command = status["attention"][0]["command"].as_str().unwrap();
    assert!(command.starts_with("keygate service accept edge"), "{command}");
    assert_eq!(scene.connect().ask_about(&scene.good).status, 200);
}

#[test]
fn a_verified_chain_is_forgotten_with_the_revocation_lists_it_was_verified_with() {
    let pki = Pki::new();
    pki.crl_with("clients.crl", &RevocationList::new(1, &[]));
    let scene = AskedKeygate::with_pki(pki, &verifying(", crls = [\"clients.crl\"]"));
    let mut asker = scene.connect();
    for _ in 0..3 {
        assert_eq!(asker.ask_about(&scene.good).status, 200);
    }
    scene.pki.crl_with("clients.crl", &RevocationList::new(2, &[&scene.good]));
    scene.keygate.wait_for_generation(2);
    let denied = asker.ask_about(&scene.good);
    assert_eq!(denied.status, 403, "{}", denied.body);
    assert!(denied.body.contains("is revoked"), "{}", denied.body);
    // Without the CA no client is accepted.
    std::fs::copy(Pki::named("Other CA").path("ca.pem"), scene.pki.path("ca.pem")).unwrap();
    std::fs::remove_file(scene.pki.path("clients.crl")).unwrap();
    scene.reconfigure(&verifying(""), 3);
    assert_eq!(asker.ask_about(&scene.lost).status, 403);
    assert_eq!(scene.questions("not_verified"), 2.0);
}

#[test]
fn intermediates_come_from_the_host_or_from_the_file() {
    let pki = Pki::new();
    let below = pki.subordinate("Issuing CA");
    let client = below.client("below", Kind::P256);
    let issuer = below.ca().clone();
    let roots = std::fs::read(pki.path("ca.pem")).unwrap();
    let intermediate = std::fs::read(below.path("ca.pem")).unwrap();
    std::fs::write(pki.path("both.pem"), [&roots[..], &intermediate].concat()).unwrap();
    std::fs::write(pki.path("issuing.pem"), &intermediate).unwrap();
    let scene = AskedKeygate::with_pki(pki, &verifying(""));
    assert_eq!(scene.connect().ask(&[&client.der, &issuer]).status, 200, "sent by the host");
    assert_eq!(scene.connect().ask(&[&client.der]).status, 403, "not sent");
    let completed = [
        format!("{UNIX}client_auth = {{ trust_anchors = \"both.pem\" }}\n"),
        verifying(", intermediates = \"issuing.pem\""),
    ];
    for (generation, edge) in (2..).zip(completed) {
        scene.reconfigure(&edge, generation);
        let mut asker = scene.connect();
        for _ in 0..2 {
            assert_eq!(asker.ask(&[&client.der]).status, 200, "{edge}");
        }
    }
}

#[test]
fn a_chain_is_judged_up_to_its_anchor_although_the_host_sends_the_leaf_alone() {
    let pki = Pki::new();
    let spki = pki.spki();
    let scene = AskedKeygate::with_pki(pki, &verifying(""));
    assert_eq!(scene.connect().ask_about(&scene.good).status, 200);
    std::fs::write(scene.pki.path("deny.txt"), fingerprint(&spki)).unwrap();
    let edge = format!(
        "{}policy = {{ judge = \"chain\", allow_compromised_own_key = true }}\n[[lists]]\nname = \"cas\"\npath = \"deny.txt\"\n",
        verifying("")
    );
    scene.reconfigure(&edge, 2);
    let denied = scene.connect().ask_about(&scene.good);
    assert_eq!((denied.status, denied.field("client-key-status")), (403, Some("listed")));
}

fn fingerprint(spki: &[u8]) -> String {
    keygate_core::spki::Fingerprint::of(spki).to_string()
}

#[test]
fn the_lists_of_intermediates_count() {
    let root = Pki::new();
    let below = root.subordinate("Issuing CA");
    let client = below.client("below", Kind::P256);
    for (from, name) in [(root.path("ca.pem"), "root.pem"), (below.path("ca.pem"), "issuing.pem")] {
        std::fs::copy(from, root.path(name)).unwrap();
    }
    root.crl_with("root.crl", &RevocationList::new(1, &[]));
    let path = root.path("issuing.crl");
    let list = |number: u64, revoked: &[&Party]| {
        let list = below.signed_crl(&RevocationList::new(number, revoked));
        std::fs::write(&path, list.pem().unwrap()).unwrap();
    };
    list(1, &[]);
    let edge =
        verifying(", intermediates = \"issuing.pem\", crls = [\"root.crl\", \"issuing.crl\"]");
    let issuer = below.as_party();
    let scene = AskedKeygate::with_pki(root, &edge);
    let mut asker = scene.connect();
    for _ in 0..2 {
        assert_eq!(asker.ask(&[&client.der]).status, 200);
    }
    let denied = |asker: &mut Asker, reason: &str| {
        let answer = asker.ask(&[&client.der]);
        assert_eq!(answer.status, 403, "{}", answer.body);
        assert!(answer.body.contains(reason), "{}", answer.body);
    };
    // The issuing CA revokes the client.
    list(2, &[&client]);
    scene.keygate.wait_for_generation(2);
    denied(&mut asker, "is revoked");
    list(3, &[]);
    scene.keygate.wait_for_generation(3);
    assert_eq!(asker.ask(&[&client.der]).status, 200);
    // The root revokes the issuing CA.
    scene.pki.crl_with("root.crl", &RevocationList::new(2, &[&issuer]));
    scene.keygate.wait_for_generation(4);
    denied(&mut asker, "is revoked");
    // Only the client's own issuer needs a list.
    let edge = |list| verifying(&format!(", intermediates = \"issuing.pem\", crls = [\"{list}\"]"));
    scene.reconfigure(&edge("root.crl"), 5);
    denied(&mut asker, "revocation list");
    scene.pki.crl_with("root.crl", &RevocationList::new(3, &[]));
    scene.keygate.wait_for_generation(6);
    scene.reconfigure(&edge("issuing.crl"), 7);
    assert_eq!(asker.ask(&[&client.der]).status, 200);
}
