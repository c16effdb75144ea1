//! The commands to run about files, for the page, `/status` and the terminal.

use crate::shell;
use crate::snapshot::Rejection;

/// The command to run after a rejection. `config` is the path of the configuration.
pub(super) fn of_rejection(rejection: &Rejection<'_>, config: Option<&str>) -> Option<String> {
    match (rejection.kind, rejection.name, rejection.path) {
        (kind, Some(name), _) if rejection.waiting => Some(accept(kind, name, config)),
        ("filter", _, Some(path)) => Some(filter_info(path)),
        ("list", _, Some(path)) => Some(list_info(path)),
        _ => config.map(validate),
    }
}

/// Accepts the waiting update of a filter, list, service or authorizer.
pub(super) fn accept(kind: &str, name: &str, config: Option<&str>) -> String {
    let kind = if kind == "authorizer" { "service" } else { kind };
    shell::keygate(&[kind, "accept", name], config)
}

/// Shows what is in the file of a filter.
pub(super) fn filter_info(path: &str) -> String {
    shell::keygate(&["filter", "info", path], None)
}

/// Shows what is in the file of a list.
pub(super) fn list_info(path: &str) -> String {
    shell::keygate(&["list", "info", path], None)
}

/// Checks the configuration and every file that it names.
pub(super) fn validate(config: &str) -> String {
    shell::keygate(&["validate"], Some(config))
}
