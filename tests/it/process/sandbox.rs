//! The sandbox: what it denies once the configuration has been read, and that everything configured
//! still works. A kernel without Landlock skips these tests.

use std::fs::{create_dir, read, remove_file, rename};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::asker::{AskedKeygate, Asker, configuration};
use crate::support::blocklist::Blocklist;
use crate::support::keygate::{BINARY, Keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki};
use crate::support::program::reserved_address;
use crate::support::proof_source::{ProofSource, canary, fingerprint, proof, proof_of};
use crate::support::proxy::{Configuration, Configure, Proxy};
use crate::support::scene::{Scene, contains};
use crate::support::{output_text, skip, wait_until, write_filter, write_revision};

/// Returns true if the kernel enforces the sandbox; skips the test otherwise.
fn is_held(keygate: &Keygate) -> bool {
    let line = keygate.wait_for("the sandbox", |line| line["message"] == "sandbox");
    let is_held = ["full", "partial"].contains(&line["status"].as_str().unwrap());
    !skip::unless(is_held, "this kernel has no Landlock")
}

#[test]
fn a_link_that_leaves_the_sandbox_is_rejected_with_that_reason() {
    let scene = Scene::new();
    if !is_held(&scene.keygate) {
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    let update = scene.update();
    let content = read(&update).unwrap();
    rename(&update, outside.path().join("lost.pkbf")).unwrap();
    symlink(outside.path().join("lost.pkbf"), scene.pki.path("made/link")).unwrap();
    rename(scene.pki.path("made/link"), scene.pki.path("lost.pkbf")).unwrap();
    scene.is_refused("io", "outside the sandbox of this process; restart to widen it");
    scene.is_as_it_was();

    rename(scene.update(), scene.pki.path("lost.pkbf")).unwrap();
    scene.is_replaced_by(&content);
}

/// The checksum file is a link out of the sandbox, which only the kernel detects.
#[test]
fn the_kernel_denies_access_outside_the_sandbox() {
    for (mode, is_refused) in [("auto", true), ("off", false)] {
        let sandbox = format!("sandbox = {{ mode = \"{mode}\" }}");
        let scene = Scene::configured(
            |pki, first| rename(first, pki.path("lost.pkbf")).unwrap(),
            |configuration| configuration.global(&sandbox),
        );
        if is_refused && !is_held(&scene.keygate) {
            return;
        }
        let outside = tempfile::tempdir().unwrap();
        let update = scene.update();
        let content = read(&update).unwrap();
        let sum = HEXLOWER.encode(digest(&SHA256, &content).as_ref());
        std::fs::write(outside.path().join("sum"), format!("{sum}  lost.pkbf\n")).unwrap();
        symlink(outside.path().join("sum"), scene.pki.path("lost.pkbf.sha256")).unwrap();
        rename(update, scene.pki.path("lost.pkbf")).unwrap();
        if is_refused {
            scene.is_refused("checksum", "Permission denied");
            scene.is_as_it_was();
            remove_file(scene.pki.path("lost.pkbf.sha256")).unwrap();
        }
        scene.is_replaced_by(&content);
    }
}

/// A cgroup of version 1 without a limit has 2^63 bytes.
#[test]
fn the_budget_for_buffers_fits_the_memory_of_the_machine() {
    let scene = Scene::new();
    let machine = std::fs::read_to_string("/proc/meminfo").unwrap();
    let memory = machine.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    let memory: f64 = memory.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    let budget = scene.keygate.metric("keygate_buffer_limit_bytes");
    assert!(budget > 0.0 && budget <= memory * 512.0, "{budget} of {memory} KiB");
}

/// The metadata of a blocklist are a link to a directory that no other configured file is in.
#[test]
fn the_metadata_of_a_blocklist_are_accessible_where_they_are_at_the_start() {
    let [first, outside] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let list = "[[lists]]\nname = \"bk\"\npath = \"blocklist.dat\"\nformat = \"badkeys\"\n";
    let metadata = |pki: &Pki| pki.path("badkeysdata.json");
    let leads_to = |pki: &Pki, directory: &TempDir| {
        rename(metadata(pki), directory.path().join("data")).unwrap();
        symlink(directory.path().join("data"), pki.path("link")).unwrap();
        rename(pki.path("link"), metadata(pki)).unwrap();
    };
    let blocklist = Blocklist::new(&[]).with_others(0, 10);
    let scene = Scene::configured(
        |pki, filter| {
            rename(filter, pki.path("lost.pkbf")).unwrap();
            blocklist.write(pki.directory());
            leads_to(pki, &first);
        },
        |configuration| configuration.global(list),
    );
    if !is_held(&scene.keygate) {
        return;
    }
    assert_eq!(scene.keygate.status()["lists"][0]["updated"], 1_787_184_000);
    blocklist.with("date", "2026-08-21".into()).write_metadata(scene.pki.directory());
    leads_to(&scene.pki, &outside);
    scene.keygate.wait_for("the rejection", |line| {
        line["message"] == "list update rejected, keeping the one in use"
            && contains(&line["error"], "outside the sandbox of this process; restart to widen it")
    });
}

/// The filter is in a Kubernetes volume and the state in another directory.
#[test]
fn configured_paths_are_accessible_in_any_directory() {
    let [volume, state] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let at = |name: &str| volume.path().join(name);
    let state_dir = format!("state = {{ dir = {:?} }}", state.path());
    let path = at("lost.pkbf").to_str().unwrap().to_owned();
    let scene = Scene::configured(
        |_, first| {
            create_dir(at("..a")).unwrap();
            std::fs::copy(first, at("..a/lost.pkbf")).unwrap();
            symlink("..a", at("..data")).unwrap();
            symlink("..data/lost.pkbf", at("lost.pkbf")).unwrap();
        },
        |configuration| configuration.global(&state_dir).set("filters.path", path),
    );
    is_held(&scene.keygate);
    let update = scene.update();
    let content = read(&update).unwrap();
    create_dir(at("..b")).unwrap();
    std::fs::copy(update, at("..b/lost.pkbf")).unwrap();
    symlink("..b", at("..data_tmp")).unwrap();
    rename(at("..data_tmp"), at("..data")).unwrap();
    scene.is_replaced_by(&content);
    let marks = std::fs::read_to_string(state.path().join("filters.json")).unwrap();
    assert!(marks.contains("\"revision\": 2"), "{marks}");
    // The metrics of the process come from /proc.
    let metrics = scene.keygate.metrics();
    for series in
        ["process_open_fds", "process_start_time_seconds", "process_resident_memory_bytes"]
    {
        assert!(metrics[series] > 0.0, "{series}");
    }
}

/// The source has a host name, its directory and the state are elsewhere, and proofs are kept in a
/// directory that is made at the start.
#[test]
fn a_source_of_proofs_is_accessible_within_the_sandbox() {
    let [proofs, state] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let source = ProofSource::start();
    let proxy = Proxy::new();
    let asked = proxy.pki.client("asked", Kind::P256);
    let canary = canary(&proxy.pki);
    source.reply(&canary, proof(&canary));
    source.reply(&asked, proof(&asked));
    std::fs::write(proofs.path().join(fingerprint(&proxy.lost)), proof_of(&proxy.lost)).unwrap();
    write_filter(&proxy.pki.path("lost.pkbf"), &[&proxy.lost.spki, &asked.spki]);
    let (port, directory) = (source.address().port(), proofs.path());
    let proxy = proxy
        .add("confirm", &format!("url = \"http://localhost:{port}\"\ncanary = \"canary.pem\""))
        .add("confirm", &format!("proofs = {directory:?}"))
        .global(&format!("state = {{ dir = {:?} }}", state.path()))
        .global("sandbox = { ports = \"configured\" }")
        .start();
    if !is_held(&proxy.keygate) {
        return;
    }
    for party in [&proxy.lost, &asked] {
        assert_ne!(proxy.curl(party, &[]).stdout, b"hello\n");
        let kept = state.path().join("proofs").join(format!("{}.jws", fingerprint(party)));
        wait_until("the proof is kept", || kept.exists());
    }
    proxy.wait_for_metric("keygate_confirmations_total{result=\"confirmed\"}", 2.0);
    wait_until("the answers are kept", || state.path().join("confirm.json").exists());
    assert_eq!(proxy.failed_saves(), Vec::<Value>::new());
}

#[test]
fn sockets_of_authorizers_are_created_in_directories_that_the_start_has_named() {
    let [inside, outside] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let at = |directory: &TempDir, name: &str| directory.path().join(name);
    let [first, second] = ["first.sock", "second.sock"].map(|name| at(&inside, name));
    drop(UnixListener::bind(&first).unwrap()); // a process that was killed has left its file
    let text = |more: &[(&str, &Path)]| {
        let more = more.iter().map(|(name, path)| {
            format!(
                "[[authorizers]]\nname = {name:?}\nlisten = \"unix:{}\"\nprotocol = \"spop\"\n",
                path.display()
            )
        });
        let edge = configuration(&format!("listen = \"unix:{}\"\n", first.display()));
        format!("sandbox = {{ ports = \"configured\" }}\n{edge}{}", more.collect::<String>())
    };
    let scene = AskedKeygate::configured(Pki::new(), &text(&[]));
    if !is_held(&scene.keygate) {
        return;
    }
    let asks = || Asker::unix(&first).ask_about(&scene.good).status;
    assert_eq!(asks(), 200);
    std::fs::write(scene.pki.path("keygate.toml"), text(&[("second", &second)])).unwrap();
    wait_until("the second", || UnixStream::connect(&second).is_ok());
    let elsewhere = at(&outside, "third.sock");
    std::fs::write(scene.pki.path("keygate.toml"), text(&[("third", &elsewhere)])).unwrap();
    scene.keygate.wait_for("the rejection", |line| {
        line["message"] == "configuration rejected, keeping the one in use"
            && contains(&line["problem"], "creating a Unix socket in")
            && contains(&line["problem"], "restart to widen it")
    });
    assert!(UnixStream::connect(&second).is_ok() && !elsewhere.exists());
    assert_eq!(asks(), 200);
    std::fs::write(scene.pki.path("keygate.toml"), text(&[])).unwrap();
    wait_until("the file of the second to go", || !second.exists());
}

#[test]
fn a_server_configured_by_host_name_is_resolved() {
    let (pki, origin) = (Pki::new(), Origin::start());
    let client = pki.client("client", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let text = Configuration::new(origin.address()).global("sandbox = { ports = \"configured\" }");
    let url = format!("http://localhost:{}", origin.address().port());
    let text = text.servers(&[url]);
    let keygate = text.start(&pki);
    let response = keygate.curl(&client, &[]);
    assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
}

#[test]
fn a_configuration_with_a_port_outside_the_sandbox_is_rejected() {
    let (pki, origin, other) = (Pki::new(), Origin::start(), Origin::start());
    let client = pki.client("client", Kind::P256);
    write_filter(&pki.path("lost.pkbf"), &[]);
    let [listen, admin, elsewhere] = [reserved_address(), reserved_address(), reserved_address()];
    let text = Configuration::new(origin.address())
        .global("sandbox = { ports = \"configured\" }")
        .set("admin.listen", admin.to_string())
        .set("services.listen", listen.to_string());
    let keygate = text.start(&pki);
    if !is_held(&keygate) {
        return;
    }
    let served = || {
        let response = keygate.curl(&client, &[]);
        assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
    };
    served();
    let put = |configuration: &Configuration| {
        std::fs::write(pki.path("keygate.toml"), configuration.text()).unwrap();
        keygate.signal("HUP");
    };
    let servers = |url: String| text.clone().servers(&[url]);
    let port = other.address().port();
    let line_of = |text: &Configuration, key: &str| {
        let line = text.text().lines().position(|line| line.starts_with(key)).unwrap() + 1;
        format!("keygate.toml:{line}: ")
    };
    for (text, problem) in [
        (
            servers(format!("http://{}", other.address())),
            format!("connecting to TCP port {port} is outside the sandbox"),
        ),
        (
            text.clone().set("services.listen", elsewhere.to_string()),
            format!("listening on TCP port {} is outside the sandbox", elsewhere.port()),
        ),
        (servers("http://localhost:1".to_owned()), "resolving the host names".to_owned()),
    ] {
        put(&text);
        let problem = line_of(&text, "services = ") + &problem;
        keygate.wait_for("the refusal", |line| {
            line["message"] == "configuration rejected, keeping the one in use"
                && contains(&line["problem"], &problem)
                && contains(&line["problem"], "restart to widen it")
        });
        served();
    }
    // A change within the sandbox is applied.
    put(&text.upstream("response_timeout = \"21s\""));
    keygate.wait_for_generation(2);
    write_revision(&pki.path("lost.pkbf"), &[], 2);
    keygate.wait_for_generation(3);
    served();
}

/// strace simulates a kernel without Landlock.
#[test]
fn without_landlock_a_sandbox_that_is_required_is_an_error() {
    if skip::without("strace") {
        return;
    }
    let (pki, origin) = (Pki::new(), Origin::start());
    write_filter(&pki.path("lost.pkbf"), &[]);
    let old_kernel = || {
        let mut command = Command::new("strace");
        let inject = "inject=landlock_create_ruleset:error=ENOSYS";
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=landlock_create_ruleset"]);
        command.args(["-e", inject, BINARY]);
        command
    };
    let text = |mode: &str| {
        let top = format!("sandbox = {{ mode = \"{mode}\" }}");
        Configuration::new(origin.address()).global(&top)
    };
    let config = pki.path("keygate.toml");
    std::fs::write(&config, text("required").text()).unwrap();
    let output = old_kernel().args(["run", "--config"]).arg(&config).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", output_text(&output));
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("this kernel has no Landlock"), "{printed}");

    std::fs::write(&config, text("auto").text()).unwrap();
    let mut child = old_kernel();
    child.args(["run", "--config"]).arg(&config).stderr(std::process::Stdio::piped());
    let mut child = child.spawn().unwrap();
    let stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut pid = None;
    for line in std::io::BufRead::lines(stderr) {
        let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        if line["message"] == "sandbox" {
            assert_eq!(
                (line["status"].as_str(), line["level"].as_str()),
                (Some("none"), Some("WARN"))
            );
            let children = format!("/proc/{0}/task/{0}/children", child.id());
            pid = Some(std::fs::read_to_string(children).unwrap());
        }
        if line["message"] == "ready" {
            crate::support::system("kill", &[pid.clone().unwrap().trim()]);
        }
    }
    assert!(child.wait().unwrap().success());
}
