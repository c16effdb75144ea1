//! Any bytes as an HTTP/1 question of another proxy: an error, or a head whose length does not
//! depend on the bytes after it, and of which no shorter part is a head.

#![no_main]

use keygate::ask::request_lengths as question;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Ok(Some((length, body))) = question(input) else { return };
    assert!(length <= input.len());
    assert_eq!(question(&input[..length]), Ok(Some((length, body))));
    for shorter in 0..length {
        assert_eq!(question(&input[..shorter]), Ok(None), "{shorter} of {length}");
    }
});
