//! The text of each manual page, from `docs/man`.

/// Returns the Markdown of a page, or `None` if no page has this name.
pub(super) fn markdown(name: &str) -> Option<&'static str> {
    Some(match name {
        "keygate" => include_str!("../../../docs/man/keygate.md"),
        "keygate-completions" => include_str!("../../../docs/man/keygate-completions.md"),
        "keygate-config" => include_str!("../../../docs/man/keygate-config.md"),
        "keygate-config-schema" => include_str!("../../../docs/man/keygate-config-schema.md"),
        "keygate-config-show" => include_str!("../../../docs/man/keygate-config-show.md"),
        "keygate-confirm" => include_str!("../../../docs/man/keygate-confirm.md"),
        "keygate-demo" => include_str!("../../../docs/man/keygate-demo.md"),
        "keygate-drain" => include_str!("../../../docs/man/keygate-drain.md"),
        "keygate-fetch" => include_str!("../../../docs/man/keygate-fetch.md"),
        "keygate-filter" => include_str!("../../../docs/man/keygate-filter.md"),
        "keygate-filter-accept" => include_str!("../../../docs/man/keygate-filter-accept.md"),
        "keygate-filter-add" => include_str!("../../../docs/man/keygate-filter-add.md"),
        "keygate-filter-create" => include_str!("../../../docs/man/keygate-filter-create.md"),
        "keygate-filter-diff" => include_str!("../../../docs/man/keygate-filter-diff.md"),
        "keygate-filter-info" => include_str!("../../../docs/man/keygate-filter-info.md"),
        "keygate-filter-query" => include_str!("../../../docs/man/keygate-filter-query.md"),
        "keygate-healthcheck" => include_str!("../../../docs/man/keygate-healthcheck.md"),
        "keygate-key" => include_str!("../../../docs/man/keygate-key.md"),
        "keygate-list" => include_str!("../../../docs/man/keygate-list.md"),
        "keygate-list-accept" => include_str!("../../../docs/man/keygate-list-accept.md"),
        "keygate-list-diff" => include_str!("../../../docs/man/keygate-list-diff.md"),
        "keygate-list-info" => include_str!("../../../docs/man/keygate-list-info.md"),
        "keygate-list-query" => include_str!("../../../docs/man/keygate-list-query.md"),
        "keygate-proof" => include_str!("../../../docs/man/keygate-proof.md"),
        "keygate-proof-create" => include_str!("../../../docs/man/keygate-proof-create.md"),
        "keygate-proof-verify" => include_str!("../../../docs/man/keygate-proof-verify.md"),
        "keygate-reload" => include_str!("../../../docs/man/keygate-reload.md"),
        "keygate-report" => include_str!("../../../docs/man/keygate-report.md"),
        "keygate-run" => include_str!("../../../docs/man/keygate-run.md"),
        "keygate-status" => include_str!("../../../docs/man/keygate-status.md"),
        "keygate-validate" => include_str!("../../../docs/man/keygate-validate.md"),
        _ => return None,
    })
}
