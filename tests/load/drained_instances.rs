//! Hosts with two instances of keygate, one of which is drained under load. No request fails.

use std::io::{ErrorKind, Write};

use crate::support::authorizer::{Authorizer, RunningAuthorizer};
use crate::support::envoy::Envoy;
use crate::support::haproxy::HaproxyFiles;
use crate::support::http_host::{HttpHost, replaced, with_second_instance};
use crate::support::load::Load;
use crate::support::origin::Origin;
use crate::support::program::reserved_address;
use crate::support::proxy::Configure;
use crate::support::{wait_for, wait_until};

const ALLOWED: &str = r#"keygate_questions_total{result="allowed",service="edge"}"#;

/// An instance that closes its connections at once when it is drained. No health check of a host
/// fails before.
fn instance(host: &str) -> Authorizer {
    Authorizer::of(host).global("shutdown = { readiness_delay = \"0s\", drain_timeout = \"30s\" }")
}

/// Drains one instance, starts it again, then drains the other one, while `load` sends requests to
/// a host that asks both. No request fails.
fn drain_both<'a>(
    load: &Load,
    mut first: &'a mut RunningAuthorizer,
    mut second: &'a mut RunningAuthorizer,
) {
    for _ in 0..2 {
        // The instance that is drained is in use.
        load.wait_for(200);
        wait_until("questions to the instance", || first.metric(ALLOWED) > 0.0);
        first.signal("TERM");
        assert!(first.keygate.ended().success());
        load.wait_for(200);
        assert_eq!(load.failures(), Vec::<String>::new());
        first.restart();
        std::mem::swap(&mut first, &mut second);
    }
}

/// The second server of `haproxy.cfg` in `deploy/authorizer/haproxy` and `haproxy-tcp`.
fn drain_both_of_haproxy(name: &str) {
    let first = instance(name);
    let Some(files) = HaproxyFiles::of(name, &first.pki, first.origin.address()) else { return };
    let (mut first, mut second) = (first.start(), instance(name).start());
    let haproxy = files
        .replace(
            "#server keygate-2 unix@/run/keygate-2/ask.sock",
            &format!("server keygate-2 unix@{}", second.socket().display()),
        )
        .start(&first.pki);
    let load = Load::start(haproxy.address, &first.pki, &first.good);
    drain_both(&load, &mut first, &mut second);
}

#[test]
fn haproxy_fails_no_request_while_one_of_two_instances_is_drained() {
    drain_both_of_haproxy("haproxy");
}

#[test]
fn haproxy_fails_no_connection_while_one_of_two_instances_is_drained() {
    drain_both_of_haproxy("haproxy-tcp");
}

/// Guards: `max_fails=0` of both servers, and `proxy_next_upstream`, in
/// `deploy/authorizer/nginx/nginx.conf`.
#[test]
fn nginx_fails_no_request_while_one_of_two_instances_is_drained() {
    let mut second = instance("nginx").start();
    let scene =
        HttpHost::Nginx.start_with(instance("nginx"), |text| with_second_instance(&text, &second));
    let Some(mut scene) = scene else { return };
    let load = Load::start(scene.address, &scene.running.pki, &scene.running.good);
    drain_both(&load, &mut scene.running, &mut second);
}

/// Guard: `lb_try_duration` in `deploy/authorizer/caddy/Caddyfile`.
#[test]
fn caddy_fails_no_request_while_one_of_two_instances_is_drained() {
    let mut second = instance("caddy").start();
    let scene = HttpHost::Caddy.start_with(instance("caddy"), |text| {
        let first = "forward_auth unix//run/keygate/ask.sock";
        let text = replaced(&text, first, &format!("{first} unix/{}", second.socket().display()));
        // A loaded machine exceeds the documented time.
        replaced(&text, "lb_try_duration 3s", "lb_try_duration 30s")
    });
    let Some(mut scene) = scene else { return };
    let (pki, client) = (&scene.running.pki, &scene.running.good);
    // Caddy compares SNI and `Host`.
    let load = Load::to("localhost", scene.address, pki, client);
    drain_both(&load, &mut scene.running, &mut second);
}

/// Guards: `retry_policy` with `retry_back_off`, and `max_retries`, in
/// `deploy/authorizer/envoy-http/envoy.yaml`. With the default of 1 s a retry outlives a drain, and
/// `previous_hosts` excludes the instance that has restarted.
#[test]
fn envoy_over_http_fails_no_request_while_one_of_two_instances_is_drained() {
    let mut second = instance("envoy-http").start();
    let scene = HttpHost::EnvoyHttp.start_with(instance("envoy-http"), |text| {
        let first = "        - endpoint: { address: { pipe: { path: /run/keygate/ask.sock } } }\n";
        let other = first.replace("/run/keygate/ask.sock", second.socket().to_str().unwrap());
        replaced(&text, first, &format!("{first}{other}"))
    });
    let Some(mut scene) = scene else { return };
    let load = Load::start(scene.address, &scene.running.pki, &scene.running.good);
    drain_both(&load, &mut scene.running, &mut second);
}

/// The lines `#two ` of `deploy/authorizer/traefik`.
#[test]
fn traefik_fails_no_request_while_one_of_two_instances_is_drained() {
    let tcp = || {
        let address = reserved_address();
        (instance("traefik").set("authorizers.listen", address.to_string()), address)
    };
    let ((first, first_address), (second, second_address)) = (tcp(), tcp());
    let inner = reserved_address();
    let mut second = second.start();
    let scene = HttpHost::Traefik.start_with(first, |text| {
        assert!(text.contains("#two "));
        text.replace("#two ", "")
            .replace(
                "address: \"http://127.0.0.1:9191/\"",
                &format!("address: \"http://{inner}/\""),
            )
            .replace("127.0.0.1:9192", &inner.to_string())
            .replace("127.0.0.1:9191", &first_address.to_string())
            .replace("127.0.0.1:9193", &second_address.to_string())
            .replace("attempts: 20", "attempts: 100")
    });
    let Some(mut scene) = scene else { return };
    let load = Load::start(scene.address, &scene.running.pki, &scene.running.good);
    drain_both(&load, &mut scene.running, &mut second);
}

/// Health checks eject an instance that drains, before it ends.
#[test]
fn envoy_fails_no_connection_while_one_of_two_instances_is_drained() {
    let instance = || {
        let mut instance = Authorizer::of("envoy-network").set("shutdown.readiness_delay", "5m");
        // Envoy relays bytes, so that the origin ends each connection.
        instance.origin = Origin::responding(|_, tcp| {
            tcp.write_all(
                b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 6\r\n\r\nhello\n",
            )?;
            Err(ErrorKind::ConnectionAborted.into())
        });
        instance.start()
    };
    let (mut first, mut second) = (instance(), instance());
    let change = |text: String| {
        let line = text.lines().find(|line| line.contains("pipe: {")).unwrap().to_owned();
        let other = second.socket().display().to_string();
        let other = line.replace(&first.socket().display().to_string(), &other);
        text.replace(&line, &format!("{line}\n{other}"))
    };
    let (directory, origin) = (first.pki.directory(), first.origin.address());
    let Some(envoy) = Envoy::start("envoy-network", directory, origin, change) else { return };
    let load = Load::start(envoy.address, &first.pki, &first.good);
    let until = |instance: &RunningAuthorizer, is_asked: bool| {
        wait_for("another set of healthy instances", || {
            let before = instance.metric(ALLOWED);
            load.wait_for(50);
            let now = instance.metric(ALLOWED);
            if (now > before) == is_asked { Ok(()) } else { Err(now.to_string()) }
        });
    };
    let [mut drained, mut other] = [&mut first, &mut second];
    for _ in 0..2 {
        until(drained, true);
        drained.signal("TERM");
        until(drained, false);
        drained.signal("TERM"); // the second one ends the process
        drained.keygate.ended();
        load.wait_for(200);
        assert_eq!(load.failures(), Vec::<String>::new());
        drained.restart();
        until(drained, true);
        std::mem::swap(&mut drained, &mut other);
    }
    assert_eq!(load.failures(), Vec::<String>::new());
}
