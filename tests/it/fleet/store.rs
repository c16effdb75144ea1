//! A store of lists that is down, slow, or serves an old version: no verdict changes, and metrics
//! and the status page tell.
//!
//! Guards: `ensure_not_older` in `src/sources/list/read.rs`, `FetchError` in `src/fetch/error.rs`.

use std::fs::{create_dir, read_to_string};

use crate::support::blocklist::Blocklist;
use crate::support::mirror::{Fetch, Mirror};
use crate::support::output_text;
use crate::support::proxy::{Configure, Proxy};

#[test]
fn a_store_that_is_down_or_slow_or_serves_an_old_version_changes_no_verdict() {
    let proxy = Proxy::new();
    let Some(mut mirror) = Mirror::start(&proxy.pki) else { return };
    create_dir(mirror.path("v0")).unwrap();
    create_dir(proxy.pki.path("lists")).unwrap();
    let list = |day: &str, keys: &[(&[u8], u8)], others| {
        let url = mirror.url("v0/blocklist.dat");
        let list = Blocklist::new(keys).with_others(0, others).with("date", day.into());
        list.with("blocklist_url", url.into())
    };
    let listed: (&[u8], u8) = (&proxy.lost.spki, 1);
    let old = list("2026-08-20", &[], 20_000);
    let newer = list("2026-08-21", &[listed], 20_000);
    let newest = list("2026-08-22", &[listed], 20_001);
    newer.write(&mirror.path("v0"));
    mirror.date_files();
    let source = format!(
        "[[lists]]\nname = \"deny\"\nformat = \"badkeys\"\npath = \"lists/blocklist.dat\"\n\
         source = {{ url = \"{}\", trust_anchors = \"ca.pem\", connect_timeout = \"1s\" }}\n",
        mirror.url("v0/badkeysdata.json")
    );
    let proxy = proxy.unset("filters").global(&source);
    let (config, textfile) = (proxy.pki.path("keygate.toml"), proxy.pki.path("fetch.prom"));
    std::fs::write(&config, proxy.configuration.text()).unwrap();
    let fetch = || {
        let arguments =
            ["--config", config.to_str().unwrap(), "--textfile", textfile.to_str().unwrap()];
        Fetch::start(&arguments).ended()
    };
    let fetched = fetch();
    assert!(fetched.status.success(), "{}", output_text(&fetched));
    let running = proxy.start();
    let mut failures = 0;
    let mut told = |what: &str, problem: &str| {
        let output = fetch();
        let text = output_text(&output);
        assert_eq!(output.status.code(), Some(3), "{what}: {text}");
        assert!(text.contains(problem), "{what}: {text}");
        failures += 1;
        let metrics = read_to_string(&textfile).unwrap();
        let series = "keygate_fetch_failures_total{kind=\"list\",name=\"deny\"}";
        assert!(metrics.contains(&format!("{series} {failures}")), "{what}: {metrics}");
        running.admits(&running.good);
        running.rejects(&running.lost);
    };
    mirror.kill();
    told("down", "refused");
    mirror.restart();
    newest.write(&mirror.path("v0"));
    mirror.date_files();
    mirror.signal("STOP");
    told("slow", "no connection within 1s");
    mirror.signal("CONT");
    old.write(&mirror.path("v0"));
    mirror.date_files();
    told("old", "rollback");

    // The proxy makes the same check, if another program has copied the old version.
    old.write(&running.pki.path("lists"));
    running.wait_for_metric("keygate_list_refusals_total{list=\"deny\",reason=\"rollback\"}", 1.0);
    running.wait_for_status("the rejected file", |status| {
        status["attention"].to_string().contains("blocklist.dat")
    });
    running.admits(&running.good);
    running.rejects(&running.lost);
    newest.write(&running.pki.path("lists"));
    running.wait_for_metric("keygate_list_entries{list=\"deny\"}", 20_002.0);
    running.rejects(&running.lost);
}
