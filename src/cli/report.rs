//! `keygate report`: lists recent clients that were rejected, or that `reject` would have rejected.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::time::Duration;

use clap::ValueHint;
use keygate_core::printable::printable;
use keygate_core::unix_time::{self, utc};
use serde::Deserialize;
use serde_json::Value;

use super::admin_client::AdminClient;
use super::admin_error::AdminError;
use super::counted::counted;
use super::{CliError, CliOutput, ConfigFile, Exit};
use crate::key_uses::KeyUse;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigFile,
    /// Show only clients whose last connection is not older than this.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "7d",
        value_parser = humantime::parse_duration,
        value_hint = ValueHint::Other
    )]
    since: Duration,
    /// List the clients that were admitted with a classical key or a classical key exchange, and
    /// not the rejected ones.
    #[arg(long)]
    classical: bool,
    /// Print the public keys of the clients that were admitted, a line each, below a comment with
    /// the subject: an input of `key --shared-primes`, `list diff` and other commands.
    #[arg(long, conflicts_with_all = ["classical", "json"])]
    clients: bool,
    /// Print a JSON object for each client, service, verdict and action.
    #[arg(long)]
    json: bool,
}

/// Maximum time for the response, which the proxy sends from memory.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Body of `/report`; entries stay JSON, so that `--json` prints every field.
#[derive(Deserialize)]
struct ReportBody {
    clients: Vec<Value>,
}

#[derive(Deserialize)]
struct ReportedHit {
    last_seen: u64,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let client = AdminClient::from_config(&args.config.path(), TIMEOUT)?;
    let from = unix_time::now().saturating_sub(args.since.as_secs());
    if args.clients {
        return keys(admitted(&client, from)?);
    }
    if args.classical {
        return classical(admitted(&client, from)?, args.json);
    }
    let mut output = CliOutput::new();
    if args.json {
        let report: ReportBody = client.get_json("/report")?;
        for hit in report.clients {
            if client.parse_value::<ReportedHit>(&hit)?.last_seen >= from {
                output.json(&hit)?;
            }
        }
    } else {
        client.print(&format!("/report.txt?since={from}"), &mut output)?;
    }
    output.flush()?;
    Ok(Exit::Done)
}

/// More workers than a process has. Another version may respond to every number.
const MAX_WORKERS: usize = 1 << 12;

/// The clients of each service that were admitted since `from`, last seen first. A client that two
/// workers saw in one second counts as classical if one of them says so.
pub(super) fn admitted(client: &AdminClient, from: u64) -> Result<Vec<KeyUse>, AdminError> {
    let mut clients = Vec::new();
    for worker in 0..MAX_WORKERS {
        let path = format!("/key-uses?worker={worker}");
        let Some(of_worker) = client.get_json::<Option<Vec<KeyUse>>>(&path)? else { break };
        clients.extend(of_worker.into_iter().filter(|it| it.last_seen >= from));
    }
    clients.sort_by_cached_key(|it| (Reverse(it.last_seen), is_hybrid(it), it.fingerprint.clone()));
    let mut seen = HashSet::new();
    clients.retain(|it| seen.insert((it.fingerprint.clone(), it.service.clone())));
    Ok(clients)
}

/// Prints the public key of each client.
fn keys(clients: Vec<KeyUse>) -> Result<Exit, CliError> {
    let (mut output, mut seen) = (CliOutput::new(), HashSet::new());
    for it in clients.iter().filter(|it| seen.insert(&it.spki)) {
        output.line(format_args!("# {}\n{}", printable(&it.subject), printable(&it.spki)))?;
    }
    output.flush()?;
    Ok(Exit::Done)
}

fn is_hybrid(client: &KeyUse) -> bool {
    client.key_exchange.as_ref().is_some_and(|group| group.contains("MLKEM"))
}

/// Prints the clients with a classical key or a classical key exchange.
fn classical(clients: Vec<KeyUse>, as_json: bool) -> Result<Exit, CliError> {
    let has_ml_dsa = |it: &KeyUse| it.key_algorithm.starts_with("ml-dsa");
    let seen = counted(clients.len() as u64, "client");
    let hybrid = clients.iter().filter(|it| is_hybrid(it)).count();
    let ml_dsa = clients.iter().filter(|it| has_ml_dsa(it)).count();
    let mut output = CliOutput::new();
    for it in clients.iter().filter(|it| !(is_hybrid(it) && has_ml_dsa(it))) {
        if as_json {
            output.json(it)?;
            continue;
        }
        let (group, last_seen) = (it.key_exchange.as_deref().unwrap_or("-"), utc(it.last_seen));
        output.line(format_args!(
            "{}  {}\n    service {}, key {}, key exchange {group}, last seen {last_seen} from {}",
            it.fingerprint,
            printable(&it.subject),
            it.service,
            it.key_algorithm,
            it.address
        ))?;
    }
    if !as_json {
        output.line(format_args!(
            "{seen}, counted once for each service: {hybrid} with a hybrid key exchange, {ml_dsa} with \
             an ML-DSA key"
        ))?;
    }
    output.flush()?;
    Ok(Exit::Done)
}
