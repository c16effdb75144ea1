//! Every other encoding of a client's key in a filter refuses the client, over a real handshake.
//!
//! What holds this door is `for_each_related` in `src/spki/related.rs`: without the `visit` of a form,
//! the client whose key is in the filter in that form is admitted.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails where it stands"
)]

mod support;

use keygate::spki::{Encoding, related};

use support::keygate::Keygate;
use support::origin::Origin;
use support::pki::{Kind, Party, Pki};
use support::{said, write_filter};

#[test]
fn a_key_is_refused_in_whatever_encoding_the_filter_has_it() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let mut listed: Vec<(Party, Encoding, Vec<u8>)> = Vec::new();
    for kind in [Kind::P256, Kind::P384, Kind::P521, Kind::Rsa2048] {
        let forms = related(&pki.client("count", kind).spki).len();
        assert_eq!(forms, if kind == Kind::Rsa2048 { 2 } else { 4 });
        for form in 0..forms {
            let client = pki.client(&format!("{kind:?}-{form}"), kind);
            let (encoding, spki) = related(&client.spki).swap_remove(form);
            listed.push((client, encoding, spki));
        }
    }
    let spkis: Vec<&[u8]> = listed.iter().map(|(_, _, spki)| spki.as_slice()).collect();
    write_filter(&pki.path("lost.pkbf"), &spkis);
    let keygate = Keygate::start(&pki, &origin, "");
    for (client, encoding, _) in &listed {
        let answer = keygate.curl(client, &[]);
        let said = said(&answer);
        assert!(said.contains("access denied"), "{} {encoding:?}: {said}", client.name);
        keygate.wait_for("its line", |line| {
            line["message"] == "client key refused"
                && line["subject"] == format!("CN={}", client.name)
                && line["encoding"] == encoding.as_str()
        });
    }
    assert_eq!(keygate.curl(&pki.client("good", Kind::P256), &[]).stdout, b"hello\n");
    assert_eq!(origin.untaken(), 1);
}
