//! The process and its host: the kernel's sandbox, the service manager, inherited sockets.
//!
//! Nothing here handles HTTP or TLS.

pub mod inherited_sockets;
pub mod sandbox;
pub mod service_manager;
