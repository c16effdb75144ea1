//! The rate of the questions of a command.

use std::time::{Duration, Instant};

/// Questions at once before the rate applies, as for the proxy.
const BURST: f64 = 10.0;

/// Spaces out the questions to a URL.
#[derive(Debug)]
pub(super) struct Pace {
    /// Questions a second; `None` if there is no URL.
    rate: Option<u32>,
    tokens: f64,
    updated_at: Instant,
}

impl Pace {
    pub(super) fn new(rate: Option<u32>) -> Self {
        Self { rate, tokens: BURST, updated_at: Instant::now() }
    }

    /// Sleeps until this number of requests may be sent.
    pub(super) fn wait(&mut self, requests: usize) {
        let Some(rate) = self.rate.map(f64::from) else { return };
        let elapsed = self.updated_at.elapsed().as_secs_f64();
        let requests = u32::try_from(requests).map_or(BURST, f64::from);
        self.tokens = (self.tokens + elapsed * rate).min(BURST) - requests;
        self.updated_at = Instant::now();
        if self.tokens < 0.0 {
            std::thread::sleep(Duration::from_secs_f64(-self.tokens / rate));
        }
    }
}
