//! Threads that the process cannot do without: if one of them panics, the process ends.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};

use tokio::sync::watch;

/// Starts threads, and reports the first one that panicked.
#[derive(Debug, Clone, Default)]
pub struct Supervisor(watch::Sender<Option<String>>);

impl Supervisor {
    /// Starts a thread with this name.
    ///
    /// # Errors
    /// Returns an error if the operating system refuses a thread.
    pub fn spawn(
        &self,
        name: String,
        run: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let panicked = self.0.clone();
        Builder::new().name(name.clone()).spawn(move || {
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                panicked.send_if_modified(|first| first.replace(name).is_none());
            }
        })
    }

    /// Waits until a thread has panicked, and returns its name.
    pub async fn panicked(&self) -> String {
        let mut panicked = self.0.subscribe();
        loop {
            if let Some(name) = &*panicked.borrow_and_update() {
                return name.clone();
            }
            let _ = panicked.changed().await; // cannot fail, because `self` has the sender
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
        assert_eq!(supervisor.panicked().await, "panics");
    }
}
