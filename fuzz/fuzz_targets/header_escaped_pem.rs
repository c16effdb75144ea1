//! Any bytes as PEM in percent encoding: an error, or certificates whose PEM the input is, but for
//! line ends and for which bytes are escaped.

#![no_main]

use data_encoding::BASE64;
use keygate::dialect::{ChainLength, escaped_pem};
use keygate_core::spki;
use keygate_core::tls::MAX_CERTIFICATES;
use libfuzzer_sys::fuzz_target;

/// The bytes that `value` stands for. Nothing but an escape has a percent sign.
fn unescape(value: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = std::str::from_utf8(value).unwrap();
    while let Some((before, after)) = rest.split_once('%') {
        let (digits, after) = after.split_at(2);
        text.push_str(before);
        text.push(u8::from_str_radix(digits, 16).unwrap().into());
        rest = after;
    }
    text + rest
}

fuzz_target!(|input: &[u8]| {
    let one = escaped_pem::read(input, ChainLength::One);
    let Ok(chain) = escaped_pem::read(input, ChainLength::Any) else {
        return assert!(one.is_err());
    };
    assert_eq!(one.is_ok(), chain.len() == 1);
    assert!((1..=MAX_CERTIFICATES).contains(&chain.len()));
    assert!(chain.iter().all(|certificate| spki::of_certificate(certificate).is_ok()));
    let pem = chain.iter().map(|certificate| {
        let base64 = BASE64.encode(certificate);
        format!("-----BEGIN CERTIFICATE-----{base64}-----END CERTIFICATE-----")
    });
    assert_eq!(unescape(input).replace(['\r', '\n'], ""), pem.collect::<String>());
});
