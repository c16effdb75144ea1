//! Tasks of hyper on the thread of their connection.

/// Runs hyper's tasks where their connection runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct OnThisThread;

impl<F: Future<Output: 'static> + 'static> hyper::rt::Executor<F> for OnThisThread {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}
