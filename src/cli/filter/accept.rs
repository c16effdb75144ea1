//! `keygate filter accept`: the operator's yes to an update that waits for it.

use std::time::Duration;

use clap::ValueHint;
use serde::{Deserialize, Serialize};

use super::{CliError, ConfigArgs, Exit, json, say, say_json};
use crate::cli::admin_client::AdminClient;
use crate::config::Config;

/// An accepted filter is read before the answer: minutes on a slow disk.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The name of the filter in the configuration.
    #[arg(value_hint = ValueHint::Other)]
    name: String,
    /// Accept only the file with this SHA-256; without it, the one that waits now.
    #[arg(long, value_name = "HEX", value_hint = ValueHint::Other)]
    sha256: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize)]
struct Status {
    filters: Vec<Filter>,
}

#[derive(Deserialize)]
struct Filter {
    name: String,
    waiting: Option<Waiting>,
}

#[derive(Deserialize)]
struct Waiting {
    sha256: String,
    revision: u32,
    entries: u32,
    new_hits: u64,
}

#[derive(Serialize)]
struct Body<'a> {
    sha256: &'a str,
}

#[derive(Deserialize)]
struct Reply {
    generation: u64,
}

#[derive(Serialize)]
struct Accepted<'a> {
    filter: &'a str,
    sha256: &'a str,
    revision: u32,
    entries: u32,
    new_hits: u64,
    generation: u64,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let admin = AdminClient::of(&Config::read(&args.config.config)?.admin, PATIENCE)?;
    let waiting = waiting(&admin, &args.name)?;
    let sha256 = args.sha256.as_ref().unwrap_or(&waiting.sha256);
    let path = format!("/filters/{}/accept", args.name);
    let reply: Reply = parsed(&admin.post(&path, json(&Body { sha256 })?)?)?;
    let accepted = Accepted {
        filter: &args.name,
        sha256,
        revision: waiting.revision,
        entries: waiting.entries,
        new_hits: waiting.new_hits,
        generation: reply.generation,
    };
    if args.json {
        say_json(&accepted)?;
    } else {
        say(format_args!(
            "{}: revision {} with {} entries is in use (snapshot {}); it refuses {} of the clients seen lately",
            args.name, waiting.revision, waiting.entries, reply.generation, waiting.new_hits
        ))?;
    }
    Ok(Exit::Done)
}

fn waiting(admin: &AdminClient, name: &str) -> Result<Waiting, CliError> {
    let status: Status = parsed(&admin.get("/status")?)?;
    match status.filters.into_iter().find(|filter| filter.name == name) {
        Some(Filter { waiting: Some(waiting), .. }) => Ok(waiting),
        Some(_) => Err(CliError::Operation(format!("{name}: no update waits to be accepted"))),
        None => Err(CliError::Operation(format!("the running proxy has no filter {name:?}"))),
    }
}

fn parsed<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, CliError> {
    let unexpected = |error| format!("the admin address gave an unexpected answer: {error}");
    serde_json::from_slice(body).map_err(|error| CliError::Operation(unexpected(error)))
}
