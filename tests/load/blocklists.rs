//! A badkeys blocklist as large as the published one is replaced under full load.

use crate::support::blocklist::Blocklist;
use crate::support::load::Load;
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, wait_until, write_filter};

/// Responses that clients get between two replacements.
const RESPONSES_BETWEEN: usize = 200;
/// Records of the list: 64 MB.
const RECORDS: u32 = 4_000_000;
/// Memory of the process that may grow during the test, besides the lists.
const OTHER_KIB: u64 = 16 << 10;

#[test]
fn a_blocklist_of_four_million_records_is_replaced_under_load() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let [good, leaked] = ["good", "leaked"].map(|name| pki.client(name, Kind::P256));
    write_filter(&pki.path("lost.pkbf"), &[]);
    let without = Blocklist::new(&[]).with_others(0, RECORDS);
    let [leaked_record] = Blocklist::new(&[(&leaked.spki, 1)]).records.try_into().unwrap();
    let mut with = without.clone();
    let place = with.records.partition_point(|record| *record < leaked_record);
    with.records.insert(place, leaked_record);
    without.write(pki.directory());
    let list = "[[lists]]\nname = \"badkeys\"\nformat = \"badkeys\"\npath = \"blocklist.dat\"\n";
    let keygate = Configuration::new(origin.address()).global(list).start(&pki);
    // Without a connection, a worker has no other reason to look at the snapshot in use.
    let one_list = keygate.memory("VmRSS");
    with.write(pki.directory());
    keygate.wait_for_generation(2);
    wait_until("the previous list is freed", || keygate.memory("VmRSS") <= one_list + OTHER_KIB);
    let load = Load::start(keygate.address(), &pki, &good);
    load.wait_for(RESPONSES_BETWEEN);
    for (generation, is_listed) in [(3, false), (4, true), (5, false)] {
        let update = if is_listed { &with } else { &without };
        update.write(pki.directory());
        keygate.wait_for_generation(generation);
        let response = keygate.curl(&leaked, &[]);
        let text = output_text(&response);
        assert_eq!(text.contains("access denied"), is_listed, "{text}");
        assert_eq!(response.stdout == b"hello\n", !is_listed, "{text}");
        load.wait_for(RESPONSES_BETWEEN);
    }
    assert_eq!(load.failures(), Vec::<String>::new());
    // The list in use and the next one, and the rest of the process.
    let peak = keygate.memory("VmHWM") >> 10;
    assert!(peak < 4 * 64, "{peak} MiB");
}
