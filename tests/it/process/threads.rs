//! Threads that hang, die or cannot be made: noticed, named, and never a panic.

use std::fs::{Permissions, set_permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::keygate::{BINARY, Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Pki};
use crate::support::proxy::{Configuration, Configure, Proxy};
use crate::support::threads::{StoppedThread, thread_names, workers};
use crate::support::{
    output_text, skip, system, wait_for, wait_until, write_filter, write_revision,
};

#[test]
fn liveness_readiness_and_healthcheck_fail_while_a_worker_hangs() {
    let proxy = Proxy::new().start();
    assert_eq!(proxy.admin("/livez"), (200, "alive\n".to_owned()));
    let stopped = StoppedThread::stop(&workers(&proxy)[0]);
    let body = wait_for("liveness to fail", || match proxy.admin("/livez") {
        (503, body) => Ok(body),
        other => Err(format!("{other:?}")),
    });
    assert!(["worker 0 hangs\n", "worker 1 hangs\n"].contains(&&*body), "{body}");
    assert_eq!(proxy.admin("/readyz"), (503, body.clone()));
    assert_eq!(proxy.status()["ready"], false);
    let line = proxy.wait_for("the line", |line| line["message"] == "a worker hangs");
    assert_eq!(body, format!("worker {} hangs\n", line["worker"]));
    let config = proxy.pki.path("healthcheck.toml");
    std::fs::write(&config, format!("admin.listen = \"{}\"", proxy.admin_address())).unwrap();
    let health = keygate(&["healthcheck", "--config", config.to_str().unwrap()]);
    assert_eq!(health.status.code(), Some(1), "{}", output_text(&health));
    assert!(output_text(&health).contains(body.trim_end()), "{}", output_text(&health));

    drop(stopped);
    wait_until("liveness", || proxy.admin("/livez") == (200, "alive\n".to_owned()));
    assert_eq!(proxy.admin("/readyz").0, 200);
    proxy.wait_for("the end", |line| line["message"] == "a worker that hung runs again");
}

#[test]
fn a_stop_does_not_wait_for_a_worker_that_hangs() {
    let mut proxy = Proxy::new().global("shutdown = { drain_timeout = \"0s\" }").start();
    let stopped = StoppedThread::stop(&workers(&proxy)[0]);
    proxy.signal("TERM");
    proxy.wait_for("the line", |line| {
        line["message"] == "a worker does not end, exiting without it"
    });
    drop(stopped); // a traced thread keeps its process
    assert_eq!(proxy.keygate.ended().code(), Some(0));
}

/// The event loop of a worker panics if epoll fails.
#[test]
fn a_worker_that_panics_ends_the_process_with_an_error() {
    if skip::without("strace") {
        return;
    }
    let mut proxy = Proxy::new().start();
    let (worker, calls) = (&workers(&proxy)[0], "epoll_wait,epoll_pwait,epoll_pwait2");
    let inject = format!("inject={calls}:error=EBADF");
    let trace = format!("trace={calls}");
    let mut strace = Command::new("strace");
    strace.args(["-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject, "-p", worker]);
    let mut strace = strace.stderr(Stdio::null()).spawn().unwrap();
    let line =
        proxy.wait_for("the line", |line| line["message"] == "a thread failed, shutting down");
    assert!(line["error"].as_str().unwrap().contains("keygate-worker-"), "{line}");
    assert_eq!(proxy.keygate.ended().code(), Some(4));
    let printed = proxy.matching_lines(|line| {
        line["message"].as_str().is_some_and(|text| text.starts_with("keygate: the thread "))
    });
    assert_eq!(printed.len(), 1, "{printed:?}");
    let _ = strace.wait(); // its exit code says nothing about the proxy
}

/// A user that runs nothing else, so that `RLIMIT_NPROC` counts the threads of one proxy alone.
/// Tests that run at the same time, in this process or another, have other numbers.
fn user(test: u32) -> String {
    (61_000 + std::process::id() % 1_000 * 2 + test).to_string()
}

/// Makes `pki` readable for `user`, and returns a copy of the program that it may run.
fn handed_over(pki: &Pki, user: &str) -> PathBuf {
    let binary = pki.path("keygate");
    std::fs::copy(BINARY, &binary).unwrap();
    set_permissions(pki.path(""), Permissions::from_mode(0o755)).unwrap();
    let owner = format!("{user}:{user}");
    let chown = system("chown", &["-R", &owner, pki.path("").to_str().unwrap()]);
    assert!(chown.status.success(), "{}", output_text(&chown));
    binary
}

/// Runs a program as `user`, in the process that is started.
fn as_user(user: &str, program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups", program]);
    command
}

fn is_root() -> bool {
    !skip::unless(system("id", &["-u"]).stdout == b"0\n", "only root may become another user")
}

/// Starts the proxy with a limit of its threads. Stops it if it is ready. Returns its exit code and
/// its output.
fn run_with_threads(
    user: &str,
    binary: &Path,
    config: &Path,
    threads: u32,
) -> (Option<i32>, String) {
    let mut command = as_user(user, "prlimit");
    command.arg(format!("--nproc={threads}")).arg(binary).args(["run", "--config"]).arg(config);
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    while log.read_line(&mut text).unwrap() > 0 {
        if text.ends_with("}\n") && is_ready(text.lines().last().unwrap()) {
            system("kill", &[&child.id().to_string()]);
        }
    }
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    (child.wait().unwrap().code(), text)
}

fn is_ready(line: &str) -> bool {
    line.contains("\"message\":\"ready\"")
}

#[test]
fn a_start_without_enough_threads_ends_with_an_error_at_every_thread() {
    if !is_root() {
        return;
    }
    let pki = Pki::new();
    write_filter(&pki.path("lost.pkbf"), &[]);
    let config = pki.path("keygate.toml");
    std::fs::write(&config, Configuration::new("127.0.0.1:9").text()).unwrap();
    let user = user(0);
    let binary = handed_over(&pki, &user);
    let mut errors = Vec::new();
    for threads in 1.. {
        let (code, text) = run_with_threads(&user, &binary, &config, threads);
        assert!(!text.contains("panicked"), "with {threads} threads: {text}");
        if text.lines().any(is_ready) {
            assert_eq!(code, Some(0), "with {threads} threads: {text}");
            break;
        }
        assert_eq!(code, Some(4), "with {threads} threads: {text}");
        let error = text.lines().find(|line| line.starts_with("keygate: ")).unwrap();
        assert!(error.ends_with("Resource temporarily unavailable"), "{error}");
        errors.push(error.split(':').nth(1).unwrap().trim().to_owned());
    }
    for expected in [
        "cannot start the log",
        "cannot start the thread that reads files",
        "cannot start the access log",
        "cannot start worker 0",
        "cannot start worker 1",
        "cannot start the control thread",
    ] {
        assert!(errors.iter().any(|error| error == expected), "no {expected:?} in {errors:?}");
    }
}

#[test]
fn a_running_proxy_needs_no_further_thread() {
    if !is_root() {
        return;
    }
    let pki = Pki::new();
    let client = pki.client("client", Kind::P256);
    let origin = Origin::start();
    write_filter(&pki.path("lost.pkbf"), &[]);
    let user = user(1);
    let binary = handed_over(&pki, &user);
    let text = Configuration::new(origin.address()).text();
    let keygate = Keygate::run_by(as_user(&user, binary.to_str().unwrap()), &pki, &text);
    let pid = keygate.pid().to_string();
    // As the same user, because root needs a capability to limit a process of another one.
    let limited = as_user(&user, "prlimit").args(["--pid", &pid, "--nproc=0:0"]).output().unwrap();
    assert!(limited.status.success(), "{}", output_text(&limited));
    for revision in 2..5 {
        write_revision(&pki.path("next.pkbf"), &[&client.spki], revision);
        std::fs::rename(pki.path("next.pkbf"), pki.path("lost.pkbf")).unwrap();
        keygate.wait_for_generation(u64::from(revision));
        assert_eq!(keygate.admin("/livez").0, 200);
    }
    keygate.signal("HUP");
    for name in thread_names(&keygate) {
        assert!(name.starts_with("keygate"), "{name}: a thread of another pool");
    }
    assert!(output_text(&keygate.curl(&client, &[])).contains("access denied"));
}
