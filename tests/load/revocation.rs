//! Revocation lists of a large CA are replaced under full load.
//!
//! The lists have 100,000 entries, or as many as `KEYGATE_TEST_CRL_ENTRIES` says.

use std::fs::{rename, write};

use crate::support::keygate::Keygate;
use crate::support::load::Load;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki, RevocationList};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, write_filter};

/// Responses that clients get between two replacements.
const RESPONSES_BETWEEN: usize = 200;

fn entries() -> u64 {
    std::env::var("KEYGATE_TEST_CRL_ENTRIES").map_or(100_000, |entries| entries.parse().unwrap())
}

#[test]
fn a_list_of_many_certificates_is_replaced_under_load() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let [good, revoked] = ["good", "revoked"].map(|name| pki.client(name, Kind::P256));
    write_filter(&pki.path("lost.pkbf"), &[]);
    pki.crl_with("clients.crl", &RevocationList::new(1, &[]));
    let text = Configuration::new(origin.address()).client_auth("crls = [\"clients.crl\"]");
    let keygate = text.start(&pki);
    admits(&keygate, &revoked);
    let load = Load::start(keygate.address(), &pki, &good);
    load.wait_for(RESPONSES_BETWEEN);
    for number in 2..5 {
        let all = [&revoked];
        let parties = if number % 2 == 0 { &all[..] } else { &[] };
        let list = pki.large_crl(&RevocationList::new(number, parties), entries());
        write(pki.path("next.crl"), list).unwrap();
        rename(pki.path("next.crl"), pki.path("clients.crl")).unwrap();
        keygate.wait_for_generation(number);
        if parties.is_empty() {
            admits(&keygate, &revoked);
        } else {
            let response = output_text(&keygate.curl(&revoked, &[]));
            assert!(response.contains("certificate revoked"), "{response}");
        }
        load.wait_for(RESPONSES_BETWEEN);
        let count = keygate.metric("keygate_crl_entries{service=\"test\"}");
        assert!(count > entries() as f64, "{count}");
    }
    assert_eq!(load.failures(), Vec::<String>::new());
}

fn admits(keygate: &Keygate, client: &Party) {
    let response = keygate.curl(client, &[]);
    assert_eq!(response.stdout, b"hello\n", "{}: {}", client.name, output_text(&response));
}
