//! Threads of the proxy, stopped as by a debugger or failed by strace.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::keygate::Keygate;

/// The IDs of the worker threads.
pub fn workers(keygate: &Keygate) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", keygate.pid())).unwrap();
    let is_worker = |path: &PathBuf| {
        std::fs::read_to_string(path.join("comm")).unwrap().starts_with("keygate-worker")
    };
    let id = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    threads.map(|entry| entry.unwrap().path()).filter(is_worker).map(id).collect()
}

/// The names of all threads.
pub fn thread_names(keygate: &Keygate) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", keygate.pid())).unwrap();
    let name = |path: PathBuf| std::fs::read_to_string(path.join("comm")).unwrap();
    threads.map(|entry| name(entry.unwrap().path())).collect()
}

/// A thread that does not run until this is dropped. The other threads of its process run.
pub struct StoppedThread(Child);

impl StoppedThread {
    /// Stops the thread with this ID.
    pub fn stop(id: &str) -> Self {
        let stop = format!(
            "import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, {id}, 0, 0) != 0:
    raise OSError(ctypes.get_errno(), 'ptrace')
os.waitpid({id}, 0x40000000)
print('stopped', flush=True)
input()
libc.ptrace(17, {id}, 0, 0)"
        );
        let mut command = Command::new("python3");
        command.args(["-c", &stop]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut debugger = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(debugger.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "stopped\n");
        Self(debugger)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        let _ = self.0.stdin.take().map(|mut stdin| stdin.write_all(b"\n")); // it may have ended
        let _ = self.0.wait();
    }
}
