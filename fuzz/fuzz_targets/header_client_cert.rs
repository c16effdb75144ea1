//! Any bytes as `Client-Cert` and as `Client-Cert-Chain`: an error, or certificates whose only form
//! the input is, but for the white space around the commas of the chain.

#![no_main]

use data_encoding::BASE64;
use keygate::dialect::{Chain, client_cert};
use keygate_core::spki;
use keygate_core::tls::MAX_CERTIFICATES;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Ok(leaf) = client_cert::read(input) {
        let base64 = leaf.as_ref().map(|it| BASE64.encode(it)).unwrap_or_default();
        assert_eq!(format!(":{base64}:").as_bytes(), input);
        assert!(leaf.is_none_or(|it| spki::of_certificate(&it).is_ok()));
    }
    let mut chain = Chain::new();
    if client_cert::read_chain(input, &mut chain).is_ok() {
        assert!((1..=MAX_CERTIFICATES).contains(&chain.len()));
        assert!(chain.iter().all(|certificate| spki::of_certificate(certificate).is_ok()));
        let members: Vec<_> = chain.iter().map(|it| format!(":{}:", BASE64.encode(it))).collect();
        let input: Vec<_> = input.iter().copied().filter(|it| !it.is_ascii_whitespace()).collect();
        assert_eq!(members.join(",").as_bytes(), input);
    }
});
