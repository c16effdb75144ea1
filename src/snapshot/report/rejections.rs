//! The files that are not in use because their last check rejected them.

use serde::Serialize;

use super::Report;
use crate::metrics::Label;
use crate::sources::{DryRunReport, RejectionReason, ReloadReport};

/// A file, or the files of a service, whose last check rejected them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rejection<'a> {
    /// `configuration`, `readers`, `filter`, `list`, `service` or `authorizer`.
    pub kind: &'static str,
    /// Name in the configuration; `None` for the configuration itself and the readers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// Path of the filter or list; the error of other kinds names the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<&'a str>,
    /// Class of the rejection of a filter, a list or a CRL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
    /// The whole reason.
    pub error: &'a str,
    /// Whether `keygate filter accept` or another such command lets the update through.
    pub waiting: bool,
    /// When it was rejected.
    pub at: u64,
}

impl Report {
    /// Everything that the last checks rejected.
    #[must_use]
    pub fn rejections(&self) -> Vec<Rejection<'_>> {
        let configuration =
            self.configuration.iter().filter_map(|it| rejection("configuration", None, it));
        let filters = self.filters.iter().map(|it| {
            let path = Some(&it.summary.path);
            ("filter", &it.name, path, &it.last_reload, it.dry_run.acceptable)
        });
        let lists = self
            .lists
            .iter()
            .map(|it| ("list", &it.name, Some(&it.path), &it.last_reload, it.dry_run.acceptable));
        // The files of a service wait only if no other one of them is rejected.
        let waits = |reload: &ReloadReport, dry_run: &DryRunReport| {
            let is_held = reload.reason == Some(RejectionReason::NewHits.as_str());
            dry_run.acceptable && is_held
        };
        let services = self.services.iter().map(|it| {
            ("service", &it.name, None, &it.last_reload, waits(&it.last_reload, &it.dry_run))
        });
        let authorizers = self.authorizers.iter().map(|it| {
            ("authorizer", &it.name, None, &it.last_reload, waits(&it.last_reload, &it.dry_run))
        });
        let named = filters.chain(lists).chain(services).chain(authorizers);
        let named = named.filter_map(|(kind, name, path, reload, waiting)| {
            let path = path.map(String::as_str);
            Some(Rejection { path, waiting, ..rejection(kind, Some(name), reload)? })
        });
        let readers = self.readers.iter().filter_map(|it| rejection("readers", None, it));
        configuration.chain(readers).chain(named).collect()
    }
}

fn rejection<'a>(
    kind: &'static str,
    name: Option<&'a str>,
    reload: &'a ReloadReport,
) -> Option<Rejection<'a>> {
    let error = reload.error.as_deref()?;
    let (path, reason, at) = (None, reload.reason, reload.at);
    Some(Rejection { kind, name, path, reason, error, waiting: false, at })
}
