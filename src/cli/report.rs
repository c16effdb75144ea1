//! `keygate report`: who was refused lately, and who would have been.

use std::time::Duration;

use clap::ValueHint;
use serde::Deserialize;
use serde_json::Value;

use super::admin_client::AdminClient;
use super::{CliError, ConfigArgs, Exit, Output};
use crate::config::AdminAddress;
use crate::unix_time::{self, rfc3339};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Only clients that were seen within this time.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "7d",
        value_parser = humantime::parse_duration,
        value_hint = ValueHint::Other
    )]
    since: Duration,
    /// One JSON object for each client.
    #[arg(long)]
    json: bool,
}

/// The answer is there at once, or something is wrong.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
struct Clients {
    since: u64,
    forgotten: u64,
    clients: Vec<Value>,
}

/// What of a client goes into a line.
#[derive(Deserialize)]
struct Client {
    service: String,
    verdict: String,
    action: String,
    address: String,
    #[serde(default)]
    subject: String,
    #[serde(default)]
    fingerprint: String,
    filter: Option<String>,
    list: Option<String>,
    first_seen: u64,
    last_seen: u64,
    count: u64,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let address = AdminAddress::read(&args.config.config)?;
    let body = AdminClient::of(&address, PATIENCE)?.get("/report")?;
    let unreadable = |error: serde_json::Error| {
        CliError::Operation(format!(
            "the admin address {address}: its answer is no report: {error}"
        ))
    };
    let report: Clients = serde_json::from_slice(&body).map_err(unreadable)?;
    let from = unix_time::now().saturating_sub(args.since.as_secs());
    let clients = report.clients.into_iter().map(|value| {
        let client: Client = serde_json::from_value(value.clone())?;
        Ok((value, client))
    });
    let clients = clients.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    let seen = clients.into_iter().filter(|(_, client)| client.last_seen >= from);
    let seen: Vec<(Value, Client)> = seen.collect();
    let mut output = Output::new();
    if args.json {
        seen.iter().try_for_each(|(value, _)| output.json(value))?;
    } else {
        let began = rfc3339(report.since.max(from));
        let (refused, admitted): (Vec<_>, Vec<_>) =
            seen.iter().map(|(_, client)| client).partition(|client| client.action == "reject");
        let would = "would have been refused by \"reject\"";
        for (what, clients) in [("refused", refused), (would, admitted)] {
            let plural = if clients.len() == 1 { "" } else { "s" };
            output.line(format_args!("{} client{plural} {what} since {began}", clients.len()))?;
            clients.iter().try_for_each(|client| output.line(client))?;
        }
        if report.forgotten > 0 {
            let forgotten = report.forgotten;
            output
                .line(format_args!("{forgotten} more were forgotten: there is room for so many"))?;
        }
    }
    output.end()?;
    Ok(Exit::Done)
}

impl std::fmt::Display for Client {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { service, verdict, action, address, count, .. } = self;
        let (subject, fingerprint) = if self.fingerprint.is_empty() {
            ("no certificate", "-")
        } else {
            (self.subject.as_str(), self.fingerprint.as_str())
        };
        let found_in = self.list.as_ref().or(self.filter.as_ref()).map_or("-", String::as_str);
        let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
        let (first, last) = (rfc3339(self.first_seen), rfc3339(self.last_seen));
        // Subjects are the issuers' choice; a line stays a line.
        let subject: String =
            subject.chars().map(|it| if it.is_control() { '?' } else { it }).collect();
        write!(
            formatter,
            "  {fingerprint}  {subject}\n    service {service}, {verdict} (in {found_in}), {action}, \
             {times} from {first} to {last}, last from {address}"
        )
    }
}
