//! Rejected clients on the status page, in `keygate status` and in `keygate report`: each with a
//! name, and each counted.
//!
//! Guards: `name` in `crates/core/src/tls/certificate.rs`, `has` in `src/admin/page/clients.rs`, `actions` in
//! `src/admin/rejections.rs`.

use keygate_core::spki::Fingerprint;
use rcgen::SanType;
use serde_json::json;

use crate::support::client::Client;
use crate::support::keygate::{Keygate, keygate};
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::{Configure, Proxy};
use crate::support::{output_text, wait_until, write_filter};

const ID: &str = "spiffe://example.org/billing/web";

fn names() -> [SanType; 3] {
    [
        SanType::Rfc822Name("web@example.com".try_into().unwrap()),
        SanType::DnsName("web.example.net".try_into().unwrap()),
        SanType::URI(ID.try_into().unwrap()),
    ]
}

/// The output of `keygate report`.
fn report(pki: &Pki, keygate_: &Keygate) -> String {
    let file = pki.path("report.toml");
    std::fs::write(&file, format!("admin.listen = \"{}\"", keygate_.admin_address())).unwrap();
    output_text(&keygate(&["report", file.to_str().unwrap()]))
}

#[test]
fn a_client_without_a_subject_is_shown_and_found_by_its_other_names() {
    let proxy = Proxy::new();
    let workload = proxy.pki.workload("workload", &names());
    let nameless = proxy.pki.workload("nameless", &[]);
    write_filter(&proxy.pki.path("lost.pkbf"), &[&workload.spki, &nameless.spki]);
    let proxy = proxy.start();
    for client in [&workload, &nameless] {
        assert!(!proxy.curl(client, &[]).status.success());
    }
    // A client gets its alert before the worker has recorded it.
    wait_until("both clients", || proxy.admin("/").1.contains("2 in memory"));
    let [of_workload, of_nameless] =
        [&workload, &nameless].map(|client| Fingerprint::of(&client.spki).to_string());
    let (_, page) = proxy.admin("/");
    let (_, status) = proxy.admin("/status.txt");
    let report = report(&proxy.pki, &proxy);
    for (fingerprint, name) in [(&of_workload, ID), (&of_nameless, &of_nameless)] {
        assert!(page.contains(&format!(">{name}<br><code>{fingerprint}</code>")), "{page}");
        assert!(status.contains(&format!(": {name}, times 1, from 127.0.0.1\n")), "{status}");
        assert!(report.contains(&format!("  {fingerprint}  {name}\n")), "{report}");
    }
    for search in ["SPIFFE%3A%2F%2Fexample.org%2Fbilling", "web.example.net", "web%40example.com"] {
        let (_, found) = proxy.admin(&format!("/?q={search}"));
        assert!(found.contains("1 of 1 clients with"), "{search}: {found}");
        assert!(found.contains(&format!("id=\"client-{of_workload}\"")), "{search}: {found}");
    }
}

#[test]
fn a_client_without_a_subject_that_an_update_would_reject_has_a_name() {
    let proxy = Proxy::new().filter("max_new_hits = 0");
    let workload = proxy.pki.workload("workload", &names());
    let proxy = proxy.start();
    assert!(proxy.curl(&workload, &[]).status.success(), "it is admitted");
    write_filter(&proxy.pki.path("lost.pkbf"), &[&proxy.lost.spki, &workload.spki]);
    let status = proxy.wait_for_status("the update to wait", |status| {
        status["filters"][0]["waiting"].is_object()
    });
    assert_eq!(status["filters"][0]["waiting"]["clients"][0]["subject"], json!(ID));
}

#[test]
fn rejections_by_name_are_counted_like_those_of_keys() {
    for reject_with in ["alert", "http-403"] {
        let rules = |name: &str| format!("allow = {{ common_names = [\"{name}\", \"lost\"] }}");
        let proxy = Proxy::new()
            .client_auth(&rules("good"))
            .policy(&format!("reject_with = \"{reject_with}\""));
        let unnamed = proxy.pki.client("unnamed", Kind::P256);
        let proxy = proxy.start();
        let mut open = Client::connect(&proxy.pki, proxy.address(), &proxy.good);
        open.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(open.head().starts_with("HTTP/1.1 200 "));
        for client in [&unnamed, &unnamed, &proxy.lost] {
            proxy.curl(client, &[]);
        }
        let status = proxy.wait_for_status("the rejections", |status| {
            status["traffic"]["test"]["client_rejections"] == 3.0
        });
        let failed = &status["traffic"]["test"]["failed_handshakes"];
        let expected = match reject_with {
            "alert" => json!({"compromised": 1.0, "not_allowed": 2.0}),
            _ => json!({}),
        };
        assert_eq!(*failed, expected);
        let (_, shown) = proxy.admin("/status.txt");
        for line in [
            "\n  rejections 3, failed handshakes ",
            "\n  action reject: 3, 3, 3\n",
            "\n  action admit: 1, 1, 1\n",
            "\n  verdict not_allowed: 2, 2, 2\n",
            "\n  verdict probable: 1, 1, 1\n",
        ] {
            assert!(shown.contains(line), "{reject_with}: no {line:?} in {shown}");
        }
        let (_, page) = proxy.admin("/");
        for part in [
            "data-label=\"rejections\">3<",
            "<i class=\"not_allowed\"></i>not_allowed<td class=\"number\" data-label=\"this hour\">2<",
            "<rect class=\"not_allowed\" ",
            "<title>2 not_allowed in the hour from ",
        ] {
            assert!(page.contains(part), "{reject_with}: no {part:?} in {page}");
        }

        // A change of the rules evicts the open connection.
        let text = proxy.configuration.clone().client_auth(&rules("another")).text();
        std::fs::write(proxy.pki.path("keygate.toml"), text).unwrap();
        proxy.wait_for_status("the eviction", |status| {
            status["traffic"]["test"]["client_rejections"] == 4.0
        });
        let (_, shown) = proxy.admin("/status.txt");
        for line in ["\n  action evict: 1, 1, 1\n", "\n  action reject: 3, 3, 3\n"] {
            assert!(shown.contains(line), "{reject_with}: no {line:?} in {shown}");
        }
    }
}
