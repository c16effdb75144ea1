//! The page at `/` of the admin address, in a real browser.

use std::io::Read;

use keygate_core::spki::Fingerprint;
use rcgen::{CertificateParams, DnType};
use serde_json::{Value, json};

use crate::support::asker::{AskedKeygate, UNIX};
use crate::support::browser::Browser;
use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::proof_source::ProofSource;
use crate::support::proxy::{Configuration, Configure, Proxy};
use crate::support::{output_text, skip, system, wait_until, write_filter};

struct Scene {
    pki: Pki,
    keygate: Keygate,
    lost: Party,
}

/// Name of a client that contains a script.
const NAME: &str = "<script>alert(1)</script>";
/// [`NAME`] as escaped in a distinguished name (RFC 4514).
const SHOWN: &str = r"\<script\>alert(1)\</script\>";

fn scene(action: &str) -> Scene {
    let (pki, origin) = (Pki::new(), Origin::start());
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name.push(DnType::OrganizationName, NAME);
    let lost = pki.client_with("lost", Kind::P256, parameters);
    write_filter(&pki.path("lost.pkbf"), &[&lost.spki]);
    let top = format!(
        "[[exceptions]]\nfingerprint = \"{}\"\nuntil = 2100-12-31\nreason = \"OPS-1412\"",
        "ab".repeat(32)
    );
    let keygate = Configuration::new(origin.address())
        .global(&top)
        .policy(&format!("on_probable = \"{action}\""))
        .start(&pki);
    Scene { pki, keygate, lost }
}

#[test]
fn a_browser_shows_the_page_and_it_refreshes_itself() {
    if skip::without("chromium") || skip::without("chromedriver") {
        return;
    }
    let scene = scene("reject");
    let browser = Browser::start();
    browser.post("url", &json!({"url": format!("http://{}/", scene.keygate.admin_address())}));
    let text = browser.text();
    for shown in
        ["ready", "lost", "in use", "No client since the start.", "OPS-1412", "certificate"]
    {
        assert!(text.contains(shown), "no {shown:?} in {text}");
    }
    // The page refreshes itself.
    assert!(!scene.keygate.curl(&scene.lost, &[]).status.success());
    browser.wait_for(SHOWN);
    let text = browser.text();
    for shown in ["probable", "reject", "127.0.0.1", "1 of 1 clients; 1 in memory."] {
        assert!(text.contains(shown), "no {shown:?} in {text}");
    }
    assert_eq!(browser.run("return document.querySelectorAll('#clients script').length"), 0);
    assert!(
        browser.run("return document.querySelectorAll('rect.probable').length").as_u64() > Some(0)
    );
    // Light and dark, and nothing from another host.
    assert_ne!(browser.background("light"), browser.background("dark"));
    let foreign = "return performance.getEntriesByType('resource').map(entry => entry.name)
        .filter(name => !name.startsWith(location.origin) && !name.startsWith('data:'))";
    assert_eq!(browser.run(foreign), json!([]));
    let log = browser.post("se/log", &json!({"type": "browser"}));
    assert_eq!(log, json!([]), "the browser complains");
}

#[test]
fn the_confirmation_is_on_the_page_and_nothing_scrolls_sideways() {
    if skip::without("chromium") || skip::without("chromedriver") {
        return;
    }
    let (source, proxy) = (ProofSource::start(), Proxy::new().policy("on_probable = \"flag\""));
    let innocent = proxy.pki.client("innocent", Kind::P256);
    write_filter(&proxy.pki.path("lost.pkbf"), &[&proxy.lost.spki, &innocent.spki]);
    source.prove(&proxy.lost);
    let settings = source.settings(&proxy.pki, "1h");
    let proxy = proxy.global(&settings).start();
    source.wait_for_canary(&proxy.keygate);
    proxy.keygate.curl(&proxy.lost, &[]);
    proxy.keygate.curl(&innocent, &[]);
    proxy.keygate.wait_for_status("the answers", |status| {
        (&status["confirm"]["confirmed"], &status["confirm"]["cleared"]) == (&json!(1), &json!(1))
    });
    let browser = Browser::start();
    browser.post("url", &json!({"url": format!("http://{}/", proxy.keygate.admin_address())}));
    let card = "return document.querySelector('#confirm').closest('section').innerText";
    let card = browser.run(card);
    let card = card.as_str().unwrap();
    let fingerprints =
        [&proxy.lost, &innocent].map(|party| Fingerprint::of(&party.spki).to_string());
    for shown in [&source.url(), "Confirmation", "lost", "confirmed", "cleared"]
        .into_iter()
        .chain(fingerprints.iter().map(|it| &it[..8]))
    {
        assert!(card.contains(shown), "no {shown:?} in {card}");
    }
    for width in [1240, 400] {
        browser.resize(width);
        assert_eq!(browser.run("return innerWidth"), width);
        let wide = "return document.documentElement.scrollWidth";
        assert!(browser.run(wide).as_u64() <= Some(width), "{}", browser.run(wide));
    }
}

#[test]
fn authorizers_have_a_table_on_the_page_and_their_reports_in_the_status() {
    let settings = "client_auth = { trust_anchors = \"ca.pem\" }\n";
    let scene = AskedKeygate::start(&format!("{UNIX}{settings}"));
    let listen = format!("unix:{}", scene.pki.path("ask.sock").display());
    let status = scene.keygate.status();
    let edge = &status["authorizers"][0];
    for (key, expected) in [
        ("name", json!("edge")),
        ("listen", json!(listen)),
        ("protocol", json!("http")),
        ("certificate_from", json!("client-cert")),
        ("verifies", json!(true)),
        ("on_probable", json!("reject")),
        ("last_question", Value::Null),
        ("certificate_not_after", Value::Null),
    ] {
        assert_eq!(edge[key], expected, "{key} in {edge}");
    }
    assert!(edge["trust_anchor_not_after"].is_u64(), "{edge}");
    let mut asker = scene.connect();
    let answers = [&scene.good, &scene.good, &scene.lost].map(|it| asker.ask_about(it).status);
    assert_eq!((answers, asker.ask(&[]).status), ([200, 200, 403], 403));
    assert!(scene.keygate.status()["authorizers"][0]["last_question"].is_u64());

    let url = format!("http://{}/", scene.keygate.admin_address());
    let page = output_text(&system("curl", &["-s", &url]));
    assert!(page.contains("id=\"authorizer-edge\"") && page.contains(&listen), "{page}");
    if skip::without("chromium") || skip::without("chromedriver") {
        return;
    }
    let browser = Browser::start();
    browser.post("url", &json!({"url": url}));
    let cells = "return [...document.querySelectorAll('#authorizers tbody td')]
        .map(cell => cell.innerText)";
    let cells = browser.run(cells);
    // Askers, allowed, denied, unusable, and the share without a certificate.
    let counts: Vec<_> = cells.as_array().unwrap().iter().skip(4).collect();
    assert_eq!(counts, ["1", "2", "1", "1", "25.0 %"], "{cells}");
    assert_ne!(cells[3], "none", "{cells}");
}

#[test]
fn the_page_is_complete_without_javascript_and_loads_nothing_foreign() {
    let scene = scene("flag");
    assert!(scene.keygate.curl(&scene.lost, &[]).status.success());
    let url = format!("http://{}/", scene.keygate.admin_address());
    let page = output_text(&system("curl", &["-s", "-i", &url]));
    for shown in
        ["text/html", "default-src 'none'", r"\&#60;script\&#62;", "probable", "flag", "OPS-1412"]
    {
        assert!(page.contains(shown), "no {shown:?} in {page}");
    }
    assert!(!page.contains(NAME), "{page}");
    for (asset, kind) in [("page.css", "text/css"), ("page.js", "text/javascript")] {
        let response = output_text(&system("curl", &["-s", "-i", &format!("{url}{asset}")]));
        assert!(response.contains("200 OK") && response.contains(kind), "{response}");
    }
    let mut pages = String::new();
    for asset in ["page.html", "page.css", "page.js"] {
        let path = format!("{}/src/admin/{asset}", env!("CARGO_MANIFEST_DIR"));
        std::fs::File::open(path).unwrap().read_to_string(&mut pages).unwrap();
    }
    assert!(!pages.contains("//") || !pages.contains("http"), "an asset of another host");
}

#[test]
fn a_page_of_another_host_cannot_read_or_post() {
    let scene = scene("reject");
    let address = scene.keygate.admin_address();
    let send_get = |path: &str, more: &[&str]| {
        let url = format!("http://{address}{path}");
        output_text(&system("curl", &[&["-s", "-i", &url], more].concat()))
    };
    // Its name was made to resolve to this address.
    for path in ["/", "/report", "/status", "/metrics"] {
        let response = send_get(path, &["-H", "host: evil.example:9464"]);
        assert!(response.contains("421 Misdirected Request"), "{response}");
        for host in ["localhost", "LOCALHOST:9464", "127.0.0.1:1", "[::1]:9464"] {
            let response = send_get(path, &["-H", &format!("host: {host}")]);
            assert!(response.contains("200 OK"), "{host}: {response}");
        }
    }
    let json = ["-H", "content-type: application/json", "-d", "{\"sha256\":\"00\"}"];
    for said_by_browsers in ["origin: http://127.0.0.1:9464", "sec-fetch-site: same-origin"] {
        let response =
            send_get("/filters/lost/accept", &[&json[..], &["-H", said_by_browsers]].concat());
        assert!(response.contains("403 Forbidden"), "{response}");
    }
}

#[test]
fn a_rejected_configuration_is_on_the_page_and_in_the_status() {
    let scene = scene("reject");
    assert_eq!(scene.keygate.status()["configuration"], Value::Null, "the file has not changed");
    std::fs::write(scene.pki.path("keygate.toml"), "workers = \"<many>\"\n").unwrap();
    let status = scene
        .keygate
        .wait_for_status("the refusal", |status| status["configuration"]["result"] == "refused");
    let error = status["configuration"]["error"].as_str().unwrap();
    assert!(error.contains("keygate.toml:1:11: workers: "), "{error}");
    let page = scene.keygate.admin("/").1;
    assert!(page.contains("class=\"state bad\"") && page.contains("&#60;many&#62;"), "{page}");
}

fn clients(count: u8) -> &'static str {
    if count == 1 { "1 client" } else { "0 clients" }
}

#[test]
fn the_report_lists_rejected_clients_and_those_a_stricter_policy_would_reject() {
    for (action, refused, would) in [("reject", 1, 0), ("flag", 0, 1), ("header", 0, 1)] {
        let scene = scene(action);
        let admin = format!("admin = {{ listen = \"{}\" }}", scene.keygate.admin_address());
        let file = scene.pki.path("report.toml");
        std::fs::write(&file, admin).unwrap();
        let report = |more: &[&str]| {
            keygate(&[&["report", "--config", file.to_str().unwrap()], more].concat())
        };
        let before = output_text(&report(&[]));
        assert!(before.contains("0 clients rejected since"), "{before}");
        for _ in 0..3 {
            scene.keygate.curl(&scene.lost, &[]);
        }
        let after = output_text(&report(&[]));
        assert!(after.contains(&format!("{} rejected since", clients(refused))), "{after}");
        let line = format!("{} would have been rejected by \"reject\" since", clients(would));
        assert!(after.contains(&line) && after.contains("3 times"), "{after}");
        assert!(after.contains(SHOWN) && after.contains("(in lost)"), "{after}");
        let json: Value = serde_json::from_slice(&report(&["--json"]).stdout).unwrap();
        assert_eq!((&json["action"], &json["count"]), (&action.into(), &3.into()), "{json}");
        for field in ["subject", "issuer", "serial", "fingerprint", "dns_names", "uris", "revision"]
        {
            assert!(!json[field].is_null(), "no {field} in {json}");
        }
        assert_eq!(report(&["--since", "soon"]).status.code(), Some(2));
    }
}

#[test]
fn a_client_at_two_services_is_one_client_of_the_report() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let clients = ["one", "two"].map(|name| pki.client(name, Kind::P256));
    write_filter(&pki.path("lost.pkbf"), &[&clients[0].spki, &clients[1].spki]);
    let configuration = Configuration::new(origin.address())
        .second_service("server_names = [\"second.example.com\"]");
    let proxy = configuration.start(&pki);
    let port = proxy.address().port();
    let named = format!("second.example.com:443:127.0.0.1:{port}");
    let at_second = ["--insecure", "--connect-to", &named, "https://second.example.com/"];
    for (client, arguments) in
        [(&clients[0], &[][..]), (&clients[1], &[]), (&clients[0], &at_second)]
    {
        assert!(!proxy.curl(client, arguments).status.success());
    }
    let file = pki.path("report.toml");
    std::fs::write(&file, format!("admin.listen = \"{}\"", proxy.admin_address())).unwrap();
    let report = |more: &[&str]| {
        String::from_utf8(keygate(&[&["report", file.to_str().unwrap()], more].concat()).stdout)
            .unwrap()
    };
    // A client gets its alert before the worker has recorded it.
    wait_until("an entry for each service", || report(&["--json"]).lines().count() == 3);
    let shown = report(&[]);
    assert!(shown.starts_with("2 clients rejected since "), "{shown}");
    let fingerprint = Fingerprint::of(&clients[0].spki).to_string();
    assert_eq!(shown.matches(&format!("  {fingerprint}  CN=one\n")).count(), 1, "{shown}");
    let (_, of_client) = shown.split_once(&fingerprint).unwrap();
    let services: Vec<_> = of_client.lines().skip(1).take(2).collect();
    for service in ["test", "second"] {
        let start = format!("    service {service}, probable (in lost), reject, once from ");
        assert!(services.iter().any(|line| line.starts_with(&start)), "{service}: {shown}");
    }
}

#[test]
fn a_repeated_rejection_is_logged_once_and_a_failed_handshake_names_its_certificate() {
    let scene = scene("reject");
    let strangers = Pki::named("Another CA");
    let stranger = strangers.client("stranger", Kind::P256);
    for _ in 0..5 {
        scene.keygate.curl(&scene.lost, &[]);
        scene.keygate.curl(&stranger, &["-k"]);
    }
    scene.keygate.wait_for_metric(
        "keygate_handshakes_total{result=\"unknown_issuer\",resumed=\"false\",service=\"test\"}",
        5.0,
    );
    // Each worker limits its own log lines.
    let refused = scene.keygate.lines("client key rejected");
    assert!((1..=2).contains(&refused.len()), "{refused:?}");
    assert_eq!(refused[0]["left_out"], 0);
    let failed = scene.keygate.lines("handshake failed");
    assert!((1..=2).contains(&failed.len()), "{failed:?}");
    let line = &failed[0];
    assert_eq!(line["result"], "unknown_issuer");
    assert!(line["subject"].as_str().unwrap().contains("stranger"), "{line}");
    assert_eq!(line["fingerprint"], Fingerprint::of(&stranger.spki).to_string());
}
