//! `keygate drain`: readiness of the running proxy fails while serving goes on.

use std::time::Duration;

use super::admin_client::AdminClient;
use super::{CliError, ConfigFile, Exit, print, print_json};
use crate::admin::DrainedBody;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigFile,
    /// End the drain: readiness succeeds again.
    #[arg(long)]
    undo: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

/// Maximum time for the response.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let admin = AdminClient::from_config(&args.config.path(), TIMEOUT)?;
    let request = serde_json::json!({ "drained": !args.undo }).to_string();
    let state: DrainedBody = admin.post_json("/drain", request)?;
    if args.json {
        print_json(&state)?;
        return Ok(Exit::Done);
    }
    print(match state {
        DrainedBody { drained: true, changed: true } => {
            "drained: /readyz fails, and clients are served until the process ends"
        }
        DrainedBody { drained: true, changed: false } => "drained already",
        DrainedBody { drained: false, changed: true } => "no longer drained",
        DrainedBody { drained: false, changed: false } => "not drained",
    })?;
    Ok(Exit::Done)
}
