//! Any bytes from HAProxy over SPOP: the responses are whole frames of bounded length, and do not
//! depend on the pieces in which the bytes arrive.

#![no_main]

use keygate::ask::spop::responses;
use libfuzzer_sys::fuzz_target;

const ACK: u8 = 103;
/// Longest response to one frame, in bytes.
const MAX_RESPONSE: usize = 512;
/// Shortest frame with its length, in bytes.
const MIN_FRAME: usize = 4 + 7;

fuzz_target!(|input: &[u8]| {
    let Some((size, bytes)) = input.split_first() else { return };
    let whole = responses([bytes].into_iter());
    assert_eq!(whole, responses(bytes.chunks(usize::from(*size).max(1))));
    assert!(whole.len() <= (bytes.len() / MIN_FRAME + 1) * MAX_RESPONSE);
    let mut rest = whole.as_slice();
    while let Some((length, after)) = rest.split_first_chunk() {
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap();
        let (frame, after) = after.split_at(length);
        if frame[0] == ACK {
            assert!(frame.windows(6).any(|window| window == b"action"), "an ACK without action");
        }
        rest = after;
    }
    assert!(rest.is_empty(), "a part of a frame");
});
