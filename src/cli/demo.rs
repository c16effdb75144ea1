//! `keygate demo`: the main job on loopback, with everything made for the occasion.

mod client;
mod origin;
mod pki;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::pki::Pki;
use super::run::Handled;
use super::{CliError, Exit, log, say};
use crate::config::{Config, LogConfig, LogFormat};
use crate::pkbf::{self, Filter, Overwrite, Parameters};
use crate::process::inherited_sockets::InheritedSockets;
use crate::server::Server;
use crate::unix_time;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Exit after the two clients instead of serving until Ctrl-C.
    #[arg(long)]
    once: bool,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let refused = |error: io::Error| CliError::system("the demo", error);
    let _log = log::start(&LogConfig {
        format: LogFormat::Text,
        level: "warn".to_owned(),
        repeat_after: Duration::ZERO,
    })?;
    let directory = tempfile::Builder::new().prefix("keygate-demo-").tempdir().map_err(refused)?;
    let directory = directory.path();
    say("keygate demo: everything is made now, on loopback, and gone when it ends.\n")?;

    let pki = Pki::make(directory).map_err(|error| CliError::system("the demo CA", error))?;
    say(format_args!("A CA and two clients, \"good\" and \"lost\":  {}", directory.display()))?;
    let filter = make_filter(&pki, directory)
        .map_err(|error| CliError::Filter { path: directory.join(FILTER), source: error })?;
    say(format_args!("A filter that holds the key of \"lost\":    {}", filter.display()))?;
    let origin = origin::start().map_err(refused)?;
    say(format_args!("An origin that shows what it receives:    http://{origin}"))?;

    let config = configuration(directory, origin)?;
    let server = Server::start(&config, None, InheritedSockets::default())?;
    let Some((_, address)) = server.addresses().first().copied() else {
        return Err(CliError::system("the demo", "nothing listens"));
    };
    say(format_args!("keygate between them, for both clients:   https://{address}"))?;
    say(format_args!(
        "Its metrics and its status:               http://{0}/metrics http://{0}/status\n",
        server.admin_address()
    ))?;

    show_clients(&pki, address)?;
    if args.once {
        return Ok(Exit::Done);
    }
    show_commands(directory, address)?;
    let signals = Handled::install()?;
    say("\nServing until Ctrl-C.")?;
    Ok(signals.serve(server))
}

const FILTER: &str = "lost.pkbf";

/// A filter of a sensible size: in a tiny one, any key is a hit by chance.
fn make_filter(pki: &Pki, directory: &Path) -> Result<PathBuf, pkbf::FilterError> {
    let path = directory.join(FILTER);
    let mut filter = Filter::new(Parameters::for_entries(1000, 1e-9)?)?;
    filter.insert(pki.lost.spki());
    filter.stamp(unix_time::now());
    pkbf::create(&filter, &path, Overwrite::Always)?;
    Ok(path)
}

/// The configuration is a file like any other: it is there to be looked at.
fn configuration(directory: &Path, origin: SocketAddr) -> Result<Config, CliError> {
    let text = format!(
        r#"admin = {{ listen = "127.0.0.1:0" }}

[[filters]]
name = "lost"
path = "{FILTER}"

[[services]]
name = "demo"
listen = "127.0.0.1:0"
tls = {{ certificate = "server.pem", private_key = "server.key" }}
client_auth = {{ trust_anchors = "ca.pem" }}
upstream = {{ servers = ["http://{origin}"] }}

[shutdown]
readiness_delay = "0s"
drain_timeout = "5s"
"#
    );
    let path = directory.join("keygate.toml");
    std::fs::write(&path, &text).map_err(|error| CliError::system("the demo", error))?;
    Ok(Config::parse(&path, &text)?)
}

fn show_clients(pki: &Pki, address: SocketAddr) -> Result<(), CliError> {
    let answer = client::get(pki, &pki.good, address).map_err(|error| {
        CliError::system("the client \"good\" should have been admitted", error)
    })?;
    say(format_args!("\"good\" is admitted:  {}", answer.lines().next().unwrap_or_default()))?;
    match client::get(pki, &pki.lost, address) {
        Err(error) if client::is_access_denied(&error) => {
            say(format_args!("\"lost\" is refused:   {error}"))
        }
        Err(error) => {
            Err(CliError::system("the client \"lost\" was not refused as it should be", error))
        }
        Ok(_) => Err(CliError::system("the demo", "the client \"lost\" was admitted")),
    }
}

fn show_commands(directory: &Path, address: SocketAddr) -> Result<(), CliError> {
    say("\nTry it from another terminal:\n")?;
    for client in ["good", "lost"] {
        let file = |name: String| quoted(&directory.join(name).display().to_string());
        say(format_args!(
            "  curl --cacert {} --cert {} --key {} https://{address}/",
            file("ca.pem".to_owned()),
            file(format!("{client}.pem")),
            file(format!("{client}.key"))
        ))?;
    }
    Ok(())
}

/// As a shell takes it whole.
fn quoted(path: &str) -> String {
    format!("'{}'", path.replace('\'', r"'\''"))
}
