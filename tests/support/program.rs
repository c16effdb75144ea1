//! Programs of others that tests run beside the proxy, and end with them.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::PATIENCE;

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

    /// Waits until something accepts connections there: no program here says when it does.
    pub fn listening_on(self, address: SocketAddr) -> Self {
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "nobody listens on {address}");
            std::thread::yield_now();
        }
        self
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// An address that nobody listens on; for programs that cannot be given a socket.
pub fn free_address() -> SocketAddr {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap()
}

/// Whether a program is there. Without it the test that needs it is skipped, with a message; under
/// CI it must be there.
pub fn has(program: &str) -> bool {
    has_by(program, Command::new("which").arg(program))
}

/// The same for modules of Python; returns the interpreter that has them.
pub fn python_with(modules: &str) -> Option<&'static str> {
    let code = format!("import {modules}");
    let has = |python: &&str| {
        let run = Command::new(python).args(["-c", &code]).stderr(Stdio::null()).status();
        run.is_ok_and(|status| status.success())
    };
    // The first where .ci/run puts what Debian has no package of.
    let pythons = ["target/python/bin/python3", "python3", "/usr/bin/python3"];
    let found = pythons.into_iter().find(has);
    if found.is_none() {
        has_by(&format!("python3 with {modules}"), &mut Command::new("false"));
    }
    found
}

fn has_by(what: &str, command: &mut Command) -> bool {
    let found = command.stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if !found {
        assert!(std::env::var_os("CI").is_none(), "{what} is not there; see the README");
        eprintln!("skipped: {what} is not there; the README says how to install it");
    }
    found
}
