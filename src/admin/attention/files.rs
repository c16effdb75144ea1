//! Conditions of files: rejected updates, old data, compromised own keys, the state directory.

use super::{Attention, amber, object, red};
use crate::admin::counters::value;
use crate::admin::remedy;
use crate::admin::view::View;
use crate::metrics::Scrape;
use crate::snapshot::{Rejection, Report};
use crate::sources::{FilterReport, Warning};

pub(super) fn conditions(view: &View) -> Vec<Attention> {
    let report = &view.report;
    let rejections = report.rejections();
    let mut all: Vec<_> = rejections.iter().map(|rejection| rejected(rejection, report)).collect();
    all.extend(report.filters.iter().filter_map(stale_filter));
    let stale = report.lists.iter().filter(|list| list.stale);
    all.extend(stale.map(|list| amber(object("list", Some(&list.name)), "older than max_age")));
    if !report.restart_needed.is_empty() {
        let settings = report.restart_needed.join(", ");
        let problem = format!("{settings}: changed, but read at the start only");
        all.push(amber(object("configuration", None), problem));
    }
    all.extend(report.warnings.iter().filter(|it| !it.is_elsewhere).map(warned));
    all.extend(own_keys(view));
    all.extend(unsaved_state(view));
    all.extend(hung_files(&view.scrape));
    all
}

fn rejected(rejection: &Rejection<'_>, report: &Report) -> Attention {
    let Rejection { kind, name, path, reason, error, waiting, at: _ } = rejection;
    let command = remedy::of_rejection(rejection, report.configuration_path.as_deref());
    let object = object(kind, *name);
    let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let error = path.map_or_else(|| (*error).to_owned(), |path| format!("{path}: {error}"));
    if *waiting {
        let crl = error
            .contains(": client_auth.crls ")
            .then_some("; until then none of its revocations applies");
        let problem = format!("an update waits{reason}: {error}{}", crl.unwrap_or_default());
        return Attention { command, ..amber(object, problem) };
    }
    Attention { command, ..red(object, format!("rejected{reason}: {error}")) }
}

/// A warning of `keygate validate` about what is in use.
fn warned(warning: &Warning) -> Attention {
    let new = if warning.is_outage { red } else { amber };
    new(object(warning.kind, warning.name.as_deref()), warning.problem())
}

fn stale_filter(filter: &FilterReport) -> Option<Attention> {
    let object = object("filter", Some(&filter.name));
    if filter.last_good_in_use {
        let problem = "the last good filter is in use, because the file was rejected";
        Some(red(object, problem))
    } else {
        let problem = "older than max_age: keys that leaked since are not in it";
        filter.stale.then(|| amber(object, problem))
    }
}

fn own_keys(view: &View) -> Vec<Attention> {
    let series = view.scrape.values("keygate_own_key_compromised");
    let compromised = series.filter(|(_, count)| *count > 0.0).filter_map(|(labels, _)| {
        let label = |name| labels.get(name).copied().unwrap_or_default();
        let (name, problem) =
            (label("service"), format!("its own key is compromised: {}", label("role")));
        let is_shown = view.only.as_ref().is_none_or(|only| only == name);
        let is_authorizer = view.report.authorizers.iter().any(|it| it.name == name);
        let kind = if is_authorizer { "authorizer" } else { "service" };
        is_shown.then(|| red(object(kind, Some(name)), problem))
    });
    compromised.collect()
}

/// A state directory that cannot be written, or that another process uses.
fn unsaved_state(view: &View) -> Vec<Attention> {
    let waits = value(&view.scrape, "keygate_state_lock_waiting") > 0.0;
    let locked = waits.then(|| {
        let problem = "another process uses it, and nothing is saved until it ends";
        amber(("state directory", "configuration"), problem)
    });
    unwritable_state(view).into_iter().chain(locked).collect()
}

fn unwritable_state(view: &View) -> Option<Attention> {
    let problem = match view.report.unsaved.as_slice() {
        [] if view.traffic.losses.state_writes > 0.0 => {
            let failed = view.traffic.losses.state_writes;
            format!("{failed} writes failed in the last five minutes: see the log")
        }
        [] => return None,
        errors => format!("cannot be written: {}", errors.join("; ")),
    };
    Some(red(("state directory", "configuration"), problem))
}

/// Files that hang.
fn hung_files(scrape: &Scrape) -> Option<Attention> {
    let hung = value(scrape, "keygate_files_hung");
    let problem = format!("{hung} do not respond: see the log");
    (hung > 0.0).then(|| red(("files", "configuration"), problem))
}
