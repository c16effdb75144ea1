//! Any bytes as an input with keys, in pieces of any size. The findings are the same as for one
//! piece, there is at least one, and every key has its encodings.

#![no_main]

use keygate::spki::{Algorithm, Fingerprint, KeyScanner, for_each_point_form, keys_in, related};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (size, input) = input;
    let whole = keys_in(input);
    assert!(!whole.is_empty(), "no input is passed over in silence");
    let mut findings = Vec::new();
    let mut scanner = KeyScanner::new();
    for piece in input.chunks(usize::from(size) + 1) {
        scanner.push(piece, &mut |finding| findings.push(finding));
    }
    scanner.finish(&mut |finding| findings.push(finding));
    assert_eq!(format!("{findings:?}"), format!("{whole:?}"));

    for finding in whole {
        match finding.key {
            Ok(spki) => {
                let encodings = related(&spki);
                assert_eq!(encodings[0].1, spki, "as presented comes first");
                let mut forms = 0;
                for_each_point_form(&spki, |_| forms += 1);
                assert!((1..=2).contains(&forms));
                let _ = (Algorithm::of(&spki).to_string(), Fingerprint::of(&spki).to_string());
            }
            Err(error) => {
                let message = error.to_string();
                assert!(message.len() < 600 && !message.contains(char::is_control), "{message:?}");
            }
        }
    }
});
