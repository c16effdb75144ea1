//! A proxy with every series, and the series that it exposes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use keygate_core::spki::Fingerprint;

use super::FREE;
use crate::support::keygate::{Keygate, keygate};
use crate::support::origin::Origin;
use crate::support::pki::{Kind, Party, Pki};
use crate::support::promql::{Expression, Selector};
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, wait_until};

/// A proxy with every feature that has series only if it is configured. The proxy rejects `lost`.
pub(super) struct Scene {
    pub(super) pki: Pki,
    pub(super) keygate: Keygate,
    pub(super) good: Party,
    pub(super) lost: Party,
    /// The metrics that `keygate fetch` has written.
    pub(super) textfile: String,
    _origin: Origin,
}

impl Scene {
    pub(super) fn new(change: impl FnOnce(&Pki, Configuration) -> Configuration) -> Self {
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

    pub(super) fn plain() -> Self {
        Self::new(|_, configuration| configuration)
    }

    pub(super) fn full() -> Self {
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

[[authorizers]]
name = "requests"
listen = "unix:requests.sock"
protocol = "admission"
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

    pub(super) fn scrape(&self) -> String {
        self.keygate.admin("/metrics").1 + &self.textfile
    }
}

/// The metrics of a run of `keygate fetch` that fails.
pub(super) fn textfile(pki: &Pki) -> String {
    let (directory, file) = (pki.path("badkeys"), pki.path("fetch.prom"));
    let (directory, textfile) = (directory.to_str().unwrap(), file.to_str().unwrap());
    let url = "http://127.0.0.1:1/badkeysdata.json";
    let run = keygate(&["fetch", "--badkeys", directory, "--url", url, "--textfile", textfile]);
    assert_eq!(run.status.code(), Some(3), "{}", output_text(&run));
    std::fs::read_to_string(&file).unwrap()
}

/// The labels of every series, by metric.
pub(super) struct Exposed(pub(super) BTreeMap<String, Vec<BTreeMap<String, String>>>);

impl Exposed {
    pub(super) fn by(scene: &Scene) -> Self {
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
    pub(super) fn labels(&self, metric: &str, of: &str) -> BTreeSet<&str> {
        let series = self.0.get(metric).unwrap_or_else(|| panic!("{metric} is not exposed: {of}"));
        let ours = series.iter().flat_map(|labels| labels.keys().map(String::as_str));
        ours.chain(["job", "instance"]).collect()
    }

    /// Checks that the metric, labels and label values of a selector exist.
    pub(super) fn check(&self, selector: &Selector, of: &str) {
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
    pub(super) fn check_expression(&self, text: &str) -> BTreeSet<String> {
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
pub(super) fn words<'a>(text: &'a str, begin: &str) -> Vec<&'a str> {
    let words = text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
    words.filter(|word| word.starts_with(begin)).collect()
}

/// Every piece of text between `begin` and `end`.
pub(super) fn between<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    text.split(begin).skip(1).map(|rest| rest.split(end).next().unwrap()).collect()
}
