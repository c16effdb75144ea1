//! Any bytes as a PROXY header: an error, or an address, and no byte after the header is used.

#![no_main]

use keygate::fuzzing::proxy_header;
use libfuzzer_sys::fuzz_target;

/// Maximum length of a header, in bytes.
const MAX: usize = 4096;

fuzz_target!(|input: &[u8]| {
    let Ok((address, length)) = proxy_header(input) else { return };
    assert!(length <= input.len().min(MAX));
    assert_eq!(proxy_header(&input[..length]).unwrap(), (address, length));
    assert!(proxy_header(&input[..length - 1]).is_err(), "a part of a header");
});
