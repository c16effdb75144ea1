//! The lifecycle of the process, which all connections follow.

/// The phase of the process between its start and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifecycle {
    /// Accepts and serves, but `/readyz` fails, because an operator drains this instance. The only
    /// phase that ends in [`Lifecycle::Serving`] again.
    DrainedByOperator,
    /// Accepts no connection; requests in flight may finish.
    Draining,
    /// Accepts and serves, but `/readyz` fails, so that load balancers stop sending clients.
    NotReady,
    /// Accepts and serves.
    Serving,
    /// Closes every connection that is still open.
    Stopped,
}
