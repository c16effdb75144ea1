//! Any bytes as a PROXY header: an error, or an address, and no byte after the header is used.

#![no_main]

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use keygate_wire::proxy_header;
use libfuzzer_sys::fuzz_target;

/// Maximum length of a header, in bytes.
const MAX: usize = 4096;

fuzz_target!(|input: &[u8]| {
    let Ok((address, length)) = read(input) else { return };
    assert!(length <= input.len().min(MAX));
    assert_eq!(read(&input[..length]).unwrap(), (address, length));
    assert!(read(&input[..length - 1]).is_err(), "a part of a header");
});

/// The address in the header at the beginning of `bytes`, and the length of the header.
fn read(bytes: &[u8]) -> io::Result<(Option<SocketAddr>, usize)> {
    let mut rest = bytes;
    let mut context = Context::from_waker(Waker::noop());
    let Poll::Ready(address) = pin!(proxy_header::read(&mut rest)).poll(&mut context) else {
        panic!("it waits although all bytes are there");
    };
    Ok((address?, bytes.len() - rest.len()))
}
