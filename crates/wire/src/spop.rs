//! SPOP 2.0, HAProxy's Stream Processing Offload Protocol, as an agent speaks it.
//!
//! Source: HAProxy, `doc/SPOE.txt`, section 3.

pub mod frame;
pub mod hello;
pub mod value;
