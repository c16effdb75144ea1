//! A time-out between two pieces of a body. Its timer is made when somebody waits for the first
//! time, and only looked at again when it rings.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::time::{Sleep, sleep_until};

/// Rings when nothing has moved for some time.
#[derive(Debug)]
pub(super) struct Stall {
    patience: Duration,
    /// Since when somebody has been waiting.
    since: Option<Instant>,
    /// Whatever moves, it rings then.
    end: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, since: None, end: None, timer: None }
    }

    /// The same, from now on.
    pub(super) fn anew(&self) -> Self {
        Self { end: self.end, ..Self::new(self.patience) }
    }

    /// The same, which rings at `end` in any case.
    pub(super) fn until(self, end: Option<Instant>) -> Self {
        Self { end, ..self }
    }

    /// Something has moved.
    pub(super) fn moved(&mut self) {
        self.since = None;
    }

    /// Ready once it has been waited for too long. Called while nothing moves.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let due = *self.since.get_or_insert_with(Instant::now) + self.patience;
        let due = self.end.map_or(due, |end| end.min(due));
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
