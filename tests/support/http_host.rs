//! nginx, Traefik, Caddy and Envoy's HTTP service with a configuration of `deploy/authorizer`, and
//! keygate as their authorizer over HTTP.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::process::Command;

use data_encoding::BASE64;
use rustls::ClientConfig;

use super::authorizer::{Authorizer, RunningAuthorizer};
use super::client::Client;
use super::pki::{Party, Pki};
use super::program::{Program, reserved_address};
use super::proxy::Configure;
use super::skip;

/// A host that asks over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpHost {
    Caddy,
    EnvoyHttp,
    Nginx,
    Traefik,
}

impl HttpHost {
    /// Its directory in `deploy/authorizer`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Caddy => "caddy",
            Self::EnvoyHttp => "envoy-http",
            Self::Nginx => "nginx",
            Self::Traefik => "traefik",
        }
    }

    /// The program, if it is installed; `None` skips the test.
    fn program(self) -> Option<&'static str> {
        let program = match self {
            Self::Caddy => "target/python/bin/caddy",
            Self::EnvoyHttp => "target/python/bin/envoy",
            Self::Nginx => "nginx",
            Self::Traefik => "target/python/bin/traefik",
        };
        let is_missing = match self {
            Self::Nginx => skip::without(program),
            Self::Caddy | Self::EnvoyHttp | Self::Traefik => {
                skip::unless(Path::new(program).exists(), &format!("{program} is not installed"))
            }
        };
        (!is_missing).then_some(program)
    }

    /// The files of the host: those with addresses and paths to replace.
    fn files(self) -> &'static [&'static str] {
        match self {
            Self::Caddy => &["Caddyfile"],
            Self::EnvoyHttp => &["envoy.yaml"],
            Self::Nginx => &["nginx.conf"],
            Self::Traefik => &["traefik.yaml", "dynamic.yaml"],
        }
    }

    /// keygate's part before its start. Traefik cannot ask over a Unix socket.
    pub fn authorizer(self) -> Authorizer {
        let authorizer = Authorizer::of(self.name());
        match self {
            Self::Caddy | Self::EnvoyHttp | Self::Nginx => authorizer,
            Self::Traefik => authorizer.set("authorizers.listen", reserved_address().to_string()),
        }
    }

    /// Starts keygate and the host, whose configuration is as documented.
    pub fn start(self) -> Option<HostScene> {
        self.start_with(self.authorizer(), |text| text)
    }

    /// Starts keygate and the host, whose configuration `change` changes.
    pub fn start_with(
        self,
        authorizer: Authorizer,
        change: impl Fn(String) -> String,
    ) -> Option<HostScene> {
        let [connecting, answers] = self.timeouts();
        self.run(authorizer, change, &[connecting, answers].concat())
    }

    /// Starts keygate and the host, which waits for answers as long as documented. On a loaded
    /// machine any answer may come too late.
    pub fn start_with_documented_timeout(
        self,
        change: impl Fn(String) -> String,
    ) -> Option<HostScene> {
        let [connecting, _] = self.timeouts();
        self.run(self.authorizer(), change, connecting)
    }

    /// The documented timeouts of connections and of answers, which a loaded machine exceeds; each
    /// with the one that tests use instead.
    fn timeouts(self) -> [&'static [(&'static str, &'static str)]; 2] {
        match self {
            Self::Caddy => [
                &[("dial_timeout 1s", "dial_timeout 30s")],
                &[("response_header_timeout 1s", "response_header_timeout 30s")],
            ],
            Self::EnvoyHttp => [
                &[
                    ("connect_timeout: 0.5s", "connect_timeout: 30s"),
                    ("connect_timeout: 1s", "connect_timeout: 30s"),
                ],
                &[(" timeout: 0.5s", " timeout: 30s"), ("max_interval: 0.2s", "max_interval: 30s")],
            ],
            Self::Nginx => [
                &[("proxy_connect_timeout 1s", "proxy_connect_timeout 30s")],
                &[
                    ("proxy_send_timeout    2s", "proxy_send_timeout 30s"),
                    ("proxy_read_timeout    2s", "proxy_read_timeout 30s"),
                ],
            ],
            // 30 seconds, without a setting.
            Self::Traefik => [&[], &[]],
        }
    }

    fn run(
        self,
        authorizer: Authorizer,
        change: impl Fn(String) -> String,
        timeouts: &[(&str, &str)],
    ) -> Option<HostScene> {
        let program = self.program()?;
        let running = authorizer.start();
        let address = reserved_address();
        let directory = running.pki.directory().to_owned();
        let path = |file: &str| directory.join(file).display().to_string();
        let asked = running.configuration["authorizers"][0]["listen"].as_str().unwrap();
        let origin = running.origin.address();
        let replacements = [
            ("/etc/edge/edge.pem", path("server.pem")),
            ("/etc/edge/edge.key", path("server.key")),
            ("/etc/edge/clients-ca.pem", path("ca.pem")),
            ("/etc/edge/dynamic.yaml", path("dynamic.yaml")),
            ("unix//run/keygate/ask.sock", format!("unix/{}", path("ask.sock"))),
            ("/run/keygate/ask.sock", path("ask.sock")),
            ("/run/nginx.pid", path("nginx.pid")),
            ("/var/log/nginx/error.log", path("nginx.log")),
            ("/var/log/envoy/edge.log", path("envoy-access.log")),
            ("/var/cache/nginx/keygate", path("cache")),
            ("127.0.0.1:9191", asked.to_owned()),
            ("edge.example.com:8443", format!("localhost:{}", address.port())),
            ("127.0.0.1:8443", address.to_string()),
            ("127.0.0.1:8080", origin.to_string()),
            ("port_value: 8443", format!("port_value: {}", address.port())),
            ("port_value: 8080", format!("port_value: {}", origin.port())),
        ];
        for file in self.files() {
            let page = format!("deploy/authorizer/{}/{file}", self.name());
            let mut text = change(std::fs::read_to_string(page).unwrap());
            for (documented, used) in &replacements {
                text = text.replace(documented, used);
            }
            for (documented, used) in timeouts {
                assert!(text.contains(documented), "{self:?} has no {documented}");
                text = text.replace(documented, used);
            }
            std::fs::write(directory.join(file), text).unwrap();
        }
        let mut command = Command::new(program);
        match self {
            Self::Caddy => command
                .args(["run", "--adapter", "caddyfile", "--config"])
                .arg(directory.join("Caddyfile"))
                .env("XDG_DATA_HOME", &directory)
                .env("XDG_CONFIG_HOME", &directory),
            Self::EnvoyHttp => command
                .args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warn"])
                .arg("--log-path")
                .arg(directory.join("envoy.log"))
                .arg("--config-path")
                .arg(directory.join("envoy.yaml")),
            Self::Nginx => command
                // Processes of root become www-data otherwise, which may not enter the directory.
                .args(["-g", "daemon off; user root;", "-p"])
                .arg(&directory)
                .arg("-c")
                .arg(directory.join("nginx.conf")),
            Self::Traefik => command.arg(format!("--configFile={}", path("traefik.yaml"))),
        };
        let program = Program::start(&mut command).listening_on(address);
        let scene = HostScene { running, address, program };
        scene.wait_for_routes();
        Some(scene)
    }
}

/// A running host; ends with the test.
pub struct HostScene {
    pub running: RunningAuthorizer,
    pub address: SocketAddr,
    pub program: Program,
}

impl Deref for HostScene {
    type Target = RunningAuthorizer;

    fn deref(&self) -> &RunningAuthorizer {
        &self.running
    }
}

/// A response over a connection of its own.
#[derive(Debug)]
pub struct HostResponse {
    /// Status line, fields and body; empty if the connection was closed without a response.
    pub text: String,
    /// Whether the TLS session was resumed.
    pub is_resumed: bool,
}

impl HostResponse {
    pub fn status(&self) -> &str {
        self.text.get(9..12).unwrap_or_default()
    }
}

/// A request after which the host closes the connection.
pub const GET: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

impl HostScene {
    /// Traefik loads its routes after it listens: 404 until then.
    fn wait_for_routes(&self) {
        let config = super::client::config(&self.pki, &self.lost);
        super::wait_for("the routes of the host", || {
            let mut client = Client::with(config.clone(), self.address);
            client.try_send(GET).map_err(|error| error.to_string())?;
            match client.whatever_comes() {
                text if text.is_empty() || text.starts_with("HTTP/1.1 404") => Err(text),
                _ => Ok(()),
            }
        });
    }

    /// Sends `request` on a connection of its own and reads to the end of the connection.
    pub fn exchange(&self, config: &ClientConfig, request: impl AsRef<[u8]>) -> HostResponse {
        let mut client = Client::with(config.clone(), self.address);
        client.send(request);
        let text = client.whatever_comes();
        HostResponse { text, is_resumed: client.is_resumed() }
    }

    /// The status of a GET on a connection of its own.
    pub fn get(&self, config: &ClientConfig) -> String {
        self.exchange(config, GET).status().to_owned()
    }

    /// The number of questions with a result.
    pub fn questions(&self, result: &str) -> f64 {
        self.metric(&format!("keygate_questions_total{{result=\"{result}\",service=\"edge\"}}"))
    }
}

/// The configuration of nginx with the second instance, which is a comment in the documented one.
pub fn with_second_instance(text: &str, second: &RunningAuthorizer) -> String {
    let used = format!("server unix:{}", second.socket().display());
    replaced(text, "# server unix:/run/keygate-2/ask.sock", &used)
}

/// `text` with `used` in the place of `documented`, which it must contain.
pub fn replaced(text: &str, documented: &str, used: &str) -> String {
    assert!(text.contains(documented), "no {documented}");
    text.replace(documented, used)
}

/// PEM in percent encoding, as nginx writes it.
pub fn escaped_pem(certificate: &[u8]) -> String {
    let base64 = BASE64.encode(certificate);
    let lines: Vec<_> =
        base64.as_bytes().chunks(64).map(|line| str::from_utf8(line).unwrap()).collect();
    let pem =
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"));
    let escape = |byte: u8| match byte {
        b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    pem.bytes().map(escape).collect()
}

/// The fields in which a certificate can be, in every dialect, as a client would forge them.
pub fn forged_certificates(certificate: &Party) -> String {
    let base64 = BASE64.encode(&certificate.der);
    let pem = escaped_pem(&certificate.der);
    let fields = [
        ("Client-Cert", format!(":{base64}:")),
        ("Client-Cert-Chain", format!(":{base64}:")),
        ("X-Forwarded-Client-Cert", format!("Cert=\"{pem}\"")),
        ("X-Forwarded-Tls-Client-Cert", base64),
        ("X-SSL-Cert", pem.clone()),
        ("X-SSL-Verify", "SUCCESS".to_owned()),
        ("ssl-client-cert", pem),
        ("ssl-client-verify", "SUCCESS".to_owned()),
    ];
    let spellings = |(name, value): &(&str, String)| {
        format!("{name}: {value}\r\n{}: {value}\r\n", name.replace('-', "_"))
    };
    fields.iter().map(spellings).collect()
}

/// A CA that no host trusts, and a client of it.
pub fn foreign_client() -> (Pki, Party) {
    let pki = Pki::named("Foreign CA");
    let client = pki.client("foreign", super::pki::Kind::P256);
    (pki, client)
}
