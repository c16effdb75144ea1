//! Any bytes as an input with keys, in pieces of any size. The findings are the same as for one
//! piece, there is at least one, and every key has its encodings. A PKCS #12 store is read with a
//! passphrase.

#![no_main]

use keygate_core::spki::{
    Algorithm, Fingerprint, InputError, KeyScanner, for_each_point_form, keys_in, related,
};
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

    let keys = whole.into_iter().flat_map(|finding| match finding.key {
        // More than 65,535 iterations only take time.
        Err(InputError::Passphrase(store)) if !has_long_integer(input) => store.keys("secret"),
        key => vec![key],
    });
    for key in keys {
        match key {
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

fn has_long_integer(input: &[u8]) -> bool {
    input.windows(2).any(|window| window[0] == 2 && (3..=8).contains(&window[1]))
}
