//! Weak keys over real handshakes: verdict, check, exceptions, switched-off checks, own keys, and a
//! flood of new keys.
//!
//! Guards: `judge_strength` in `crates/core/src/guard.rs`, `weak_keys` in `src/config/root.rs`,
//! `is_compromised` in `src/sources/credential_source/report.rs`, `judge_handshake` in
//! `crates/core/src/tls/verifier.rs` (a check comes after the proof of possession), `cache::failed`
//! in `crates/core/src/guard/weak.rs` (a key is checked once).

use std::fs::write;
use std::thread::{self, ScopedJoinHandle};

use keygate_core::spki::Fingerprint;
use num_bigint::BigUint;
use rustls::version::{TLS12, TLS13};
use serde_json::{Value, json};

use crate::support::client::{Client, Presents, config_of};
use crate::support::keygate::keygate;
use crate::support::pki::Party;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::weak_keys::{RsaKey, prime};
use crate::support::{output_text, wait_until, write_filter};

/// Clients with keys that fail a check, and the name of the check.
fn weak_clients(proxy: &Proxy) -> [(Party, &'static str); 2] {
    [(RsaKey::roca(2048), "roca"), (RsaKey::close_primes(2048), "fermat")]
        .map(|(key, check)| (key.client(&proxy.pki, check), check))
}

#[test]
fn a_key_with_sparse_primes_is_rejected() {
    let proxy = Proxy::new().start();
    for limb in [32, 128] {
        let name = format!("limbs of {limb} bits");
        let client = RsaKey::sparse(2048, limb).client(&proxy.pki, &name);
        proxy.rejects(&client);
        proxy.wait_for("the line about the client", |line| {
            line["check"] == "rsapoly" && line["subject"] == format!("CN={name}")
        });
    }
}

/// A proxy with this policy and these settings, with its weak clients.
fn started(policy: &str, settings: &str) -> (Running, [(Party, &'static str); 2]) {
    let proxy = Proxy::new().policy(policy).global(settings);
    let weak = weak_clients(&proxy);
    (proxy.start(), weak)
}

#[test]
fn a_weak_key_is_rejected_and_the_log_names_the_check() {
    let (proxy, weak) = started("", "");
    proxy.admits(&proxy.good);
    let strong = RsaKey::good(2048).client(&proxy.pki, "strong");
    proxy.admits(&strong);
    for (client, check) in &weak {
        proxy.rejects(client);
        let line = proxy.wait_for("the line about the client", |line| {
            line["message"] == "client key rejected" && line["subject"] == format!("CN={check}")
        });
        assert_eq!((&line["verdict"], &line["check"]), (&json!("weak"), &json!(check)), "{line}");
        assert_eq!(line["fingerprint"], Fingerprint::of(&client.spki).to_string());
        for absent in ["filter", "list", "finding", "encoding"] {
            assert!(line[absent].is_null(), "{absent} in {line}");
        }
    }
    let checks = "keygate_key_checks_total{service=\"test\",stage=\"handshake\",verdict=\"weak\"}";
    proxy.wait_for_metric(checks, 2.0);
    wait_until("the clients in the report", || {
        let report: Value = serde_json::from_str(&proxy.admin("/report").1).unwrap();
        report["clients"].as_array().unwrap().iter().filter(|it| it["check"].is_string()).count()
            == 2
    });
    let config = proxy.pki.path("admin.toml");
    write(&config, format!("admin = {{ listen = \"{}\" }}", proxy.admin_address())).unwrap();
    let shown = output_text(&keygate(&["report", config.to_str().unwrap()]));
    assert!(shown.contains("weak (check roca), reject"), "{shown}");
    let (_, page) = proxy.admin("/");
    assert!(page.contains("<span class=\"state weak\">weak</span>"), "{page}");
    assert!(page.contains("found by check roca"), "{page}");
    assert_eq!(proxy.status()["services"][0]["on_weak"], "reject");
}

/// The products are watched as the rest of a list, and the result of a key is one of its products.
#[test]
fn a_key_with_a_prime_of_a_list_is_rejected_from_the_update_on() {
    let proxy = Proxy::new().global("lists = [{ name = \"shared\", path = \"shared.txt\" }]");
    let primes: [_; 3] = std::array::from_fn(|_| prime(1024));
    let [first, second] = [[0, 1], [1, 2]].map(|pair| {
        let key = RsaKey::new(pair.map(|index: usize| primes[index].clone()));
        key.client(&proxy.pki, &format!("client {}", pair[0]))
    });
    let product = |numbers: &[usize]| numbers.iter().map(|it| &primes[*it]).product::<BigUint>();
    let path = proxy.pki.path("shared.txt");
    let text = |bits: u32, product: BigUint| format!("# products\nrsa-primes:{bits}:{product:x}\n");
    let line = |bits: u32, product: BigUint| write(&path, text(bits, product)).unwrap();
    line(4096, product(&[0, 1]));
    let proxy = proxy.start();
    [&first, &second].into_iter().for_each(|client| proxy.admits(client));
    write(&path, text(4096, product(&[0, 1])) + &text(2048, product(&[0]))).unwrap();
    proxy.wait_for_generation(2);
    proxy.rejects(&first);
    proxy.admits(&second);
    proxy.wait_for("the check", |line| {
        line["verdict"] == "weak" && line["check"] == "shared-primes" && line["filter"].is_null()
    });
    line(2048, product(&[0, 2]));
    proxy.wait_for_generation(3);
    [&first, &second].into_iter().for_each(|client| proxy.rejects(client));
    write(&path, format!("rsa-primes:2048:{:x}\n", product(&[0]) + 1_u32)).unwrap();
    proxy.wait_for("the rejected update", |line| {
        line.to_string().contains("line 1: not a product of primes")
    });
    // The list counts as two primes, which one number does not replace.
    line(2048, 3_u32.into());
    proxy.wait_for("the update that waits", |line| line["reason"] == "shrunk");
    proxy.rejects(&second);
}

/// Each list is below the maximum, and the time of the check is bounded over all of them.
#[test]
fn lists_with_too_many_products_leave_keys_of_the_size_unchecked_with_a_warning() {
    let lists = ["one", "two"]
        .map(|it| format!("{{ name = \"{it}\", path = \"{it}.txt\", shrink = \"allow\" }}"));
    let proxy = Proxy::new().global(&format!("lists = [{}]", lists.join(", ")));
    let client = RsaKey::good(2048).client(&proxy.pki, "client");
    let write_list = |name: &str, kib: u32, added: u32| {
        let product = (BigUint::from(1_u32) << (kib << 13)) + added;
        write(proxy.pki.path(name), format!("rsa-primes:2048:{product:x}\n")).unwrap();
    };
    let primes = [prime(1024), prime(1024)];
    let weak = RsaKey::new(primes.clone()).client(&proxy.pki, "weak");
    let product: BigUint = ((BigUint::from(1_u32) << (200 << 13)) + 1_u32) * &primes[0];
    write(proxy.pki.path("one.txt"), format!("rsa-primes:2048:{product:x}\n")).unwrap();
    write_list("two.txt", 10, 3);
    let pki = proxy.pki.path("two.txt");
    let proxy = proxy.start();
    proxy.admits(&client);
    proxy.rejects(&weak);
    assert_eq!(proxy.status()["attention"], json!([]));
    let product: BigUint = (BigUint::from(1_u32) << (100 << 13)) + 3_u32;
    write(&pki, format!("rsa-primes:2048:{product:x}\n")).unwrap();
    proxy.wait_for_generation(2);
    proxy.rejects(&client);
    proxy.wait_for("the client", |line| line["verdict"] == "unchecked");
    proxy.admits(&proxy.good);
    // A later list does not take the products of an earlier one away.
    proxy.rejects(&weak);
    proxy.wait_for("the weak client", |line| line["check"] == "shared-primes");
    let attention = proxy.status()["attention"].to_string();
    assert!(
        attention.contains("too many products of primes for moduli of 2048 bits"),
        "{attention}"
    );
}

#[test]
fn the_status_header_names_the_check() {
    for (policy, action) in [("on_weak = \"header\"", "header"), ("on_weak = \"flag\"", "flag")] {
        // The header is set for the verdicts of a policy that has one.
        let (proxy, weak) = started(&format!("{policy}, on_listed = \"header\""), "");
        for (client, check) in &weak {
            proxy.admits(client);
            let request = proxy.origin.next();
            let status = format!("weak;check=\"{check}\"");
            assert_eq!(request.fields("client-key-status"), [status], "{action}");
        }
        proxy.wait_for("the flagged client", |line| {
            line["message"] == "client key flagged" && line["action"] == action
        });
    }
}

#[test]
fn an_exception_covers_a_weak_key_and_a_list_comes_before_the_checks() {
    let proxy = Proxy::new().policy("on_listed = \"header\", on_weak = \"flag\"");
    let [(excepted, _), (listed, _)] = weak_clients(&proxy);
    write(proxy.pki.path("deny.txt"), Fingerprint::of(&listed.spki).to_string()).unwrap();
    let excepted_key = Fingerprint::of(&excepted.spki);
    let proxy = proxy.global(&format!(
        "lists = [{{ name = \"march\", path = \"deny.txt\" }}]\n\
         exceptions = [{{ fingerprint = \"{excepted_key}\", until = 2999-12-31, reason = \"soon\" }}]"
    ));
    let proxy = proxy.start();
    let both = "listed;list=\"march\";check=\"fermat\"";
    for (client, status) in [(&excepted, "allowed"), (&listed, both)] {
        proxy.admits(client);
        assert_eq!(proxy.origin.next().fields("client-key-status"), [status]);
    }
}

#[test]
fn a_reload_changes_the_checks_and_evicts_open_connections() {
    let (proxy, [(roca, _), (close, _)]) = started("", "weak_keys = { checks = [\"fermat\"] }");
    proxy.admits(&roca);
    proxy.rejects(&close);
    let mut open = Client::connect(&proxy.pki, proxy.address(), &roca);
    open.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(open.head().starts_with("HTTP/1.1 200 "));
    let reconfigure = |checks: &[&str], generation| {
        let configuration = proxy.configuration.clone().set("weak_keys.checks", checks.to_vec());
        write(proxy.pki.path("keygate.toml"), configuration.text()).unwrap();
        proxy.signal("HUP");
        proxy.wait_for_generation(generation);
    };
    reconfigure(&["roca"], 2);
    proxy.wait_for("the evicted client", |line| {
        line["verdict"] == "weak" && line["check"] == "roca" && line["stage"] == "live"
    });
    proxy.rejects(&roca);
    proxy.admits(&close);
    reconfigure(&[], 3);
    proxy.admits(&roca);
    proxy.admits(&close);
}

#[test]
fn checks_that_are_off_are_shown_as_not_made() {
    let (proxy, _) = started("", "weak_keys = { checks = [] }");
    let off = "weak keys: not checked\n";
    let validated = |text: &str| {
        write(proxy.pki.path("validated.toml"), text).unwrap();
        output_text(&keygate(&["validate", proxy.pki.path("validated.toml").to_str().unwrap()]))
    };
    let shown = validated(&proxy.configuration.text());
    assert!(shown.contains(off), "{shown}");
    let two = proxy.configuration.clone().set("weak_keys.checks", vec!["roca", "invalid"]);
    let shown = validated(&two.text());
    assert!(shown.contains("weak keys: invalid, roca\n"), "{shown}");
    assert_eq!(proxy.status()["weak_keys"], json!([]));
    let (_, shown) = proxy.admin("/status.txt");
    assert!(shown.contains(off), "{shown}");
    let (_, page) = proxy.admin("/");
    assert!(page.contains("<p id=\"weak-keys\">not checked</p>"), "{page}");
}

#[test]
fn an_issuer_with_a_weak_key_is_found_if_the_policy_judges_the_chain() {
    let proxy = Proxy::new();
    let weak = RsaKey::close_primes(2048);
    let client = weak.client_of_issuer(&proxy.pki, "client");
    let proxy = proxy.policy("judge = \"chain\"").start();
    proxy.rejects(&client);
    let line = proxy.wait_for("the line", |line| line["verdict"] == "weak");
    assert_eq!(line["found_subject"], "CN=issuer of client", "{line}");
    assert_eq!(line["check"], "fermat");
}

#[test]
fn a_weak_key_of_the_service_itself_stops_the_start() {
    let proxy = Proxy::new();
    let key = RsaKey::roca(2048);
    key.server(&proxy.pki, "server");
    let path = proxy.pki.path("keygate.toml");
    write_filter(&proxy.pki.path("lost.pkbf"), &[]);
    write(&path, proxy.configuration.text()).unwrap();
    let output = keygate(&["validate", "--config", path.to_str().unwrap()]);
    let text = output_text(&output);
    assert!(!output.status.success(), "{text}");
    assert!(
        text.contains("the key of its server") && text.contains("fails the check roca"),
        "{text}"
    );
    let allowed = proxy.policy("allow_compromised_own_key = true");
    write(&path, allowed.configuration.text()).unwrap();
    let output = keygate(&["validate", "--config", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", output_text(&output));
}

/// The number of RSA keys that the worker has checked.
const CHECKS: &str = "keygate_weak_key_checks_total";

/// A proxy with one worker and a product of primes, and clients with different good RSA keys.
fn flooded(count: usize) -> (Running, Vec<Party>) {
    let proxy = Proxy::new().workers(1);
    let proxy = proxy.global("lists = [{ name = \"shared\", path = \"shared.txt\" }]");
    write(proxy.pki.path("shared.txt"), "rsa-primes:2048:3\n").unwrap();
    let primes: Vec<_> = (0..10).map(|_| prime(1024)).collect();
    let pairs = (0..primes.len()).flat_map(|one| (0..one).map(move |other| [one, other]));
    let clients = pairs.take(count).enumerate().map(|(index, pair)| {
        let key = RsaKey::new(pair.map(|prime| primes[prime].clone()));
        key.client(&proxy.pki, &format!("client {index}"))
    });
    let clients: Vec<_> = clients.collect();
    assert_eq!(clients.len(), count);
    (proxy.start(), clients)
}

/// A copied certificate would otherwise cost its presenter nothing, and the worker a check.
#[test]
fn a_client_without_the_private_key_causes_no_check() {
    let (proxy, clients) = flooded(12);
    let (copied, honest) = clients.split_at(10);
    let [thief, honest] = honest else { panic!("two more") };
    for (index, certificate) in copied.iter().enumerate() {
        let version = if index % 2 == 0 { &TLS12 } else { &TLS13 };
        let mut config = config_of(&proxy.pki, &[version], None);
        config.client_auth_cert_resolver = Presents::new(certificate, thief);
        let mut client = Client::with(config, proxy.address());
        let _ = client.try_send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(client.head_or_end().is_none());
    }
    let failed =
        r#"keygate_handshakes_total{result="bad_signature",resumed="false",service="test"}"#;
    proxy.wait_for_metric(failed, 10.0);
    // The counter is monotonic, and has the copied keys by now if they were checked.
    proxy.admits(honest);
    proxy.wait_for_metric(CHECKS, 1.0);
    proxy.admits(thief);
    proxy.wait_for_metric(CHECKS, 2.0);
}

/// Each key of a flood costs its worker one check, also if its client comes back, and the
/// connection of another client stays served. The unit tests of turns show that a worker serves
/// others after each check.
#[test]
fn a_flood_of_new_rsa_keys_costs_the_worker_one_check_for_each_key() {
    const GET: &str = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let (proxy, clients) = flooded(42);
    let (flood, [first, last]) = clients.split_at(40) else { panic!("two more") };
    let get = |client: &mut Client| {
        client.send(GET);
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        assert_eq!(client.exactly(6), b"hello\n");
    };
    let connect = |party: &Party| Client::connect(&proxy.pki, proxy.address(), party);
    let mut steady = proxy.connect();
    // The key of `steady` is checked too. The second time, the results of all keys are kept.
    for (another, checks) in [(first, 42.0), (last, 43.0)] {
        thread::scope(|scope| {
            let connect_all = |clients: &[Party]| {
                clients.iter().for_each(|party| get(&mut connect(party)));
            };
            let threads: Vec<_> =
                flood.chunks(5).map(|clients| scope.spawn(move || connect_all(clients))).collect();
            while !threads.iter().all(ScopedJoinHandle::is_finished) {
                get(&mut steady);
            }
        });
        get(&mut connect(another));
        proxy.wait_for_metric(CHECKS, checks);
    }
}
