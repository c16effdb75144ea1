//! A reload changes, adds and removes authorizers, while connections of askers stay open.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use crate::support::asker::{AskedKeygate, Asker, TCP, UNIX, configuration};
use crate::support::write_revision;

/// Asserts that `asker` may no longer ask: its question about a clean client is denied, or its
/// connection is closed already.
fn assert_rejected(asker: &mut Asker, scene: &AskedKeygate) {
    let answer = asker.try_ask(&[&scene.good.der]);
    assert!(answer.is_none_or(|answer| answer.status == 403));
}

#[test]
fn an_open_connection_gets_the_new_policy_and_the_new_filter() {
    let scene = AskedKeygate::start(UNIX);
    let mut asker = scene.connect();
    assert_eq!(asker.ask_about(&scene.lost).status, 403);
    scene.reconfigure(&format!("{UNIX}policy = {{ on_probable = \"header\" }}\n"), 2);
    assert_eq!(asker.ask_about(&scene.lost).status, 200, "the same connection");
    assert_eq!(asker.ask_about(&scene.good).status, 200);
    scene.reconfigure(UNIX, 3);
    write_revision(&scene.pki.path("lost.pkbf"), &[&scene.lost.spki, &scene.good.spki], 2);
    scene.keygate.wait_for_generation(4);
    assert_eq!(asker.ask_about(&scene.good).status, 403, "its key is in the filter now");
    assert_eq!(scene.keygate.metric("keygate_askers_active{service=\"edge\"}"), 1.0);
}

#[test]
fn authorizers_come_and_go_with_their_sockets() {
    let scene = AskedKeygate::start(UNIX);
    let (first, second) = (scene.pki.path("ask.sock"), scene.pki.path("second.sock"));
    let mut open = scene.connect();
    assert_eq!(open.ask_about(&scene.good).status, 200);
    let other = "\n[[authorizers]]\nname = \"second\"\nprotocol = \"http\"\n\
        certificate_from = \"client-cert\"\nlisten = \"unix:second.sock\"\n";
    scene.reconfigure(&format!("{UNIX}{other}"), 2);
    scene.keygate.wait_for("the second", |line| {
        line["message"] == "listening" && line["address"].to_string().contains("second.sock")
    });
    assert_eq!(Asker::unix(&second).ask_about(&scene.lost).status, 403);
    assert_eq!(open.ask_about(&scene.good).status, 200, "connections of the first stay");

    // The first authorizer is removed.
    let text = configuration("listen = \"unix:second.sock\"\n").replace("edge", "second");
    std::fs::write(scene.pki.path("keygate.toml"), text).unwrap();
    scene.keygate.wait_for("the end of the first", |line| {
        line["message"] == "no longer listening" && line["address"].to_string().contains("ask.sock")
    });
    assert_rejected(&mut open, &scene);
    crate::support::wait_until("the file of the first to go", || !first.exists());
    assert!(UnixStream::connect(&first).is_err());
    assert_eq!(Asker::unix(&second).ask_about(&scene.good).status, 200);
}

#[test]
fn the_connection_of_an_asker_that_may_no_longer_ask_is_closed() {
    let scene = AskedKeygate::start(TCP);
    let mut asker = Asker::tcp(scene.address());
    assert_eq!(asker.ask_about(&scene.good).status, 200);
    scene.reconfigure(&format!("{TCP}askers = {{ from = [\"192.0.2.0/24\"] }}\n"), 2);
    assert_rejected(&mut asker, &scene);
}

#[test]
fn an_authorizer_on_another_address_closes_the_connections_of_the_old_one() {
    let scene = AskedKeygate::start(UNIX);
    let mut asker = scene.connect();
    assert_eq!(asker.ask_about(&scene.good).status, 200);
    // Only that network may ask now. The peer on the Unix socket has no network.
    scene.reconfigure(&format!("{TCP}askers = {{ from = [\"192.0.2.0/24\"] }}\n"), 2);
    assert_rejected(&mut asker, &scene);
}

#[test]
fn a_reload_changes_the_mode_of_the_socket() {
    let scene = AskedKeygate::start(UNIX);
    let path = scene.pki.path("ask.sock");
    let mode = || path.symlink_metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o660);
    scene.reconfigure(&format!("{UNIX}socket_mode = \"0600\"\n"), 2);
    crate::support::wait_until("the new mode", || mode() == 0o600);
    let unknown = format!("{UNIX}socket_group = \"no such group\"\n");
    std::fs::write(scene.pki.path("keygate.toml"), configuration(&unknown)).unwrap();
    let line = scene.keygate.wait_for("the rejection", |line| {
        line["message"] == "configuration rejected, keeping the one in use"
    });
    assert!(line.to_string().contains("unix:"), "{line}");
    assert_eq!(mode(), 0o600);
}

#[test]
fn a_configuration_whose_socket_cannot_be_bound_is_rejected_as_a_whole() {
    let scene = AskedKeygate::start(UNIX);
    let text = configuration("listen = \"unix:no/such/directory/ask.sock\"\n");
    std::fs::write(scene.pki.path("keygate.toml"), text).unwrap();
    scene.keygate.wait_for("the rejection", |line| {
        line["message"] == "configuration rejected, keeping the one in use"
    });
    assert_eq!(scene.connect().ask_about(&scene.good).status, 200);
}
