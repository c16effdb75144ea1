//! Files of CAs with bounds that are replaced, removed or bound anew while clients are connected.
//!
//! Guards: `changed_since` in `src/sources/client_auth.rs`, `fn bound` in
//! `src/sources/client_auth/client_cas.rs`.

use std::fs::{File, OpenOptions, copy, create_dir_all, read, rename, write};
use std::io::Write;
use std::os::unix::fs::symlink;

use super::bound_cas::{BAR, FOO, bound, reconfigure, with_two_cas};
use super::names::{dns, uri, with};
use crate::support::client::{Client, config_of};
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configure, Proxy, Running};

const GET: &str = "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

fn workload(pki: &Pki, domain: &str) -> Party {
    let id = format!("spiffe://{domain}/orders");
    pki.client_with(domain, Kind::P256, with(&[uri(&id)]))
}

fn started() -> (Pki, Running) {
    let (bar, proxy) = with_two_cas(Proxy::new().policy("evict_within = \"1s\""));
    (bar, bound(proxy, FOO, BAR).start())
}

fn connected(running: &Running, client: &Party) -> Client {
    let config = config_of(&running.pki, rustls::ALL_VERSIONS, Some(client));
    let mut client = Client::with(config, running.address());
    gets_a_response(&mut client);
    client
}

fn gets_a_response(client: &mut Client) {
    client.send(GET);
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(client.exactly(6), b"hello\n");
}

#[test]
fn a_replaced_removed_or_newly_bound_ca_evicts_its_clients_and_no_others() {
    for change in ["replaced", "removed", "bound anew"] {
        let (bar, running) = started();
        let (foo, own) = (workload(&running.pki, "foo.example"), workload(&bar, "bar.example"));
        let mut open = connected(&running, &own);
        let mut other = connected(&running, &foo);
        match change {
            "replaced" => {
                copy(Pki::named("Bar CA").path("ca.pem"), running.pki.path("bar.pem")).unwrap();
                running.wait_for_generation(2);
            }
            "removed" => {
                let alone = format!("cas = [{{ file = \"foo.pem\", {FOO} }}]");
                let configuration = running.configuration.clone();
                let alone = configuration.unset("services.client_auth.cas").client_auth(&alone);
                reconfigure(&running, &alone, 2);
            }
            _ => {
                let anew = running.configuration.clone().unset("services.client_auth.cas");
                reconfigure(&running, &bound(anew, FOO, "spiffe = [\"new.example\"]"), 2);
            }
        }
        open.whatever_comes(); // until its end
        gets_a_response(&mut other);
        running.rejection(&own);
        running.admits(&foo);
    }
}

/// As with a Kubernetes Secret, whose files are replaced by one rename: all CAs stay.
#[test]
fn a_ca_that_moves_to_another_file_has_the_bounds_of_that_file_at_once() {
    let proxy = Proxy::new().policy("evict_within = \"1s\"");
    let [moved, third] = ["Moved CA", "Third CA"].map(Pki::named);
    let volume = proxy.pki.path("volume");
    for (version, wide, narrow) in [
        ("1", vec![&proxy.pki, &moved], vec![&third]),
        ("2", vec![&proxy.pki], vec![&moved, &third]),
    ] {
        create_dir_all(volume.join(version)).unwrap();
        for (name, cas) in [("wide.pem", wide), ("narrow.pem", narrow)] {
            let cas: Vec<_> = cas.iter().map(|ca| read(ca.path("ca.pem")).unwrap()).collect();
            write(volume.join(version).join(name), cas.concat()).unwrap();
        }
    }
    symlink("1", volume.join("..data")).unwrap();
    for name in ["wide.pem", "narrow.pem"] {
        symlink(format!("..data/{name}"), volume.join(name)).unwrap();
    }
    let running = proxy
        .client_auth("trust_anchors = \"volume/wide.pem\"")
        .client_auth(&format!("cas = [{{ file = \"volume/narrow.pem\", {BAR} }}]"))
        .start();
    let (forged, own) = (workload(&moved, "foo.example"), workload(&third, "bar.example"));
    let (mut open, mut other) = (connected(&running, &forged), connected(&running, &own));
    symlink("2", volume.join("next")).unwrap();
    rename(volume.join("next"), volume.join("..data")).unwrap();
    open.whatever_comes(); // until its end
    gets_a_response(&mut other);
    running.rejection(&forged);
    running.admits(&workload(&moved, "bar.example"));
}

#[test]
fn a_rule_of_another_kind_makes_names_of_that_kind_count() {
    let (bar, running) = started();
    let names = [uri("spiffe://bar.example/a"), dns("a.foo.example")];
    let client = bar.client_with("both", Kind::P256, with(&names));
    running.admits(&client);
    let mut open = connected(&running, &client);
    let rules = "allow = { dns = [\"a.foo.example\"] }";
    reconfigure(&running, &running.configuration.clone().client_auth(rules), 2);
    open.whatever_comes();
    let text = running.rejection(&client);
    assert!(text.contains("alert"), "{text}");
    running.wait_for("the line", |line| line["result"] == "not_vouched");
}

/// Writes as spiffe-helper does: over the file, which it opens and truncates.
fn write_in_place(pki: &Pki, name: &str, content: &[u8]) {
    let mut file = OpenOptions::new().write(true).truncate(true).open(pki.path(name)).unwrap();
    let (first, rest) = content.split_at(content.len() / 2);
    file.write_all(first).unwrap();
    file.flush().unwrap();
    file.write_all(rest).unwrap();
}

#[test]
fn the_files_of_spiffe_helper_are_used_without_a_restart() {
    let (bar, running) = started();
    let before = workload(&bar, "bar.example");
    running.admits(&before);
    // A new root joins the bundle, and then replaces the old one.
    let next = Pki::named("Bar CA 2");
    let after = workload(&next, "bar.example");
    let [old, new] = [&bar, &next].map(|pki| read(pki.path("ca.pem")).unwrap());
    write_in_place(&running.pki, "bar.pem", &[&old[..], &new].concat());
    running.wait_for_generation(2);
    running.admits(&before);
    running.admits(&after);
    write_in_place(&running.pki, "bar.pem", &new);
    running.wait_for_generation(3);
    running.admits(&after);
    running.rejection(&before);
    // An interrupted write leaves the CAs in use.
    File::create(running.pki.path("bar.pem")).unwrap();
    running.wait_for("the rejection", |line| {
        line["message"] == "certificate update rejected, keeping those in use"
    });
    running.admits(&after);
    let forged = workload(&running.pki, "bar.example");
    running.rejection(&forged);
}
