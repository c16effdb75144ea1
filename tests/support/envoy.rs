//! Envoy with a configuration of `deploy/authorizer`, and a gRPC client with Envoy's messages.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustls::ClientConfig;
use serde_json::Value;

use super::client::Client;
use super::pki::Party;
use super::program::{Program, python_with, reserved_address};
use super::skip;

/// The program, if it is installed; `None` skips the test.
fn program() -> Option<&'static str> {
    let envoy = "target/python/bin/envoy";
    let is_installed = Path::new(envoy).exists();
    (!skip::unless(is_installed, "Envoy is not installed")).then_some(envoy)
}

/// A running Envoy.
pub struct Envoy {
    pub address: SocketAddr,
    /// The access log.
    pub log: PathBuf,
    pub program: Program,
}

impl Envoy {
    /// Starts with `deploy/authorizer/NAME/envoy.yaml`, in which addresses and paths are replaced.
    /// Certificates and sockets are in `directory`. Timeouts are 30 s. `change` makes further
    /// changes to the text.
    pub fn start(
        name: &str,
        directory: &Path,
        upstream: SocketAddr,
        change: impl FnOnce(String) -> String,
    ) -> Option<Self> {
        let page = format!("deploy/authorizer/{name}/envoy.yaml");
        Self::start_with(&page, directory, upstream, |mut text| {
            // A loaded machine exceeds the documented timeouts.
            let timeouts = [
                ("connect_timeout: 0.5s", "connect_timeout: 30s"),
                ("connect_timeout: 1s", "connect_timeout: 30s"),
                (" timeout: 0.5s", " timeout: 30s"),
                ("- timeout: 1s", "- timeout: 30s"),
                ("interval: 1s, timeout: 1s", "interval: 1s, timeout: 30s"),
                ("max_interval: 0.2s", "max_interval: 30s"),
            ];
            for (documented, used) in timeouts {
                assert!(text.contains(documented), "{page} has no {documented}");
                text = text.replace(documented, used);
            }
            change(text)
        })
    }

    /// Starts with a file, in which addresses and paths are replaced.
    pub fn start_with(
        page: &str,
        directory: &Path,
        upstream: SocketAddr,
        change: impl FnOnce(String) -> String,
    ) -> Option<Self> {
        program()?;
        let address = reserved_address();
        let log = directory.join("envoy-access.log");
        let path = |file: &str| directory.join(file).display().to_string();
        let replacements = [
            ("/etc/edge/edge.pem", path("server.pem")),
            ("/etc/edge/edge.key", path("server.key")),
            ("/etc/edge/clients-ca.pem", path("ca.pem")),
            ("/run/keygate/ask.sock", path("ask.sock")),
            ("port_value: 8443", format!("port_value: {}", address.port())),
            ("port_value: 8080", format!("port_value: {}", upstream.port())),
        ];
        let mut text = std::fs::read_to_string(page).unwrap();
        for (documented, used) in replacements {
            assert!(text.contains(documented), "{page} has no {documented}");
            text = text.replace(documented, &used);
        }
        text = text.replace("/var/log/envoy/edge.log", log.to_str().unwrap());
        Self::run(&change(text), directory, address)
    }

    /// Starts with a configuration that listens on `address`. The files are in `directory`.
    pub fn run(text: &str, directory: &Path, address: SocketAddr) -> Option<Self> {
        let (program, log) = (program()?, directory.join("envoy-access.log"));
        let configuration = directory.join("envoy.yaml");
        std::fs::write(&configuration, text).unwrap();
        let mut command = Command::new(program);
        command
            .args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warn"])
            .args(["--file-flush-interval-msec", "100"])
            .arg("--log-path")
            .arg(directory.join("envoy.log"))
            .arg("--config-path")
            .arg(&configuration);
        let program = Program::start(&mut command).listening_on(address);
        Some(Self { address, log, program })
    }
}

/// A response over a connection of its own.
#[derive(Debug)]
pub struct Exchange {
    /// Status line, fields and body; empty if the connection was closed without a response.
    pub text: String,
    /// Whether the TLS session was resumed.
    pub is_resumed: bool,
}

impl Exchange {
    pub fn status(&self) -> &str {
        self.text.get(9..12).unwrap_or_default()
    }
}

impl Envoy {
    /// Sends `head` on a connection of its own and reads to the end of the connection.
    pub fn exchange(&self, config: &ClientConfig, head: &str) -> Exchange {
        let mut client = Client::with(config.clone(), self.address);
        client.send(head);
        let text = client.whatever_comes();
        Exchange { text, is_resumed: client.is_resumed() }
    }

    /// The status of a GET on a connection of its own.
    pub fn get(&self, config: &ClientConfig) -> String {
        self.exchange(config, GET).status().to_owned()
    }
}

/// A request after which Envoy closes the connection.
pub const GET: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// A gRPC client with the messages of Envoy: `tests/programs/ext_authz.py`.
pub struct GrpcHost {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl GrpcHost {
    /// Connects to a Unix socket. grpcio would send its path as `:authority`, percent-encoded,
    /// which h2 rejects.
    pub fn connect(socket: &Path) -> Option<Self> {
        Self::with_authority(socket, "localhost")
    }

    /// Connects with this `:authority`.
    pub fn with_authority(socket: &Path, authority: &str) -> Option<Self> {
        Self::start(&[&format!("unix:{}", socket.display()), authority])
    }

    /// Connects over TLS, as a host that has a certificate or not. The server is one of the CA.
    pub fn over_tls(address: &str, ca: &Path, host: Option<&Party>) -> Option<Self> {
        let files = host.map(|host| [&host.certificate, &host.private_key]);
        let files = files.iter().flatten().map(|path| path.display().to_string());
        let target = format!("ipv4:{address}");
        let files: Vec<_> = [target, "localhost".to_owned(), ca.display().to_string()]
            .into_iter()
            .chain(files)
            .collect();
        Self::start(&files.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Target, `:authority` and the files of TLS.
    fn start(arguments: &[&str]) -> Option<Self> {
        let python = python_with("envoy.service.auth.v3.external_auth_pb2, grpc_health.v1")?;
        let mut child = Command::new(python)
            .arg("tests/programs/ext_authz.py")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Some(Self { child, input, output: BufReader::new(output) })
    }

    /// The result of an operation.
    pub fn run(&mut self, operation: Value) -> Value {
        writeln!(self.input, "{operation}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{operation}: {error}: {line}"))
    }
}

impl Drop for GrpcHost {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}
