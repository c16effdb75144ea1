//! `keygate demo`: a proxy on loopback with a generated CA, three clients, a filter, a source of
//! proofs and an upstream.
//!
//! Shows that the client "good" is admitted, that "mallory" is rejected because her key is proved
//! compromised, and that "carol" is admitted although her key is in the filter. All files are in a
//! temporary directory, which is deleted at the end.

mod http_server;
mod pki;

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::ValueHint;
use http_body_util::Full;
use hyper::{Response, StatusCode};
use keygate_core::pkbf::{self, Filter, Overwrite, Parameters};
use keygate_core::{proof, unix_time};
use rcgen::PublicKeyData;
use rustls::{AlertDescription, RootCertStore};

use self::pki::{DemoParty, DemoPki};
use super::run::SignalHandler;
use super::{CliError, Exit, log, print, tls_client};
use crate::config::{Config, ListenAddress};
use crate::metrics::LogMetrics;
use crate::process::inherited_sockets::InheritedSockets;
use crate::server::{Prerequisites, Server, ServerError};
use crate::shell;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Exit after the three clients instead of serving until Ctrl-C.
    #[arg(long)]
    once: bool,
    /// Write CA, clients and filter into a new directory for `keygate probe`, and exit.
    #[arg(long, value_name = "DIR", conflicts_with = "once", value_hint = ValueHint::DirPath)]
    write: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let failed = |error: io::Error| CliError::system("the demo", error);
    if let Some(directory) = &args.write {
        return write(directory);
    }
    let directory = tempfile::Builder::new().prefix("keygate-demo-").tempdir().map_err(failed)?;
    let directory = directory.path();
    let (pki, filter) = create_files(directory)?;
    let upstream = http_server::start_upstream().map_err(failed)?;
    let source = start_source([&pki.mallory, &pki.canary])?;
    std::fs::create_dir(directory.join(PROOFS)).map_err(failed)?;
    let config = write_configuration(directory, upstream, source)?;
    let logs = LogMetrics::new().map_err(ServerError::Metrics)?;
    let prerequisites =
        Prerequisites::new(InheritedSockets::default(), logs.clone(), Box::new(|_| ()))?;
    let server = Server::start(&config, None, prerequisites)?;
    let Some(ListenAddress::Tcp(address)) = server.addresses().first().map(|it| it.local.clone())
    else {
        return Err(CliError::system("the demo", "the server has no address"));
    };

    print("keygate demo: everything runs on loopback. The files are deleted at the end.\n")?;
    print(format_args!("CA, certificates and keys:   {}", directory.display()))?;
    print(format_args!("Filter with two keys:        {}", filter.display()))?;
    print(format_args!("Source of proofs:            http://{source}"))?;
    print(format_args!("Upstream server:             http://{upstream}"))?;
    print(format_args!("keygate:                     https://{address}"))?;
    print(format_args!("Status page:                 http://{}/\n", server.admin_address()))?;
    show_clients(&pki, address)?;
    if args.once {
        return Ok(Exit::Done);
    }
    show_commands(directory, &filter, address)?;
    let signals = SignalHandler::install()?;
    let _log = log::start(&config.log, &logs)?; // after the results of the clients, which log lines would interrupt
    print("\nServing until Ctrl-C.")?;
    signals.serve(server)
}

/// Writes the files that `keygate probe` needs: "good" is clean, "mallory" is in the filter.
fn write(directory: &Path) -> Result<Exit, CliError> {
    std::fs::create_dir(directory).map_err(|error| CliError::io(directory, &error))?;
    let (_, filter) = create_files(directory)?;
    print(format_args!("{}: the keys of mallory and carol", filter.display()))?;
    Ok(Exit::Done)
}

const FILTER: &str = "compromised.pkbf";
const PROOFS: &str = "proofs";

/// Writes CA, certificates and keys, and a filter that holds the keys of mallory and, as if by
/// chance, of carol. Returns the path of the filter.
///
/// The filter has a realistic size, because any key may be a false positive in a tiny one.
fn create_files(directory: &Path) -> Result<(DemoPki, PathBuf), CliError> {
    let pki =
        DemoPki::generate(directory).map_err(|error| CliError::system("the demo CA", error))?;
    let path = directory.join(FILTER);
    let failed = |error| CliError::file(&path, error);
    let parameters = Parameters::for_entries(1000, 1e-9).map_err(failed)?;
    let mut filter = Filter::new(parameters).map_err(failed)?;
    filter.insert(&pki.mallory.key.subject_public_key_info());
    filter.insert(&pki.carol.key.subject_public_key_info());
    filter.stamp(unix_time::now());
    let created = pkbf::create(&filter, &path, Overwrite::Always);
    created.map_err(|error| CliError::io(&path, &error))?;
    Ok((pki, path))
}

/// Writes the configuration to a file, so that the user can read it, and parses it.
fn write_configuration(
    directory: &Path,
    upstream: SocketAddr,
    source: SocketAddr,
) -> Result<Config, CliError> {
    let text = format!(
        r#"admin = {{ listen = "127.0.0.1:0" }}
log = {{ format = "text", level = "warn", repeat_after = "0s" }}

[[filters]]
name = "compromised"
path = "{FILTER}"

[confirm]
url = "http://{source}"
proofs = "{PROOFS}"
canary = "canary.pem"
wait = "30s"
timeout = "30s"

[[services]]
name = "demo"
listen = "127.0.0.1:0"
tls = {{ certificate = "server.pem", private_key = "server.key" }}
client_auth = {{ trust_anchors = "ca.pem" }}
upstream = {{ servers = ["http://{upstream}"], connect_timeout = "30s" }}
limits = {{ handshake_timeout = "30s" }}

[shutdown]
readiness_delay = "0s"
drain_timeout = "5s"
"#
    );
    let path = directory.join("keygate.toml");
    std::fs::write(&path, &text).map_err(|error| CliError::system("the demo", error))?;
    Ok(Config::parse(&path, &text)?)
}

fn show_clients(pki: &DemoPki, address: SocketAddr) -> Result<(), CliError> {
    let response = get(pki, &pki.good, address)
        .map_err(|error| CliError::system("the client good was not admitted", error))?;
    print(format_args!("good is admitted:     {}", response.lines().next().unwrap_or_default()))?;
    // The first connection is held while the source is asked. The answer rejects the second one in
    // the handshake.
    let _ = get(pki, &pki.mallory, address);
    match get(pki, &pki.mallory, address) {
        // The alert for a confirmed key. A key that is only in a filter gets `access_denied`.
        Err(error) if tls_client::alert(&error) == Some(AlertDescription::CertificateRevoked) => {}
        Err(error) => return Err(CliError::system("the client mallory got another error", error)),
        Ok(_) => return Err(CliError::system("the demo", "the client mallory was admitted")),
    }
    print("mallory is rejected:  TLS alert certificate_revoked")?;
    print("  because             her key is in the filter, and the source has a proof")?;
    let response = get(pki, &pki.carol, address)
        .map_err(|error| CliError::system("the client carol was not admitted", error))?;
    print(format_args!("carol is admitted:    {}", response.lines().next().unwrap_or_default()))?;
    print("  because             the source does not know her key: the hit is a false positive")
}

/// Maximum time for a response, 60 s: longer than every timeout of the configuration.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Sends GET `/` with the certificate of `party`, and returns the whole response.
fn get(pki: &DemoPki, party: &DemoParty, address: SocketAddr) -> io::Result<String> {
    let mut trust_anchors = RootCertStore::empty();
    trust_anchors.add(pki.ca.clone()).map_err(io::Error::other)?;
    let (chain, key) = party.credentials();
    let config = tls_client::client_config(trust_anchors, chain, key).map_err(io::Error::other)?;
    let mut tls = tls_client::connect(&config, address, address.ip().into(), TIMEOUT)?;
    write!(tls, "GET / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut response = String::new();
    tls.read_to_string(&mut response)?;
    Ok(response)
}

/// Starts a source of proofs that responds like the pwnedkeys API for the keys of `parties`.
fn start_source(parties: [&DemoParty; 2]) -> Result<SocketAddr, CliError> {
    let mut proofs = HashMap::new();
    for party in parties {
        let created = proof::create(&party.key.serialize_der())
            .map_err(|error| CliError::system("the proofs of the demo", error))?;
        proofs.extend(created.into_iter().map(|it| (format!("/{}", it.fingerprint), it.json)));
    }
    let started = http_server::start("keygate-demo-source", move |request| {
        let proof = proofs.get(request.uri().path());
        let body = proof.map_or("this key is not known\n", String::as_str);
        let mut response = Response::new(Full::new(Bytes::from(body.to_owned())));
        if proof.is_none() {
            *response.status_mut() = StatusCode::NOT_FOUND;
        }
        response
    });
    started.map_err(|error| CliError::system("the source of the demo", error))
}

fn show_commands(directory: &Path, filter: &Path, address: SocketAddr) -> Result<(), CliError> {
    let file = |name: String| word_of(&directory.join(name));
    print("\nTry it from another terminal:\n")?;
    for client in ["good", "mallory", "carol"] {
        print(format_args!(
            "  curl --cacert {} --cert {} --key {} https://{address}/",
            file("ca.pem".to_owned()),
            file(format!("{client}.pem")),
            file(format!("{client}.key"))
        ))?;
    }
    print(
        "\nAdd good's key to the filter. The source does not know the key, so that good is still admitted:\n",
    )?;
    let good = file("good.pem".to_owned());
    print(format_args!("  {} filter add {} {good}", program(), word_of(filter)))?;
    print(
        "\nCreate a proof. Good is rejected without a restart: its next request may be served, and causes\nthe question that confirms the key.\n",
    )?;
    let (key, proofs) = (file("good.key".to_owned()), file(PROOFS.to_owned()));
    print(format_args!("  {} proof create --yes --dir {proofs} {key}", program()))
}

/// Returns the command that runs this program from any directory.
///
/// If the shell found the program in its `PATH`, the command is the name alone. Otherwise, for
/// example under `cargo run`, the command is the path of the executable.
fn program() -> String {
    let name = std::env::args_os().next().unwrap_or_default();
    match std::env::current_exe() {
        Ok(path) if name.as_encoded_bytes().contains(&b'/') => word_of(&path),
        Ok(_) | Err(_) => name.to_string_lossy().into_owned(),
    }
}

/// The path as one word of a shell.
fn word_of(path: &Path) -> String {
    shell::word(&path.to_string_lossy())
}
