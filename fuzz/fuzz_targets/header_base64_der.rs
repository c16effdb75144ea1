//! Any bytes as DER in base64: an error, or certificates whose only form the input is.

#![no_main]

use data_encoding::BASE64;
use keygate::dialect::{ChainLength, base64_der};
use keygate_core::spki;
use keygate_core::tls::MAX_CERTIFICATES;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let one = base64_der::read(input, ChainLength::One);
    let Ok(chain) = base64_der::read(input, ChainLength::Any) else {
        return assert!(one.is_err());
    };
    assert_eq!(one.is_ok(), chain.len() == 1);
    assert!((1..=MAX_CERTIFICATES).contains(&chain.len()));
    assert!(chain.iter().all(|certificate| spki::of_certificate(certificate).is_ok()));
    let members: Vec<_> = chain.iter().map(|certificate| BASE64.encode(certificate)).collect();
    assert_eq!(members.join(",").as_bytes(), input);
});
