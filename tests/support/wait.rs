//! Waiting for a condition that no event announces: a pause between two looks, and a deadline.
//! Repeats of a test whose time has passed because the machine has paused.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

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

/// Time for which the proxy reads what a rejected client still sends.
const LINGER: Duration = Duration::from_secs(2);

/// Whether the machine has paused for longer than a lingering close since `began`. The connection
/// of a rejected client is closed then. Linux keeps the alert for a later read, but the next write
/// but one fails, and clients that fail to write do not read.
pub fn has_outlasted_linger(began: Instant) -> bool {
    began.elapsed() >= LINGER
}

/// Calls `exchange`, whose client reads its alert while it sends, until it succeeds. A failure
/// within the time of the lingering close is final.
///
/// # Panics
/// Panics with the error of `exchange`.
pub fn read_alert(exchange: impl Fn() -> Result<(), String>) {
    wait_for("an exchange without a pause", || {
        let began = Instant::now();
        exchange().inspect_err(|error| assert!(has_outlasted_linger(began), "{error}"))
    });
}

/// Longest time for [`before`]. The rest of a test waits for its end, with [`TIMEOUT`].
const LONGEST: Duration = Duration::from_secs(40);

/// Calls `begin` with a time that is `lasts` away, such as the expiry of a certificate. Returns
/// that time, and the result of `begin`.
///
/// If the time has come before `begin` is done, or within a second after it, the machine was too
/// slow: `begin` is called again with a time twice as far away. Times in certificates are whole
/// seconds.
///
/// # Panics
/// Panics if `begin` panics before the time, or if the longest time was too short.
pub fn before<T>(mut lasts: Duration, begin: impl Fn(SystemTime) -> T) -> (SystemTime, T) {
    loop {
        let ends = SystemTime::now() + lasts;
        let begun = catch_unwind(AssertUnwindSafe(|| begin(ends)));
        let was_in_time = SystemTime::now() + Duration::from_secs(1) < ends;
        match begun {
            Ok(begun) if was_in_time => return (ends, begun),
            Err(panic) if was_in_time => resume_unwind(panic),
            Ok(_) | Err(_) => {}
        }
        lasts *= 2;
        assert!(lasts <= LONGEST, "the machine is too slow for this test");
    }
}
