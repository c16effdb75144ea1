//! Conditions of clients: nobody gets in, most do not, or rejections that follow an update.

use super::{Attention, amber, red};
use crate::admin::admissions::{Admission, Update};
use crate::admin::view::View;
use crate::metrics::{Label, QuestionResult};
use crate::shell;
use crate::tls::HandshakeResult;
use crate::unix_time::duration;

/// Time without a success after which nobody gets in, in seconds.
const SILENCE: u64 = 60;
/// Failures in that time from which this needs attention. A single client may be the reason.
const FEW: f64 = 3.0;
/// Number of failures above which most clients of a service are concerned, as in the alert
/// `KeygateNobodyGetsIn`.
const MANY: f64 = 10.0;

pub(super) fn conditions(view: &View) -> Vec<Attention> {
    let update = view.update.as_ref();
    let open = view.scrape.sums("keygate_connections_active", "service");
    let services = view.report.services.iter().map(|it| ("service", it.name.as_str()));
    let authorizers = view.report.authorizers.iter().map(|it| ("authorizer", it.name.as_str()));
    let conditions = services.chain(authorizers).filter_map(|(kind, name)| {
        let open = open.get(name).copied().unwrap_or_default();
        shut_out((kind, name), view.admissions.get(name)?, open, update)
    });
    conditions.chain(update.and_then(|update| rejecting_update(update, view))).collect()
}

/// A service or authorizer that none or less than half of its clients get past. Red if none does,
/// some did, no connection is `open`, and the clients are the ones that are rejected.
fn shut_out(
    (kind, name): (&str, &str),
    clients: &Admission,
    open: f64,
    update: Option<&Update>,
) -> Option<Attention> {
    let Admission { recent, silence, since_success, has_succeeded } = clients;
    let (failed, silence) = (recent.failures(), silence.as_secs());
    let failures = since_success.failures();
    let is_silent = silence >= SILENCE && failures >= FEW && failed > 0.0;
    let problem = if is_silent {
        let last = if *has_succeeded { "for" } else { "since the start," };
        format!("no client gets in {last} {}, {failures} attempts failed", duration(silence))
    } else if failed > MANY && failed > recent.admitted {
        let all = failed + recent.admitted;
        format!("{failed} of {all} attempts of clients in the last five minutes failed")
    } else {
        return None;
    };
    let results = recent.failed.iter().filter(|(_, count)| **count > 0.0);
    let results: Vec<_> = results.map(|(result, count)| format!("{result}: {count}")).collect();
    let most = recent.failed.iter().max_by(|(_, one), (_, other)| one.total_cmp(other));
    let cause = most.map_or("", |(result, _)| cause_of(result));
    let update = update.map(|update| {
        format!("; last update {} ago: {}", duration(update.age.as_secs()), file_names(update))
    });
    let update = update.unwrap_or_default();
    let problem = format!("{problem} ({}): {cause}{update}", results.join(", "));
    let (subject, row) = (format!("{kind} {name}"), format!("{kind}-{name}"));
    // Browsers and probes without the CA of the service cause `service_rejected`.
    let by_clients = since_success.failed.get(HandshakeResult::ServiceRejected.as_str());
    let rejected = failures - by_clients.copied().unwrap_or_default();
    Some(if is_silent && *has_succeeded && rejected > MANY && open == 0.0 {
        red(subject, problem, row)
    } else {
        amber(subject, problem, row)
    })
}

/// The file or setting to check for the result of most handshakes or questions.
fn cause_of(result: &str) -> &'static str {
    use HandshakeResult::{
        BadSignature, Expired, NotAllowed, Revoked, ServiceRejected, UnknownIssuer,
    };
    use QuestionResult::{ClientNotAllowed, NotVerified};
    let causes = [
        (BadSignature.as_str(), "clients do not hold the keys of their certificates"),
        (Expired.as_str(), "check the dates of the certificates, and the clock"),
        (NotAllowed.as_str(), "check client_auth.allow"),
        (Revoked.as_str(), "check client_auth.crls"),
        (ServiceRejected.as_str(), "clients reject tls.certificate, or lack its CA"),
        (UnknownIssuer.as_str(), "check client_auth.trust_anchors"),
        (ClientNotAllowed.as_str(), "check client_auth.allow"),
        (NotVerified.as_str(), "check client_auth.trust_anchors, and the CAs of the host"),
    ];
    let cause = causes.iter().find(|(it, _)| *it == result);
    cause.map_or("check the filters and lists that have their keys", |(_, cause)| cause)
}

/// An update after which more clients are rejected than before.
fn rejecting_update(update: &Update, view: &View) -> Option<Attention> {
    let file = update.files.first().filter(|_| update.is_jump())?;
    let Update { recent, expected, age, .. } = update;
    let problem = format!(
        "{recent} rejections since it was loaded, {} ago at most, {expected:.0} before in as long; to \
         go back, restore the file before it",
        duration(age.as_secs()),
    );
    let condition = amber(format!("update of {}", file_names(update)), problem, file.row.as_str());
    if !update.rejects_keys() {
        return Some(condition);
    }
    let problem =
        format!("{}, an older filter or list with rollback = \"allow\"", condition.problem);
    // The report has no client that a CA or revocation list rejects.
    let command = shell::keygate(&["report"], view.report.configuration_path.as_deref());
    Some(Attention { problem, command: Some(command), ..condition })
}

fn file_names(update: &Update) -> String {
    let names: Vec<_> = update.files.iter().map(|it| it.text.as_str()).collect();
    names.join("; ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::admin::admissions::ClientCounts;
    use crate::admin::attention::AttentionLevel;

    fn clients(admitted: f64, failed: f64, silence: u64) -> Admission {
        of_result("unknown_issuer", admitted, failed, silence)
    }

    fn of_result(result: &str, admitted: f64, failed: f64, silence: u64) -> Admission {
        let failed: BTreeMap<_, _> = [(result.to_owned(), failed)].into();
        Admission {
            recent: ClientCounts { admitted, failed: failed.clone() },
            silence: Duration::from_secs(silence),
            since_success: ClientCounts { admitted: 0.0, failed },
            has_succeeded: true,
        }
    }

    #[test]
    fn a_service_that_no_client_reaches_for_a_minute_is_red_and_a_single_client_is_not() {
        let condition = |clients: Admission| shut_out(("service", "orders"), &clients, 0.0, None);
        let level = |clients| condition(clients).map(|it| it.level);
        assert_eq!(level(clients(20.0, 11.0, 60)), Some(AttentionLevel::Red));
        assert_eq!(level(clients(20.0, 11.0, 59)), None, "most got in");
        assert_eq!(level(clients(20.0, 21.0, 59)), Some(AttentionLevel::Amber));
        assert_eq!(level(clients(0.0, 10.0, 59)), None, "too few");
        assert_eq!(level(clients(0.0, 10.0, 60)), Some(AttentionLevel::Amber));
        assert_eq!(level(clients(0.0, 2.0, 3600)), None, "a client with a wrong certificate");
        assert_eq!(level(clients(5.0, 0.0, 3600)), None, "no client tries");
        let never = Admission { has_succeeded: false, ..clients(0.0, 100.0, 3600) };
        assert_eq!(level(never), Some(AttentionLevel::Amber));
        let browser = of_result("service_rejected", 0.0, 100.0, 3600);
        assert_eq!(level(browser), Some(AttentionLevel::Amber), "a browser without the CA");
        let served = shut_out(("service", "orders"), &clients(0.0, 100.0, 3600), 1.0, None);
        assert_eq!(served.map(|it| it.level), Some(AttentionLevel::Amber), "one is connected");
        let problem = condition(clients(0.0, 100.0, 190)).unwrap().problem;
        let expected = "no client gets in for 3 minutes, 100 attempts failed (unknown_issuer: 100): \
                        check client_auth.trust_anchors";
        assert_eq!(problem, expected);
    }
}
