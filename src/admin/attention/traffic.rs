//! Conditions of traffic: servers that are down, failed requests, full addresses, what was lost.

use std::collections::{BTreeMap, BTreeSet};

use keygate_core::unix_time::{duration, utc};

use super::{Attention, amber, object, red};
use crate::admin::counters::listed;
use crate::admin::servers::ServerReport;
use crate::admin::traffic::{Exchanges, ServiceTraffic};
use crate::admin::view::View;
use crate::listen::AddressLoad;
use crate::metrics::OwnStatus;

/// Share of failed exchanges with the upstream above which a service needs attention, as in the
/// alert `KeygateRequestsUnanswered`.
const AMBER_FAILURES: f64 = 0.05;
/// Share of failed exchanges above which a service does not work, as in the alert
/// `KeygateUpstreamUnreachable`.
const RED_FAILURES: f64 = 0.5;

/// Rejected requests from which a service needs attention. A single client may be the reason.
const FEW: f64 = 3.0;
/// Number of rejected requests above which a service without a success for a minute is red.
const MANY: f64 = 10.0;
/// Time without a success after which no request is served, in seconds.
const SILENCE: u64 = 60;

pub(super) fn conditions(view: &View) -> Vec<Attention> {
    let mut all = servers_down(&view.servers(), view);
    all.extend(view.traffic.services.iter().filter_map(failed_exchanges));
    all.extend(view.traffic.services.iter().filter_map(rejected_requests));
    all.extend(view.addresses.iter().filter_map(|load| full_address(load, view)));
    all.extend(losses(view));
    all
}

/// The servers that get no requests, or whose requests fail. One is amber if its service has
/// responses of another server, or if other requests to it succeed.
fn servers_down(servers: &[ServerReport<'_>], view: &View) -> Vec<Attention> {
    let (up, down): (Vec<_>, Vec<_>) = servers.iter().partition(|server| server.is_up());
    let serving: BTreeSet<&str> = up.iter().map(|server| server.service).collect();
    let conditions = down.iter().map(|server| {
        let since = server.since.map(|at| format!(" since {}", utc(at)));
        let error = server.error.as_ref().map(|error| format!(": {error}"));
        let problem = format!(
            "upstream server {} is {}{}{}",
            server.server,
            server.state,
            since.unwrap_or_default(),
            error.unwrap_or_default()
        );
        let recent = view.traffic.services.get(server.service).map(|traffic| &traffic.last_minute);
        let succeeds = server.is_failing() && recent.is_some_and(|it| it.all > it.failures());
        let is_served = succeeds || serving.contains(server.service);
        let new = if is_served { amber } else { red };
        new((format!("service {}", server.service), server.row()), problem)
    });
    conditions.collect()
}

/// A service whose exchanges with its upstream failed in the last minute: red if most did.
fn failed_exchanges((service, traffic): (&String, &ServiceTraffic)) -> Option<Attention> {
    let Exchanges { all, failed } = &traffic.last_minute;
    let failures = traffic.last_minute.failures();
    if failures <= all * AMBER_FAILURES {
        return None;
    }
    let problem = format!(
        "{failures} of {all} requests in the last minute got no response of an upstream server \
         ({}): see \"upstream failed\" in the log",
        listed(failed)
    );
    let new = if failures > all * RED_FAILURES { red } else { amber };
    Some(new(object("service", Some(service)), problem))
}

/// A service of whose requests since the last success, in the last minute at most, at least half, and
/// three, got one status of keygate. Red if no request has succeeded for a minute, and a limit of the
/// configuration rejects many. Visitors without a certificate cause the other statuses.
fn rejected_requests((service, traffic): (&String, &ServiceTraffic)) -> Option<Attention> {
    let most = traffic.own_responses.iter().max_by(|(_, one), (_, other)| one.total_cmp(other));
    let (all, silence) = (traffic.requests_without_success, traffic.silence.as_secs());
    let (text, count) = most.filter(|(_, count)| **count >= (all / 2.0).max(FEW))?;
    let status = text.parse().ok().and_then(OwnStatus::from_status)?;
    let limits = [OwnStatus::ContentTooLarge, OwnStatus::HeadTooLarge];
    let (by_limit, cause) = (limits.contains(&status), status.cause());
    let problem = format!(
        "no request has succeeded for {}, {count} of {all} in the last minute got {text} from keygate: \
         {cause}",
        duration(silence)
    );
    let new = if by_limit && silence >= SILENCE && *count > MANY { red } else { amber };
    Some(new(object("service", Some(service)), problem))
}

/// Share of `max_connections` from which an address needs attention.
const FULL: f64 = 0.95;
/// The same share for an authorizer. A single asker may have four fifths of its address.
const FULL_OF_ASKERS: f64 = 0.75;

/// An address with nearly as many connections as the services on it may have.
fn full_address(load: &AddressLoad, view: &View) -> Option<Attention> {
    let AddressLoad { address, open, max } = load;
    let address = address.to_string();
    let service = view.report.services.iter().find(|service| service.listen == address);
    let authorizer = view.report.authorizers.iter().find(|it| it.listen == address);
    let full = if authorizer.is_some() { FULL_OF_ASKERS } else { FULL };
    if (*open as f64) < full * *max as f64 {
        return None;
    }
    let problem = format!(
        "{open} of {max} connections are open, handshakes included, and new ones wait at the \
         limit: see limits.max_connections"
    );
    let row = (service.map(|service| format!("service-{}", service.name)))
        .or(authorizer.map(|authorizer| format!("authorizer-{}", authorizer.name)))?;
    Some(red((format!("address {address}"), row), problem))
}

/// Lines of the logs and spans that were lost.
fn losses(view: &View) -> Vec<Attention> {
    let described = |lost: &BTreeMap<String, f64>| {
        format!("{} in the last five minutes ({})", lost.values().sum::<f64>(), listed(lost))
    };
    let mut all = Vec::new();
    let (lines, spans) = (&view.traffic.losses.log_lines, &view.traffic.losses.spans);
    if !lines.is_empty() {
        let problem = format!(
            "lines lost: {}; the reader of the log stalls, or its file cannot be written",
            described(lines)
        );
        all.push(amber(("log", "configuration"), problem));
    }
    if !spans.is_empty() {
        let problem = format!(
            "spans lost: {}: see \"traces cannot be exported\" in the log",
            described(spans)
        );
        all.push(amber(("traces", "configuration"), problem));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::admin::attention::AttentionLevel;

    #[test]
    fn a_service_whose_requests_get_one_status_of_keygate_needs_attention() {
        use AttentionLevel::{Amber, Red};
        let condition = |all, silence, counts: [(&str, f64); 2]| {
            let own_responses = counts.map(|(status, count)| (status.to_owned(), count)).into();
            let traffic = ServiceTraffic {
                own_responses,
                requests_without_success: all,
                silence: Duration::from_secs(silence),
                ..ServiceTraffic::default()
            };
            rejected_requests((&"orders".to_owned(), &traffic)).map(|it| (it.level, it.problem))
        };
        let level = |silence, count, status| {
            condition(count, silence, [("405", 0.0), (status, count)]).map(|it| it.0)
        };
        let expected = "no request has succeeded for 1 minute, 120 of 121 in the last minute got 431 \
                        from keygate: head above limits.max_header_size, limits.max_headers or \
                        upstream.max_header_size";
        let shown = condition(121.0, 60, [("400", 1.0), ("431", 120.0)]);
        assert_eq!(shown, Some((Red, expected.to_owned())));
        assert_eq!(level(59, 120.0, "431"), Some(Amber));
        assert_eq!(level(60, 11.0, "413"), Some(Red));
        assert_eq!(level(60, 10.0, "431"), Some(Amber));
        for status in ["400", "403", "421"] {
            assert_eq!(level(3600, 120.0, status), Some(Amber), "visitors");
        }
        assert_eq!(condition(9.0, 60, [("400", 4.0), ("431", 4.0)]), None, "less than half");
        assert_eq!(condition(2.0, 60, [("400", 0.0), ("431", 2.0)]), None, "too few");
    }
}
