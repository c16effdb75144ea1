# `just --list` shows the recipes. `just check` is the inner loop; `just ci` is what CI runs.
#
# `scripts/install-test-packages tools` installs just and the other tools in target/python/bin.
# The recipes set no RUSTFLAGS, so that plain `cargo` commands, the recipes and CI share one cache.

tools := justfile_directory() / "target/python/bin"
xtask := env("CARGO_TARGET_DIR", justfile_directory() / "target") / "debug/xtask"

# Lists the recipes
[private]
default:
    @just --list --unsorted

# Formatting, lints and unit tests: run it before each commit
check: format-check clippy unit-tests

# All integration and unit tests; arguments go to cargo: `just test --test it tcp`
test *arguments:
    cargo test --locked {{ arguments }}

# A client with a compromised key is rejected, on loopback
demo *arguments:
    cargo run --locked -- demo {{ arguments }}

# Formats the code
format:
    cargo fmt --all

# Everything that CI checks without running a test
lint: format-check clippy clippy-library shell-check dependencies

[private]
format-check:
    cargo fmt --all --check

[private]
clippy:
    cargo clippy --locked --all-targets -- -D warnings

# The libraries alone, their examples and tests; the tasks for packages; the proxy without traces
[private]
clippy-library:
    cargo clippy --locked --package keygate-core --all-targets -- -D warnings
    cargo clippy --locked --package keygate-wire --all-targets -- -D warnings
    cargo clippy --locked --package xtask -- -D warnings
    cargo clippy --locked --package keygate --lib --bins --no-default-features -- -D warnings

[private]
unit-tests:
    cargo test --locked --lib

[private]
shell-check:
    git grep -lE '^#!.*\b(ba)?sh$' -- ':!*.md' | xargs {{ tools }}/shellcheck --severity=warning

# The dependency policy of deny.toml
dependencies:
    {{ tools }}/cargo-deny --locked check bans licenses sources

# Known vulnerabilities of the crates; fetches the RustSec database from GitHub. For a scheduler.
advisories:
    {{ tools }}/cargo-deny --locked check advisories

# The documentation of the library
doc *arguments:
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps {{ arguments }}

# Fuzzes each target for some seconds
fuzz seconds="5":
    fuzz/short {{ seconds }}

# Mixed traffic for some seconds, with changes of configuration and memory limits
soak seconds="60":
    KEYGATE_SOAK_SECONDS={{ seconds }} cargo test --locked --test soak

# Benchmarks; arguments go to cargo: `just bench --bench filter`
bench *arguments:
    cargo bench --locked {{ arguments }}

# The Debian package, in target/debian
package:
    cargo build --locked --profile dist
    deploy/debian/build

# Makes the files of a release from a tag, in a folder: `just release v0.1.0 ../release`; needs root
release tag folder:
    deploy/release/build {{ tag }} {{ folder }}

# Packages the binary of the tests, signs, verifies and unpacks the files of a release
release-check: xtask
    XTASK={{ xtask }} deploy/release/check

# From a folder of a release to a rejected client, in a fresh Debian; needs root
release-install folder:
    deploy/release/install {{ folder }}

# Compares the libraries with a tag, and packages them; needs cargo-semver-checks and a tag
semver tag:
    cargo semver-checks --package keygate-core --package keygate-wire --baseline-rev {{ tag }}
    cargo package --locked --package keygate-core --package keygate-wire

# Installs, uses, upgrades and purges the Debian package in a fresh Debian; needs root
debian-check: xtask
    XTASK={{ xtask }} deploy/debian/check

# The tasks for packages. Among the tests they need no dependency with other features.
[private]
xtask:
    cargo build --locked --workspace --bins --tests

# Builds the image around the binary of the tests and runs it; needs root
container-check:
    deploy/container/check

# Renders, validates and starts the manifests and the chart; needs root
kubernetes-check:
    deploy/kubernetes/check

# Installs missing Debian packages and tools
install-test-packages *groups:
    scripts/install-test-packages {{ groups }}

# Each waits for downloads and programs half of its time.
[parallel]
[private]
debian-and-kubernetes-check: debian-check kubernetes-check

# Everything that a change must pass, with a soak of 20 seconds among the tests
ci: lint doc && debian-and-kubernetes-check container-check release-check (fuzz "2")
    KEYGATE_SOAK_SECONDS=20 cargo test --locked
