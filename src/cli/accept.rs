//! `keygate filter accept`, `keygate list accept` and `keygate service accept`: show an update that
//! waits for the operator, and accept it.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueHint;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::admin_client::AdminClient;
use super::admin_error::AdminError;
use super::counted::counted_entries;
use super::{CliError, ConfigArgs, Exit, print, print_json};
use crate::shell;
use crate::sources::{AffectedClient, GuardFile, WaitingReport};

/// Maximum time for the response, because the proxy reads the file first: minutes on a slow disk.
const TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The name in the configuration.
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
struct FileStates {
    filters: Vec<GuardedFileState>,
    lists: Vec<GuardedFileState>,
    services: Vec<GuardedFileState>,
    authorizers: Vec<GuardedFileState>,
}

#[derive(Clone, Deserialize)]
struct GuardedFileState {
    name: String,
    waiting: Option<WaitingReport>,
    acceptable: bool,
    /// Path of a filter or list.
    #[serde(default)]
    path: String,
}

#[derive(Deserialize)]
struct AcceptResponse {
    generation: u64,
}

/// A waiting update, or one that was accepted.
#[derive(Serialize)]
struct AcceptableUpdate<'a> {
    /// The name, under the kind of the file.
    #[serde(flatten)]
    file: BTreeMap<&'static str, &'a str>,
    sha256: &'a str,
    /// Path of a file of a service.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    /// Revision of a filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u32>,
    /// `None` for a file of a service.
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<u64>,
    new_hits: usize,
    clients: &'a [AffectedClient],
    /// The snapshot with the update; `None` if it still waits.
    generation: Option<u64>,
}

pub(super) fn run(file: GuardFile, args: &Args) -> Result<Exit, CliError> {
    let (path, name) = (args.config.path(), &args.name);
    let admin = AdminClient::from_config(&path, TIMEOUT)?;
    let waiting = waiting(&admin, file, name)?;
    let update = described(file, &waiting);
    if !args.json {
        preview(file, name, &update, &waiting)?;
    }
    let accepted = if args.yes { Some(&waiting.sha256) } else { args.sha256.as_ref() };
    let accept = |sha256| -> Result<u64, AdminError> {
        let path = format!("/{}s/{name}/accept", file.as_str());
        let AcceptResponse { generation } =
            admin.post_json(&path, json!({ "sha256": sha256 }).to_string())?;
        Ok(generation)
    };
    let generation = accepted.map(accept).transpose()?;
    if args.json {
        print_json(&AcceptableUpdate {
            file: BTreeMap::from([(file.as_str(), name.as_str())]),
            sha256: &waiting.sha256,
            path: waiting.path.as_deref(),
            revision: (file == GuardFile::Filter).then_some(waiting.revision),
            entries: (file != GuardFile::Service).then_some(waiting.entries),
            new_hits: waiting.new_hits,
            clients: &waiting.clients,
            generation,
        })?;
    } else if let Some(generation) = generation {
        print(format_args!("{name}: {update} is in use (snapshot {generation})"))?;
    } else {
        let arguments = [file.as_str(), "accept", name, "--sha256", &waiting.sha256];
        let command = shell::keygate(&arguments, Some(&path.to_string_lossy()));
        print(format_args!("accept it with: {command}"))?;
    }
    Ok(if generation.is_some() { Exit::Done } else { Exit::Found })
}

/// Prints the update and the recent clients that it would reject.
fn preview(
    file: GuardFile,
    name: &str,
    update: &str,
    waiting: &WaitingReport,
) -> Result<(), CliError> {
    let WaitingReport { sha256, entries, new_hits, clients, .. } = waiting;
    let entries = match file {
        GuardFile::Filter | GuardFile::List => format!(" with {}", counted_entries(*entries)),
        GuardFile::Service => String::new(),
    };
    print(format_args!("{name}: {update}{entries} waits"))?;
    print(format_args!("SHA-256: {sha256}"))?;
    print(format_args!("recent clients that it would reject: {new_hits}"))?;
    clients.iter().try_for_each(|client| print(format_args!("  {client}")))?;
    let more = new_hits.saturating_sub(clients.len());
    if more > 0 {
        print(format_args!("  and {more} more"))?;
    }
    if waiting.without_crls {
        let text = "warning: with it no CA has a list in client_auth.crls, so that every client would be rejected; add the lists first";
        print(format_args!("{text}"))?;
    }
    Ok(())
}

fn described(file: GuardFile, waiting: &WaitingReport) -> String {
    match file {
        GuardFile::Filter => format!("revision {}", waiting.revision),
        GuardFile::List => "an update".to_owned(),
        GuardFile::Service => waiting.path.clone().unwrap_or_default(),
    }
}

fn waiting(admin: &AdminClient, file: GuardFile, name: &str) -> Result<WaitingReport, CliError> {
    let status: FileStates = admin.get_json("/status")?;
    let (kind, files) = match file {
        GuardFile::Filter => ("filter", status.filters),
        GuardFile::List => ("list", status.lists),
        GuardFile::Service => ("service", [status.services, status.authorizers].concat()),
    };
    match files.into_iter().find(|file| file.name == name) {
        Some(GuardedFileState { waiting: Some(waiting), acceptable: true, .. }) => Ok(waiting),
        Some(GuardedFileState { waiting: Some(_), path, .. }) => Err(CliError::Operation(format!(
            "{name}: the update that waited is no longer in {path}; `keygate status` has the reason \
             why the file is rejected"
        ))),
        Some(_) => Err(CliError::Operation(format!(
            "{name}: no update waits to be accepted; `keygate status` has the state of each file"
        ))),
        None => Err(CliError::Operation(format!(
            "the running proxy has no {kind} {name:?}; `keygate status` has the names"
        ))),
    }
}

fn parse_sha256(text: &str) -> Result<String, String> {
    if text.len() == 64 && text.bytes().all(|it| it.is_ascii_hexdigit()) {
        Ok(text.to_lowercase())
    } else {
        Err("a SHA-256 has 64 hex digits; the command prints it without --sha256".to_owned())
    }
}
