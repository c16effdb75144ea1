//! `keygate validate`: loads everything that `run` would load, and listens on no address. Only
//! `--online` opens connections: to the source of proofs.

mod json;

use std::path::Path;

use keygate_core::guard::{JudgedAt, Policy};
use keygate_core::tls::AnchorCounts;
use keygate_core::unix_time::{self, dated};

use super::counted::{counted, counted_entries};
use super::{CliError, ConfigFile, Exit, authorizer_hosts, print, print_error, resolver, runtime};
use crate::config::{
    AdminCommands, AuthorizerConfig, CanaryConfig, Config, ConfirmConfig, KeyLines, ListenAddress,
    PlacedProblem, ServiceConfig,
};
use crate::confirm::DirectSource;
use crate::listen;
use crate::metrics::ControlMetrics;
use crate::server::{self, ServerError};
use crate::snapshot::{Loader, Report};
use crate::sources::{ExposedKeyFile, JudgementContext, Warning};
use crate::traces::ExportTask;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigFile,
    /// Exit with code 2 if there is a warning.
    #[arg(long)]
    strict: bool,
    /// Ask the source of proofs about its canary. Without this option, nothing is asked.
    #[arg(long)]
    online: bool,
    /// Print a JSON object, also if the configuration cannot be used.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<Exit, CliError> {
    let path = args.config.path();
    let (checked, mut errors) = match Checked::load(&path, args.online) {
        Ok((checked, errors)) => (Some(checked), errors),
        Err(errors) => (None, errors),
    };
    let warnings = checked.as_ref().map_or(0, |it| it.report.warnings.len() as u64);
    let is_warned = args.strict && errors.is_empty() && warnings > 0;
    if args.json {
        json::print(&path, checked.as_ref(), &errors)?;
        let failed = errors.last().map(|cause| Exit::Failed(cause.exit_code()));
        return Ok(failed.unwrap_or(if is_warned { Exit::Warned } else { Exit::Done }));
    }
    if let Some(Checked { config, report, source }) = &checked {
        let mut lines = lines_of_files(config, report);
        lines.extend(config.services.iter().map(line_of_service));
        lines.extend(config.authorizers.iter().flat_map(lines_of_authorizer));
        lines.extend(lines_of_cas(report));
        lines.iter().chain(source).try_for_each(print)?;
    }
    if let Some(cause) = errors.pop() {
        errors.iter().flat_map(CliError::lines).for_each(|line| print_error(&line));
        return Err(cause);
    }
    for warning in checked.iter().flat_map(|it| &it.report.warnings) {
        print(format_args!("warning: {}", warning.text))?;
    }
    let with_warnings = match warnings {
        0 => String::new(),
        count => format!(", with {}", counted(count, "warning")),
    };
    print(format_args!("{}: valid{with_warnings}", path.display()))?;
    if is_warned {
        print_error(&"--strict: there are warnings");
        return Ok(Exit::Warned);
    }
    Ok(Exit::Done)
}

/// A configuration whose files can be used.
struct Checked {
    config: Config,
    /// With the warnings that only this command makes.
    report: Report,
    /// Lines about the source of proofs.
    source: Vec<String>,
}

impl Checked {
    /// The configuration, and why the source of proofs or the traces cannot be used although
    /// everything else can.
    ///
    /// # Errors
    /// Returns the errors of all files and addresses. The last one determines the exit code.
    fn load(path: &Path, online: bool) -> Result<(Self, Vec<CliError>), Vec<CliError>> {
        let config = Config::read(path).map_err(|error| vec![CliError::from(error)])?;
        let metrics = ControlMetrics::new();
        let metrics = metrics.map_err(|error| vec![CliError::from(ServerError::Metrics(error))])?;
        let loaded = Loader::start(&config, Some(path), metrics, JudgementContext::default());
        let unusable = listen::unusable_addresses(&config).into_iter();
        let unusable = unusable.map(|error| CliError::start(path, error));
        let access_log = server::check_access_log(&config).err();
        let unusable = unusable.chain(access_log.map(|error| CliError::start(path, error)));
        let (loader, _) = match loaded {
            Ok(loaded) => loaded,
            Err(errors) => {
                let source = config.confirm.as_ref();
                let source = source.map(|it| direct_source(it, config.state.dir.as_deref(), path));
                let source = source.and_then(Result::err);
                let traces = check_traces(&config, path).err();
                let others = source.into_iter().chain(traces).chain(unusable);
                return Err(others.chain([CliError::start(path, errors)]).collect());
            }
        };
        let unusable: Vec<_> = unusable.collect();
        if !unusable.is_empty() {
            return Err(unusable);
        }
        let foreign = listen::foreign_addresses(&config);
        let foreign = foreign.iter().map(|address| {
            format!(
                "{address}: this machine has no such address, so that `run` cannot listen on it"
            )
        });
        let open_commands = open_commands(&config);
        let mut checked = Self { config, report: loader.report(), source: Vec::new() };
        let lines = KeyLines::read(path);
        for warning in &mut checked.report.warnings {
            let problem =
                PlacedProblem { place: warning.place.take(), problem: warning.text.clone() };
            let located = lines.locate(vec![problem]);
            warning.text = located.iter().map(ToString::to_string).collect();
        }
        checked.warn(foreign);
        checked.warn(open_commands);
        let mut errors = Vec::new();
        if let Some(confirm) = checked.config.confirm.clone() {
            errors.extend(checked.check_source(path, &confirm, online).err());
        }
        match check_traces(&checked.config, path) {
            Ok(exposed) => checked.warn(exposed.map(|file| file.to_string())),
            Err(error) => errors.push(error),
        }
        Ok((checked, errors))
    }

    fn warn(&mut self, warnings: impl IntoIterator<Item = String>) {
        let warnings = warnings.into_iter().map(Warning::configuration);
        self.report.warnings.extend(warnings);
    }

    /// Reads the files of the source of proofs, and describes what it will be asked. Checks the
    /// canary of a directory, and with `online` the canary of a URL.
    fn check_source(
        &mut self,
        path: &Path,
        config: &ConfirmConfig,
        online: bool,
    ) -> Result<(), CliError> {
        let source = direct_source(config, self.config.state.dir.as_deref(), path)?;
        let name = source.name();
        let canary = match &config.canary {
            _ if !source.clears() => "off".to_owned(),
            CanaryConfig::File(path) => path.display().to_string(),
            CanaryConfig::Off => "off".to_owned(),
            CanaryConfig::Published => "published".to_owned(),
        };
        let filters = config.filters.join(", ");
        let line =
            format!("source of proofs {name}: asked about keys in {filters}; canary {canary}");
        self.source.push(line);
        self.warn(source.exposed_api_key().map(ToString::to_string));
        if !source.clears() {
            if online {
                self.source.push(format!(
                    "source of proofs {name}: canary not checked: this source clears no key"
                ));
            }
            return Ok(());
        }
        if !online && config.url.is_some() {
            return Ok(());
        }
        match runtime()?.block_on(source.check_canary()) {
            Ok(()) => {
                self.source.push(format!("source of proofs {name}: knows its canary"));
                Ok(())
            }
            Err(error) => {
                let problem = format!(
                    "source of proofs {name}: no key is cleared, because the check of the canary \
                     failed: {error}; {}",
                    error.remedy
                );
                if online {
                    return Err(CliError::Operation(problem));
                }
                self.warn([problem]);
                Ok(())
            }
        }
    }
}

/// A warning if peers of a network may send commands.
fn open_commands(config: &Config) -> Option<String> {
    let ListenAddress::Tcp(address) = config.admin.listen else { return None };
    let is_open = config.admin.commands == AdminCommands::Anywhere && !address.ip().is_loopback();
    is_open.then(|| {
        format!(
            "admin.commands: every peer that reaches {address} can accept filter updates, reload \
             and drain; set \"local\", or let a firewall restrict the address"
        )
    })
}

/// Reads the files of the collector of traces. Returns one with unsafe permissions.
fn check_traces(config: &Config, path: &Path) -> Result<Option<ExposedKeyFile>, CliError> {
    match &config.traces {
        Some(traces) => ExportTask::check(traces).map_err(|error| CliError::start(path, error)),
        None => Ok(None),
    }
}

/// The lines about filters and lists, and about what decides beside them.
fn lines_of_files(config: &Config, report: &Report) -> Vec<String> {
    let filters = report.filters.iter().map(|filter| {
        let summary = &filter.summary;
        format!(
            "filter {}: {}revision {}, {}, 2^{} bits, {:.1} % set, false positives {:.2e}",
            filter.name,
            if filter.last_good_in_use { "copy in state.dir, " } else { "" },
            summary.revision,
            counted_entries(summary.entries.into()),
            summary.hash_length,
            summary.fill_ratio * 100.0,
            summary.false_positive_ratio
        )
    });
    let lists = report.lists.iter().map(|list| {
        let date = list.updated.map(|date| format!(", of {}", dated(date))).unwrap_or_default();
        let path = if list.last_good_in_use { "copy in state.dir" } else { list.path.as_str() };
        format!("list {}: {path}, {}{date}", list.name, counted(list.entries as u64, "key"))
    });
    let weak_keys = [format!("weak keys: {}", report.weak_keys_text())];
    let signers = report.filters.iter().map(|it| ("filter", &it.name, &it.signature));
    let signers = signers.chain(report.lists.iter().map(|it| ("list", &it.name, &it.signature)));
    let signatures = signers.filter_map(|(kind, name, signature)| {
        let signature = signature.as_ref()?;
        Some(format!("{kind} {name}: signed with the key {signature}"))
    });
    let exceptions = config.exceptions.iter().zip(&report.exceptions).map(|(exception, known)| {
        let state = if known.expired { "exception expired at" } else { "exception until" };
        let until = dated(unix_time::seconds(exception.until));
        format!("{state} {until}: {}, {}", exception.key, exception.reason)
    });
    let lines = filters.chain(lists).chain(weak_keys).chain(signatures).chain(exceptions);
    lines.collect()
}

fn line_of_service(service: &ServiceConfig) -> String {
    let names = match service.server_names.as_slice() {
        [] => "any name".to_owned(),
        names => names.join(", "),
    };
    let servers = service.upstream.servers.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (name, listen, servers) = (&service.name, service.listen, servers.join(", "));
    format!(
        "service {name}: {listen} for {names}, to {servers}; {}",
        actions(&service.policy.decisions)
    )
}

/// The line about an authorizer, and the configuration of its host.
fn lines_of_authorizer(config: &AuthorizerConfig) -> Vec<String> {
    let AuthorizerConfig { name, protocol, listen, certificate_from, .. } = config;
    let verified = match config.client_auth.has_cas() {
        true => "verified by keygate",
        false if protocol.stage() == JudgedAt::Requested => "before a certificate exists",
        false => "verified by the host",
    };
    let (protocol, actions) = (protocol.as_str(), actions(&config.policy.decisions));
    let line = format!(
        "authorizer {name}: {protocol} over {listen}, certificate from {certificate_from}, \
         {verified}; {actions}"
    );
    let hosts = authorizer_hosts::snippets(config).into_iter();
    let hosts = hosts.map(|(host, snippet)| format!("\nauthorizer {name}: {host}:\n\n{snippet}"));
    std::iter::once(line).chain(hosts).collect()
}

/// The action of a policy for each verdict.
fn actions(policy: &Policy) -> String {
    format!(
        "listed: {}, weak: {}, confirmed: {}, probable: {}, cleared: {}, unchecked: {}",
        policy.on_listed.as_str(),
        policy.on_weak.as_str(),
        policy.on_confirmed.as_str(),
        policy.on_probable.as_str(),
        policy.on_cleared.as_str(),
        policy.on_unchecked.as_str()
    )
}

/// The lines about the CAs and the revocation lists of services and authorizers.
fn lines_of_cas(report: &Report) -> Vec<String> {
    let services = report.services.iter();
    let services =
        services.map(|it| ("service", &it.name, (it.trust_anchors, it.intermediates), &it.crls));
    let authorizers = report.authorizers.iter();
    let authorizers = authorizers
        .map(|it| ("authorizer", &it.name, (it.trust_anchors, it.intermediates), &it.crls));
    let (mut anchor_lines, mut crl_lines) = (Vec::new(), Vec::new());
    for (kind, name, (anchors, others), crls) in services.chain(authorizers) {
        let AnchorCounts { roots, intermediates, pins } = anchors;
        if anchors != AnchorCounts::default() {
            let others = (others > 0).then(|| format!("; client_auth.intermediates: {others}"));
            anchor_lines.push(format!(
                "{kind} {name}: trust anchors: {}, {}, {}{}",
                counted(roots as u64, "root"),
                counted(intermediates as u64, "intermediate"),
                counted(pins as u64, "pinned certificate"),
                others.unwrap_or_default()
            ));
        }
        crl_lines.extend(crls.iter().map(|crl| {
            let number = crl.number.as_deref().map(|number| format!(", CRL number {number}"));
            format!(
                "{kind} {name}: revocation list of {}{}, {}, expires at {}",
                crl.issuer,
                number.unwrap_or_default(),
                counted_entries(crl.entries as u64),
                dated(crl.next_update)
            )
        }));
    }
    anchor_lines.extend(crl_lines);
    anchor_lines
}

fn direct_source(
    config: &ConfirmConfig,
    state_dir: Option<&Path>,
    path: &Path,
) -> Result<DirectSource, CliError> {
    DirectSource::new(config, state_dir, resolver()?).map_err(|error| CliError::start(path, error))
}
