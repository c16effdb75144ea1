//! Real verifiers of assertions with the settings of `docs/assertion.md`: PyJWT, jwcrypto, Envoy's
//! `jwt_authn` and nginx with a subrequest. Each rejects every attack.
//!
//! Guards: `sign` in `src/sources/assertion.rs`, and the code blocks of the page.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::assertion::{Attack, POLICY, attacks, block, signing_key};
use crate::support::client::Client;
use crate::support::envoy::Envoy;
use crate::support::http_host::replaced;
use crate::support::origin::Origin;
use crate::support::program::{Program, python_with, reserved_address};
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::skip;
use crate::support::wait_for;

/// A proxy with the service `orders` in front of the verifier at `address`, and the service
/// `payments` with the same key in front of the origin.
fn proxy(address: SocketAddr, algorithm: &str) -> (Running, SocketAddr) {
    let payments = reserved_address();
    let mut proxy = Proxy::to(Origin::with_upgrades())
        .service(POLICY)
        .service("name = \"orders\"")
        .servers(&[format!("http://{address}")]);
    signing_key(&proxy.pki, "now.pem", algorithm);
    let servers = format!("http://{}", proxy.origin_address());
    let second = proxy.configuration.second_service(&format!("listen = \"{payments}\""));
    proxy.configuration = second;
    let table = proxy.configuration.table();
    let services = table["services"].as_array_mut().unwrap();
    let payments_service = services[1].as_table_mut().unwrap();
    payments_service["name"] = "payments".into();
    payments_service["upstream"]["servers"] = toml::Value::Array(vec![servers.into()]);
    (proxy.start(), payments)
}

/// The status of a GET through keygate.
fn status(running: &Running, address: SocketAddr) -> String {
    let mut client = Client::connect(&running.pki, address, &running.good);
    client.send("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    client.whatever_comes()[9..12].to_owned()
}

/// The assertion in the next request at the origin.
fn received(running: &Running) -> String {
    let request = running.origin.next();
    let fields = request.fields("keygate-assertion");
    assert_eq!(fields.len(), 1, "{}", request.head);
    fields[0].to_owned()
}

/// The attacks with an assertion for `orders`, and one for `payments`.
fn all_attacks(running: &Running, payments: SocketAddr, assertion: &str) -> Option<Vec<Attack>> {
    assert_eq!(status(running, payments), "200");
    let other = received(running);
    let (code, keys) = running.admin("/.well-known/jwks.json");
    assert_eq!(code, 200, "{keys}");
    let further = [("the assertion of another service", other.as_str())];
    attacks(assertion, &running.good, &keys, &running.pki.path("now.pem"), &further)
}

/// The status that the verifier sends to a peer that reaches its port.
fn answered(address: SocketAddr, fields: &[String]) -> String {
    let mut tcp = TcpStream::connect(address).unwrap();
    let fields: String = fields.iter().map(|it| format!("Keygate-Assertion: {it}\r\n")).collect();
    write!(tcp, "GET / HTTP/1.1\r\nHost: orders\r\nConnection: close\r\n{fields}\r\n").unwrap();
    // Envoy closes the connection a second later.
    let mut line = String::new();
    BufReader::new(tcp).read_line(&mut line).unwrap();
    line[9..12].to_owned()
}

#[test]
fn two_libraries_accept_an_assertion_and_reject_every_attack() {
    for algorithm in ["EC", "ED25519"] {
        let origin = Origin::start();
        let (running, payments) = proxy(origin.address(), algorithm);
        assert_eq!(status(&running, running.address()), "200");
        let request = origin.next();
        let assertion = request.fields("keygate-assertion")[0];
        let Some(attacks) = all_attacks(&running, payments, assertion) else { return };
        assert!(attacks.len() > 30, "{}", attacks.len());
        for (index, Attack { name, results, .. }) in attacks.iter().enumerate() {
            assert_eq!(name == "genuine", index == 0);
            for result in results {
                assert_eq!(result == "ok", index == 0, "{algorithm}, {name}: {results:?}");
            }
        }
    }
}

#[test]
fn envoy_accepts_an_assertion_and_rejects_every_attack() {
    for algorithm in ["EC", "ED25519"] {
        let address = reserved_address();
        let (running, payments) = proxy(address, algorithm);
        let filters = block("yaml", "http_filters:\n");
        let indented: String = filters.lines().map(|it| format!("          {it}\n")).collect();
        let cluster = |name: &str, address: SocketAddr| {
            format!(
                "  - name: {name}\n    type: STATIC\n    connect_timeout: 30s\n    \
                 load_assignment:\n      cluster_name: {name}\n      endpoints:\n      \
                 - lb_endpoints:\n        - endpoint: {{ address: {{ socket_address: \
                 {{ address: 127.0.0.1, port_value: {} }} }} }}\n",
                address.port()
            )
        };
        let text = format!(
            r#"static_resources:
  listeners:
  - name: orders
    address: {{ socket_address: {{ address: 127.0.0.1, port_value: {} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: orders
{indented}          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
          route_config:
            virtual_hosts:
            - name: app
              domains: ["*"]
              routes: [{{ match: {{ prefix: / }}, route: {{ cluster: app }} }}]
  clusters:
{}{}"#,
            address.port(),
            cluster("keygate-admin", running.admin_address()),
            cluster("app", running.origin.address()),
        );
        // A loaded machine exceeds the documented timeout.
        let text = replaced(&text, "timeout: 5s", "timeout: 60s");
        let Some(_envoy) = Envoy::run(&text, running.pki.directory(), address) else { return };
        // Envoy may listen before it has the set.
        wait_for("a verified request", || match status(&running, running.address()).as_str() {
            "200" => Ok(()),
            status => Err(status.to_owned()),
        });
        let assertion = received(&running);
        let Some(attacks) = all_attacks(&running, payments, &assertion) else { return };
        for (index, Attack { name, fields, .. }) in attacks.iter().enumerate() {
            // As the page says, Envoy compares neither.
            let is_open = ["another type", "another certificate"].contains(&name.as_str());
            // Another audience is a 403.
            let expected: &[&str] = if index == 0 || is_open { &["200"] } else { &["401", "403"] };
            let answer = answered(address, fields);
            assert!(expected.contains(&answer.as_str()), "{algorithm}, {name}: {answer}");
        }
    }
}

/// The function of the page behind an HTTP server. Ends with the test.
struct Verifier {
    child: Child,
    address: SocketAddr,
}

impl Verifier {
    /// With this set of keys, in a file.
    fn start(keys: &Path) -> Option<Self> {
        let python = python_with("jwt, cryptography, jwcrypto")?;
        let mut child = Command::new(python)
            .args(["tests/programs/assertion.py", "serve"])
            .arg(keys)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = format!("127.0.0.1:{}", line.trim()).parse().unwrap();
        Some(Self { child, address })
    }
}

impl Drop for Verifier {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

#[test]
fn nginx_with_a_subrequest_accepts_an_assertion_and_rejects_every_attack() {
    if skip::without("nginx") {
        return;
    }
    let address = reserved_address();
    let (running, payments) = proxy(address, "EC");
    let (_, keys) = running.admin("/.well-known/jwks.json");
    let set = running.pki.path("jwks.json");
    std::fs::write(&set, keys).unwrap();
    let Some(verifier) = Verifier::start(&set) else { return };
    let locations = block("nginx", "location = /assertion {");
    let locations = replaced(&locations, "127.0.0.1:8090", &verifier.address.to_string());
    let origin = running.origin.address().to_string();
    let locations = replaced(&locations, "127.0.0.1:8080", &origin);
    let path = |name: &str| running.pki.path(name).display().to_string();
    let text = format!(
        "pid {};\nerror_log {} warn;\nevents {{}}\nhttp {{\naccess_log off;\n\
         server {{\nlisten {address};\n{locations}}}\n}}\n",
        path("nginx.pid"),
        path("nginx.log")
    );
    std::fs::write(path("nginx.conf"), text).unwrap();
    let mut command = Command::new("nginx");
    command.args(["-g", "daemon off; user root;", "-p", &path(""), "-c", &path("nginx.conf")]);
    let _nginx = Program::start(&mut command).listening_on(address);
    assert_eq!(status(&running, running.address()), "200");
    let assertion = received(&running);
    let Some(attacks) = all_attacks(&running, payments, &assertion) else { return };
    for (index, Attack { name, fields, .. }) in attacks.iter().enumerate() {
        // The request of a peer has no `Client-Cert` to compare.
        let expected = if index == 0 || name == "another certificate" { "200" } else { "401" };
        assert_eq!(answered(address, fields), expected, "{name}");
    }
}
