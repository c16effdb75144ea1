//! The main job: a client with a good key gets its answer, one whose key is in the filter does not.

mod support;

use support::keygate::Keygate;
use support::origin::Origin;
use support::pki::{Kind, Pki};
use support::{said, write_filter};

#[test]
fn a_good_key_is_answered_and_a_lost_one_is_refused_in_the_handshake() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let (good, lost) = (pki.client("good", Kind::P256), pki.client("lost", Kind::P256));
    write_filter(&pki.path("lost.pkbf"), &[&lost.spki]);
    let keygate = Keygate::start(&pki, &origin, "");

    let answered = keygate.curl(&good, &[]);
    assert_eq!(answered.stdout, b"hello\n", "{}", said(&answered));
    assert!(origin.next().head.starts_with("GET / HTTP/1.1\r\n"));

    let refused = keygate.curl(&lost, &[]);
    assert!(said(&refused).contains("access denied"), "{}", said(&refused));
    assert_eq!(origin.untaken(), 0, "nothing of a refused client reaches the origin");
}
