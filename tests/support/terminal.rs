//! A command on a terminal, which `script` makes.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use super::{TIMEOUT, skip, system};

/// A command that is killed when this is dropped.
pub struct Terminal {
    script: Child,
    keyboard: ChildStdin,
    screen: Receiver<String>,
    /// First the process ID of the command.
    shown: String,
}

impl Terminal {
    /// Starts a command of the shell; `None` skips the test.
    pub fn start(command: &str, directory: &Path) -> Option<Self> {
        if skip::without("script") {
            return None;
        }
        let mut script = Command::new("script")
            .env("TERM", "xterm") // without a name of the terminal no progress is drawn
            .args(["-qec", &format!("echo $$; exec {command}"), "/dev/null"])
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let keyboard = script.stdin.take().unwrap();
        let mut stdout = script.stdout.take().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            while let Ok(count @ 1..) = stdout.read(&mut bytes) {
                // Fails at the end of the test.
                let _ = sender.send(String::from_utf8_lossy(&bytes[..count]).into_owned());
            }
        });
        Some(Self { script, keyboard, screen, shown: String::new() })
    }

    /// Waits until the screen has shown `text`.
    pub fn wait_for(&mut self, text: &str) {
        while !self.shown.contains(text) {
            let more = self.screen.recv_timeout(TIMEOUT);
            self.shown += &more.unwrap_or_else(|_| panic!("no {text:?} in {:?}", self.shown));
        }
    }

    /// Types Ctrl-C.
    pub fn interrupt(&mut self) {
        self.keyboard.write_all(b"\x03").unwrap();
    }

    /// Waits for the end of the command.
    pub fn ended(mut self) -> ExitStatus {
        loop {
            match self.screen.recv_timeout(TIMEOUT) {
                Ok(more) => self.shown += &more,
                Err(RecvTimeoutError::Disconnected) => return self.script.wait().unwrap(),
                Err(RecvTimeoutError::Timeout) => panic!("no end: {:?}", self.shown),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The end of `script` is a SIGHUP, which means a reload.
        let id = self.shown.lines().next().filter(|id| id.parse::<u32>().is_ok());
        let has_ended = !matches!(self.script.try_wait(), Ok(None));
        id.filter(|_| !has_ended).map(|id| system("kill", &["-s", "KILL", id]));
        let _ = self.script.kill(); // it may have ended
        let _ = self.script.wait();
    }
}
