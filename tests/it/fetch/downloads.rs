//! Downloads of a filter from nginx over TLS: conditions, continuation, interruptions.
//!
//! Guards: `download` and `resumable` in `src/fetch/download.rs`, `get` in `src/fetch/client.rs`,
//! `is_in_use` in `src/fetch/state.rs`.

use std::fs::{Permissions, read, read_to_string, write};
use std::os::unix::fs::PermissionsExt;

use super::scene::{Scene, names, rejected, write_large};
use crate::support::keygate::BINARY;
use crate::support::mirror::{AT_ONCE, Fetch};
use crate::support::pki::Pki;
use crate::support::proxy::Configure;
use crate::support::{output_text, skip, system, wait_until};

#[test]
fn a_file_is_downloaded_once_and_then_requested_with_conditions() {
    let Some(scene) = Scene::new("") else { return };
    let first = scene.publish(1);
    let row = scene.fetched();
    assert_eq!(row["result"], "installed");
    assert_eq!((row["kind"].as_str(), row["name"].as_str()), (Some("filter"), Some("lost")));
    assert_eq!((row["entries"].as_u64(), row["resumed"].as_u64()), (Some(1), Some(0)));
    assert_eq!(row["bytes"].as_u64().unwrap(), first.len() as u64);
    assert!(read(scene.target()).unwrap() == first);
    let row = scene.fetched();
    assert_eq!((row["result"].as_str(), row["bytes"].as_u64()), (Some("unchanged"), Some(0)));

    let second = scene.publish(2);
    std::fs::set_permissions(scene.target(), Permissions::from_mode(0o640)).unwrap();
    assert_eq!(scene.fetched()["result"], "installed");
    assert!(read(scene.target()).unwrap() == second);
    let mode = std::fs::metadata(scene.target()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o640, "a file keeps its mode");

    // A file that was changed here is not the one that the validators are about.
    write(scene.target(), b"pkbfv1").unwrap();
    assert_eq!(scene.fetched()["result"], "installed");
    assert!(read(scene.target()).unwrap() == second);
    let requests = scene.mirror.requests(4);
    assert!(requests[0].contains(" 200 ") && requests[0].contains("if-none-match=- "));
    assert!(requests[1].contains(" 304 ") && !requests[1].contains("if-none-match=- "));
    assert!(requests[2].contains(" 200 ") && !requests[2].contains("if-none-match=- "));
    assert!(requests[3].contains(" 200 ") && requests[3].contains("if-none-match=- "));
    assert_eq!(names(&scene.pki.path(".lost.pkbf.fetch")), ["lock", "state.json"]);
}

#[test]
fn a_killed_download_leaves_the_file_in_use_and_is_continued() {
    let Some(scene) = Scene::new("") else { return };
    let first = scene.publish(1);
    scene.fetched();
    let second = scene.publish(2);
    scene.kill_download();
    assert!(read(scene.target()).unwrap() == first);
    let row = scene.fetched();
    assert_eq!(row["result"], "installed");
    let (bytes, resumed) = (row["bytes"].as_u64().unwrap(), row["resumed"].as_u64().unwrap());
    assert!(resumed >= AT_ONCE && bytes + resumed == second.len() as u64, "{row}");
    assert!(read(scene.target()).unwrap() == second);
    let requests = scene.mirror.requests(3);
    let last = requests.last().unwrap();
    assert!(last.contains(&format!(" 206 range=bytes={resumed}- if-range=\\x22")), "{last}");
}

#[test]
fn a_part_of_another_version_is_not_continued() {
    let Some(scene) = Scene::new("") else { return };
    scene.publish(1);
    scene.kill_download();
    let second = scene.publish(2);
    assert_eq!(scene.fetched()["resumed"], 0);
    assert!(read(scene.target()).unwrap() == second);
}

/// A power failure may leave zeros in place of bytes that were not synced.
#[test]
fn a_part_of_an_earlier_boot_or_of_another_source_is_not_continued() {
    let Some(mut scene) = Scene::new("") else { return };
    scene.publish(1);
    scene.kill_download();
    let record = scene.pki.path(".lost.pkbf.fetch/part.json");
    let boot = read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let text = read_to_string(&record).unwrap();
    assert!(text.contains(boot.trim_end()), "{text}");
    let other = text.replace(boot.trim_end(), "0e5c7d3a-0000-4000-8000-000000000000");
    write(&record, other).unwrap();
    assert_eq!(scene.fetched()["resumed"], 0);

    let second = scene.publish(2);
    scene.kill_download();
    std::fs::copy(scene.pki.path("ca.pem"), scene.pki.path("other.pem")).unwrap();
    scene.configuration = scene.configuration.set("filters.source.trust_anchors", "other.pem");
    scene.configure();
    assert_eq!(scene.fetched()["resumed"], 0);
    assert!(read(scene.target()).unwrap() == second);
}

#[test]
fn a_server_that_dies_leaves_the_file_in_use_and_a_part() {
    let Some(mut scene) = Scene::new("") else { return };
    let first = scene.publish(1);
    scene.fetched();
    let second = scene.publish(2);
    let run = scene.start_slowly();
    scene.mirror.kill();
    let output = run.ended();
    rejected(&output, "/lost.pkbf: the response broke off after ");
    assert!(read(scene.target()).unwrap() == first);
    scene.fails("Connection refused");
    scene.mirror.slow_down(false);
    scene.mirror.restart();
    assert!(scene.fetched()["resumed"].as_u64().unwrap() >= AT_ONCE);
    assert!(read(scene.target()).unwrap() == second);
}

#[test]
fn a_server_that_stalls_leaves_the_file_in_use_and_a_part() {
    let Some(scene) = Scene::new(", stall_timeout = \"2s\"") else { return };
    let first = scene.publish(1);
    scene.fetched();
    let second = scene.publish(2);
    let run = scene.start_slowly();
    scene.mirror.signal("STOP");
    let output = run.ended();
    scene.mirror.signal("CONT");
    rejected(&output, "/lost.pkbf: no byte for 2s; check the network");
    assert!(read(scene.target()).unwrap() == first);
    scene.mirror.slow_down(false);
    assert!(scene.fetched()["resumed"].as_u64().unwrap() >= AT_ONCE);
    assert!(read(scene.target()).unwrap() == second);
}

#[test]
fn a_download_that_trickles_ends_after_its_time() {
    let Some(scene) = Scene::new(", timeout = \"3s\"") else { return };
    scene.publish(1);
    scene.mirror.slow_down(true);
    scene.fails("not complete within 3s; raise timeout");
}

#[test]
fn a_redirect_is_not_followed() {
    let Some(mut scene) = Scene::new("") else { return };
    scene.publish(1);
    scene.fetched();
    let moved = scene.mirror.url("moved/lost.pkbf");
    scene.configuration = scene.configuration.set("filters.source.url", moved.as_str());
    scene.configure();
    let address = scene.mirror.url("lost.pkbf");
    scene.fails(&format!(
        "filter \"lost\": {moved}: 301 Moved Permanently to {address:?}: redirects are followed to redirect_hosts"
    ));
}

#[test]
fn a_server_without_a_certificate_of_the_cas_is_rejected() {
    let Some(mut scene) = Scene::new("") else { return };
    scene.publish(1);
    let other = Pki::new();
    std::fs::copy(other.path("ca.pem"), scene.pki.path("other.pem")).unwrap();
    scene.configuration = scene.configuration.set("filters.source.trust_anchors", "other.pem");
    scene.configure();
    scene.fails("TLS handshake failed: ");
    // The CAs of the system do not include the CA of the test.
    scene.configuration = scene.configuration.unset("filters.source.trust_anchors");
    scene.configure();
    let text = output_text(&scene.run(&[]));
    assert!(text.contains("TLS handshake failed") || text.contains("no CAs: "), "{text}");
    assert!(!scene.target().exists());
}

/// `openssl req -x509` makes a CA certificate.
#[test]
fn a_server_whose_certificate_is_that_of_a_ca_is_rejected_with_the_remedy() {
    if skip::without("openssl") {
        return;
    }
    let Some(mut scene) = Scene::new("") else { return };
    scene.publish(1);
    let [certificate, key] = ["server.pem", "server.key"].map(|name| scene.pki.path(name));
    let made = system(
        "openssl",
        &[
            &["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=mirror"][..],
            &["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key.to_str().unwrap()],
            &["-out", certificate.to_str().unwrap()],
        ]
        .concat(),
    );
    assert!(made.status.success(), "{}", output_text(&made));
    scene.configuration = scene.configuration.set("filters.source.trust_anchors", "server.pem");
    scene.configure();
    scene.mirror.kill();
    scene.mirror.restart();
    scene.fails(
        "the certificate belongs to a CA, not to a client or server; give the CAs of the server",
    );
}

#[test]
fn two_runs_do_not_work_on_one_file() {
    let Some(scene) = Scene::new("") else { return };
    let first = scene.publish(1);
    let run = scene.start_slowly();
    scene.fails("lost.pkbf.fetch/lock: another keygate fetch is working on this file");
    run.kill();
    scene.mirror.slow_down(false);
    scene.fetched();
    assert!(read(scene.target()).unwrap() == first);
}

#[test]
fn repeated_runs_end_with_sigterm_and_write_metrics() {
    let Some(scene) = Scene::new("") else { return };
    let first = scene.publish(1);
    let textfile = scene.pki.path("fetch.prom");
    let run = scene.start(&["--every", "50ms", "--textfile", textfile.to_str().unwrap()]);
    let value = |series: &str| {
        let text = read_to_string(&textfile).unwrap_or_default();
        let series = format!("{series}{{kind=\"filter\",name=\"lost\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&series).map(str::to_owned));
        line.map(|value| value.parse::<u64>().unwrap())
    };
    let wait = |series: &str, least: u64| {
        let met = || value(series).is_some_and(|found| found >= least);
        wait_until(series, met);
    };
    wait("keygate_fetch_installed_total", 1);
    assert!(read(scene.target()).unwrap() == first);
    assert!(value("keygate_fetch_last_success_timestamp_seconds").unwrap() > 1_700_000_000);
    assert_eq!(value("keygate_fetch_failures_total"), Some(0));
    let second = scene.publish(2);
    wait("keygate_fetch_installed_total", 2);
    assert!(read(scene.target()).unwrap() == second);
    write(scene.mirror.path("lost.pkbf"), b"<html>").unwrap();
    wait("keygate_fetch_failures_total", 1);
    // A configuration that is wrong for a while ends nothing.
    write(scene.pki.path("keygate.toml"), b"wrong").unwrap();
    let before = value("keygate_fetch_failures_total").unwrap();
    scene.configure();
    wait("keygate_fetch_failures_total", before + 2);
    run.signal("TERM");
    let output = run.ended();
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
    assert!(read(scene.target()).unwrap() == second);
    // The counters go on where they were.
    let failures = value("keygate_fetch_failures_total").unwrap();
    scene.run(&["--textfile", textfile.to_str().unwrap()]);
    wait("keygate_fetch_failures_total", failures + 1);
}

#[test]
fn wrong_usage_and_files_that_cannot_be_written_are_errors() {
    let Some(mut scene) = Scene::new("") else { return };
    scene.publish(1);
    let output = scene.run(&["--textfile", "/nonexistent/a.prom"]);
    rejected(&output, "--textfile /nonexistent/a.prom: ");
    assert!(scene.target().exists(), "the rest went through");
    // A rename would replace a link.
    std::fs::rename(scene.target(), scene.pki.path("real.pkbf")).unwrap();
    std::os::unix::fs::symlink("real.pkbf", scene.target()).unwrap();
    scene.fails("lost.pkbf: not a regular file; give the path of the file itself");
    scene.configuration = scene.configuration.unset("filters.source");
    scene.configure();
    let output = scene.run(&[]);
    assert_eq!(output.status.code(), Some(2), "{}", output_text(&output));
    assert!(output_text(&output).contains("no filter, list or CRL has a source"));
    let directory = scene.pki.path("badkeys");
    let badkeys = ["--badkeys", directory.to_str().unwrap(), "--url"];
    for (arguments, problem) in [
        ([&badkeys[..], &["http://a.example/b"]].concat(), "http:// to another machine"),
        ([&badkeys[..], &["http://a.example/b?sig=c"]].concat(), "--url \"http://a.example/b\": "),
        ([&badkeys[..], &["a"]].concat(), "is not the URL of badkeysdata.json"),
        (
            [&badkeys[..], &["https://u:pw@a/b?sig=c"]].concat(),
            "--url \"https://a/b\" is not the URL of badkeysdata.json",
        ),
        ([&badkeys[..], &["https://a/b.dat.xz"]].concat(), "is not the URL of badkeysdata.json"),
        (vec!["--every", "0s"], "the duration must not be zero"),
        (vec!["--url", "https://a/b"], "--badkeys"),
    ] {
        let output = Fetch::start(&arguments).ended();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output_text(&output).contains(problem), "{}", output_text(&output));
    }
    assert!(!directory.exists());
}

#[test]
fn a_full_disk_leaves_the_file_in_use_and_no_part() {
    let made = system("unshare", &["--mount", "--map-root-user", "true"]);
    if skip::unless(made.status.success(), "no mount namespace can be made") {
        return;
    }
    let Some(mut scene) = Scene::new("") else { return };
    scene.publish(2);
    let disk = scene.pki.path("disk");
    std::fs::create_dir(&disk).unwrap();
    write_large(&scene.pki.path("old.pkbf"), 1, 1);
    scene.configuration = scene.configuration.set("filters.path", "disk/lost.pkbf");
    scene.configure();
    // Room for the file in use, and for half of the next one.
    let script = "mount -t tmpfs -o size=400k tmpfs disk && cp old.pkbf disk/lost.pkbf || exit 9\n\
                  $KEYGATE fetch --config keygate.toml; echo code=$?\n\
                  cmp old.pkbf disk/lost.pkbf && ls disk/.lost.pkbf.fetch\n\
                  mount -o remount,size=1m disk && $KEYGATE fetch --config keygate.toml; echo code=$?\n\
                  cmp mirror/lost.pkbf disk/lost.pkbf && echo same";
    let output = std::process::Command::new("unshare")
        .args(["--mount", "--map-root-user", "sh", "-c", script])
        .current_dir(scene.pki.directory())
        .env("KEYGATE", BINARY)
        .output()
        .unwrap();
    let text = output_text(&output);
    assert!(text.contains("disk/.lost.pkbf.fetch/part: No space left on device"), "{text}");
    assert!(text.contains("make room for the file twice"), "{text}");
    let lines: Vec<_> = std::str::from_utf8(&output.stdout).unwrap().lines().collect();
    assert_eq!(lines[0], "code=3", "{text}");
    assert!(!lines.contains(&"part") && lines.contains(&"lock"), "{text}");
    assert_eq!(lines[lines.len() - 2..], ["code=0", "same"], "{text}");
}

/// The object of `--json` also for a run that failed.
#[test]
fn every_file_has_an_object_even_if_others_fail() {
    let Some(mut scene) = Scene::new("") else { return };
    scene.publish(1);
    let url = scene.mirror.url("missing.txt");
    let list = format!(
        "[[lists]]\nname = \"deny\"\npath = \"deny.txt\"\nsource = {{ url = {url:?}, trust_anchors = \"ca.pem\" }}"
    );
    scene.configuration = scene.configuration.global(&list);
    scene.configure();
    let output = scene.run(&["--json"]);
    rejected(&output, "list \"deny\": ");
    let rows = std::str::from_utf8(&output.stdout).unwrap().lines();
    let rows: Vec<serde_json::Value> = rows.map(|it| serde_json::from_str(it).unwrap()).collect();
    assert_eq!((rows[0]["result"].as_str(), rows[0]["error"].as_str()), (Some("installed"), None));
    assert_eq!(
        (rows[1]["kind"].as_str(), rows[1]["result"].as_str()),
        (Some("list"), Some("failed"))
    );
    assert!(rows[1]["error"].as_str().unwrap().contains("404 Not Found"), "{}", rows[1]);
    write(scene.mirror.path("missing.txt"), "# none\n").unwrap();
    let output = scene.run(&["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
}
