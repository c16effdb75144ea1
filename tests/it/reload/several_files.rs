//! Several unusable files: one attempt reports each of them.

use std::fs::{create_dir, read, remove_dir, remove_file, rename, write};
use std::time::Duration;

use crate::support::keygate::keygate;
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::{Configuration, Configure, Proxy};
use crate::support::{output_text, write_filter};

const LONG: Duration = Duration::from_secs(3600);

/// A configuration that names a file of every kind.
fn configuration() -> Configuration {
    Configuration::new("127.0.0.1:1")
        .global(
            r#"
            state = { dir = "state" }
            [[filters]]
            name = "other"
            path = "other.pkbf"
            [[lists]]
            name = "deny"
            path = "deny.txt"
            [[lists]]
            name = "second"
            path = "second.txt"
            "#,
        )
        .filter("canaries = [\"one.canary\", \"two.canary\"]")
        .client_auth("crls = [\"one.crl\", \"two.crl\"]")
        .second_service(
            r#"
            server_names = ["second.example"]
            client_auth = { trust_anchors = "second-ca.pem", intermediates = "below.pem" }
            upstream = { servers = ["https://127.0.0.1:1"], tls = { trust_anchors = "up.pem", certificate = "up-client.pem", private_key = "up-client.key" } }
            "#,
        )
}

/// Writes good files and lets `break_files` damage some, then validates and starts. The errors of
/// both commands are `expected`, in this order.
fn fails(break_files: impl Fn(&Pki), expected: &[&str]) {
    let pki = Pki::new();
    let party = pki.client("lost", Kind::P256);
    pki.client("up-client", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[&party.spki]);
    write_filter(&pki.path("other.pkbf"), &[]);
    for name in ["deny.txt", "second.txt"] {
        write(pki.path(name), "# no key\n").unwrap();
    }
    for name in ["one.canary", "two.canary"] {
        write(pki.path(name), read(&party.certificate).unwrap()).unwrap();
    }
    for name in ["second-ca.pem", "up.pem"] {
        write(pki.path(name), read(pki.path("ca.pem")).unwrap()).unwrap();
    }
    let below = pki.subordinate("below");
    write(pki.path("below.pem"), read(below.path("ca.pem")).unwrap()).unwrap();
    for name in ["one.crl", "two.crl"] {
        pki.crl(name, &[], LONG);
    }
    create_dir(pki.path("state")).unwrap();
    let config = pki.path("keygate.toml");
    write(&config, configuration().text()).unwrap();
    let config = config.to_str().unwrap();
    let good = keygate(&["validate", config]);
    assert_eq!(good.status.code(), Some(0), "{}", output_text(&good));
    break_files(&pki);
    for command in ["validate", "run"] {
        let output = keygate(&[command, config]);
        assert_eq!(output.status.code(), Some(3), "{command}: {}", output_text(&output));
        let text = String::from_utf8(output.stderr).unwrap();
        let errors = text.lines().filter_map(|line| line.strip_prefix("keygate: "));
        let errors: Vec<_> = errors.collect();
        let directory = format!("{}/", pki.directory().display());
        let errors: Vec<_> = errors.iter().map(|error| error.replace(&directory, "")).collect();
        assert_eq!(errors.len(), expected.len(), "{command}: {errors:#?}");
        for (error, expected) in errors.iter().zip(expected) {
            let place = place_of(expected);
            let error = error.strip_prefix(&place).unwrap_or_else(|| panic!("{place}{error}"));
            assert!(error.starts_with(expected), "{command}: {expected}: {error}");
        }
    }
}

/// `keygate.toml:` with the line of the configuration that names the file of an error. Each array
/// of tables is written in one line. The files in the state directory have the line of `state.dir`.
fn place_of(error: &str) -> String {
    let table = match error.split(' ').next().unwrap() {
        "filter" => "filters",
        "list" => "lists",
        "service" => "services",
        "state" | "state.dir" => "state",
        _ => return String::new(),
    };
    let (text, start) = (configuration().text(), format!("{table} = "));
    let line = text.lines().position(|line| line.starts_with(&start)).unwrap() + 1;
    format!("keygate.toml:{line}: ")
}

#[test]
fn every_file_that_is_missing_has_a_line_in_the_order_of_the_configuration() {
    let gone = |pki: &Pki| {
        remove_dir(pki.path("state")).unwrap();
        for name in [
            "lost.pkbf",
            "one.canary",
            "two.canary",
            "other.pkbf",
            "deny.txt",
            "second.txt",
            "server.pem",
            "server.key",
            "ca.pem",
            "one.crl",
            "two.crl",
            "second-ca.pem",
            "below.pem",
            "up.pem",
            "up-client.pem",
            "up-client.key",
        ] {
            remove_file(pki.path(name)).unwrap();
        }
    };
    fails(
        gone,
        &[
            "state.dir state: no file can be created in the directory: No such file",
            "filter \"lost\": lost.pkbf: ",
            "filter \"lost\": lost.pkbf: canaries in one.canary: ",
            "filter \"lost\": lost.pkbf: canaries in two.canary: ",
            "filter \"other\": other.pkbf: ",
            "list \"deny\": deny.txt: ",
            "list \"second\": second.txt: ",
            "service \"test\": tls.certificate server.pem: ",
            "service \"test\": tls.private_key server.key: ",
            "service \"test\": client_auth.trust_anchors ca.pem: ",
            "service \"test\": client_auth.crls one.crl: ",
            "service \"test\": client_auth.crls two.crl: ",
            "service \"second\": tls.certificate server.pem: ",
            "service \"second\": tls.private_key server.key: ",
            "service \"second\": client_auth.trust_anchors second-ca.pem: ",
            "service \"second\": client_auth.intermediates below.pem: ",
            "service \"second\": client_auth.crls one.crl: ",
            "service \"second\": client_auth.crls two.crl: ",
            "service \"second\": upstream.tls.trust_anchors up.pem: ",
            "service \"second\": upstream.tls.certificate up-client.pem: ",
            "service \"second\": upstream.tls.private_key up-client.key: ",
        ],
    );
}

#[test]
fn every_file_with_unusable_content_has_a_line() {
    let damage = |pki: &Pki| {
        write(pki.path("state/filters.json"), "{").unwrap();
        write(pki.path("state/revocation-lists.json"), "{").unwrap();
        for name in [
            "lost.pkbf",
            "two.canary",
            "deny.txt",
            "server.pem",
            "server.key",
            "one.crl",
            "two.crl",
            "below.pem",
            "up.pem",
            "up-client.key",
        ] {
            write(pki.path(name), "damaged\n").unwrap();
        }
    };
    fails(
        damage,
        &[
            "state state/filters.json: ",
            "state state/revocation-lists.json: ",
            "filter \"lost\": lost.pkbf: ",
            "filter \"lost\": lost.pkbf: canaries in two.canary: ",
            "list \"deny\": deny.txt: ",
            "service \"test\": tls.certificate server.pem: ",
            "service \"test\": tls.private_key server.key: ",
            "service \"test\": client_auth.crls one.crl: ",
            "service \"test\": client_auth.crls two.crl: ",
            "service \"second\": tls.certificate server.pem: ",
            "service \"second\": tls.private_key server.key: ",
            "service \"second\": client_auth.intermediates below.pem: ",
            "service \"second\": upstream.tls.trust_anchors up.pem: ",
            "service \"second\": upstream.tls.private_key up-client.key: ",
        ],
    );
}

#[test]
fn every_list_of_another_ca_has_a_line() {
    let foreign = |pki: &Pki| {
        let another = Pki::named("Another CA");
        for name in ["one.crl", "two.crl"] {
            let list = another.crl(name, &[], LONG);
            write(pki.path(name), read(list).unwrap()).unwrap();
        }
    };
    fails(
        foreign,
        &[
            "service \"test\": client_auth.crls one.crl: the list at position 1 cannot be used",
            "service \"test\": client_auth.crls two.crl: the list at position 1 cannot be used",
            "service \"second\": client_auth.crls one.crl: the list at position 1 cannot be used",
            "service \"second\": client_auth.crls two.crl: the list at position 1 cannot be used",
        ],
    );
}

#[test]
fn a_reload_reports_every_unusable_file_of_a_unit_and_of_a_configuration_in_one_line() {
    let keygate = Proxy::new().start();
    let directory = keygate.pki.directory();
    let (config_ca, ca) = (directory.join("ca.pem"), read(directory.join("ca.pem")).unwrap());
    for name in ["server.pem", "server.key", "ca.pem"] {
        let staged = directory.join("staged");
        write(&staged, "damaged\n").unwrap();
        rename(&staged, directory.join(name)).unwrap();
    }
    let contains_all = |text: &serde_json::Value, words: &[&str]| {
        text.as_str().is_some_and(|text| words.iter().all(|word| text.contains(word)))
    };
    for (files, words) in
        [("server", &["tls.certificate ", "tls.private_key "][..]), ("client_ca", &["ca.pem: "])]
    {
        keygate.wait_for("the certificates", |line| {
            line["message"] == "certificate update rejected, keeping those in use"
                && line["files"] == files
                && contains_all(&line["error"], words)
        });
    }
    keygate.wait_for_status("both units", |status| {
        let error = &status["services"][0]["last_reload"]["error"];
        contains_all(error, &["tls.certificate ", "tls.private_key ", "ca.pem: "])
    });
    write(&config_ca, &ca).unwrap();
    keygate.admits(&keygate.good);
    keygate.rejects(&keygate.lost);

    let config = directory.join("keygate.toml");
    let more = "[[filters]]\nname = \"new\"\npath = \"no.pkbf\"\n[[lists]]\nname = \"new\"\npath = \"no.txt\"";
    let text = keygate.configuration.clone().global(more).text();
    write(directory.join("staged"), text).unwrap();
    rename(directory.join("staged"), &config).unwrap();
    keygate.wait_for("the configuration", |line| {
        line["message"] == "configuration rejected, keeping the one in use"
            && contains_all(&line["problem"], &["filter \"new\": ", "list \"new\": "])
    });
    keygate.admits(&keygate.good);
    keygate.rejects(&keygate.lost);
}
