//! Faults in the system calls of a running proxy, by strace.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// strace, attached to all threads of a process. The faults end when it is dropped.
pub struct Strace(Child);

impl Strace {
    /// Applies `fault`, such as `error=EIO`, to each of the `calls` with one of the `paths`.
    pub fn attach(pid: u32, calls: &str, fault: &str, paths: &[&Path]) -> Self {
        let mut command = Command::new("strace");
        command.args(["-f", "-o", "/dev/null", "-p", &pid.to_string()]);
        command.args(["-e", &format!("trace={calls}"), "-e", &format!("inject={calls}:{fault}")]);
        for path in paths {
            command.arg("-P").arg(path);
        }
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("attached") {
            line.clear();
            assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "strace did not attach");
        }
        // strace must be able to write about further threads.
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        Self(child)
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        // On SIGTERM strace detaches, and calls in progress continue.
        let killed = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
        assert!(killed.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}
