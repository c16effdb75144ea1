//! `keygate validate`: warnings, `--strict`, and the ways to name the configuration.

use std::process::Output;
use std::time::{Duration, SystemTime};

use rcgen::CertificateParams;

use crate::support::keygate::keygate;
use crate::support::pki::Pki;
use crate::support::proxy::{Configuration, Configure};
use crate::support::{output_text, write_filter};

/// A configuration in the directory of a CA. No upstream listens.
struct Files {
    pki: Pki,
    configuration: Configuration,
}

impl Files {
    fn new() -> Self {
        let pki = Pki::new();
        write_filter(&pki.path("lost.pkbf"), &[]);
        Self { pki, configuration: Configuration::new("127.0.0.1:1") }
    }

    fn path(&self) -> String {
        self.pki.path("keygate.toml").to_str().unwrap().to_owned()
    }

    fn validate(&self, arguments: &[&str]) -> Output {
        std::fs::write(self.path(), self.configuration.text()).unwrap();
        keygate(&[&["validate", "--config", &self.path()], arguments].concat())
    }

    /// The warnings, with which `--strict` must fail.
    fn warnings(&self) -> Vec<String> {
        let output = self.validate(&[]);
        assert_eq!(output.status.code(), Some(0), "{}", output_text(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let warnings = text.lines().filter_map(|line| line.strip_prefix("warning: "));
        let warnings: Vec<_> = warnings.map(str::to_owned).collect();
        let strict = self.validate(&["--strict"]).status.code();
        assert_eq!(strict, Some(if warnings.is_empty() { 0 } else { 2 }), "{warnings:?}");
        warnings
    }
}

const DAY: Duration = Duration::from_secs(86_400);

/// Parameters of a server certificate for `localhost` with this validity period.
fn valid(start: SystemTime, end: SystemTime) -> CertificateParams {
    let mut parameters = CertificateParams::new(["localhost".to_owned()]).unwrap();
    (parameters.not_before, parameters.not_after) = (start.into(), end.into());
    parameters
}

#[test]
fn a_certificate_outside_of_its_validity_period_is_a_warning_with_the_time() {
    let files = Files::new();
    let now = SystemTime::now();
    let day = |time| humantime::format_rfc3339_seconds(time).to_string()[..10].to_owned();
    assert!(files.warnings().is_empty());
    for (start, end, problem) in [
        (now - 90 * DAY, now - 5 * DAY, format!("expired at {}", day(now - 5 * DAY))),
        (now - 80 * DAY, now + 9 * DAY, format!("expires at {}", day(now + 9 * DAY))),
        (now + 5 * DAY, now + 90 * DAY, format!("is not valid before {}", day(now + 5 * DAY))),
    ] {
        files.pki.server_with("server", valid(start, end));
        let warnings = files.warnings();
        let path = files.pki.path("server.pem");
        let file = format!("service \"test\": tls.certificate {}", path.display());
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.starts_with(&format!("{file}: certificate 1 {problem}")), "{warning}");
    }
}

#[test]
fn a_server_name_that_the_certificate_does_not_cover_is_a_warning() {
    let mut files = Files::new();
    files.pki.server_for("server", &["a.example", "*.b.example"]);
    let names = r#"server_names = ["a.example", "x.b.example", "*.b.example", "*.c.example"]"#;
    files.configuration = files.configuration.service(names);
    let warnings = files.warnings();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.contains("is not valid for server name \"*.c.example\""), "{warning}");
}

#[test]
fn the_warnings_are_in_the_log_of_the_running_proxy() {
    let mut files = Files::new();
    let now = SystemTime::now();
    files.pki.server_with("server", valid(now - 90 * DAY, now - DAY));
    files.configuration = files.configuration.service("server_names = [\"other.example\"]");
    let warnings = files.warnings();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let keygate = files.configuration.start(&files.pki);
    for (warning, message) in
        warnings.iter().zip(["certificate is not valid now", "certificate lacks a server name"])
    {
        keygate.wait_for(message, |line| {
            line["message"] == message && line["level"] == "WARN" && line["problem"] == **warning
        });
    }
}

#[test]
fn the_configuration_is_named_by_an_argument_or_an_option() {
    let files = Files::new();
    let path = files.path();
    assert!(files.warnings().is_empty());
    for arguments in [&[path.as_str()][..], &["-c", &path], &["--config", &path]] {
        let output = keygate(&[&["validate"], arguments].concat());
        assert!(output_text(&output).contains(&format!("{path}: valid\n")), "{arguments:?}");
        let output = keygate(&[&["run"], arguments, &["--no-such-option"]].concat());
        assert!(output_text(&output).contains("--no-such-option"), "{}", output_text(&output));
    }
    let both = keygate(&["validate", &path, "--config", &path]);
    assert_eq!(both.status.code(), Some(2), "{}", output_text(&both));
}
