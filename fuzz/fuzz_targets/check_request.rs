//! Any bytes as the stream of a call to `Authorization/Check`, in pieces of any size: a denial, or
//! the certificates of the configured attribute. The pieces make no difference, and bytes that
//! follow the message are a denial.

#![no_main]

use keygate::ask::grpc::certificates;
use keygate_core::tls::MAX_CERTIFICATES;
use libfuzzer_sys::fuzz_target;

/// Less than the longest input, so that the limit is reached.
const MAX_MESSAGE_SIZE: usize = 4096;

fuzz_target!(|input: &[u8]| {
    let Some((size, stream)) = input.split_first() else { return };
    // A prefix that fits, so that most inputs are about the message.
    let length = u32::try_from(stream.len()).unwrap_or(u32::MAX).to_be_bytes();
    let whole = [&[0], &length[..], stream].concat();
    for stream in [stream, &whole] {
        for from_xfcc in [false, true] {
            let read =
                |size, stream: &[u8]| certificates(stream, size, from_xfcc, MAX_MESSAGE_SIZE);
            let at_once = read(usize::MAX, stream);
            assert_eq!(read(usize::from(*size), stream), at_once);
            if at_once.is_ok() {
                assert!(stream.len() <= MAX_MESSAGE_SIZE + 5);
                assert!(read(usize::MAX, &[stream, b"\0"].concat()).is_err());
            }
            if let Ok(Some(chain)) = at_once {
                let max = if from_xfcc { MAX_CERTIFICATES } else { 1 };
                assert!((1..=max).contains(&chain.len()));
            }
        }
    }
});
