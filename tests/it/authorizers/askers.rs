//! Permitted askers: user ids, networks and client certificates (`src/ask/asker.rs`,
//! `src/listen/unix.rs`). The tests first show that a peer is answered without the restriction.

use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use rustls::ALL_VERSIONS;

use crate::support::asker::{AskedKeygate, Asker, TCP, UNIX, configuration};
use crate::support::client::{config, config_of};
use crate::support::keygate::{BINARY, Keygate, keygate};
use crate::support::pki::{Kind, Pki};
use crate::support::{output_text, system, wait_until, write_filter};

fn own_uid() -> u32 {
    let output = system("id", &["-u"]);
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

#[test]
fn only_the_configured_users_may_ask_over_a_unix_socket() {
    let (own, other) = (own_uid(), own_uid() + 4242);
    let unrestricted = AskedKeygate::start(UNIX);
    assert_eq!(
        unrestricted.connect().ask_about(&unrestricted.good).status,
        200,
        "no uids: every user"
    );

    let edge = |uid: u32| format!("{UNIX}askers = {{ uids = [{uid}] }}\n");
    let scene = AskedKeygate::start(&edge(other));
    assert!(scene.connect().try_ask(&[&scene.good.der]).is_none(), "closed without an answer");
    let line = scene
        .keygate
        .wait_for("the line", |line| line["message"] == "peer may not ask, closing connection");
    assert_eq!((&line["service"], &line["asker"]), (&"edge".into(), &format!("uid {own}").into()));
    assert_eq!(line["reason"], "its user id is not in askers.uids");
    assert_eq!(scene.questions("not_allowed"), 1.0);
    assert_eq!(scene.questions("allowed"), 0.0);
    scene.reconfigure(&edge(own), 2);
    assert_eq!(scene.connect().ask_about(&scene.good).status, 200);
}

#[test]
fn only_the_configured_networks_may_ask_over_tcp() {
    let scene = AskedKeygate::start(TCP);
    let address = scene.address();
    assert_eq!(Asker::tcp(address).ask_about(&scene.good).status, 200);
    scene.reconfigure(&format!("{TCP}askers = {{ from = [\"192.0.2.0/24\"] }}\n"), 2);
    assert!(Asker::tcp(address).try_ask(&[&scene.good.der]).is_none());
    let line = scene.keygate.wait_for("the line", |line| {
        line["message"] == "peer may not ask, closing connection" && line["asker"] == "127.0.0.1"
    });
    assert_eq!(line["reason"], "its address is not in askers.from");
    scene.reconfigure(&format!("{TCP}askers = {{ from = [\"127.0.0.0/8\"] }}\n"), 3);
    assert_eq!(Asker::tcp(address).ask_about(&scene.good).status, 200);
}

#[test]
fn only_peers_with_a_certificate_of_the_ca_and_a_key_in_no_filter_may_ask() {
    const TLS: &str = "tls = { certificate = \"server.pem\", private_key = \"server.key\" }\n";
    const MUTUAL: &str = "tls = { certificate = \"server.pem\", private_key = \"server.key\", client_ca = \"ca.pem\" }\n";
    let open = AskedKeygate::start(&format!("{TCP}{TLS}"));
    let mut anonymous = Asker::tls(config_of(&open.pki, ALL_VERSIONS, None), open.address());
    assert_eq!(anonymous.ask_about(&open.good).status, 200, "without client_ca: every peer");

    let scene = AskedKeygate::start(&format!("{TCP}{MUTUAL}"));
    let (pki, address) = (&scene.pki, scene.address());
    let asks = |config| Asker::tls(config, address).try_ask(&[&scene.good.der]);
    let host = pki.client("host", Kind::P256);
    for version in ALL_VERSIONS {
        let anonymous = config_of(pki, &[version], None);
        assert!(asks(anonymous).is_none(), "no certificate");
        let stranger = Pki::new().client("stranger", Kind::P256);
        assert!(asks(config_of(pki, &[version], Some(&stranger))).is_none(), "another CA");
        let lost = config_of(pki, &[version], Some(&scene.lost));
        assert!(asks(lost).is_none(), "its key is in the filter");
        let resuming = config_of(pki, &[version], Some(&host));
        for session in ["full", "resumed"] {
            assert_eq!(asks(resuming.clone()).unwrap().status, 200, "{session}");
        }
    }
    assert_eq!(scene.questions("not_allowed"), 6.0);
    assert!(Asker::tcp(address).try_ask(&[&scene.good.der]).is_none(), "no TLS");
    for reason in [
        "it has no certificate",
        "its certificate is not of tls.client_ca",
        "its key is compromised or cannot be checked",
        "the TLS handshake failed",
    ] {
        scene.keygate.wait_for(reason, |line| {
            line["message"] == "peer may not ask, closing connection" && line["reason"] == reason
        });
    }
}

/// A load balancer or Kubernetes checks a TCP port so. The alert of rejected askers must not fire.
#[test]
fn a_connection_that_ends_before_its_handshake_is_no_rejected_asker() {
    let tls = "tls = { certificate = \"server.pem\", private_key = \"server.key\" }\n";
    let scene = AskedKeygate::start(&format!("{TCP}{tls}"));
    for _ in 0..20 {
        let mut probe = TcpStream::connect(scene.address()).unwrap();
        probe.shutdown(Shutdown::Write).unwrap();
        assert_eq!(probe.read(&mut [0]).unwrap(), 0, "keygate has closed the connection");
    }
    assert!(Asker::tcp(scene.address()).try_ask(&[&scene.good.der]).is_none(), "no TLS");
    wait_until("the other peer", || scene.questions("not_allowed") >= 1.0);
    assert_eq!(scene.questions("not_allowed"), 1.0);
}

#[test]
fn the_connection_of_an_asker_whose_key_a_new_filter_has_is_closed() {
    let mutual = "tls = { certificate = \"server.pem\", private_key = \"server.key\", client_ca = \"ca.pem\" }\n";
    let scene = AskedKeygate::start(&format!("{TCP}{mutual}"));
    let host = scene.pki.client("host", Kind::P256);
    let mut asker = Asker::tls(config(&scene.pki, &host), scene.address());
    assert_eq!(asker.ask_about(&scene.good).status, 200);
    write_filter(&scene.pki.path("lost.pkbf"), &[&scene.lost.spki, &host.spki]);
    scene.keygate.wait_for_generation(2);
    let answer = asker.try_ask(&[&scene.good.der]);
    assert!(answer.is_none_or(|answer| answer.status == 403), "denied, or closed already");
    assert!(Asker::tls(config(&scene.pki, &host), scene.address()).try_ask(&[]).is_none());
    scene.keygate.wait_for("the reason", |line| {
        line["message"] == "peer may not ask, closing connection"
            && line["reason"] == "its key is compromised or cannot be checked"
    });
}

#[test]
fn the_socket_has_its_mode_and_group_before_a_connection_is_possible_and_goes_with_the_process() {
    let pki = Pki::new();
    let path = pki.path("ask.sock");
    // A process that was killed has left its file.
    drop(UnixListener::bind(&path).unwrap());
    let group = system("id", &["-g"]);
    let group = String::from_utf8(group.stdout).unwrap().trim().to_owned();
    let edge = format!("{UNIX}socket_mode = \"0600\"\nsocket_group = \"{group}\"\n");
    let mut scene = AskedKeygate::with_pki(pki, &edge);
    let metadata = path.symlink_metadata().unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_eq!(metadata.gid().to_string(), group);

    // A second process does not take over a socket that is in use.
    let other = scene.pki.path("other.toml");
    std::fs::write(&other, configuration(&edge)).unwrap();
    let output = keygate(&["run", "--config", other.to_str().unwrap()]);
    assert!(!output.status.success());
    assert!(output_text(&output).contains("ask.sock"), "{}", output_text(&output));
    assert_eq!(scene.connect().ask_about(&scene.good).status, 200);

    scene.keygate.signal("TERM");
    assert!(scene.keygate.ended().success());
    assert!(!path.exists(), "the file is removed at the end");
    assert!(UnixStream::connect(&path).is_err());
}

/// The path of the configuration has no directory then, and the sandbox needs one for the socket.
#[test]
fn a_relative_socket_is_bound_if_the_configuration_is_in_the_working_directory() {
    let pki = Pki::new();
    write_filter(&pki.path("lost.pkbf"), &[]);
    let directory = pki.directory().display();
    let script = format!("cd {directory} && exec {BINARY} run --config keygate.toml");
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    let _keygate = Keygate::run_by(command, &pki, &configuration(UNIX));
    UnixStream::connect(pki.path("ask.sock")).unwrap();
}

#[test]
fn a_file_that_is_no_socket_stays_and_is_an_error() {
    let pki = Pki::new();
    std::fs::write(pki.path("ask.sock"), "precious").unwrap();
    write_filter(&pki.path("lost.pkbf"), &[]);
    let path = pki.path("keygate.toml");
    std::fs::write(&path, configuration(UNIX)).unwrap();
    let output = keygate(&["run", "--config", path.to_str().unwrap()]);
    assert!(!output.status.success());
    assert!(output_text(&output).contains("cannot listen on unix:"), "{}", output_text(&output));
    assert_eq!(std::fs::read_to_string(pki.path("ask.sock")).unwrap(), "precious");
}
