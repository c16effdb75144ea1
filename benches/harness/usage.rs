//! The CPU time and the memory of a process with all its descendants, from `/proc`.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

/// The length of a tick in `/proc/PID/stat`: `USER_HZ` is 100 on every architecture of Rust's
/// Linux targets (proc_pid_stat(5)).
const TICK: Duration = Duration::from_millis(10);

/// The CPU time and the memory of a tree of processes.
pub struct Usage {
    /// User and system time, terminated children included.
    pub cpu: Duration,
    /// Resident memory in bytes. A page that processes share counts in equal parts.
    pub resident: u64,
}

impl Usage {
    /// The usage of the process `root` and its descendants.
    pub fn of(root: u32) -> Self {
        let mut children = HashMap::<u32, Vec<u32>>::new();
        let mut ticks = HashMap::new();
        for entry in fs::read_dir("/proc").unwrap() {
            let name = entry.unwrap().file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            // A process may end at any time.
            let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
            let stat = Stat::parse(&stat);
            children.entry(stat.parent).or_default().push(pid);
            ticks.insert(pid, stat.ticks);
        }
        let mut usage = Self { cpu: Duration::ZERO, resident: 0 };
        let mut open = vec![root];
        while let Some(pid) = open.pop() {
            usage.cpu += TICK * ticks.get(&pid).copied().unwrap_or_default();
            usage.resident += resident(pid);
            open.extend(children.remove(&pid).unwrap_or_default());
        }
        usage
    }
}

struct Stat {
    parent: u32,
    ticks: u32,
}

impl Stat {
    fn parse(stat: &str) -> Self {
        // The name of the program, in parentheses, may contain spaces and parentheses.
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let fields: Vec<_> = fields.split_whitespace().collect();
        let number = |index: usize| fields[index].parse::<u32>().unwrap();
        Self { parent: number(1), ticks: (11..15).map(number).sum() }
    }
}

fn resident(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kibibytes.unwrap_or_default() * 1024
}

/// The CPU time of all threads of a process until now, in nanoseconds.
pub fn cpu(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let spent = tasks.map(|task| {
        let times = fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
        times.split(' ').next().unwrap().parse::<u64>().unwrap()
    });
    Duration::from_nanos(spent.sum())
}
