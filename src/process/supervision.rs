//! Threads that the process cannot do without: if one of them fails, the process ends.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};

use tokio::sync::watch;

/// Starts threads, and reports the first one that failed.
#[derive(Debug, Clone, Default)]
pub struct Supervisor(watch::Sender<Option<String>>);

impl Supervisor {
    /// Starts a thread with this name. A panic of it is a failure.
    ///
    /// # Errors
    /// Returns an error if the operating system refuses a thread.
    pub fn spawn(
        &self,
        name: String,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let supervisor = self.clone();
        Builder::new().name(name.clone()).spawn(move || {
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                supervisor.report(name);
            }
        })
    }

    /// Reports that the thread with this name has failed.
    pub fn report(&self, name: String) {
        self.0.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(name);
            is_first
        });
    }

    /// Waits until a thread has failed, and returns its name.
    pub async fn failed(&self) -> String {
        let mut failed = self.0.subscribe();
        loop {
            if let Some(name) = &*failed.borrow_and_update() {
                return name.clone();
            }
            let _ = failed.changed().await; // cannot fail, because `self` has the sender
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_thread_that_panics_is_reported_and_one_that_ends_is_not() {
        let supervisor = Supervisor::default();
        supervisor.spawn("ends".to_owned(), || {}).unwrap().join().unwrap();
        let panics = || std::panic::resume_unwind(Box::new("a bug"));
        supervisor.spawn("panics".to_owned(), panics).unwrap();
        assert_eq!(supervisor.failed().await, "panics");
        supervisor.report("another".to_owned());
        assert_eq!(supervisor.failed().await, "panics", "the first one is the cause");
    }
}
