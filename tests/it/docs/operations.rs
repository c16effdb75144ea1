//! The operations page is true: its commands work with a running keygate, its configuration loads,
//! and logs, metrics and signals are as described.

mod failed_handshakes;
mod vocabulary;

use std::collections::BTreeMap;
use std::fs::{read, read_to_string, rename, write};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::support::client::Client;
use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::{
    blocks, output_text, shell, system, wait_until, write_filter, write_revision,
};

const PAGE: &str = include_str!("../../../docs/operations.md");
const A_DAY: Duration = Duration::from_secs(86_400);

/// The part of the page from a heading to the next.
fn section(heading: &str) -> &'static str {
    let found = PAGE.split_once(&format!("\n{heading}\n"));
    let (_, rest) = found.unwrap_or_else(|| panic!("no {heading}"));
    let ends = ["\n## ", "\n### "].map(|next| rest.find(next).unwrap_or(rest.len()));
    &rest[..ends[0].min(ends[1])]
}

/// The rows of the table in a section, as cells.
fn table(heading: &str) -> Vec<Vec<&'static str>> {
    let rows = section(heading).lines().filter(|line| line.starts_with("| `"));
    let cells = |row: &'static str| row.trim_matches('|').split(" | ").map(str::trim).collect();
    rows.map(cells).collect()
}

fn code(cell: &'static str) -> Vec<&'static str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// A directory as on the page, and a running keygate.
struct Scene {
    pki: Pki,
    origin: Origin,
    good: Party,
    billing: Party,
    shop: Party,
}

/// The first settings belong to the test, the filter and the service to the page.
fn text(origin: &Origin, top: &str, extra: &str) -> String {
    format!(
        r#"admin.listen = "127.0.0.1:0"
workers = 2
shutdown = {{ readiness_delay = "0s", drain_timeout = "1s" }}
log = {{ level = "info,keygate::proxy=debug", repeat_after = "0s" }}
{top}
[[filters]]
name = "pwnedkeys"
path = "pwnedkeys.pkbf"

[[services]]
name = "orders"
listen = "127.0.0.1:0"
server_names = ["orders.example.com", "localhost"]
tls = {{ certificate = "orders.pem", private_key = "orders.key" }}
client_auth = {{ trust_anchors = "clients-ca.pem", crls = ["clients.crl.pem"] }}
upstream = {{ servers = ["http://{}"], connect_timeout = "10m" }}
{extra}
"#,
        origin.address()
    )
}

impl Scene {
    fn new() -> Self {
        let pki = Pki::new();
        pki.server_for("orders", &["orders.example.com", "localhost", "127.0.0.1"]);
        for copy in ["clients-ca.pem", "server-ca.pem"] {
            std::fs::copy(pki.path("ca.pem"), pki.path(copy)).unwrap();
        }
        let [good, billing, shop] =
            ["client", "billing", "shop"].map(|name| pki.client(name, Kind::P256));
        pki.crl("clients.crl.pem", &[], A_DAY);
        write_filter(&pki.path("pwnedkeys.pkbf"), &[&billing.spki, &shop.spki]);
        Self { pki, origin: Origin::start(), good, billing, shop }
    }

    fn keygate(&self, top: &str, extra: &str) -> Keygate {
        Keygate::configured(&self.pki, &text(&self.origin, top, extra))
    }

    /// A command of the page with the directory and addresses of this test.
    fn placed(&self, command: &str, keygate: &Keygate) -> String {
        command
            .replace("/etc/keygate", self.pki.directory().to_str().unwrap())
            .replace("127.0.0.1:9464", &keygate.admin_address().to_string())
            .replace("127.0.0.1:8443", &keygate.address().to_string())
    }

    /// Runs commands of the page, and returns their output.
    fn run(&self, command: &str, keygate: &Keygate) -> String {
        output_text(&shell(self.pki.directory(), &self.placed(command, keygate)))
    }

    /// The last line is the status.
    fn send_get(&self, keygate: &Keygate, client: &Party) -> Output {
        let to = format!("::{}", keygate.address());
        let url = "https://orders.example.com/";
        keygate.curl(client, &["--connect-to", &to, "--write-out", "\n%{http_code}", url])
    }

    fn is_served(&self, keygate: &Keygate, client: &Party) {
        let response = self.send_get(keygate, client);
        assert_eq!(response.stdout, b"hello\n\n200", "{}: {}", client.name, output_text(&response));
    }

    fn is_refused(&self, keygate: &Keygate, client: &Party, alert: &str) {
        let response = output_text(&self.send_get(keygate, client));
        assert!(response.contains(alert), "{}: {response}", client.name);
    }

    /// More at the end of the configuration.
    fn append(&self, more: &str) {
        let config = read_to_string(self.pki.path("keygate.toml")).unwrap();
        self.replace("keygate.toml", config + more);
    }

    fn replace(&self, file: &str, content: impl AsRef<[u8]>) {
        write(self.pki.path("next"), content).unwrap();
        rename(self.pki.path("next"), self.pki.path(file)).unwrap();
    }
}

/// One request on a connection that stays open.
fn get(client: &mut Client) {
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let head = client.head();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert_eq!(client.exactly(6), b"hello\n");
}

fn message(text: &str) -> impl Fn(&Value) -> bool {
    move |line| line["message"] == text
}

#[test]
fn every_setting_on_the_page_is_valid() {
    let scene = Scene::new();
    let mut settings = blocks(PAGE, "toml");
    // The filter with a source has a test of its own.
    settings.retain(|setting| !setting.contains("source = "));
    assert_eq!(settings.len(), 4);
    for (copy, of) in [("readers.pem", "orders.pem"), ("readers.key", "orders.key")] {
        std::fs::copy(scene.pki.path(of), scene.pki.path(copy)).unwrap();
    }
    std::fs::copy(scene.pki.path("ca.pem"), scene.pki.path("readers-ca.pem")).unwrap();
    for setting in settings {
        let setting = setting.replace("\"telegraf\"", "\"root\""); // a group of every machine
        let config = scene.pki.path("keygate.toml");
        write(&config, text(&scene.origin, "", "") + &setting).unwrap();
        let valid = keygate(&["validate", "--config", config.to_str().unwrap()]);
        assert!(valid.status.success(), "{setting}: {}", output_text(&valid));
    }
}

#[test]
fn the_way_from_flag_to_reject_works_as_described() {
    let scene = Scene::new();
    let page = section("## From flag to reject");
    let [policy] = blocks(page, "toml").try_into().unwrap();
    let keygate = scene.keygate("", "");
    scene.append(&policy);
    keygate.wait_for_generation(2);
    for client in [&scene.good, &scene.billing, &scene.billing, &scene.shop] {
        scene.is_served(&keygate, client);
    }
    keygate.wait_for_lines("flagged clients", 3, message("client key flagged"));
    let log: String =
        keygate.lines("client key flagged").iter().map(|line| format!("{line}\n")).collect();
    write(scene.pki.path("keygate.log"), log).unwrap();

    let [report, count, reject, actions]: [String; 4] = blocks(page, "sh").try_into().unwrap();
    // The port is known only after the start.
    let admin = format!("admin = {{ listen = \"{}\" }}", keygate.admin_address());
    write(scene.pki.path("admin.toml"), admin).unwrap();
    let shown = scene.run(&report.replace("keygate.toml", "admin.toml"), &keygate);
    assert!(shown.contains("CN=billing") && shown.contains("CN=shop"), "{shown}");
    assert!(!shown.contains("CN=client"), "{shown}");
    let shown = scene.run(&count, &keygate);
    assert!(shown.contains("2 \"subject\":\"CN=billing\""), "{shown}");
    assert!(shown.contains("1 \"subject\":\"CN=shop\""), "{shown}");

    // One of the two gets an exception, by the block of the section after.
    let [exception] = blocks(section("## Exceptions"), "toml").try_into().unwrap();
    let fingerprint = keygate
        .lines("client key flagged")
        .into_iter()
        .find(|line| line["subject"] == "CN=shop")
        .unwrap()["fingerprint"]
        .clone();
    let shown = "9e03b56749abe821a6f5299d6f634b35404975f0552eb3347bf3adfad9af1109";
    assert!(exception.contains(shown) && exception.contains("2026-12-31"));
    let exception =
        exception.replace(shown, fingerprint.as_str().unwrap()).replace("2026-12-31", "2999-12-31");
    scene.append(&exception);
    keygate.wait_for_generation(3);

    let mut open = Client::connect(&scene.pki, keygate.address(), &scene.billing);
    get(&mut open);
    scene.run(&reject, &keygate);
    keygate.wait_for_generation(4);
    assert_eq!(open.rest(), "", "the open connection of a flagged client ends");
    scene.is_served(&keygate, &scene.good);
    scene.is_served(&keygate, &scene.shop);
    scene.is_refused(&keygate, &scene.billing, "access denied");
    let metric = |action: &str| {
        format!("keygate_key_actions_total{{action=\"{action}\",service=\"orders\"}}")
    };
    keygate.wait_for_metric(&metric("reject"), 1.0);
    keygate.wait_for_metric(&metric("evict"), 1.0);
    let shown = scene.run(&actions, &keygate);
    assert!(shown.contains(&format!("{} 1\n", metric("reject"))), "{shown}");
}

#[test]
fn a_fingerprint_is_that_of_the_key_and_an_expired_exception_is_logged() {
    let scene = Scene::new();
    let until = humantime::format_rfc3339_seconds(SystemTime::now() + A_DAY).to_string();
    let of_key = keygate_core::spki::Fingerprint::of(&scene.shop.spki).to_string();
    let exception = format!(
        "[[exceptions]]\nfingerprint = \"{of_key}\"\nuntil = {until}\nreason = \"ordered\"\n"
    );
    let keygate = scene.keygate(&exception, "");
    keygate.wait_for("a warning", message("exception expires within a week"));
    scene.is_served(&keygate, &scene.shop);
    assert_eq!(keygate.status()["exceptions"][0]["fingerprint"], of_key);
    let series = format!("keygate_exception_until_timestamp_seconds{{fingerprint=\"{of_key}\"}}");
    assert!(keygate.metric(&series) > 0.0);
    let [command] = blocks(section("## Exceptions"), "sh").try_into().unwrap();
    std::fs::copy(&scene.shop.certificate, scene.pki.path("client.pem")).unwrap();
    assert!(scene.run(&command, &keygate).contains(&of_key));
    // Removing an exception ends it.
    let config = read_to_string(scene.pki.path("keygate.toml")).unwrap();
    scene.replace("keygate.toml", config.replace(&exception, ""));
    keygate.wait_for("the configuration", message("configuration loaded"));
    keygate.wait_for_generation(2);
    scene.is_refused(&keygate, &scene.shop, "access denied");
}

#[test]
fn replacing_a_ca_affects_only_clients_of_the_old_one() {
    let scene = Scene::new();
    let other = Pki::named("New CA");
    std::fs::copy(other.path("ca.pem"), scene.pki.path("new-ca.pem")).unwrap();
    let theirs = other.client("new", Kind::P256);
    let config = text(&scene.origin, "", "").replace(", crls = [\"clients.crl.pem\"]", "");
    let keygate = Keygate::configured(&scene.pki, &config);
    let [add, remove]: [String; 2] =
        blocks(section("### The CA of the clients"), "sh").try_into().unwrap();
    scene.is_refused(&keygate, &theirs, "unknown ca");
    let mut old = Client::connect(&scene.pki, keygate.address(), &scene.good);
    get(&mut old);
    scene.run(&add, &keygate);
    keygate.wait_for_generation(2);
    get(&mut old);
    scene.is_served(&keygate, &scene.good);
    scene.is_served(&keygate, &theirs);
    let mut new = Client::connect(&scene.pki, keygate.address(), &theirs);
    get(&mut new);
    scene.run(&remove, &keygate);
    keygate.wait_for_generation(3);
    assert_eq!(old.rest(), "", "it ends");
    get(&mut new);
    let gone = "client certificate is no longer accepted, closing connection";
    keygate.wait_for("the line", message(gone));
    scene.is_refused(&keygate, &scene.good, "unknown ca");
    let unknown =
        "keygate_handshakes_total{result=\"unknown_issuer\",resumed=\"false\",service=\"orders\"}";
    keygate.wait_for_metric(unknown, 2.0);
}

#[test]
fn a_server_certificate_and_its_key_are_replaced_in_either_order() {
    let scene = Scene::new();
    let keygate = scene.keygate("", "");
    let [command] = blocks(section("### Own certificates"), "sh").try_into().unwrap();
    let before = scene.run(&command, &keygate);
    assert!(before.contains("serial=") && before.contains("notAfter="), "{before}");
    let mut open = Client::connect(&scene.pki, keygate.address(), &scene.good);
    let next =
        scene.pki.server_for("next-server", &["orders.example.com", "localhost", "127.0.0.1"]);
    scene.replace("orders.pem", read(&next.certificate).unwrap());
    keygate.wait_for("a refusal", message("certificate update rejected, keeping those in use"));
    assert_eq!(scene.run(&command, &keygate), before);
    scene.replace("orders.key", read(&next.private_key).unwrap());
    keygate.wait_for("certificates", message("certificates loaded"));
    keygate.wait_for_generation(2);
    assert_ne!(scene.run(&command, &keygate), before);
    open.send("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(open.rest().starts_with("HTTP/1.1 200 "), "open connections go on");
    let ends =
        "keygate_certificate_not_after_timestamp_seconds{role=\"server\",service=\"orders\"}";
    assert!(keygate.metric(ends) > 0.0);

    let [command] = blocks(section("### Revocation lists"), "sh").try_into().unwrap();
    assert!(scene.run(&command, &keygate).contains("nextUpdate="));
    assert!(keygate.metric("keygate_crl_next_update_timestamp_seconds{service=\"orders\"}") > 0.0);
}

/// Files that are served over HTTP by their path.
type Published = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

fn publisher() -> (Origin, Published) {
    let files = Published::default();
    let served = Arc::clone(&files);
    let origin = Origin::responding(move |request, tcp| {
        let path = request.head.split(' ').nth(1).unwrap();
        match served.lock().unwrap().get(path) {
            Some(body) => {
                write!(tcp, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len())?;
                tcp.write_all(body)
            }
            None => tcp.write_all(b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n"),
        }
    });
    (origin, files)
}

/// The command of the unit, with the filter of the page.
#[test]
fn the_service_that_fetches_installs_good_filters_only() {
    let scene = Scene::new();
    let (origin, files) = publisher();
    let keygate = scene.keygate("", "");
    scene.is_served(&keygate, &scene.good);
    let [settings] = blocks(section("## Distributing filters"), "toml").try_into().unwrap();
    let settings = settings
        .replace("/var/lib/keygate-fetch/", "")
        .replace("https://filters.example.com", &format!("http://{}", origin.address()));
    let config = text(&scene.origin, "", "");
    let (before, after) =
        (config.find("[[filters]]").unwrap(), config.find("[[services]]").unwrap());
    let config = format!("{}{settings}\n{}", &config[..before], &config[after..]);
    write(scene.pki.path("fetch.toml"), config).unwrap();
    let unit = include_str!("../../../deploy/systemd/keygate-fetch.service");
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let command = command
        .replace("/usr/bin/keygate", crate::support::keygate::BINARY)
        .replace("/etc/keygate/keygate.toml", "fetch.toml")
        .replace("/var/lib/keygate-fetch/", "");
    let fetch = || {
        let mut words = command.split(' ');
        let mut fetch = Command::new(words.next().unwrap());
        fetch.args(words).current_dir(scene.pki.directory()).output().unwrap()
    };
    let publish = |content: &[u8], checksum: &str| {
        let mut files = files.lock().unwrap();
        files.insert("/pwnedkeys.pkbf".to_owned(), content.to_vec());
        files.insert("/pwnedkeys.pkbf.sha256".to_owned(), checksum.as_bytes().to_vec());
    };
    let made = scene.pki.path("made");
    write_revision(&made, &[&scene.good.spki, b"another key"], 2);
    let content = read(&made).unwrap();
    let sum = String::from_utf8(system("sha256sum", &[made.to_str().unwrap()]).stdout).unwrap();
    let sum = format!("{}  pwnedkeys.pkbf\n", &sum[..64]);

    // A missing file, half a file, a wrong checksum: the old file stays, and the service fails.
    let before = read(scene.pki.path("pwnedkeys.pkbf")).unwrap();
    for (content, checksum) in [
        (None, ""),
        (Some(&content[..content.len() / 2]), sum.as_str()),
        (Some(&b"<html>sorry</html>"[..]), sum.as_str()),
    ] {
        if let Some(content) = content {
            publish(content, checksum);
        }
        let output = fetch();
        assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
        assert_eq!(read(scene.pki.path("pwnedkeys.pkbf")).unwrap(), before);
    }
    publish(&content, &sum);
    let output = fetch();
    assert!(output.status.success(), "{}", output_text(&output));
    keygate.wait_for_generation(2);
    scene.is_refused(&keygate, &scene.good, "access denied");
    let metrics = read_to_string(scene.pki.path("keygate-fetch.prom")).unwrap();
    assert!(metrics.contains("keygate_fetch_last_success_timestamp_seconds{"), "{metrics}");
}

#[test]
fn start_and_stop_are_as_described() {
    let scene = Scene::new();
    let mut keygate = scene.keygate("", "");
    let [command] = blocks(section("## Start, reload, stop"), "sh").try_into().unwrap();
    assert!(scene.run(&command, &keygate).contains("valid"));
    // SIGHUP checks every file.
    let looks = "keygate_config_reloads_total{result=\"unchanged\"}";
    assert_eq!(keygate.metric(looks), 0.0);
    keygate.signal("HUP");
    keygate.wait_for_metric(looks, 1.0);

    let mut busy = Client::connect(&scene.pki, keygate.address(), &scene.good);
    // Half a request: it does not end by itself.
    busy.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf");
    wait_until("it is there", || {
        keygate.metric("keygate_connections_active{service=\"orders\"}") > 0.0
    });
    keygate.signal("TERM");
    keygate.wait_for("the end", message("drain timeout reached, closing open connections"));
    assert_eq!(keygate.ended().code(), Some(0), "also when connections had to be cut");
    drop(busy);

    // Exit codes of errors that a restart does not fix.
    let unit = include_str!("../../../deploy/systemd/keygate.service");
    assert!(unit.contains("RestartPreventExitStatus=2 3"));
    let config = scene.pki.path("keygate.toml");
    let code = |text: &str| {
        write(&config, text).unwrap();
        crate::support::keygate::keygate(&["run", "--config", config.to_str().unwrap()])
            .status
            .code()
    };
    assert_eq!(code("nonsense = 1"), Some(2));
    let missing = text(&scene.origin, "", "").replace("pwnedkeys.pkbf", "gone.pkbf");
    assert_eq!(code(&missing), Some(3));
}

/// Number of file descriptors that `count` connections take, with one request on each.
fn descriptors(keygate: &Keygate, connect: impl Fn() -> Client, count: usize) -> f64 {
    let _first = connect();
    let open = || keygate.metric("process_open_fds");
    let before = open();
    let clients: Vec<_> = (0..count).map(|_| connect()).collect();
    let after = open();
    drop(clients);
    after - before
}

#[test]
fn descriptors_are_one_or_two_for_each_connection() {
    let scene = Scene::new();
    let keygate = scene.keygate("", "");
    let connect = || {
        let mut client = Client::connect(&scene.pki, keygate.address(), &scene.good);
        get(&mut client);
        client
    };
    // A worker without an earlier request opens its own upstream connection. The request for the
    // metrics takes another descriptor.
    let more = descriptors(&keygate, connect, 20);
    assert!((20.0..=22.0).contains(&more), "{more} for 20 connections of HTTP");

    let scene = Scene::new();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let server = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for tcp in listener.incoming() {
            let mut tcp = tcp.unwrap();
            std::thread::spawn(move || {
                let _ = tcp.write_all(b"hello"); // the client may be gone
                let _ = tcp.read_to_end(&mut Vec::new());
            });
        }
    });
    let http = format!("\"http://{}\"", scene.origin.address());
    let text = text(&scene.origin, "", "protocol = \"tcp\"");
    let text = text.replace(&http, &format!("\"{server}\""));
    let keygate = Keygate::configured(&scene.pki, &text);
    let connect = || {
        let mut client = Client::connect(&scene.pki, keygate.address(), &scene.good);
        assert_eq!(client.exactly(5), b"hello");
        client
    };
    let more = descriptors(&keygate, connect, 20);
    assert!((39.0..=41.0).contains(&more), "{more} for 20 connections of TCP");
}
