//! The alerts and the dashboard use only series that keygate exposes, and Prometheus and Grafana
//! accept them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use keygate::spki::Fingerprint;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::asker::Asker;
use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::program::{Program, python_with, reserved_address};
use crate::support::promql::{Expression, Selector};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{blocks, output_text, skip, system, wait_for, wait_until, write_filter};

const RULES: &str = include_str!("../../../deploy/prometheus/keygate.rules.yml");
const DASHBOARD: &str = include_str!("../../../deploy/grafana/keygate.json");
const ALERTS: &str = include_str!("../../../docs/alerts.md");

/// Metrics that neither an alert nor the dashboard uses.
const LEFT_OUT: [(&str, &str); 9] = [
    (
        "keygate_confirmation_waits_active",
        "a moment of what keygate_confirmation_waits_total counts, for someone who watches",
    ),
    (
        "keygate_connections_hibernating",
        "a part of the open connections, for the size of the memory",
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

/// A proxy with every feature that has series only if it is configured. The proxy rejects `lost`.
struct Scene {
    pki: Pki,
    keygate: Keygate,
    good: Party,
    lost: Party,
    /// The metrics that `keygate fetch` has written.
    textfile: String,
    _origin: Origin,
}

impl Scene {
    fn new(change: impl FnOnce(&Pki, Configuration) -> Configuration) -> Self {
        let (pki, origin) = (Pki::new(), Origin::start());
        let [good, lost] = ["good", "lost"].map(|name| pki.client(name, Kind::P256));
        // The command sets the date of the filter, because an old filter causes an alert.
        let filter = pki.path("lost.pkbf");
        let filter = filter.to_str().unwrap();
        let lost_key = lost.certificate.to_str().unwrap();
        for arguments in [
            &["filter", "create", filter, "--entries", "1000", "--fp-rate", "1e-9"][..],
            &["filter", "add", filter, lost_key][..],
        ] {
            let made = keygate(arguments);
            assert!(made.status.success(), "{}", output_text(&made));
        }
        let text = change(&pki, Configuration::new(origin.address()));
        let keygate = text.start(&pki);
        Self { pki, keygate, good, lost, textfile: String::new(), _origin: origin }
    }

    fn plain() -> Self {
        Self::new(|_, configuration| configuration)
    }

    fn full() -> Self {
        let mut scene = Self::new(|pki, configuration| {
            pki.client("keygate-client", Kind::P256);
            pki.crl("clients.crl", &[], Duration::from_hours(720));
            let [stolen, excused] = ["stolen", "excused"]
                .map(|name| Fingerprint::of(&pki.client(name, Kind::P256).spki));
            std::fs::write(pki.path("deny.txt"), format!("{stolen}\n")).unwrap();
            let more = format!(
                r#"
[[lists]]
name = "march"
path = "deny.txt"

[[exceptions]]
fingerprint = "{excused}"
until = 2999-12-31
reason = "it is waited for"

[[services]]
name = "partner"
listen = "127.0.0.1:0"
server_names = ["partner.example"]
tls = {{ certificate = "server.pem", private_key = "server.key" }}
client_auth = {{ trust_anchors = "ca.pem" }}

[services.upstream]
servers = ["https://localhost:1"]
tls = {{ trust_anchors = "ca.pem", certificate = "keygate-client.pem", private_key = "keygate-client.key" }}

[[authorizers]]
name = "edge"
listen = "unix:ask.sock"
protocol = "http"
certificate_from = "client-cert"
"#
            );
            configuration
                .client_auth("crls = [\"clients.crl\"]")
                .unset("services.upstream.response_timeout")
                .upstream("health_check = { interval = \"1s\" }")
                .global(&more)
        });
        scene.textfile = textfile(&scene.pki);
        // The first health checks follow shortly after the proxy is ready.
        wait_until("the servers are shown", || {
            scene.keygate.metrics().keys().any(|it| it.starts_with("keygate_upstream_server_up"))
        });
        scene
    }

    fn scrape(&self) -> String {
        self.keygate.admin("/metrics").1 + &self.textfile
    }
}

/// The metrics of a run of `keygate fetch` that fails.
fn textfile(pki: &Pki) -> String {
    let (directory, file) = (pki.path("badkeys"), pki.path("fetch.prom"));
    let (directory, textfile) = (directory.to_str().unwrap(), file.to_str().unwrap());
    let url = "http://127.0.0.1:1/badkeysdata.json";
    let run = keygate(&["fetch", "--badkeys", directory, "--url", url, "--textfile", textfile]);
    assert_eq!(run.status.code(), Some(3), "{}", output_text(&run));
    std::fs::read_to_string(&file).unwrap()
}

/// The labels of every series, by metric.
struct Exposed(BTreeMap<String, Vec<BTreeMap<String, String>>>);

impl Exposed {
    fn by(scene: &Scene) -> Self {
        let mut exposed: BTreeMap<String, Vec<_>> = BTreeMap::new();
        // Prometheus itself makes the series of scrape results.
        exposed.insert("up".to_owned(), vec![BTreeMap::new()]);
        let metrics = scene.keygate.metrics();
        let fetched = scene.textfile.lines().filter(|line| !line.starts_with('#'));
        let fetched = fetched.map(|line| line.split(' ').next().unwrap());
        for series in metrics.keys().map(String::as_str).chain(fetched) {
            let [Selector { metric, matchers }] =
                Expression::read(series).selectors.try_into().unwrap();
            let labels = matchers.into_iter().map(|label| (label.label, label.value));
            exposed.entry(metric).or_default().push(labels.collect());
        }
        Self(exposed)
    }

    /// The names of the labels of a metric, with those that Prometheus gives to a target.
    fn labels(&self, metric: &str, of: &str) -> BTreeSet<&str> {
        let series = self.0.get(metric).unwrap_or_else(|| panic!("{metric} is not exposed: {of}"));
        let ours = series.iter().flat_map(|labels| labels.keys().map(String::as_str));
        ours.chain(["job", "instance"]).collect()
    }

    /// Checks that the metric, labels and label values of a selector exist.
    fn check(&self, selector: &Selector, of: &str) {
        let metric = selector.metric.as_str();
        let labels = self.labels(metric, of);
        for matcher in &selector.matchers {
            let label = matcher.label.as_str();
            assert!(labels.contains(label), "{metric} has no label {label}: {of}");
            let known = self.0[metric].iter().filter_map(|series| series.get(label));
            let known: BTreeSet<_> = known.map(String::as_str).collect();
            let is_free = |value: &str| FREE.contains(&label) && !value.is_empty();
            for value in matcher.values().into_iter().filter(|value| !is_free(value)) {
                assert!(known.contains(value), "{metric} has no {label}={value:?}: {of}");
            }
        }
    }

    /// Checks all selectors of an expression. Returns the labels that its series can have.
    fn check_expression(&self, text: &str) -> BTreeSet<String> {
        let expression = Expression::read(text);
        assert!(!expression.selectors.is_empty(), "no series: {text}");
        let mut labels = expression.made.clone();
        for selector in &expression.selectors {
            self.check(selector, text);
            labels.extend(self.labels(&selector.metric, text).into_iter().map(str::to_owned));
        }
        for label in &expression.labels {
            assert!(labels.contains(label), "no series has the label {label}: {text}");
        }
        labels
    }
}

/// The words in a text that `begin` like this.
fn words<'a>(text: &'a str, begin: &str) -> Vec<&'a str> {
    let words = text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    words.filter(|word| word.starts_with(begin)).collect()
}

/// Every piece of text between `begin` and `end`.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    text.split(begin).skip(1).map(|rest| rest.split(end).next().unwrap()).collect()
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

/// Prometheus, with our rules and two proxies to scrape many times a second. Ends with the test.
struct Prometheus {
    _program: Program,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    fn scraping(targets: [(&str, SocketAddr); 2]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let jobs = targets.map(|(job, address)| {
            json!({ "job_name": job, "static_configs": [{ "targets": [address.to_string()] }] })
        });
        let text = json!({
        "global": { "scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "200ms" },
            "scrape_configs": jobs,
            "rule_files": [path("deploy/prometheus/keygate.rules.yml")],
        });
        let file = directory.path().join("prometheus.yml");
        std::fs::write(&file, text.to_string()).unwrap();
        let address = reserved_address();
        let mut command = Command::new("prometheus");
        let data = directory.path().join("data");
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", data.display()))
            .arg(format!("--web.listen-address={address}"));
        let program = Program::start(&mut command).listening_on(address);
        Self { _program: program, address, _directory: directory }
    }

    /// The `data` in a response of the API, if there is one yet.
    fn send_get(&self, page: &str, parameters: &[String]) -> Value {
        let url = format!("http://{}/api/v1/{page}", self.address);
        let parameters = parameters.iter().flat_map(|it| ["--data-urlencode", it.as_str()]);
        let arguments = ["--silent", "--get", &url].into_iter().chain(parameters);
        let response = system("curl", &arguments.collect::<Vec<_>>());
        let response: Value = serde_json::from_slice(&response.stdout).unwrap_or_default();
        assert_ne!(response["status"], "error", "{page}: {response}");
        response["data"].clone()
    }

    /// The current series of an expression, each with its value.
    fn query(&self, expression: &str) -> Vec<(Value, f64)> {
        let data = self.send_get("query", &[format!("query={expression}")]);
        let series = data["result"].as_array().cloned().unwrap_or_default();
        let value = |series: &Value| series["value"][1].as_str().unwrap().parse().unwrap();
        series.iter().map(|series| (series["metric"].clone(), value(series))).collect()
    }

    /// Queries until a series has a value.
    fn wait_for(&self, what: &str, expression: &str) -> Vec<(Value, f64)> {
        wait_for(what, || {
            let series = self.query(expression);
            let has_value = series.iter().any(|(_, value)| !value.is_nan());
            if has_value { Ok(series) } else { Err(format!("{expression} has no value")) }
        })
    }
}

/// Excludes two alerts that may be pending for a moment: before the first scrape, and after a late
/// scrape on a busy machine.
const OTHERS: &str = "ALERTS{alertname!~\"KeygateAllDown|KeygateDown\"}";

#[test]
fn prometheus_alerts_on_a_compromised_key_only_and_no_panel_is_empty() {
    if skip::without("prometheus") {
        return;
    }
    let (plain, full) = (Scene::plain(), Scene::full());
    let prometheus = Prometheus::scraping([
        ("keygate-plain", plain.keygate.admin_address()),
        ("keygate-full", full.keygate.admin_address()),
    ]);
    for job in ["keygate-plain", "keygate-full"] {
        prometheus.wait_for("a scrape", &format!("up{{job={job:?}}} == 1"));
    }
    assert_eq!(prometheus.query(OTHERS), [], "nothing has happened");

    let asked = Asker::unix(&full.pki.path("ask.sock")).ask_about(&full.good);
    assert_eq!(asked.status, 200, "{}", asked.head);
    // Every panel has data for a working proxy with any configuration.
    for (scene, job) in [(&plain, "keygate-plain"), (&full, "keygate-full")] {
        let response = scene.keygate.curl(&scene.good, &[]);
        assert_eq!(response.stdout, b"hello\n", "{}", output_text(&response));
        let of_all = queries(job, "1m");
        for query in &of_all {
            // Where only some of it is there, one part of a panel is enough.
            let of_panel = of_all.iter().filter(|other| other.panel == query.panel);
            let parts = of_panel.map(|it| format!("({})", it.expression)).collect::<Vec<_>>();
            let expression =
                if job == "keygate-full" { &query.expression } else { &parts.join(" or ") };
            prometheus.wait_for(&query.panel, expression);
        }
    }
    let rules = prometheus.send_get("rules", &[]);
    let groups = rules["groups"].as_array().unwrap();
    for rule in groups.iter().flat_map(|group| group["rules"].as_array().unwrap()) {
        assert_eq!(rule["health"], "ok", "{rule}");
    }

    let refused = full.keygate.curl(&full.lost, &[]);
    assert!(output_text(&refused).contains("access denied"), "{}", output_text(&refused));
    let firing = prometheus.wait_for("an alert", "ALERTS{alertstate=\"firing\"}");
    let instance = full.keygate.admin_address().to_string();
    let alert = json!({
        "__name__": "ALERTS", "alertname": "KeygateCompromisedKey", "alertstate": "firing",
        "severity": "warning", "job": "keygate-full", "instance": instance, "service": "test",
        "verdict": "probable",
    });
    assert_eq!(firing, [(alert, 1.0)]);
    assert_eq!(prometheus.query(OTHERS).len(), 1, "and of nothing else");
    drop((plain.pki, full.pki));
}
