//! `keygate filter accept`: accepts a filter update that waits for the operator.

use std::time::Duration;

use clap::ValueHint;
use serde::{Deserialize, Serialize};

use super::{CliError, ConfigArgs, Exit, json, print, print_json};
use crate::cli::admin_client::AdminClient;
use crate::config::Config;

/// Maximum time for the response, because the proxy reads the file first: minutes on a slow disk.
const TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The name of the filter in the configuration.
    #[arg(value_hint = ValueHint::Other)]
    name: String,
    /// SHA-256 of the file to accept; by default the file that waits now.
    #[arg(long, value_name = "HEX", value_hint = ValueHint::Other)]
    sha256: Option<String>,
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
    waiting: Option<WaitingUpdate>,
}

#[derive(Deserialize)]
struct WaitingUpdate {
    sha256: String,
    revision: u32,
    entries: u32,
    new_hits: u64,
}

#[derive(Serialize)]
struct AcceptRequest<'a> {
    sha256: &'a str,
}

#[derive(Deserialize)]
struct AcceptResponse {
    generation: u64,
}

#[derive(Serialize)]
struct AcceptedUpdate<'a> {
    filter: &'a str,
    sha256: &'a str,
    revision: u32,
    entries: u32,
    new_hits: u64,
    generation: u64,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let admin = AdminClient::new(&Config::read(&args.config.config)?.admin, TIMEOUT)?;
    let waiting = waiting(&admin, &args.name)?;
    let sha256 = args.sha256.as_ref().unwrap_or(&waiting.sha256);
    let path = format!("/filters/{}/accept", args.name);
    let response: AcceptResponse = admin.post_json(&path, json(&AcceptRequest { sha256 })?)?;
    let accepted = AcceptedUpdate {
        filter: &args.name,
        sha256,
        revision: waiting.revision,
        entries: waiting.entries,
        new_hits: waiting.new_hits,
        generation: response.generation,
    };
    if args.json {
        print_json(&accepted)?;
    } else {
        print(format_args!(
            "{}: revision {} with {} entries is in use (snapshot {}, new hits: {})",
            args.name, waiting.revision, waiting.entries, response.generation, waiting.new_hits
        ))?;
    }
    Ok(Exit::Done)
}

fn waiting(admin: &AdminClient, name: &str) -> Result<WaitingUpdate, CliError> {
    let status: FilterStates = admin.get_json("/status")?;
    match status.filters.into_iter().find(|filter| filter.name == name) {
        Some(FilterState { waiting: Some(waiting), .. }) => Ok(waiting),
        Some(_) => Err(CliError::Operation(format!("{name}: no update waits to be accepted"))),
        None => Err(CliError::Operation(format!("the running proxy has no filter {name:?}"))),
    }
}
