//! `keygate status`: the status page of the running proxy for a terminal, or `/status` as JSON.

use std::time::Duration;

use clap::ValueHint;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::admin_client::AdminClient;
use super::{CliError, CliOutput, ConfigFile, Exit};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigFile,
    /// Show only this service or authorizer.
    #[arg(long, value_name = "NAME", value_hint = ValueHint::Other)]
    service: Option<String>,
    /// Print the JSON object of /status.
    #[arg(long)]
    json: bool,
}

/// Maximum time for the response, which the proxy sends from memory.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let admin = AdminClient::from_config(&args.config.path(), TIMEOUT)?;
    let mut output = CliOutput::new();
    let service = args.service.as_deref().unwrap_or_default();
    let query = format!("?service={}", utf8_percent_encode(service, NON_ALPHANUMERIC));
    if args.json {
        output.json(&admin.get_json::<serde_json::Value>(&format!("/status{query}"))?)?;
    } else {
        admin.print(&format!("/status.txt{query}"), &mut output)?;
    }
    output.flush()?;
    Ok(Exit::Done)
}
