//! `keygate probe`: which paths of a proxy with an authorizer are judged.
//!
//! Requests each path as a client whose key is clean and as one whose key is compromised. Knows the
//! proxy by its responses alone.

mod client;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::ValueHint;
use keygate_core::guard::VerdictKind;
use keygate_core::tls::CertificateSummary;

use self::client::{Outcome, ProbeClient};
use super::duration::parse_duration;
use super::{CliError, Exit, print};

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
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    period: Option<Duration>,
    /// Maximum time to connect, and to wait for bytes of a response.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    for text in args.paths.iter().chain([&args.header]) {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(CliError::Usage(format!("{text:?} is no path and no header name")));
        }
    }
    let clean = ProbeClient::new(args, &args.clean)?;
    let mut compromised = ProbeClient::new(args, &args.compromised)?;
    compromised.address = clean.address;
    let issuer = |client: &ProbeClient| CertificateSummary::new(&client.certificate).issuer;
    if issuer(&clean) != issuer(&compromised) {
        let problem = "the two certificates have different issuers, so that a rejection may not be about the key; use certificates of one CA";
        return Err(CliError::Operation(problem.to_owned()));
    }
    let mut findings = Vec::new();
    for path in &args.paths {
        findings.extend(probe(&args.header, path, &clean, &compromised)?);
    }
    if let (Some(period), Some(path)) = (args.period, args.paths.first()) {
        findings.push(repeat(period, path, &clean, &compromised)?);
    }
    let by_severity = [Exit::Found, Exit::Incomplete, Exit::Unproved];
    let most_severe = by_severity.into_iter().find(|it| findings.contains(it));
    Ok(most_severe.unwrap_or(Exit::Done))
}

/// The value that the client gives to the status header.
const FORGED: &str = "forged-by-keygate-probe";

/// Prints whether `path` is judged, and what becomes of a status header that the client sends.
fn probe(
    name: &str,
    path: &str,
    clean: &ProbeClient,
    compromised: &ProbeClient,
) -> Result<[Exit; 2], CliError> {
    let forged = format!("{name}: {FORGED}\r\n{}: {FORGED}\r\n", name.replace('-', "_"));
    let first = clean.get(path, "", &forged);
    if let Some(error) = first.untrusted() {
        let problem =
            format!("{error}: the certificate of the proxy; check HOST, and name its CA with --ca");
        return Err(CliError::Operation(problem));
    }
    let judged = compromised.get(path, "", &forged);
    let named = clean.get(path, &format!(", {name}"), "");
    let is_status = |outcome: &Outcome| {
        let word = outcome.word_of(name);
        VerdictKind::ALL.iter().any(|kind| word.as_deref() == Some(kind.as_str()))
    };
    // A rejection by name, or without a verification, has this word.
    let word = judged.word_of(name);
    let is_other = matches!(word.as_deref(), Some("clean" | "unchecked" | "allowed"));
    let is_rejected = matches!(judged.status(), "403" | "closed") && !is_other;
    // A proxy without an answer of keygate rejects the clean client as well, before or after.
    let has_passed = first.has_passed() && named.has_passed();
    let (finding, text) = match (has_passed, judged.is_served()) {
        (true, false) if is_rejected => (Exit::Done, "judged"),
        (true, true) => (Exit::Found, "NOT JUDGED: the compromised client is served"),
        (false, true) => (
            Exit::Found,
            "NOT JUDGED: the compromised client is served, and the clean one is not; are they swapped?",
        ),
        _ => (Exit::Incomplete, "UNKNOWN: the responses do not show that the key decides"),
    };
    let (field, of_field) = if first.response.contains(FORGED) || judged.response.contains(FORGED) {
        (Exit::Found, "REACHES THE APPLICATION if a client sends it")
    } else if !has_passed {
        (Exit::Incomplete, "UNKNOWN: a request with it was not served")
    } else if !is_status(&first) {
        (Exit::Unproved, "is UNPROVED, because the response does not show it")
    } else if is_status(&named) {
        (Exit::Done, "is replaced")
    } else {
        (Exit::Found, "IS LOST if a client names it in Connection")
    };
    let of_clean = if first.has_passed() { named.status() } else { first.status() };
    let of_compromised = judged.status();
    print(format_args!(
        "{path}  clean: {of_clean}, compromised: {of_compromised}: {text}; {name} {of_field}"
    ))?;
    Ok([finding, field])
}

/// Repeats the requests for `period`. The clean client must always be served, and the compromised one
/// never.
fn repeat(
    period: Duration,
    path: &str,
    clean: &ProbeClient,
    compromised: &ProbeClient,
) -> Result<Exit, CliError> {
    let started = Instant::now();
    let (mut requests, mut failed, mut served) = (0_u64, 0_u64, 0_u64);
    while started.elapsed() < period {
        failed += u64::from(!clean.get(path, "", "").is_served());
        served += u64::from(compromised.get(path, "", "").is_served());
        requests += 1;
    }
    print(format_args!(
        "{path}  {requests} requests of each client: clean not served {failed}, compromised served {served}"
    ))?;
    Ok(if failed == 0 && served == 0 { Exit::Done } else { Exit::Found })
}
