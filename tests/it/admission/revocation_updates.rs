//! Updates of revocation lists: which list of a CA is in use, and which update is rejected.
//!
//! Guards: `CrlLoader` in `crates/core/src/tls/crls/loader.rs`, and the marks of the state directory.

use std::fs::{read_to_string, rename, write};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::revocation::{
    A_DAY, SUCCESSFUL, Scene, configuration, refusals, scene, validate, validation_fails,
    validation_uses_the_last_good_list,
};
use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki, RevocationList};
use crate::support::proxy::Configure;
use crate::support::{output_text, write_filter};

#[test]
fn an_older_revocation_list_is_rejected_with_a_changed_configuration_which_is_used() {
    let scene = scene(A_DAY, "");
    scene.refuses(&scene.revoked, "certificate revoked");
    let config = scene.pki.path("keygate.toml");
    let changed = configuration(&scene.origin, "").limits("max_streams = 7");
    std::fs::write(scene.pki.path("next.toml"), changed.text()).unwrap();
    // Both files change. The new configuration must not load the list, and needs none that is new.
    rename(scene.pki.old_crl("old.crl"), scene.pki.path("clients.crl")).unwrap();
    rename(scene.pki.path("next.toml"), config).unwrap();
    scene.keygate.wait_for("a refusal", |line| {
        line["message"] == "certificate update rejected, keeping those in use"
            && line["error"].as_str().unwrap().contains("is older than the one that was in use")
    });
    scene.keygate.wait_for_generation(2);
    scene.refuses(&scene.revoked, "certificate revoked");
    scene.admits(&scene.good);
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
                "CN=Foreign CA is no CA of this service, and CAs and pins that it issued are rejected; \
                 remove the list, or add the CA to",
            )
    });
    scene.keygate.wait_for_generation(2);
    scene.refuses(&scene.good, "certificate revoked");
    scene.admits(&scene.revoked);
    assert_eq!(scene.keygate.metric(SUCCESSFUL), 1.0);
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
    validation_uses_the_last_good_list(&pki, "(number 255, issued ");
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
    validation_uses_the_last_good_list(&pki, "(number 255, issued ");
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
    validation_uses_the_last_good_list(&pki, "(number 256, issued ");
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
    let warning = keygate
        .wait_for("a warning", |line| line["message"] == "certificate revocation list is not used");
    let problem = warning["problem"].as_str().unwrap();
    let expected = "because an update of the CAs removed CN=Another CA, and CAs and pins that it \
                    issued are rejected; restore the file with the CA, or remove these \
                    certificates, then the list";
    assert!(problem.ends_with(expected), "{problem}");
    assert!(!keygate.curl(&stranger, &[]).status.success());
    assert_eq!(keygate.curl(&good, &[]).stdout, b"hello\n");
}

#[test]
fn a_pin_that_was_revoked_stays_rejected_after_its_ca_was_removed() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let theirs = Pki::named("Another CA");
    let (good, pinned) = (pki.client("good", Kind::P256), theirs.client("pinned", Kind::P256));
    write_filter(&pki.path("lost.pkbf"), &[]);
    let pem = |path| read_to_string(path).unwrap();
    let pin = pem(pki.path("ca.pem")) + &pem(pinned.certificate.clone());
    write(pki.path("clients-ca.pem"), pin.clone() + &pem(theirs.path("ca.pem"))).unwrap();
    let lists = [(&pki, &[][..]), (&theirs, &[&pinned])]
        .map(|(pki, revoked)| pki.signed_crl(&RevocationList::new(1, revoked)).pem().unwrap());
    write(pki.path("clients.crl"), lists.concat()).unwrap();
    let keygate =
        configuration(&origin, "").client_auth("trust_anchors = \"clients-ca.pem\"").start(&pki);
    assert!(keygate.rejection(&pinned).contains("certificate revoked"));
    write(pki.path("next"), pin).unwrap();
    rename(pki.path("next"), pki.path("clients-ca.pem")).unwrap();
    keygate.wait_for_generation(2);
    let rejection = keygate.rejection(&pinned);
    assert!(rejection.contains("alert"), "{rejection}");
    assert_eq!(keygate.curl(&good, &[]).stdout, b"hello\n");
    // A file that cannot be read does not speak for the pin.
    write(pki.path("next"), "damaged").unwrap();
    rename(pki.path("next"), pki.path("clients.crl")).unwrap();
    keygate.wait_for("a rejection of the file", |line| {
        line["error"].as_str().is_some_and(|error| error.contains("clients.crl"))
    });
    assert!(keygate.rejection(&pinned).contains("alert"));
    // Without the list nothing speaks against the pin.
    write(pki.path("next"), &lists[0]).unwrap();
    rename(pki.path("next"), pki.path("clients.crl")).unwrap();
    keygate.wait_for_generation(3);
    assert_eq!(keygate.curl(&pinned, &[]).stdout, b"hello\n");
}

#[test]
fn an_issuing_ca_that_was_revoked_stays_rejected_whatever_becomes_of_its_root() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let issuing = pki.subordinate("Issuing CA");
    let client = issuing.client("client", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let [root, below] = [&pki, &issuing].map(|pki| read_to_string(pki.path("ca.pem")).unwrap());
    let own = issuing.signed_crl(&RevocationList::new(1, &[])).pem().unwrap();
    let revoked = issuing.as_party();
    let revoking =
        |number| pki.signed_crl(&RevocationList::new(number, &[&revoked])).pem().unwrap() + &own;
    let publish = |name: &str, content: &str| {
        write(pki.path("next"), content).unwrap();
        rename(pki.path("next"), pki.path(name)).unwrap();
    };
    publish("clients-ca.pem", &(root + &below));
    publish("clients.crl", &revoking(1));
    let text = configuration(&origin, "").client_auth("trust_anchors = \"clients-ca.pem\"");
    let mut keygate = text.start(&pki);
    assert!(keygate.rejection(&client).contains("certificate revoked"));
    // Neither the list in use nor the next one counts any more.
    publish("clients-ca.pem", &(pki.without_crl_sign() + &below));
    keygate.wait_for_generation(2);
    assert!(keygate.rejection(&client).contains("alert"));
    publish("clients.crl", &revoking(2));
    keygate.wait_for("a rejection", |line| {
        line["error"].as_str().is_some_and(|error| error.contains("must not sign revocation lists"))
    });
    assert!(keygate.rejection(&client).contains("alert"));
    publish("clients-ca.pem", &below);
    keygate.wait_for("a warning", |line| {
        let problem = line["problem"].as_str().unwrap_or_default();
        problem.contains("CN=Test CA, and CAs and pins that it issued are rejected")
    });
    assert!(keygate.rejection(&client).contains("alert"));
    keygate = text.start(&pki);
    assert!(keygate.rejection(&client).contains("alert"));
    // Without the list nothing speaks against the issuing CA.
    publish("clients.crl", &own);
    keygate.wait_for_generation(2);
    assert_eq!(keygate.curl(&client, &[]).stdout, b"hello\n");
}
