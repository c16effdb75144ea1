//! A real Prometheus scrapes two proxies, evaluates the rules, and runs the queries of the
//! dashboard.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};

use super::scene::Scene;
use super::{path, queries};
use crate::support::asker::Asker;
use crate::support::program::{Program, reserved_address};
use crate::support::{output_text, skip, system, wait_for};

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
