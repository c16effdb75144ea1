//! Any bytes as an HTTP/1.1 response of an upstream, in pieces of any size: an error, or a response
//! that does not depend on the pieces. Bytes that follow belong to the next response.

#![no_main]

use keygate::fuzzing::response;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [size, is_head, bytes @ ..] = input else { return };
    let parsed = |bytes: &[u8], size| {
        let whole = response(bytes, size, is_head & 1 == 1).ok().flatten();
        whole.map(|(response, used)| {
            let (head, body) = response.into_parts();
            (head.status, head.headers, body, used)
        })
    };
    let at_once = parsed(bytes, usize::MAX);
    assert_eq!(parsed(bytes, usize::from(*size)), at_once);
    if let Some((_, _, _, used)) = &at_once {
        assert!(*used <= bytes.len());
        assert_eq!(parsed(&bytes[..*used], 1), at_once, "it ends where it says");
    }
});
