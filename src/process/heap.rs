//! The heap of the C library.

use std::hint::black_box;

/// Size of the block that [`keep_freed_memory`] frees, in bytes. glibc then keeps up to twice as
/// much free memory at the end of a thread's heap: 8 MiB instead of 256 KiB.
const BLOCK: usize = 4 << 20;

/// Raises the amount of free memory that glibc keeps at the end of a heap, before threads start.
///
/// The memory of bodies is allocated and freed with every read of a busy connection. With 256 KiB,
/// a worker returned it to the kernel and faulted it in again: up to 220 page faults for 1 MiB of
/// an HTTP/2 upload, and a quarter of the CPU time. glibc raises its thresholds to the size of a
/// block that was mapped on its own and freed (`mallopt(3)`, `M_MMAP_THRESHOLD`), so that no call
/// of `mallopt` is needed. An operator's `MALLOC_TRIM_THRESHOLD_` takes precedence. Other C
/// libraries only allocate and free the block.
pub(crate) fn keep_freed_memory() {
    drop(black_box(Vec::<u8>::with_capacity(BLOCK)));
}

#[cfg(test)]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    /// Page faults of this thread that needed no disk.
    fn page_faults() -> usize {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split(' ').nth(7).unwrap().parse().unwrap()
    }

    /// Allocates 1 MiB in pieces of 16 KiB, writes to it, and frees it.
    fn use_memory() {
        let pieces: Vec<Vec<u8>> = (0..64).map(|_| black_box(vec![1; 16 << 10])).collect();
        drop(pieces);
    }

    #[test]
    fn memory_that_a_worker_frees_is_not_faulted_in_again() {
        keep_freed_memory();
        let faults = std::thread::spawn(|| {
            use_memory();
            let before = page_faults();
            (0..100).for_each(|_| use_memory());
            page_faults() - before
        });
        let faults = faults.join().unwrap();
        assert!(faults < 6_400, "{faults} page faults while 6,400 pieces of 4 pages were used");
    }
}
