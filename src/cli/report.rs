//! `keygate report`: lists recent clients that were rejected, or that `reject` would have rejected.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use clap::ValueHint;
use keygate_core::printable::printable;
use keygate_core::tls::CertificateSummary;
use keygate_core::unix_time::{self, utc};
use serde::Deserialize;
use serde_json::Value;

use super::admin_client::{AdminClient, AdminError};
use super::counted::counted;
use super::{CliError, CliOutput, ConfigFile, Exit};
use crate::key_uses::KeyUse;
use crate::recent_hits::{CLIENTS_IN_THE_LOG, SERVER_AUTH, to_admit};

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
    since: u64,
    forgotten: u64,
    clients: Vec<Value>,
}

/// Fields of an entry that are printed as text: a client of one service, with one verdict and
/// action.
#[derive(Deserialize)]
struct ReportedHit {
    service: String,
    verdict: String,
    action: String,
    /// `not_allowed` for a client that no rule names, `not_vouched` for one whose CA may not vouch
    /// for it.
    result: Option<String>,
    /// The CA and the name that it may not vouch for, for `not_vouched`.
    error: Option<String>,
    /// `null` if the host that asked an authorizer did not send it.
    address: Option<String>,
    /// Empty without a certificate.
    #[serde(flatten)]
    client: CertificateSummary,
    /// Subject of the certificate whose key was found, if it is not the client's own.
    found_subject: Option<String>,
    found_fingerprint: Option<String>,
    filter: Option<String>,
    /// Name of the proof of a confirmed key.
    proof: Option<String>,
    list: Option<String>,
    /// Name of the collection of the list.
    finding: Option<String>,
    /// The check that a weak key fails.
    check: Option<String>,
    first_seen: u64,
    last_seen: u64,
    count: u64,
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
    let report: ReportBody = client.get_json("/report")?;
    let hits = report.clients.into_iter().map(|value| {
        let hit: ReportedHit = client.parse_value(&value)?;
        Ok((value, hit))
    });
    let hits = hits.collect::<Result<Vec<_>, AdminError>>()?;
    let seen = hits.into_iter().filter(|(_, hit)| hit.last_seen >= from);
    let seen: Vec<(Value, ReportedHit)> = seen.collect();
    let mut output = CliOutput::new();
    if args.json {
        seen.iter().try_for_each(|(value, _)| output.json(value))?;
    } else {
        let began = utc(report.since.max(from));
        let all = seen.iter().map(|(_, hit)| hit);
        let (by_servers, all): (Vec<_>, Vec<_>) =
            all.partition(|hit| hit.result.as_deref() == Some(SERVER_AUTH));
        let (rejected, admitted): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|hit| hit.action == "reject");
        let would = "would have been rejected by \"reject\"";
        let servers = "admitted with certificates for servers only";
        for (outcome, hits) in [("rejected", rejected), (would, admitted), (servers, by_servers)] {
            if outcome == servers && hits.is_empty() {
                continue; // no service accepts such certificates
            }
            let clients = by_client(hits);
            let count = counted(clients.len() as u64, "client");
            output.line(format_args!("{count} {outcome} since {began}"))?;
            for hits in clients {
                hits.iter().take(1).try_for_each(|hit| output.line(hit.identity()))?;
                hits.iter().try_for_each(|hit| output.line(hit))?;
                hits.iter().take(1).try_for_each(|hit| {
                    hit.to_admit()
                        .lines()
                        .try_for_each(|it| output.line(format_args!("      {it}")))
                })?;
            }
        }
        if report.forgotten > 0 {
            let forgotten = match report.forgotten {
                1 => "1 older entry".to_owned(),
                count => format!("{count} older entries"),
            };
            output.line(format_args!("{forgotten} evicted from memory"))?;
        }
        output.line(CLIENTS_IN_THE_LOG)?;
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
        clients.extend(of_worker.into_iter().filter(|it| it.last_seen >= from));
    }
    clients.sort_by_cached_key(|it| (Reverse(it.last_seen), it.fingerprint.clone()));
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

/// Prints the clients with a classical key or a classical key exchange.
fn classical(clients: Vec<KeyUse>, as_json: bool) -> Result<Exit, CliError> {
    let is_hybrid =
        |it: &KeyUse| it.key_exchange.as_ref().is_some_and(|group| group.contains("MLKEM"));
    let seen = counted(clients.len() as u64, "client");
    let hybrid = clients.iter().filter(|it| is_hybrid(it)).count();
    let mut output = CliOutput::new();
    for it in clients.iter().filter(|it| !is_hybrid(it) || !it.key_algorithm.starts_with("ml-dsa"))
    {
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
        output.line(format_args!("{seen}, {hybrid} of them with a hybrid key exchange"))?;
    }
    output.flush()?;
    Ok(Exit::Done)
}

/// The entries of each client, in the order in which the clients were last seen. A client is a key,
/// or an address without a certificate, as on the status page.
fn by_client(hits: Vec<&ReportedHit>) -> Vec<Vec<&ReportedHit>> {
    let mut clients: Vec<Vec<&ReportedHit>> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for hit in hits {
        let place = *places.entry(hit.id()).or_insert(clients.len());
        match clients.get_mut(place) {
            Some(client) => client.push(hit),
            None => clients.push(vec![hit]),
        }
    }
    clients
}

impl ReportedHit {
    /// The fingerprint of the client's key, or its address without a certificate.
    fn id(&self) -> &str {
        match (self.client.fingerprint.as_str(), &self.address) {
            ("", Some(address)) => address,
            (fingerprint, _) => fingerprint,
        }
    }

    /// The line about the client.
    fn identity(&self) -> String {
        let fingerprint = &self.client.fingerprint;
        if fingerprint.is_empty() {
            "  -  no certificate".to_owned()
        } else {
            let names = printable(&self.client.names());
            let names = if names.is_empty() { names } else { format!("\n    names {names}") };
            format!("  {fingerprint}  {}{names}", printable(self.client.name()))
        }
    }

    /// The lines of a configuration that admit the client; empty without a certificate.
    fn to_admit(&self) -> String {
        if self.client.fingerprint.is_empty() {
            return String::new();
        }
        let found = self.found_fingerprint.as_deref();
        let lines = to_admit(&self.client, found, self.result.as_deref());
        lines.lines().map(printable).collect::<Vec<_>>().join("\n")
    }
}

/// The lines about what happened to the client at one service.
impl std::fmt::Display for ReportedHit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { service, verdict, action, address, count, .. } = self;
        let address = address.as_deref().unwrap_or("-");
        let found_in = self.list.as_ref().or(self.filter.as_ref()).map_or("-", String::as_str);
        let finding = self.finding.as_ref().map(|it| format!(": {it}")).unwrap_or_default();
        let found = match &self.check {
            Some(check) => format!("check {check}"),
            None => format!("in {found_in}{finding}"),
        };
        let reason = match &self.result {
            Some(result) => format!("{result}, key {verdict}"),
            None => format!("{verdict} ({found})"),
        };
        let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
        let (first, last) = (utc(self.first_seen), utc(self.last_seen));
        write!(
            formatter,
            "    service {service}, {reason}, {action}, {times} from {first} to {last}, last from \
             {address}"
        )?;
        if let Some(error) = &self.error {
            write!(formatter, "\n    {}", printable(error))?;
        }
        if let Some(fingerprint) = &self.found_fingerprint {
            let subject = printable(self.found_subject.as_deref().unwrap_or_default());
            write!(formatter, "\n    found key {fingerprint}  {subject}, an issuer of the client")?;
        }
        if let Some(proof) = &self.proof {
            write!(formatter, "\n    proof {proof}")?;
        }
        Ok(())
    }
}
