//! The commands with their help, and the version.

use clap::{Parser, Subcommand};

use super::config_file::ConfigFile;
use super::{
    completions, config, confirm, demo, drain, evidence, fetch, filter, healthcheck, key, list,
    probe, proof, reload, report, revoke, service, status, validate,
};

/// A TLS-terminating reverse proxy that rejects clients whose keys are compromised or weak.
///
/// keygate runs in front of mTLS services. The client proves in the TLS handshake that it holds its
/// private key. keygate then looks the public key up in filters and exact lists of compromised
/// keys, checks RSA keys that anybody can factor, and compares the names in the certificate with
/// the rules of the service. A hit is rejected, flagged, or passed to the upstream in a header,
/// according to the policy. A client that no rule names is rejected. Filters, lists, CAs,
/// certificates and rules are reloaded without a restart.
#[derive(Debug, Parser)]
#[command(
    name = "keygate",
    version,
    long_version = LONG_VERSION,
    arg_required_else_help = true
)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum CliCommand {
    /// Run the proxy.
    ///
    /// Loads the configuration and every file that it names, then serves until SIGTERM or SIGINT.
    /// If files cannot be used, prints all of them and exits. Watches the configuration and its
    /// files and reloads them when they change. A new configuration is applied as a whole or not at
    /// all. The log goes to standard error, the access log to standard output.
    Run(ConfigFile),
    /// Load everything that `run` would load, print a summary and exit.
    ///
    /// Prints warnings about conditions that `run` accepts, such as a certificate that has expired.
    Validate(validate::Args),
    /// Show the effective configuration, and the schema of all configurations.
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Show admitted and rejected clients on loopback.
    ///
    /// Creates a CA, three clients, an upstream server, a source of proofs and a filter that holds
    /// the keys of two clients. Shows that the client "good" is admitted, that "mallory" is
    /// rejected because the source has a proof, and that "carol" is admitted because it has none.
    /// Prints the address of the status page and commands to try, then serves until Ctrl-C. The
    /// files are deleted at the end.
    Demo(demo::Args),
    /// Check whether the running proxy is ready: exit code 0 if ready, 1 if not.
    ///
    /// Requests /readyz from the admin address of the configuration, over TCP or a Unix socket. A
    /// wildcard address is reached on loopback. Prints nothing if the proxy is ready, otherwise the
    /// reason on standard error. Reads only the admin address of the configuration; errors
    /// elsewhere in the file are ignored.
    Healthcheck(healthcheck::Args),
    /// Show what needs attention, and everything that is in use.
    ///
    /// Prints the status page of the running proxy as text: first the conditions that need
    /// attention, worst first, each with the whole reason and the command to run. Then follow
    /// filters, lists, services, counts, expiry dates and the last rejected clients. Rows of several
    /// instances are printed once, with the instances that have them. An instance that does not
    /// respond is a line.
    Status(status::Args),
    /// Read changed files again: exit code 0 if everything is in use, 1 if a file was rejected.
    ///
    /// Sends the running proxy the command to check the configuration and every file for changes,
    /// as SIGHUP does. Waits until every usable file is in use. Prints each file that was rejected,
    /// with the reason, also if it was rejected before. The last good value of such a file stays
    /// in use. Reads only the admin address of the configuration.
    Reload(reload::Args),
    /// Take the running proxy out of its load balancer, and put it back with --undo.
    ///
    /// /readyz fails and the health checks of authorizers fail, while clients are served as before.
    /// HTTP/1.1 responses have "Connection: close", so that clients connect to another instance.
    /// The state is lost when the process ends.
    Drain(drain::Args),
    /// List recent clients that were rejected, or that "reject" would have rejected.
    ///
    /// The running proxy keeps the last 2000 clients whose keys were not clean. They are kept in
    /// memory, so a restart clears them. A client of several instances is one row, with the
    /// instances that saw it.
    Report(report::Args),
    /// Create, change and inspect filter files.
    ///
    /// A filter is a file in the pwnedkeys format, pkbfv1: a header and 2^L bits, of which each key
    /// sets k. A key in the filter is always found. A key that is not in the filter is found by
    /// mistake at a rate that is chosen when the filter is created.
    #[command(subcommand)]
    Filter(filter::FilterCommand),
    /// Check, query and compare exact lists.
    ///
    /// A list is a blocklist.dat of badkeys, or a text with one digest of a key a line. It has no
    /// false positives.
    #[command(subcommand)]
    List(list::ListCommand),
    /// Accept updates of the CAs and CRLs of services and authorizers.
    #[command(subcommand)]
    Service(service::ServiceCommand),
    /// Print the public keys that verify assertions.
    ///
    /// Prints a JSON Web Key Set of all keys in `policy.assertion.signing_keys`. `nbf` is the time at
    /// which a key begins to sign, in seconds since the Unix epoch. The running proxy serves the
    /// same set at /.well-known/jwks.json of its admin address.
    Jwks(ConfigFile),
    /// Print the algorithm and the fingerprints of keys.
    ///
    /// One private key has several public encodings. Each encoding has its own fingerprint, the
    /// SHA-256 of its SubjectPublicKeyInfo. All of them are printed.
    Key(key::Args),
    /// Check which paths of a proxy with an authorizer are judged: exit code 0 if all are, 1 if not.
    ///
    /// Requests each path of another proxy as two clients: one whose key is clean, and one whose key
    /// is in a filter or on a list. A path is judged if the second one alone gets 403 or a closed
    /// connection. Both send a status header of their own. If the application returns the headers
    /// that it reads, the result is whether it read that one. `demo --write` makes clients and a
    /// filter for tests.
    Probe(probe::Args),
    /// Ask a source of proofs about keys: exit code 0 if none is confirmed, 1 if any is.
    ///
    /// The source is given by the configuration, or by --url and --proofs. With a configuration,
    /// only keys in a filter of `confirm.filters` are asked about. Prints a line for each key:
    /// verdict, fingerprint of the encoding, name of the encoding, position, and source. A verdict
    /// is "confirmed", "cleared", or "probable" if there is no answer. The source learns the
    /// fingerprints; --dry-run shows them and asks nothing.
    Confirm(confirm::Args),
    /// Write a folder about a compromised key, for its CA, an auditor and an incident report.
    ///
    /// Asks running proxies about the key, and reads the saved proofs. The folder has the
    /// certificates, the proofs, evidence.json for programs, and README.txt for people: first and
    /// last sighting, services, lists with their versions, and the time to the eviction. With --key,
    /// it has certificate requests that the key signed, too. A proxy that does not respond is a line.
    Evidence(evidence::Args),
    /// Download filters and lists, check them, and replace the files.
    ///
    /// Each filter and list with a `source` in the configuration is requested, unless it is
    /// unchanged. A download that was cut short is continued. The checks of a reload are made
    /// before the file is replaced. If anything is wrong, the file in use stays, and the exit code
    /// is 3. A running proxy sees the new file by itself.
    Fetch(fetch::Args),
    /// Verify and create proofs that a key is compromised.
    ///
    /// A proof is a statement that is signed with the compromised key itself, in the format of the
    /// pwnedkeys API. A filter hit is only probable, a proof is certain.
    #[command(subcommand)]
    Proof(proof::ProofCommand),
    /// Let an ACME server revoke a certificate whose private key is at hand.
    ///
    /// Signs the request with the key of the certificate, with the reason keyCompromise (RFC 8555,
    /// section 7.6). No account is needed. The key is compared with the certificate first. Without
    /// --yes, prints the request and the CAs that take it as proof, and connects to no server. A
    /// redirect is an error.
    Revoke(revoke::Args),
    /// Print a completion script for a shell.
    ///
    /// Save it as /usr/share/bash-completion/completions/keygate for bash, as
    /// ~/.config/fish/completions/keygate.fish for fish, and as _keygate in a directory of $fpath
    /// for zsh.
    Completions(completions::Args),
}

/// The version for `--version`. `build.rs` sets the commit and the target.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("KEYGATE_COMMIT"),
    "\ntarget: ",
    env!("KEYGATE_TARGET"),
    "\ncryptography: AWS-LC (aws-lc-rs), TLS: rustls"
);
