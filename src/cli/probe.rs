//! `keygate probe`: which paths of a proxy with an authorizer are judged.
//!
//! Requests each path as a client whose key is clean and as one whose key is compromised. Knows the
//! proxy by its responses alone.

mod client;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::ValueHint;
use serde::Serialize;

use self::client::{Outcome, ProbeClient};
use super::admin_client::parse_timeout;
use super::{CliError, Exit, print, print_json};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The proxy: HOST or HOST:PORT, port 443 by default.
    #[arg(value_name = "HOST", value_hint = ValueHint::Hostname)]
    host: String,
    /// The CAs of the proxy's certificate, PEM.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    ca: PathBuf,
    /// Certificate and private key of a client whose key is clean, PEM.
    #[arg(long, num_args = 2, value_names = ["CERT", "KEY"], required = true)]
    clean: Vec<PathBuf>,
    /// Certificate and private key of a client whose key is in a filter or on a list, PEM.
    #[arg(long, num_args = 2, value_names = ["CERT", "KEY"], required = true)]
    compromised: Vec<PathBuf>,
    /// A path to request. Can be repeated; "/" by default.
    #[arg(long = "path", value_name = "PATH", default_value = "/", value_hint = ValueHint::Other)]
    paths: Vec<String>,
    /// The name of the status header.
    #[arg(long, value_name = "NAME", default_value = "Client-Key-Status")]
    header: String,
    /// Repeats the requests of the first path for this time, in which an instance can be stopped.
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_timeout)]
    period: Option<Duration>,
    /// Maximum time to connect, and to wait for bytes of a response.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_timeout)]
    timeout: Duration,
    /// Print JSON, one object for each path.
    #[arg(long)]
    json: bool,
}

/// The result for one path.
#[derive(Debug, Serialize)]
struct PathReport<'a> {
    path: &'a str,
    /// The status of the clean client.
    clean: String,
    /// The status of the compromised client, or that its connection was closed.
    compromised: String,
    finding: Finding,
    field: FieldFinding,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Finding {
    /// The compromised client alone is rejected.
    Judged,
    /// The compromised client is served.
    NotJudged,
    /// The clean client is rejected as well, or the proxy fails.
    Unclear,
}

/// What becomes of a status header that the client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum FieldFinding {
    /// The response has the value of the client.
    Kept,
    /// The response has the header with another value.
    Replaced,
    /// The response has no header of this name if the client names it in `Connection`.
    Removed,
    /// The response does not show the header.
    NotShown,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    for text in args.paths.iter().chain([&args.header]) {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(CliError::Usage(format!("{text:?} is no path and no header name")));
        }
    }
    let client = |files: &[PathBuf]| ProbeClient::new(args, files);
    let (clean, compromised) = (client(&args.clean)?, client(&args.compromised)?);
    let mut findings = Vec::new();
    for path in &args.paths {
        let report = probe(args, path, &clean, &compromised)?;
        findings.push((report.finding, report.field));
        if args.json { print_json(&report)? } else { print(report.line(args))? }
    }
    let mut has_hole = findings.iter().any(|(finding, field)| {
        *finding == Finding::NotJudged
            || matches!(field, FieldFinding::Kept | FieldFinding::Removed)
    });
    if let (Some(period), Some(path)) = (args.period, args.paths.first()) {
        has_hole |= !repeat(period, path, &clean, &compromised)?;
    }
    let is_unclear = findings.iter().any(|(finding, _)| *finding == Finding::Unclear);
    Ok(if has_hole {
        Exit::Found
    } else if is_unclear {
        Exit::Incomplete
    } else {
        Exit::Done
    })
}

/// The value that the client gives to the status header.
const FORGED: &str = "forged-by-keygate-probe";

fn probe<'a>(
    args: &Args,
    path: &'a str,
    clean: &ProbeClient,
    compromised: &ProbeClient,
) -> Result<PathReport<'a>, CliError> {
    let (name, other) = (&args.header, args.header.replace('-', "_"));
    let forged = format!("{name}: {FORGED}\r\n{other}: {FORGED}\r\n");
    let of_clean = clean.get(path, "", &forged)?;
    let of_compromised = compromised.get(path, "", &forged)?;
    let named = clean.get(path, &format!(", {name}"), "")?;
    let shows = |outcome: &Outcome| outcome.contains(name);
    Ok(PathReport {
        path,
        finding: finding(&of_clean, &of_compromised),
        field: if of_clean.contains(FORGED) || of_compromised.contains(FORGED) {
            FieldFinding::Kept
        } else if !shows(&of_clean) {
            FieldFinding::NotShown
        } else if shows(&named) {
            FieldFinding::Replaced
        } else {
            FieldFinding::Removed
        },
        clean: of_clean.to_string(),
        compromised: of_compromised.to_string(),
    })
}

fn finding(clean: &Outcome, compromised: &Outcome) -> Finding {
    match (clean.is_rejected() || clean.is_failure(), compromised.is_rejected()) {
        (true, _) => Finding::Unclear,
        (false, true) => Finding::Judged,
        (false, false) if compromised.is_failure() => Finding::Unclear,
        (false, false) => Finding::NotJudged,
    }
}

impl PathReport<'_> {
    fn line(&self, args: &Args) -> String {
        let finding = match self.finding {
            Finding::Judged => "judged",
            Finding::NotJudged => "NOT JUDGED: the compromised client is served",
            Finding::Unclear => "unclear: the clean client is rejected too, or the proxy fails",
        };
        let field = match self.field {
            FieldFinding::Kept => "REACHES THE APPLICATION if a client sends it",
            FieldFinding::NotShown => "is not shown by the response",
            FieldFinding::Removed => "IS REMOVED if a client names it in Connection",
            FieldFinding::Replaced => "is replaced",
        };
        let Self { path, clean, compromised, .. } = self;
        let header = &args.header;
        format!("{path}  clean {clean}, compromised {compromised}: {finding}; {header} {field}")
    }
}

/// Repeats the requests for `period`. Returns whether the clean client was always served and the
/// compromised one never.
fn repeat(
    period: Duration,
    path: &str,
    clean: &ProbeClient,
    compromised: &ProbeClient,
) -> Result<bool, CliError> {
    let end = Instant::now() + period;
    let (mut requests, mut failed, mut served) = (0_u64, 0_u64, 0_u64);
    while Instant::now() < end {
        let outcome = clean.get(path, "", "")?;
        failed = failed.saturating_add((outcome.is_rejected() || outcome.is_failure()).into());
        let outcome = compromised.get(path, "", "")?;
        served = served.saturating_add((!outcome.is_rejected() && !outcome.is_failure()).into());
        requests = requests.saturating_add(1);
    }
    print(format_args!(
        "{path}  {requests} requests of each client: clean not served {failed}, compromised served {served}"
    ))?;
    Ok(failed == 0 && served == 0)
}
