//! nginx as the upstream: over TLS with client certificates, over HTTP/2, over a Unix socket.

use std::net::SocketAddr;
use std::process::Command;

use keygate_core::spki::Fingerprint;

use crate::support::keygate::keygate;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::program::{Program, reserved_address};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, skip, wait_until, write_filter, write_revision};

/// nginx, which responds with the properties of its client. Ends with the test.
struct Nginx {
    _program: Program,
    tls: SocketAddr,
    plain: SocketAddr,
    /// The CA of its certificates.
    pki: Pki,
}

/// Starts nginx with three listeners: TLS for clients of its own CA, h2c, and a Unix socket.
fn nginx(alpn: &str) -> Nginx {
    let (pki, tls, plain) = (Pki::named("Upstream CA"), reserved_address(), reserved_address());
    let socket = pki.path("nginx.sock");
    let text = format!(
        r#"
daemon off; master_process off; pid nginx.pid; error_log error.log; worker_processes 1;
events {{}}
http {{
  access_log off;
  client_body_temp_path body; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
  server {{
    listen {tls} ssl {alpn};
    ssl_certificate server.pem; ssl_certificate_key server.key;
    ssl_client_certificate ca.pem; ssl_verify_client on;
    location / {{ return 200 "$server_protocol $ssl_client_s_dn $http_host $http_client_key_status\n"; }}
  }}
  server {{
    listen {plain} http2;
    location / {{ return 200 "$server_protocol $http_host\n"; }}
  }}
  server {{
    listen unix:{};
    location / {{ return 200 "$server_protocol unix\n"; }}
  }}
}}
"#,
        socket.display()
    );
    std::fs::write(pki.path("nginx.conf"), text).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-p").arg(pki.directory()).arg("-c").arg(pki.path("nginx.conf"));
    let program = Program::start(&mut command).listening_on(tls).listening_on(plain);
    Nginx { _program: program, tls, plain, pki }
}

struct Scene {
    pki: Pki,
    good: Party,
    configuration: Configuration,
}

/// A proxy to be in front of `server`; `extra` are more settings of the upstream.
fn scene(server: &str, extra: &str) -> Scene {
    let pki = Pki::new();
    let good = pki.client("good", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let configuration = Configuration::new("127.0.0.1:1")
        .servers(&[server])
        .upstream(extra)
        .policy("on_unchecked = \"header\"");
    Scene { pki, good, configuration }
}

impl Scene {
    /// Copies a certificate and key of another directory to ours.
    fn take(&self, theirs: &Pki, names: [&str; 2], ours: &str) {
        for (from, extension) in names.into_iter().zip(["pem", "key"]) {
            let next = self.pki.path("next");
            std::fs::copy(theirs.path(from), &next).unwrap();
            std::fs::rename(next, self.pki.path(&format!("{ours}.{extension}"))).unwrap();
        }
    }
}

const TLS: &str = "tls = { trust_anchors = \"upstream-ca.pem\", certificate = \"me.pem\", private_key = \"me.key\", server_name = \"localhost\" }";

#[test]
fn an_upstream_over_tls_gets_a_client_certificate() {
    if skip::without("nginx") {
        return;
    }
    for (alpn, http, protocol) in
        [("http2", "", "HTTP/2.0"), ("", "", "HTTP/1.1"), ("http2", "http = \"1.1\"", "HTTP/1.1")]
    {
        let nginx = nginx(alpn);
        let scene = scene(&format!("https://{}", nginx.tls), &format!("{TLS}\n{http}"));
        std::fs::copy(nginx.pki.path("ca.pem"), scene.pki.path("upstream-ca.pem")).unwrap();
        nginx.pki.client("first", Kind::P256);
        nginx.pki.client("second", Kind::P256);
        scene.take(&nginx.pki, ["first.pem", "first.key"], "me");
        let keygate = scene.configuration.start(&scene.pki);
        let send_get = || {
            let response = keygate.curl(&scene.good, &[]);
            String::from_utf8_lossy(&response.stdout).into_owned()
        };
        let host = keygate.address();
        assert_eq!(send_get(), format!("{protocol} CN=first {host} clean\n"));
        assert_eq!(send_get(), format!("{protocol} CN=first {host} clean\n"));
        let end = "keygate_certificate_not_after_timestamp_seconds{role=\"upstream_client\",service=\"test\"}";
        assert!(keygate.metric(end) > 0.0);

        // The client certificate is reloaded like other files.
        scene.take(&nginx.pki, ["second.pem", "second.key"], "me");
        wait_until("the new certificate is shown", || {
            let response = send_get();
            assert!(response.starts_with(protocol), "{response}");
            response.contains("CN=second")
        });
    }
}

#[test]
fn an_upstream_with_an_untrusted_certificate_gets_no_request() {
    if skip::without("nginx") {
        return;
    }
    let nginx = nginx("http2");
    for (anchors, name) in [(Pki::named("Another CA"), "localhost"), (Pki::new(), "other.example")]
    {
        let tls = TLS.replace("\"localhost\"", &format!("{name:?}"));
        let scene = scene(&format!("https://{}", nginx.tls), &tls);
        let ca = if name == "localhost" { &anchors } else { &nginx.pki };
        std::fs::copy(ca.path("ca.pem"), scene.pki.path("upstream-ca.pem")).unwrap();
        nginx.pki.client("me", Kind::P256);
        scene.take(&nginx.pki, ["me.pem", "me.key"], "me");
        let keygate = scene.configuration.start(&scene.pki);
        let response = keygate.curl(&scene.good, &["-w", "%{http_code}"]);
        assert!(response.stdout.ends_with(b"502"), "{}", output_text(&response));
        keygate.wait_for("a line", |line| {
            line["message"] == "upstream failed"
                && line["error"].as_str().unwrap().contains("TLS handshake with https://")
        });
    }
}

#[test]
fn client_keys_for_upstreams_are_judged_like_server_keys() {
    for (file, role) in
        [("me.pem", "upstream_client"), ("upstream-ca.pem", "upstream_trust_anchor")]
    {
        let theirs = Pki::named("Upstream CA");
        theirs.client("me", Kind::P256);
        let scene = scene("https://localhost:1", TLS);
        std::fs::copy(theirs.path("ca.pem"), scene.pki.path("upstream-ca.pem")).unwrap();
        scene.take(&theirs, ["me.pem", "me.key"], "me");
        let content = std::fs::read(scene.pki.path(file)).unwrap();
        let key = ::keygate_core::spki::keys_in(&content).remove(0).key.unwrap();

        // At a reload it is an alarm.
        let keygate_runs = scene.configuration.start(&scene.pki);
        write_revision(&scene.pki.path("lost.pkbf"), &[&key], 2);
        let line = keygate_runs.wait_for("the alarm", |line| {
            line["level"] == "ERROR" && line["message"] == "own key is compromised"
        });
        let fingerprint = Fingerprint::of(&key).to_string();
        assert!(line["error"].as_str().unwrap().contains(&fingerprint), "{line}");
        let series = format!("keygate_own_key_compromised{{role=\"{role}\",service=\"test\"}}");
        assert_eq!(keygate_runs.metric(&series), 1.0);
        drop(keygate_runs);

        // At the start it is an error.
        let config = scene.pki.path("keygate.toml");
        let output = keygate(&["validate", "--config", config.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(3), "{}", output_text(&output));
        let problem = format!("service \"test\": the key of its {} (", role.replace('_', " "));
        assert!(output_text(&output).contains(&problem), "{}", output_text(&output));
    }
}

#[test]
fn upstreams_over_h2c_and_unix_sockets_work() {
    if skip::without("nginx") {
        return;
    }
    let nginx = nginx("http2");
    let unix = format!("unix:{}", nginx.pki.path("nginx.sock").display());
    for (server, output_text) in
        [(format!("h2c://{}", nginx.plain), "HTTP/2.0 "), (unix, "HTTP/1.1 unix")]
    {
        let scene = scene(&server, "");
        let keygate = scene.configuration.start(&scene.pki);
        for version in ["--http1.1", "--http2"] {
            let response = keygate.curl(&scene.good, &[version]);
            let text = String::from_utf8_lossy(&response.stdout);
            assert!(text.starts_with(output_text), "{server}: {text}");
        }
        let connections = keygate.metric("keygate_upstream_connections_total{service=\"test\"}");
        assert!(connections <= 2.0, "one for each worker at most: {connections}");
    }
}

#[test]
fn unusable_upstream_tls_settings_are_an_error_at_the_start() {
    let scene = scene("https://localhost:1", "");
    let config = scene.pki.path("keygate.toml");
    let check = |text: &str, code: i32, problem: &str| {
        std::fs::write(&config, text).unwrap();
        let output = keygate(&["validate", "--config", config.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(code), "{}", output_text(&output));
        assert!(output_text(&output).contains(problem), "{problem}: {}", output_text(&output));
    };
    let text = scene.configuration.text();
    check(&text, 2, "services.test.upstream.tls: https://localhost:1 needs CAs");
    let h2c =
        scene.configuration.clone().servers(&["h2c://localhost:1"]).upstream("http = \"1.1\"");
    let problem = "h2c://localhost:1 speaks HTTP/2 only; remove http, or write http://";
    check(&h2c.text(), 2, &format!("services.test.upstream.http: {problem}"));
    let with = |tls: &str| scene.configuration.clone().add("services.upstream.tls", tls).text();
    check(&with("trust_anchors = \"none.pem\""), 3, "upstream.tls.trust_anchors");
    check(&with("trust_anchors = \"ca.pem\", certificate = \"server.pem\""), 2, "belong together");
    check(
        &with(
            "trust_anchors = \"ca.pem\", certificate = \"server.pem\", private_key = \"good.key\"",
        ),
        3,
        "upstream.tls.private_key",
    );
}
