//! Waiting for a condition that no event announces: a pause between two looks, and a deadline.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Deadline of every wait; long enough for a loaded machine. Only a test that fails takes so long.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Pause between two looks, so that a waiting test leaves the processor to the proxy.
const PAUSE: Duration = Duration::from_millis(10);

/// Calls `look` until it returns a value.
///
/// # Panics
/// Panics after [`TIMEOUT`] with `what` and the last error of `look`.
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Result<T, String>) -> T {
    wait_within(TIMEOUT, look)
        .unwrap_or_else(|error| panic!("timeout while waiting for {what}: {error}"))
}

/// Calls `look` until it returns a value; after `timeout` returns its last error.
pub fn wait_within<T>(
    timeout: Duration,
    mut look: impl FnMut() -> Result<T, String>,
) -> Result<T, String> {
    let deadline = Instant::now() + timeout;
    loop {
        let found = look();
        if found.is_ok() || Instant::now() >= deadline {
            return found;
        }
        sleep(PAUSE);
    }
}

/// Calls `is_met` until it returns true.
///
/// # Panics
/// Panics after [`TIMEOUT`] with `what`.
pub fn wait_until(what: &str, is_met: impl Fn() -> bool) {
    wait_for(what, || is_met().then_some(()).ok_or_else(|| "not yet".to_owned()));
}
