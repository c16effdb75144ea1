//! The questions that the status page answers: what is wrong, which clients were rejected, whether
//! traffic flows, what expires next.
//!
//! Guards: `update` in `src/admin/page.js`, `keepSelection` in `src/admin/page.js`, `rows` in
//! `src/admin/page/expiries.rs`, `own_keys` in `src/admin/attention/files.rs`.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use keygate_core::spki::Fingerprint;
use serde_json::{Value, json};

use crate::support::asker::{AskedKeygate, UNIX};
use crate::support::browser::Browser;
use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proxy::{Configuration, Configure, Proxy};
use crate::support::{output_text, skip, system, wait_until, write_filter};

fn url(keygate: &Keygate, rest: &str) -> String {
    format!("http://{}/{rest}", keygate.admin_address())
}

fn page(keygate: &Keygate, rest: &str) -> String {
    output_text(&system("curl", &["-s", &url(keygate, rest)]))
}

/// The values of an attribute, such as `id`, in the order of the page.
fn attributes(page: &str, name: &str) -> Vec<String> {
    let start = format!(" {name}=\"");
    let values = page.split(&start).skip(1);
    values.map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
}

/// Asserts that every id is there once, and that every link to a row has its row. Returns the
/// number of these links.
fn count_links_to_rows(page: &str) -> usize {
    let ids = attributes(page, "id");
    let rows: BTreeSet<_> = ids.iter().map(String::as_str).collect();
    assert_eq!(rows.len(), ids.len(), "an id is there twice: {ids:?}");
    let links = attributes(page, "href");
    let links: Vec<_> = links.iter().filter_map(|link| link.strip_prefix('#')).collect();
    assert!(links.iter().all(|link| rows.contains(link)), "{links:?} of {rows:?}");
    links.len()
}

/// Clients in the filter `lost.pkbf`, one for each of `names`.
fn lost_clients(pki: &Pki, names: &[&str]) -> Vec<Party> {
    let clients: Vec<_> = names.iter().map(|name| pki.client(name, Kind::P256)).collect();
    let keys: Vec<_> = clients.iter().map(|client| client.spki.as_slice()).collect();
    write_filter(&pki.path("lost.pkbf"), &keys);
    clients
}

#[test]
fn traffic_and_servers_are_on_the_page_and_in_the_status() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let good = pki.client("good", Kind::P256);
    let lost = lost_clients(&pki, &["lost"]);
    let keygate = Configuration::new(origin.address())
        .servers(&[format!("http://{}", origin.address()), "http://127.0.0.1:9".to_owned()])
        .upstream("health_check = { path = \"/\", interval = \"200ms\" }")
        .add("services.limits", "max_connections = 77")
        .start(&pki);
    keygate.wait_for_metric(
        "keygate_upstream_server_up{server=\"http://127.0.0.1:9\",service=\"test\"}",
        0.0,
    );
    for _ in 0..3 {
        assert!(keygate.curl(&good, &[]).status.success());
    }
    assert!(!keygate.curl(&lost[0], &[]).status.success());
    let status = keygate.wait_for_status("the requests", |status| {
        status["traffic"]["test"]["requests_per_minute"] == 3.0
    });
    let traffic = &status["traffic"]["test"];
    assert_eq!(traffic["max_connections"], 77);
    assert_eq!(traffic["errors_per_minute"], 0.0);
    assert_eq!(traffic["failed_handshakes"], json!({"compromised": 1.0}));
    let (p50, p99) = (traffic["p50"].as_f64().unwrap(), traffic["p99"].as_f64().unwrap());
    assert!(0.0 < p50 && p50 <= p99, "{traffic}");

    let servers = status["servers"].as_array().unwrap();
    let states: Vec<_> = servers.iter().map(|server| &server["state"]).collect();
    assert_eq!(states, ["healthy", "unhealthy"], "{servers:?}");
    assert!(servers[0]["connections"].as_u64() >= Some(1), "a pooled one: {servers:?}");
    assert_eq!(servers[0]["error"], Value::Null);
    let error = servers[1]["error"].as_str().unwrap();
    assert!(error.contains("Connection refused"), "{error}");
    assert!(servers[1]["last_check"].is_u64(), "{servers:?}");

    let page = page(&keygate, "");
    for shown in [" of 77", "compromised: 1", "unhealthy", "Connection refused"] {
        assert!(page.contains(shown), "no {shown:?} in {page}");
    }
}

#[test]
fn the_page_and_the_status_name_machine_uptime_version_commit_and_configuration() {
    let proxy = Proxy::new().start();
    let version = output_text(&keygate(&["--version"]));
    let line = |start: &str| {
        let line = version.lines().find_map(|line| line.strip_prefix(start));
        line.unwrap_or_else(|| panic!("no {start:?} in {version}")).to_owned()
    };
    let (version, commit) = (line("keygate "), line("commit: "));
    let host = output_text(&system("uname", &["-n"]));
    let host = host.lines().nth(1).unwrap();
    let path = proxy.pki.path("keygate.toml").display().to_string();
    let status = proxy.status();
    let shown = ["version", "commit", "host", "configuration_path"].map(|field| &status[field]);
    assert_eq!(shown, [&version, &commit, host, &path]);
    let since = status["since"].as_u64().unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    assert!((now - 60..=now).contains(&since), "{since}, now {now}");
    let page = page(&proxy, "");
    let uptime = page.split("· up ").nth(1).unwrap();
    assert!(uptime.starts_with(|first: char| first.is_ascii_digit()), "{page}");
    let memory = page.split(" · memory ").nth(1).and_then(|it| it.split(" MiB").next()).unwrap();
    let (resident, limit) = memory.split_once(" of ").unwrap();
    let [resident, limit] = [resident, limit].map(|it| it.parse::<u64>().unwrap());
    assert!(0 < resident && resident < limit, "{memory}");
    let short = &commit[..commit.len().min(12)];
    for shown in [
        format!("keygate <small>on {host}</small>"),
        format!(" · version {version}, commit {short} · snapshot 1 · "),
        format!("<code>{path}</code>"),
        "<section id=\"attention\" class=\"good\">\n<p>Nothing needs attention.</p>".to_owned(),
    ] {
        assert!(page.contains(&shown), "no {shown:?} in {page}");
    }
}

/// Failures of a worker's requests, not of health checks, eject a server.
#[test]
fn an_ejected_server_is_on_the_page_with_the_number_of_its_ejections() {
    let origin = Origin::start();
    let server = format!("http://{}", origin.address());
    let proxy = Proxy::to(origin)
        .servers(&[server, "http://127.0.0.1:9".to_owned()])
        .upstream("max_failures = 1, retry_after = \"1h\", balance = \"round-robin\"")
        .start();
    wait_until("the ejection", || {
        proxy.curl(&proxy.good, &[]);
        proxy.status()["servers"][1]["ejections"].as_u64() >= Some(1)
    });
    let status = proxy.status();
    assert_eq!(status["servers"][1]["state"], "ejected");
    assert_eq!(status["attention"][0]["level"], "amber", "the other one serves");
    assert!(page(&proxy, "").contains("127.0.0.1:9 is ejected"));
}

#[test]
fn a_client_at_two_services_is_one_row_and_a_search_finds_every_client_in_memory() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let names: Vec<String> = (10..22).map(|number| format!("device {number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let clients = lost_clients(&pki, &names);
    let keygate = Configuration::new(origin.address())
        .second_service(
            "server_names = [\"second.example.com\"], policy = { on_probable = \"flag\" }",
        )
        .start(&pki);
    let first = &clients[0];
    let named = format!("{}:443:127.0.0.1:{}", "second.example.com", keygate.address().port());
    let at_second = ["--insecure", "--connect-to", &named, "https://second.example.com/"];
    assert!(keygate.curl(first, &at_second).status.success());
    for client in &clients {
        assert!(!keygate.curl(client, &[]).status.success());
    }
    let rows = |page: &str| page.matches("<tr id=\"client-").count();
    let all = page(&keygate, "");
    assert_eq!(rows(&all), 10);
    assert!(all.contains("10 of 12 clients; 12 in memory"), "{all}");
    let fingerprint = Fingerprint::of(&first.spki).to_string();
    for search in [&*fingerprint, "CN%3Ddevice+10", "DEVICE%2010", "second"] {
        let found = page(&keygate, &format!("?q={search}"));
        assert_eq!(rows(&found), 1, "{search}: {found}");
        assert!(found.contains("1 of 1 clients with"), "{found}");
        assert!(found.contains(&format!("id=\"client-{fingerprint}\"")), "{found}");
        for hit in ["test: <span", "second: <span", "<td class=\"number\" data-label=\"times\">2"] {
            assert!(found.contains(hit), "{hit} in {found}");
        }
    }
    let none = page(&keygate, "?q=%22%3E%3Cscript%3E");
    assert!(none.contains("None of 12 clients in memory."), "{none}");
    assert!(none.contains("value=\"&#34;&#62;&#60;script&#62;\""), "{none}");
}

#[test]
fn every_condition_links_to_a_row_and_a_rejected_update_is_shown_whole_at_any_width() {
    if skip::without("chromium") || skip::without("chromedriver") {
        return;
    }
    let proxy = Proxy::new()
        .filter("max_new_hits = 0")
        .servers(&["http://127.0.0.1:9"])
        .upstream("health_check = { path = \"/\", interval = \"200ms\" }")
        .start();
    assert!(proxy.curl(&proxy.good, &[]).status.success(), "a client that was admitted");
    write_filter(&proxy.pki.path("lost.pkbf"), &[&proxy.lost.spki, &proxy.good.spki]);
    let long = format!("log.level = \"{}\"\n", "wide".repeat(60));
    std::fs::write(proxy.pki.path("keygate.toml"), long).unwrap();
    proxy.wait_for_status("the failed request and three conditions", |status| {
        status["attention"].as_array().unwrap().len() == 4
    });
    let browser = Browser::start();
    browser.open(&url(&proxy, ""));
    let links = "return [...document.querySelectorAll('#attention a')].map(link =>
        [link.innerText, document.querySelector(link.hash)?.innerText ?? null])";
    let links = browser.run(links);
    let found = |subject: &str, text: &str| {
        let mut links = links.as_array().unwrap().iter();
        let link = links.find(|link| link[0].as_str().unwrap() == subject);
        let row = link.unwrap_or_else(|| panic!("no {subject}: {links:?}"))[1].as_str().unwrap();
        assert!(row.contains(text), "{row}");
    };
    found("configuration", "keygate.toml");
    found("filter lost", "an update waits");
    found("service test", "unhealthy");
    for width in [1240, 400] {
        browser.resize(width);
        let text = browser.text();
        assert!(text.contains(&"wide".repeat(10)), "the whole reason: {text}");
        assert!(text.contains("keygate filter accept lost --config "), "{text}");
        let wide = "return [...document.querySelectorAll('main, main *')].filter(it =>
            it.scrollWidth > it.clientWidth + 1 && it.clientWidth > 0 &&
            getComputedStyle(it).display !== 'inline').map(it => it.outerHTML.slice(0, 200))";
        assert_eq!(browser.run(wide), json!([]), "{width}");
        let whole = browser.run("return document.documentElement.scrollWidth");
        assert!(whole.as_u64() <= Some(width), "{whole}");
    }
    // A card begins with its subject.
    let first = "const row = document.querySelector('#filters tbody tr');
        const [head, cell] = ['th', 'td'].map(name => row.querySelector(name).getBoundingClientRect());
        return head.bottom <= cell.top";
    assert_eq!(browser.run(first), true);
}

#[test]
fn every_condition_has_a_row_of_its_own_however_many_there_are() {
    let until = humantime::format_rfc3339_seconds(SystemTime::now() + Duration::from_secs(86_400));
    let exceptions = (0..30).map(|number| {
        format!(
            "[[exceptions]]\nfingerprint = \"{number:064}\"\nuntil = {until}\nreason = \"soon\"\n"
        )
    });
    // Addresses without a server, which differ in signs only.
    let proxy = Proxy::new()
        .global(&exceptions.collect::<String>())
        .servers(&["http://a.b.invalid:9", "http://a-b.invalid:9"])
        .upstream("health_check = { path = \"/\", interval = \"200ms\" }")
        .start();
    proxy.wait_for_status("all conditions", |status| {
        status["attention"].as_array().unwrap().len() == 32
    });
    let page = page(&proxy, "");
    assert_eq!(count_links_to_rows(&page), 32);
    assert!(page.contains("<section id=\"attention\" class=\"bad\">"), "{page}");
}

#[test]
fn a_compromised_key_of_an_authorizer_links_to_the_authorizer() {
    let pki = Pki::new();
    let ca = Fingerprint::of(&pki.spki()).to_string();
    std::fs::write(pki.path("deny.txt"), ca).unwrap();
    let edge = "client_auth = { trust_anchors = \"ca.pem\" }
        policy = { allow_compromised_own_key = true }
        [[lists]]\nname = \"cas\"\npath = \"deny.txt\"\n";
    let asked = AskedKeygate::with_pki(pki, &format!("{UNIX}{edge}"));
    let status = asked.keygate.status();
    let [condition] = &status["attention"].as_array().unwrap()[..] else { panic!("{status}") };
    let found = ["level", "subject", "row"].map(|field| &condition[field]);
    assert_eq!(found, ["red", "authorizer edge", "authorizer-edge"]);
    assert_eq!(count_links_to_rows(&page(&asked.keygate, "")), 1);
}

#[test]
fn a_refresh_keeps_the_selection_the_scroll_position_open_details_and_the_search() {
    if skip::without("chromium") || skip::without("chromedriver") {
        return;
    }
    let (pki, origin) = (Pki::new(), Origin::start());
    let clients = lost_clients(&pki, &["first", "second", "third"]);
    let keygate = Configuration::new(origin.address()).start(&pki);
    assert!(!keygate.curl(&clients[0], &[]).status.success());
    let browser = Browser::start();
    browser.resize(400);
    browser.open(&url(&keygate, ""));
    let prepared = "document.querySelector('#filters details').open = true;
        getSelection().selectAllChildren(document.querySelector('#clients code'));
        document.querySelector('#filters').scrollIntoView();
        return document.querySelector('#filters').getBoundingClientRect().top";
    let top = browser.run(prepared).as_f64().unwrap();
    assert!(!keygate.curl(&clients[1], &[]).status.success());
    browser.wait_for("CN=second");
    let fingerprint = Fingerprint::of(&clients[0].spki).to_string();
    assert_eq!(browser.run("return getSelection().toString()"), json!(fingerprint));
    assert_eq!(browser.run("return document.querySelector('#filters details').open"), true);
    let now = browser.run("return document.querySelector('#filters').getBoundingClientRect().top");
    assert!((now.as_f64().unwrap() - top).abs() < 2.0, "{top} was the place, now {now}");

    // The row with the selection moves to the top, because its client comes again.
    wait_until("the first client to be the last one seen", || {
        assert!(!keygate.curl(&clients[0], &[]).status.success());
        let report: Value = serde_json::from_str(&keygate.admin("/report").1).unwrap();
        report["clients"][0]["fingerprint"] == json!(fingerprint)
    });
    wait_until("the row to move", || {
        let row = "return document.querySelector('#clients tbody tr').id";
        browser.run(row) == json!(format!("client-{fingerprint}"))
    });
    assert_eq!(browser.run("return getSelection().toString()"), json!(fingerprint));

    let search = "const input = document.querySelector('#search input'); input.value = 'CN=third';
        input.dispatchEvent(new Event('input', { bubbles: true })); input.focus()";
    browser.run(search);
    browser.wait_for("None of 2 clients in memory.");
    assert!(!keygate.curl(&clients[2], &[]).status.success());
    browser.wait_for("1 of 1 clients with “CN=third”; 3 in memory");
    assert_eq!(browser.run("return document.querySelector('#search input').value"), "CN=third");
    assert_eq!(browser.run("return document.activeElement.name"), "q");
    assert_eq!(browser.run("return location.search"), "?q=CN%3Dthird");
}

#[test]
fn a_late_response_to_an_earlier_search_is_not_shown() {
    if skip::without("chromium") || skip::without("chromedriver") {
        return;
    }
    let (pki, origin) = (Pki::new(), Origin::start());
    let clients = lost_clients(&pki, &["first", "second"]);
    let keygate = Configuration::new(origin.address()).start(&pki);
    for client in &clients {
        assert!(!keygate.curl(client, &[]).status.success());
    }
    let browser = Browser::start();
    browser.open(&url(&keygate, ""));
    let search = |text: &str| {
        browser.run(&format!(
            "const input = document.querySelector('#search input'); input.value = '{text}';
            input.dispatchEvent(new Event('input', {{ bubbles: true }}))"
        ));
    };
    browser.run(
        "const real = fetch; window.fetch = async (...request) => {
            const response = await real(...request), text = await response.text();
            if (request[0].includes('first'))
                await new Promise((release) => { window.release = release; });
            return { ok: true, text: async () => text };
        }",
    );
    search("CN=first");
    wait_until("the response to wait", || browser.run("return !!window.release") == true);
    search("CN=second");
    browser.wait_for("1 of 1 clients with “CN=second”");
    let late = "window.release();
        await new Promise((done) => setTimeout(done));
        return document.querySelector('main').innerText";
    let late = browser.run(&format!("return (async () => {{ {late} }})()"));
    assert!(late.as_str().unwrap().contains("clients with “CN=second”"), "{late}");
}

#[test]
fn a_page_without_a_response_is_no_longer_green() {
    if skip::without("chromium") || skip::without("chromedriver") {
        return;
    }
    let proxy = Proxy::new().start();
    let browser = Browser::start();
    browser.open(&url(&proxy, ""));
    browser.wait_for("Nothing needs attention.");
    let colour = |element: &str| {
        browser.run(&format!("return getComputedStyle(document.querySelector('{element}')).color"))
    };
    let green = colour("#readiness .state");
    drop(proxy);
    browser.wait_for("No response. The rest of the page is old.");
    let faint = colour("figcaption");
    assert_ne!(green, faint);
    let states = "return [...new Set([...document.querySelectorAll('.state')].map(it =>
        getComputedStyle(it).color))]";
    assert_eq!(browser.run(states), json!([faint]), "no state is green or red");
    assert_eq!(browser.run("return document.querySelector('#attention').className"), "bad");
    assert_eq!(browser.run("return document.title"), "keygate (no response)");
}

#[test]
fn the_chart_has_axes_with_values_and_days() {
    let proxy = Proxy::new().start();
    proxy.rejects(&proxy.lost);
    let today = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    let page = page(&proxy, "");
    let axis: Vec<_> = page.match_indices("<text class=\"y\"").collect();
    assert_eq!(axis.len(), 3, "{page}");
    let days = page.matches("<line class=\"day\"").count();
    assert_eq!(days, 7, "{page}");
    assert!(page.contains(&format!(">{}</text>", &today[5..10])), "{page}");
}
