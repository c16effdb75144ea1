//! The alerts and the dashboard use only series that keygate exposes, and Prometheus and Grafana
//! accept them.

mod scene;
mod server;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::{Value, json};

use self::scene::{Exposed, Scene, between, words};
use crate::support::program::python_with;
use crate::support::promql::Expression;
use crate::support::proxy::Configure;
use crate::support::{blocks, output_text, skip, system, wait_until, write_filter};

const RULES: &str = include_str!("../../../deploy/prometheus/keygate.rules.yml");
const DASHBOARD: &str = include_str!("../../../deploy/grafana/keygate.json");
const ALERTS: &str = include_str!("../../../docs/alerts.md");

/// Metrics that neither an alert nor the dashboard uses.
const LEFT_OUT: [(&str, &str); 21] = [
    ("keygate_buffer_limit_bytes", "it does not change while the process runs"),
    (
        "keygate_buffered_bytes",
        "a part of the memory, for someone who looks for the cause of rejections",
    ),
    (
        "keygate_confirmation_waits_active",
        "a moment of what keygate_confirmation_waits_total counts, for someone who watches",
    ),
    (
        "keygate_client_key_algorithms_total",
        "the state of a migration, on the status page and in docs/post-quantum.md",
    ),
    (
        "keygate_connections_hibernating",
        "a part of the open connections, for the size of the memory",
    ),
    (
        "keygate_credential_refusals_total",
        "the alert KeygateCertificateUpdateRefused gives the reasons in its text",
    ),
    (
        "keygate_credential_reloads_total",
        "how often certificates change is their issuer's business, and rejections have an alert",
    ),
    (
        "keygate_crl_entries",
        "the number of revoked certificates is for reports, not for a decision",
    ),
    (
        "keygate_fetch_failures_total",
        "a single failure needs nobody, and KeygateFetchStale covers a day of them",
    ),
    ("keygate_fetch_installed_total", "how often a file changes is the publisher's business"),
    (
        "keygate_fetch_last_installed_timestamp_seconds",
        "the age of the file itself counts, which keygate_filter_stale and keygate_list_stale show",
    ),
    (
        "keygate_key_exchanges_total",
        "the state of a migration, on the status page and in docs/post-quantum.md",
    ),
    ("keygate_upstream_key_exchanges_total", "the state of a migration, in docs/post-quantum.md"),
    ("keygate_list_info", "the gate of a ring, in deploy/fleet/gate.promql"),
    ("keygate_list_new_hits", "the gate of a ring, in deploy/fleet/gate.promql"),
    (
        "keygate_list_updated_timestamp_seconds",
        "keygate_list_stale compares it with max_age, and the date itself is for reports",
    ),
    (
        "keygate_own_responses_total",
        "a part of the requests with 4xx, for the condition of the status page",
    ),
    (
        "keygate_server_auth_clients_total",
        "the status page counts the clients, and the report names them",
    ),
    (
        "keygate_weak_key_checks_total",
        "a part of the processor time, for someone who looks for its cause",
    ),
    ("process_threads", "it does not change: one for each worker, and a few for files"),
    ("process_virtual_memory_bytes", "address space costs nothing"),
];

/// Labels whose values come from a configuration, from a file or from Prometheus.
const FREE: [&str; 12] = [
    "filter",
    "fingerprint",
    "instance",
    "job",
    "kind",
    "le",
    "list",
    "name",
    "server",
    "service",
    "sha256",
    "version",
];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

#[derive(Debug, Deserialize)]
struct Groups {
    groups: Vec<Group>,
}

#[derive(Debug, Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
struct Rule {
    alert: String,
    expr: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

/// The part of a promtool unit test file that is checked.
#[derive(Debug, Deserialize)]
struct TestFile {
    tests: Vec<TestGroup>,
}

#[derive(Debug, Deserialize)]
struct TestGroup {
    input_series: Vec<InputSeries>,
    alert_rule_test: Vec<AlertTest>,
}

#[derive(Debug, Deserialize)]
struct InputSeries {
    series: String,
}

#[derive(Debug, Deserialize)]
struct AlertTest {
    alertname: String,
    #[serde(default)]
    exp_alerts: Vec<Value>,
}

fn alerts() -> Vec<Rule> {
    let groups: Groups = serde_saphyr::from_str(RULES).unwrap();
    groups.groups.into_iter().flat_map(|group| group.rules).collect()
}

fn test_files() -> Vec<PathBuf> {
    let files = std::fs::read_dir(path("deploy/prometheus/tests")).unwrap();
    files.map(|file| file.unwrap().path()).collect()
}

fn unit_tests() -> Vec<TestGroup> {
    let read = |file: &PathBuf| -> TestFile {
        serde_saphyr::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
    };
    test_files().iter().flat_map(|file| read(file).tests).collect()
}

/// A query of a panel of the dashboard.
#[derive(Debug)]
struct Query {
    panel: String,
    expression: String,
    legend: String,
}

/// Every query of the dashboard, for Prometheus: all services of a job, and rates over `interval`.
fn queries(job: &str, interval: &str) -> Vec<Query> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let queries = panels.filter(|panel| panel["type"] != "row").flat_map(|panel| {
        let targets = panel["targets"].as_array().unwrap().iter();
        targets.map(|target| Query {
            panel: text(&panel["title"]),
            expression: text(&target["expr"])
                .replace("$__rate_interval", interval)
                .replace("$job", job)
                .replace("$instance", ".+")
                .replace("$service", ".*"),
            legend: text(&target["legendFormat"]),
        })
    });
    queries.collect()
}

#[test]
fn promtool_finds_no_fault_with_a_scrape() {
    if skip::without("promtool") {
        return;
    }
    for scene in [Scene::plain(), Scene::full()] {
        assert!(scene.keygate.curl(&scene.good, &[]).status.success());
        let mut promtool = Command::new("promtool");
        let promtool = promtool.args(["check", "metrics"]).stdin(Stdio::piped());
        let mut child = promtool.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(scene.scrape().as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let is_quiet = output.stdout.is_empty() && output.stderr.is_empty();
        assert!(output.status.success() && is_quiet, "{}", output_text(&output));
    }
}

#[test]
fn the_rules_are_valid_and_each_alert_fires_when_it_should() {
    if skip::without("promtool") {
        return;
    }
    let rules = path("deploy/prometheus/keygate.rules.yml");
    let checked = system("promtool", &["check", "rules", rules.to_str().unwrap()]);
    assert!(checked.status.success(), "{}", output_text(&checked));
    let files = test_files();
    let files = files.iter().map(|file| file.to_str().unwrap());
    let tested =
        system("promtool", &["test", "rules"].into_iter().chain(files).collect::<Vec<_>>());
    assert!(tested.status.success(), "{}", output_text(&tested));
}

#[test]
fn promtool_reads_every_expression_of_the_dashboard() {
    if skip::without("promtool") {
        return;
    }
    let queries = queries(".+", "5m");
    let rules = queries.iter().enumerate();
    let rules = rules
        .map(|(at, query)| json!({ "record": format!("query:{at}"), "expr": query.expression }));
    let rules = json!({ "groups": [{ "name": "dashboard", "rules": rules.collect::<Vec<_>>() }] });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rules.yml");
    std::fs::write(&file, rules.to_string()).unwrap(); // JSON is YAML
    let checked = system("promtool", &["check", "rules", file.to_str().unwrap()]);
    assert!(checked.status.success(), "{}", output_text(&checked));
    let expected = format!("{} rules found", queries.len());
    assert!(output_text(&checked).contains(&expected), "{}", output_text(&checked));
}

#[test]
fn every_series_of_the_alerts_their_tests_and_the_dashboard_is_exposed() {
    let exposed = Exposed::by(&Scene::full());
    for rule in alerts() {
        exposed.check_expression(&rule.expr);
    }
    for series in unit_tests().iter().flat_map(|test| &test.input_series) {
        exposed.check_expression(&series.series);
    }
    for query in queries(".+", "5m") {
        let labels = exposed.check_expression(&query.expression);
        for label in between(&query.legend, "{{", "}}") {
            let panel = &query.panel;
            assert!(
                labels.contains(label),
                "{panel}: the legend has a label {label} that is not there"
            );
        }
    }
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let of_queries = variables.filter(|variable| variable["type"] == "query");
    let of_queries: Vec<_> = of_queries.map(|it| it["query"]["query"].as_str().unwrap()).collect();
    assert_eq!(of_queries.len(), 3);
    for query in of_queries {
        let (series, label) = query
            .strip_prefix("label_values(")
            .and_then(|rest| rest.strip_suffix(')')?.rsplit_once(", "))
            .unwrap();
        assert!(exposed.check_expression(series).contains(label), "{query}");
    }
    let texts = alerts().into_iter().flat_map(|rule| rule.annotations.into_values());
    for text in texts.chain([ALERTS.to_owned()]) {
        for metric in words(&text, "keygate_") {
            exposed.labels(metric, &text);
        }
    }
}

#[test]
fn every_metric_has_an_alert_a_panel_or_a_documented_reason_for_neither() {
    let scrape = Scene::full().scrape();
    let types = scrape.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let exposed: BTreeSet<_> = types.map(|line| line.split(' ').next().unwrap()).collect();
    let expressions = alerts().into_iter().map(|rule| rule.expr);
    let expressions = expressions.chain(queries(".+", "5m").into_iter().map(|it| it.expression));
    let selectors = expressions.flat_map(|text| Expression::read(&text).selectors);
    let used: BTreeSet<_> =
        selectors.map(|it| it.metric.trim_end_matches("_bucket").to_owned()).collect();
    let left_out: BTreeSet<_> = LEFT_OUT.iter().map(|(metric, _)| *metric).collect();
    for metric in &exposed {
        let is_used = used.contains(*metric);
        assert!(is_used != left_out.contains(metric), "{metric}: used is {is_used}");
    }
    assert!(left_out.is_subset(&exposed), "{left_out:?}");
}

#[test]
fn every_alert_has_a_runbook_section_and_tests() {
    let (alerts, tests) = (alerts(), unit_tests());
    let tests: Vec<_> = tests.iter().flat_map(|test| &test.alert_rule_test).collect();
    for alert in &alerts {
        let name = &alert.alert;
        let of_it = || tests.iter().filter(|test| test.alertname == *name);
        assert!(of_it().any(|test| !test.exp_alerts.is_empty()), "no test sees {name} fire");
        assert!(of_it().any(|test| test.exp_alerts.is_empty()), "no test sees {name} silent");
        let severity = &alert.labels["severity"];
        assert!(["critical", "warning"].contains(&severity.as_str()), "{name}: {severity}");
        let section = format!("### {name}\n\n**{severity}.** ");
        assert!(ALERTS.contains(&section), "the page on alerts has no {section:?}");
        for annotation in ["summary", "description"] {
            assert!(alert.annotations[annotation].ends_with('.'), "{name}: {annotation}");
        }
        assert_eq!(alert.annotations.len(), 3, "{name}");
    }
    let names: BTreeSet<_> = alerts.iter().map(|alert| alert.alert.as_str()).collect();
    assert_eq!(names.len(), alerts.len(), "a name is there twice");
    let tested: BTreeSet<_> = tests.iter().map(|test| test.alertname.as_str()).collect();
    assert_eq!(tested, names);
    let sections: BTreeSet<_> = between(ALERTS, "\n### ", "\n").into_iter().collect();
    assert_eq!(sections, names);
    // The alerts that the texts refer to.
    let texts = alerts.iter().flat_map(|alert| alert.annotations.values());
    for word in texts.chain([&ALERTS.to_owned()]).flat_map(|text| words(text, "Keygate")) {
        assert!(names.contains(word), "there is no alert {word}");
    }
}

#[test]
fn the_runbook_url_of_an_alert_is_its_section_on_the_alerts_page() {
    for alert in alerts() {
        let section = format!("docs/alerts.md#{}", alert.alert.to_lowercase());
        assert_eq!(alert.annotations["runbook_url"], section);
    }
}

#[test]
fn the_configuration_of_prometheus_on_the_page_on_alerts_is_valid() {
    if skip::without("promtool") {
        return;
    }
    let [text] = blocks(ALERTS, "yaml").try_into().unwrap();
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("keygate.rules.yml"), RULES).unwrap();
    let file = directory.path().join("prometheus.yml");
    std::fs::write(&file, text).unwrap();
    let checked = system("promtool", &["check", "config", file.to_str().unwrap()]);
    assert!(checked.status.success(), "{}", output_text(&checked));
    let found = format!("{} rules found", alerts().len());
    assert!(output_text(&checked).contains(&found), "{}", output_text(&checked));
}

#[test]
fn grafana_supports_everything_in_the_dashboard() {
    let Some(python) = python_with("grafana_foundation_sdk") else { return };
    let (program, dashboard) =
        (path("tests/programs/grafana_dashboard.py"), path("deploy/grafana/keygate.json"));
    let checked = system(python, &[program.to_str().unwrap(), dashboard.to_str().unwrap()]);
    assert!(checked.status.success(), "{}", output_text(&checked));

    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "an id is there twice");
    let mut taken = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|it| panel["gridPos"][it].as_u64().unwrap());
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(place.0 < 24 && taken.insert(place), "{title} lies over another");
        }
        let is_chosen = panel["type"] == "row" || panel["datasource"]["uid"] == "${datasource}";
        assert!(is_chosen, "{title} has a data source of its own");
    }
}

/// An alert must not end because its series does.
#[test]
fn a_changed_configuration_keeps_every_series() {
    let scene = Scene::full();
    let before: Vec<_> = scene.keygate.metrics().into_keys().collect();
    let file = scene.pki.path("keygate.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let other = text.replace("reason = \"it is waited for\"", "reason = \"it is on its way\"");
    assert_ne!(other, text);
    std::fs::write(&file, other).unwrap();
    scene.keygate.wait_for_generation(2);
    wait_until("every series is there again", || {
        let now = scene.keygate.metrics();
        before.iter().all(|series| now.contains_key(series))
    });
}

#[test]
fn a_filter_whose_max_age_was_removed_is_not_stale() {
    let scene = Scene::new(|pki, configuration| {
        write_filter(&pki.path("lost.pkbf"), &[]); // of 2023
        configuration.filter("max_age = \"1d\"")
    });
    let stale = "keygate_filter_stale{filter=\"lost\"}";
    scene.keygate.wait_for_metric(stale, 1.0);
    let file = scene.pki.path("keygate.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let without = text.replace("max_age = \"1d\", ", "");
    assert_ne!(without, text);
    std::fs::write(&file, without).unwrap();
    scene.keygate.wait_for_metric(stale, 0.0);
}
