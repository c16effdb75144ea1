//! Passes the commit and the target to the compiler, for `keygate --version` and the status page.

#![allow(clippy::print_stdout, reason = "a build script speaks to cargo on standard output")]

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=KEYGATE_COMMIT");
    let commit = from_environment().or_else(from_package).or_else(from_git);
    println!("cargo:rustc-env=KEYGATE_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    println!("cargo:rustc-env=KEYGATE_TARGET={}", std::env::var("TARGET").unwrap_or_default());
}

/// The commit that the packager gives, for a build without git.
fn from_environment() -> Option<String> {
    std::env::var("KEYGATE_COMMIT").ok().filter(|commit| is_commit(commit))
}

/// The commit that `cargo package` writes into the archive, for `cargo install`.
fn from_package() -> Option<String> {
    let info = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, after) = info.split_once("\"sha1\"")?;
    after.split('"').nth(1).filter(|commit| is_commit(commit)).map(str::to_owned)
}

/// The commit of the working tree. Development builds have none, because each commit would compile
/// the crate again.
fn from_git() -> Option<String> {
    let is_development = std::env::var("PROFILE").is_ok_and(|profile| profile == "debug");
    // Without `.git` here, git would find a repository around an unpacked archive.
    if is_development || !Path::new(".git").exists() {
        return None;
    }
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).exists() {
        println!("cargo:rerun-if-changed={log}");
    }
    git(&["rev-parse", "HEAD"]).filter(|commit| is_commit(commit))
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(text.trim().to_owned())
}

fn is_commit(text: &str) -> bool {
    text.len() >= 7 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
