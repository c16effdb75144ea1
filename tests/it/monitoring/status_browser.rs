//! The status page in a browser, with traffic, two rejected updates, a server that is down and
//! sixty rejected clients: at both widths, and in both colour schemes.
//!
//! Guards: `data-label` in `src/admin/page.html`, `max-width` in `src/admin/page.css`.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::support::browser::Browser;
use crate::support::client::Client;
use crate::support::origin::Origin;
use crate::support::pki::Kind;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::{skip, write_filter};

/// A proxy with something to see, and the open connection of a client.
fn busy() -> (Running, Client) {
    let origin = Origin::responding(|request, tcp| {
        tcp.write_all(match request.head.starts_with("GET /broken ") {
            true => b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 6\r\n\r\nsorry\n",
            false => b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n",
        })
    });
    let servers = [format!("http://{}", origin.address()), "http://127.0.0.1:9".to_owned()];
    let until = humantime::format_rfc3339_seconds(SystemTime::now() + Duration::from_secs(86_400));
    let fingerprint = "0".repeat(64);
    let proxy = Proxy::to(origin)
        .servers(&servers)
        .upstream("health_check = { path = \"/\", interval = \"200ms\" }")
        .limits("max_connections = 77")
        .global(&format!(
            "[[lists]]\nname = \"deny\"\npath = \"deny.txt\"\n[[exceptions]]\n\
             fingerprint = \"{fingerprint}\"\nuntil = {until}\nreason = \"OPS-1412\"\n"
        ));
    let names: Vec<_> = (10..70).map(|number| format!("device {number}")).collect();
    let lost: Vec<_> = names.iter().map(|name| proxy.pki.client(name, Kind::P256)).collect();
    let keys: Vec<_> = lost.iter().map(|client| client.spki.as_slice()).collect();
    write_filter(&proxy.pki.path("lost.pkbf"), &keys);
    std::fs::write(proxy.pki.path("deny.txt"), &fingerprint).unwrap();
    let proxy = proxy.start();
    let mut open = proxy.connect();
    for path in ["/", "/", "/", "/broken"] {
        open.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        open.head();
        open.exactly(6);
    }
    for client in &lost {
        let mut client = Client::connect(&proxy.pki, proxy.address(), client);
        let _ = client.try_send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); // it is rejected
        client.whatever_comes();
    }
    std::fs::write(proxy.pki.path("lost.pkbf"), "no filter").unwrap();
    std::fs::write(proxy.pki.path("deny.txt"), "no fingerprint").unwrap();
    proxy.wait_for_status("clients and conditions", |status| {
        let failed = &status["traffic"]["test"]["failed_handshakes"];
        status["attention"].as_array().unwrap().len() == 5 && failed["compromised"] == 60.0
    });
    (proxy, open)
}

/// The cells of the row with this id, by their labels.
fn cells(browser: &Browser, id: &str) -> BTreeMap<String, String> {
    let script = format!(
        "return [...document.querySelectorAll('#{id} td')].map(it => [it.dataset.label, it.innerText])"
    );
    let cells = browser.run(&script);
    serde_json::from_value::<Vec<(String, String)>>(cells).unwrap().into_iter().collect()
}

#[test]
fn the_page_answers_its_four_questions_at_both_widths_and_in_both_colour_schemes() {
    if skip::without("chromium") || skip::without("chromedriver") {
        return;
    }
    let (proxy, _open) = busy();
    let browser = Browser::start();
    browser.resize(1240);
    browser.open(&format!("http://{}/", proxy.admin_address()));

    // Is anything wrong?
    let links = "return [...document.querySelectorAll('#attention a')].map(it =>
        [it.className, it.innerText, document.querySelector(it.hash).id])";
    let expected = json!([
        ["bad", "filter lost", "filter-lost"],
        ["bad", "list deny", "list-deny"],
        ["warn", "service test", "service-test"],
        ["warn", "service test", "server-1"],
        ["warn", "exception of OPS-1412 (00000000…)", "expiry-0"],
    ]);
    let found = browser.run(links);
    let subjects = |links: &Value| -> Vec<Value> {
        links.as_array().unwrap().iter().map(|link| json!([link[0], link[2]])).collect()
    };
    assert_eq!(subjects(&found), subjects(&expected), "{found}");
    let first = "const first = document.querySelector('main > section');
        return [first.id, first.className, first.getBoundingClientRect().top < 200]";
    assert_eq!(browser.run(first), json!(["attention", "bad", true]));
    assert!(browser.run("return document.title").as_str().unwrap().starts_with("(5) keygate on "));
    let target = "document.querySelector('#attention a').click();
        return document.querySelector('tr:target').id";
    assert_eq!(browser.run(target), "filter-lost");
    let text = browser.text();
    for command in ["keygate filter info /", "keygate list info /"] {
        assert!(text.contains(command), "{command} is not in {text}");
    }

    // Which clients were rejected?
    assert!(text.contains("10 of 60 clients; 60 in memory"), "{text}");
    let rows = "return document.querySelectorAll('#clients tbody tr').length";
    assert_eq!(browser.run(rows), 10);

    // Is traffic flowing?
    let service = cells(&browser, "service-test");
    assert_eq!(service["connections"], "1 of 77");
    for label in ["requests a minute", "errors a minute"] {
        assert!(service[label].parse::<f64>().unwrap() > 0.0, "{label} in {service:?}");
    }
    for label in ["p50", "p99"] {
        assert!(service[label].ends_with('s'), "a time: {label} in {service:?}");
    }
    assert_eq!(service["failed handshakes"], "compromised: 60");
    assert_eq!(service["rejections"], "60");
    let (up, down) = (cells(&browser, "server-0"), cells(&browser, "server-1"));
    assert_eq!((&*up["state"], &*up["ejections"]), ("healthy", "0"));
    assert!(up["connections"].parse::<u64>().unwrap() >= 1, "a pooled one: {up:?}");
    assert!(!up["last check"].contains("none"), "{up:?}");
    assert!(down["state"].starts_with("unhealthy since 2"), "{down:?}");
    assert!(down["last check"].contains("Connection refused"), "{down:?}");

    // Ordinary names are not broken.
    let broken = "const lines = it => {
            const range = document.createRange();
            range.selectNodeContents(it);
            return range.getClientRects().length;
        };
        const names = document.querySelectorAll('#services tbody th, #servers tbody th');
        return [names.length, [...names].filter(it => lines(it) > 1).map(it => it.innerText)]";
    assert_eq!(browser.run(broken), json!([3, []]));

    // The table of expiry dates.
    let first = cells(&browser, "expiry-0");
    assert_eq!((&*first["kind"], &*first["state"]), ("exception", "soon"));
    let next = cells(&browser, "expiry-1");
    assert_eq!(next["state"], "valid", "{next:?}");

    // The subject is beside its cells, and on narrow screens above them, with a label for each.
    let beside = |condition: &str| {
        browser.run(&format!(
            "return [...document.querySelectorAll('section > table tbody tr:not(.more)')].filter(row => {{
                const [head, cell] = ['th', 'td'].map(it => row.querySelector(it).getBoundingClientRect());
                return !({condition});
            }}).map(row => row.outerHTML)"
        ))
    };
    assert_eq!(beside("head.right <= cell.left + 1 && head.top <= cell.bottom"), json!([]));
    browser.resize(400);
    assert_eq!(beside("head.bottom <= cell.top + 1 && head.right >= cell.right - 1"), json!([]));
    let unlabelled = "return [...document.querySelectorAll('section > table tbody tr:not(.more) td')].filter(it =>
        !getComputedStyle(it, '::before').content.includes(it.dataset.label)
        && it.dataset.label !== 'service and verdict').map(it => it.outerHTML)";
    assert_eq!(browser.run(unlabelled), json!([]));

    // WCAG 2.1, success criterion 1.4.3
    let faint = "const light = (text) => {
            const parts = text.match(/[\\d.]+/g).slice(0, 3).map(it => it / 255);
            const [red, green, blue] =
                parts.map(it => it <= .04045 ? it / 12.92 : ((it + .055) / 1.055) ** 2.4);
            return .2126 * red + .7152 * green + .0722 * blue + .05;
        };
        const back = light(getComputedStyle(document.body).backgroundColor);
        const hasText = (it) => [...it.childNodes].some(({ nodeType, data }) => nodeType === 3 && data.trim());
        return [...document.querySelectorAll('main *')].filter(it => {
            const text = light(getComputedStyle(it).color);
            return hasText(it) && !it.closest('svg, button') && Math.max(text / back, back / text) < 4.5;
        }).map(it => it.outerHTML)";
    let colours = "return ['bad', 'warn', 'good'].map(it =>
        getComputedStyle(document.querySelector('.state.' + it)).color)";
    let [light, dark] = ["light", "dark"].map(|scheme| {
        let background = browser.background(scheme);
        assert_eq!(browser.run(faint), json!([]), "{scheme}");
        let colours = browser.run(colours);
        let [bad, warn, good] = [0, 1, 2].map(|index| &colours[index]);
        assert!(bad != warn && warn != good && good != bad, "{colours}");
        background
    });
    assert_ne!(light, dark);

    // Every client in memory is found.
    browser.open(&format!("http://{}/?q=device+69", proxy.admin_address()));
    let found = browser.text();
    assert!(found.contains("1 of 1 clients with “device 69”; 60 in memory"), "{found}");
}

#[test]
fn the_longest_names_fit_at_every_width() {
    if skip::without("chromium") || skip::without("chromedriver") {
        return;
    }
    let name = |start: &str| format!("{start}{}", "W".repeat(64 - start.len()));
    let host = ["W".repeat(63), "W".repeat(63), "W".repeat(63), "invalid".to_owned()].join(".");
    let proxy = Proxy::new();
    let client = proxy.pki.client(&name("client"), Kind::P256);
    write_filter(&proxy.pki.path("lost.pkbf"), &[&client.spki]);
    std::fs::write(proxy.pki.path("deny.txt"), "0".repeat(64)).unwrap();
    let proxy = proxy
        .filter(&format!("name = \"{}\"", name("filter")))
        .service(&format!("name = \"{}\"", name("service")))
        .servers(&[format!("http://{host}:65535")])
        .upstream("health_check = { path = \"/\", interval = \"200ms\" }")
        .global(&format!(
            "[[lists]]\nname = \"{}\"\npath = \"deny.txt\"\n[[authorizers]]\nname = \"{}\"\n\
             listen = \"unix:{}\"\nprotocol = \"http\"\ncertificate_from = \"client-cert\"\n",
            name("list"),
            name("authorizer"),
            name("socket"),
        ))
        .start();
    assert!(!proxy.curl(&client, &[]).status.success());
    for file in ["lost.pkbf", "deny.txt"] {
        std::fs::write(proxy.pki.path(file), "of no use").unwrap();
    }
    proxy.wait_for_status("three conditions", |status| {
        status["attention"].as_array().unwrap().len() == 3
    });
    let browser = Browser::start();
    browser.open(&format!("http://{}/", proxy.admin_address()));
    // Refreshes would bring the real host name back.
    let long = "window.fetch = () => new Promise(() => {});
        document.querySelector('h1 small').textContent = 'on ' + 'W'.repeat(64);
        return [...document.querySelectorAll('tbody th')].map(it => it.innerText).join()";
    let shown = browser.run(long);
    for start in ["client", "filter", "list", "service", "authorizer"] {
        assert!(shown.as_str().unwrap().contains(&name(start)), "{start} is not in {shown}");
    }
    for width in [1240, 1000, 961, 960, 800, 601, 600, 400] {
        browser.resize(width);
        let wide = "return [...document.querySelectorAll('main, main *')].filter(it =>
            it.scrollWidth > it.clientWidth + 1 && it.clientWidth > 0 &&
            getComputedStyle(it).display !== 'inline').map(it => it.outerHTML.slice(0, 200))";
        assert_eq!(browser.run(wide), json!([]), "{width}");
        let whole = browser.run("return document.documentElement.scrollWidth");
        assert!(whole.as_u64() <= Some(width), "{whole} at {width}");
    }
}
