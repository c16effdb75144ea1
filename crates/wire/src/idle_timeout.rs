//! The timeout of a body whose peer sends or takes nothing.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::{Sleep, sleep_until};

/// A timeout between two pieces of a body. Its timer is created at the first wait, and reset only
/// when it fires.
#[derive(Debug)]
pub struct IdleTimeout {
    timeout: Duration,
    /// Start of the current wait.
    since: Option<Instant>,
    /// A deadline for the whole body.
    deadline: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl IdleTimeout {
    /// A timeout with no wait begun and no deadline.
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, since: None, deadline: None, timer: None }
    }

    /// The same timeout and deadline, with no wait begun.
    pub fn restarted(&self) -> Self {
        Self { deadline: self.deadline, ..Self::new(self.timeout) }
    }

    /// Sets a deadline that progress does not move.
    pub fn with_deadline(self, deadline: Option<Instant>) -> Self {
        Self { deadline, ..self }
    }

    /// Ends the current wait: a piece has moved.
    pub fn reset(&mut self) {
        self.since = None;
    }

    /// Begins or continues a wait; ready when it has lasted for the timeout, or at the deadline.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let due = *self.since.get_or_insert_with(Instant::now) + self.timeout;
        let due = self.deadline.map_or(due, |deadline| deadline.min(due));
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due.into())));
        while timer.as_mut().poll(context).is_ready() {
            if timer.deadline() >= due.into() {
                return Poll::Ready(());
            }
            timer.as_mut().reset(due.into());
        }
        Poll::Pending
    }
}
