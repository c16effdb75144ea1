//! A restart behind clients with kept-alive connections: one process drains, another takes over,
//! and no request fails.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::client::config;
use crate::support::keygate::Keygate;
use crate::support::load::{connect, send_get};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki};
use crate::support::program::{Program, reserved_address};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, skip, wait_until, write_filter};

/// A client keeps its connection until keygate closes it, and then connects to an instance that is
/// ready. A load balancer that checks `/readyz` does the same.
#[test]
fn no_request_fails_while_one_instance_drains_and_another_takes_over() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let good = pki.client("good", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let text =
        Configuration::new(origin.address()).global("shutdown = { readiness_delay = \"10s\" }");
    let mut first = text.start(&pki);
    let second = text.start(&pki);
    let config = Arc::new(config(&pki, &good));
    let (stop, responses) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let leaves = Arc::new(AtomicBool::new(false));
    let addresses: [SocketAddr; 2] = [first.address(), second.address()];
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (config, stop, responses, leaves) = (
                Arc::clone(&config),
                Arc::clone(&stop),
                Arc::clone(&responses),
                Arc::clone(&leaves),
            );
            std::thread::spawn(move || {
                let mut kept = None;
                while !stop.load(Ordering::Relaxed) {
                    let address = addresses[usize::from(leaves.load(Ordering::Relaxed))];
                    let mut connection =
                        kept.take().unwrap_or_else(|| connect(address, &config).unwrap());
                    let is_reusable = send_get(&mut connection, address, false).unwrap();
                    responses.fetch_add(1, Ordering::Relaxed);
                    kept = is_reusable.then_some(connection);
                }
            })
        })
        .collect();
    let wait_for = |more: usize| {
        let wanted = responses.load(Ordering::Relaxed) + more;
        wait_until("more responses", || responses.load(Ordering::Relaxed) >= wanted);
    };
    wait_for(200);
    first.signal("TERM");
    first.wait_for("a line", |line| line["message"] == "no longer ready");
    assert_eq!(first.admin("/readyz").0, 503);
    leaves.store(true, Ordering::Relaxed);
    assert!(first.ended().success());
    let wanted = responses.load(Ordering::Relaxed) + 200;
    wait_until("more responses", || responses.load(Ordering::Relaxed) >= wanted);
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
}

/// HAProxy in front checks `/readyz` of both instances; h2load is many clients. `timeout check` is
/// `inter` by default, and a short one takes both servers out on a busy machine.
#[test]
fn behind_haproxy_h2load_notices_no_restart() {
    if skip::without("haproxy") || skip::without("h2load") {
        return;
    }
    let (pki, origin) = (Pki::new(), Origin::start());
    write_filter(&pki.path("lost.pkbf"), &[]);
    let optional = "policy = { on_unchecked = \"flag\" }";
    let text = Configuration::new(origin.address())
        .global("log = { level = \"error,keygate::cli=info,keygate::server=info\" }")
        .service(optional)
        .client_auth("mode = \"optional\"")
        .global("shutdown = { readiness_delay = \"10s\" }");
    let mut first = text.start(&pki);
    let second = text.start(&pki);
    let front = reserved_address();
    let server = |keygate: &Keygate, name: &str| {
        format!(
            " server {name} {} check addr 127.0.0.1 port {} inter 1s fall 1 rise 1\n",
            keygate.address(),
            keygate.admin_address().port()
        )
    };
    let haproxy = format!(
        "defaults\n mode tcp\n timeout connect 60s\n timeout client 60s\n timeout server 60s\n timeout check 60s\n\
         listen front\n bind {front}\n option httpchk GET /readyz\n option redispatch\n retries 3\n{}{}",
        server(&first, "first"),
        server(&second, "second")
    );
    std::fs::write(pki.path("haproxy.cfg"), haproxy).unwrap();
    let mut command = Command::new("haproxy");
    command.arg("-db").arg("-f").arg(pki.path("haproxy.cfg"));
    let _haproxy = Program::start(&mut command).listening_on(front);
    let url = format!("https://{front}/");
    // Each run has many clients with new connections.
    let run = move || crate::support::system("h2load", &["-n", "400", "-c", "8", "-m", "4", &url]);
    let has_ended = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&has_ended);
    let crowd = std::thread::spawn(move || {
        let mut outputs = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            outputs.push(run());
        }
        outputs.push(run()); // with one instance
        outputs
    });
    let requests = "keygate_requests_total{code=\"2xx\",service=\"test\"}";
    wait_until("the crowd is at it", || first.metric(requests) > 0.0);
    first.signal("TERM");
    assert!(first.ended().success());
    has_ended.store(true, Ordering::Relaxed);
    for output in crowd.join().unwrap() {
        let text = output_text(&output);
        assert!(text.contains("400 succeeded, 0 failed, 0 errored"), "{text}");
    }
}
