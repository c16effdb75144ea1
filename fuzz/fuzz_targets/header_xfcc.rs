//! Any bytes as `X-Forwarded-Client-Cert`: an error, or the certificates of its only `Cert` or
//! `Chain`. An element or a pair that follows never changes them.

#![no_main]

use keygate::dialect::{ChainLength, MalformedValue, escaped_pem, xfcc};
use keygate_core::tls::MAX_CERTIFICATES;
use libfuzzer_sys::fuzz_target;

/// An element with the certificate of another client.
const OTHER: &[u8] = include_bytes!("../../tests/vectors/dialect/envoy.xfcc");

fuzz_target!(|input: &[u8]| {
    let read = xfcc::read(input);
    // Text that the holder of a certificate appends by the names in it.
    for separator in [b',', b';'] {
        let injected = xfcc::read(&[input, &[separator], OTHER].concat());
        match (&read, injected) {
            (Ok(_), Ok(_)) => panic!("a second element or pair was read"),
            (Ok(_), Err(error)) => assert!(matches!(
                error,
                MalformedValue::CHAIN_OF_ANOTHER
                    | MalformedValue::REPEATED_KEY
                    | MalformedValue::SECOND_ELEMENT
                    | MalformedValue::XFCC_SYNTAX
            )),
            (Err(_), _) => {}
        }
    }
    let Ok(chain) = read else { return };
    assert!((1..=MAX_CERTIFICATES).contains(&chain.len()));
    // The certificates come from a value, with or without quotes.
    let parts = input.split(|byte| b"\";".contains(byte));
    let values = parts.flat_map(|it| [it, it.splitn(2, |byte| *byte == b'=').last().unwrap()]);
    let read: Vec<_> =
        values.filter_map(|it| escaped_pem::read(it, ChainLength::Any).ok()).collect();
    assert!(read.contains(&chain));
});
