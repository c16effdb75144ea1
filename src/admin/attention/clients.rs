//! Conditions of clients: nobody gets in, most do not, or rejections that follow an update.

use super::{Attention, amber, red};
use crate::admin::admissions::{Admission, Update};
use crate::admin::view::View;
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
    let services = view.traffic.iter();
    let services = services
        .filter_map(|(name, traffic)| shut_out(name, &traffic.admission, view.update.as_ref()));
    services.chain(view.update.as_ref().and_then(|update| rejecting_update(update, view))).collect()
}

/// A service that none or less than half of its clients reach. Red if none does and there were
/// some.
fn shut_out(service: &str, clients: &Admission, update: Option<&Update>) -> Option<Attention> {
    let Admission { recent, silence, failures, has_succeeded } = clients;
    let (failed, silence) = (recent.failures(), silence.as_secs());
    let is_silent = silence >= SILENCE && *failures >= FEW && failed > 0.0;
    let problem = if is_silent {
        let last = if *has_succeeded { "for" } else { "since the start," };
        format!("no client gets in {last} {}, {failures} failed", duration(silence))
    } else if failed > MANY && failed > recent.admitted {
        let all = failed + recent.admitted;
        format!("{failed} of {all} clients in the last five minutes did not get in")
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
    let (subject, row) = (format!("service {service}"), format!("service-{service}"));
    Some(if is_silent && *has_succeeded && *failures > MANY {
        red(subject, problem, row)
    } else {
        amber(subject, problem, row)
    })
}

/// The file or setting to check for a result of most handshakes.
const CAUSES: [(HandshakeResult, &str); 6] = [
    (HandshakeResult::BadSignature, "clients do not hold the keys of their certificates"),
    (HandshakeResult::Expired, "check the dates of the certificates, and the clock"),
    (HandshakeResult::NotAllowed, "check client_auth.allow"),
    (HandshakeResult::Revoked, "check client_auth.crls"),
    (HandshakeResult::ServiceRejected, "clients reject tls.certificate"),
    (HandshakeResult::UnknownIssuer, "check client_auth.trust_anchors"),
];

fn cause_of(result: &str) -> &'static str {
    let cause = CAUSES.iter().find(|(it, _)| it.as_str() == result);
    cause.map_or("check the filters and lists that have their keys", |(_, cause)| cause)
}

/// An update after which more clients are rejected than before.
fn rejecting_update(update: &Update, view: &View) -> Option<Attention> {
    let (_, row) = update.files.first().filter(|_| update.is_jump())?;
    let problem = format!(
        "{} rejections since it was loaded {} ago, {:.0} before in as long; to go back, restore the \
         file before it, and an older filter or list with rollback = \"allow\"",
        update.recent,
        duration(update.age.as_secs()),
        update.expected
    );
    let command = shell::keygate(&["report"], view.report.configuration_path.as_deref());
    let subject = format!("update of {}", file_names(update));
    Some(Attention { command: Some(command), ..amber(subject, problem, row.as_str()) })
}

fn file_names(update: &Update) -> String {
    let names: Vec<_> = update.files.iter().map(|(name, _)| name.as_str()).collect();
    names.join("; ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::admin::admissions::ClientCounts;
    use crate::admin::attention::AttentionLevel;

    fn clients(admitted: f64, failed: f64, silence: u64) -> Admission {
        let failed_by_result = [("unknown_issuer".to_owned(), failed)].into();
        Admission {
            recent: ClientCounts { admitted, failed: failed_by_result },
            silence: Duration::from_secs(silence),
            failures: failed,
            has_succeeded: true,
        }
    }

    #[test]
    fn a_service_that_no_client_reaches_for_a_minute_is_red_and_a_single_client_is_not() {
        let condition = |clients: Admission| shut_out("orders", &clients, None);
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
        let problem = condition(clients(0.0, 100.0, 190)).unwrap().problem;
        let expected = "no client gets in for 3 minutes, 100 failed (unknown_issuer: 100): \
                        check client_auth.trust_anchors";
        assert_eq!(problem, expected);
    }
}
