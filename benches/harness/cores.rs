//! The cores of the processes of a benchmark.

use std::process::{Command, Stdio};

/// Where the processes run.
#[derive(Debug, Clone, Copy)]
pub struct Cores {
    /// Workers of a proxy.
    pub workers: usize,
}

/// The core of proxies, and the core of the origin and the load, as `taskset` takes them.
pub const PROXY_CORE: &str = "0";
pub const LOAD_CORE: &str = "1";

impl Cores {
    /// `program` on the core of proxies, unless they have more than one.
    pub fn of_proxy(self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        if self.is_pinned() { on_core(PROXY_CORE, program) } else { Command::new(program) }
    }

    /// `program` on the core of the load, unless proxies have more than one.
    pub fn of_load(self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        if self.is_pinned() { on_core(LOAD_CORE, program) } else { Command::new(program) }
    }

    /// Pins this process, whose only thread is the one that drives the load.
    pub fn pin_this_process(self) {
        if self.is_pinned() {
            pin_this_process_to(LOAD_CORE);
        }
    }

    fn is_pinned(self) -> bool {
        self.workers == 1
    }
}

/// `program` on this core.
pub fn on_core(core: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", core]).arg(program);
    command
}

/// Moves all threads of this process to a core. Programs that it starts from now on run there.
pub fn pin_this_process_to(core: &str) {
    let pid = std::process::id().to_string();
    let mut command = Command::new("taskset");
    command.args(["--all-tasks", "--cpu-list", "--pid", core, &pid]).stdout(Stdio::null());
    assert!(command.status().unwrap().success(), "taskset");
}
