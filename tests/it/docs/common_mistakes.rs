//! The table "Mistakes" of the reference: each one is made in a file, and `keygate validate` prints
//! the message in the table.

use std::process::Command;
use std::time::Duration;

use rcgen::CertificateParams;

use crate::support::keygate::BINARY;
use crate::support::pki::Pki;
use crate::support::{MINIMAL, output_text, system, write_filter};

const PAGE: &str = include_str!("../../../docs/configuration.md");

/// A row of the table. Each mistake replaces the line of [`MINIMAL`] with its key, or is the first
/// line.
struct Mistake<'a> {
    kind: &'a str,
    written: String,
    message: String,
}

/// The code in a cell, one line for each span. A span with a backtick has two backticks around it.
fn code(cell: &str) -> String {
    let spans = cell.split("<br>").map(|span| match span.strip_prefix("`` ") {
        Some(span) => span.strip_suffix(" ``").unwrap(),
        None => span.strip_prefix('`').and_then(|span| span.strip_suffix('`')).unwrap_or(span),
    });
    spans.collect::<Vec<_>>().join("\n")
}

fn mistakes() -> Vec<Mistake<'static>> {
    let (_, section) = PAGE.split_once("\n## Mistakes\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")).skip(2);
    let rows = rows.map(|row| {
        let [kind, written, message]: [&str; 3] = row
            .trim_end_matches(" |")
            .splitn(3, " | ")
            .collect::<Vec<_>>()
            .try_into()
            .unwrap_or_else(|_| panic!("{row}"));
        Mistake { kind, written: code(written), message: code(message) }
    });
    rows.collect()
}

impl Mistake<'_> {
    /// The name of the configuration file.
    fn file(&self) -> &'static str {
        match self.kind {
            "file of another format" => "keygate.json",
            _ => "keygate.toml",
        }
    }

    /// The configuration with the mistake.
    fn text(&self) -> String {
        let written = &self.written;
        if self.file() != "keygate.toml" {
            return format!("{written}\n");
        }
        let key = written.split_once(" = ").map(|(key, _)| format!("{key} = "));
        let is_same = |line: &str| key.as_ref().is_some_and(|key| line.starts_with(key.as_str()));
        match MINIMAL.lines().find(|line| is_same(line)) {
            Some(line) => MINIMAL.replace(line, written),
            None => format!("{written}\n{MINIMAL}"),
        }
    }
}

/// The files that the configurations name.
fn files() -> Pki {
    let pki = Pki::new();
    write_filter(&pki.path("lost.pkbf"), &[b"a key"]);
    pki.server("server");
    pki.server("other");
    let mut expired = CertificateParams::new(["localhost".to_owned()]).unwrap();
    expired.not_before = rcgen::date_time_ymd(2025, 1, 1);
    expired.not_after = rcgen::date_time_ymd(2026, 1, 1);
    pki.server_with("expired", expired);
    let other = Pki::named("Other CA");
    let list = other.crl("other.crl", &[], Duration::from_secs(86_400));
    std::fs::rename(list, pki.path("other.crl")).unwrap();
    let [plain, encrypted] = ["server.key", "encrypted.key"].map(|name| pki.path(name));
    let (plain, encrypted) = (plain.to_str().unwrap(), encrypted.to_str().unwrap());
    let made = ["pkcs8", "-topk8", "-in", plain, "-out", encrypted, "-passout", "pass:secret"];
    system("openssl", &made);
    pki
}

/// Words of libraries, of Rust and of the operating system, which a message must not have.
const FORBIDDEN: [&str; 16] = [
    "Error",
    "None",
    "Other(",
    "Raw",
    "Some(",
    "UnixTime",
    "::",
    "deserializ",
    "expected ",
    "enum",
    "invalid type",
    "os error",
    "serde",
    "string",
    "struct",
    "variant",
];

/// `text` with `…` for the age of the expired certificate.
fn without_age(text: &str) -> String {
    let Some((before, after)) = text.split_once(" days ago") else { return text.to_owned() };
    let before = before.trim_end_matches(|it: char| it.is_ascii_digit());
    format!("{before}… days ago{after}")
}

#[test]
fn each_mistake_is_reported_with_the_message_in_the_table() {
    let (pki, mistakes) = (files(), mistakes());
    assert_eq!(mistakes.len(), 22);
    let validate = |file: &str, text: &str| {
        std::fs::write(pki.path(file), text).unwrap();
        let mut command = Command::new(BINARY);
        command.args(["validate", file]).current_dir(pki.directory()).output().unwrap()
    };
    let valid = validate("keygate.toml", MINIMAL);
    assert_eq!(valid.status.code(), Some(0), "{}", output_text(&valid));
    for mistake in &mistakes {
        let output = validate(mistake.file(), &mistake.text());
        let printed = if output.status.success() {
            let lines = String::from_utf8(output.stdout).unwrap();
            let warnings = lines.lines().filter(|line| line.starts_with("warning: "));
            warnings.collect::<Vec<_>>().join("\n")
        } else {
            let lines = String::from_utf8(output.stderr).unwrap();
            let lines = lines.lines().map(|line| line.strip_prefix("keygate: ").unwrap());
            lines.collect::<Vec<_>>().join("\n")
        };
        assert_eq!(without_age(&printed), mistake.message, "{}", mistake.kind);
        // The parser of TOML has words of its own.
        for word in FORBIDDEN.iter().filter(|_| !printed.contains("not valid TOML: ")) {
            assert!(!printed.replace("[::]", "").contains(word), "{word:?} in: {printed}");
        }
    }
}
