//! A changed configuration takes effect while the proxy runs, without effect on other clients.

use std::net::{SocketAddr, TcpListener};

use keygate_core::spki::Fingerprint;

use crate::support::client::Client;
use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::program::reserved_address;
use crate::support::{output_text, wait_until, write_filter, write_revision};

struct Scene {
    pki: Pki,
    origin: Origin,
    keygate: Keygate,
    good: Party,
    lost: Party,
    /// The addresses of the two services.
    addresses: [SocketAddr; 2],
}

fn service(name: &str, address: SocketAddr, origin: &Origin, policy: &str) -> String {
    format!(
        r#"
[[services]]
name = "{name}"
listen = "{address}"
tls = {{ certificate = "server.pem", private_key = "server.key" }}
client_auth = {{ trust_anchors = "ca.pem" }}
upstream = {{ servers = ["http://{}"] }}
policy = {{ {policy} }}
"#,
        origin.address()
    )
}

fn top(filter: &str) -> String {
    format!(
        "admin = {{ listen = \"127.0.0.1:0\" }}\nworkers = 2\nshutdown = {{ readiness_delay = \"0s\" }}\n\
         filters = [{{ name = \"lost\", path = {filter:?} }}]\n"
    )
}

/// A proxy with the services `one` and `two`.
fn scene() -> Scene {
    let (pki, origin) = (Pki::new(), Origin::start());
    let [good, lost] = ["good", "lost"].map(|name| pki.client(name, Kind::P256));
    write_filter(&pki.path("lost.pkbf"), &[&lost.spki]);
    let addresses = [reserved_address(), reserved_address()];
    let text = top("lost.pkbf")
        + &service("one", addresses[0], &origin, "")
        + &service("two", addresses[1], &origin, "");
    let keygate = Keygate::configured(&pki, &text);
    Scene { pki, origin, keygate, good, lost, addresses }
}

impl Scene {
    /// Replaces the configuration and waits for the `count`th one to be in use.
    fn reconfigure(&self, text: &str, count: usize) {
        self.write(text);
        self.keygate.wait_for_lines("a configuration", count, |line| {
            line["message"] == "configuration loaded"
        });
        self.keygate.wait_for_generation(count as u64 + 1);
    }

    fn write(&self, text: &str) {
        std::fs::write(self.pki.path("next.toml"), text).unwrap();
        std::fs::rename(self.pki.path("next.toml"), self.pki.path("keygate.toml")).unwrap();
    }

    fn get(&self, client: &Party, address: SocketAddr) -> String {
        output_text(&self.keygate.curl(client, &[&format!("https://{address}/")]))
    }

    fn connect(&self, number: usize) -> Client {
        Client::connect(&self.pki, self.addresses[number], &self.good)
    }
}

/// One request on a connection that stays open.
fn send_get(client: &mut Client) {
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let head = client.head();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    client.exactly(6);
}

#[test]
fn services_are_added_and_removed_without_effect_on_others() {
    let scene = scene();
    let (mut stays, mut goes) = (scene.connect(0), scene.connect(1));
    send_get(&mut stays);
    send_get(&mut goes);
    let third = reserved_address();
    let text = top("lost.pkbf")
        + &service("three", third, &scene.origin, "")
        + &service("one", scene.addresses[0], &scene.origin, "");
    scene.reconfigure(&text, 1);
    // The connection of the removed service drains, and its address is closed.
    assert_eq!(goes.rest(), "");
    wait_until("the address is closed", || {
        std::net::TcpStream::connect(scene.addresses[1]).is_err()
    });
    send_get(&mut stays);
    assert!(scene.get(&scene.good, third).contains("hello"));
    assert!(scene.get(&scene.good, scene.addresses[0]).contains("hello"));
    assert!(scene.get(&scene.lost, third).contains("access denied"));
    // Ids are never reused, so that the metrics of one service do not become another's.
    let requests = |service: &str| {
        scene
            .keygate
            .metric(&format!("keygate_requests_total{{code=\"2xx\",service=\"{service}\"}}"))
    };
    assert_eq!((requests("one"), requests("two"), requests("three")), (3.0, 1.0, 1.0));
    send_get(&mut stays);
}

#[test]
fn a_changed_policy_holds_for_open_connections_too() {
    let scene = scene();
    let flag = top("lost.pkbf")
        + &service("one", scene.addresses[0], &scene.origin, "on_probable = \"flag\"")
        + &service("two", scene.addresses[1], &scene.origin, "");
    scene.reconfigure(&flag, 1);
    let mut lost = Client::connect(&scene.pki, scene.addresses[0], &scene.lost);
    send_get(&mut lost);
    assert!(scene.get(&scene.lost, scene.addresses[1]).contains("access denied"));
    let mut stays = scene.connect(1);
    send_get(&mut stays);
    let reject = flag.replace("\"flag\"", "\"reject\"");
    scene.reconfigure(&reject, 2);
    assert_eq!(lost.rest(), "", "the connection of a rejected client drains");
    send_get(&mut stays);
}

#[test]
fn clients_without_a_certificate_are_evicted_when_it_becomes_required() {
    let scene = scene();
    let second = service("two", scene.addresses[1], &scene.origin, "");
    let first = service("one", scene.addresses[0], &scene.origin, "on_unchecked = \"flag\"");
    let anchors = "trust_anchors = \"ca.pem\"";
    let optional = first.replace(anchors, &format!("{anchors}, mode = \"optional\""));
    scene.reconfigure(&(top("lost.pkbf") + &optional + &second), 1);
    let mut anonymous = Client::anonymous(&scene.pki, scene.addresses[0]);
    let mut stays = scene.connect(0);
    send_get(&mut anonymous);
    send_get(&mut stays);
    scene.reconfigure(&(top("lost.pkbf") + &first + &second), 2);
    assert_eq!(anonymous.rest(), "");
    send_get(&mut stays);
}

#[test]
fn a_renamed_status_header_cannot_be_forged_on_open_connections() {
    let scene = scene();
    let second = service("two", scene.addresses[1], &scene.origin, "");
    let mut client = scene.connect(0);
    send_get(&mut client);
    scene.origin.next();
    let policy = "on_probable = \"header\", header = \"X-Key\"";
    let first = service("one", scene.addresses[0], &scene.origin, policy);
    scene.reconfigure(&(top("lost.pkbf") + &first + &second), 1);
    let live = "keygate_key_checks_total{service=\"one\",stage=\"live\",verdict=\"clean\"}";
    scene.keygate.wait_for_metric(live, 1.0);
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\nX-Key: forged\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 200 "));
    assert_eq!(scene.origin.next().fields("x-key"), ["clean"]);
}

#[test]
fn the_next_request_on_an_open_connection_goes_to_the_new_upstream() {
    let scene = scene();
    let mut client = scene.connect(0);
    send_get(&mut client);
    scene.origin.next();
    let other = Origin::start();
    let text = top("lost.pkbf")
        + &service("one", scene.addresses[0], &other, "")
        + &service("two", scene.addresses[1], &scene.origin, "");
    scene.reconfigure(&text, 1);
    scene.keygate.wait_for_metric(
        "keygate_key_checks_total{service=\"one\",stage=\"live\",verdict=\"clean\"}",
        1.0,
    );
    send_get(&mut client);
    other.next();
    assert_eq!(scene.origin.untaken(), 0);
}

#[test]
fn a_filter_an_exception_and_a_list_can_be_added_without_a_restart() {
    let scene = scene();
    let services = service("one", scene.addresses[0], &scene.origin, "")
        + &service("two", scene.addresses[1], &scene.origin, "");
    assert!(scene.get(&scene.lost, scene.addresses[0]).contains("access denied"));
    let fingerprint = Fingerprint::of(&scene.lost.spki);
    let exceptions = format!(
        "exceptions = [{{ fingerprint = \"{fingerprint}\", until = 2999-12-31, reason = \"soon\" }}]\n"
    );
    scene.reconfigure(&(top("lost.pkbf") + &exceptions + &services), 1);
    assert!(scene.get(&scene.lost, scene.addresses[0]).contains("hello"));
    let until =
        format!("keygate_exception_until_timestamp_seconds{{fingerprint=\"{fingerprint}\"}}");
    assert!(scene.keygate.metric(&until) > 0.0);

    // Another filter in place of the first.
    write_revision(&scene.pki.path("other.pkbf"), &[&scene.good.spki], 7);
    let other = top("other.pkbf").replace("\"lost\"", "\"other\"");
    scene.reconfigure(&(other + &services), 2);
    assert!(scene.get(&scene.good, scene.addresses[0]).contains("access denied"));
    assert!(
        scene.get(&scene.lost, scene.addresses[0]).contains("hello"),
        "no exception, no filter"
    );
    assert_eq!(scene.keygate.metric("keygate_filter_revision{filter=\"other\"}"), 7.0);
    let metrics = scene.keygate.metrics();
    assert!(!metrics.contains_key("keygate_filter_revision{filter=\"lost\"}"));
    assert!(!metrics.contains_key(&until));
}

#[test]
fn an_invalid_configuration_changes_nothing_and_is_logged() {
    let scene = scene();
    let mut stays = scene.connect(1);
    send_get(&mut stays);
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let good = service("one", scene.addresses[0], &scene.origin, "on_probable = \"flag\"");
    let blocked = service("new", taken.local_addr().unwrap(), &scene.origin, "");
    let mut refused = 0;
    let taken_address = format!("{:?}", taken.local_addr().unwrap().to_string());
    let file = scene.pki.path("keygate.toml");
    let admin = scene.pki.path("admin.toml");
    let text = format!("admin = {{ listen = \"{}\" }}\n", scene.keygate.admin_address());
    std::fs::write(&admin, text).unwrap();
    for (text, place, problem) in [
        (top("lost.pkbf") + &good + "nonsense", "nonsense", "key with no value"),
        (top("lost.pkbf"), "", "services: neither a service nor an authorizer is configured"),
        (top("missing.pkbf") + &good, "missing.pkbf", "filter \"lost\""),
        (
            top("lost.pkbf") + &good.replace("server.pem", "missing.pem"),
            "missing.pem",
            "service \"one\": tls.certificate",
        ),
        (top("lost.pkbf") + &good + &blocked, &taken_address, "cannot listen on"),
    ] {
        refused += 1;
        scene.write(&text);
        let line = text.lines().position(|line| line.contains(place)).unwrap() + 1;
        let start = format!("{}:{line}:", file.display());
        let line = scene.keygate.wait_for(problem, |line| {
            line["message"] == "configuration rejected, keeping the one in use"
                && line["problem"].as_str().unwrap().contains(problem)
        });
        assert!(line["problem"].as_str().unwrap().starts_with(&start), "{start}: {line}");
        let output = keygate(&["reload", "--config", admin.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
        let rejected = format!("configuration rejected: {start}");
        assert!(output_text(&output).contains(&rejected), "{}", output_text(&output));
        let count = "keygate_config_reloads_total{result=\"refused\"}";
        assert_eq!(scene.keygate.metric(count), f64::from(refused));
        assert_eq!(scene.keygate.metric("keygate_config_last_reload_successful"), 0.0);
        assert!(scene.get(&scene.lost, scene.addresses[0]).contains("access denied"), "{problem}");
        send_get(&mut stays);
    }
    assert_eq!(scene.keygate.status()["generation"], 1);
}

#[test]
fn sighup_reads_the_configuration_again_even_if_unchanged() {
    let scene = scene();
    scene.keygate.signal("HUP");
    let unchanged = "keygate_config_reloads_total{result=\"unchanged\"}";
    scene.keygate.wait_for_metric(unchanged, 1.0);
    let services = service("one", scene.addresses[0], &scene.origin, "");
    let text = top("lost.pkbf").replace("workers = 2", "workers = 1") + &services;
    scene.reconfigure(&text, 1);
    let line = scene.keygate.wait_for("a warning", |line| {
        line["message"] == "these settings are read at the start only: restart to change them"
    });
    assert_eq!(line["settings"], "workers");
}
