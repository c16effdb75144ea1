//! `keygate reload`: has the running proxy read changed files again, and prints what it rejected.

use std::time::Duration;

use keygate_core::printable::printable;
use serde::Deserialize;
use serde_json::Value;

use super::admin_client::AdminClient;
use super::duration::parse_duration;
use super::{CliError, ConfigFile, Exit, print, print_json};
use crate::shell;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigFile,
    /// Maximum time until the reload is done. It goes on if that is exceeded.
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "5m",
        value_parser = parse_duration,
        value_hint = clap::ValueHint::Other
    )]
    timeout: Duration,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Deserialize)]
struct Reloaded {
    generation: u64,
    pending: bool,
    rejected: Vec<RejectedFile>,
    restart_needed: Vec<String>,
    #[serde(default)]
    warnings: Vec<ReloadWarning>,
}

#[derive(Deserialize)]
struct ReloadWarning {
    text: String,
}

#[derive(Deserialize)]
struct RejectedFile {
    kind: String,
    name: Option<String>,
    path: Option<String>,
    reason: Option<String>,
    error: String,
    waiting: bool,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let file = args.config.path();
    let admin = AdminClient::from_config(&file, args.timeout)?;
    let response: Value = admin.post_json("/reload", "{}".to_owned())?;
    let Reloaded { generation, pending, rejected, restart_needed, warnings } =
        admin.parse_value(&response)?;
    let is_done = rejected.is_empty() && !pending;
    let exit = if is_done { Exit::Done } else { Exit::Rejected };
    if args.json {
        print_json(&response)?;
        return Ok(exit);
    }
    for update in &rejected {
        print(described(update))?;
        if let RejectedFile { kind, name: Some(name), waiting: true, .. } = update {
            let arguments = [&*printable(kind), "accept", &printable(name)];
            let command = shell::keygate(&arguments, Some(&file.to_string_lossy()));
            print(format_args!("  to let it through: {command}"))?;
        }
    }
    if pending {
        print("a file is still being written, and is read when its writer is done")?;
    }
    if !restart_needed.is_empty() {
        let settings = printable(&restart_needed.join(", "));
        print(format_args!("read at the start only, restart to change them: {settings}"))?;
    }
    for ReloadWarning { text } in &warnings {
        print(format_args!("warning: {}", printable(text)))?;
    }
    print(format_args!("snapshot {generation} is in use, rejected: {}", rejected.len()))?;
    Ok(exit)
}

/// The file and the reason in a line. Another program may listen on the address.
fn described(update: &RejectedFile) -> String {
    let RejectedFile { kind, name, path, reason, error, waiting: _ } = update;
    let name = name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
    let reason = reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let path = path.as_ref().map(|path| format!(": {path}")).unwrap_or_default();
    printable(&format!("{kind}{name} rejected{reason}{path}: {error}"))
}
