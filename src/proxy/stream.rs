//! One stream of HTTP/2, on either side of the proxy: a body that is received, one that is sent, and
//! bytes both ways.

mod duplex;
mod received;
mod sending;

pub(super) use self::duplex::Duplex;
pub(super) use self::received::Received;
pub(super) use self::sending::{Sending, Upload};
