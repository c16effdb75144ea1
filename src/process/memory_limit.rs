//! The memory that the process may use: the limit of its cgroup (version 1 or 2), else the memory
//! of the machine.

use std::fs::read_to_string;
use std::path::Path;

use crate::config::Config;

/// The part of the memory that is for buffers: one half. The rest is for the state of connections,
/// fragmentation, and the socket buffers that the kernel counts.
const BUFFER_PART: u64 = 2;
/// Minimum for each worker, 8 MiB: less would stop the traffic of a few clients. All workers together
/// get a quarter of a small memory at most.
const MIN_FOR_WORKER: u64 = 8 << 20;
/// The limit if the kernel tells none, 1 GiB.
const UNKNOWN: u64 = 1 << 30;
/// Limits of so many bytes are none: version 1 tells the largest number of pages for no limit, 2^63
/// bytes less one page.
const NO_LIMIT: u64 = 1 << 62;

/// Maximum bytes that each worker buffers for its clients. A filter or list takes twice the size of
/// its file while it is replaced.
pub(crate) fn buffers_of_worker(config: &Config) -> usize {
    let workers = config.workers.get() as u64;
    let for_worker = config.max_buffered.map(|bytes| bytes / workers).unwrap_or_else(|| {
        let paths = config.filters.iter().map(|it| &it.path);
        let paths = paths.chain(config.lists.iter().map(|it| &it.path));
        let files: u64 = paths.filter_map(|path| Some(path.metadata().ok()?.len())).sum();
        buffers(memory_limit(), files, workers)
    });
    usize::try_from(for_worker).unwrap_or(usize::MAX)
}

fn buffers(memory: u64, files: u64, workers: u64) -> u64 {
    let free = memory.saturating_sub(files.saturating_mul(2));
    (free / BUFFER_PART / workers).max(MIN_FOR_WORKER.min(memory / 4 / workers))
}

/// The memory that the process may use, in bytes.
pub(crate) fn memory_limit() -> u64 {
    let cgroups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let machine = read_to_string("/proc/meminfo").unwrap_or_default();
    smallest(Path::new("/sys/fs/cgroup"), &cgroups, &machine)
}

/// The smallest of the limits of `cgroups`, and of the memory in `machine`, the text of
/// `/proc/meminfo`.
fn smallest(root: &Path, cgroups: &str, machine: &str) -> u64 {
    let memory = machine.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let memory = memory.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let machine = memory.map(|kib| kib.saturating_mul(1024));
    smallest_limit(root, cgroups).into_iter().chain(machine).min().unwrap_or(UNKNOWN)
}

/// The smallest limit of the cgroups in `cgroups`, the text of `/proc/self/cgroup`, and of their
/// ancestors. In a container, only the last ancestor may be visible.
fn smallest_limit(root: &Path, cgroups: &str) -> Option<u64> {
    let limits = cgroups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or_default(), fields.next());
        let (root, file) = if controllers.is_empty() {
            (root.to_owned(), "memory.max")
        } else {
            (root.join("memory"), "memory.limit_in_bytes")
        };
        let is_of_memory = controllers.split(',').any(|it| it.is_empty() || it == "memory");
        let path =
            path.filter(|_| is_of_memory).map(|path| Path::new(path.trim_start_matches('/')));
        let directories: Vec<_> =
            path.into_iter().flat_map(Path::ancestors).map(|it| root.join(it).join(file)).collect();
        directories.into_iter().filter_map(|file| read_to_string(file).ok()?.trim().parse().ok())
    });
    limits.filter(|limit| *limit < NO_LIMIT).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimum_of_many_workers_stays_within_a_small_memory() {
        let of_all = |memory, files, workers| (buffers(memory, files, workers) * workers) >> 20;
        assert_eq!(of_all(512 << 20, 0, 4), 256);
        assert_eq!(of_all(512 << 20, 250 << 20, 4), 32);
        assert_eq!(of_all(64 << 20, 60 << 20, 32), 16);
    }

    #[test]
    fn the_smallest_limit_of_all_ancestors_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let limit = |cgroups: &str| smallest_limit(root.path(), cgroups);
        let smallest =
            |cgroups| smallest(root.path(), cgroups, "MemTotal:  24684084 kB\nMemFree: 1 kB");
        assert_eq!(limit("0::/pod/container\n"), None);
        write("memory.max", "max\n");
        write("pod/memory.max", "536870912\n");
        write("pod/container/memory.max", "max\n");
        assert_eq!(limit("0::/pod/container\n"), Some(512 << 20));
        assert_eq!(limit("0::/\n"), None);
        assert_eq!(smallest("0::/pod/container\n"), 512 << 20);
        assert_eq!(smallest("0::/\n"), 24_684_084 << 10);
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/docker/id/memory.limit_in_bytes", "268435456\n");
        let version1 = "12:cpu,cpuacct:/docker/id\n4:memory:/docker/id\n0::/\n";
        assert_eq!(limit(version1), Some(256 << 20));
        let unlimited = "4:memory:/docker/unseen\n";
        assert_eq!(limit(unlimited), None);
        assert_eq!(smallest(unlimited), 24_684_084 << 10);
        assert_eq!(super::smallest(root.path(), unlimited, "nonsense"), UNKNOWN);
        assert_eq!(smallest(version1), 256 << 20);
        assert_eq!(limit("nonsense"), None);
    }
}
