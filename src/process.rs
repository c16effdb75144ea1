//! The process and its machine: its lifecycle, its heap, heartbeats and supervision of threads, the
//! kernel's sandbox, the service manager, inherited sockets.
//!
//! Nothing here handles HTTP or TLS.

pub(crate) mod descriptors;
pub(crate) mod heap;
pub mod heartbeat;
pub mod inherited_sockets;
pub mod lifecycle;
pub(crate) mod memory_limit;
pub mod sandbox;
pub mod service_manager;
pub mod supervision;
