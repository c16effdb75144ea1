//! Third-party programs that run beside the proxy until the test ends, and ports for them.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use super::wait::wait_for;
use super::{skip, system};

/// A program that runs until it is dropped.
pub struct Program {
    child: Child,
}

impl Program {
    pub fn start(command: &mut Command) -> Self {
        let name = command.get_program().to_owned();
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self {
            child: child.unwrap_or_else(|error| panic!("{} is needed: {error}", name.display())),
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends `STOP` or `CONT`, for example.
    pub fn signal(&self, signal: &str) {
        let killed = system("kill", &["-s", signal, &self.id().to_string()]);
        assert!(killed.status.success());
    }

    /// Waits until the program accepts connections on `address`.
    pub fn listening_on(mut self, address: SocketAddr) -> Self {
        wait_for(&format!("a listener on {address}"), || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the program for {address} ended: {ended:?}");
            TcpStream::connect(address).map_err(|error| error.to_string())
        });
        self
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// Ports below the range from which Linux takes ports for `bind(0)` and for outgoing connections
/// (`net.ipv4.ip_local_port_range`, 32768 by default).
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// Ports in the documents. Tests replace them as text, so that no reserved port may contain one.
const DOCUMENTED: [&str; 6] = ["8080", "8081", "8443", "9191", "9443", "9464"];

/// Abstract sockets that reserve ports, until this process ends.
static RESERVED: Mutex<(u16, Vec<UnixListener>)> = Mutex::new((0, Vec::new()));

/// An address on loopback that nothing listens on, for programs that cannot be given a socket.
///
/// The port is reserved for this process: an abstract Unix socket with its number, in the same
/// network namespace, shows other test processes that the port is in use.
pub fn reserved_address() -> SocketAddr {
    let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    let (next, locks) = &mut *reserved;
    if *next == 0 {
        // Processes begin at different ports, so that a port that was just closed rests for a
        // while.
        let spread = std::process::id() * 97 % u32::from(PORTS.end - PORTS.start);
        *next = PORTS.start + u16::try_from(spread).unwrap();
    }
    for _ in PORTS {
        let port = *next;
        let digits = port.to_string();
        *next = if port + 1 == PORTS.end { PORTS.start } else { port + 1 };
        if DOCUMENTED.iter().any(|documented| digits.contains(documented)) {
            continue;
        }
        let name =
            std::os::unix::net::SocketAddr::from_abstract_name(format!("keygate-test-port-{port}"));
        let Ok(lock) = UnixListener::bind_addr(&name.unwrap()) else { continue };
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            locks.push(lock);
            return listener.local_addr().unwrap();
        }
    }
    panic!("no free port in {PORTS:?}");
}

/// The keys with which badkeys is tested, which are in its source package and not part of this
/// project; `None` skips the test.
pub fn keys_of_badkeys() -> Option<PathBuf> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = project.join("target/python/badkeys-source/tests/data");
    let missing = "no source of badkeys in target/python: scripts/install-test-packages tests";
    (!skip::unless(directory.is_dir(), missing)).then_some(directory)
}

/// The Python interpreter that has `modules`; `None` skips the test.
pub fn python_with(modules: &str) -> Option<&'static str> {
    let code = format!("import {modules}");
    let has = |python: &&str| {
        let run = Command::new(python).args(["-c", &code]).stderr(Stdio::null()).status();
        run.is_ok_and(|status| status.success())
    };
    // The virtual environment for modules that Debian has no package of comes first.
    let pythons = ["target/python/bin/python3", "python3", "/usr/bin/python3"];
    let found = pythons.into_iter().find(has);
    skip::unless(found.is_some(), &format!("no python3 has the modules {modules}"));
    found
}
