//! `keygate filter accept`: shows a filter update that waits for the operator, and accepts it.

use std::time::Duration;

use clap::ValueHint;
use serde::{Deserialize, Serialize};

use super::{CliError, ConfigArgs, Exit, json, print, print_json};
use crate::cli::admin_client::AdminClient;
use crate::cli::counted::counted_entries;
use crate::config::ListenAddress;
use crate::shell;
use crate::snapshot::{AffectedClient, WaitingReport};

/// Maximum time for the response, because the proxy reads the file first: minutes on a slow disk.
const TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The name of the filter in the configuration.
    #[arg(value_hint = ValueHint::Other)]
    name: String,
    /// Accept the update with this SHA-256, and no other.
    #[arg(long, value_name = "HEX", value_parser = parse_sha256, value_hint = ValueHint::Other)]
    sha256: Option<String>,
    /// Accept the update that waits now.
    #[arg(long, conflicts_with = "sha256")]
    yes: bool,
    #[command(flatten)]
    config: ConfigArgs,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize)]
struct FilterStates {
    filters: Vec<FilterState>,
}

#[derive(Deserialize)]
struct FilterState {
    name: String,
    waiting: Option<WaitingReport>,
    acceptable: bool,
    path: String,
}

#[derive(Serialize)]
struct AcceptRequest<'a> {
    sha256: &'a str,
}

#[derive(Deserialize)]
struct AcceptResponse {
    generation: u64,
}

/// A waiting update, or one that was accepted.
#[derive(Serialize)]
struct Update<'a> {
    filter: &'a str,
    sha256: &'a str,
    revision: u32,
    entries: u32,
    new_hits: usize,
    clients: &'a [AffectedClient],
    /// The snapshot with the update; `None` if it still waits.
    generation: Option<u64>,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let address = ListenAddress::read_admin(&args.config.path())?;
    let admin = AdminClient::new(&address, TIMEOUT)?;
    let waiting = waiting(&admin, &args.name)?;
    let accepted = if args.yes { Some(&waiting.sha256) } else { args.sha256.as_ref() };
    if !args.json {
        preview(&args.name, &waiting)?;
    }
    let generation = match accepted {
        Some(sha256) => {
            let path = format!("/filters/{}/accept", args.name);
            let response: AcceptResponse =
                admin.post_json(&path, json(&AcceptRequest { sha256 })?)?;
            Some(response.generation)
        }
        None => None,
    };
    let (name, revision) = (&args.name, waiting.revision);
    if args.json {
        print_json(&Update {
            filter: name,
            sha256: &waiting.sha256,
            revision,
            entries: waiting.entries,
            new_hits: waiting.new_hits,
            clients: &waiting.clients,
            generation,
        })?;
    } else if let Some(generation) = generation {
        print(format_args!("{name}: revision {revision} is in use (snapshot {generation})"))?;
    } else {
        let arguments = ["filter", "accept", name, "--sha256", &waiting.sha256];
        let command = shell::keygate(&arguments, Some(&args.config.path().to_string_lossy()));
        print(format_args!("accept it with: {command}"))?;
    }
    Ok(if generation.is_some() { Exit::Done } else { Exit::Found })
}

/// Prints the update and the recent clients that it would reject.
fn preview(name: &str, waiting: &WaitingReport) -> Result<(), CliError> {
    let WaitingReport { sha256, revision, entries, new_hits, clients, .. } = waiting;
    let entries = counted_entries((*entries).into());
    print(format_args!("{name}: revision {revision} with {entries} waits"))?;
    print(format_args!("SHA-256: {sha256}"))?;
    print(format_args!("recent clients that it would reject: {new_hits}"))?;
    for client in clients {
        print(format_args!("  {client}"))?;
    }
    if clients.len() < *new_hits {
        print(format_args!("  and {} more", new_hits.saturating_sub(clients.len())))?;
    }
    Ok(())
}

fn parse_sha256(text: &str) -> Result<String, String> {
    let is_sha256 = text.len() == 64 && text.bytes().all(|it| it.is_ascii_hexdigit());
    if is_sha256 {
        Ok(text.to_ascii_lowercase())
    } else {
        Err("a SHA-256 has 64 hex digits; `keygate filter accept NAME` prints it".to_owned())
    }
}

fn waiting(admin: &AdminClient, name: &str) -> Result<WaitingReport, CliError> {
    let status: FilterStates = admin.get_json("/status")?;
    match status.filters.into_iter().find(|filter| filter.name == name) {
        Some(FilterState { waiting: Some(waiting), acceptable: true, .. }) => Ok(waiting),
        Some(FilterState { waiting: Some(_), path, .. }) => Err(CliError::Operation(format!(
            "{name}: the update that waited is no longer in {path}; `keygate status` has the reason \
             why the file is rejected"
        ))),
        Some(_) => Err(CliError::Operation(format!(
            "{name}: no update waits to be accepted; `keygate status` has the state of each filter"
        ))),
        None => Err(CliError::Operation(format!(
            "the running proxy has no filter {name:?}; `keygate status` has the names"
        ))),
    }
}
