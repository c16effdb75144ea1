//! Envoy with a configuration of `deploy/authorizer`, and a gRPC client with Envoy's messages.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

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
    _program: Program,
}

impl Envoy {
    /// Starts with `deploy/authorizer/NAME/envoy.yaml`, in which addresses and paths are replaced.
    /// Certificates and sockets are in `directory`. `change` makes further changes to the text.
    pub fn start(
        name: &str,
        directory: &Path,
        upstream: SocketAddr,
        change: impl FnOnce(String) -> String,
    ) -> Option<Self> {
        let program = program()?;
        let address = reserved_address();
        let log = directory.join("envoy-access.log");
        let path = |file: &str| directory.join(file).display().to_string();
        let replacements = [
            ("/etc/edge/edge.pem", path("server.pem")),
            ("/etc/edge/edge.key", path("server.key")),
            ("/etc/edge/clients-ca.pem", path("ca.pem")),
            ("/run/keygate/ask.sock", path("ask.sock")),
            ("/var/log/envoy/edge.log", log.display().to_string()),
            ("port_value: 8443", format!("port_value: {}", address.port())),
            ("port_value: 8080", format!("port_value: {}", upstream.port())),
        ];
        let page = format!("deploy/authorizer/{name}/envoy.yaml");
        let mut text = std::fs::read_to_string(&page).unwrap();
        for (documented, used) in replacements {
            assert!(text.contains(documented), "{page} has no {documented}");
            text = text.replace(documented, &used);
        }
        let configuration = directory.join("envoy.yaml");
        std::fs::write(&configuration, change(text)).unwrap();
        let mut command = Command::new(program);
        command
            .args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warn"])
            .arg("--log-path")
            .arg(directory.join("envoy.log"))
            .arg("--config-path")
            .arg(&configuration);
        let program = Program::start(&mut command).listening_on(address);
        Some(Self { address, log, _program: program })
    }
}

/// A gRPC client with the messages of Envoy: `tests/programs/ext_authz.py`.
pub struct GrpcHost {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl GrpcHost {
    /// Connects to `target`, such as `unix:/run/ask.sock`.
    pub fn connect(target: &str) -> Option<Self> {
        Self::with_authority(target, None)
    }

    /// Connects with another `:authority` than that of the target.
    pub fn with_authority(target: &str, authority: Option<&str>) -> Option<Self> {
        let python = python_with("envoy.service.auth.v3.external_auth_pb2, grpc_health.v1")?;
        let mut child = Command::new(python)
            .args(["tests/programs/ext_authz.py", target])
            .args(authority)
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
