//! Requests on the way to a server ([`body`]) and the header fields of keygate ([`headers`]).

pub(crate) mod body;
pub(crate) mod headers;
