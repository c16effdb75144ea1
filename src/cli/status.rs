//! `keygate status`: the status page of the running proxy for a terminal, or `/status` as JSON; of
//! several instances, what they have in common and where they differ.

use std::time::Duration;

use clap::ValueHint;
use keygate_core::printable::printable;
use keygate_core::unix_time::utc;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use super::admin_client::AdminClient;
use super::instances::{InstanceAnswer, InstanceArgs, merged, number, on, rows_of, text};
use super::{CliError, CliOutput, ConfigFile, Exit};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    instances: InstanceArgs,
    /// Show only this service or authorizer.
    #[arg(long, value_name = "NAME", value_hint = ValueHint::Other)]
    service: Option<String>,
    /// Print the JSON object of /status; of several instances, the rows that they have.
    #[arg(long)]
    json: bool,
}

/// Maximum time for the response, which the proxy sends from memory.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The rows of `/status`, and the members in which the rows of several instances are equal.
const ROWS: [(&str, &[&str]); 6] = [
    ("attention", &["level", "subject", "problem", "command"]),
    ("filters", &["name", "revision", "entries", "sha256"]),
    ("lists", &["name", "updated", "entries", "sha256"]),
    ("services", &["name", "certificate_not_after", "crl_next_update"]),
    ("authorizers", &["name", "certificate_not_after", "crl_next_update"]),
    ("expiries", &["kind", "subject", "at"]),
];
/// Members that are times.
const TIMES: [&str; 4] = ["at", "certificate_not_after", "crl_next_update", "updated"];

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let config = args.config.path();
    let mut output = CliOutput::new();
    let service = args.service.as_deref().unwrap_or_default();
    let query = format!("?service={}", utf8_percent_encode(service, NON_ALPHANUMERIC));
    let path = format!("/status{query}");
    if !args.instances.is_empty() {
        let answers = args.instances.ask(&config, |client, _| client.get_json(&path))?;
        let status = joined(answers);
        if args.json {
            output.json(&status)?;
        } else {
            show(&status, &mut output)?;
        }
        output.flush()?;
        let has_any = rows_of(status.get("instances")).iter().any(|it| it.get("error").is_none());
        return Ok(if has_any { Exit::Done } else { Exit::Incomplete });
    }
    let admin = AdminClient::from_config(&config, TIMEOUT)?;
    if args.json {
        output.json(&admin.get_json::<Value>(&path)?)?;
    } else {
        admin.print(&format!("/status.txt{query}"), &mut output)?;
    }
    output.flush()?;
    Ok(Exit::Done)
}

/// The rows of all instances, and the instances themselves. One that does not respond has an
/// `error`.
fn joined(answers: Vec<InstanceAnswer<Value>>) -> Value {
    let instances = answers.iter().map(|InstanceAnswer { instance, response }| {
        let mut about = match response {
            Ok(status) => picked(status, &["host", "version", "ready", "not_ready", "generation"]),
            Err(error) => Map::from_iter([("error".to_owned(), error.to_string().into())]),
        };
        about.insert("instance".to_owned(), json!(instance));
        Value::Object(about)
    });
    let mut status = Map::from_iter([("instances".to_owned(), instances.collect())]);
    for (member, key) in ROWS {
        let rows = answers.iter().flat_map(|InstanceAnswer { instance, response }| {
            let rows = response.as_ref().map_or(&[][..], |status| rows_of(status.get(member)));
            rows.iter().map(move |row| (instance.clone(), Value::Object(picked(row, key))))
        });
        let mut rows = merged(rows, Value::clone);
        rows.sort_by_key(|row| text(row, "level") == "amber");
        status.insert(member.to_owned(), rows.into());
    }
    Value::Object(status)
}

/// The members of `row` that it has.
fn picked(row: &Value, members: &[&str]) -> Map<String, Value> {
    let members = members.iter().map(|name| (*name, row.get(name)));
    members.filter_map(|(name, value)| Some((name.to_owned(), value?.clone()))).collect()
}

/// Prints the rows as text.
fn show(status: &Value, output: &mut CliOutput) -> Result<(), CliError> {
    let instances = rows_of(status.get("instances"));
    let all = instances.iter().filter(|it| it.get("error").is_none()).count();
    output.line(format_args!("{all} of {} instances responded", instances.len()))?;
    for it in instances {
        let about = match it.get("error") {
            Some(_) => format!("no response: {}", text(it, "error")),
            None if it.get("ready") == Some(&json!(true)) => "ready".to_owned(),
            None => format!("not ready: {}", text(it, "not_ready")),
        };
        let (host, version) = (text(it, "host"), text(it, "version"));
        let name =
            if host.is_empty() { String::new() } else { format!("{host}, keygate {version}, ") };
        output.line(printable(&format!("  {}: {name}{about}", text(it, "instance"))))?;
    }
    for (member, key) in ROWS {
        let rows = rows_of(status.get(member));
        if !rows.is_empty() {
            output.line(format_args!("{member}"))?;
        }
        for row in rows {
            let values = key.iter().filter_map(|name| {
                let value = match number(row, name) {
                    Some(time) if TIMES.contains(name) => utc(time),
                    Some(number) => number.to_string(),
                    None => text(row, name).to_owned(),
                };
                let is_first = key.first() == Some(name);
                let label = if is_first { String::new() } else { format!("{name} ") };
                (!value.is_empty()).then(|| label + &value)
            });
            let values = values.collect::<Vec<_>>().join(", ");
            output.line(printable(&format!("  {values}, {}", on(row, all))))?;
        }
    }
    Ok(())
}
