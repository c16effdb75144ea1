//! Changes that are tried on recent clients before they are used.
//!
//! Guards: `DryRun` in `src/sources/check/dry_run.rs`, `record_admitted` in
//! `src/proxy/worker.rs` and `src/ask/connection.rs` (the whole path of each client).

use std::fs::write;

use keygate_core::spki::Fingerprint;

use crate::support::keygate::Keygate;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::scene::contains;
use crate::support::{write_filter, write_revision};

const NOT_CHECKED: &str = "not checked: no recent client";

fn reconfigure(keygate: &Keygate, pki: &Pki, configuration: &Configuration) {
    write(pki.path("keygate.toml"), configuration.text()).unwrap();
    keygate.wait_for("the configuration", |line| line["message"] == "configuration loaded");
}

#[test]
fn an_update_is_tried_on_the_clients_of_a_service_that_was_renamed() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let client = pki.client("client", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[b"another"]);
    let configuration = Configuration::new(origin.address()).filter("max_new_hits = 0");
    let keygate = configuration.start(&pki);
    assert_eq!(keygate.curl(&client, &[]).stdout, b"hello\n");
    let renamed = configuration.set("services.name", "renamed");
    reconfigure(&keygate, &pki, &renamed);
    write_revision(&pki.path("lost.pkbf"), &[b"another", &client.spki], 2);
    let line = keygate.wait_for("the rejection", |line| {
        line["message"] == "filter update rejected, keeping the one in use"
            && line["reason"] == "new_hits"
    });
    assert!(contains(&line["clients"], "CN=client (test)"), "{line}");
    assert_eq!(keygate.curl(&client, &[]).stdout, b"hello\n");
}

#[test]
fn an_update_is_tried_on_whole_paths_after_the_depth_of_the_policy_changed() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let (client, intermediate) = pki.client_of_intermediate("client");
    write_filter(&pki.path("lost.pkbf"), &[b"another"]);
    let configuration = Configuration::new(origin.address()).filter("max_new_hits = 0");
    let keygate = configuration.start(&pki);
    assert_eq!(keygate.curl(&client, &[]).stdout, b"hello\n");
    reconfigure(&keygate, &pki, &configuration.policy("judge = \"chain\""));
    write_revision(&pki.path("lost.pkbf"), &[b"another", &intermediate], 2);
    keygate.wait_for_status("the update to wait", |status| {
        status["filters"][0]["waiting"]["new_hits"] == 1
    });
    assert_eq!(keygate.curl(&client, &[]).stdout, b"hello\n");
}

#[test]
fn an_update_that_was_tried_on_nobody_says_so() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let client = pki.client("client", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[b"another"]);
    let configuration = Configuration::new(origin.address()).filter("max_new_hits = 0");
    let keygate = configuration.start(&pki);
    write_revision(&pki.path("lost.pkbf"), &[b"another", b"one more"], 2);
    keygate.wait_for("the update", |line| {
        line["message"] == "filter loaded" && line["max_new_hits"] == NOT_CHECKED
    });
    keygate.wait_for_status("the update", |status| {
        status["filters"][0]["max_new_hits"] == NOT_CHECKED
    });
    assert_eq!(keygate.curl(&client, &[]).stdout, b"hello\n");
    write_revision(&pki.path("lost.pkbf"), &[b"another", b"one more", b"two more"], 3);
    keygate.wait_for_status("an update that was tried", |status| {
        let filter = &status["filters"][0];
        filter["revision"] == 3 && filter["max_new_hits"].is_null()
    });
}

#[test]
fn a_service_without_a_recent_client_is_named_although_another_one_has_some() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let client = pki.client("client", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[b"another"]);
    let configuration = Configuration::new(origin.address()).filter("max_new_hits = 0");
    let keygate = configuration.second_service("server_names = [\"second.test\"]").start(&pki);
    assert_eq!(keygate.curl(&client, &[]).stdout, b"hello\n");
    write_revision(&pki.path("lost.pkbf"), &[b"another", b"one more"], 2);
    let expected = format!("{NOT_CHECKED} of second");
    keygate
        .wait_for_status("the update", |status| status["filters"][0]["max_new_hits"] == expected);
}

/// The clients `one` and `two` have connected. The rules and exceptions of a new configuration would
/// reject `two`, whose key is on a list.
#[test]
fn a_configuration_is_tried_on_recent_clients_as_a_whole() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let [one, two] = ["one", "two"].map(|name| pki.client(name, Kind::P256));
    write_filter(&pki.path("lost.pkbf"), &[&two.spki]);
    let key = Fingerprint::of(&two.spki);
    let exception =
        format!("[[exceptions]]\nfingerprint = \"{key}\"\nuntil = 2999-01-01\nreason = \"a test\"");
    let other_ca = Pki::named("Another CA");
    std::fs::copy(other_ca.path("ca.pem"), pki.path("other.pem")).unwrap();
    let base = Configuration::new(origin.address()).client_auth("max_new_hits = 0");
    let start = base.clone().global(&exception);
    let keygate = start.start(&pki);
    for client in [&one, &two] {
        assert_eq!(keygate.curl(client, &[]).stdout, b"hello\n");
    }
    let only_one = "common_names = [\"one\"]";
    for (changed, new_hits) in [
        (base.clone(), 1),
        (start.clone().add("services.client_auth.allow", only_one), 1),
        (start.clone().client_auth("trust_anchors = \"other.pem\""), 2),
    ] {
        write(pki.path("keygate.toml"), changed.text()).unwrap();
        let problem = format!("it would reject {new_hits} of the 2 clients admitted recently");
        keygate.wait_for("the rejection", |line| {
            line["message"] == "configuration rejected, keeping the one in use"
                && contains(&line["problem"], &problem)
                && contains(&line["problem"], "CN=two (test)")
        });
        for client in [&one, &two] {
            assert_eq!(keygate.curl(client, &[]).stdout, b"hello\n");
        }
    }
    let permitted = base.client_auth("max_new_hits = 1");
    reconfigure(&keygate, &pki, &permitted);
    keygate.wait_for("the number", |line| {
        line["message"] == "the configuration rejects recent clients"
            && line["service"] == "test"
            && line["new_hits"] == 1
            && line["recent"] == 2
    });
    keygate.rejection(&two);
    assert_eq!(keygate.curl(&one, &[]).stdout, b"hello\n");
}

#[test]
fn a_configuration_that_renames_a_service_is_tried_on_its_clients() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let client = pki.client("client", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    std::fs::copy(Pki::named("Another CA").path("ca.pem"), pki.path("other.pem")).unwrap();
    let base = Configuration::new(origin.address()).client_auth("max_new_hits = 0");
    let keygate = base.start(&pki);
    assert_eq!(keygate.curl(&client, &[]).stdout, b"hello\n");
    let changed = base.set("services.name", "renamed").client_auth("trust_anchors = \"other.pem\"");
    write(pki.path("keygate.toml"), changed.text()).unwrap();
    keygate.wait_for("the rejection", |line| {
        line["message"] == "configuration rejected, keeping the one in use"
            && contains(&line["problem"], "it would reject 1 of the 1 clients admitted recently")
    });
    assert_eq!(keygate.curl(&client, &[]).stdout, b"hello\n");
}
