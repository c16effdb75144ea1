//! `keygate report`: lists recent clients that were rejected, or that `reject` would have rejected.

use std::collections::HashMap;
use std::io::{self, Write};
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
    /// Print the public keys of the clients that were admitted recently, a line each, below a comment
    /// with the subject: an input of `key --shared-primes`, `list diff` and other commands. The
    /// running proxy records clients if `max_new_hits` is set.
    #[arg(long, conflicts_with_all = ["classical", "since", "json"])]
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
    /// `not_allowed` for a client that no rule names, `not_vouched` for one whose CA may not vouch for
    /// it.
    result: Option<String>,
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
    if args.clients {
        io::stdout().write_all(&client.get("/clients")?).map_err(CliError::Output)?;
        return Ok(Exit::Done);
    }
    if args.classical {
        return classical(&client, args);
    }
    let report: ReportBody = client.get_json("/report")?;
    let from = unix_time::now().saturating_sub(args.since.as_secs());
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

/// Prints the clients with a classical key or a classical key exchange.
fn classical(client: &AdminClient, args: &Args) -> Result<Exit, CliError> {
    let from = unix_time::now().saturating_sub(args.since.as_secs());
    let (mut output, mut hybrid, mut seen) = (CliOutput::new(), 0_u64, 0_u64);
    for it in client.get_json::<Vec<KeyUse>>("/key-uses")? {
        if it.last_seen < from {
            continue;
        }
        let group = it.key_exchange.as_deref().unwrap_or("-");
        let is_hybrid = group.contains("MLKEM");
        (seen, hybrid) = (seen + 1, hybrid + u64::from(is_hybrid));
        if is_hybrid && it.key_algorithm.starts_with("ml-dsa") {
            continue;
        }
        if args.json {
            output.json(&it)?;
            continue;
        }
        output.line(format_args!("{}  {}", it.fingerprint, printable(&it.subject)))?;
        output.line(format_args!(
            "    service {}, key {}, key exchange {group}, last seen {} from {}",
            it.service,
            it.key_algorithm,
            utc(it.last_seen),
            it.address
        ))?;
    }
    if !args.json {
        let clients = counted(seen, "client");
        output.line(format_args!("{clients}, {hybrid} of them with a hybrid key exchange"))?;
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
