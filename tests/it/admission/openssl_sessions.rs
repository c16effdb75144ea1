//! Sessions that `openssl s_client` saves to a file and resumes.
//!
//! Guard: `Ticketer::new` in `crates/core/src/tls/server_config.rs`. If ticket keys or a session store outlived
//! a snapshot, a session of another service or of an older snapshot would be resumed.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::origin::Received;
use crate::support::pki::Party;
use crate::support::proxy::{Configure, Proxy, Running};
use crate::support::{write_filter, write_revision};

/// With the ticket of the client, or with the session store of the server.
const WAYS: [&[&str]; 3] = [&["-tls1_2"], &["-tls1_2", "-no_ticket"], &["-tls1_3"]];

/// Two services, `a.example` and `b.example`, on one address.
fn scene() -> Running {
    let mut proxy =
        Proxy::new().service("server_names = [\"a.example\"]").policy("on_unchecked = \"header\"");
    proxy.configuration = proxy.configuration.second_service("server_names = [\"b.example\"]");
    write_filter(&proxy.pki.path("lost.pkbf"), &[]);
    proxy.start()
}

impl Running {
    /// Sends a GET for `name`, and returns the output of `openssl`.
    fn openssl_get(&self, client: &Party, way: &[&str], name: &str, session: &[&str]) -> String {
        let mut openssl = Command::new("openssl")
            .args(["s_client", "-ign_eof"])
            .args(way)
            .args(["-servername", name, "-connect"])
            .arg(self.keygate.address().to_string())
            .arg("-CAfile")
            .arg(self.pki.path("ca.pem"))
            .arg("-cert")
            .arg(&client.certificate)
            .arg("-key")
            .arg(&client.private_key)
            .args(session)
            .current_dir(self.pki.directory())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let request = format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
        // Fails if keygate rejects the client before openssl has read the request.
        let _ = openssl.stdin.take().unwrap().write_all(request.as_bytes());
        let output = openssl.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr)
    }
}

#[test]
fn a_session_is_resumed_only_on_its_own_service() {
    for way in WAYS {
        let scene = scene();
        let first = scene.openssl_get(&scene.good, way, "a.example", &["-sess_out", "session"]);
        assert!(first.contains("New, TLSv1.") && first.contains("hello"), "{first}");
        let full = scene.origin.next();
        let again = scene.openssl_get(&scene.good, way, "a.example", &["-sess_in", "session"]);
        assert!(again.contains("Reused, TLSv1.") && again.contains("hello"), "{again}");
        let resumed = scene.origin.next();
        let head = |request: &Received| request.head_without("x-request-id");
        assert_eq!(
            head(&resumed),
            head(&full),
            "verdict and certificate are the same, to the byte"
        );
        assert_eq!(full.fields("client-key-status"), ["clean"]);
        assert_eq!(full.fields("client-cert").len(), 1);
        let elsewhere = scene.openssl_get(&scene.good, way, "b.example", &["-sess_in", "session"]);
        assert!(elsewhere.contains("New, TLSv1.") && elsewhere.contains("hello"), "{elsewhere}");
    }
}

#[test]
fn a_session_older_than_the_filter_is_not_resumed() {
    for way in WAYS {
        let scene = scene();
        for (client, file) in [(&scene.good, "good.session"), (&scene.lost, "lost.session")] {
            let first = scene.openssl_get(client, way, "a.example", &["-sess_out", file]);
            assert!(first.contains("hello"), "{first}");
        }
        write_revision(&scene.pki.path("lost.pkbf"), &[&scene.lost.spki], 2);
        scene.keygate.wait_for_generation(2);
        let good = scene.openssl_get(&scene.good, way, "a.example", &["-sess_in", "good.session"]);
        assert!(good.contains("New, TLSv1.") && good.contains("hello"), "{good}");
        let lost = scene.openssl_get(&scene.lost, way, "a.example", &["-sess_in", "lost.session"]);
        assert!(lost.contains("SSL alert number 49") && !lost.contains("hello"), "{lost}");
        assert!(!lost.contains("Reused"), "{lost}");
    }
}
