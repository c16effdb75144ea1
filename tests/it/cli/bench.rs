//! A directory, and the runs of one subcommand of keygate in it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::keygate::BINARY;
use crate::support::output_text;

/// A directory, in which `keygate SUBCOMMAND` runs.
pub(super) struct Bench {
    directory: tempfile::TempDir,
    subcommand: &'static str,
}

impl Bench {
    pub(super) fn new(subcommand: &'static str) -> Self {
        Self { directory: tempfile::tempdir().unwrap(), subcommand }
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.current_dir(self.directory()).arg(self.subcommand).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the subcommand, which must end with `code`.
    pub(super) fn run(&self, code: i32, arguments: &[&str]) -> Output {
        let output = self.command(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", output_text(&output));
        output
    }

    /// All that it writes on a terminal, which `script` gives it.
    pub(super) fn on_terminal(&self, arguments: &str) -> String {
        let command = format!("{BINARY} {} {arguments}", self.subcommand);
        let output = Command::new("script")
            .env("TERM", "xterm") // without a name of the terminal nothing is drawn
            .args(["-q", "-e", "-c", &command, "/dev/null"])
            .current_dir(self.directory())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The lines that it writes.
    pub(super) fn lines(&self, code: i32, arguments: &[&str]) -> Vec<String> {
        let output = self.run(code, arguments);
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    /// The lines of JSON that it writes.
    pub(super) fn json(&self, code: i32, arguments: &[&str]) -> Vec<Value> {
        let lines = self.lines(code, &[arguments, &["--json"]].concat());
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The errors that a command has written.
pub(super) fn problem(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
