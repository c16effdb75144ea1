//! `keygate status`: the status page of the running proxy for a terminal, or `/status` as JSON.

use std::time::Duration;

use super::admin_client::AdminClient;
use super::printable::printable;
use super::{CliError, CliOutput, ConfigFile, Exit};
use crate::config::ListenAddress;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigFile,
    /// Print the JSON object of /status.
    #[arg(long)]
    json: bool,
}

/// Maximum time for the response, which the proxy sends from memory.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let address = ListenAddress::read_admin(&args.config.path())?;
    let admin = AdminClient::new(&address, TIMEOUT)?;
    let mut output = CliOutput::new();
    if args.json {
        output.json(&admin.get_json::<serde_json::Value>("/status")?)?;
    } else {
        // Another program may listen on this address.
        let text = admin.get("/status.txt")?;
        for line in String::from_utf8_lossy(&text).lines() {
            output.line(printable(line))?;
        }
    }
    output.flush()?;
    Ok(Exit::Done)
}
