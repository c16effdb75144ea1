//! HAProxy with a configuration of `deploy/authorizer`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::pki::Pki;
use super::program::{Program, reserved_address};
use super::skip;

/// The files of HAProxy before its start. Addresses and paths are replaced.
pub struct HaproxyFiles {
    pub address: SocketAddr,
    configuration: String,
    engine: String,
}

/// A running HAProxy; ends with the test.
pub struct Haproxy {
    pub address: SocketAddr,
    pub program: Program,
}

impl HaproxyFiles {
    /// [`HaproxyFiles::documented`] with timeouts that a loaded machine does not exceed.
    pub fn of(name: &str, pki: &Pki, upstream: SocketAddr) -> Option<Self> {
        let files = Self::documented(name, pki, upstream)?
            .replace("timeout connect 2s", "timeout connect 30s")
            // A health check has its interval as timeout otherwise.
            .replace("timeout connect 1s", "timeout connect 30s\n    timeout check 30s")
            .replace_in_engine("timeout hello      1s", "timeout hello 30s")
            .replace_in_engine("timeout processing 50ms", "timeout processing 30s");
        Some(match name {
            "haproxy-tcp" => files.replace("inspect-delay 500ms", "inspect-delay 2m"),
            _ => files
                .replace("timeout client  30s", "timeout client 10m")
                .replace("timeout server  30s", "timeout server 10m"),
        })
    }

    /// `deploy/authorizer/NAME/haproxy.cfg` and `keygate.spoe`, with the certificates and the
    /// socket in the directory of `pki`. An answer may come too late on a loaded machine. `None`
    /// skips the test.
    pub fn documented(name: &str, pki: &Pki, upstream: SocketAddr) -> Option<Self> {
        let runs = Command::new("haproxy").arg("-v").output();
        let runs = runs.is_ok_and(|output| output.status.success());
        if skip::unless(runs, "HAProxy is not installed") {
            return None;
        }
        let address = reserved_address();
        let read = |file: &str| {
            let page = format!("deploy/authorizer/{name}/{file}");
            (std::fs::read_to_string(&page).unwrap(), page)
        };
        let (mut configuration, page) = read("haproxy.cfg");
        let path = |file: &str| pki.path(file).display().to_string();
        for (documented, used) in [
            ("/etc/edge/edge.pem", path("edge.pem")),
            ("/etc/edge/clients-ca.pem", path("ca.pem")),
            ("/etc/haproxy/keygate.spoe", path("keygate.spoe")),
            ("/run/keygate/ask.sock", path("ask.sock")),
            ("127.0.0.1:8443", address.to_string()),
            ("127.0.0.1:8080", upstream.to_string()),
        ] {
            assert!(configuration.contains(documented), "{page} has no {documented}");
            configuration = configuration.replace(documented, &used);
        }
        let server =
            ["server.pem", "server.key"].map(|file| std::fs::read(pki.path(file)).unwrap());
        std::fs::write(pki.path("edge.pem"), server.concat()).unwrap();
        let (engine, _) = read("keygate.spoe");
        Some(Self { address, configuration, engine })
    }

    /// Replaces text of the configuration, which must have it.
    pub fn replace(mut self, old: &str, new: &str) -> Self {
        assert!(self.configuration.contains(old), "no {old} in\n{}", self.configuration);
        self.configuration = self.configuration.replace(old, new);
        self
    }

    /// Replaces text of the engine, which must have it.
    pub fn replace_in_engine(mut self, old: &str, new: &str) -> Self {
        assert!(self.engine.contains(old), "no {old} in\n{}", self.engine);
        self.engine = self.engine.replace(old, new);
        self
    }

    /// Adds lines to the section `global`.
    pub fn global(self, lines: &str) -> Self {
        self.replace("global\n", &format!("global\n{lines}\n"))
    }

    /// Starts HAProxy and waits until it accepts connections.
    pub fn start(self, pki: &Pki) -> Haproxy {
        let Self { address, configuration, engine } = self;
        let file = pki.path("haproxy.cfg");
        std::fs::write(&file, configuration).unwrap();
        std::fs::write(pki.path("keygate.spoe"), engine).unwrap();
        Haproxy { address, program: Haproxy::run(&file, address) }
    }
}

impl Haproxy {
    fn run(configuration: &Path, address: SocketAddr) -> Program {
        let mut command = Command::new("haproxy");
        command.arg("-db").arg("-f").arg(configuration);
        Program::start(&mut command).listening_on(address)
    }
}
