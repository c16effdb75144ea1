//! The configurations that Istio, Envoy Gateway and Contour make for Envoy, with keygate as the
//! authorizer. Only Envoy runs here: the files in `tests/vectors/envoy` were written from the
//! sources of these projects.

use data_encoding::BASE64;
use rcgen::{CertificateParams, SanType};

use crate::support::authorizer::Authorizer;
use crate::support::client::config;
use crate::support::envoy::Envoy;
use crate::support::pki::Kind;
use crate::support::proxy::Configure;
use crate::support::write_filter;

/// File, `certificate_from`, and the status for a request with an underscore in a name.
const CONTROL_PLANES: [(&str, &str, &str); 3] =
    [("istio", "xfcc", "200"), ("envoy-gateway", "xfcc", "400"), ("contour", "attributes", "200")];

fn request(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n")
}

#[test]
fn every_control_plane_judges_each_route_and_replaces_forged_headers() {
    for (name, source, underscores) in CONTROL_PLANES {
        let authorizer = Authorizer::of("envoy").set("authorizers.certificate_from", source);
        // Envoy repeats `URI` and `DNS` in X-Forwarded-Client-Cert.
        let [several, several_lost] = ["several", "several-lost"].map(|name| {
            let names = ["a.example", "b.example"].map(str::to_owned);
            let mut parameters = CertificateParams::new(names).unwrap();
            let uris = ["spiffe://mesh/a", "spiffe://mesh/b"];
            let uris = uris.map(|uri| SanType::URI(uri.try_into().unwrap()));
            parameters.subject_alt_names.extend(uris);
            authorizer.pki.client_with(name, Kind::P256, parameters)
        });
        let filter = authorizer.pki.path("lost.pkbf");
        write_filter(&filter, &[&authorizer.lost.spki, &several_lost.spki]);
        let mut authorizer = authorizer.start();
        let page = format!("tests/vectors/envoy/{name}.yaml");
        let (directory, origin) = (authorizer.pki.directory(), authorizer.origin.address());
        let slow = |text: String| text.replace(" timeout: 0.5s", " timeout: 30s");
        let Some(envoy) = Envoy::start_with(&page, directory, origin, slow) else { return };
        let (good, lost) = (&authorizer.good, &authorizer.lost);
        let forged = |other: &[u8]| {
            let der = BASE64.encode(other);
            let pem = format!("-----BEGIN CERTIFICATE-----\n{der}\n-----END CERTIFICATE-----\n");
            let pem: String = pem.bytes().map(|byte| format!("%{byte:02X}")).collect();
            format!(
                "Client-Key-Status: allowed\r\n\
                 X-Forwarded-Client-Cert: Hash=00;Cert=\"{pem}\";Chain=\"{pem}\"\r\n"
            )
        };
        for path in ["/", "/api", "/api/", "//api/..%2f", "/API?a=/"] {
            for (client, other) in [(good, lost), (&several, &several_lost)] {
                let text = request(path, &forged(&other.der));
                let exchange = envoy.exchange(&config(&authorizer.pki, client), &text);
                // Envoy Gateway redirects to the path without escaped slashes.
                if exchange.status() == "307" {
                    continue;
                }
                assert_eq!(exchange.status(), "200", "{name}, {path}, {}", client.name);
                let received = authorizer.origin.next();
                assert_eq!(received.fields("client-key-status"), ["clean"], "{name}, {path}");
            }
            for (client, other) in [(lost, good), (&several_lost, &several)] {
                let text = request(path, &forged(&other.der));
                let exchange = envoy.exchange(&config(&authorizer.pki, client), &text);
                let is_judged = matches!(exchange.status(), "403" | "307");
                assert!(is_judged, "{name}, {path}, {}: {exchange:?}", client.name);
            }
        }
        let good = config(&authorizer.pki, good);
        let spellings = "client_key_status: allowed\r\nclient-key_status: allowed\r\n";
        let exchange = envoy.exchange(&good, &request("/", spellings));
        assert_eq!(exchange.status(), underscores, "{name}: {exchange:?}");
        if underscores == "200" {
            let received = authorizer.origin.next();
            let is_status = |field: &&String| field.replace('_', "-") == "client-key-status";
            assert_eq!(received.names().iter().filter(is_status).count(), 1, "{name}");
        }
        if name == "envoy-gateway" {
            let lost = config(&authorizer.pki, lost);
            let own = envoy.exchange(&lost, &request("/own", ""));
            assert_eq!(own.status(), "200", "as docs/authorizers.md says");
            authorizer.origin.next();
        }
        authorizer.signal("KILL");
        authorizer.keygate.ended();
        let status = if name == "envoy-gateway" { "500" } else { "403" };
        assert_eq!(envoy.get(&good), status, "{name}");
        assert_eq!(authorizer.origin.untaken(), 0, "{name}");
    }
}
