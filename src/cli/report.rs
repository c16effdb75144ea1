//! `keygate report`: lists recent clients that were rejected, or that `reject` would have rejected,
//! of one instance or of several.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use clap::ValueHint;
use keygate_core::printable::printable;
use keygate_core::unix_time::{self, utc};
use serde::Deserialize;
use serde_json::{Value, json};

use super::admin_client::AdminClient;
use super::admin_error::AdminError;
use super::counted::counted;
use super::instances::{InstanceArgs, merged, number, on, responses, text, with_instances};
use super::{CliError, CliOutput, ConfigFile, Exit};
use crate::key_uses::KeyUse;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    instances: InstanceArgs,
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
    let config = args.config.path();
    let from = unix_time::now().saturating_sub(args.since.as_secs());
    if args.clients || args.classical {
        let answers = args.instances.ask(&config, |client, _| admitted(client, from))?;
        let of_instance = |(instance, clients): (String, Vec<KeyUse>)| {
            clients.into_iter().map(move |client| (client, instance.clone()))
        };
        let is_whole = answers.iter().all(|it| it.response.is_ok());
        let clients = newest(responses(answers)?.into_iter().flat_map(of_instance).collect());
        if args.classical {
            return classical(&clients, args);
        }
        // The keys of a part of the clients let an update through that rejects the others.
        return keys(&clients).map(|exit| if is_whole { exit } else { Exit::Incomplete });
    }
    if !args.instances.is_empty() {
        return of_instances(args, &config, from);
    }
    let client = AdminClient::from_config(&config, TIMEOUT)?;
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

/// Prints the rows of several instances.
fn of_instances(args: &Args, config: &Path, from: u64) -> Result<Exit, CliError> {
    let ask = |client: &AdminClient, _: &str| client.get_json::<ReportBody>("/report");
    let reports = responses(args.instances.ask(config, ask)?)?;
    let (all, mut output) = (reports.len(), CliOutput::new());
    let rows = reports.into_iter().flat_map(|(instance, report)| {
        let recent = move |row: &Value| number(row, "last_seen") >= Some(from);
        report.clients.into_iter().filter(recent).map(move |row| (instance.clone(), row))
    });
    let key = |row: &Value| {
        let client = row.get("fingerprint").or(row.get("address"));
        let others = ["service", "verdict", "action", "result"].map(|name| row.get(name));
        json!([client, others])
    };
    for row in merged(rows, key) {
        if args.json {
            output.json(&row)?;
            continue;
        }
        let or_none = |name| Some(text(&row, name)).filter(|it| !it.is_empty()).unwrap_or("-");
        let list = ["list", "filter", "check"].into_iter().map(or_none).find(|it| *it != "-");
        output.line(printable(&format!("{}  {}", or_none("fingerprint"), or_none("subject"))))?;
        output.line(printable(&format!(
            "    service {}, {} (in {}), {}, {} times from {} to {}, last from {}, {}",
            or_none("service"),
            or_none("verdict"),
            list.unwrap_or("-"),
            or_none("action"),
            number(&row, "count").unwrap_or_default(),
            utc(number(&row, "first_seen").unwrap_or_default()),
            utc(number(&row, "last_seen").unwrap_or_default()),
            or_none("address"),
            on(&row, all)
        )))?;
    }
    output.flush()?;
    Ok(Exit::Done)
}

/// More workers than a process has. Another version may respond to every number.
const MAX_WORKERS: usize = 1 << 12;

/// The clients of each service that were admitted since `from`, last seen first.
pub(super) fn admitted(client: &AdminClient, from: u64) -> Result<Vec<KeyUse>, AdminError> {
    let mut clients = Vec::new();
    for worker in 0..MAX_WORKERS {
        let path = format!("/key-uses?worker={worker}");
        let Some(of_worker) = client.get_json::<Option<Vec<KeyUse>>>(&path)? else { break };
        let of_worker = of_worker.into_iter().filter(|it| it.last_seen >= from);
        clients.extend(of_worker.map(|it| (it, String::new())));
    }
    Ok(newest(clients).into_iter().map(|(client, _)| client).collect())
}

/// The last use of each key and service, last seen first, with the instances that saw it. A client
/// that two workers saw in one second counts as classical if one of them says so.
fn newest(mut clients: Vec<(KeyUse, String)>) -> Vec<(KeyUse, Vec<String>)> {
    clients.sort_by_cached_key(|(it, _)| {
        (Reverse(it.last_seen), is_hybrid(it), it.fingerprint.clone())
    });
    let (mut newest, mut places) = (Vec::<(KeyUse, Vec<String>)>::new(), HashMap::new());
    for (client, instance) in clients {
        let key = (client.fingerprint.clone(), client.service.clone());
        let place = *places.entry(key).or_insert(newest.len());
        match newest.get_mut(place) {
            Some((_, instances)) => instances.push(instance),
            None => newest.push((client, vec![instance])),
        }
    }
    newest
}

/// Prints the public key of each client.
fn keys(clients: &[(KeyUse, Vec<String>)]) -> Result<Exit, CliError> {
    let (mut output, mut seen) = (CliOutput::new(), HashSet::new());
    for (it, _) in clients.iter().filter(|(it, _)| seen.insert(&it.spki)) {
        output.line(format_args!("# {}\n{}", printable(&it.subject), printable(&it.spki)))?;
    }
    output.flush()?;
    Ok(Exit::Done)
}

fn is_hybrid(client: &KeyUse) -> bool {
    client.key_exchange.as_ref().is_some_and(|group| group.contains("MLKEM"))
}

/// Prints the clients with a classical key or a classical key exchange.
fn classical(clients: &[(KeyUse, Vec<String>)], args: &Args) -> Result<Exit, CliError> {
    let has_ml_dsa = |it: &KeyUse| it.key_algorithm.starts_with("ml-dsa");
    let seen = counted(clients.len() as u64, "client");
    let hybrid = clients.iter().filter(|(it, _)| is_hybrid(it)).count();
    let ml_dsa = clients.iter().filter(|(it, _)| has_ml_dsa(it)).count();
    let mut output = CliOutput::new();
    for (it, instances) in clients.iter().filter(|(it, _)| !(is_hybrid(it) && has_ml_dsa(it))) {
        let several = Some(instances).filter(|_| !args.instances.is_empty());
        if args.json {
            match several {
                Some(instances) => output.json(&with_instances(json!(it), instances))?,
                None => output.json(it)?,
            }
            continue;
        }
        let on = several.map(|it| format!(", on {}", it.join(", "))).unwrap_or_default();
        let (group, last_seen) = (it.key_exchange.as_deref().unwrap_or("-"), utc(it.last_seen));
        output.line(printable(&format!("{}  {}", it.fingerprint, it.subject)))?;
        output.line(printable(&format!(
            "    service {}, key {}, key exchange {group}, last seen {last_seen} from {}{on}",
            it.service, it.key_algorithm, it.address
        )))?;
    }
    if !args.json {
        output.line(format_args!(
            "{seen}, counted once for each service: {hybrid} with a hybrid key exchange, {ml_dsa} with \
             an ML-DSA key"
        ))?;
    }
    output.flush()?;
    Ok(Exit::Done)
}
