//! Traefik with `forwardAuth` (`deploy/authorizer/traefik`).

use super::http_hosts::{self, checks_of_http_hosts};
use crate::support::client::{Client, config, config_of};
use crate::support::http_host::{GET, HostScene, HttpHost};
use crate::support::program::reserved_address;
use crate::support::proxy::Configure;
use crate::support::{spellings, write_revision};

const HOST: HttpHost = HttpHost::Traefik;

checks_of_http_hosts!(HOST);

/// Traefik asks for certificates and does not verify them.
fn unverified(text: String) -> String {
    text.replace(
        "clientAuthType: RequireAndVerifyClientCert",
        "clientAuthType: RequireAnyClientCert",
    )
}

#[test]
fn certificates_that_traefik_does_not_verify_are_verified() {
    http_hosts::verifies_by_itself(HOST, unverified);
}

#[test]
fn a_certificate_that_traefik_does_not_verify_is_no_unchecked_one() {
    http_hosts::rejects_the_unverified_although_unchecked_are_flagged(HOST, |text| {
        text.replace(
            "clientAuthType: RequireAndVerifyClientCert",
            "clientAuthType: RequestClientCert",
        )
    });
}

#[test]
fn a_client_that_expires_is_rejected_if_keygate_verifies() {
    http_hosts::rejects_an_expired_client(HOST, unverified);
}

/// Go resumes no session of a client that has expired, and the full handshake fails.
#[test]
fn traefik_itself_rejects_a_client_that_has_expired() {
    let Some(scene) = HOST.start() else { return };
    let versions = [&rustls::version::TLS12, &rustls::version::TLS13];
    let (configs, brief) = scene.pki.with_brief_client(|brief| {
        versions.map(|version| {
            let config = config_of(&scene.pki, &[version], Some(brief));
            let statuses = [scene.get(&config), scene.get(&config)];
            (config, statuses)
        })
    });
    brief.wait_for_expiry();
    for (config, statuses) in configs {
        assert_eq!(statuses, ["200", "200"]);
        let mut client = Client::with(config, scene.address);
        let _ = client.try_send(GET); // an error under TLS 1.2
        assert_eq!(client.whatever_comes(), "");
    }
}

/// Since Traefik 3.7 an explicit `trustForwardHeader: false` removes the certificate from the
/// question. Every client is denied then, and the log names the switch.
#[test]
fn the_switch_that_removes_the_certificate_rejects_every_client() {
    let switch = "        trustForwardHeader: true\n";
    let unset = |text: String| text.replace(switch, "");
    let Some(scene) = HOST.start_with(HOST.authorizer(), unset) else { return };
    assert_eq!(scene.get(&config(&scene.pki, &scene.good)), "200");
    assert_eq!(scene.get(&config(&scene.pki, &scene.lost)), "403");
    drop(scene);
    let off = |text: String| text.replace(switch, "        trustForwardHeader: false\n");
    let scene = HOST.start_with(HOST.authorizer(), off).unwrap();
    for client in [&scene.good, &scene.lost] {
        assert_eq!(scene.get(&config(&scene.pki, client)), "403");
    }
    let line = scene.wait_for("the reason", |line| line["result"] == "malformed");
    assert!(line["reason"].as_str().unwrap().contains("trustForwardHeader"), "{line}");
}

/// Traefik sends the chain that the client has presented.
#[test]
fn the_key_of_an_intermediate_is_judged() {
    let authorizer = HOST
        .authorizer()
        .asked_policy("judge = \"chain\"")
        .add("authorizers.client_auth", "trust_anchors = \"ca.pem\"");
    let [(clean, _), (listed, issuer)] =
        ["clean", "listed"].map(|name| authorizer.pki.client_of_intermediate(name));
    write_revision(&authorizer.pki.path("lost.pkbf"), &[&issuer], 1);
    let Some(scene) = HOST.start_with(authorizer, |text| text) else { return };
    for (client, expected) in [(&clean, "HTTP/1.1 200"), (&listed, "HTTP/1.1 403")] {
        let mut client = Client::with_chain(&scene.pki, scene.address, client);
        client.send(GET);
        assert!(client.head().starts_with(expected));
    }
}

/// Guard: the middlewares of the entry point, not of a router.
#[test]
fn a_second_router_is_judged_as_well() {
    let second = "    api:\n      entryPoints: [edge]\n      rule: \"PathPrefix(`/api`)\"\n      service: app\n      tls: {}\n";
    http_hosts::judges_every_route(HOST, |text| {
        text.replace("  routers:\n", &format!("  routers:\n{second}"))
    });
}

#[test]
fn every_spelling_of_a_listed_key_is_rejected() {
    http_hosts::judges_every_spelling(HOST, &spellings::OF_GO);
}

/// The lines `#two ` of both files. Guards: `retry`, `responseHeaderTimeout`.
#[test]
fn a_second_instance_answers_if_the_first_one_is_killed_or_hangs() {
    let [first, second, inner] = [(); 3].map(|()| reserved_address().to_string());
    let authorizer = |address: &str| HOST.authorizer().set("authorizers.listen", address);
    let _second = authorizer(&second).start();
    let change = |text: String| {
        assert!(text.contains("#two "));
        text.replace("#two ", "")
            .replace(
                "address: \"http://127.0.0.1:9191/\"",
                &format!("address: \"http://{inner}/\""),
            )
            .replace("127.0.0.1:9192", &inner)
            .replace("127.0.0.1:9193", &second)
    };
    let Some(mut scene) = HOST.start_with(authorizer(&first), change) else { return };
    let good = config(&scene.pki, &scene.good);
    let served = |scene: &HostScene, state| {
        for _ in 0..6 {
            assert_eq!(scene.get(&good), "200", "{state}");
        }
    };
    scene.signal("STOP");
    served(&scene, "the first one hangs");
    scene.signal("KILL");
    scene.running.keygate.ended();
    served(&scene, "the first one was killed");
}
