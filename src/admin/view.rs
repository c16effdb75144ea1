//! Everything that `/status` and the status page show of one moment.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use keygate_core::tls::HandshakeResult;
use keygate_core::unix_time;

use super::AdminState;
use super::history::{HourCounts, HourlyCounts};
use super::servers::{ServerReport, servers};
use super::traffic::{RecentTraffic, TrafficSamples, WINDOW};
use crate::confirm::ConfirmReport;
use crate::listen::AddressLoad;
use crate::metrics::Scrape;
use crate::process::lifecycle::Lifecycle;
use crate::proxy::ServerStates;
use crate::recent_hits::FailedIssuers;
use crate::snapshot::Report;

/// Earlier values of the counters.
#[derive(Debug, Default)]
pub(super) struct Memory {
    history: HourlyCounts,
    traffic: TrafficSamples,
}

/// The state of the process at one moment.
#[derive(Debug)]
pub(super) struct View {
    /// Seconds since the Unix epoch.
    pub(super) now: u64,
    pub(super) report: Arc<Report>,
    /// `None` if no source of proofs is configured.
    pub(super) confirm: Option<ConfirmReport>,
    pub(super) scrape: Scrape,
    /// Verdicts and actions of each hour, oldest first.
    pub(super) hours: Vec<HourCounts>,
    pub(super) traffic: RecentTraffic,
    /// The issuer of the last client that failed because of it, by service.
    pub(super) failed_issuers: FailedIssuers,
    /// The addresses of services and authorizers.
    pub(super) addresses: Vec<AddressLoad>,
    /// Why the process is not ready; `None` if it is.
    pub(super) not_ready: Option<String>,
    pub(super) stage: Lifecycle,
    /// The service or authorizer that the view is limited to.
    pub(super) only: Option<String>,
    servers: ServerStates,
}

impl View {
    /// The state now. The counters are added to the memory of `state`.
    pub(super) fn new(state: &AdminState) -> Self {
        let (now, report) = (unix_time::now(), state.sources.report.load_full());
        let scrape = state.sources.exposition.scrape();
        let mut memory = state.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let Memory { history, traffic } = &mut *memory;
        history.update(&scrape, now);
        let mut traffic = traffic.update(&scrape, &report, Instant::now());
        let hours = history.hours().cloned().collect();
        drop(memory);
        state.sources.key_uses.for_each_since(now.saturating_sub(WINDOW.as_secs()), |client| {
            if let Some(service) = traffic.services.get_mut(&client.service) {
                *service.client_keys.entry(client.key_algorithm.to_string()).or_default() += 1.0;
            }
        });
        Self {
            now,
            report,
            confirm: state.sources.confirm.load(),
            scrape,
            hours,
            traffic,
            failed_issuers: state.sources.recent_hits.failed_issuers(),
            addresses: state.sources.loads.all(),
            not_ready: state.not_ready(),
            stage: state.sources.drain.stage(),
            only: None,
            servers: state.sources.servers.clone(),
        }
    }

    /// The part that concerns one service or authorizer, and what all share; `None` if there is no
    /// such one.
    pub(super) fn only(mut self, name: &str) -> Option<Self> {
        let report = Arc::make_mut(&mut self.report);
        report.services.retain(|it| it.name == name);
        report.authorizers.retain(|it| it.name == name);
        if report.services.is_empty() && report.authorizers.is_empty() {
            return None;
        }
        let is_of_other = |kind| ["service", "authorizer"].contains(&kind);
        report.warnings.retain(|it| !is_of_other(it.kind) || it.name.as_deref() == Some(name));
        report.expiries.retain(|it| it.subject == name);
        self.traffic.services.retain(|service, _| service == name);
        self.only = Some(name.to_owned());
        Some(self)
    }

    /// Failed handshakes since the start; of one service, if the view is limited to it.
    pub(super) fn failed_handshakes(&self) -> f64 {
        let handshakes = self.scrape.sums_by_service("keygate_handshakes_total", "result");
        let shown = handshakes
            .iter()
            .filter(|(service, _)| self.only.as_ref().is_none_or(|only| only == *service));
        let results = shown.flat_map(|(_, results)| results);
        results.filter(|(result, _)| *result != HandshakeResult::Ok.as_str()).map(|it| it.1).sum()
    }

    /// The upstream servers of all services.
    pub(super) fn servers(&self) -> Vec<ServerReport<'_>> {
        servers(&self.report.services, &self.servers, self.now)
    }
}
