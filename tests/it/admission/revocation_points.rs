//! Revocation lists of distribution points: which list may take the place of another one.
//!
//! Guards: `finish` and `newer_mark` in `crates/core/src/tls/crls/loader.rs`.

use std::fs::{create_dir, read_to_string, rename, write};
use std::time::Duration;

use rcgen::{CertificateParams, CrlDistributionPoint};

use super::revocation::{Scene, configuration, validate};
use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki, RevocationList};
use crate::support::proxy::Configure;
use crate::support::scene::contains;
use crate::support::{output_text, write_filter};

const A: &str = "http://crl.example/a";
const B: &str = "http://crl.example/b";

fn client_at(pki: &Pki, name: &str, point: &str) -> Party {
    let mut parameters = CertificateParams::default();
    parameters.crl_distribution_points =
        vec![CrlDistributionPoint { uris: vec![point.to_owned()] }];
    pki.client_with(name, Kind::P256, parameters)
}

fn list(pki: &Pki, number: u64, revoked: &[&Party], point: Option<&str>) -> String {
    let list = RevocationList { distribution_point: point, ..RevocationList::new(number, revoked) };
    pki.signed_crl(&list).pem().unwrap()
}

/// A service whose clients name the distribution point A, with number 20 of its list, and with a
/// list for B.
fn scene() -> Scene {
    let (pki, origin) = (Pki::new(), Origin::start());
    let [good, revoked] = ["good", "revoked"].map(|name| client_at(&pki, name, A));
    write_filter(&pki.path("lost.pkbf"), &[]);
    create_dir(pki.path("state")).unwrap();
    let lists = [list(&pki, 20, &[&revoked], Some(A)), list(&pki, 3, &[], Some(B))];
    write(pki.path("clients.crl"), lists.concat()).unwrap();
    let text = configuration(&origin, "").global("state = { dir = \"state\" }");
    let keygate = text.start(&pki);
    let scene = Scene { pki, keygate, good, revoked, origin };
    scene.is_as_it_was();
    scene
}

#[test]
fn a_list_of_all_certificates_replaces_no_newer_list_of_a_distribution_point() {
    let mut scene = scene();
    scene.publish(list(&scene.pki, 10, &[], None));
    scene.is_rejected("rollback", "(number 10, issued ");
    // A later date, and an older number.
    let mut older = RevocationList::new(19, &[]);
    older.issued += Duration::from_secs(600);
    scene.publish(scene.pem(&older));
    scene.is_rejected("rollback", "(number 19, issued ");
    // A newer number, and an older date.
    let mut older = RevocationList::new(30, &[]);
    older.issued -= Duration::from_secs(600);
    scene.publish(scene.pem(&older));
    scene.is_rejected("rollback", "(number 30, issued ");

    // After a restart the same holds.
    scene.keygate.signal("TERM");
    assert!(scene.keygate.ended().success());
    let validated = validate(&scene.pki);
    let text = output_text(&validated);
    assert!(text.contains("is older than the one that was in use"), "{text}");

    let mut newer = RevocationList::new(30, &[]);
    newer.issued += Duration::from_secs(600);
    scene.publish(scene.pem(&newer));
    let text = read_to_string(scene.pki.path("keygate.toml")).unwrap();
    scene.keygate = Keygate::configured(&scene.pki, &text);
    scene.admits(&scene.revoked);
}

#[test]
fn a_distribution_point_without_a_list_any_more_is_told_and_its_list_stays() {
    let scene = scene();
    // The file of A becomes a copy of the file of B.
    scene.publish(list(&scene.pki, 4, &[], Some(B)).repeat(2));
    scene.is_rejected("issuer", &format!("no revocation list of CN=Test CA for {A} is left"));
    let lists = [list(&scene.pki, 21, &[&scene.good], Some(A)), list(&scene.pki, 4, &[], Some(B))];
    scene.publish(lists.concat());
    scene.keygate.wait_for_generation(2);
    scene.refuses(&scene.good, "certificate revoked");
    scene.admits(&scene.revoked);
    // A list of all certificates takes the place of both.
    scene.publish(list(&scene.pki, 22, &[&scene.revoked], None));
    scene.keygate.wait_for_generation(3);
    scene.is_as_it_was();
}

#[test]
fn a_lost_list_is_told_at_a_restart_and_with_a_new_configuration_and_stays() {
    let mut scene = scene();
    let lost = format!("no revocation list of CN=Test CA for {A} is left");
    scene.keygate.signal("TERM");
    assert!(scene.keygate.ended().success());
    scene.publish(list(&scene.pki, 4, &[], Some(B)));
    let validated = output_text(&validate(&scene.pki));
    assert!(validated.contains(&lost), "{validated}");
    let text = read_to_string(scene.pki.path("keygate.toml")).unwrap();
    scene.keygate = Keygate::configured(&scene.pki, &text);
    scene.keygate.wait_for_status("the rejection", |status| {
        contains(&status["services"][0]["last_reload"]["error"], &lost)
    });
    scene.is_as_it_was();

    let limits = configuration(&scene.origin, "").limits("max_streams = 7");
    let text = limits.global("state = { dir = \"state\" }").text();
    write(scene.pki.path("next.toml"), &text).unwrap();
    rename(scene.pki.path("next.toml"), scene.pki.path("keygate.toml")).unwrap();
    scene.keygate.wait_for_generation(2);
    scene.is_rejected("issuer", &lost);

    // A file of another name divides the lists anew.
    let next = list(&scene.pki, 5, &[], Some(B));
    write(scene.pki.path("divided.crl"), next).unwrap();
    let text = text.replace("clients.crl", "divided.crl");
    write(scene.pki.path("next.toml"), &text).unwrap();
    rename(scene.pki.path("next.toml"), scene.pki.path("keygate.toml")).unwrap();
    scene.keygate.wait_for_generation(3);
    let response = output_text(&scene.keygate.curl(&scene.good, &[]));
    assert!(response.contains("alert"), "no list covers it: {response}");
}
