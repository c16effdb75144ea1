//! The migration page is true: the old configurations and the new ones run side by side, with the
//! same clients in front and the same service behind.

mod headers;
mod vocabulary;

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Output};
use std::time::Duration;

use rcgen::{CertificateParams, DnType, SanType};

use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::{Origin, Received};
use crate::support::pki::{Kind, Party, Pki};
use crate::support::program::{Program, reserved_address};
use crate::support::{blocks, output_text, shell, skip, system, wait_until, write_filter};

const PAGE: &str = include_str!("../../../docs/migrating.md");

/// The part of the page from a heading to the next.
fn section(heading: &str) -> &'static str {
    let found = PAGE.split_once(&format!("\n{heading}\n"));
    let (_, rest) = found.unwrap_or_else(|| panic!("no {heading}"));
    let ends = ["\n## ", "\n### "].map(|next| rest.find(next).unwrap_or(rest.len()));
    &rest[..ends[0].min(ends[1])]
}

/// The only block of a language in a section.
fn block(heading: &str, language: &str) -> String {
    let [block] = blocks(section(heading), language).try_into().unwrap();
    block
}

/// The rows of the table in a section that begins with `header`, as cells.
fn table(heading: &str, header: &str) -> Vec<Vec<&'static str>> {
    let (_, rest) = section(heading).split_once(header).unwrap_or_else(|| panic!("no {header}"));
    let rows = rest.lines().skip(1).take_while(|line| line.starts_with('|'));
    let cells = |row: &'static str| row.trim_matches('|').split(" | ").map(str::trim).collect();
    let rows: Vec<Vec<&str>> = rows.filter(|row| !row.starts_with("| ---")).map(cells).collect();
    assert!(rows.len() > 2, "{heading}: {rows:?}");
    rows
}

/// The code spans in a cell.
fn code(cell: &'static str) -> Vec<&'static str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The first block of keygate's configuration in a section.
fn first_toml(heading: &str) -> String {
    blocks(section(heading), "toml").remove(0)
}

/// A directory with all files that the configurations name, and the clients.
struct Scene {
    pki: Pki,
    origin: Origin,
    good: Party,
    lost: Party,
    revoked: Party,
    version_1: Party,
    /// A client of a trusted CA without a revocation list.
    unlisted: Party,
}

impl Scene {
    fn new() -> Self {
        let (pki, other) = (Pki::new(), Pki::named("Another CA"));
        let server = pki.server_for("orders", &["orders.example.com", "localhost", "127.0.0.1"]);
        let text = |path| std::fs::read_to_string(path).unwrap();
        let both = text(server.certificate) + &text(server.private_key);
        std::fs::write(pki.path("orders-with-key.pem"), both).unwrap();
        let anchors = text(pki.path("ca.pem")) + &text(other.path("ca.pem"));
        std::fs::write(pki.path("clients-ca.pem"), anchors).unwrap();
        std::fs::copy(pki.path("ca.pem"), pki.path("server-ca.pem")).unwrap();
        let [good, lost, revoked] =
            ["good", "lost", "revoked"].map(|name| pki.client(name, Kind::P256));
        let version_1 = pki.client_of_version_1("version-1");
        let unlisted = other.client("unlisted", Kind::P256);
        for (from, to) in
            [(&unlisted.certificate, "unlisted.pem"), (&unlisted.private_key, "unlisted.key")]
        {
            std::fs::copy(from, pki.path(to)).unwrap();
        }
        let unlisted = Party {
            certificate: pki.path("unlisted.pem"),
            private_key: pki.path("unlisted.key"),
            ..unlisted
        };
        pki.crl("clients.crl.pem", &[&revoked], Duration::from_secs(3600));
        write_filter(&pki.path("pwnedkeys.pkbf"), &[&lost.spki]);
        Self { pki, origin: Origin::start(), good, lost, revoked, version_1, unlisted }
    }

    /// A configuration of the page with the files of this directory, and `origin` for its service.
    fn placed(&self, text: &str, old: SocketAddr, new: SocketAddr, origin: SocketAddr) -> String {
        let here = self.pki.directory().to_str().unwrap();
        ["/etc/nginx/tls", "/etc/haproxy/tls", "/etc/keygate"]
            .iter()
            .fold(text.to_owned(), |text, there| text.replace(there, here))
            .replace("listen 8443", &format!("listen {old}"))
            .replace("bind *:8443", &format!("bind {old}"))
            .replace("0.0.0.0:9443", &new.to_string())
            .replace("127.0.0.1:8080", &origin.to_string())
            .replace("127.0.0.1:6379", &origin.to_string())
    }

    fn keygate(&self, text: &str, listen: SocketAddr) -> Keygate {
        let text = self.placed(text, listen, listen, self.origin.address());
        Keygate::configured(&self.pki, &running(&text))
    }

    /// The command that runs nginx with a block of the page.
    fn nginx_command(&self, block: &str) -> Command {
        let text = format!(
            "daemon off; master_process off; pid nginx.pid; error_log error.log;\nevents {{}}\n\
             http {{\naccess_log off; client_body_temp_path body; proxy_temp_path p;\n\
             fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;\n{block}\n}}\n"
        );
        let file = self.pki.path("nginx.conf");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-p").arg(self.pki.directory()).arg("-c").arg(file);
        command
    }

    fn nginx(&self, block: &str, listen: SocketAddr) -> Program {
        let text = self.placed(block, listen, listen, self.origin.address());
        Program::start(&mut self.nginx_command(&text)).listening_on(listen)
    }

    fn haproxy_command(&self, block: &str) -> Command {
        let file = self.pki.path("haproxy.cfg");
        std::fs::write(&file, block).unwrap();
        let mut command = Command::new("haproxy");
        command.arg("-db").arg("-f").arg(file);
        command
    }

    fn haproxy(&self, block: &str, listen: SocketAddr, origin: SocketAddr) -> Program {
        let text = self.placed(block, listen, listen, origin);
        Program::start(&mut self.haproxy_command(&text)).listening_on(listen)
    }

    /// `curl` to one of the fronts under the name of the service; the status is the last line.
    fn send_get(&self, front: SocketAddr, client: Option<&Party>, more: &[&str]) -> Output {
        let ca = self.pki.path("server-ca.pem");
        let to = format!("::{front}");
        let mut arguments = vec!["--silent", "--show-error", "--max-time", "100"];
        arguments.extend(["--cacert", ca.to_str().unwrap(), "--connect-to", &to]);
        arguments.extend(["--write-out", "\n%{http_code}"]);
        if let Some(client) = client {
            arguments.extend(["--cert", client.certificate.to_str().unwrap()]);
            arguments.extend(["--key", client.private_key.to_str().unwrap()]);
        }
        arguments.extend(more);
        if !more.iter().any(|argument| argument.starts_with("https://")) {
            arguments.push("https://orders.example.com/");
        }
        system("curl", &arguments)
    }

    /// The status that a client gets, 0 for none.
    fn code(&self, front: SocketAddr, client: Option<&Party>, more: &[&str]) -> u16 {
        let output = String::from_utf8(self.send_get(front, client, more).stdout).unwrap();
        output.rsplit('\n').next().unwrap().parse().unwrap()
    }

    /// The request of the good client as the service gets it through `front`.
    fn seen(&self, front: SocketAddr, marker: &str, more: &[&str]) -> Received {
        let url = format!("https://orders.example.com/{marker}");
        let response = self.send_get(front, Some(&self.good), &[more, &[&url]].concat());
        assert_eq!(response.stdout, b"hello\n\n200", "{}", output_text(&response));
        // Health checks come, too.
        let wanted = format!("GET /{marker} ");
        std::iter::repeat_with(|| self.origin.next())
            .find(|request| request.head.starts_with(&wanted))
            .unwrap()
    }
}

/// A configuration of the page, with the settings that a test needs.
fn running(text: &str) -> String {
    let text = text.replace("admin = { listen = \"127.0.0.1:9464\" }\n", "");
    format!(
        "admin = {{ listen = \"127.0.0.1:0\" }}\nworkers = 2\n\
         log = {{ level = \"info,keygate::proxy=debug\" }}\n\
         shutdown = {{ readiness_delay = \"0s\", drain_timeout = \"5s\" }}\n{text}"
    )
}

/// The configuration of keygate in front of an nginx that has no TLS: the first on the page, with
/// what the section changes in it.
fn in_front_of_nginx() -> String {
    let first = block("## nginx", "toml");
    let (before, _) = first.split_once("[services.upstream]").unwrap();
    format!("{before}\n{}", block("### What stays in nginx", "toml"))
}

/// Every configuration of keygate on the page, each of them whole.
fn configurations() -> Vec<String> {
    let whole = blocks(PAGE, "toml").into_iter().filter(|text| text.contains("[[services]]"));
    let whole: Vec<_> = whole.chain([in_front_of_nginx()]).collect();
    assert_eq!(whole.len(), blocks(PAGE, "toml").len());
    whole
}

#[test]
fn every_configuration_of_keygate_is_loaded() {
    let scene = Scene::new();
    for text in configurations() {
        let path = scene.pki.path("keygate.toml");
        std::fs::write(&path, &text).unwrap();
        let valid = keygate(&["validate", "--config", path.to_str().unwrap()]);
        assert!(valid.status.success(), "{text}: {}", output_text(&valid));
    }
}

#[test]
fn nginx_and_haproxy_accept_every_configuration_of_theirs() {
    let scene = Scene::new();
    let address = reserved_address();
    let placed = |text: &str| scene.placed(text, address, address, scene.origin.address());
    if !skip::without("nginx") {
        let blocks = blocks(PAGE, "nginx");
        assert_eq!(blocks.len(), 2);
        for block in blocks {
            let output = scene.nginx_command(&placed(&block)).arg("-t").output().unwrap();
            assert!(output.status.success(), "{block}: {}", output_text(&output));
        }
    }
    if !skip::without("haproxy") {
        let blocks = blocks(PAGE, "haproxy");
        assert_eq!(blocks.len(), 2);
        for block in blocks {
            let output = scene.haproxy_command(&placed(&block)).arg("-c").output().unwrap();
            assert!(output.status.success(), "{block}: {}", output_text(&output));
        }
    }
}

/// The alert of TLS that a client reads, as OpenSSL names it.
fn has_alert(output: &Output, alert: &str) -> bool {
    String::from_utf8_lossy(&output.stderr).contains(alert)
}

#[test]
fn the_differences_on_the_page_are_real() {
    let scene = Scene::new();
    let keygate = scene.keygate(&first_toml("## nginx"), reserved_address());
    let mut fronts = vec![("keygate", keygate.address())];
    let mut programs = Vec::new();
    if !skip::without("nginx") {
        let front = reserved_address();
        programs.push(scene.nginx(&block("## nginx", "nginx"), front));
        fronts.push(("nginx", front));
    }
    if !skip::without("haproxy") {
        let front = reserved_address();
        let text = block("### HTTP", "haproxy");
        programs.push(scene.haproxy(&text, front, scene.origin.address()));
        fronts.push(("haproxy", front));
    }
    let big = scene.pki.path("big");
    std::fs::write(&big, vec![b'x'; 2 << 20]).unwrap();
    let body = format!("@{}", big.display());
    for (name, front) in fronts {
        let is_keygate = name == "keygate";
        let code = |client: Option<&Party>, more: &[&str]| scene.code(front, client, more);
        let good = Some(&scene.good);
        assert_eq!(code(good, &[]), 200, "{name}");
        assert_eq!(code(Some(&scene.lost), &[]), 200, "{name}: flagged, or not known");

        let rejected = if name == "nginx" { 400 } else { 0 };
        assert_eq!(code(None, &[]), rejected, "{name}");
        assert_eq!(code(Some(&scene.revoked), &[]), rejected, "{name}");
        assert_eq!(code(Some(&scene.unlisted), &[]), rejected, "{name}: its CA has no list");

        let served = if is_keygate { 0 } else { 200 };
        assert_eq!(code(Some(&scene.version_1), &[]), served, "{name}");
        let other_name = ["--insecure", "https://other.example.com/"];
        assert_eq!(code(good, &other_name), served, "{name}");
        assert_eq!(code(good, &["--insecure", "https://127.0.0.1/"]), served, "{name}: no name");
        let other_host = ["--header", "Host: other.example.com"];
        assert_eq!(code(good, &other_host), if is_keygate { 421 } else { 200 }, "{name}");
        if name != "haproxy" {
            assert_eq!(code(good, &["--data-binary", &body]), 413, "{name}: over 1 MiB");
        }
    }
    // The alerts, by their names on the page.
    let front = keygate.address();
    let page = section("## Common differences");
    let newest: &[&str] = &[];
    let older: &[&str] = &["--tls-max", "1.2"];
    for (client, more, alert, name) in [
        (None, newest, "alert certificate required", "certificate_required"),
        (None, older, "alert certificate required", "certificate_required"),
        (Some(&scene.revoked), newest, "alert certificate revoked", "certificate_revoked"),
        (
            Some(&scene.good),
            &["https://other.example.com/"],
            "unrecognized name",
            "unrecognized_name",
        ),
    ] {
        let output = scene.send_get(front, client, more);
        assert!(has_alert(&output, alert), "{alert}: {}", output_text(&output));
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
    // The metrics that the page names count the rejected clients.
    let unsuitable =
        "keygate_handshakes_total{result=\"unsuitable\",resumed=\"false\",service=\"orders\"}";
    assert!(keygate.metric(unsuitable) >= 1.0);
}

#[test]
fn rules_by_name_in_an_nginx_behind_keygate_hold() {
    if skip::without("nginx") {
        return;
    }
    let scene = Scene::new();
    let behind = reserved_address();
    let text =
        block("### What stays in nginx", "nginx").replace("127.0.0.1:8081", &behind.to_string());
    let _nginx = scene.nginx(&text, behind);
    let text = in_front_of_nginx().replace("127.0.0.1:8081", &behind.to_string());
    let keygate = scene.keygate(&text, reserved_address());
    let client = |name: &str, common_name: &str, uris: &[&str]| {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::OrganizationName, common_name);
        let names = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
        parameters.subject_alt_names = names.collect();
        scene.pki.client_with(name, Kind::P256, parameters)
    };
    let (shop, other) = ("spiffe://example.com/shop", "spiffe://example.com/other");
    for (name, organization, uris, expected) in [
        ("shop", "Example", &[shop][..], 200),
        ("shop-too", "Example", &[other, shop], 200),
        ("shop-first", "Example", &[shop, other], 200),
        ("other", "Example", &[other], 403),
        ("longer", "Example", &["spiffe://example.com/shops"], 403),
        ("elsewhere", "Example", &["spiffe://evil/spiffe://example.com/shop"], 403),
        ("none", "Example", &[], 403),
        // A subject that looks like a name.
        ("forged", ";URI=spiffe://example.com/shop;", &[], 403),
        ("quoted", "\";URI=spiffe://example.com/shop;x=\"", &[other], 403),
        ("open", "\";URI=spiffe://example.com/shop;", &[], 403),
    ] {
        let party = client(name, organization, uris);
        assert_eq!(scene.code(keygate.address(), Some(&party), &[]), expected, "{name}");
    }
    let forged = format!("X-Forwarded-Client-Cert: Hash=0;Subject=\"\";URI={shop}");
    let code = scene.code(keygate.address(), Some(&scene.good), &["--header", &forged]);
    assert_eq!(code, 403);
}

#[test]
fn a_service_behind_envoy_finds_the_keys_on_the_page() {
    let scene = Scene::new();
    let text = block("## Envoy", "toml").replace("h2c://", "http://");
    let keygate = scene.keygate(&text, reserved_address());
    let mut parameters = CertificateParams::new(vec!["client.example.com".to_owned()]).unwrap();
    parameters.subject_alt_names.push(SanType::URI("spiffe://example.com/a".try_into().unwrap()));
    let named = scene.pki.client_with("named", Kind::P256, parameters);
    assert_eq!(scene.code(keygate.address(), Some(&named), &[]), 200);
    let request = scene.origin.next();
    let [value] = request.fields("x-forwarded-client-cert")[..] else { panic!("{}", request.head) };
    let keys: BTreeSet<_> = value.split(';').map(|pair| pair.split('=').next().unwrap()).collect();
    let rows = table("## Envoy", "| key of [`x-forwarded-client-cert`]");
    let there = rows.iter().filter(|row| !row[1].starts_with("not there"));
    let there: BTreeSet<_> = there.flat_map(|row| code(row[0])).collect();
    assert_eq!(keys, there, "{value}");
    assert!(request.fields("client-cert").is_empty());
}

/// Runs the commands of the last section in order, with nginx as the old proxy: keygate beside
/// nginx, the comparison, keygate in place of nginx, and nginx again.
#[test]
fn the_migration_and_its_way_back_work_as_described() {
    if skip::without("nginx") {
        return;
    }
    let scene = Scene::new();
    let (old, new) = (reserved_address(), reserved_address());
    let text = scene.placed(&first_toml("## nginx"), old, new, scene.origin.address());
    let keygate = Keygate::configured(&scene.pki, &running(&text));
    std::fs::create_dir(scene.pki.path("clients")).unwrap();
    for (party, name) in [(&scene.good, "a"), (&scene.lost, "b"), (&scene.version_1, "c")] {
        std::fs::copy(&party.certificate, scene.pki.path(&format!("clients/{name}.pem"))).unwrap();
    }
    for (from, to) in [("good.pem", "client.pem"), ("good.key", "client.key")] {
        std::fs::copy(scene.pki.path(from), scene.pki.path(to)).unwrap();
    }
    let here = scene.pki.directory();
    let commands = blocks(section("## Migration"), "sh").into_iter().map(|text| {
        text.replace("/etc/keygate", here.to_str().unwrap())
            .replace("8443", &old.port().to_string())
            .replace("9443", &new.port().to_string())
            .replace("127.0.0.1:9464", &keygate.admin_address().to_string())
    });
    let [before, beside, compare, look, switch]: [String; 5] =
        commands.collect::<Vec<_>>().try_into().unwrap();
    let nginx = scene.nginx(&block("## nginx", "nginx"), old);

    // The last line of the loop is a certificate that is not of version 1: `set -e` is not for it.
    let shown = output_text(&shell(here, &format!("set +e\n{before}")));
    assert!(shown.contains("clients/c.pem is version 1\n"), "{shown}");
    assert!(!shown.contains("clients/a.pem is version 1"), "{shown}");
    assert!(
        shown.lines().any(|line| line.starts_with("probable ") && line.contains("b.pem")),
        "{shown}"
    );
    assert!(output_text(&shell(here, &beside)).contains("valid"));
    assert_eq!(output_text(&shell(here, &compare)).matches("200\n").count(), 2);
    assert_eq!(scene.code(new, Some(&scene.lost), &[]), 200, "it is flagged only");
    keygate.wait_for("a flagged client", |line| line["message"] == "client key flagged");
    let shown = output_text(&shell(here, &look));
    assert!(
        shown.contains("keygate_key_actions_total{action=\"flag\",service=\"orders\"} 1"),
        "{shown}"
    );

    // While the port is in use, the configuration does not change.
    shell(here, &switch);
    keygate.wait_for("a refusal", |line| {
        line["message"] == "configuration rejected, keeping the one in use"
    });
    assert_eq!(scene.code(new, Some(&scene.good), &[]), 200);
    drop(nginx);
    keygate.signal("HUP");
    keygate.wait_for("the other port", |line| {
        line["message"] == "listening" && line["address"] == old.to_string()
    });
    scene.origin.taken(|_| true);
    assert_eq!(scene.code(old, Some(&scene.good), &[]), 200);
    assert!(!scene.origin.next().fields("x-request-id").is_empty());

    // nginx runs again.
    let back = switch.replace(
        &format!(":{}\"/:{}\"", new.port(), old.port()),
        &format!(":{}\"/:{}\"", old.port(), new.port()),
    );
    assert_ne!(back, switch);
    shell(here, &back);
    keygate.wait_for("the old port to be given back", |line| {
        line["message"] == "no longer listening" && line["address"] == old.to_string()
    });
    // The workers close the address shortly after the log line.
    wait_until("the old port is closed", || TcpStream::connect(old).is_err());
    let _nginx = scene.nginx(&block("## nginx", "nginx"), old);
    scene.origin.taken(|_| true);
    assert_eq!(scene.code(old, Some(&scene.good), &[]), 200);
    assert!(scene.origin.next().fields("x-request-id").is_empty(), "nginx is back");
}
