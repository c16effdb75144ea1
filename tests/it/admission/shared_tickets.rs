//! Processes with the same content resume the sessions of each other (`tls.ticket_secret`).
//!
//! Guards: `admission_digest` and `judging_digest` in `src/sources/admission_digest.rs` (each part of
//! the digest), `shared_tickets` in `src/snapshot/loader/build.rs`.

use std::fs::{copy, create_dir, read_dir, read_to_string, remove_file, set_permissions, write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use keygate_core::spki::Fingerprint;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, SupportedProtocolVersion};

use crate::support::client::{Client, config_of};
use crate::support::keygate::{Keygate, keygate};
use crate::support::pki::{Kind, Party, Pki, RevocationList};
use crate::support::proxy::{Configuration, Configure, Proxy, Running};
use crate::support::{before, output_text, write_filter, write_revision};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];
const GET: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
const RULES: &str = "allow = { common_names = [\"good\", \"lost\", \"second\"] }";

/// A secret as `openssl rand -base64 48` prints it.
fn secret(number: u8) -> String {
    data_encoding::BASE64.encode(&[number; 48]) + "\n"
}

/// A proxy with every file that admits clients.
fn proxy() -> Proxy {
    let proxy = Proxy::new();
    let pki = &proxy.pki;
    write(pki.path("tickets.secret"), secret(1)).unwrap();
    set_permissions(pki.path("tickets.secret"), PermissionsExt::from_mode(0o600)).unwrap();
    write(pki.path("deny.txt"), "# none\n").unwrap();
    write_filter(&pki.path("lost.pkbf"), &[&proxy.lost.spki]);
    let list = RevocationList::new(1, &[]);
    write(pki.path("ca.crl"), pki.signed_crl(&list).pem().unwrap()).unwrap();
    proxy
        .global(
            "log = { repeat_after = \"0s\" }\n[[lists]]\nname = \"deny\"\npath = \"deny.txt\"\n",
        )
        .add("services.tls", "ticket_secret = \"tickets.secret\"")
        .client_auth(&format!("crls = [\"ca.crl\"], {RULES}"))
        .policy("evict_within = \"1s\"")
}

/// Another process with copies of all files, of which `change` may change some.
fn second(
    running: &Running,
    change: impl FnOnce(&dyn Fn(&str) -> PathBuf, Configuration) -> Configuration,
) -> Keygate {
    let directory = running.pki.path("second");
    let _ = std::fs::remove_dir_all(&directory); // of an earlier process
    create_dir(&directory).unwrap();
    for entry in read_dir(running.pki.directory()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            copy(entry.path(), directory.join(entry.file_name())).unwrap();
        }
    }
    let configuration = change(&|name| directory.join(name), running.configuration.clone());
    Keygate::in_directory(&directory, &configuration.text())
}

/// Sends a request. Returns whether the session was resumed; `None` if the client got no response.
fn get(keygate: &Keygate, config: &Arc<ClientConfig>) -> Option<bool> {
    let mut client = Client::with((**config).clone(), keygate.address());
    let _ = client.try_send(GET); // the connection may be closed
    let response = client.read_to_end().ok()?;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    Some(client.is_resumed())
}

fn configs(pki: &Pki, party: &Party) -> [Arc<ClientConfig>; 2] {
    VERSIONS.map(|version| Arc::new(config_of(pki, &[version], Some(party))))
}

#[test]
fn processes_with_the_same_content_resume_the_sessions_of_each_other_also_after_a_restart() {
    let mut running = proxy().start();
    let other = second(&running, |_, same| same);
    for config in configs(&running.pki, &running.good) {
        assert_eq!(get(&running, &config), Some(false));
        // Each connection has the ticket of the other process.
        for keygate in [&other, &running.keygate, &other, &running.keygate] {
            assert_eq!(get(keygate, &config), Some(true));
        }
    }
    let [_, config] = configs(&running.pki, &running.good);
    get(&running, &config);
    running.keygate = running.configuration.start(&running.pki);
    assert_eq!(get(&running, &config), Some(true));
}

#[test]
fn no_session_is_resumed_without_the_key() {
    let running = proxy().unset("services.tls.ticket_secret").start();
    let other = second(&running, |_, same| same);
    for config in configs(&running.pki, &running.good) {
        get(&running, &config);
        assert_eq!(get(&other, &config), Some(false));
    }
}

/// Each kind of content that differs.
#[test]
fn a_process_with_other_content_opens_no_ticket() {
    let [first_key, other_key] = [b"first", b"other"].map(|key| Fingerprint::of(key).to_string());
    let exception = format!(
        "[[exceptions]]\nfingerprint = \"{first_key}\"\nuntil = 2199-12-31\nreason = \"test\"\n"
    );
    let running = proxy().policy("on_unchecked = \"flag\"").global(&exception).start();
    let second_client = running.pki.client("second", Kind::P256);
    type Change<'a> = &'a dyn Fn(&dyn Fn(&str) -> PathBuf, Configuration) -> Configuration;
    let crl = |revoked: &[&Party]| {
        let list = RevocationList::new(2, revoked);
        running.pki.signed_crl(&list).pem().unwrap()
    };
    let set = |place: &'static str, value: &'static str| {
        move |_: &dyn Fn(&str) -> PathBuf, it: Configuration| it.set(place, value)
    };
    let changes: [(&str, Change<'_>); 17] = [
        ("filter", &|path, it| {
            write_revision(&path("lost.pkbf"), &[&running.lost.spki], 2);
            it
        }),
        ("list", &|path, it| {
            write(path("deny.txt"), "# changed\n").unwrap();
            it
        }),
        ("name of the list", &set("lists.name", "other")),
        ("CRL", &|path, it| {
            write(path("ca.crl"), crl(&[&second_client])).unwrap();
            it
        }),
        ("rule", &|_, it| it.client_auth("allow = { common_names = [\"good\"] }")),
        ("kind of rule", &|_, it| {
            it.unset("services.client_auth.allow").client_auth("allow = { dns = [\"localhost\"], common_names = [\"good\", \"lost\", \"second\"] }")
        }),
        ("policy", &set("services.policy.on_unchecked", "header")),
        ("depth", &set("services.policy.judge", "chain")),
        ("treatment of expired lists", &set("services.client_auth.expired_crl", "accept")),
        ("purposes", &|_, it| it.client_auth("accept_server_auth_until = 2199-12-31")),
        ("name of the filter", &set("filters.name", "other")),
        ("related exponents", &|_, it| it.filter("related_exponents = [3]")),
        ("key of an exception", &|_, it| it.set("exceptions.fingerprint", other_key.clone())),
        ("end of an exception", &|_, it| it.add("exceptions", "until = 2198-12-31")),
        ("depth of revocation", &set("services.client_auth.revocation", "leaf")),
        ("weak keys", &|_, it| it.global("weak_keys = { checks = [] }")),
        ("name of the service", &set("services.name", "other")),
    ];
    for (what, change) in changes {
        let other = second(&running, change);
        for config in configs(&running.pki, &running.good) {
            get(&running, &config);
            assert_eq!(get(&other, &config), Some(false), "{what}");
            assert_eq!(
                get(&running, &config),
                Some(false),
                "{what}: a ticket of the other process"
            );
        }
    }
}

/// A further CA, without CRLs, which would differ as well.
#[test]
fn a_process_with_other_cas_opens_no_ticket() {
    let running = proxy().unset("services.client_auth.crls").start();
    let same = second(&running, |_, same| same);
    let configs = configs(&running.pki, &running.good);
    for config in &configs {
        get(&running, config);
        assert_eq!(get(&same, config), Some(true));
    }
    let other = second(&running, |path, it| {
        let (ca, other) = (read_to_string(path("ca.pem")).unwrap(), Pki::named("Other CA"));
        let other = read_to_string(other.path("ca.pem")).unwrap();
        write(path("cas.pem"), ca + &other).unwrap();
        it.set("services.client_auth.trust_anchors", "cas.pem")
    });
    for config in &configs {
        get(&running, config);
        assert_eq!(get(&other, config), Some(false));
    }
}

/// Clients without a certificate, which rules by name do not permit.
#[test]
fn a_process_that_requires_no_certificate_opens_no_ticket() {
    let proxy = proxy().unset("services.client_auth.allow").policy("on_unchecked = \"flag\"");
    let running = proxy.start();
    let other = second(&running, |_, it| it.set("services.client_auth.mode", "optional"));
    for config in configs(&running.pki, &running.good) {
        get(&running, &config);
        assert_eq!(get(&other, &config), Some(false));
    }
}

/// Bounds of CAs.
#[test]
fn a_process_with_other_bounds_opens_no_ticket() {
    let bounded = |names: &str| format!("cas = [{{ file = \"ca.pem\", common_names = {names} }}]");
    let proxy = proxy().unset("services.client_auth.trust_anchors");
    let running = proxy.client_auth(&bounded("[\"good\", \"lost\"]")).start();
    let other = second(&running, |_, it| {
        // Arrays of tables are appended otherwise: a further CA would differ as well.
        let without = it.unset("services.client_auth.cas");
        without.client_auth(&bounded("[\"good\", \"second\"]"))
    });
    let same = second(&running, |_, it| it);
    for config in configs(&running.pki, &running.good) {
        get(&running, &config);
        assert_eq!(get(&other, &config), Some(false));
        get(&running, &config);
        assert_eq!(get(&same, &config), Some(true));
    }
}

/// A client that a list rejects later, in the process of the ticket and in another one.
#[test]
fn a_session_does_not_outlive_the_list_that_admitted_it() {
    let running = proxy().start();
    let other = second(&running, |_, same| same);
    let [_, config] = configs(&running.pki, &running.good);
    assert_eq!(get(&running, &config), Some(false));
    for (keygate, path) in [
        (&running.keygate, running.pki.path("deny.txt")),
        (&other, running.pki.path("second/deny.txt")),
    ] {
        write(path, format!("{}\n", Fingerprint::of(&running.good.spki))).unwrap();
        keygate.wait_for_generation(2);
        assert_eq!(get(keygate, &config), None);
    }
}

#[test]
fn a_session_is_not_resumed_once_a_revocation_list_has_expired() {
    let (_, (running, configs)) = before(Duration::from_secs(8), |ends| {
        let proxy = proxy();
        let list = RevocationList { expires: ends, ..RevocationList::new(2, &[]) };
        write(proxy.pki.path("ca.crl"), proxy.pki.signed_crl(&list).pem().unwrap()).unwrap();
        let running = proxy.start();
        let configs = configs(&running.pki, &running.good);
        for config in &configs {
            assert_eq!(get(&running, config), Some(false));
        }
        (running, configs)
    });
    running.wait_for_generation(2);
    for config in configs {
        assert_eq!(get(&running, &config), None);
    }
}

#[test]
fn the_first_secret_encrypts_all_decrypt_and_a_lost_file_keeps_those_in_use() {
    let running = proxy().start();
    let path = running.pki.path("tickets.secret");
    let rotated = second(&running, |path, it| {
        write(path("tickets.secret"), secret(2) + &secret(1)).unwrap();
        it
    });
    for config in configs(&running.pki, &running.good) {
        get(&running, &config);
        assert_eq!(get(&rotated, &config), Some(true), "the second secret decrypts");
        assert_eq!(get(&running, &config), Some(false), "the first one encrypts");
    }
    write(&path, secret(2) + &secret(1)).unwrap();
    running.wait_for_generation(2);
    for config in configs(&running.pki, &running.good) {
        get(&running, &config);
        assert_eq!(get(&rotated, &config), Some(true));
    }
    remove_file(&path).unwrap();
    let line = running.wait_for("the rejection", |line| {
        line["message"] == "certificate update rejected, keeping those in use"
    });
    assert_eq!(line["files"], "ticket_secret");
    assert!(line["error"].as_str().unwrap().contains("tickets.secret"), "{line}");
    running.wait_for_status("the file", |status| {
        status["attention"].to_string().contains("tickets.secret")
    });
    let [_, config] = configs(&running.pki, &running.good);
    get(&running, &config);
    assert_eq!(get(&rotated, &config), Some(true));
}

#[test]
fn a_file_without_secrets_is_an_error_that_does_not_show_it_and_an_open_one_is_a_warning() {
    let proxy = proxy();
    let path = proxy.pki.path("tickets.secret");
    write(proxy.pki.path("keygate.toml"), proxy.configuration.text()).unwrap();
    let config = proxy.pki.path("keygate.toml");
    let validate = || keygate(&["validate", "--config", config.to_str().unwrap()]);
    for (content, problem) in [
        (String::new(), "0 secrets; write one to 8"),
        ("letmein-letmein\n".to_owned(), "line 1 is no secret of at least 43"),
        (secret(1).repeat(9), "9 secrets; write one to 8"),
    ] {
        write(&path, &content).unwrap();
        let text = output_text(&validate());
        let place = "service \"test\": tls.ticket_secret";
        assert!(text.contains(place) && text.contains(problem), "{text}");
        assert!(content.is_empty() || !text.contains(content.trim()), "{text}");
    }
    write(&path, secret(1)).unwrap();
    set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    let text = output_text(&validate());
    assert!(text.contains("everybody can read the ticket secrets in"), "{text}");
}
