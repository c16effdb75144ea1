//! Conditions of clients: nobody gets in, most do not, no question can be used, connections above a
//! limit, or rejections that follow an update.

use std::collections::BTreeMap;

use keygate_core::tls::HandshakeResult;
use keygate_core::unix_time::duration;

use super::{Attention, amber, object, red};
use crate::admin::admissions::update::Update;
use crate::admin::admissions::{Admission, ClientCounts, UNROUTED};
use crate::admin::counters::listed;
use crate::admin::view::View;
use crate::metrics::{Label, QuestionResult};
use crate::shell;

/// Time without a success after which nobody gets in, in seconds.
const SILENCE: u64 = 60;
/// Failures in that time from which this needs attention. A single client may be the reason.
const FEW: f64 = 3.0;
/// Number of failures above which most clients of a service are concerned, as in the alert
/// `KeygateNobodyGetsIn`.
const MANY: f64 = 10.0;

pub(super) fn conditions(view: &View) -> Vec<Attention> {
    let (update, cause) =
        (view.traffic.updates.last(), view.traffic.updates.iter().find(|it| it.is_jump()));
    let open = view.scrape.sums("keygate_connections_active", "service");
    let services = view.report.services.iter().map(|it| ("service", it.name.as_str()));
    let authorizers = view.report.authorizers.iter().map(|it| ("authorizer", it.name.as_str()));
    let conditions = services.chain(authorizers).flat_map(|(kind, name)| {
        let open = open.get(name).copied().unwrap_or_default();
        let clients = view.traffic.admissions.get(name);
        let issuer = view.failed_issuers.get(name);
        let shut_out = clients.and_then(|it| shut_out((kind, name), it, open, (issuer, update)));
        let shut_out = shut_out.or_else(|| unusual_failures(name, clients?));
        let limited = clients.and_then(|it| limited(name, it));
        let unusable = clients.and_then(|it| unusable_questions(name, it));
        shut_out.into_iter().chain(limited).chain(unusable)
    });
    let unrouted = view.traffic.admissions.get(UNROUTED).and_then(|it| limited(UNROUTED, it));
    conditions
        .chain(unrouted)
        .chain(cause.and_then(|update| rejecting_update(update, view)))
        .collect()
}

/// A service or authorizer that none or less than half of its clients get past. Red if none does,
/// no connection is `open`, and the clients are the ones that are rejected.
fn shut_out(
    (kind, name): (&str, &str),
    clients: &Admission,
    open: f64,
    (issuer, update): (Option<&(HandshakeResult, String)>, Option<&Update>),
) -> Option<Attention> {
    let Admission { recent, last_minute, silence, since_success, has_succeeded, .. } = clients;
    let (failed, silence) = (recent.failures(), silence.as_secs());
    let is_silent = silence >= SILENCE && since_success.failures() >= FEW && failed > 0.0;
    let fails = failed > MANY && failed > recent.admitted;
    let counts = if is_silent { since_success } else { last_minute };
    let failures = counts.failures();
    let problem = if is_silent {
        let last = if *has_succeeded { "for" } else { "since the start," };
        format!("no client gets in {last} {}, {failures} attempts failed", duration(silence))
    } else if fails && failures > last_minute.admitted {
        let all = failures + last_minute.admitted;
        format!("{failures} of {all} attempts of clients in the last minute failed")
    } else {
        return None;
    };
    // The cause may have changed since the last success.
    let latest = if last_minute.failures() > 0.0 { last_minute } else { counts };
    let (results, cause) = (listed(&counts.failed), cause_of_most(&latest.failed));
    let update = update.map(|update| {
        format!("; last update {} ago: {}", duration(update.age.as_secs()), file_names(update))
    });
    let update = update.unwrap_or_default();
    let issuer = issuer.filter(|(result, _)| latest.failed.contains_key(result.as_str()));
    let issuer = issuer
        .map(|(result, issuer)| format!("; the last {} has the issuer {issuer}", result.as_str()));
    let issuer = issuer.unwrap_or_default();
    let problem = format!("{problem} ({results}): {cause}{issuer}{update}");
    // Browsers and probes without the CA of the service cause `service_rejected`, and a client with
    // a copied certificate causes `bad_signature`. One of them makes nothing red.
    let by_clients = [HandshakeResult::BadSignature, HandshakeResult::ServiceRejected];
    let by_clients = by_clients.iter().filter_map(|it| since_success.failed.get(it.as_str()));
    let rejected = since_success.failures() - by_clients.sum::<f64>();
    let new = if is_silent && rejected > MANY && open == 0.0 { red } else { amber };
    Some(new(object(kind, Some(name)), problem))
}

/// A service that no client gets past any more, while handshakes fail more often than before with
/// results that scanners cause as well.
fn unusual_failures(name: &str, clients: &Admission) -> Option<Attention> {
    let Admission { recent, unusual, silence, .. } = clients;
    let mut counts = unusual.clone();
    counts.retain(|result, count| *count > MANY && recent.others.contains_key(result));
    if counts.is_empty() || silence.as_secs() < SILENCE {
        return None;
    }
    let problem = format!(
        "no client gets in for {}, and more handshakes than usual fail, with it or before a service \
         is selected ({}): {}",
        duration(silence.as_secs()),
        listed(&counts),
        cause_of_most(&counts)
    );
    Some(amber(object("service", Some(name)), problem))
}

/// Connections of a service, or before one is selected, of which some were above a limit.
fn limited(name: &str, clients: &Admission) -> Option<Attention> {
    let limited = clients.last_minute.limited;
    let problem = format!(
        "{limited} connections in the last minute were closed, or got 429, at a limit: see \"too many \
         connections from one address\" and \"client holds its share of\" in the log, with the \
         setting; evicted handshakes are a cause as well"
    );
    (limited >= FEW).then(|| match name {
        UNROUTED => amber(("connections without a service", "unrouted"), problem),
        _ => amber(object("service", Some(name)), problem),
    })
}

/// An authorizer whose questions of the last minute had no certificate that can be used, and were all
/// denied. Visitors without a certificate make it red only if no client got in since the start.
fn unusable_questions(name: &str, clients: &Admission) -> Option<Attention> {
    let ClientCounts { admitted, failed, unusable, .. } = &clients.last_minute;
    let judged = [QuestionResult::ClientNotAllowed, QuestionResult::Denied];
    let is_judged = judged.iter().any(|it| failed.get(it.as_str()).is_some_and(|it| *it > 0.0));
    let all: f64 = unusable.values().sum();
    if *admitted > 0.0 || is_judged || all < FEW {
        return None;
    }
    let problem = format!(
        "no question of the last minute has a certificate that can be used, {all} were denied ({}): {}",
        listed(unusable),
        cause_of_most(unusable)
    );
    let absent = unusable.get(QuestionResult::NoCertificate.as_str()).copied().unwrap_or_default();
    let counted = if clients.has_succeeded { all - absent } else { all };
    let new = if counted > MANY { red } else { amber };
    Some(new(object("authorizer", Some(name)), problem))
}

fn cause_of_most(counts: &BTreeMap<String, f64>) -> &'static str {
    let most = counts.iter().max_by(|(_, one), (_, other)| one.total_cmp(other));
    most.map_or("", |(result, _)| cause_of(result))
}

/// The file or setting to check for the result of most handshakes or questions.
fn cause_of(result: &str) -> &'static str {
    use HandshakeResult::{
        BadSignature, ClientGone, Expired, NotAllowed, NotTls, NotVouched, PlainHttp, Revoked,
        ServiceRejected, Timeout, UnknownIssuer, UnknownName, Unsuitable, Unsupported,
    };
    use QuestionResult::{ClientNotAllowed, Malformed, NoCertificate, NotVerified, Oversize};
    let causes = [
        (
            BadSignature.as_str(),
            "clients do not hold the keys of their certificates, which may be copies: see \
             \"handshake failed\" with result \"bad_signature\" in the log, with peer and subject",
        ),
        (Expired.as_str(), "check the dates of the certificates, and the clock"),
        (NotAllowed.as_str(), NOT_ALLOWED),
        (
            NotVouched.as_str(),
            "check client_auth.cas: see \"not_vouched\" in the log, with the CA and the name that it \
             may not vouch for",
        ),
        (
            Revoked.as_str(),
            "if intended, nothing to do; otherwise check client_auth.crls: a list of a CA above may revoke the issuer",
        ),
        (ServiceRejected.as_str(), "clients reject tls.certificate, or lack its CA"),
        (
            UnknownIssuer.as_str(),
            "check client_auth.trust_anchors, and the intermediates that clients send",
        ),
        (
            Unsuitable.as_str(),
            "the purpose or key of client certificates, see error of \"handshake failed\" in the log; \
             client_auth.accept_server_auth_until admits serverAuth",
        ),
        (UnknownName.as_str(), "check server_names: the log has the name in sni"),
        (Unsupported.as_str(), "check tls.min_version: the log has the fault in error"),
        (ClientGone.as_str(), NETWORK),
        (NotTls.as_str(), NETWORK),
        (PlainHttp.as_str(), NETWORK),
        (Timeout.as_str(), NETWORK),
        (ClientNotAllowed.as_str(), NOT_ALLOWED),
        (
            Malformed.as_str(),
            "correct the configuration of the host: the reason is in \"question denied\" in the log, \
             its remedy in \"Finding faults\" of docs/authorizers.md",
        ),
        (
            NoCertificate.as_str(),
            "clients present none, or the host sends none in the field of certificate_from; if clients \
             need none, set client_auth.mode = \"optional\"",
        ),
        (
            Oversize.as_str(),
            "raise limits.max_question_size, or let the host send fewer headers of the client",
        ),
        (NotVerified.as_str(), "check client_auth.trust_anchors, and the CAs of the host"),
    ];
    let cause = causes.iter().find(|(it, _)| *it == result);
    cause.map_or(KEYS, |(_, cause)| cause)
}

const KEYS: &str =
    "if intended, nothing to do; otherwise check the filters and lists that have their keys";
const NETWORK: &str = "check accept_proxy, the network, and the clients";
const NOT_ALLOWED: &str = "if intended, nothing to do; otherwise check client_auth.allow";

/// An update after which more clients are rejected than before.
fn rejecting_update(update: &Update, view: &View) -> Option<Attention> {
    let file = update.files.first()?;
    let Update { recent, expected, age, .. } = update;
    let loaded = duration(age.as_secs());
    let counted = match update.is_older_than_counted() {
        true => format!("in the last five minutes, loaded {loaded} ago"),
        false => format!("since it was loaded, {loaded} ago"),
    };
    let problem = format!(
        "{recent} rejections {counted} at most, {expected:.0} before in as long; if intended, nothing \
         to do; otherwise restore the file before it"
    );
    let condition =
        |problem| amber((format!("update of {}", file_names(update)), file.row.clone()), problem);
    if !update.rejects_keys() {
        let crls = ", but for a CRL, of which the CA must issue the next one";
        return Some(condition(format!("{problem}{crls}")));
    }
    let problem = format!(
        "{problem}, an older filter or list with rollback = \"allow\", and accept it if it waits; \
         on_probable or on_listed = \"flag\" admits the clients at once"
    );
    // The report has no client that a CA or revocation list rejects.
    let command = shell::keygate(&["report"], view.report.configuration_path.as_deref());
    Some(Attention { command: Some(command), ..condition(problem) })
}

fn file_names(update: &Update) -> String {
    let names: Vec<_> = update.files.iter().map(|it| it.text.as_str()).collect();
    names.join("; ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::admin::attention::AttentionLevel;

    fn clients(admitted: f64, failed: f64, silence: u64) -> Admission {
        of_result("unknown_issuer", admitted, failed, silence)
    }

    fn of_result(result: &str, admitted: f64, failed: f64, silence: u64) -> Admission {
        let failed: BTreeMap<_, _> = [(result.to_owned(), failed)].into();
        let recent = ClientCounts { admitted, failed: failed.clone(), ..ClientCounts::default() };
        Admission {
            last_minute: recent.clone(),
            recent,
            silence: Duration::from_secs(silence),
            since_success: ClientCounts { failed, ..ClientCounts::default() },
            has_succeeded: true,
            ..Admission::default()
        }
    }

    #[test]
    fn unusual_failures_and_connections_above_a_limit_need_attention() {
        let others = |count| [("unsupported".to_owned(), count)].into();
        let condition = |count, recent, silence| {
            let recent = ClientCounts { others: recent, ..ClientCounts::default() };
            let (unusual, silence) = (others(count), Duration::from_secs(silence));
            unusual_failures("a", &Admission { recent, unusual, silence, ..Admission::default() })
        };
        assert_eq!(condition(10.0, others(10.0), 60), None, "too few");
        assert_eq!(condition(11.0, others(11.0), 59), None, "too early");
        assert_eq!(condition(11.0, BTreeMap::new(), 600), None, "it is over");
        assert_eq!(condition(11.0, others(1.0), 60).unwrap().level, AttentionLevel::Amber);
        let limited_of = |name, limited| {
            let last_minute = ClientCounts { limited, ..ClientCounts::default() };
            super::limited(name, &Admission { last_minute, ..Admission::default() })
        };
        assert_eq!(limited_of("a", 2.0), None);
        assert_eq!(limited_of("a", 3.0).unwrap().row, "service-a");
        assert_eq!(limited_of(UNROUTED, 3.0).unwrap().row, "unrouted");
    }

    #[test]
    fn a_service_that_no_client_reaches_for_a_minute_is_red_and_a_single_client_is_not() {
        let condition =
            |clients: Admission| shut_out(("service", "orders"), &clients, 0.0, (None, None));
        let level = |clients| condition(clients).map(|it| it.level);
        assert_eq!(level(clients(20.0, 11.0, 60)), Some(AttentionLevel::Red));
        assert_eq!(level(clients(20.0, 11.0, 59)), None, "most got in");
        assert_eq!(level(clients(20.0, 21.0, 59)), Some(AttentionLevel::Amber));
        assert_eq!(level(clients(0.0, 10.0, 59)), None, "too few");
        assert_eq!(level(clients(0.0, 10.0, 60)), Some(AttentionLevel::Amber));
        assert_eq!(level(clients(0.0, 2.0, 3600)), None, "a client with a wrong certificate");
        assert_eq!(level(clients(5.0, 0.0, 3600)), None, "no client tries");
        let never = Admission { has_succeeded: false, ..clients(0.0, 100.0, 3600) };
        assert_eq!(level(never), Some(AttentionLevel::Red), "after a restart");
        let browser = of_result("service_rejected", 0.0, 100.0, 3600);
        assert_eq!(level(browser), Some(AttentionLevel::Amber), "a browser without the CA");
        let copied = of_result("bad_signature", 0.0, 100.0, 3600);
        assert_eq!(level(copied.clone()), Some(AttentionLevel::Amber), "a copied certificate");
        let problem = condition(copied).unwrap().problem;
        assert!(problem.contains("see \"handshake failed\" with result"), "{problem}");
        let served = shut_out(("service", "orders"), &clients(0.0, 100.0, 3600), 1.0, (None, None));
        assert_eq!(served.map(|it| it.level), Some(AttentionLevel::Amber), "one is connected");
        let revoked = of_result("revoked", 0.0, 100.0, 190);
        for (result, is_shown) in
            [(HandshakeResult::Revoked, true), (HandshakeResult::UnknownIssuer, false)]
        {
            let issuer = (result, "CN=Issuing CA".to_owned());
            let shown = shut_out(("service", "orders"), &revoked, 0.0, (Some(&issuer), None));
            let problem = shown.unwrap().problem;
            let expected = "; the last revoked has the issuer CN=Issuing CA";
            assert!(problem.ends_with(expected) == is_shown, "{problem}");
            assert_eq!(problem.contains("CN=Issuing CA"), is_shown, "{problem}");
        }
        let problem = condition(clients(0.0, 100.0, 190)).unwrap().problem;
        let expected = "no client gets in for 3 minutes, 100 attempts failed (unknown_issuer: 100): \
                        check client_auth.trust_anchors, and ";
        assert!(problem.starts_with(expected), "{problem}");
    }

    #[test]
    fn an_authorizer_that_can_use_no_question_is_red_unless_visitors_without_a_certificate_ask() {
        let level = |admitted, denied, counts: &[(&str, f64)], has_succeeded| {
            let unusable = counts.iter().map(|(result, count)| ((*result).to_owned(), *count));
            let failed = [("denied".to_owned(), denied)].into();
            let unusable = unusable.collect();
            let last_minute =
                ClientCounts { admitted, failed, unusable, ..ClientCounts::default() };
            let clients = Admission { last_minute, has_succeeded, ..Admission::default() };
            unusable_questions("edge", &clients).map(|it| it.level)
        };
        use AttentionLevel::{Amber, Red};
        for result in ["malformed", "oversize"] {
            assert_eq!(level(0.0, 0.0, &[(result, 11.0)], true), Some(Red), "{result}");
            assert_eq!(level(0.0, 0.0, &[(result, 11.0)], false), Some(Red), "{result}");
            assert_eq!(level(0.0, 0.0, &[(result, 10.0)], false), Some(Amber), "{result}");
            assert_eq!(level(0.0, 0.0, &[(result, 3.0)], false), Some(Amber), "{result}");
            assert_eq!(level(0.0, 0.0, &[(result, 2.0)], false), None, "{result}");
            assert_eq!(level(1.0, 0.0, &[(result, 72.0)], true), None, "{result}");
            assert_eq!(level(0.0, 1.0, &[(result, 72.0)], true), None, "{result}");
        }
        let visitors = [("malformed", 10.0), ("no_certificate", 90.0)];
        assert_eq!(level(0.0, 0.0, &visitors, true), Some(Amber));
        assert_eq!(level(0.0, 0.0, &visitors, false), Some(Red), "wrong from the start");
        assert_eq!(level(0.0, 0.0, &[], false), None, "no question");
    }

    #[test]
    fn the_last_minute_decides_whether_clients_fail_and_for_what_cause() {
        let condition =
            |clients: &Admission| shut_out(("service", "orders"), clients, 0.0, (None, None));
        let mut fixed = clients(20.0, 200.0, 0);
        fixed.last_minute = of_result("unknown_issuer", 20.0, 19.0, 0).last_minute;
        assert_eq!(condition(&fixed), None, "most get in again");
        fixed.last_minute = of_result("unknown_issuer", 0.0, 0.0, 0).last_minute;
        assert_eq!(condition(&fixed), None, "no client tries");

        let mut changed = clients(9.0, 271.0, 70);
        changed.since_success = of_result("service_rejected", 0.0, 138.0, 70).last_minute;
        changed.last_minute = changed.since_success.clone();
        let expected = "no client gets in for 1 minute, 138 attempts failed (service_rejected: 138): \
                        clients reject tls.certificate, or lack its CA";
        assert_eq!(condition(&changed).unwrap().problem, expected);
        changed.since_success = clients(0.0, 271.0, 70).last_minute;
        let problem = condition(&changed).unwrap().problem;
        assert!(problem.contains("(unknown_issuer: 271): clients reject tls.cert"), "{problem}");
    }
}
